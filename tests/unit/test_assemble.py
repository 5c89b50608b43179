"""The assembler against upstreams that break the grammar: what the client gets, and what is stored.

Every client's stream of every test goes through `tests.grammar`. Expected values are worked out by hand.
"""

import copy
import functools
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.protocol import raw
from server.protocol.assemble import Assembler, Outcome, assemble_body
from server.protocol.dialect import AsItCame
from server.protocol.request import parse
from server.protocol.response import ResponseObject
from tests.grammar import assert_grammar, assert_openai_accepts, frames_of
from tests.harness import case_replies, cases

MEGABYTE = 1024 * 1024
NOW_S = 1_800_000_000
Event = dict[str, Any]


# --- an upstream, and a turn of it


RESPONSE = {"id": "resp_up", "object": "response", "created_at": 1_700_000_000, "status": "in_progress", "output": []}
USAGE = {
    "input_tokens": 5,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 12,
}
THOUGHT = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Let me see."}],
    "status": "completed",
}
ANSWER = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hello there", "annotations": []}],
}
CALL = {
    "id": "fc_1",
    "type": "function_call",
    "call_id": "call_1",
    "name": "look",
    "arguments": '{"at":"it"}',
    "status": "completed",
}
ITEMS = [THOUGHT, ANSWER, CALL]

# How an item is told that came whole (contract api.md 6, legal order).
TOLD = {
    "reasoning": [
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
        "output_item.done",
    ],
    "message": [
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done",
    ],
    "function_call": [
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
    ],
}  # fmt: skip


def created(**members: Any) -> Event:
    return {"type": "response.created", "response": RESPONSE | members}


def in_progress(**members: Any) -> Event:
    return {"type": "response.in_progress", "response": RESPONSE | members}


def terminal(status: str = "completed", output: Sequence[Any] = (), **members: Any) -> Event:
    response = RESPONSE | {"status": status, "output": list(output), "usage": USAGE} | members
    return {"type": f"response.{status}", "response": response}


def added(index: int, item: Event, **members: Any) -> Event:
    empty = {"content": []} if "content" in item else {"arguments": ""}
    begun = item | empty | {"status": "in_progress"} | members
    return {"type": "response.output_item.added", "output_index": index, "item": begun}


def done(index: int, item: Event, **members: Any) -> Event:
    return {"type": "response.output_item.done", "output_index": index, "item": item | members}


def within(kind: str, index: int, item: Event, **members: Any) -> Event:
    return {"type": f"response.{kind}", "output_index": index, "item_id": item["id"], **members}


def thought(index: int) -> list[Event]:
    say = functools.partial(within, index=index, item=THOUGHT, content_index=0)
    return [
        added(index, THOUGHT),
        say("content_part.added", part={"type": "reasoning_text", "text": ""}),
        say("reasoning_text.delta", delta="Let me"),
        say("reasoning_text.delta", delta=" see."),
        say("reasoning_text.done", text="Let me see."),
        say("content_part.done", part={"type": "reasoning_text", "text": "Let me see."}),
        done(index, THOUGHT),
    ]


def answer(index: int) -> list[Event]:
    say = functools.partial(within, index=index, item=ANSWER, content_index=0)
    return [
        added(index, ANSWER),
        say("content_part.added", part={"type": "output_text", "text": "", "annotations": []}),
        say("output_text.delta", delta="Hello", logprobs=[]),
        say("output_text.delta", delta=" there", logprobs=[]),
        say("output_text.done", text="Hello there", logprobs=[]),
        say("content_part.done", part=ANSWER["content"][0]),  # type: ignore[index]
        done(index, ANSWER),
    ]


def call(index: int) -> list[Event]:
    return [
        added(index, CALL),
        within("function_call_arguments.delta", index, CALL, delta='{"at":'),
        within("function_call_arguments.delta", index, CALL, delta='"it"}'),
        within("function_call_arguments.done", index, CALL, name="look", arguments=CALL["arguments"]),
        done(index, CALL),
    ]


def whole_turn() -> list[Event]:
    """Three items, and nothing wrong: 23 events, numbered."""
    events = [created(), in_progress(), *thought(0), *answer(1), *call(2), terminal(output=ITEMS)]
    return numbered(events)


def numbered(events: Iterable[Event]) -> list[Event]:
    return [event | {"sequence_number": number} for number, event in enumerate(copy.deepcopy(list(events)))]


def frame(event: Event) -> bytes:
    data = json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return b"event: " + event["type"].encode() + b"\ndata: " + data + b"\n\n"


def wire(events: Iterable[Event]) -> bytes:
    return b"".join(map(frame, events))


def assembler(*, taken_ids: Collection[str] = (), event_bytes_max: int = MEGABYTE, **members: Any) -> Assembler:
    body = json.dumps({"model": "tiny", "input": "hi", "stream": True} | members)
    response_object = ResponseObject(parse(body.encode(), depth_max=200), "resp_ours", clock=lambda: NOW_S)
    return Assembler(
        response_object, taken_ids=taken_ids, issuer="up", event_bytes_max=event_bytes_max, reader=AsItCame()
    )


class Turn(NamedTuple):
    stream: bytes
    events: list[Event]
    outcome: Outcome

    @property
    def types(self) -> list[str]:
        return [event["type"].removeprefix("response.") for event in self.events]

    @property
    def response(self) -> Event:
        """The final response object, as the client was told."""
        final: Event = self.events[-1]["response"]
        return final

    @property
    def output(self) -> list[Any]:
        output: list[Any] = self.response["output"]
        return output

    def of_type(self, name: str) -> list[Event]:
        return [event for event in self.events if event["type"] == f"response.{name}"]


def turn(*chunks: bytes, **settings: Any) -> Turn:
    """These bytes of an upstream, then its end; what the client got is held against the grammar."""
    one = assembler(**settings)
    stream = b"".join([one.feed(chunk) for chunk in chunks])
    one.end()
    assert one.outcome is not None
    stream += one.closing()
    events = assert_grammar(stream)
    assert events[-1]["response"] == json.loads(one.outcome.shown())
    return Turn(stream, events, one.outcome)


def turn_of(events: Iterable[Event], **settings: Any) -> Turn:
    return turn(wire(events), **settings)


def accepted(events: Iterable[Event], **settings: Any) -> Turn:
    """As `turn_of`, and openai-python accepts and accumulates what comes out."""
    result = turn_of(events, **settings)
    assert_openai_accepts(result.events)
    return result


def bodies(outcome: Outcome) -> list[Any]:
    return [json.loads(item.body) for item in outcome.items]


def case_turn(case_id: str, number: int = 0, **settings: Any) -> Turn:
    return turn(*case_replies(cases()[case_id])[number].writes(0, "resp_ours"), **settings)


def case_body(case_id: str, number: int = 0) -> Outcome:
    return assemble(b"".join(case_replies(cases()[case_id])[number].writes(0, "resp_ours")))


def assemble(body: bytes, taken_ids: Collection[str] = ()) -> Outcome:
    response_object = ResponseObject(parse(b'{"model":"tiny","input":"hi"}', 200), "resp_ours", clock=lambda: NOW_S)
    return assemble_body(body, response_object, taken_ids=taken_ids, issuer="up", reader=AsItCame())


def text_of(item: Any) -> str:
    return "".join(part["text"] for part in item["content"])


# --- a turn without fault


def test_a_well_made_stream_passes_as_it_came_but_for_its_response_objects() -> None:
    result = accepted(whole_turn())
    assert frames_of(result.stream)[2:-2] == frames_of(wire(whole_turn()))[2:-1]
    assert bodies(result.outcome) == ITEMS
    assert result.response["usage"] == USAGE
    assert result.response["created_at"] == 1_700_000_000
    assert result.response["id"] == "resp_ours"


def test_a_stored_item_is_the_text_that_came() -> None:
    """Key order, explicit nulls, spaces, `1.0`, `1e400`, escapes, lone surrogates, a name that comes twice."""
    body = (
        b'{ "b" : null,"id":"x1","type" :"x_thing","n":1.0, "e":1e400,"u":"\\u0000\\ud83d \xc3\xa9",'
        b'"a":1,"a":2,"big":12345678901234567890123,"neg":-0.0}'
    )
    item = b'data: {"type":"response.output_item.done","output_index":0,"item":' + body + b"}\n\n"
    result = turn(wire([created(), in_progress()]), item, wire([terminal()]))
    assert [one.body for one in result.outcome.items] == [body]
    assert body in result.stream
    assert result.stream.count(body) == 3  # added, done, terminal event


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7, 64, 1000])
def test_the_size_of_chunks_changes_nothing(chunk_bytes: int) -> None:
    stream = wire(whole_turn())
    chunks = [stream[start : start + chunk_bytes] for start in range(0, len(stream), chunk_bytes)]
    assert turn(*chunks).stream == turn(stream).stream


# --- opening


@pytest.mark.parametrize(
    "opening",
    [
        pytest.param([], id="neither"),
        pytest.param([created()], id="only created"),
        pytest.param([in_progress()], id="only in_progress"),
        pytest.param([in_progress(), created()], id="the wrong way round"),
        pytest.param([created(), created(), in_progress()], id="created twice"),
        pytest.param([created(), in_progress(), in_progress()], id="in_progress twice"),
        pytest.param([created(), in_progress(), created(), in_progress()], id="both twice"),
        pytest.param([created(), {"type": "response.queued", "response": RESPONSE}, in_progress()], id="queued"),
        pytest.param([{"type": "response.queued", "response": RESPONSE}], id="only queued"),
        pytest.param([{"type": "response.created"}, {"type": "response.in_progress", "response": "x"}], id="empty"),
    ],
)
def test_the_client_gets_one_created_and_one_in_progress(opening: list[Event]) -> None:
    result = accepted(numbered([*opening, *answer(0), terminal(output=[ANSWER])]))
    assert result.types[:3] == ["created", "in_progress", "output_item.added"]
    assert result.events[2:-1] == accepted(numbered([created(), in_progress(), *answer(0), terminal()])).events[2:-1]


def test_created_late_is_dropped() -> None:
    events = numbered([*answer(0), created(), in_progress(), terminal(output=[ANSWER])])
    assert accepted(events).types.count("created") == 1


def test_all_objects_of_a_turn_have_the_created_at_of_the_first() -> None:
    events = [created(created_at=1_756_274_867.75), in_progress(created_at=5), terminal(created_at=1_900_000_000)]
    assert {event["response"]["created_at"] for event in accepted(events).events} == {1_756_274_867}


def test_without_any_created_at_it_is_the_time_of_the_first_object() -> None:
    events = [created(created_at=None), in_progress(created_at="1756274867"), terminal(created_at=None)]
    assert {event["response"]["created_at"] for event in accepted(events).events} == {NOW_S}


@pytest.mark.parametrize("place", range(len(whole_turn()) + 1))
def test_the_server_may_open_the_stream_itself_at_any_place(place: int) -> None:
    """Our created and in_progress went out before the upstream's (DESIGN 3, Headers): the upstream's are swallowed."""
    events = whole_turn()
    one = assembler()
    before = one.feed(wire(events[:place]))
    opened = one.open()
    stream = before + opened + one.feed(wire(events[place:]))
    one.end()
    stream += one.closing()
    client = assert_grammar(stream)
    assert_openai_accepts(client)
    assert opened.count(b"event: ") == max(0, 2 - place)
    assert one.open() == b""
    untouched = turn_of(events)
    assert frames_of(stream)[2:-2] == frames_of(untouched.stream)[2:-2]
    assert one.outcome is not None
    assert one.outcome.items == untouched.outcome.items
    assert client[-1]["response"]["usage"] == USAGE


def test_what_an_upstream_numbers_from_its_own_first_event_is_renumbered_after_our_opening() -> None:
    one = assembler()
    opened = one.open()
    stream = opened + one.feed(wire(numbered([*answer(0), terminal(output=[ANSWER])]))) + one.closing()
    assert [event["sequence_number"] for event in assert_grammar(stream)] == list(range(10))


def test_nothing_is_sent_for_an_upstream_that_fails_before_it_says_anything() -> None:
    """So that the failure can keep its HTTP status."""
    one = assembler()
    assert one.feed(b'event: error\ndata: {"type":"error","message":"no"}\n\n') == b""
    assert one.outcome is not None
    assert [event["type"] for event in assert_grammar(one.closing())] == [
        "response.created",
        "response.in_progress",
        "response.failed",
    ]


# --- an end that is none


@pytest.mark.parametrize("place", range(len(whole_turn())))
def test_a_stream_cut_after_any_event_fails_and_loses_nothing_before_it(place: int) -> None:
    events = whole_turn()
    result = turn_of(events[:place])
    assert_openai_accepts(result.events)
    assert result.types[-1] == "failed"
    assert result.outcome.status == "failed"
    assert result.response["error"]["code"] == "server_error"
    finished = [event["item"] for event in events[:place] if event["type"] == "response.output_item.done"]
    assert bodies(result.outcome) == finished
    assert frames_of(result.stream)[2 : max(2, place)] == frames_of(wire(events[:place]))[2:]


def test_an_event_that_was_cut_is_not_taken() -> None:
    events = whole_turn()
    result = turn(wire(events[:-1]), frame(events[-1])[:-1])
    assert result.types[-1] == "failed"
    assert bodies(result.outcome) == ITEMS


def test_done_without_a_terminal_event_is_a_failure() -> None:
    result = turn(wire(whole_turn()[:-1]), b"data: [DONE]\n\n")
    assert (result.types[-1], bodies(result.outcome)) == ("failed", ITEMS)


def test_nothing_is_read_after_the_mark_of_the_end() -> None:
    events = whole_turn()
    result = turn(wire(events[:-1]), b"data: [DONE]\n\n", wire(events[-1:]))
    assert (result.types[-1], bodies(result.outcome)) == ("failed", ITEMS)


def test_the_first_terminal_event_wins() -> None:
    late = [terminal("failed", error={"code": "server_error", "message": "late"}), *answer(3), terminal("incomplete")]
    result = accepted([*whole_turn(), *late])
    assert result.stream == turn_of(whole_turn()).stream
    assert result.outcome.status == "completed"


@pytest.mark.parametrize(
    "late",
    [
        b'event: error\ndata: {"type":"error","message":"late"}\n\n',
        b"data: [DONE]\n\n",
        b"data: broken\n\n",
        b"\xff\n\n",
    ],
)
def test_nothing_counts_after_the_terminal_event(late: bytes) -> None:
    one = assembler()
    one.feed(wire(whole_turn()))
    assert one.feed(late) == b""
    one.end()
    one.fail("too late")
    one.cancel()
    assert one.outcome is not None
    assert one.outcome.status == "completed"


@pytest.mark.parametrize(
    ("name", "status", "told", "stored"),
    [
        ("completed", "completed", "completed", "completed"),
        ("completed", "incomplete", "incomplete", "incomplete"),
        ("completed", "failed", "failed", "failed"),
        ("completed", "in_progress", "completed", "completed"),
        ("completed", None, "completed", "completed"),
        ("completed", 7, "completed", "completed"),
        ("incomplete", "incomplete", "incomplete", "incomplete"),
        ("incomplete", "completed", "completed", "completed"),
        ("incomplete", None, "incomplete", "incomplete"),
        ("failed", "failed", "failed", "failed"),
        ("failed", None, "failed", "failed"),
        ("done", "completed", "completed", "completed"),
        ("done", "incomplete", "incomplete", "incomplete"),
        ("done", "failed", "failed", "failed"),
        ("done", None, "completed", "completed"),
        ("completed", "cancelled", "failed", "failed"),
        ("cancelled", "cancelled", "failed", "failed"),
        ("cancelled", None, "failed", "failed"),
    ],
)
def test_the_status_names_the_terminal_event(name: str, status: Any, told: str, stored: str) -> None:
    ended = terminal(output=[ANSWER], status_=status) | {"type": f"response.{name}"}
    ended["response"]["status"] = status
    result = accepted(numbered([created(), in_progress(), *answer(0), ended]))
    assert (result.types[-1], result.outcome.status) == (told, stored)
    assert bodies(result.outcome) == [ANSWER]


def test_a_terminal_event_without_a_response_is_one() -> None:
    result = accepted(numbered([created(), in_progress(), *answer(0), {"type": "response.completed"}]))
    assert (result.types[-1], bodies(result.outcome)) == ("completed", [ANSWER])
    assert result.response["usage"] is None


def test_a_failure_of_the_upstream_keeps_its_error_within_the_enum() -> None:
    error = {"code": "rate_limit_exceeded", "message": "Slow down.", "param": None}
    result = accepted([created(), in_progress(), terminal("failed", error=error)])
    assert result.response["error"] == {"code": "rate_limit_exceeded", "message": "Slow down."}


# --- errors


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        pytest.param({"code": "server_error", "message": "m", "param": None}, "server_error", "m", id="flat"),
        pytest.param(
            {"error": {"code": "rate_limit_exceeded", "message": "m"}}, "rate_limit_exceeded", "m", id="nested"
        ),
        pytest.param({"error": {"code": 500, "message": "m", "type": "x"}}, "server_error", "m", id="vllm's integer"),
        pytest.param({"error": "m"}, "server_error", "m", id="a string"),
        pytest.param(
            {"code": "context_length_exceeded", "message": "m"}, "context_length_exceeded", "m", id="too long"
        ),
        pytest.param({"code": "no_such_code", "message": "m"}, "server_error", "m", id="outside of the enum"),
        pytest.param({"message": "m\nTraceback: x"}, "server_error", "m", id="only the first line"),
        pytest.param({"message": "m" * 600}, "server_error", "m" * 500, id="at most 500 characters"),
        pytest.param({"message": "no: Bearer abcdef123456"}, "server_error", "no: Bearer ***", id="no credentials"),
        pytest.param({"message": " \n "}, "server_error", "The model server reported an error.", id="blank"),
        pytest.param({}, "server_error", "The model server reported an error.", id="nothing"),
        pytest.param(
            {"message": {"a": 1}, "error": []}, "server_error", "The model server reported an error.", id="odd"
        ),
    ],
)
def test_an_error_event_ends_the_turn_as_failed(error: Event, code: str, message: str) -> None:
    """B108, and both forms of the contract (api.md 6): only `response.failed` is sent, and its code is in the enum."""
    events = [created(), in_progress(), *answer(0), {"type": "error", **error}, *call(1)]
    result = turn_of(numbered(events))
    if code != "context_length_exceeded":  # the one code outside of openai-python's own enum (DESIGN 8)
        assert_openai_accepts(result.events)
    assert result.types[-1] == "failed"
    assert "error" not in result.types
    assert result.response["error"] == {"code": code, "message": message}
    assert bodies(result.outcome) == [ANSWER]


@pytest.mark.parametrize(
    "data",
    ['{"error":{"message":"m"}}', '{"type":"response.error","error":{"message":"m"}}', '{"type":null,"error":"m"}'],
)
def test_whatever_holds_an_error_is_one(data: str) -> None:
    """Clients raise at any event that has a top-level `error` (contract api.md 6)."""
    result = turn(wire([created(), in_progress(), *answer(0)]), f"data: {data}\n\n".encode())
    assert result.response["error"] == {"code": "server_error", "message": "m"}


@pytest.mark.parametrize("data", ["{}", '{"error":null}', '{"a":1}', "null", "", " ", '{"type":"a\\nb"}'])
def test_an_event_that_says_nothing_is_dropped(data: str) -> None:
    events = whole_turn()
    result = turn(wire(events[:5]), f"data: {data}\n\n".encode(), wire(events[5:]))
    assert result.stream == turn_of(events).stream


@pytest.mark.parametrize(
    "data",
    [b"x", b"[]", b"{", b'{"a":NaN}', b'{"type":"response.output_text.delta","delta":"\xff"}', b'{"a":"\xed\xa0\x80"}'],
)
def test_an_event_that_is_not_json_ends_the_turn_as_failed(data: bytes) -> None:
    events = whole_turn()
    result = turn(wire(events[:9]), b"data: " + data + b"\n\n", wire(events[9:]))
    assert result.types[-1] == "failed"
    assert bodies(result.outcome) == [THOUGHT]


@pytest.mark.parametrize("place", range(len(whole_turn())))
def test_an_event_too_deep_to_be_opened_leaves_no_gap(place: int) -> None:
    """Wherever it comes: what was written before it is sent, so that no number is missing."""
    events = whole_turn()
    deep = frame(events[place] | {"item": "@", "response": "@"}).replace(b'"@"', b"[" * 600 + b"]" * 600)
    result = turn(wire(events[:place]), deep, wire(events[place + 1 :]))
    opens_it = "item" in events[place] or "response" in events[place]
    assert result.types[-1] == ("failed" if opens_it else "completed")


@pytest.mark.parametrize(
    "member",
    ['"created_at":@', '"completed_at":@', '"usage":{"input_tokens":@}', '"x":@', '"output":[{"type":"x","n":@}]'],
)
def test_a_number_of_thousands_of_digits_fails_nothing(member: str) -> None:
    """Legal JSON, which Python refuses to read as an integer."""
    ended = '{"type":"response.completed","sequence_number":@,"response":{' + member + "}}"
    one = assembler()
    one.feed(wire([created(), in_progress()]) + f"data: {ended}\n\n".replace("@", "9" * 5000).encode())
    assert one.outcome is not None
    assert one.outcome.status == "completed"
    assert b"event: response.completed\n" in one.closing()


def test_an_event_past_the_cap_ends_the_turn_as_failed() -> None:
    """B066, the other half: memory stays bounded, and what came in earlier chunks is kept."""
    events = whole_turn()
    huge = frame(events[11] | {"delta": "x" * 5000})
    result = turn(wire(events[:9]), huge, wire(events[9:]), event_bytes_max=4000)
    assert result.types[-1] == "failed"
    assert "too large" in result.response["error"]["message"]
    assert bodies(result.outcome) == [THOUGHT]


def test_what_the_engine_calls_a_failure_is_told_as_one() -> None:
    one = assembler()
    stream = one.feed(wire(whole_turn()[:9]))
    one.fail("The model server did not answer in time.")
    stream += one.feed(wire(whole_turn()[9:])) + one.closing()
    events = assert_grammar(stream)
    assert events[-1]["response"]["error"] == {
        "code": "server_error",
        "message": "The model server did not answer in time.",
    }
    assert [item["id"] for item in events[-1]["response"]["output"]] == ["rs_1"]


def test_a_cancelled_turn_has_no_terminal_event() -> None:
    one = assembler()
    one.feed(wire(whole_turn()[:9]))
    one.cancel()
    assert one.closing() == b"data: [DONE]\n\n"
    assert one.outcome is not None
    cancelled = json.loads(one.outcome.shown())
    assert (one.outcome.status, cancelled["status"]) == ("cancelled", "cancelled")
    assert (cancelled["error"], cancelled["usage"], cancelled["completed_at"]) == (None, None, None)
    assert [item["id"] for item in cancelled["output"]] == ["rs_1"]


def test_a_turn_that_could_not_be_stored_is_told_as_failed() -> None:
    one = assembler()
    stream = one.feed(wire(whole_turn()))
    one.end()
    one.withdraw("The database is not available. Nothing was stored.")
    events = assert_grammar(stream + one.closing())
    assert events[-1]["response"]["error"]["message"] == "The database is not available. Nothing was stored."
    assert len(events) == len(whole_turn())


# --- items


def test_an_item_that_is_only_done_is_announced_first() -> None:
    result = accepted(numbered([created(), in_progress(), done(0, THOUGHT), done(1, ANSWER), terminal()]))
    assert result.types[2:-1] == [*TOLD["reasoning"], *TOLD["message"]]
    assert [event["output_index"] for event in result.events[2:-1]] == [0] * 6 + [1] * 6
    assert result.output == ITEMS[:2]


def test_events_of_an_item_that_was_never_announced_wait_for_the_item() -> None:
    result = accepted(numbered([created(), in_progress(), *answer(0)[1:], terminal(output=[ANSWER])]))
    assert result.types[2:-1] == TOLD["message"]
    assert result.output == [ANSWER]


def test_an_unknown_event_of_an_item_that_was_never_announced_is_dropped() -> None:
    event = {"type": "response.x_call.searching", "item_id": "x_1", "output_index": 4}
    assert "x_call.searching" not in accepted([*whole_turn()[:-1], event, whole_turn()[-1]]).types


@pytest.mark.parametrize("event", [{"type": "response.output_item.added"}, {"type": "response.output_item.done"}])
@pytest.mark.parametrize("item", [None, 1, "x", [], [ANSWER]])
def test_an_item_event_without_an_item_is_dropped(event: Event, item: Any) -> None:
    broken = event | {"output_index": 0, "item": item}
    result = accepted([created(), in_progress(), broken, *answer(0), broken, terminal()])
    assert result.output == [ANSWER]


def test_the_terminal_output_supplies_items_that_were_not_done() -> None:
    events = [created(), in_progress(), *thought(0), *answer(1)[:-1], *call(2)[:3], terminal(output=ITEMS)]
    result = accepted(numbered(events))
    assert result.output == ITEMS
    assert bodies(result.outcome) == ITEMS
    assert [event["output_index"] for event in result.of_type("output_item.done")] == [0, 1, 2]


def test_the_terminal_output_supplies_items_that_were_never_announced() -> None:
    result = accepted(numbered([created(), in_progress(), *answer(0), terminal(output=ITEMS)]))
    assert [item["id"] for item in result.output] == ["msg_1", "rs_1", "fc_1"]
    assert result.types[-11:-1] == [*TOLD["reasoning"], *TOLD["function_call"]]


def test_the_terminal_output_alone_is_enough() -> None:
    result = accepted([terminal(output=ITEMS)])
    assert result.output == ITEMS
    assert bodies(result.outcome) == ITEMS


@pytest.mark.parametrize("output", [[CALL, ANSWER, THOUGHT], [], None, "x", {}, [1, "x", None]])
def test_the_order_is_that_of_the_stream_whatever_the_terminal_output_says(output: Any) -> None:
    ended = terminal()
    ended["response"]["output"] = output
    result = accepted(numbered([created(), in_progress(), *thought(0), *answer(1), *call(2), ended]))
    assert result.output == ITEMS


def test_a_terminal_output_with_other_ids_adds_nothing() -> None:
    """B044, the kind: ids that are made anew for the terminal event."""
    other = [item | {"id": f"other_{number}"} for number, item in enumerate(ITEMS)]
    result = accepted(numbered([created(), in_progress(), *thought(0), *answer(1), *call(2), terminal(output=other)]))
    assert result.stream == turn_of(whole_turn()).stream


def test_a_terminal_output_without_ids_adds_nothing_and_finishes_what_is_open() -> None:
    other = [{name: value for name, value in item.items() if name != "id"} for item in ITEMS]
    events = [created(), in_progress(), *thought(0)[:-1], *answer(1), *call(2)[:-1], terminal(output=other)]
    result = accepted(numbered(events))
    assert [item["id"] for item in result.output] == ["rs_1", "msg_1", "fc_1"]
    assert [item.public_id for item in result.outcome.items] == ["rs_1", "msg_1", "fc_1"]
    assert bodies(result.outcome) == [other[0], ANSWER, other[2]]


def test_two_items_of_a_type_with_new_ids_are_matched_in_order() -> None:
    first, second = ANSWER | {"id": "msg_a"}, ANSWER | {"id": "msg_b"}
    third = ANSWER | {"id": "msg_c", "content": []}
    output = [first | {"id": "new_a"}, second | {"id": "new_b"}, third]
    result = accepted([created(), in_progress(), done(0, first), done(1, second), terminal(output=output)])
    assert [item["id"] for item in result.output] == ["msg_a", "msg_b", "msg_c"]


@pytest.mark.parametrize("status", ["completed", "incomplete"])
def test_a_turn_that_leaves_an_item_unfinished_has_failed(status: str) -> None:
    """What was streamed of it is no item, and as it was announced it has no text: neither may pass for an answer."""
    result = accepted(numbered([created(), in_progress(), *thought(0), *answer(1)[:-1], terminal(status)]))
    assert result.types[-1] == "failed"
    assert result.outcome.status == "failed"
    assert bodies(result.outcome) == [THOUGHT]


def test_nothing_is_said_of_an_item_that_is_done() -> None:
    late = within("function_call_arguments.delta", index=0, item=CALL, delta="{")
    result = accepted(numbered([created(), in_progress(), *call(0), late, terminal(output=[CALL])]))
    assert result.types[-2:] == ["output_item.done", "completed"]


def test_half_a_character_waits_for_the_other_half_of_its_own_text() -> None:
    """A summary that begins in between gets none of it (the halves of case B103, with another delta between)."""
    say = functools.partial(within, index=0, item=ANSWER)
    first = frame(say("output_text.delta", content_index=0, delta="@", logprobs=[])).replace(b"@", rb"\ud83d")
    other = wire([say("reasoning_summary_text.delta", summary_index=0, delta="Q")])
    second = frame(say("output_text.delta", content_index=0, delta="@", logprobs=[])).replace(b"@", rb"\ude42")
    last = wire([done(0, ANSWER), terminal(output=[ANSWER])])
    result = turn(wire([created(), in_progress(), *answer(0)[:2]]), first, other, second, last)
    assert [event["delta"] for event in result.of_type("output_text.delta")] == ["", "\U0001f642"]
    assert [event["delta"] for event in result.of_type("reasoning_summary_text.delta")] == ["Q"]


def test_a_whole_reply_in_place_of_a_stream_is_told_as_one() -> None:
    """Some servers answer `stream: true` by one JSON body (case B079)."""
    reply = json.dumps({"id": "u1", "status": "completed", "output": [THOUGHT, ANSWER, CALL]}).encode()
    one = assembler()
    stream = one.take_body(reply)
    assert one.outcome is not None
    result = Turn(stream, assert_grammar(stream + one.closing()), one.outcome)
    assert_openai_accepts(result.events)
    assert result.types == [
        "created",
        "in_progress",
        *TOLD["reasoning"],
        *TOLD["message"],
        *TOLD["function_call"],
        "completed",
    ]
    assert bodies(result.outcome) == [THOUGHT, ANSWER, CALL]
    with pytest.raises(raw.Malformed):
        assembler().take_body(b'{"error":{"message":"x"}}')


def test_an_item_that_is_never_done_in_a_failed_turn_is_not_kept() -> None:
    result = accepted(numbered([created(), in_progress(), *thought(0), *answer(1)[:-1], terminal("failed")]))
    assert bodies(result.outcome) == [THOUGHT]


@pytest.mark.parametrize("place", range(len(whole_turn())))
def test_an_event_that_comes_twice_in_a_row_counts_once(place: int) -> None:
    """All but deltas and the like, of which no client can tell a repetition from more of the same."""
    events = whole_turn()
    repeated = accepted(events[: place + 1] + events[place:])
    assert repeated.output == ITEMS
    if (
        events[place]["type"] in {"response.created", "response.in_progress", "response.completed"}
        or "item" in events[place]
    ):
        assert repeated.stream == turn_of(events).stream


def test_an_item_done_twice_under_two_ids_is_one_item() -> None:
    events = [
        created(),
        in_progress(),
        *answer(0),
        done(0, ANSWER, id="msg_2"),
        done(0, ANSWER, id="msg_2"),
        terminal(),
    ]
    assert accepted(events).output[0] == ANSWER
    changed = [created(), in_progress(), *answer(0)[:-1], done(0, ANSWER, id="msg_2"), done(0, ANSWER, id="msg_2")]
    assert accepted([*changed, terminal()]).output == [ANSWER]


def test_what_comes_of_a_part_after_its_item_is_done_is_dropped() -> None:
    late = within("output_text.delta", 0, ANSWER, content_index=0, delta="late", logprobs=[])
    result = accepted(numbered([created(), in_progress(), *answer(0), late, *call(1), terminal()]))
    assert [event["delta"] for event in result.of_type("output_text.delta")] == ["Hello", " there"]


def test_items_may_be_on_their_way_side_by_side() -> None:
    first, second = thought(0), answer(1)
    woven = [event for pair in zip(first, second, strict=True) for event in pair]
    result = accepted(numbered([created(), in_progress(), *woven, terminal(output=ITEMS[:2])]))
    assert frames_of(result.stream)[2:-2] == frames_of(wire(numbered([created(), in_progress(), *woven])))[2:]


@pytest.mark.parametrize("missing", ["item_id", "output_index"])
def test_either_an_id_or_an_index_is_enough_to_tell_items_apart(missing: str) -> None:
    woven = [event for pair in zip(thought(0), answer(1), strict=True) for event in pair]
    events = numbered([created(), in_progress(), *woven, terminal(output=ITEMS[:2])])
    broken = [without(missing)(event) if "item_id" in event else event for event in events]
    assert accepted(broken).events == accepted(events).events


def test_an_unannounced_item_is_not_said_to_be_done_before_it_is() -> None:
    item = {name: value for name, value in CALL.items() if name != "status"}
    result = turn_of([created(), in_progress(), done(0, item), terminal()])
    assert [event["item"]["status"] for event in result.events if "item" in event] == ["in_progress", "completed"]


# --- ids


ID_LESS = {name: value for name, value in ANSWER.items() if name != "id"}


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(None, id="null"),
        pytest.param("", id="empty"),
        pytest.param(7, id="a number"),
        pytest.param("msg_\n1", id="a control character"),
        pytest.param("x" * 300, id="300 characters"),
        pytest.param("msg_taken", id="in the context"),
    ],
)
@pytest.mark.parametrize("is_announced", [True, False])
def test_an_id_that_cannot_serve_is_replaced_wherever_it_stands(sent: Any, is_announced: bool) -> None:
    events = numbered([created(), in_progress(), *answer(0), terminal(output=[ANSWER])])
    text = wire(events if is_announced else [*events[:2], *events[-2:]]).replace(b'"msg_1"', json.dumps(sent).encode())
    result = turn(text, taken_ids={"msg_taken", "msg_other"})
    assert_openai_accepts(result.events)
    (item,) = result.output
    assert item["id"].startswith("msg_")
    assert len(item["id"]) == len("msg_") + 48
    assert item == ANSWER | {"id": item["id"]}
    assert bodies(result.outcome) == [ANSWER | {"id": sent}], "the body keeps what came"
    assert result.outcome.items[0].public_id == item["id"]
    if is_announced:
        assert len(result.events) == len(events)


def test_an_id_with_a_lone_surrogate_is_replaced() -> None:
    events = numbered([created(), in_progress(), *answer(0), terminal(output=[ANSWER])])
    result = turn(wire(events).replace(b'"msg_1"', b'"msg_\\ud83d"'))
    assert len(result.output) == 1
    assert b"ud83d" not in result.stream
    assert b'"id":"msg_\\ud83d"' in result.outcome.items[0].body


def test_an_id_that_is_absent_is_made() -> None:
    result = accepted([created(), in_progress(), added(0, ID_LESS), done(0, ID_LESS), terminal(output=[ID_LESS])])
    assert result.output == [ID_LESS | {"id": result.outcome.items[0].public_id}]
    assert result.outcome.items[0].public_id.startswith("msg_")
    assert bodies(result.outcome) == [ID_LESS]


def test_an_item_announced_without_an_id_keeps_the_one_it_was_given() -> None:
    events = answer(0)
    events[0] = added(0, ID_LESS)
    result = accepted(numbered([created(), in_progress(), *events, terminal(output=[ANSWER])]))
    (item,) = result.output
    assert item["id"] != "msg_1"
    assert {event["item_id"] for event in result.events if "item_id" in event} == {item["id"]}


def test_the_set_of_taken_ids_is_not_touched() -> None:
    taken_ids = {"msg_1"}
    turn_of(whole_turn(), taken_ids=taken_ids)
    assemble(json.dumps(terminal(output=ITEMS)["response"]).encode(), taken_ids=taken_ids)
    assert taken_ids == {"msg_1"}


def test_an_id_that_an_upstream_gives_to_all_its_items_is_given_once() -> None:
    """B017, the kind: two items under one id are two items."""
    first, second = THOUGHT | {"id": "x"}, ANSWER | {"id": "x"}
    text = wire(numbered([created(), in_progress(), *thought(0), *answer(1), terminal(output=ITEMS[:2])]))
    result = turn(text.replace(b'"rs_1"', b'"x"').replace(b'"msg_1"', b'"x"'))
    assert_openai_accepts(result.events)
    assert result.output[0] == first
    assert result.output[1] == second | {"id": result.outcome.items[1].public_id}
    assert result.output[1]["id"] != "x"
    assert {event["item_id"] for event in result.events if event.get("output_index") == 1 and "item_id" in event} == {
        result.output[1]["id"]
    }


def test_events_that_name_an_item_by_its_index_alone_get_no_id() -> None:
    """Contract api.md 6.1: the shell's events have none."""
    shell = {"id": "sh_1", "type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}, "status": "completed"}
    command = {"type": "response.shell_call_command.delta", "output_index": 0, "command_index": 0, "delta": "ls"}
    events = numbered([created(), in_progress(), added(0, shell), command, done(0, shell), terminal(output=[shell])])
    assert turn_of(events).events[3] == events[3]


# --- numbers and names that an upstream gets wrong


def numbers(value: Callable[[int], Any]) -> Callable[[Event], Event]:
    return lambda event: event | {"sequence_number": value(event["sequence_number"])}


def without(*names: str) -> Callable[[Event], Event]:
    return lambda event: {name: value for name, value in event.items() if name not in names}


def changed(name: str, value: Callable[[Any], Any]) -> Callable[[Event], Event]:
    return lambda event: event | {name: value(event[name])} if name in event else event


@pytest.mark.parametrize(
    "break_event",
    [
        pytest.param(numbers(lambda _: 0), id="all 0"),
        pytest.param(numbers(lambda number: number + 1), id="from 1"),
        pytest.param(numbers(lambda number: -number), id="negative"),
        pytest.param(numbers(lambda number: number * 10), id="gaps"),
        pytest.param(numbers(lambda number: number % 7), id="again and again"),
        pytest.param(numbers(str), id="strings"),
        pytest.param(numbers(float), id="floats"),
        pytest.param(numbers(lambda _: None), id="null"),
        pytest.param(numbers(lambda _: 10**30), id="large"),
        pytest.param(without("sequence_number"), id="absent"),
        pytest.param(changed("output_index", lambda index: index + 1), id="indexes from 1"),
        pytest.param(changed("output_index", lambda index: index * 5), id="indexes with gaps"),
        pytest.param(changed("output_index", lambda _: 0), id="all indexes 0"),
        pytest.param(changed("output_index", str), id="indexes as strings"),
        pytest.param(without("output_index"), id="no indexes"),
        pytest.param(without("output_index", "item_id"), id="neither indexes nor item ids"),
        pytest.param(changed("item_id", lambda _: None), id="item ids null"),
        pytest.param(changed("item_id", lambda _: "other"), id="another item id"),
        pytest.param(without("item_id"), id="no item ids"),
        pytest.param(changed("content_index", lambda index: index + 3), id="parts from 3"),
        pytest.param(changed("content_index", lambda _: None), id="parts null"),
        pytest.param(without("content_index"), id="no part numbers"),
    ],
)
def test_an_upstream_that_misnumbers_reaches_the_client_numbered_right(break_event: Callable[[Event], Event]) -> None:
    assert accepted(map(break_event, whole_turn())).events == accepted(whole_turn()).events


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_any_mixture_of_wrong_numbers_reaches_the_client_numbered_right(data: st.DataObject) -> None:
    junk = st.one_of(st.none(), st.integers(-3, 30), st.booleans(), st.text(max_size=2), st.just([]), st.floats(-2, 9))
    events = whole_turn()
    for event in events:
        event["sequence_number"] = data.draw(junk)
        if "content_index" in event:
            event["content_index"] = 0
        if "item_id" in event and data.draw(st.booleans()):
            event["item_id"] = data.draw(st.one_of(st.none(), st.integers(), st.just("nobody's")))
    assert turn_of(events).events == turn_of(whole_turn()).events


@pytest.mark.parametrize(
    "rewrite",
    [
        pytest.param(lambda frame: frame.partition(b"\n")[2], id="data only"),
        pytest.param(lambda frame: b"event: message\n" + frame.partition(b"\n")[2], id="another name"),
        pytest.param(lambda frame: frame.partition(b"\n")[2][:-1] + b"event: late\n\n", id="the name after the data"),
        pytest.param(lambda frame: frame.replace(b"data: ", b"data:"), id="no space"),
        pytest.param(lambda frame: frame.replace(b"data: {", b"data: {\ndata: "), id="over two data lines"),
        pytest.param(lambda frame: frame.replace(b"\n", b"\r\n"), id="CRLF"),
        pytest.param(lambda frame: frame.replace(b"\n", b"\r"), id="CR"),
        pytest.param(lambda frame: b": ping\n\nid: 3\nretry: 5\n" + frame, id="comments and other fields"),
        pytest.param(lambda frame: b"data: null\n\ndata:\n\n" + frame, id="empty events between"),
    ],
)
def test_any_legal_spelling_of_the_stream_is_read(rewrite: Callable[[bytes], bytes]) -> None:
    result = turn(b"".join(rewrite(one + b"\n\n") for one in frames_of(wire(whole_turn()))))
    assert result.events == turn_of(whole_turn()).events
    assert bodies(result.outcome) == ITEMS


def test_a_byte_order_mark_is_dropped_at_the_start_alone() -> None:
    text = wire(whole_turn()).replace(b"Hello", "a\ufeffb".encode())
    assert turn(b"\xef\xbb", b"\xbf" + text).stream == turn(text).stream
    assert text_of(bodies(turn(text).outcome)[1]) == "a\ufeffb there"


@pytest.mark.parametrize(
    ("older", "todays"),
    [
        ("reasoning_part.added", "content_part.added"),
        ("reasoning.delta", "reasoning_text.delta"),
        ("reasoning.done", "reasoning_text.done"),
        ("reasoning_part.done", "content_part.done"),
    ],
)
def test_older_names_of_events_become_todays(older: str, todays: str) -> None:
    """Older vLLM releases, and the Open Responses draft."""
    events = numbered([created(), in_progress(), *thought(0), terminal(output=[THOUGHT])])
    text = wire(events).replace(f"response.{todays}".encode(), f"response.{older}".encode())
    assert turn(text).events == turn_of(events).events


@pytest.mark.parametrize(
    "event",
    [
        {"type": "keepalive"},
        {"type": "response.x_new.thing", "value": [1, None, {"a": 1.0}]},
        {"type": "response.web_search_call.searching", "output_index": 0, "item_id": "msg_1"},
        {"type": "response.output_text.annotation.added", "output_index": 0, "item_id": "msg_1", "content_index": 0,
         "annotation_index": 0, "annotation": {"type": "x"}},
    ],
)  # fmt: skip
def test_an_event_of_an_unknown_type_passes_as_it_came(event: Event) -> None:
    events = numbered([created(), in_progress(), *answer(0)[:3], event, *answer(0)[3:], terminal(output=[ANSWER])])
    result = turn_of(events)
    assert frames_of(result.stream)[5] == frames_of(wire(events))[5]


def test_an_unknown_event_never_shows_the_upstreams_response() -> None:
    """B091, the kind: whatever carries a response object carries ours."""
    event = {"type": "response.x_update", "response": RESPONSE | {"status": "half done"}}
    result = turn_of(numbered([created(), in_progress(), *answer(0)[:2], event, *answer(0)[2:], terminal()]))
    assert b"resp_up" not in result.stream
    assert result.of_type("x_update")[0]["response"] == result.events[0]["response"]


def test_members_that_nobody_knows_pass_in_events_items_and_responses() -> None:
    extra = {"x_provider": {"b": None, "a": [1.5]}}
    events = [created(**extra), in_progress(**extra), *answer(0), terminal(output=[ANSWER | extra], **extra)]
    result = accepted([event | {"x_event": 1} for event in events])
    assert all(event["x_event"] == 1 for event in result.events[:-1])
    assert [event["response"]["x_provider"] for event in result.events if "response" in event] == [
        extra["x_provider"]
    ] * 3


# --- parts


def test_text_of_a_message_that_comes_unannounced_gets_its_part_announced() -> None:
    """openai-python indexes the parts that it was told of, and raises IndexError at any other."""
    events = answer(0)
    del events[1]
    result = accepted(numbered([created(), in_progress(), *events, terminal(output=[ANSWER])]))
    assert result.types[3:6] == ["content_part.added", "output_text.delta", "output_text.delta"]
    assert result.events[3]["part"]["type"] == "output_text"
    assert {event["content_index"] for event in result.events if "content_index" in event} == {0}


def test_a_refusal_that_comes_unannounced_gets_its_part_announced() -> None:
    refusal = ANSWER | {"content": [{"type": "refusal", "refusal": "No."}]}
    say = functools.partial(within, index=0, item=refusal, content_index=1)
    events = [
        added(0, refusal),
        say("refusal.delta", delta="No."),
        say("refusal.done", refusal="No."),
        done(0, refusal),
    ]
    result = accepted(numbered([created(), in_progress(), *events, terminal(output=[refusal])]))
    assert result.types[3:6] == ["content_part.added", "refusal.delta", "refusal.done"]
    assert result.events[3]["part"] == {"type": "refusal", "refusal": ""}


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param([r"a\ud83d", r"\ude42b"], id="two halves"),
        pytest.param([r"a\uD83D", r"\uDE42b"], id="upper case"),
        pytest.param(["a", r"\ud83d", "", r"\ude42", "b"], id="an empty delta between"),
        pytest.param([r"a\ud83d", r"\ude42", "b"], id="halves alone"),
        pytest.param([r"a\ud83d\ude42", "b"], id="whole in one"),
        pytest.param(["a🙂", "b"], id="not escaped"),
    ],
)
def test_a_character_split_over_deltas_reaches_the_client_whole(deltas: list[str]) -> None:
    """B103, the kind: no delta ends in the middle of a character."""
    text = wire(numbered([created(), in_progress(), *answer(0)[:2]])).decode()
    say = functools.partial(within, index=0, item=ANSWER, content_index=0)
    for delta in deltas:
        text += frame(say("output_text.delta", delta="@", logprobs=[])).decode().replace("@", delta)
    text += wire(
        [say("output_text.done", text="a🙂b", logprobs=[]), done(0, ANSWER), terminal(output=[ANSWER])]
    ).decode()
    result = turn(text.encode())
    assert_openai_accepts(result.events)
    told = [event["delta"] for event in result.of_type("output_text.delta")]
    assert "".join(told) == "a🙂b"
    assert all(delta.encode() is not None for delta in told)


def test_an_escaped_backslash_is_no_half_of_a_character() -> None:
    say = functools.partial(within, index=0, item=ANSWER, content_index=0)
    deltas = [r"C:\ud83d", r"\ude42"]
    events = [
        *answer(0)[:2],
        *[say("output_text.delta", delta=delta, logprobs=[]) for delta in deltas],
        done(0, ANSWER),
    ]
    result = turn_of(numbered([created(), in_progress(), *events, terminal(output=[ANSWER])]))
    assert [event["delta"] for event in result.of_type("output_text.delta")] == deltas


def test_half_a_character_that_never_gets_its_other_half_spoils_no_other_text() -> None:
    say = functools.partial(within, index=0, item=ANSWER)
    half = frame(say("output_text.delta", content_index=0, delta="@", logprobs=[])).replace(b"@", rb"a\ud83d")
    events = [
        say("output_text.done", content_index=0, text="a", logprobs=[]),
        say("content_part.added", content_index=1, part={}),
    ]
    last = [say("output_text.delta", content_index=1, delta="b", logprobs=[]), done(0, ANSWER), terminal()]
    result = turn(wire([created(), in_progress(), *answer(0)[:2]]), half, wire([*events, *last]))
    assert [event["delta"] for event in result.of_type("output_text.delta")] == ["a", "b"]


def test_a_delta_of_three_megabytes_passes() -> None:
    events = whole_turn()
    events[11]["delta"] = "x" * 3_000_000
    result = turn_of(events, event_bytes_max=4 * MEGABYTE)
    assert frames_of(result.stream)[11] == frames_of(wire(events))[11]


# --- anything at all


WORDS = ["msg_1", "rs_1", "fc_1", "message", "reasoning", "completed", "response.output_text.delta", "\ud83d", "\n"]
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.floats(allow_nan=False) | st.sampled_from([*WORDS, "x" * 300]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "type", "a", "text"]), inner),
    max_leaves=5,
)
NAMES = ["type", "sequence_number", "output_index", "item_id", "content_index", "item", "response", "delta", "error"]


@st.composite
def broken_turns(draw: st.DrawFn) -> list[Event]:
    """A whole turn in which events are lost, repeated, moved, and given any value for any member."""
    events = whole_turn()
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, len(events) - 1))
        change = draw(st.sampled_from(["lose", "repeat", "move", "member", "inner"]))
        event = copy.deepcopy(events[place])
        if change == "lose" and len(events) > 1:
            del events[place]
        elif change == "repeat":
            events.insert(draw(st.integers(0, len(events))), event)
        elif change == "move":
            events.insert(draw(st.integers(0, len(events) - 1)), events.pop(place))
        elif change == "member":
            events[place] = event | {draw(st.sampled_from(NAMES)): draw(JUNK)}
        else:
            inner = draw(st.sampled_from(["item", "response"]))
            if isinstance(event.get(inner), dict):
                event[inner][draw(st.sampled_from(["id", "type", "status", "content", "output", "usage", "error"]))] = (
                    draw(JUNK)
                )
                events[place] = event
    return events


@given(broken_turns(), st.integers(0, 25))
@settings(deadline=None, max_examples=400, derandomize=True)
def test_no_upstream_breaks_the_clients_grammar(events: list[Event], opened_at: int) -> None:
    one = assembler(taken_ids={"fc_1"})
    stream = b""
    for place, event in enumerate(events):
        if place == opened_at:
            stream += one.open()
        # Escaped, so that a lone surrogate comes as JSON can carry it.
        stream += one.feed(b"data: " + json.dumps(event).encode() + b"\n\n")
    one.end()
    assert_grammar(stream + one.closing())


@given(st.binary(max_size=200), st.integers(0, 4000), st.integers(0, 300))
@settings(deadline=None, max_examples=200, derandomize=True)
def test_no_bytes_break_the_clients_grammar(noise: bytes, place: int, lost: int) -> None:
    stream = wire(whole_turn())
    turn(stream[:place] + noise + stream[place + lost :])


# --- a whole reply


def reply(**members: Any) -> bytes:
    return json.dumps(RESPONSE | {"status": "completed", "output": ITEMS, "usage": USAGE} | members).encode()


def test_a_reply_and_a_stream_of_one_turn_are_one() -> None:
    outcome = assemble(reply())
    streamed = turn_of(whole_turn()).outcome
    assert outcome.status == "completed"
    assert [item.public_id for item in outcome.items] == [item.public_id for item in streamed.items]
    assert bodies(outcome) == bodies(streamed)
    assert {(item.is_output, item.issuer) for item in outcome.items} == {(True, "up")}
    assert json.loads(outcome.shown()) == json.loads(streamed.shown())


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"error":{"message":"m","type":"t","param":null,"code":500}}', id="an error"),
        pytest.param(b'{"detail":"Not Found"}', id="FastAPI's error"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'"completed"', id="a string"),
        pytest.param(b"null", id="null"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="half"),
        pytest.param(reply(status="in_progress"), id="in progress"),
        pytest.param(reply(status="queued"), id="queued"),
        pytest.param(reply(status="cancelled"), id="cancelled"),
        pytest.param(reply(status="done"), id="an unknown status"),
        pytest.param(b'{"id":"x","status":"completed"}', id="no output"),
        pytest.param(reply(output=None), id="output null"),
        pytest.param(reply(output="x"), id="output a string"),
        pytest.param(reply(output={"a": 1}), id="output an object"),
        pytest.param(reply(output=["x"]), id="an item that is a string"),
        pytest.param(reply(output=[None]), id="an item that is null"),
        pytest.param(b'{"choices":[],"object":"chat.completion"}', id="a chat completion"),
    ],
)
def test_a_reply_that_is_no_ended_response_is_malformed(body: bytes) -> None:
    with pytest.raises(raw.Malformed):
        assemble(body)


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed"])
def test_a_reply_ends_as_it_says(status: str) -> None:
    error = {"error": {"code": "server_error", "message": "It broke."}} if status == "failed" else {}
    outcome = assemble(reply(status=status, incomplete_details={"reason": "content_filter"}, **error))
    shown = json.loads(outcome.shown())
    assert (outcome.status, shown["status"]) == (status, status)
    assert shown["error"] == error.get("error")
    assert shown["incomplete_details"] == ({"reason": "content_filter"} if status == "incomplete" else None)


def test_a_reply_without_a_status_is_complete() -> None:
    assert assemble(b'{"output":[]}').status == "completed"


def test_ids_of_a_reply_are_made_unique() -> None:
    items = [ANSWER, ANSWER | {"content": []}, ID_LESS, ANSWER | {"id": None}, THOUGHT]
    outcome = assemble(reply(output=items), taken_ids={"rs_1"})
    public_ids = [item.public_id for item in outcome.items]
    assert public_ids[0] == "msg_1"
    assert len(set(public_ids) | {"rs_1"}) == 6
    assert [public_id.partition("_")[0] for public_id in public_ids] == ["msg", "msg", "msg", "msg", "rs"]
    assert [item["id"] for item in json.loads(outcome.shown())["output"]] == public_ids
    assert bodies(outcome) == items


# --- reported failures


def streamed_cases() -> list[Any]:
    chosen = [case for case in cases().values() if case["upstream_behaviour"]["api"] == "responses"]
    return [
        pytest.param(reply_, id=f"{case['id']}-{number}")
        for case in chosen
        for number, reply_ in enumerate(case_replies(case))
        if reply_.sse is not None or reply_.sse_chunks or reply_.sse_chunks_b64
    ]


@pytest.mark.parametrize("reply_", streamed_cases())
def test_every_reported_stream_reaches_the_client_in_the_grammar(reply_: Any) -> None:
    stream = b"".join(reply_.writes(0, "resp_ours"))
    result = turn(stream, event_bytes_max=16 * MEGABYTE)
    if (result.response["error"] or {}).get("code") != "context_length_exceeded":
        assert_openai_accepts(result.events)
    if len(stream) < MEGABYTE:
        assert turn(*[stream[n : n + 1] for n in range(len(stream))]).outcome.status == result.outcome.status


def test_a_streamed_reasoning_item_is_stored_with_all_that_was_in_it() -> None:
    """B011."""
    result = case_turn("B011")
    stored = {
        "id": "r1",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "adds"}],
        "content": [
            {"type": "reasoning_text", "text": "first I count "},
            {"type": "reasoning_text", "text": "then I add"},
        ],
        "status": "completed",
    }
    assert bodies(result.outcome)[0] == stored
    assert [event["content_index"] for event in result.of_type("reasoning_text.delta")] == [0, 1]
    upstream = case_replies(cases()["B011"])[0].sse
    assert upstream is not None
    body = json.loads(upstream.rpartition("\ndata: ")[2])["response"]
    plain = assemble(json.dumps(body).encode())
    assert bodies(plain) == bodies(result.outcome)


def test_two_reasoning_items_in_a_row_stay_two() -> None:
    """B017."""
    result = case_turn("B017")
    assert [item["id"] for item in result.output] == ["r1", "r2", "m1"]
    assert [text_of(item) for item in bodies(result.outcome)[:2]] == ["step one", "step two"]


def test_an_encrypted_state_stays_with_the_item_it_came_with() -> None:
    """B030."""
    stored = bodies(case_turn("B030").outcome)[:2]
    assert [(text_of(item), item["encrypted_content"]) for item in stored] == [("t1", "BLOB-1"), ("t2", "BLOB-2")]


def test_an_item_with_three_ids_has_the_first_for_the_client() -> None:
    """B044."""
    result = case_turn("B044")
    told = {event["item_id"] for event in result.events if "item_id" in event}
    told |= {event["item"]["id"] for event in result.events if "item" in event}
    assert told | {item["id"] for item in result.output} == {"m1"}
    assert [item.public_id for item in result.outcome.items] == ["m1"]


def test_an_id_that_is_null_when_the_item_is_done_is_the_announced_one() -> None:
    """B045."""
    result = case_turn("B045")
    assert {event["item"]["id"] for event in result.events if "item" in event} == {"fc_1"}
    assert [item.public_id for item in result.outcome.items] == ["fc_1"]
    assert [item["id"] for item in result.output] == ["fc_1"]


def test_part_numbers_that_rise_with_every_delta_are_put_right() -> None:
    """B047."""
    result = case_turn("B047")
    assert {(event["output_index"], event["content_index"]) for event in result.events if "content_index" in event} == {
        (0, 0),
        (1, 0),
    }
    assert bodies(result.outcome)[0]["content"] == [{"type": "reasoning_text", "text": "The user says hi"}]


def test_an_empty_terminal_output_loses_nothing() -> None:
    """B048, both replies: output [] and no output at all."""
    first = case_turn("B048", 0)
    assert [(item["type"], text_of(item)) for item in first.output] == [("reasoning", "why"), ("message", "because")]
    second = case_turn("B048", 1)
    assert [item["type"] for item in second.output] == ["message"]
    assert bodies(second.outcome) == second.output


def test_response_done_is_a_terminal_event() -> None:
    """B050."""
    result = case_turn("B050")
    assert result.types[-1] == "completed"
    assert text_of(result.output[0]) == "fin"


def test_gaps_and_repeats_in_the_upstreams_numbers_do_not_reach_the_client() -> None:
    """B051."""
    result = case_turn("B051")
    assert [event["sequence_number"] for event in result.events] == list(range(9))
    assert [result.types.count(name) for name in ("created", "in_progress", "completed")] == [1, 1, 1]


def test_an_error_after_the_terminal_event_changes_nothing() -> None:
    """B059: the first terminal event wins, for the client and for what is stored."""
    result = case_turn("B059")
    assert (result.types[-1], result.outcome.status) == ("completed", "completed")


@pytest.mark.parametrize("case_id", ["B060", "B061", "B067", "B070"])
def test_line_ends_data_lines_and_names_of_any_kind_give_the_same_turn(case_id: str) -> None:
    """B060, B061, B067, B070."""
    result = case_turn(case_id)
    assert result.types == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert text_of(bodies(result.outcome)[0]) == "caf\u00e9 \u732b ok"


def test_a_byte_order_mark_hides_no_event() -> None:
    """B063."""
    result = case_turn("B063")
    assert result.response["id"] == "resp_ours"
    assert text_of(bodies(result.outcome)[0]) == "a\ufeffb"


def test_characters_cut_by_chunk_borders_stay_whole() -> None:
    """B064."""
    result = case_turn("B064")
    assert "\ufffd" not in result.stream.decode()
    thought_, answer_ = bodies(result.outcome)
    assert text_of(thought_) == "\u8003\u3048\u308b \U0001f9e0"
    assert text_of(answer_) == "na\u00efve \U0001f408\u200d\u2b1b \ud55c\uae00"


def test_an_event_of_three_megabytes_is_stored_whole() -> None:
    """B066."""
    result = case_turn("B066", event_bytes_max=16 * MEGABYTE)
    assert text_of(bodies(result.outcome)[0]) == "z" * 3_000_000
    assert result.types[-1] == "completed"


def test_done_marks_in_any_spelling_end_nothing_by_themselves() -> None:
    """B069: nulls and empty frames are ignored; without a terminal event the turn has failed."""
    assert case_turn("B069", 0).types.count("completed") == 1
    second = case_turn("B069", 1)
    assert (second.types, second.outcome.status) == (["created", "in_progress", "failed"], "failed")


def test_numbers_come_back_as_they_were_written() -> None:
    """B085."""
    outcome = case_body("B085")
    shown = outcome.shown()
    assert json.loads(shown)["output"][0]["arguments"] == '{"id": 9007199254740993, "p": 1.0, "e": 1e21}'
    assert b'"ratio":1.0,"big":12345678901234567890123,"tiny":1e-9,"neg":-0.0' in shown
    assert json.loads(shown)["created_at"] == 1_700_000_000


def test_a_float_time_and_missing_members_stop_nothing() -> None:
    """B087."""
    shown = json.loads(case_body("B087").shown())
    assert shown["created_at"] == 1_756_274_867
    assert text_of(shown["output"][0]) == "x"


def test_the_upstreams_response_id_never_reaches_the_client() -> None:
    """B091."""
    result = case_turn("B091")
    assert b"upstream_raw_77" not in result.stream
    assert b"upstream_raw_77" not in result.outcome.shown()


def test_halves_of_a_character_are_joined_across_deltas() -> None:
    """B103."""
    result = case_turn("B103")
    assert text_of(bodies(result.outcome)[0]) == "\U0001f642"
    assert [event["delta"] for event in result.of_type("output_text.delta")] == ["", "\U0001f642"]


def test_an_error_event_becomes_response_failed() -> None:
    """B108: a code outside the contract's enum becomes `server_error`, the message is kept."""
    result = case_turn("B108")
    assert result.response["error"] == {"code": "server_error", "message": "overloaded"}
    assert result.outcome.status == "failed"


def test_phases_are_kept_as_they_came() -> None:
    """B119: none is invented for the call."""
    outcome = case_body("B119")
    for output in (bodies(outcome), json.loads(outcome.shown())["output"]):
        assert [item.get("phase", "absent") for item in output] == [
            "commentary",
            "absent",
            "final_answer",
            "other_phase",
        ]


def test_every_object_of_a_stream_names_the_previous_response() -> None:
    """B123."""
    result = case_turn("B123", 2, previous_response_id="resp_before")
    told = [event["response"]["previous_response_id"] for event in result.events if "response" in event]
    assert told == ["resp_before"] * 3
