"""Everything a real vLLM was recorded to say, through the assembler: both versions, and the deepseek_r1 parser.

The expected bytes are the recording's own; what is compared with them is what the client gets and what is stored.
"""

import itertools
import json
import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response

from server.protocol import raw
from server.protocol.assemble import Assembler, Outcome, assemble_body
from server.protocol.deltas import Flow
from server.protocol.dialect import AsItCame
from server.protocol.items import Item
from server.protocol.request import parse
from server.protocol.response import ResponseObject
from server.protocol.retelling import retold
from tests.grammar import assert_grammar, assert_openai_accepts, assert_response, events_in, frames_of
from tests.harness import Capture, captures

VERSIONS = ("0.32", "0.33", "deepseek-r1")
CAPTURES = [(version, capture) for version in VERSIONS for capture in captures(version)]
NO_RESPONSES = re.compile(r"68-|70-|71-|72-|80-")  # other routes: models, health, chat, render


def named(chosen: Iterable[tuple[str, Capture]]) -> list[Any]:
    return [pytest.param(capture, id=f"{version} {capture.name}") for version, capture in chosen]


STREAMS = named((version, capture) for version, capture in CAPTURES if capture.is_stream)
ENDED_STREAMS = named((v, c) for v, c in CAPTURES if c.is_stream and c.name != "90-engine-killed")
BODIES = named(
    (version, capture)
    for version, capture in CAPTURES
    if capture.status == 200
    and not capture.is_stream
    and not NO_RESPONSES.match(capture.name)
    and capture.name != "97-native-background"
)
OTHER_BODIES = named(
    (version, capture)
    for version, capture in CAPTURES
    if not capture.is_stream and (capture.status != 200 or NO_RESPONSES.match(capture.name))
)


def find(version: str, name: str, *, is_stream: bool = True) -> Capture:
    return next(c for c in captures(version) if c.name == name and c.is_stream == is_stream)


def response_object(response_id: str = "resp_ours") -> ResponseObject:
    request = parse(b'{"model":"tiny","input":"x","stream":true}', depth_max=200)
    return ResponseObject(request, response_id, clock=lambda: 1_800_000_000)


def assembled(chunks: Iterable[bytes], response_id: str = "resp_ours") -> tuple[bytes, Outcome]:
    """What the client gets of these chunks, and how the turn ended."""
    assembler = Assembler(
        response_object(response_id), taken_ids=set(), issuer="vllm", event_bytes_max=1024 * 1024, reader=AsItCame()
    )
    stream = b"".join([assembler.feed(chunk) for chunk in chunks])
    assembler.end()
    assert assembler.outcome is not None
    return stream + assembler.closing(), assembler.outcome


def of_body(capture: Capture) -> Outcome:
    return assemble_body(capture.received, response_object(), taken_ids=set(), issuer="vllm", reader=AsItCame())


def facts(outcome: Outcome) -> tuple[str, bytes, list[Item]]:
    return outcome.status, outcome.body.text, outcome.items


def pieces(stream: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = [0, *sorted(cuts), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(places)]


def data_of(frame: bytes) -> Any:
    return json.loads(frame.partition(b"\ndata: ")[2])


def with_counts_only(usage: dict[str, Any]) -> dict[str, Any]:
    """A recorded usage without vLLM's lists of tokens per turn."""
    lists = ("input_tokens_per_turn", "cached_tokens_per_turn", "output_tokens_per_turn", "tool_output_tokens_per_turn")
    return {
        name: {key: count for key, count in value.items() if key not in lists} if name.endswith("_details") else value
        for name, value in usage.items()
    }


def texts(events: Iterable[dict[str, Any]]) -> dict[tuple[str, int, int | None], str]:
    """All that was told in deltas, by the kind of delta, the item and its part."""
    told: dict[tuple[str, int, int | None], str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            place = (event["type"], event["output_index"], event.get("content_index"))
            told[place] = told.get(place, "") + event["delta"]
    return told


@pytest.mark.parametrize("capture", STREAMS)
def test_a_recorded_stream_reaches_the_client_in_the_grammar(capture: Capture) -> None:
    stream, outcome = assembled([capture.received])
    events = assert_grammar(stream)
    assert_openai_accepts(events)
    assert events[-1]["response"] == json.loads(outcome.shown())


@pytest.mark.parametrize("capture", STREAMS)
def test_deltas_of_a_recorded_stream_are_told_together_as_each_by_itself(
    capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, outcome = assembled([capture.received])
    monkeypatch.setattr(Flow, "length", lambda *_: 0)
    each, same_outcome = assembled([capture.received])
    assert (together, facts(outcome)) == (each, facts(same_outcome))


@pytest.mark.parametrize("capture", STREAMS)
def test_a_recorded_stream_is_told_again_with_the_same_texts_and_items(capture: Capture) -> None:
    stream, outcome = assembled([capture.received])
    first = events_in(stream)
    again = assert_grammar(retold(outcome.body, outcome.items, stream=True))
    assert_openai_accepts(again)
    assert again[-1] == first[-1] | {"sequence_number": len(again) - 1}
    items = {index for index, _ in enumerate(outcome.items)}
    assert texts(again) == {place: text for place, text in texts(first).items() if place[1] in items}


@pytest.mark.parametrize("capture", STREAMS)
def test_a_recorded_stream_gives_the_same_turn_byte_by_byte_and_at_random_cuts(capture: Capture) -> None:
    received = capture.received
    whole, outcome = assembled([received])

    def assert_same(cuts: Iterable[int]) -> None:
        stream, other = assembled(pieces(received, cuts))
        assert stream == whole
        assert facts(other) == facts(outcome)

    assert_same(range(1, len(received)))

    @settings(max_examples=5, deadline=None, database=None)
    @given(st.lists(st.integers(1, len(received) - 1), max_size=12))
    def at_random_cuts(cuts: list[int]) -> None:
        assert_same(cuts)

    at_random_cuts()


def test_a_recorded_stream_gives_the_same_turn_cut_in_two_anywhere() -> None:
    received = find("0.33", "10-plain").received
    whole, outcome = assembled([received])
    # All but the two long response objects before and after.
    for cut in range(received.index(b"\n\nevent: response.output_item"), received.index(b"response.completed") + 40):
        stream, other = assembled([received[:cut], received[cut:]])
        assert stream == whole, cut
        assert facts(other) == facts(outcome), cut


@pytest.mark.parametrize("capture", STREAMS)
def test_what_vllm_says_between_its_first_and_last_events_passes_as_it_came(capture: Capture) -> None:
    """The response id is the one that we chose, as vLLM takes it from the request (contract vllm.md 0.8)."""
    whole, _, _ = capture.received.rpartition(b"\n\n")
    upstream = whole.split(b"\n\n")
    if capture.name == "90-engine-killed":
        upstream.append(b"the terminal event that never came")
    stream, _ = assembled([capture.received], response_id=data_of(upstream[0])["response"]["id"])
    client = frames_of(stream)[:-1]
    assert client[2:-1] == upstream[2:-1]
    for ours, theirs in zip(client[:2], upstream[:2], strict=True):
        told, sent = data_of(ours), data_of(theirs)
        assert {**told, "response": None} == {**sent, "response": None}
        assert told["response"]["id"] == sent["response"]["id"]
        assert told["response"]["created_at"] == sent["response"]["created_at"]


@pytest.mark.parametrize("capture", ENDED_STREAMS)
def test_a_recorded_stream_ends_as_its_response_says(capture: Capture) -> None:
    terminal = data_of(frames_of(capture.received)[-1])["response"]
    stream, outcome = assembled([capture.received])
    told = events_in(stream)[-1]
    assert told["type"] == f"response.{terminal['status']}"
    assert outcome.status == terminal["status"]
    assert told["response"]["usage"] == with_counts_only(terminal["usage"])
    for name in ("status", "output", "incomplete_details", "created_at"):
        assert told["response"][name] == terminal[name], name


@pytest.mark.parametrize("name", ["14-plain-incomplete", "15-reasoning-incomplete", "16-call-incomplete-30"])
def test_completed_with_status_incomplete_is_told_as_incomplete(name: str) -> None:
    """vLLM 0.32 calls a cut response completed (contract vllm.md 0.4)."""
    received = find("0.32", name).received
    assert b"event: response.completed\n" in received
    assert b"event: response.incomplete\n" not in received
    stream, outcome = assembled([received])
    assert b"event: response.completed\n" not in stream
    assert events_in(stream)[-1]["type"] == "response.incomplete"
    assert events_in(stream)[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert outcome.status == "incomplete"


@pytest.mark.parametrize("version", ["0.32", "0.33"])
def test_a_killed_engine_is_told_as_failed_and_loses_no_finished_item(version: str) -> None:
    """The bytes just stop (contract vllm.md 0.5): the reasoning was done, the message was not."""
    stream, outcome = assembled([find(version, "90-engine-killed").received])
    assert stream.endswith(b"\n\ndata: [DONE]\n\n")
    events = assert_grammar(stream)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning"]
    (reasoning,) = outcome.items
    assert json.loads(reasoning.body)["content"] == [{"type": "reasoning_text", "text": "\nTwo plus two is four.\n"}]


@pytest.mark.parametrize("capture", ENDED_STREAMS)
def test_a_streamed_item_is_stored_as_the_slice_that_came(capture: Capture) -> None:
    done = [frame for frame in frames_of(capture.received) if frame.startswith(b"event: response.output_item.done\n")]
    slices = [
        re.search(rb'\ndata: \{"item":(.+),"output_index":\d+,"sequence_number":\d+,"type"', frame) for frame in done
    ]
    _, outcome = assembled([capture.received])
    assert [item.body for item in outcome.items] == [match[1] for match in slices if match]
    assert len(slices) == len(done)
    assert [item.public_id for item in outcome.items] == [data_of(frame)["item"]["id"] for frame in done]
    assert {(item.is_output, item.issuer) for item in outcome.items} <= {(True, "vllm")}


@pytest.mark.parametrize("capture", BODIES)
def test_a_recorded_body_is_the_turn_as_it_came(capture: Capture) -> None:
    outcome = of_body(capture)
    sent = json.loads(capture.received)
    assert outcome.status == sent["status"]
    assert b'"output":[' + b",".join(item.body for item in outcome.items) + b"]" in capture.received
    told = json.loads(outcome.shown())
    assert_response(told)
    assert told["id"] == "resp_ours"
    assert [item["id"] for item in told["output"]] == [item["id"] for item in sent["output"]]
    assert told["usage"] == with_counts_only(sent["usage"])
    for name in ("incomplete_details", "created_at", "input_messages", "kv_transfer_params"):
        assert told[name] == sent[name], name
    for ours, theirs in zip(told["output"], sent["output"], strict=True):
        added = {name for name in ours if ours[name] != theirs.get(name)}
        assert added <= {"status"} if theirs["type"] != "reasoning" else not added
    Response.model_validate(told)


@pytest.mark.parametrize("capture", OTHER_BODIES)
def test_what_is_no_response_is_refused(capture: Capture) -> None:
    with pytest.raises(raw.Malformed):
        of_body(capture)


def test_a_response_that_has_not_ended_is_refused() -> None:
    """`queued`: a background response, which a server in front of a stateless upstream never asks for."""
    with pytest.raises(raw.Malformed):
        of_body(find("0.32", "97-native-background", is_stream=False))


# vLLM's two parsers disagree about these (contract vllm.md 0.7 and 7d), or the model itself said another thing.
UNLIKE = {
    ("0.32", "16-call-incomplete-18"), ("0.32", "16-call-incomplete-24"), ("0.32", "16-call-incomplete-30"),
    ("0.33", "16-call-incomplete-18"), ("0.33", "16-call-incomplete-24"), ("0.33", "16-call-incomplete-30"),
    ("0.32", "60chain-double-t3"),
    ("deepseek-r1", "10-plain"), ("deepseek-r1", "40-replay-reasoning-MANGO"), ("deepseek-r1", "50-tool-round"),
}  # fmt: skip


def twin_name(name: str) -> str:
    return name.replace("-s-", "-").replace("-n-", "-")


def twins() -> list[Any]:
    """Streamed and plain recordings of one request, which a model at temperature 0 answers alike."""
    plain = {(v, twin_name(c.name)): c for v, c in CAPTURES if not c.is_stream}
    streamed = {(v, twin_name(c.name)): c for v, c in CAPTURES if c.is_stream and c.status == 200}
    streamed.pop(("0.32", "97-native-background"))  # the plain one is still queued
    return [
        pytest.param(capture, plain[key], id=" ".join(key))
        for key, capture in streamed.items()
        if key in plain and key not in UNLIKE
    ]


def said(items: Iterable[Item]) -> list[dict[str, Any]]:
    """Stored bodies but for what vLLM mints, and a reasoning's status, which its plain mode leaves null (0.6)."""
    bodies = [json.loads(item.body) for item in items]
    return [
        {
            name: value
            for name, value in body.items()
            if name not in ("id", "call_id") and (body["type"], name) != ("reasoning", "status")
        }
        for body in bodies
    ]


def without_blanks_before_calls(bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not any(body["type"] == "function_call" for body in bodies):
        return bodies
    return [body for body in bodies if body["type"] != "message" or body["content"][0]["text"].strip()]


@pytest.mark.parametrize(("streamed", "plain"), twins())
def test_a_streamed_and_a_plain_turn_store_the_same(streamed: Capture, plain: Capture) -> None:
    _, outcome = assembled([streamed.received])
    assert without_blanks_before_calls(said(outcome.items)) == said(of_body(plain).items)


@pytest.mark.parametrize("version", ["0.32", "0.33"])
def test_only_a_streamed_call_has_a_blank_message_before_it(version: str) -> None:
    """Captures 12 and 13, by hand: what the model said, and the message that only streaming makes of white space."""
    _, one_call = assembled([find(version, "12-reasoning-call").received])
    assert [body["type"] for body in said(one_call.items)] == ["reasoning", "message", "function_call"]
    assert said(one_call.items)[1]["content"][0]["text"] == "\n\n"
    assert said(one_call.items)[2]["arguments"] == '{"city": "Paris"}'
    _, two_calls = assembled([find(version, "13-reasoning-text-2calls").received])
    plain = of_body(find(version, "13-reasoning-text-2calls", is_stream=False))
    assert [body["type"] for body in said(two_calls.items)] == [body["type"] for body in said(plain.items)]
    assert [item.type for item in plain.items] == ["reasoning", "message", "function_call", "function_call"]


def test_there_are_recordings_to_test() -> None:
    assert len(STREAMS) == 88
    assert len(BODIES) > 150
    assert len(OTHER_BODIES) > 80
    assert len(twins()) > 70


@pytest.mark.parametrize("capture", STREAMS)
def test_a_recorded_stream_that_is_cut_behind_any_event_has_failed_with_what_was_done(capture: Capture) -> None:
    """As of an engine that dies: what was finished by then is kept, and the client is told (contract vllm.md 0.5)."""
    frames = [frame + b"\n\n" for frame in frames_of(capture.received)]
    names = [data_of(frame)["type"] for frame in frames]
    for count in range(1, len(frames)):
        stream, outcome = assembled([b"".join(frames[:count])])
        assert_grammar(stream)
        is_ended = names[count - 1] in ("response.completed", "response.incomplete")
        assert is_ended or outcome.status == "failed"
        assert len(outcome.items) == names[:count].count("response.output_item.done")
