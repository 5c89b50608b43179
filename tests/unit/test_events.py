"""Stream events: what is read of one, and under which name it is taken."""

import json

import pytest

from server.protocol import events, raw, sse
from server.protocol.events import StreamEvent


def read(data: bytes | str, name: bytes = b"") -> StreamEvent:
    return events.read(sse.Event(name, data.encode() if isinstance(data, str) else data))


def test_the_five_members_are_read_and_the_text_is_kept() -> None:
    data = (
        b'{"content_index":2,"delta":" wor","item_id":"msg_1","output_index":1,"sequence_number":7,'
        b'"type":"response.output_text.delta"}'
    )
    assert read(data) == StreamEvent(data, "response.output_text.delta", "response.output_text.delta", 7, 1, "msg_1", 2)


def test_absent_members_are_none() -> None:
    assert read(b'{"type":"keepalive"}') == StreamEvent(
        b'{"type":"keepalive"}', "keepalive", "keepalive", None, None, None, None
    )


@pytest.mark.parametrize("value", ["null", '"1"', "1.0", "true", "[]", "{}", "9" * 5000, "1e400", '"\\ud83d"'])
@pytest.mark.parametrize("member", ["sequence_number", "output_index", "content_index"])
def test_a_number_of_a_wrong_kind_is_none(member: str, value: str) -> None:
    event = read(f'{{"type":"x","item_id":"i","{member}":{value}}}')
    assert (event.type, event.item_id, getattr(event, member)) == ("x", "i", None)


@pytest.mark.parametrize("value", ["null", "1", "[]", "{}", "false"])
def test_an_item_id_of_a_wrong_kind_is_none(value: str) -> None:
    event = read(f'{{"type":"x","output_index":3,"item_id":{value}}}')
    assert (event.item_id, event.output_index) == (None, 3)


def test_an_event_with_half_a_character_is_read_like_any_other() -> None:
    """B103: msgspec refuses the whole text for one lone surrogate."""
    data = b'{"type":"response.output_text.delta","item_id":"m","output_index":0,"sequence_number":4,"delta":"\\ud83d"}'
    event = read(data)
    assert (event.type, event.item_id, event.output_index, event.sequence_number) == (
        "response.output_text.delta",
        "m",
        0,
        4,
    )
    assert event.data == data


def test_negative_numbers_are_numbers() -> None:
    assert read(b'{"type":"x","output_index":-1,"sequence_number":-7,"n":"\\udc00"}').output_index == -1


@pytest.mark.parametrize(
    ("data", "name", "taken_as", "sent_type"),
    [
        pytest.param('{"type":"a"}', b"b", "a", "a", id="the type wins"),
        pytest.param('{"type":"a"}', b"", "a", "a", id="no name"),
        pytest.param("{}", b"b", "b", None, id="no type"),
        pytest.param('{"type":null}', b"b", "b", None, id="null type"),
        pytest.param('{"type":5}', b"b", "b", None, id="type of a wrong kind"),
        pytest.param('{"type":""}', b"b", "b", "", id="empty type"),
        pytest.param("{}", b"", "", None, id="neither"),
        pytest.param('{"type":"a","type":"b"}', b"", "b", "b", id="the last of two"),
        pytest.param('{"type":"\\u0061"}', b"", "a", "a", id="escaped"),
        pytest.param("{}", b"\xff", "\ufffd", None, id="name that is not UTF-8"),
    ],
)
def test_the_type_in_the_text_decides_and_the_frame_serves_without(
    data: str, name: bytes, taken_as: str, sent_type: str | None
) -> None:
    event = read(data, name)
    assert (event.type, event.sent_type) == (taken_as, sent_type)


@pytest.mark.parametrize("escaped", ["\\n", "\\r", "\\u0000", "\\ud83d", "\\u2028", "\\u0085"])
def test_a_type_that_fits_into_no_frame_is_no_name(escaped: str) -> None:
    assert read(f'{{"type":"a{escaped}b"}}', b"c").type == ""


@pytest.mark.parametrize(
    ("sent", "taken_as"),
    [
        ("response.reasoning_part.added", "response.content_part.added"),
        ("response.reasoning_part.done", "response.content_part.done"),
        ("response.reasoning.delta", "response.reasoning_text.delta"),
        ("response.reasoning.done", "response.reasoning_text.done"),
    ],
)
def test_older_names_are_taken_for_todays(sent: str, taken_as: str) -> None:
    event = read(json.dumps({"type": sent}))
    assert (event.type, event.sent_type) == (taken_as, sent)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"x", b"[]", b'"x"', b"1", b"{", b'{"type":"a"', b'{"type":"a"}x', b'{"type":"a",}', b'{"a":NaN}',
        b'{"type":"a\nb"}', b'{"delta":"a\x00b"}', b'{"delta":"\\q"}', b'{"delta":"\\ud83d",}',
        b'{"type":"a","delta":"\xff"}', b'{"type":"a","delta":"\xed\xa0\xbd"}', b'{"type":"\xc3"}',
        b'{"type":"a","x":' + b"[" * 2000 + b"]" * 2000 + b"}",
    ],
)  # fmt: skip
def test_what_is_not_one_json_object_in_utf8_is_refused(data: bytes) -> None:
    """Invalid UTF-8 hides best in a string that nobody reads: a client or Postgres would meet it."""
    with pytest.raises(raw.Malformed):
        read(data)


@pytest.mark.parametrize("depth", [500, 510])
def test_an_event_may_wrap_the_deepest_item_that_a_request_may_hold(depth: int) -> None:
    item = b'{"a":' * depth + b"1" + b"}" * depth
    assert events.opened(read(b'{"type":"a","item":' + item + b"}")).get("item") == item


def test_an_event_that_is_too_deep_to_be_opened_is_refused() -> None:
    event = read(b'{"type":"a","item":' + b"[" * 600 + b"]" * 600 + b"}")
    with pytest.raises(raw.Malformed):
        events.opened(event)


def test_a_frame_of_ours_has_its_name_twice() -> None:
    frame = events.write("response.failed", {"sequence_number": b"3"})
    assert frame == b'event: response.failed\ndata: {"type":"response.failed","sequence_number":3}\n\n'
