"""Thinking in text, taken apart: the recorded streams of a deepseek_r1 parser against their non-streamed twins."""

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.protocol.assemble import Assembler, Outcome, assemble_body
from server.protocol.chat.reply import ChatReply
from server.protocol.dialect import AsItCame
from server.protocol.request import parse
from server.protocol.response import ResponseObject
from server.protocol.tags import ThinkTags
from tests.grammar import assert_grammar, assert_openai_accepts
from tests.harness import Capture, captures

MEGABYTE = 1 << 20
LEAKING = ("40-replay-reasoning-MANGO", "50-tool-round")


def reader() -> ThinkTags:
    return ThinkTags(AsItCame(), MEGABYTE)


def streamed(pieces: Iterable[bytes], thinking: ThinkTags | None = None) -> tuple[list[dict[str, Any]], Outcome]:
    request = parse(b'{"model":"m","input":"x"}', 200)
    assembler = Assembler(
        ResponseObject(request, "resp_1", lambda: 1),
        taken_ids=set(),
        issuer="up",
        event_bytes_max=MEGABYTE,
        reader=thinking or reader(),
    )
    stream = b"".join(map(assembler.feed, pieces))
    assembler.end()
    events = assert_grammar(stream + assembler.closing())
    assert_openai_accepts(events)
    assert assembler.outcome is not None
    return events, assembler.outcome


def whole(body: dict[str, Any]) -> Outcome:
    request = parse(b'{"model":"m","input":"x"}', 200)
    response_object = ResponseObject(request, "resp_1", lambda: 1)
    return assemble_body(json.dumps(body).encode(), response_object, taken_ids=set(), issuer="up", reader=reader())


def texts(outcome: Outcome) -> list[tuple[str, str]]:
    items = [json.loads(item.body) for item in outcome.items]
    return [(item["type"], "".join(part["text"] for part in item["content"])) for item in items]


def recorded(name: str, *, stream: bool) -> Capture:
    [capture] = [one for one in captures("deepseek-r1") if one.name == name and one.is_stream == stream]
    return capture


def twin(name: str) -> list[tuple[str, str]]:
    """What vLLM says of the same reply when nothing is streamed."""
    output = json.loads(recorded(name, stream=False).received)["output"]
    return [(item["type"], "".join(part["text"] for part in item["content"])) for item in output]


@pytest.mark.parametrize("name", LEAKING)
def test_a_leaking_stream_becomes_what_it_is_when_it_is_not_streamed(name: str) -> None:
    received = recorded(name, stream=True).received
    events, outcome = streamed([received])
    assert texts(outcome) == twin(name)
    assert [item_type for item_type, _ in texts(outcome)] == ["reasoning", "message"]
    deltas = [event["delta"] for event in events if event["type"] == "response.reasoning_text.delta"]
    assert "".join(deltas) == twin(name)[0][1]
    assert len(deltas) > 1
    bytewise, same = streamed([bytes([byte]) for byte in received])
    assert (texts(same), len(bytewise)) == (texts(outcome), len(events))


@given(st.data())
def test_the_borders_of_chunks_mean_nothing(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(LEAKING))
    received = recorded(name, stream=True).received
    cuts = sorted(data.draw(st.sets(st.integers(0, len(received)), max_size=10)))
    pieces = [received[start:end] for start, end in itertools.pairwise([0, *cuts, len(received)])]
    assert texts(streamed(pieces)[1]) == twin(name)


@pytest.mark.parametrize(
    "capture",
    [one for one in captures("deepseek-r1") if one.is_stream and one.name not in LEAKING],
    ids=lambda capture: capture.name,
)
def test_what_does_not_leak_passes_as_it_came(capture: Capture) -> None:
    assert reader().feed(capture.received) == capture.received


# --- deltas of our own


def events_of(*deltas: str, extra: Iterable[dict[str, Any]] = ()) -> bytes:
    """A stream with one message of these deltas, and items after it."""
    text = "".join(deltas)
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
    part = {"type": "output_text", "text": text, "annotations": []}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    response = {"id": "r", "status": "in_progress", "output": []}
    output = [message | {"content": [part]}, *extra]
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response},
        {"type": "response.in_progress", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": message | {"content": []}},
        {"type": "response.content_part.added", **place, "part": part | {"text": ""}},
        *({"type": "response.output_text.delta", **place, "delta": delta, "logprobs": []} for delta in deltas),
        {"type": "response.output_text.done", **place, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": output[0]},
    ]
    for index, item in enumerate(extra, 1):
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": response | {"status": "completed", "output": output}})
    return b"".join(
        f"event: {event['type']}\ndata: {json.dumps(event | {'sequence_number': number})}\n\n".encode()
        for number, event in enumerate(events)
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("<think>a</think>b", [("reasoning", "a"), ("message", "b")]),
        ("<think>a</think>", [("reasoning", "a")]),
        ("<think></think>b", [("reasoning", ""), ("message", "b")]),
        ("<think>a", [("reasoning", "a")]),
        ("<think>a</thi", [("reasoning", "a</thi")]),
        ("<think>a</think>b</think>c<think>", [("reasoning", "a"), ("message", "b</think>c<think>")]),
        (" <think>a</think>b", [("message", " <think>a</think>b")]),
        ("b <think>a</think>", [("message", "b <think>a</think>")]),
        ("<thinking>", [("message", "<thinking>")]),
        ("<thi", [("message", "<thi")]),
        ("</think>b", [("message", "</think>b")]),
        ("<think>\N{GRINNING FACE}</think>é", [("reasoning", "\N{GRINNING FACE}"), ("message", "é")]),
    ],
)
def test_only_what_begins_with_the_tag_is_taken_apart(text: str, told: list[tuple[str, str]]) -> None:
    for size in (1, 2, 5, len(text)):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        events, outcome = streamed([events_of(*pieces)])
        assert texts(outcome) == [(kind, said) for kind, said in told]
        ids = [item["id"] for item in events[-1]["response"]["output"]]
        assert ids == [event["item"]["id"] for event in events if event["type"] == "response.output_item.done"]
    message = {"id": "m", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    assert texts(whole({"status": "completed", "output": [message]})) == told


@given(st.lists(st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", "a", "\n"]), max_size=8))
def test_streams_and_bodies_agree(pieces: list[str]) -> None:
    _, outcome = streamed([events_of(*pieces)])
    text = "".join(pieces)
    message = {"id": "m", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    assert texts(outcome) == texts(whole({"status": "completed", "output": [message]}))
    assert "".join(said for _, said in texts(outcome)) in (text, text[7:].replace("</think>", "", 1))


def test_a_text_without_deltas_is_taken_apart_too() -> None:
    frames = events_of("<think>a</think>b").split(b"\n\n")
    stream = b"\n\n".join(frame for frame in frames if b"output_text.delta" not in frame)
    assert texts(streamed([stream])[1]) == [("reasoning", "a"), ("message", "b")]


def test_items_behind_it_make_room() -> None:
    call = {"id": "fc_1", "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    events, outcome = streamed([events_of("<think>a</think>b", extra=[call | {"status": "completed"}])])
    assert [item.type for item in outcome.items] == ["reasoning", "message", "function_call"]
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == [0, 1, 2]
    _, outcome = streamed([events_of("<think>a</think>", extra=[call | {"status": "completed"}])])
    assert [item.type for item in outcome.items] == ["reasoning", "function_call"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<think>a</think>", [{"type": "refusal", "refusal": "No."}]),
        (
            "<think>a</think>b",
            [
                {"type": "output_text", "text": "b", "annotations": [], "logprobs": []},
                {"type": "refusal", "refusal": "No."},
            ],
        ),
    ],
)
def test_a_part_behind_the_first_stays_what_it_is(text: str, parts: list[dict[str, Any]]) -> None:
    deltas: list[dict[str, Any]] = [{"content": text}, {"refusal": "No."}]
    choices = [{"index": 0, "delta": delta} for delta in deltas] + [{"index": 0, "finish_reason": "stop", "delta": {}}]
    chunks = [f"data: {json.dumps({'choices': [choice]})}\n\n".encode() for choice in choices]
    events, outcome = streamed(chunks, ThinkTags(ChatReply({}, MEGABYTE), MEGABYTE))
    assert [json.loads(item.body)["content"] for item in outcome.items] == [
        [{"type": "reasoning_text", "text": "a"}],
        parts,
    ]
    refusal = next(event for event in events if event["type"] == "response.refusal.done")
    assert (refusal["output_index"], refusal["content_index"]) == (1, len(parts) - 1)
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}, parts[-1]]
    twin = whole({"status": "completed", "output": [{"id": "m", "type": "message", "content": content}]})
    assert [json.loads(item.body)["content"] for item in twin.items][1:] == [parts]


def test_the_message_keeps_its_id() -> None:
    _, outcome = streamed([events_of("<think>a</think>b")])
    assert outcome.items[0].public_id.startswith("rs_")
    assert outcome.items[1].public_id == "msg_1"
