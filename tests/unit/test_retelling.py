"""A stored response told again: as a body it is what GET gives, as a stream it follows the grammar."""

import json
from typing import Any

import pytest

from server.protocol import raw
from server.protocol.items import Item, from_upstream
from server.protocol.raw import Object
from server.protocol.request import parse
from server.protocol.response import ResponseObject
from server.protocol.retelling import retold
from tests.grammar import assert_grammar, assert_openai_accepts

MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hi.", "annotations": []}],
}
THOUGHT = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm."}],
    "status": "completed",
}


def stored(status: str) -> tuple[Object, list[Item]]:
    request = parse(b'{"model":"m","input":"x"}', 200)
    upstream = Object(b'{"usage":{"input_tokens":1,"output_tokens":2},"created_at":17}')
    body = ResponseObject(request, "resp_1", lambda: 18).ended(upstream, status, None)
    items: list[dict[str, Any]] = [THOUGHT, MESSAGE]
    return body, [from_upstream(raw.Object(json.dumps(item).encode()), item["id"], "up") for item in items]


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed"])
def test_a_stream_has_all_that_the_response_has(status: str) -> None:
    body, output = stored(status)
    events = assert_grammar(retold(body, output, stream=True))
    assert_openai_accepts(events)
    final = events[-1]["response"]
    assert (events[-1]["type"], final["status"]) == (f"response.{status}", status)
    assert final == json.loads(retold(body, output, stream=False))
    assert final["output"] == [THOUGHT, MESSAGE]
    assert (events[0]["response"]["status"], events[0]["response"]["usage"]) == ("in_progress", None)
    assert [event["delta"] for event in events if event["type"].endswith(".delta")] == ["Hm.", "Hi."]


def test_a_cancelled_response_has_no_terminal_event() -> None:
    body, output = stored("cancelled")
    stream = retold(body, output, stream=True)
    assert stream.endswith(b"data: [DONE]\n\n")
    assert b"response.completed" not in stream
