"""Conversations on the wire: what their requests may hold, by the limits of the contract, and their answers."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from server.errors import ApiError
from server.protocol.conversation import (
    conversation_object,
    deleted_conversation_object,
    parse_metadata,
    parse_new_conversation,
    parse_new_items,
)

SAID = '{"role":"user","content":"a"}'


def new(text: str) -> tuple[bytes, list[bytes]]:
    """Metadata and items of the conversation that this body asks for."""
    asked = parse_new_conversation(text.encode(), 50)
    return asked.metadata, [item.body for item in asked.items.items]


def refused(parse: Any, text: str, depth_max: int = 50) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(text.encode(), depth_max)
    error = caught.value
    assert (error.status, error.type) == (400, "invalid_request_error")
    return error


# --- a new conversation


@pytest.mark.parametrize(
    "text", ["", " \r\n", "{}", '{"metadata":null}', '{"items":null}', '{"items":[]}', '{"metadata":{},"items":[ ]}']
)
def test_a_conversation_may_be_asked_for_with_nothing(text: str) -> None:
    """contract clients.md 26: agents send no body at all, and their sessions `{"items": []}`."""
    assert new(text) == (b"{}", [])


def test_metadata_and_items_are_kept_as_they_came() -> None:
    said = r'{ "role":"user" , "x":1.0,"content":"\u0000\ud83d" }'
    pairs = r'{ "k":"\u00e9\ud83d" , "a":"" }'
    assert new(f'{{"items":[{said}, {SAID}],"metadata":{pairs}}}') == (pairs.encode(), [said.encode(), SAID.encode()])


def test_members_that_nobody_knows_mean_nothing() -> None:
    assert new('{"name":"mine","metadata":{"a":"b"}}') == (b'{"a":"b"}', [])


def test_twenty_items_are_the_most() -> None:
    _, items = new(f'{{"items":[{",".join([SAID] * 20)}]}}')
    assert len(items) == 20
    for parse in (parse_new_conversation, parse_new_items):
        error = refused(parse, f'{{"items":[{",".join([SAID] * 21)}]}}')
        assert (error.param, error.code) == ("items", "array_above_max_length")
        assert error.message == "Invalid 'items': array too long. Expected at most 20 elements, but got 21 instead."


@pytest.mark.parametrize("parse", [parse_new_conversation, parse_new_items])
@pytest.mark.parametrize(
    ("items", "param", "code"),
    [
        ('"a"', "items", "invalid_type"),
        (SAID, "items", "invalid_type"),
        ("5", "items", "invalid_type"),
        ('["a"]', "items[0]", "invalid_type"),
        ("[null]", "items[0]", "invalid_type"),
        (f'[{SAID},{{"role":"user"}}]', "items[1].content", "missing_required_parameter"),
        ('[{"content":"a"}]', "items[0].type", "missing_required_parameter"),
        ('[{"role":"pope","content":"a"}]', "items[0]", "invalid_value"),
        ('[{"type":"item_reference"}]', "items[0].id", "missing_required_parameter"),
        ('[{"id":"m","role":"user","content":"a"},{"id":"m","role":"user","content":"b"}]', "items", "invalid_value"),
        ('[{"id":"m\\u0000","role":"user","content":"a"}]', "items[0].id", "invalid_value"),
        (f'[{{"id":"{"m" * 257}","role":"user","content":"a"}}]', "items[0].id", "invalid_value"),
        ('[{"type":"reasoning","id":"r","summary":"s"}]', "items[0].summary", "invalid_type"),
    ],
)
def test_a_wrong_item_is_named_by_its_place(parse: Any, items: str, param: str, code: str) -> None:
    error = refused(parse, f'{{"items":{items}}}')
    assert (error.param, error.code) == (param, code)


@pytest.mark.parametrize("text", ["x", "[]", "null", '"a"', "{", '{"items":[]}}', '{"items":[],"items":[]}'])
@pytest.mark.parametrize("parse", [parse_new_conversation, parse_new_items, parse_metadata])
def test_a_body_that_is_no_object_is_refused(parse: Any, text: str) -> None:
    refused(parse, text)


@pytest.mark.parametrize(("text", "kind"), [("[]", "an array"), (" null ", "null"), ('"a"', "a string")])
def test_what_is_no_object_is_told_what_it_is(text: str, kind: str) -> None:
    for parse in (parse_new_conversation, parse_new_items, parse_metadata):
        assert f"it must be an object, and is {kind}." in refused(parse, text).message


@pytest.mark.parametrize("parse", [parse_new_conversation, parse_new_items, parse_metadata])
def test_a_body_that_is_too_deep_is_refused(parse: Any) -> None:
    deep = '{"type":"x","deep":' + "[" * 10 + "]" * 10 + "}"
    error = refused(parse, f'{{"metadata":{{}},"items":[{deep}]}}', 12)
    assert "nested more than 12 levels" in error.message


# --- items to add


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{}", "missing_required_parameter"),
        ('{"items":null}', "missing_required_parameter"),
        ('{"items":[]}', "array_below_min_length"),
    ],
)
def test_there_must_be_something_to_add(text: str, code: str) -> None:
    error = refused(parse_new_items, text)
    assert (error.param, error.code) == ("items", code)


def test_an_empty_body_adds_nothing_and_is_refused() -> None:
    for parse in (parse_new_items, parse_metadata):
        assert "could not parse the JSON body" in refused(parse, "").message


# --- metadata


def metadata(pairs: dict[str, Any]) -> str:
    return json.dumps({"metadata": pairs})


@pytest.mark.parametrize("parse", [parse_new_conversation, parse_metadata])
@pytest.mark.parametrize(
    ("pairs", "code"),
    [
        ({f"k{number}": "v" for number in range(17)}, "object_above_max_properties"),
        ({"k" * 65: "v"}, "string_above_max_length"),
        ({"k": "v" * 513}, "string_above_max_length"),
        ({"k": "é" * 513}, "string_above_max_length"),
        ({"k": 1}, "invalid_type"),
        ({"k": None}, "invalid_type"),
        ({"k": {"a": "b"}}, "invalid_type"),
        ({"k\x00": "v"}, "invalid_value"),
        ({"\ud83d": "v"}, "invalid_value"),
    ],
)
def test_metadata_out_of_its_limits_is_a_fault_of_metadata_itself(parse: Any, pairs: dict[str, Any], code: str) -> None:
    error = refused(parse, metadata(pairs))
    assert (error.param, error.code) == ("metadata", code)


@pytest.mark.parametrize("parse", [parse_new_conversation, parse_metadata])
def test_a_key_of_metadata_comes_once(parse: Any) -> None:
    """Seventeen pairs as text would be sixteen to whoever decodes them, and all of them would be stored."""
    pairs = ",".join(f'"k{min(number, 15)}":"v"' for number in range(17))
    error = refused(parse, f'{{"metadata":{{{pairs}}}}}')
    assert (error.param, error.message) == ("metadata", "Duplicate parameter: 'metadata.k15'.")


@pytest.mark.parametrize("value", ["[]", '"a"', "1", "true"])
@pytest.mark.parametrize("parse", [parse_new_conversation, parse_metadata])
def test_metadata_is_an_object(parse: Any, value: str) -> None:
    error = refused(parse, f'{{"metadata":{value}}}')
    assert (error.param, error.code) == ("metadata", "invalid_type")


@pytest.mark.parametrize(
    "pairs",
    [
        {f"k{number}": "v" for number in range(16)},
        {"k" * 64: "v" * 512},
        {"é" * 64: "é" * 512},
        {"😀" * 64: "😀" * 512},
    ],
)
def test_metadata_at_its_limits_is_taken_as_it_came(pairs: dict[str, str]) -> None:
    for text in (json.dumps(pairs), json.dumps(pairs, ensure_ascii=False)):
        assert parse_metadata(f'{{"metadata":{text}}}'.encode(), 50) == text.encode()


def test_metadata_is_replaced_by_nothing_only_where_that_is_said() -> None:
    assert parse_metadata(b'{"metadata":{}}', 50) == b"{}"
    assert parse_metadata(b'{"metadata":null}', 50) == b"{}"
    error = refused(parse_metadata, '{"other":{}}')
    assert (error.param, error.code) == ("metadata", "missing_required_parameter")


# --- objects


def test_the_objects_have_the_members_of_the_contract() -> None:
    """contract api.md 1: all four, and `created_at` in whole seconds."""
    made = datetime(2026, 11, 30, 12, 0, 0, 999_999, tzinfo=UTC)
    assert conversation_object("conv_1", b'{ "k":"\\u00e9" }', made) == (
        b'{"id":"conv_1","object":"conversation","created_at":1796040000,"metadata":{ "k":"\\u00e9" }}'
    )
    assert deleted_conversation_object("conv_1") == b'{"id":"conv_1","object":"conversation.deleted","deleted":true}'
