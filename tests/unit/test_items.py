"""Input cut into items: every shape that real clients send, the path of what is wrong, and texts kept as they came."""

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.errors import ApiError
from server.protocol import raw
from server.protocol.items import Input, Item, accepted_by, from_upstream, parse_input
from tests.harness import cases


def one(text: str) -> Item:
    """The only item of an input that holds this element."""
    (item,) = parse_input(f"[{text}]".encode()).items
    return item


def refused(text: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_input(text.encode())
    assert (caught.value.status, caught.value.type) == (400, "invalid_request_error")
    return caught.value


# --- strings


@pytest.mark.parametrize("text", ['"hi"', '" "', '"\\u0000\\ud83d"', '"caf\u00e9 \\" \\\\u0000"', '"null"'])
def test_a_string_is_one_user_message(text: str) -> None:
    (item,) = parse_input(text.encode()).items
    assert item.body == b'{"type":"message","role":"user","content":' + text.encode() + b"}"
    assert (item.type, item.call_id, item.is_output, item.fidelity, item.issuer) == ("message", None, False, None, None)
    assert re.fullmatch(r"msg_[0-9a-f]{48}", item.public_id)


@pytest.mark.parametrize("text", ['""', "[]", "[ ]"])
def test_nothing_is_no_item(text: str) -> None:
    assert parse_input(text.encode()) == Input([], set())


# --- the shapes of contract clients.md, by its numbers

SHAPES = [
    pytest.param('{"role":"user","content":"hi"}', "message", None, id="1"),
    pytest.param('{"role":"assistant","content":"Hello"}', "message", None, id="2"),
    pytest.param('{"role":"assistant","content":[{"type":"output_text","text":"prev"}]}', "message", None, id="3"),
    pytest.param(
        '{"id":"msg_4","type":"message","role":"assistant","status":"completed","phase":"final_answer",'
        '"content":[{"type":"output_text","text":"..","annotations":[],"logprobs":[]}]}',
        "message", None, id="4",
    ),
    pytest.param(
        '{"content":[{"type":"output_text","text":"x"}],"role":"assistant","status":"completed","type":"message",'
        '"phase":"final_answer"}',
        "message", None, id="5",
    ),
    pytest.param(
        '{"id":"msg_6","content":[{"text":"weather?","type":"input_text"}],"role":"user","status":"completed",'
        '"type":"message"}',
        "message", None, id="6",
    ),
    pytest.param(
        '{"role":"developer","id":"msg_2f1e3c9a-0000-4000-8000-000000000000",'
        '"content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]}',
        "message", None, id="7",
    ),
    pytest.param('{"role":"system","content":"sys"}', "message", None, id="8"),
    pytest.param('{"name":"f","arguments":"{}","call_id":"c","type":"function_call"}', "function_call", "c", id="9"),
    pytest.param(
        '{"id":"fc_1","type":"function_call","call_id":"c","name":"f","arguments":"","status":"completed"}',
        "function_call", "c", id="10",
    ),
    pytest.param('{"type":"function_call_output","call_id":"c","output":"x"}', "function_call_output", "c", id="11"),
    pytest.param(
        '{"type":"function_call_output","call_id":"c","output":"sunny","status":"completed"}',
        "function_call_output", "c", id="11-status",
    ),
    pytest.param(
        '{"type":"function_call_output","call_id":"c","output":"sunny","id":"fco_2f1e"}',
        "function_call_output", "c", id="11-id",
    ),
    pytest.param(
        '{"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"sunny"},'
        '{"type":"input_image","image_url":"data:image/png;base64,AAAA"}]}',
        "function_call_output", "c", id="12",
    ),
    pytest.param('{"type":"function_call_output","output":"","call_id":null}', "function_call_output", None, id="null"),
    pytest.param('{"id":"rs_1","type":"reasoning","summary":[],"encrypted_content":"g"}', "reasoning", None, id="16"),
    pytest.param(
        '{"type":"reasoning","summary":[],"content":null,"encrypted_content":"g"}', "reasoning", None, id="16-null"
    ),
    pytest.param('{"type":"reasoning","summary":[]}', "reasoning", None, id="16-empty"),
    pytest.param('{"type":"reasoning"}', "reasoning", None, id="16-bare"),
    pytest.param(
        '{"type":"reasoning","summary":[{"type":"summary_text","text":"s"}],"content":[{"type":"reasoning_text",'
        '"text":"t"}],"encrypted_content":null,"status":null}',
        "reasoning", None, id="16-full",
    ),
    pytest.param('{"id":"cmp_1","type":"compaction","encrypted_content":".."}', "compaction", None, id="30"),
    pytest.param(
        '{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,AAAA"},'
        '{"type":"input_file","filename":"a.pdf","file_data":"data:application/pdf;base64,AAAA"}]}',
        "message", None, id="32",
    ),
    pytest.param('{"role":"assistant","content":"<think>..</think>"}', "message", None, id="36"),
    pytest.param(
        '{"type":"function_call","call_id":"c","name":"f","arguments":"{}","namespace":null,"caller":null,'
        '"created_by":"x","parsed_arguments":{"a":1}}',
        "function_call", "c", id="38",
    ),
    pytest.param(
        '{"type":"message","role":"assistant","content":[{"type":"output_text","text":"x","parsed":{"a":null}}]}',
        "message", None, id="38-message",
    ),
    pytest.param(
        '{"type":"message","role":"assistant","content":[{"type":"refusal","refusal":"no"}]}', "message", None,
        id="refusal",
    ),
    pytest.param('{"type":"message","role":"assistant","content":[]}', "message", None, id="no-content"),
    pytest.param('{"type":"message","role":"assistant","content":null}', "message", None, id="null-content"),
    pytest.param('{"type":null,"role":"user","content":"x","id":null,"status":null}', "message", None, id="nulls"),
    pytest.param('{"type":"custom_tool_call","call_id":"c","name":"p","input":"i"}', "custom_tool_call", "c",
                 id="custom"),
    pytest.param(
        '{"type":"custom_tool_call_output","call_id":"c","output":[{"type":"input_text","text":"x"}]}',
        "custom_tool_call_output", "c", id="custom-output",
    ),
    pytest.param('{"type":"local_shell_call","id":"lsh_1","call_id":"c","action":{},"status":"completed"}',
                 "local_shell_call", "c", id="local-shell"),
    pytest.param('{"type":"shell_call","call_id":"c","action":{"commands":[]},"status":null}', "shell_call", "c",
                 id="shell"),
    pytest.param('{"type":"apply_patch_call","call_id":"c","operation":{}}', "apply_patch_call", "c", id="patch"),
    pytest.param('{"type":"computer_call_output","call_id":"c","output":{"type":"computer_screenshot"}}',
                 "computer_call_output", "c", id="computer"),
    pytest.param('{"type":"web_search_call","id":"ws_1","status":"completed","action":{}}', "web_search_call", None,
                 id="web-search"),
    pytest.param('{"type":"mcp_approval_response","approval_request_id":"mcpr_1","approve":true}',
                 "mcp_approval_response", None, id="mcp"),
    pytest.param('{"type":"additional_tools","role":"developer","tools":[]}', "additional_tools", None, id="tools"),
    pytest.param('{"type":"compaction_trigger"}', "compaction_trigger", None, id="trigger"),
    pytest.param('{"type":"x_thing","anything":[{"at":{"all":null}}]}', "x_thing", None, id="unknown"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "item_type", "call_id"), SHAPES)
def test_what_real_clients_send_becomes_an_item_with_its_text_as_it_came(
    text: str, item_type: str, call_id: str | None
) -> None:
    spaced = text.replace(",", " ,\n", 1)
    item = one(spaced)
    assert item.body == spaced.encode()
    assert (item.type, item.call_id, item.is_output) == (item_type, call_id, False)
    brought = json.loads(text).get("id")
    assert item.public_id == brought if brought else re.fullmatch(r"[a-z]+_[0-9a-f]{48}", item.public_id)


def test_items_keep_their_order_and_their_ids() -> None:
    parsed = parse_input(
        b'[{"role":"developer","content":"d"},{"id":"u","role":"user","content":"u"},'
        b'{"id":"f","type":"function_call","call_id":"c","name":"t","arguments":"{}"},'
        b'{"type":"function_call_output","call_id":"c","output":"o"},{"id":"u2","role":"user","content":"u"}]'
    )
    assert [item.type for item in parsed.items] == [
        "message", "message", "function_call", "function_call_output", "message",
    ]  # fmt: skip
    assert parsed.brought_ids == {"u", "f", "u2"}
    assert parsed.references() == []


def test_every_item_has_an_id_of_its_own_though_none_was_brought() -> None:
    parsed = parse_input(json.dumps([{"role": "user", "content": "same"}] * 100).encode())
    assert len({item.public_id for item in parsed.items}) == 100
    assert parsed.brought_ids == set()


@pytest.mark.parametrize(
    "text",
    ['{"type":"item_reference","id":"rs_1"}', '{"type":null,"id":"rs_1"}', '{"id":"rs_1"}',
     '{"id":"rs_1","type":null,"status":null}'],
)  # fmt: skip
def test_a_reference_stands_for_the_item_that_it_names(text: str) -> None:
    """contract api.md 4.12: its type may be null or absent."""
    said = '{"role":"user","content":"x"}'
    parsed = parse_input(f"[{said},{text},{said}]".encode())
    assert parsed.references() == ["rs_1"]
    assert parsed.brought_ids == {"rs_1"}
    thought = Item(
        body=b'{"type":"reasoning","id":"up"}',
        public_id="rs_1",
        type="reasoning",
        is_output=True,
        fidelity=b"{}",
        issuer="default",
    )
    resolved = parsed.resolved({"rs_1": thought})
    first, meant, last = resolved.items
    assert (first, last) == (parsed.items[0], parsed.items[2])
    # What another turn put out is input here, and all else stays with it.
    assert meant == msgspec.structs.replace(thought, is_output=False)
    assert (resolved.brought_ids, resolved.references()) == ({"rs_1"}, [])


@pytest.mark.parametrize("text", ['{"type":"item_reference"}', '{"type":"item_reference","id":null}',
                                  '{"type":"item_reference","id":""}'])  # fmt: skip
def test_a_reference_names_something(text: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_input(f"[{text}]".encode())
    error = caught.value
    assert (error.status, error.param, error.code) == (400, "input[0].id", "missing_required_parameter")


@pytest.mark.parametrize("other", ['{"type":"item_reference","id":"rs_1"}', '{"id":"rs_1"}',
                                   '{"id":"rs_1","role":"user","content":"x"}'])  # fmt: skip
def test_what_is_referred_to_is_brought_once(other: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_input(f'[{{"type":"item_reference","id":"rs_1"}},{other}]'.encode(), "items")
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, "items", "invalid_value")
    assert "'rs_1'" in caught.value.message


def test_the_member_that_holds_the_items_is_named() -> None:
    with pytest.raises(ApiError) as caught:
        parse_input(b'[{"role":"user"}]', "items")
    assert caught.value.param == "items[0].content"


# --- nothing is lost

TREACHEROUS = (
    '{"role":"user","content":"a\\u0000b"}',
    '{"role":"user","content":"\\ud83d"}',
    '{"role":"user","content":[{"type":"input_text","text":"\\udfff"}],"x":"caf\u00e9 \U0001f993"}',
    '{"role":"user","content":"literal \\\\u0000 then real \\u0000 then \\\\\\u0000 end"}',
    '{"z":1e400,"role":"user","a":1.0,"content":"x","n":-0,"big":' + "9" * 5000 + "}",
    '{"role":"user","content":"first","content":"second"}',
    '{ "type" : "x_thing" ,\t"b":null,"a":[ ] }',
)


@pytest.mark.parametrize("text", TREACHEROUS)
def test_an_item_is_kept_character_for_character(text: str) -> None:
    assert one(text).body == text.encode()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.text(), JSON_VALUES, max_size=5), max_size=5), st.booleans())
def test_items_of_unknown_types_are_kept_whatever_they_hold(members: list[dict[str, Any]], ascii_only: bool) -> None:
    kinds = [{**one, "type": "x_thing", "id": None, "call_id": None} for one in members]
    texts = [json.dumps(kind, ensure_ascii=ascii_only, indent=ascii_only or None).encode() for kind in kinds]
    assert [item.body for item in parse_input(raw.array(texts)).items] == texts


def test_the_last_of_a_repeated_member_counts() -> None:
    item = one('{"type":"x","id":"a","call_id":"c","type":"y","id":"b","call_id":"d"}')
    assert (item.type, item.public_id, item.call_id) == ("y", "b", "d")


# --- ids


@pytest.mark.parametrize("item_id", ["null", '""'])
def test_an_id_that_is_null_or_empty_is_none(item_id: str) -> None:
    """B126."""
    parsed = parse_input(f'[{{"id":{item_id},"role":"user","content":"a"}},{{"id":{item_id},"type":"x"}}]'.encode())
    assert parsed.brought_ids == set()
    assert all(item.public_id for item in parsed.items)


def test_an_id_that_comes_twice_is_named() -> None:
    error = refused('[{"id":"msg_1","role":"user","content":"a"},{"id":"msg_1","type":"x"}]')
    assert (error.param, error.code) == ("input", "invalid_value")
    assert "'msg_1'" in error.message


def test_a_local_shell_output_names_its_call_by_id() -> None:
    """contract api.md 7: it has no call_id, and its id is its call's, so the id isn't one that comes twice."""
    parsed = parse_input(
        b'[{"type":"local_shell_call","id":"lsh_1","call_id":"call_1","action":{},"status":"completed"},'
        b'{"type":"local_shell_call_output","id":"lsh_1","output":"ok"}]'
    )
    call, output = parsed.items
    assert (call.public_id, call.call_id) == ("lsh_1", "call_1")
    assert output.call_id == "lsh_1"
    assert output.public_id != "lsh_1"
    assert parsed.brought_ids == {"lsh_1"}


def test_a_local_shell_output_with_a_call_id_answers_that() -> None:
    assert one('{"type":"local_shell_call_output","id":"own","call_id":"call_1","output":"ok"}').call_id == "call_1"
    assert one('{"type":"local_shell_call_output","call_id":"call_1","output":"ok"}').call_id == "call_1"
    assert one('{"type":"local_shell_call_output","output":"ok"}').call_id is None


# --- what is wrong, and where


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("{}", "input[0].type"),
        ('{"content":"x"}', "input[0].type"),
        ('{"id":"x","content":"x"}', "input[0].type"),
        ('{"id":"","type":null}', "input[0].id"),
        ('{"type":"","role":"user","content":"x"}', "input[0].type"),
        ('{"type":"item_reference"}', "input[0].id"),
        ('{"type":"item_reference","id":null}', "input[0].id"),
        ('{"type":"item_reference","id":""}', "input[0].id"),
        ('{"type":"message","content":"x"}', "input[0].role"),
        ('{"type":"message","role":null,"content":"x"}', "input[0].role"),
        ('{"role":"user"}', "input[0].content"),
        ('{"role":"user","content":null}', "input[0].content"),
        ('{"role":"user","content":[{"text":"x"}]}', "input[0].content[0].type"),
        ('{"role":"user","content":[{"type":"input_image"},{"type":"input_text"}]}', "input[0].content[1].text"),
        ('{"role":"user","content":[{"type":"input_text","text":null}]}', "input[0].content[0].text"),
        ('{"role":"user","content":[{"type":"input_text","txt":"typo"}]}', "input[0].content[0].text"),
        ('{"role":"assistant","content":[{"type":"output_text"}]}', "input[0].content[0].text"),
        ('{"role":"assistant","content":[{"type":"refusal","text":"x"}]}', "input[0].content[0].refusal"),
        ('{"type":"reasoning","content":[{"type":"reasoning_text"}]}', "input[0].content[0].text"),
        ('{"type":"reasoning","summary":[{"type":"summary_text"}]}', "input[0].summary[0].text"),
        ('{"type":"function_call","name":"f","arguments":"{}"}', "input[0].call_id"),
        ('{"type":"function_call","call_id":null,"name":"f","arguments":"{}"}', "input[0].call_id"),
        ('{"type":"function_call","call_id":"","name":"f","arguments":"{}"}', "input[0].call_id"),
        ('{"type":"function_call","call_id":"c","arguments":"{}"}', "input[0].name"),
        ('{"type":"function_call","call_id":"c","name":"f"}', "input[0].arguments"),
        ('{"type":"function_call","call_id":"c","name":"f","arguments":null}', "input[0].arguments"),
        ('{"type":"function_call_output","call_id":"c"}', "input[0].output"),
        ('{"type":"function_call_output","call_id":"c","output":null}', "input[0].output"),
        ('{"type":"function_call_output","call_id":"c","output":[{}]}', "input[0].output[0].type"),
        ('{"type":"custom_tool_call","call_id":"c","name":"p"}', "input[0].input"),
        ('{"type":"custom_tool_call_output","output":"x"}', "input[0].call_id"),
        ('{"type":"custom_tool_call_output","call_id":null,"output":"x"}', "input[0].call_id"),
    ],
)
def test_what_is_missing_is_named_by_its_path(text: str, param: str) -> None:
    error = refused(f"[{text}]")
    assert (error.param, error.code) == (param, "missing_required_parameter")
    assert error.message == f"Missing required parameter: '{param}'."


@pytest.mark.parametrize(
    ("text", "param", "expected", "got"),
    [
        ("null", "input[0]", "an object", "null"),
        ('"hi"', "input[0]", "an object", "a string"),
        ("[]", "input[0]", "an object", "an array"),
        ('{"type":5}', "input[0].type", "a string", "an integer"),
        ('{"id":5,"role":"user","content":"x"}', "input[0].id", "a string", "an integer"),
        ('{"role":5,"content":"x"}', "input[0].role", "a string", "an integer"),
        ('{"role":"user","content":5}', "input[0].content", "a string or an array", "an integer"),
        ('{"role":"user","content":{}}', "input[0].content", "a string or an array", "an object"),
        ('{"role":"user","content":["x"]}', "input[0].content[0]", "an object", "a string"),
        ('{"role":"user","content":[null]}', "input[0].content[0]", "an object", "null"),
        ('{"role":"user","content":[{"type":1}]}', "input[0].content[0].type", "a string", "an integer"),
        ('{"role":"user","content":[{"type":"input_text","text":1.5}]}', "input[0].content[0].text", "a string",
         "a number"),
        ('{"role":"assistant","content":true}', "input[0].content", "a string or an array", "a boolean"),
        ('{"type":"reasoning","content":"x"}', "input[0].content", "an array", "a string"),
        ('{"type":"reasoning","summary":{}}', "input[0].summary", "an array", "an object"),
        ('{"type":"reasoning","encrypted_content":{}}', "input[0].encrypted_content", "a string", "an object"),
        ('{"type":"function_call","call_id":5,"name":"f","arguments":"{}"}', "input[0].call_id", "a string",
         "an integer"),
        ('{"type":"function_call","call_id":"c","name":"f","arguments":{}}', "input[0].arguments", "a string",
         "an object"),
        ('{"type":"function_call_output","call_id":"c","output":{}}', "input[0].output", "a string or an array",
         "an object"),
        ('{"type":"custom_tool_call","call_id":"c","name":"p","input":[]}', "input[0].input", "a string", "an array"),
        ('{"type":"shell_call","call_id":5}', "input[0].call_id", "a string", "an integer"),
        ('{"type":"local_shell_call_output","id":5,"output":"x"}', "input[0].id", "a string", "an integer"),
    ],
)  # fmt: skip
def test_a_wrong_type_is_named_by_its_path(text: str, param: str, expected: str, got: str) -> None:
    error = refused(f"[{text}]")
    assert (error.param, error.code) == (param, "invalid_type")
    assert error.message == f"Invalid type for '{param}': expected {expected}, but got {got} instead."


def test_the_path_has_the_place_of_the_item() -> None:
    good = '{"role":"user","content":"x"}'
    assert refused(f'[{good},{good},{{"role":"user","content":[{{"type":"x"}},5]}}]').param == "input[2].content[1]"
    assert refused(f'[{good},{{"type":"item_reference","id":"r"}},7]').param == "input[2]"


@pytest.mark.parametrize("role", ["tool", "function", "model", "User", ""])
def test_an_unknown_role_is_a_fault_of_its_item(role: str) -> None:
    """contract api.md 5: the param is the item; the message names the member."""
    error = refused(f'[{{"role":"user","content":"x"}},{{"role":"{role}","content":"x"}}]')
    assert (error.param, error.code) == ("input[1]", "invalid_value")
    assert error.message == (
        "Invalid value for 'input[1].role'. Supported values are: 'user', 'assistant', 'system' and 'developer'."
    )


@pytest.mark.parametrize("member", ["id", "call_id", "type"])
@pytest.mark.parametrize("text", ["a\\u0000b", "a\\nb", "\\u007f", "\\ud83d", "x" * 257])
def test_a_key_that_no_database_takes_is_refused(member: str, text: str) -> None:
    members = {"type": '"x"', "id": '"i"', "call_id": '"c"'} | {member: f'"{text}"'}
    error = refused("[{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}]")
    assert (error.param, error.code) == (f"input[0].{member}", "invalid_value")
    assert len(error.message) < 200


@pytest.mark.parametrize("member", ["id", "call_id", "type"])
def test_any_other_key_is_taken_verbatim(member: str) -> None:
    """contract api.md 3: clients mint and resend ids of any prefix."""
    for text in ("x" * 256, "msg_2f1e3c9a-0000", "chatcmpl-tool-9402fa4e2a7a2b48", "\u00e9 \U0001f993", "a b"):
        item = one(json.dumps({"type": "x", member: text}))
        assert {"id": item.public_id, "call_id": item.call_id, "type": item.type}[member] == text


def test_an_error_is_short_and_quotes_no_text() -> None:
    """B126, its second step."""
    error = refused(json.dumps(cases()["B126"]["client_steps"][1]["json"]["input"]))
    assert error.param == "input[0].content[0].text"
    assert len(error.message) < 100
    assert "typo" not in error.message


# --- an upstream's items are taken whatever they are


@pytest.mark.parametrize(
    ("text", "item_type", "call_id"),
    [
        ('{"type":"message","id":"msg_u","role":"assistant","content":[]}', "message", None),
        ('{"type":"function_call","call_id":"call_1","name":"f","arguments":"{"}', "function_call", "call_1"),
        ('{"type":"function_call","call_id":null}', "function_call", None),
        ('{"type":"function_call","call_id":"a\\u0000b"}', "function_call", None),
        ('{"type":"function_call","call_id":5}', "function_call", None),
        ('{"id":"x"}', "unknown", None),
        ('{"type":"\\ud83d"}', "unknown", None),
        ('{"type":["message"],"content":{"deep":1e400}}', "unknown", None),
    ],
)
def test_an_upstreams_item_is_never_refused(text: str, item_type: str, call_id: str | None) -> None:
    assert from_upstream(raw.Object(text.encode()), "msg_1", "gpu-1") == Item(
        body=text.encode(), public_id="msg_1", type=item_type, call_id=call_id, is_output=True, issuer="gpu-1"
    )


def test_only_what_is_sealed_and_nobodys_becomes_its_readers() -> None:
    def sealed(issuer: str | None, encrypted: str) -> Item:
        body = b'{"type":"reasoning","encrypted_content":' + encrypted.encode() + b"}"
        return Item(body=body, public_id="rs_1", type="reasoning", issuer=issuer)

    items = [sealed(None, '"E"'), sealed("other", '"E"'), sealed(None, "null"), sealed(None, '""')]
    assert [item.issuer for item in accepted_by(items, "up")] == ["up", "other", None, None]
