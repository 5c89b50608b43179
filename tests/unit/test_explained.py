"""The object that tells what would be sent and why."""

import json

from server.protocol.explained import explained
from server.protocol.items import Item
from server.protocol.replay import Decision


def test_each_item_is_told_by_its_id_type_and_rule() -> None:
    kept = Item(body=b'{"text":"secret"}', public_id="msg_1", type="message")
    left = Item(body=b"{}", public_id="rs_1", type="reasoning")
    decisions = [
        Decision(item=left, action="left_out", rule="empty", copy=None, message=0),
        Decision(item=kept, action="kept", rule="message", copy=b"{}", message=1),
    ]
    body = explained(upstream="gpu", dialect="chat", body=b'{"a" : 1.0}', decisions=decisions, input_count=1)
    assert b'"request":{"a" : 1.0}' in body
    assert json.loads(body) == {
        "object": "response.replay",
        "upstream": "gpu",
        "dialect": "chat",
        "request": {"a": 1.0},
        "items": [
            {"index": 0, "source": "history", "id": "rs_1", "type": "reasoning", "action": "left_out", "rule": "empty"},
            {"index": 1, "source": "input", "id": "msg_1", "type": "message", "action": "kept", "rule": "message"},
        ],
    }
