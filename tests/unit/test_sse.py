"""Server-sent events: framing by literal fixtures, and against a line-by-line reference for any chunking."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.protocol.sse import COMMENT, DONE, Decoder, Event, EventTooLarge, encode
from tests.harness import captures, case_replies, cases

MEGABYTE = 1024 * 1024


def decoded(*chunks: bytes, event_bytes_max: int = MEGABYTE) -> list[Event]:
    decoder = Decoder(event_bytes_max)
    return [event for chunk in chunks for event in decoder.feed(chunk)]


def in_single_bytes(stream: bytes) -> list[bytes]:
    return [stream[n : n + 1] for n in range(len(stream))]


def reference(stream: bytes) -> list[tuple[bytes, bytes]]:
    """The standard's algorithm, one whole line after the other; knows no chunks and shares nothing with the decoder."""
    events, name, data = [], b"", b""
    for line in stream.removeprefix("\ufeff".encode()).splitlines(keepends=True):
        if line[-1:] not in (b"\n", b"\r"):
            break
        text = line.rstrip(b"\r\n")
        if not text:
            if data:
                events.append((name, data[:-1]))
            name, data = b"", b""
            continue
        colon = text.find(b":")
        field = text if colon < 0 else text[:colon]
        value = b"" if colon < 0 else text[colon + 1 :]
        if value[:1] == b" ":
            value = value[1:]
        if field == b"event":
            name = value
        if field == b"data":
            data += value + b"\n"
    return events


LITERAL = [
    pytest.param(b'event: a\ndata: {"n":1}\n\n', [(b"a", b'{"n":1}')], id="usual"),
    pytest.param(b"event: a\ndata: 1\n\nevent: b\ndata: 2\n\n", [(b"a", b"1"), (b"b", b"2")], id="two"),
    pytest.param(b"event:a\ndata:1\n\n", [(b"a", b"1")], id="no space after the colon"),
    pytest.param(b"event:  a\ndata:  1 \n\n", [(b" a", b" 1 ")], id="only one space is dropped"),
    pytest.param(b"data: 1\nevent: a\n\n", [(b"a", b"1")], id="data before event"),
    pytest.param(b'data: {\ndata: "n":1}\n\n', [(b"", b'{\n"n":1}')], id="data lines are joined"),
    pytest.param(b"data: 1\n\n", [(b"", b"1")], id="no event name"),
    pytest.param(b"event: a\nevent: b\ndata: 1\n\n", [(b"b", b"1")], id="last name wins"),
    pytest.param(b"event: a\n\ndata: 1\n\n", [(b"", b"1")], id="event without data"),
    pytest.param(b"data:\n\ndata\n\ndata:\ndata:\n\n", [(b"", b""), (b"", b""), (b"", b"\n")], id="empty data"),
    pytest.param(b": hello\n\n:\ndata: 1\n: in between\n\n", [(b"", b"1")], id="comments"),
    pytest.param(b"id: 7\nretry: 10\nx: y\ndatas: 2\n data: 3\nData: 4\ndata: 1\n\n", [(b"", b"1")], id="other fields"),
    pytest.param(b"data: a:b\n\n", [(b"", b"a:b")], id="colon in the value"),
    pytest.param(b"\n\n\ndata: 1\n\n\n\ndata: 2\n\n\n", [(b"", b"1"), (b"", b"2")], id="more empty lines"),
    pytest.param(b"data: 1\n\nevent: a\ndata: 2\n", [(b"", b"1")], id="unterminated event"),
    pytest.param(b"data: 1\n\ndata: 2", [(b"", b"1")], id="unterminated line"),
    pytest.param(b"data: null\n\ndata:  [DONE] \n\n", [(b"", b"null"), (b"", b" [DONE] ")], id="no meaning"),
    pytest.param("data: 考 🧠\n\n".encode(), [(b"", "考 🧠".encode())], id="characters of several bytes"),
    pytest.param("\ufeffdata: a\ufeff\n\n".encode(), [(b"", "a\ufeff".encode())], id="byte order mark"),
    pytest.param("\ufeff\ufeffdata: 1\n\n".encode(), [], id="only one byte order mark"),
    pytest.param(b"\xef\xbbdata: 1\n\ndata: 2\n\n", [(b"", b"2")], id="half a byte order mark"),
    pytest.param(b"", [], id="nothing"),
]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize(("stream", "events"), LITERAL)
def test_a_stream_gives_its_events_at_once_and_byte_by_byte(
    stream: bytes, events: list[tuple[bytes, bytes]], line_end: bytes
) -> None:
    """B060, B061, B063, B064, B067, B069, B070: any line end, any chunking, any legal spelling."""
    stream = stream.replace(b"\n", line_end)
    assert decoded(stream) == events
    assert decoded(*in_single_bytes(stream)) == events
    assert reference(stream) == events


def test_a_carriage_return_and_its_line_feed_may_come_in_different_chunks() -> None:
    """B060: the event is there with the CR; the LF that follows makes no further line."""
    decoder = Decoder(MEGABYTE)
    assert decoder.feed(b"event: a\r") == []
    assert decoder.feed(b"\ndata: 1\r") == []
    assert decoder.feed(b"\n\r") == [(b"a", b"1")]
    assert decoder.feed(b"\ndata: 2\r") == []
    assert decoder.feed(b"") == []
    assert decoder.feed(b"\ndata: 3\r\n") == []
    assert decoder.feed(b"\n") == [(b"", b"2\n3")]


def test_a_bare_carriage_return_ends_an_event_without_waiting() -> None:
    """B061."""
    decoder = Decoder(MEGABYTE)
    assert decoder.feed(b"event: a\rdata: 1\r\r") == [(b"a", b"1")]
    assert decoder.feed(b"data: 2\r") == []
    assert decoder.feed(b"\r") == [(b"", b"2")]


def test_line_ends_may_be_mixed() -> None:
    assert decoded(b"event: a\r\ndata: 1\rdata: 2\n\r\nevent: b\rdata: 3\n\r") == [(b"a", b"1\n2"), (b"b", b"3")]


LINES = st.sampled_from(
    [b"", b"", b"", b"event: a", b"event:b", b"event", b"data: {}", b"data:x", b"data", b"data:  y", b": c", b"id: 1"]
) | st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"").replace(b"\r", b""))
LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
STARTS = st.sampled_from([b"", b"", "\ufeff".encode()])
STREAMS = st.builds(
    lambda start, lines, rest: start + b"".join(line + end for line, end in lines) + rest,
    STARTS,
    st.lists(st.tuples(LINES, LINE_ENDS), max_size=30),
    st.sampled_from([b"", b"data: cut", b"data: 1\r"]),
)


@given(stream=STREAMS, data=st.data())
def test_chunk_borders_never_matter(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    chunks = [stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert decoded(*chunks) == reference(stream)


@given(start=STARTS, lines=st.lists(LINES, max_size=30))
def test_the_line_end_never_matters(start: bytes, lines: list[bytes]) -> None:
    expected = reference(start + b"".join(line + b"\n" for line in lines))
    for line_end in (b"\n", b"\r\n", b"\r"):
        assert decoded(start + b"".join(line + line_end for line in lines)) == expected


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64 * 1024, 4 * MEGABYTE])
def test_an_event_of_several_megabytes_passes(chunk_bytes: int) -> None:
    """B066."""
    text = b"x" * (3 * MEGABYTE if chunk_bytes > 1 else 300_000)
    stream = b"event: a\ndata: " + text + b"\n\ndata: 2\n\n"
    chunks = [stream[n : n + chunk_bytes] for n in range(0, len(stream), chunk_bytes)]
    assert decoded(*chunks, event_bytes_max=4 * MEGABYTE) == [(b"a", text), (b"", b"2")]


def test_the_largest_event_allowed_passes_however_it_comes() -> None:
    """B066: 13 bytes are allowed, and `data: 1234567` has 13."""
    for stream in (b"data: 1234567\n\n", b"\ndata: 1234567\n\n", b"\n\r\ndata: 1234567\r\n\r\n"):
        assert decoded(stream, event_bytes_max=13) == [(b"", b"1234567")]
        assert decoded(*in_single_bytes(stream), event_bytes_max=13) == [(b"", b"1234567")]


@pytest.mark.parametrize("stream", [b"data: 12345678\n\n", b"data: 12345678", b"data: 1\n\n: comment 12\n:\n"])
def test_an_event_above_the_bound_is_refused_however_it_comes(stream: bytes) -> None:
    """B066: each stream holds 14 bytes of one event, and 13 are allowed."""
    with pytest.raises(EventTooLarge, match="larger than 13 bytes"):
        decoded(stream, event_bytes_max=13)
    with pytest.raises(EventTooLarge, match="larger than 13 bytes"):
        decoded(*in_single_bytes(stream), event_bytes_max=13)


def test_many_events_may_be_larger_together_than_one_may_be() -> None:
    assert decoded(b"data: 12345\n\n" * 1000, event_bytes_max=13) == [(b"", b"12345")] * 1000


MESSAGE = [
    *("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"),
    *("response.output_text.delta", "response.output_text.done", "response.content_part.done"),
    *("response.output_item.done", "response.completed"),
]


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("B060", "café 猫 ok"),
        ("B061", "café 猫 ok"),
        ("B063", "a\ufeffb"),
        ("B066", "z" * 3_000_000),
        ("B067", "café 猫 ok"),
        ("B070", "café 猫 ok"),
    ],
)
def test_the_streams_of_reported_failures_are_read(case: str, text: str) -> None:
    """B060, B061, B063, B066, B067, B070: what each holds is told by its data, whatever the events are named."""
    reply = case_replies(cases()[case])[0]
    parsed = [json.loads(event.data) for event in decoded(*reply.writes(0, ""), event_bytes_max=4 * MEGABYTE)]
    assert [event["type"] for event in parsed] == MESSAGE
    assert (parsed[4]["delta"], parsed[5]["text"]) == (text, text)


def test_characters_cut_by_chunk_borders_are_whole_again() -> None:
    """B064: the stream comes in single bytes."""
    writes = case_replies(cases()["B064"])[0].writes(0, "")
    assert {len(write) for write in writes} == {1}
    parsed = [json.loads(event.data) for event in decoded(*writes)]
    assert [event["delta"] for event in parsed if "delta" in event] == ["考える 🧠", "naïve 🐈\u200d⬛ 한글"]


def test_frames_of_null_nothing_and_done_are_events_like_others() -> None:
    """B069: it is for the reader of the events to pass over them."""
    events = [decoded(*reply.writes(0, "")) for reply in case_replies(cases()["B069"])]
    assert [event.data for event in events[0][:2]] == [b"null", b""]
    assert [event.data for event in events[0][-2:]] == [b" [DONE] ", b"[DONE]"]
    assert events[1] == [(b"", b"[DONE]")]


STREAMS_OF_VLLM = [
    pytest.param(capture.received, id=f"{version}-{capture.name}")
    for version in ("0.32", "0.33", "deepseek-r1")
    for capture in captures(version)
    if capture.is_stream
]


@pytest.mark.parametrize("stream", STREAMS_OF_VLLM)
def test_every_recorded_stream_is_read_and_written_byte_for_byte(stream: bytes) -> None:
    events = decoded(stream)
    assert b"".join(encode(*event) for event in events) == stream
    assert decoded(*in_single_bytes(stream)) == events


def test_encoding_is_what_vllm_sends() -> None:
    assert encode(b"response.created", b'{"a":1}') == b'event: response.created\ndata: {"a":1}\n\n'


def test_a_line_break_in_json_text_is_white_space() -> None:
    assert encode(b"a", b'{\r\n  "n":\n1}') == b'event: a\ndata: {    "n": 1}\n\n'


def test_what_is_encoded_is_decoded() -> None:
    names = [b"response.created", b"response.completed"]
    stream = COMMENT + encode(names[0], b"{}") + COMMENT + encode(names[1], b'{"n": [1,\n2]}') + DONE
    expected = [(names[0], b"{}"), (names[1], b'{"n": [1, 2]}'), (b"", b"[DONE]")]
    for border in range(len(stream)):
        assert decoded(stream[:border], stream[border:]) == expected


def test_events_before_one_that_is_too_large_are_not_lost_with_it() -> None:
    with pytest.raises(EventTooLarge) as too_large:
        Decoder(13).feed(b"data: 1\n\ndata: 2\n\ndata: 12345678\n\ndata: 3\n\n")
    assert too_large.value.events_before == [Event(b"", b"1"), Event(b"", b"2")]
