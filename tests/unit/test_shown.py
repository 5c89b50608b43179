"""Items as clients see them: what is added and nothing else (DESIGN 4), by fixtures and openai-python's types."""

import json
from typing import Any

import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from server.protocol import raw
from server.protocol.items import Item, from_upstream, parse_input
from server.protocol.shown import shown

LISTED: TypeAdapter[Any] = TypeAdapter(ResponseItem)


def of_upstream(body: str, public_id: str = "i_1") -> Item:
    return from_upstream(raw.Object(body.encode()), public_id, issuer="up")


def of_client(item: dict[str, Any]) -> Item:
    return parse_input(json.dumps([item]).encode()).items[0]


ADDED_TO = [
    pytest.param(
        '{"type":"reasoning"}', '{"type":"reasoning","id":"i_1","summary":[]}', id="a reasoning item: id and summary"
    ),
    pytest.param(
        '{"summary":null,"id":null,"type":"reasoning"}',
        '{"summary":[],"id":"i_1","type":"reasoning"}',
        id="nulls are replaced where they stand",
    ),
    pytest.param(
        '{"id":"other","type":"reasoning","summary":[]}',
        '{"id":"i_1","type":"reasoning","summary":[]}',
        id="an id that is not the public one",
    ),
    pytest.param(
        '{"type":"function_call","call_id":"c","id":"i_1","name":"f","arguments":"{}","status":null}',
        '{"type":"function_call","call_id":"c","id":"i_1","name":"f","arguments":"{}","status":"completed"}',
        id="the status of a call",
    ),
    pytest.param(
        '{"type":"function_call_output","id":"i_1","output":"x"}',
        '{"type":"function_call_output","id":"i_1","output":"x","status":"completed"}',
        id="the status of an output",
    ),
    pytest.param(
        '{"type":"web_search_call","id":"i_1"}',
        '{"type":"web_search_call","id":"i_1","status":"completed"}',
        id="the status of a hosted call",
    ),
    pytest.param(
        '{"id":"i_1","type":"message","role":"user","content":"a\\u0000\\ud83d\\n"}',
        '{"id":"i_1","type":"message","role":"user","content":[{"type":"input_text","text":"a\\u0000\\ud83d\\n"}],'
        '"status":"completed"}',
        id="a short message of a user",
    ),
    pytest.param(
        '{"id":"i_1","type":"message","role":"assistant","status":"incomplete","content":"hi"}',
        '{"id":"i_1","type":"message","role":"assistant","status":"incomplete",'
        '"content":[{"type":"output_text","text":"hi","annotations":[],"logprobs":[]}]}',
        id="a short message of an assistant",
    ),
    pytest.param(
        '{"id":"i_1","type":"message","role":"user","status":"completed","content":[ {"type":"input_text","text":"a"} ,'
        '{"image_url":"u","type":"input_image","detail":null},{"type":"input_image","file_id":"f"},{"type":"input_image",'
        '"detail":"low"}]}',
        '{"id":"i_1","type":"message","role":"user","status":"completed","content":[{"type":"input_text","text":"a"},'
        '{"image_url":"u","type":"input_image","detail":"auto"},{"type":"input_image","file_id":"f","detail":"auto"},'
        '{"type":"input_image","detail":"low"}]}',
        id="the detail of an image",
    ),
    pytest.param(
        '{"id":"i_1","type":"function_call_output","status":"completed","output":[{"type":"input_image"}]}',
        '{"id":"i_1","type":"function_call_output","status":"completed","output":[{"type":"input_image","detail":"auto"}]}',
        id="the detail of an image in an output",
    ),
    pytest.param(
        '{"id":"i_1","type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"a"},'
        '{"type":"output_text","text":"b","annotations":null,"logprobs":null},{"type":"refusal","refusal":"c"}]}',
        '{"id":"i_1","type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"a",'
        '"annotations":[]},{"type":"output_text","text":"b","annotations":[],"logprobs":null},'
        '{"type":"refusal","refusal":"c"}]}',
        id="the annotations of a text",
    ),
    pytest.param(
        '{"x":1.0,"id":"i_1","type":"x_thing"}', '{"x":1.0,"id":"i_1","type":"x_thing"}', id="an unknown type"
    ),
    pytest.param(
        '{"id":"i_1","type":"function_call","status":"completed","call_id":null,"name":"f","arguments":"{}"}',
        '{"id":"i_1","type":"function_call","status":"completed","call_id":"i_1","name":"f","arguments":"{}"}',
        id="what a call is answered by",
    ),
    pytest.param("{}", '{"id":"i_1","type":"unknown"}', id="an empty item"),
    pytest.param(
        '{"id":"a","id":"b","type":"reasoning","summary":[]}',
        '{"id":"a","id":"i_1","type":"reasoning","summary":[]}',
        id="the last of two counts",
    ),
]


@pytest.mark.parametrize(("body", "expected"), ADDED_TO)
def test_only_what_clients_need_is_added(body: str, expected: str) -> None:
    assert shown(of_upstream(body)).decode() == expected


@pytest.mark.parametrize(("body", "expected"), ADDED_TO)
def test_what_is_shown_needs_nothing_more(body: str, expected: str) -> None:
    again = of_upstream(expected)
    assert shown(again) == expected.encode()


@pytest.mark.parametrize(
    "body",
    [
        '{"id":"i_1","type":"reasoning","summary":[],"content":null,"encrypted_content":null,"status":null}',
        '{"id":"i_1","type":"message","role":"assistant","status":"in_progress","phase":null,"content":[]}',
        '{"id":"i_1","type":"message","role":"assistant","status":"completed","content":null}',
        '{ "status" : "completed", "id":"i_1","type":"function_call","call_id":"c","async":null,"caller":null }',
        '{"id":"i_1","type":"function_call_output","status":"incomplete","output":"[{\\"type\\":\\"input_image\\"}]"}',
        '{"id":"i_1","type":"mcp_list_tools","tools":[{"a":1e400}],"error":null}',
        '{"id":"i_1","type":"compaction","encrypted_content":"\\ud83d"}',
        '{"id":"i_1","type":"mcp_approval_request","arguments":"{}"}',
        '{"id":"i_1","type":"x_new","content":"text","output":[1,null,"x",{"type":"output"}],"u":"\\u0000"}',
        '{"id":"i_1","type":"computer_call_output","status":"completed","output":{"type":"computer_screenshot"}}',
    ],
)
def test_everything_else_is_shown_byte_for_byte(body: str) -> None:
    assert shown(of_upstream(body)) == body.encode()


def test_of_an_item_on_its_way_no_status_is_claimed() -> None:
    body = '{"type":"message","role":"assistant","content":[]}'
    assert shown(of_upstream(body), is_done=False) == b'{"type":"message","role":"assistant","content":[],"id":"i_1"}'


def test_a_call_on_its_way_may_still_get_the_id_that_it_is_answered_by() -> None:
    body = '{"id":"i_1","type":"function_call","name":"f","arguments":""}'
    assert shown(of_upstream(body), is_done=False) == body.encode()


def test_the_stored_item_is_not_changed() -> None:
    item = of_upstream('{"type":"reasoning"}')
    shown(item)
    assert item.body == b'{"type":"reasoning"}'


CLIENT_ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"role": "developer", "content": "hi"},
    {"role": "system", "content": [{"type": "input_text", "text": "hi"}]},
    {"role": "assistant", "content": "hi"},
    {"role": "assistant", "content": "hi", "phase": "commentary"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": None}]},
    {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "x"}], "status": None},
    {"role": "user", "content": [{"type": "input_image", "image_url": "u"}, {"type": "input_file", "file_id": "f"}]},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}]},
    {"type": "reasoning", "id": "rs_1", "summary": None, "encrypted_content": "x", "content": None},
    {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}", "id": None},
    {"type": "function_call_output", "call_id": "c", "output": "x"},
    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "u"}]},
    {"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "u"}]},
    {"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["ls"], "env": {}}},
    {"type": "local_shell_call_output", "id": "c", "output": "x"},
    {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}, "environment": None},
    {"type": "shell_call_output", "call_id": "c",
     "output": [{"stdout": "", "stderr": "", "outcome": {"type": "timeout"}}]},
    {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "p"}},
    {"type": "apply_patch_call_output", "call_id": "c", "output": "x"},
    {"type": "computer_call", "call_id": "c", "action": {"type": "screenshot"}, "pending_safety_checks": []},
    {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": "u"}},
    {"type": "web_search_call", "action": {"type": "search", "query": "q"}},
    {"type": "file_search_call", "queries": ["q"]},
    {"type": "image_generation_call", "result": None},
    {"type": "code_interpreter_call", "container_id": "c", "code": "x", "outputs": None},
    {"type": "mcp_list_tools", "server_label": "s", "tools": []},
    {"type": "mcp_call", "server_label": "s", "name": "n", "arguments": "{}"},
    {"type": "mcp_approval_request", "server_label": "s", "name": "n", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True},
    {"type": "tool_search_call", "arguments": {}, "execution": "client", "call_id": None},
    {"type": "tool_search_output", "tools": [], "execution": "client", "call_id": None},
    {"type": "compaction", "encrypted_content": "x"},
    {"type": "program", "call_id": "c", "code": "x", "fingerprint": "f"},
    {"type": "program_output", "call_id": "c", "result": "x"},
]  # fmt: skip


@pytest.mark.parametrize("item", CLIENT_ITEMS, ids=lambda item: f"{item.get('type', 'short')} {sorted(item)}")
def test_a_clients_item_is_shown_as_openais_strict_types_want_it(item: dict[str, Any]) -> None:
    brought = of_client(item)
    told = json.loads(shown(brought))
    LISTED.validate_python(told)
    assert told["id"] == brought.public_id
    assert {name for name in told if told[name] != item.get(name)} <= {
        "id",
        "call_id",
        "type",
        "status",
        "summary",
        "content",
        "output",
    }


@pytest.mark.parametrize("missing", ["id", "status", "summary", "content", "annotations", "detail"])
def test_each_addition_is_one_that_the_strict_types_miss(missing: str) -> None:
    """Measured: without it, openai-python's strict types refuse an item that some client sends."""
    told = {
        "id": of_client({"role": "user", "content": "hi"}),
        "status": of_client({"type": "function_call_output", "call_id": "c", "output": "x"}),
        "summary": of_client({"type": "reasoning", "content": []}),
        "content": of_client({"role": "assistant", "content": "hi"}),
        "annotations": of_client({"role": "assistant", "content": [{"type": "output_text", "text": "x"}]}),
        "detail": of_client({"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}),
    }[missing]
    item = json.loads(shown(told))
    LISTED.validate_python(item)
    holder = item["content"][0] if missing in ("annotations", "detail") else item
    if missing == "content":
        item["content"] = "hi"
    else:
        del holder[missing]
    with pytest.raises(ValueError, match="validation errors"):
        LISTED.validate_python(item)
