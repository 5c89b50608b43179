"""Chat replies as those of the Responses API: recorded bytes of a vLLM, and what other servers were reported to send.

Every stream goes through the assembler, as in a turn, and through the contract's grammar. Expected values are by hand.
"""

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.protocol import raw
from server.protocol.assemble import Assembler, Outcome, assemble_body
from server.protocol.chat.reply import response_usage
from server.protocol.dialect import DIALECTS, Reader
from server.protocol.items import Item
from server.protocol.profile import CHAT_VLLM, STRICT_CHAT, Profile
from server.protocol.request import parse
from server.protocol.response import ResponseObject
from tests.grammar import assert_grammar, assert_openai_accepts
from tests.harness import Capture, captures

MEGABYTE = 1 << 20
TOOLS = [
    {"type": "function", "name": "get_weather", "parameters": {}},
    {"type": "custom", "name": "patch"},
    {
        "type": "namespace",
        "name": "crm",
        "description": "d",
        "tools": [{"type": "function", "name": "find", "parameters": {}}],
    },
]
REQUEST = parse(json.dumps({"model": "m", "input": "x", "tools": TOOLS}).encode(), 200)


class Turn(NamedTuple):
    events: list[dict[str, Any]]
    outcome: Outcome

    @property
    def items(self) -> list[dict[str, Any]]:
        """The output as it was made, without our ids and statuses that say that all is well."""
        return [shortened(json.loads(item.body)) for item in self.outcome.items]

    @property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.outcome.body.text)
        return body

    @property
    def fidelities(self) -> list[Any]:
        return [None if item.fidelity is None else json.loads(item.fidelity) for item in self.outcome.items]


def shortened(item: dict[str, Any]) -> dict[str, Any]:
    assert item.pop("id")
    if item["status"] == "completed":
        del item["status"]
    return item


def reader(profile: Profile = CHAT_VLLM) -> Reader:
    return DIALECTS["chat"].read(REQUEST, profile, MEGABYTE)


def streamed(chunks: Iterable[bytes], profile: Profile = CHAT_VLLM) -> Turn:
    assembler = Assembler(
        ResponseObject(REQUEST, "resp_1", lambda: 1),
        taken_ids=set(),
        issuer="up",
        event_bytes_max=MEGABYTE,
        reader=reader(profile),
    )
    stream = b"".join(map(assembler.feed, chunks))
    assembler.end()
    stream += assembler.closing()
    events = assert_grammar(stream)
    assert_openai_accepts(events)
    assert assembler.outcome is not None
    return Turn(events, assembler.outcome)


def told(deltas: Sequence[Any], finish: str | None = "stop", *, done: bool = True, **choice: Any) -> Turn:
    """The turn of a stream with these deltas, one a chunk."""
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None, **choice}]} for delta in deltas]
    if finish is not None:
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    text = "".join(f"data: {json.dumps({'id': 'c', 'created': 17, **chunk})}\n\n" for chunk in chunks)
    return streamed([text.encode(), b"data: [DONE]\n\n" if done else b""])


def whole(message: dict[str, Any], finish: str = "stop", profile: Profile = CHAT_VLLM, **members: Any) -> Turn:
    body = {"id": "c", "created": 17, "choices": [{"index": 0, "message": message, "finish_reason": finish}], **members}
    response_object = ResponseObject(REQUEST, "resp_1", lambda: 1)
    text = json.dumps(body).encode()
    return Turn([], assemble_body(text, response_object, taken_ids=set(), issuer="up", reader=reader(profile)))


def text_of(item: dict[str, Any]) -> str:
    return "".join(part.get("text") or part.get("refusal") or "" for part in item["content"])


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def message(text: str, **members: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "role": "assistant", "content": [part], **members}


def call(call_id: str, name: str, arguments: str = "{}", **members: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **members}


# --- recorded


def recorded() -> list[Capture]:
    return [
        capture
        for version in ("0.32", "0.33")
        for capture in captures(version)
        if capture.name[:2] in ("70", "71", "72") and capture.status == 200
    ]


RECORDED_STREAMS = [capture for capture in recorded() if capture.received.startswith(b"data:")]
RECORDED_BODIES = [capture for capture in recorded() if capture.received.startswith(b"{")]


def test_there_are_recordings() -> None:
    assert len(RECORDED_STREAMS) >= 4
    assert len(RECORDED_BODIES) >= 6


@pytest.mark.parametrize("capture", RECORDED_STREAMS, ids=lambda capture: capture.name)
def test_a_recorded_stream(capture: Capture) -> None:
    turn = streamed([capture.received])
    if "tools" in capture.name:
        call_id = turn.items[-1]["call_id"]
        assert call_id.startswith("chatcmpl-tool-")
        assert turn.items == [
            thought("\nI need the weather tool.\n"),
            message("\n\n"),
            call(call_id, "get_weather", '{"city": "Paris"}'),
        ]
    else:
        assert turn.items == [thought("\nTwo plus two is four.\n"), message("\n\nThe answer is 4.")]
        assert turn.body["usage"] == {
            "input_tokens": 14,
            "output_tokens": 18,
            "total_tokens": 32,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 8},
        }
    assert turn.outcome.status == "completed"
    assert turn.fidelities[0] == {"reasoning_field": "reasoning"}
    assert turn.body["created_at"] == json.loads(capture.received.split(b"\n")[0][6:])["created"]


@pytest.mark.parametrize("capture", RECORDED_STREAMS, ids=lambda capture: capture.name)
def test_the_borders_of_chunks_mean_nothing(capture: Capture) -> None:
    expected = streamed([capture.received])
    bytewise = streamed([bytes([byte]) for byte in capture.received])
    assert (bytewise.items, len(bytewise.events)) == (expected.items, len(expected.events))


@given(st.data())
def test_random_borders_mean_nothing(data: st.DataObject) -> None:
    received = data.draw(st.sampled_from(RECORDED_STREAMS)).received
    cuts = sorted(data.draw(st.sets(st.integers(0, len(received)), max_size=20)))
    pieces = [received[start:end] for start, end in itertools.pairwise([0, *cuts, len(received)])]
    assert streamed(pieces).items == streamed([received]).items


@pytest.mark.parametrize("capture", RECORDED_BODIES, ids=lambda capture: capture.name)
def test_a_recorded_body(capture: Capture) -> None:
    recorded_message = json.loads(capture.received)["choices"][0]["message"]
    outcome = assemble_body(
        capture.received,
        ResponseObject(REQUEST, "resp_1", lambda: 1),
        taken_ids=set(),
        issuer="up",
        reader=reader(),
    )
    assert Turn([], outcome).items == [thought(recorded_message["reasoning"]), message(recorded_message["content"])]


# --- text, reasoning, refusals


def test_texts_become_items_in_the_order_they_came() -> None:
    turn = told([{"role": "assistant", "content": ""}, {"reasoning": "Hm"}, {"reasoning": "."}, {"content": "Hi"}])
    assert turn.items == [thought("Hm."), message("Hi")]
    assert [event["delta"] for event in turn.events if event["type"] == "response.reasoning_text.delta"] == ["Hm", "."]


def test_an_answer_that_is_all_reasoning_stays_reasoning() -> None:
    turn = told([{"content": ""}, {"reasoning": "the answer is 7"}])
    assert (turn.items, turn.outcome.status) == ([thought("the answer is 7")], "completed")


def test_both_names_with_one_text_count_once_and_record_none() -> None:
    turn = told([{"reasoning": "one ", "reasoning_content": "one "}, {"reasoning": "two", "reasoning_content": "two"}])
    assert turn.items == [thought("one two")]
    assert turn.fidelities == [None]


def test_both_names_with_two_texts_are_the_newer_ones() -> None:
    turn = told([{"reasoning": "new", "reasoning_content": "old"}])
    assert (turn.items, turn.fidelities) == ([thought("new")], [{"reasoning_field": "reasoning"}])


def test_another_field_is_another_item() -> None:
    turn = told([{"reasoning": "a"}, {"reasoning_content": "b"}])
    assert turn.items == [thought("a"), thought("b")]
    assert turn.fidelities == [{"reasoning_field": "reasoning"}, {"reasoning_field": "reasoning_content"}]


def test_a_refusal_is_a_refusal() -> None:
    refused = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No, sorry."}]}
    turn = told([{"refusal": "No, "}, {"refusal": "sorry."}])
    assert turn.items == [refused]
    assert [event["type"] for event in turn.events].count("response.refusal.delta") == 2
    assert whole({"content": None, "refusal": "No, sorry."}).items == [refused]


def test_another_phase_is_another_message() -> None:
    turn = told([{"content": "a", "phase": "commentary"}, {"content": "b"}, {"content": "c", "phase": "final_answer"}])
    assert turn.items == [message("ab", phase="commentary"), message("c", phase="final_answer")]


def test_contents_in_parts_and_null_contents() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert told([{"content": None}, {"content": parts}]).items == [message("ab")]


def test_logprobs_and_annotations() -> None:
    logprob = {"token": "Hi", "logprob": -0.5, "bytes": None, "top_logprobs": None}
    turn = told([{"content": "Hi"}], logprobs={"content": [logprob]})
    assert turn.items[0]["content"][0]["logprobs"] == [logprob | {"bytes": [], "top_logprobs": []}]
    citation = {"url": "u", "title": "t", "start_index": 0, "end_index": 2}
    turn = told([{"content": "Hi"}, {"annotations": [{"type": "url_citation", "url_citation": citation}]}])
    assert turn.items[0]["content"][0]["annotations"] == [{"type": "url_citation", **citation}]


def test_halves_of_a_character_join() -> None:
    chunk = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n'
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    turn = streamed([chunk % rb"\ud83d", chunk % rb"\ude00", end])
    assert text_of(turn.items[0]) == "\N{GRINNING FACE}"


# --- reasoning details


def test_reasoning_details_are_recorded_as_they_came_and_a_payload_ends_the_item() -> None:
    pieces = [
        {"reasoning": "a", "reasoning_details": [{"type": "reasoning.text", "text": "a", "index": 0, "format": "f"}]},
        {"reasoning": "b", "reasoning_details": [{"type": "reasoning.text", "text": "b", "index": 0, "format": "f"}]},
        {"reasoning_details": [{"type": "reasoning.text", "signature": "S", "index": 0, "format": "f"}]},
        {"reasoning": "c", "reasoning_details": [{"type": "reasoning.text", "text": "c", "index": 1}]},
        {"content": "d"},
    ]
    turn = told(pieces)
    assert turn.items == [thought("ab"), thought("c"), message("d")]
    assert turn.fidelities == [
        {
            "reasoning_field": "reasoning",
            "reasoning_details": [
                {"type": "reasoning.text", "text": "ab", "index": 0, "format": "f", "signature": "S"}
            ],
        },
        {"reasoning_field": "reasoning", "reasoning_details": [{"type": "reasoning.text", "text": "c", "index": 1}]},
        None,
    ]


def test_a_payload_alone_is_an_item_without_text() -> None:
    detail = {"type": "reasoning.encrypted", "data": "E", "index": 0}
    turn = told([{"reasoning_details": [detail]}, {"content": "d"}])
    assert turn.items == [{"type": "reasoning", "summary": [], "content": []}, message("d")]
    assert turn.fidelities[0] == {"reasoning_details": [detail]}


def test_payloads_without_an_index_stay_apart() -> None:
    """Each is judged by its issuer for itself: one that went missing would spoil the rest."""
    signed = [{"type": "reasoning.text", "text": text, "signature": f"S{text}"} for text in "ab"]
    sealed = [{"type": "reasoning.encrypted", "data": data} for data in ("E", "F")]
    turn = whole({"reasoning": "ab", "reasoning_details": [*signed, *sealed], "content": "d"})
    assert turn.items == [thought("ab"), message("d")]
    assert turn.fidelities == [{"reasoning_field": "reasoning", "reasoning_details": [*signed, *sealed]}, None]


def test_texts_that_only_details_tell_are_all_told() -> None:
    details = [{"type": "reasoning.text", "text": text, "index": index} for index, text in enumerate("ab")]
    assert whole({"reasoning_details": details, "content": "d"}).items == [thought("ab"), message("d")]


def test_a_detail_without_text_waits_for_it_in_one_item() -> None:
    head = {"type": "reasoning.text", "text": "", "index": 0, "format": "f"}
    pieces = [
        {"reasoning": "", "reasoning_details": [head]},
        {"reasoning": "a", "reasoning_details": [{"type": "reasoning.text", "text": "a", "index": 0}]},
    ]
    turn = told(pieces)
    assert turn.items == [thought("a")]
    assert turn.fidelities == [{"reasoning_field": "reasoning", "reasoning_details": [head | {"text": "a"}]}]


# --- calls


def piece(index: Any, call_id: Any = None, name: Any = None, arguments: Any = None) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    found = {"index": index, "id": call_id, "function": function}
    return {key: value for key, value in found.items() if value != "absent"}


def calls(*pieces: dict[str, Any]) -> list[dict[str, Any]]:
    return told([{"tool_calls": [one]} for one in pieces], "tool_calls").items


@pytest.mark.parametrize("first", [0, 1], ids=["from 0", "from 1"])
def test_parallel_calls(first: int) -> None:
    found = calls(
        piece(first, "call_a", "a", ""),
        piece(first, None, None, "{}"),
        piece(first + 1, "call_b", "b", '{"x":'),
        piece(first + 1, None, None, "1}"),
    )
    assert found == [call("call_a", "a"), call("call_b", "b", '{"x":1}')]


def test_calls_whose_pieces_come_by_turns() -> None:
    found = calls(piece(0, "c1", "a", "{"), piece(1, "c2", "b", "{"), piece(0, arguments="}"), piece(1, arguments="}"))
    assert found == [call("c1", "a"), call("c2", "b")]


@pytest.mark.parametrize("index", ["absent", None])
def test_calls_without_an_index(index: Any) -> None:
    assert calls(piece(index, "c1", "a", '{"k"'), piece(index, "absent", None, ":1}")) == [call("c1", "a", '{"k":1}')]
    assert calls(piece(index, "c1", "a", "{}"), piece(index, "c2", "b", "{"), piece(index, "c2", None, "}")) == [
        call("c1", "a"),
        call("c2", "b"),
    ]


def test_one_index_for_all_calls() -> None:
    assert calls(piece(0, "c1", "a", "{}"), piece(0, "c2", "b", "{}")) == [call("c1", "a"), call("c2", "b")]


def test_an_id_and_a_name_with_every_piece() -> None:
    assert calls(piece(0, "c1", "a", "{"), piece(0, "c1", "a", "}")) == [call("c1", "a")]


def test_an_id_of_its_own_for_every_piece_is_the_first_ones() -> None:
    assert calls(piece(0, "c1", "a", '{"x"'), piece(0, "c2", None, ":1"), piece(0, "c3", None, "}")) == [
        call("c1", "a", '{"x":1}')
    ]


def test_an_id_that_comes_behind_the_name_is_the_calls() -> None:
    assert calls(piece(0, None, "a", ""), piece(0, "c", None, "{}")) == [call("c", "a")]


def test_an_index_that_comes_behind_the_name_is_the_only_calls() -> None:
    assert calls(piece("absent", "c", "a", ""), piece(0, None, None, "{}")) == [call("c", "a")]


def test_an_index_that_no_call_has_is_none_of_several() -> None:
    pieces = [piece(0, "c1", "a", "{"), piece(1, "c2", "b", "{"), piece(2, None, None, "}")]
    assert told([{"tool_calls": [one]} for one in pieces], "tool_calls").outcome.status == "failed"


def test_a_name_with_every_piece_and_nothing_else() -> None:
    [found] = calls(piece(None, None, "a", '{"x"'), piece(None, None, "a", ":1}"))
    assert (found["name"], found["arguments"]) == ("a", '{"x":1}')


def test_one_index_without_ids_for_two_calls() -> None:
    found = calls(piece(0, None, "a", "{}"), piece(0, None, "b", ""), piece(0, None, None, '{"y":1}'))
    assert [(one["name"], one["arguments"]) for one in found] == [("a", "{}"), ("b", '{"y":1}')]


def test_a_name_that_is_told_again_behind_the_arguments_begins_nothing() -> None:
    assert calls(piece(0, "c", "a", "{}"), piece(0, "c", "a", "")) == [call("c", "a")]


def test_arguments_that_are_an_object_are_its_text() -> None:
    one = piece(0, "c", "a", {"city": "Paris"})
    assert calls(one) == [call("c", "a", '{"city": "Paris"}')]
    assert whole({"content": None, "tool_calls": [one]}).items == [call("c", "a", '{"city": "Paris"}')]


def test_calls_without_ids_get_their_own() -> None:
    found = calls(piece(0, "", "a", "{}"), piece(1, "", "b", "{}"))
    ids = [one.pop("call_id") for one in found]
    assert len(set(ids)) == 2
    assert all(call_id.startswith("call_") for call_id in ids)
    assert [one["name"] for one in found] == ["a", "b"]


@pytest.mark.parametrize("sent", ["c" * 257, "c\n", "\ud800"])
def test_an_id_that_no_client_may_send_back_is_none(sent: str) -> None:
    [one] = calls(piece(0, sent, "a", "{}"))
    assert one["call_id"].startswith("call_")
    assert len(one["call_id"]) < 64


def test_one_id_for_two_calls_is_the_first_ones() -> None:
    first, second = calls(piece(0, "c", "a", "{}"), piece(1, "c", "b", "{}"))
    assert first["call_id"] == "c"
    assert second["call_id"] not in ("", "c")


def test_a_piece_that_may_be_any_calls_ends_the_turn() -> None:
    turn = told([{"tool_calls": [piece(0, "c1", "a", "{")]}, {"tool_calls": [piece(1, "c2", "b", "{")]},
                 {"tool_calls": [piece(None, None, None, "}")]}])  # fmt: skip
    assert turn.outcome.status == "failed"
    assert turn.body["error"]["message"] == "The model server sent a part of a tool call that belongs to none."


def test_a_name_in_pieces() -> None:
    assert calls(piece(0, "c", "get_", None), piece(0, None, "weather", None), piece(0, None, None, "{}")) == [
        call("c", "get_weather")
    ]


def test_a_call_without_arguments() -> None:
    assert calls(piece(0, "c", "a", "")) == [call("c", "a", "")]


def test_the_one_call_of_older_servers() -> None:
    turn = told(
        [{"function_call": {"name": "a", "arguments": "{"}}, {"function_call": {"arguments": "}"}}], "function_call"
    )
    assert [(item["name"], item["arguments"]) for item in turn.items] == [("a", "{}")]


def test_a_custom_tool_that_went_up_as_a_function_comes_back_as_itself() -> None:
    turn = told(
        [{"tool_calls": [piece(0, "c", "patch", '{"inp')]}, {"tool_calls": [piece(0, arguments='ut":"*a\\n"}')]}]
    )
    assert turn.items == [{"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "*a\n"}]
    deltas = [event["delta"] for event in turn.events if event["type"] == "response.custom_tool_call_input.delta"]
    assert deltas == ["*a\n"]


def test_a_custom_tools_call_as_such() -> None:
    native = {"index": 0, "id": "c", "type": "custom", "custom": {"name": "patch", "input": "*a"}}
    turn = told([{"tool_calls": [native]}, {"tool_calls": [{"index": 0, "custom": {"input": "b"}}]}])
    assert turn.items == [{"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "*ab"}]


def test_a_function_of_a_namespace_comes_back_in_it() -> None:
    assert calls(piece(0, "c", "crm__find", "{}")) == [call("c", "find", namespace="crm")]


def test_text_and_calls_of_a_whole_message() -> None:
    tool_calls = [piece("absent", "c1", "a", "{}"), piece("absent", "c2", "b", "{}")]
    turn = whole({"reasoning_content": "r", "content": "t", "tool_calls": tool_calls}, "tool_calls")
    assert turn.items == [thought("r"), message("t"), call("c1", "a"), call("c2", "b")]
    assert turn.fidelities[0] == {"reasoning_field": "reasoning_content"}


def test_each_call_of_a_whole_message_is_one_of_its_own_whatever_names_it() -> None:
    first, nameless, again = piece(0, "c1", "a", "{}"), piece(1, "c2", arguments='{"x":1}'), piece(0, "c3", "a", "{}")
    turn = whole({"content": None, "tool_calls": [first, nameless, again]}, "tool_calls")
    assert turn.items == [call("c1", "a"), call("c2", "", '{"x":1}'), call("c3", "a")]


def cut_up(data: st.DataObject, text: str) -> list[str]:
    """The text in pieces, some of them empty."""
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in itertools.pairwise([0, *places, len(text)])]


@given(st.data())
def test_a_stream_and_a_body_of_one_reply_are_equal(data: st.DataObject) -> None:
    field = data.draw(st.sampled_from(["reasoning", "reasoning_content"]))
    thinking, answer = data.draw(st.text(max_size=20)), data.draw(st.text(max_size=20))
    inputs = data.draw(st.lists(st.dictionaries(st.text(max_size=5), st.integers(), max_size=3), max_size=3))
    arguments = [json.dumps(value) for value in inputs]
    deltas: list[dict[str, Any]] = [{field: text} for text in cut_up(data, thinking)]
    deltas += [{"content": text} for text in cut_up(data, answer)]
    for number, text in enumerate(arguments):
        deltas.append({"tool_calls": [piece(number, f"c{number}", "a", "")]})
        deltas += [{"tool_calls": [piece(number, arguments=cut)]} for cut in cut_up(data, text)]
    body = {field: thinking, "content": answer}
    body |= {"tool_calls": [piece("absent", f"c{number}", "a", text) for number, text in enumerate(arguments)]}
    finish = data.draw(st.sampled_from(["stop", "tool_calls", "length", "content_filter"]))
    stream, reply = told(deltas, finish), whole(body, finish)
    assert (stream.items, stream.fidelities) == (reply.items, reply.fidelities)
    assert (stream.outcome.status, stream.body["usage"]) == (reply.outcome.status, reply.body["usage"])
    expected = [call(f"c{number}", "a", text) for number, text in enumerate(arguments)]
    assert [item | {"status": "completed"} for item in stream.items if item["type"] == "function_call"] == [
        item | {"status": "completed"} for item in expected
    ]


# --- ends


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_what_was_cut_is_incomplete(finish: str, reason: str) -> None:
    for turn in (told([{"content": "once upon"}], finish), whole({"content": "once upon"}, finish)):
        assert turn.items == [message("once upon", status="incomplete")]
        assert (turn.outcome.status, turn.body["incomplete_details"]) == ("incomplete", {"reason": reason})


def test_of_several_items_the_last_was_cut() -> None:
    pieces = [piece(0, "a", "a", "{}"), piece(1, "b", "b", "{")]
    turn = told([{"reasoning": "r"}, *({"tool_calls": [one]} for one in pieces)], "length")
    assert [item.get("status") for item in turn.items] == [None, None, "incomplete"]


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "function_call", "eos", "end_turn"])
def test_any_other_finish_is_an_end(finish: str) -> None:
    assert told([{"content": "a"}], finish).outcome.status == "completed"


def test_a_finish_without_done_is_an_end_and_done_without_a_finish_too() -> None:
    assert told([{"content": "a"}], done=False).outcome.status == "completed"
    assert told([{"content": "a"}], None).outcome.status == "completed"


def test_a_stream_that_stops_is_no_end() -> None:
    turn = told([{"content": "a"}], None, done=False)
    assert (turn.outcome.status, turn.items) == ("failed", [message("a", status="incomplete")])


def test_nothing_but_done_is_no_end() -> None:
    assert streamed([b"data: [DONE]\n\n"]).outcome.status == "failed"


def test_an_error_in_the_stream_ends_it_as_failed() -> None:
    error = b'data: {"error":{"message":"engine died","type":"InternalServerError","code":500}}\n\ndata: [DONE]\n\n'
    turn = streamed([b'data: {"choices":[{"index":0,"delta":{"content":"par"}}]}\n\n', error])
    assert (turn.outcome.status, turn.body["error"]) == (
        "failed",
        {"code": "server_error", "message": "engine died"},
    )
    assert turn.items == [message("par", status="incomplete")]


@pytest.mark.parametrize("error", [None, False, "", {}])
def test_an_error_that_is_none_ends_nothing(error: Any) -> None:
    chunk = {"error": error, "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}
    turn = streamed([f"data: {json.dumps(chunk)}\n\n".encode()])
    assert (turn.outcome.status, turn.items) == ("completed", [message("a")])


def test_a_finish_for_an_error_is_a_failure() -> None:
    turn = told([{"content": "a"}], "error")
    assert (turn.outcome.status, turn.body["error"]["code"]) == ("failed", "server_error")


PARTIAL = b'data: {"choices":[{"index":0,"delta":{"content":"par"}}],"usage":{"prompt_tokens":7}}\n\n'


def test_an_error_by_its_events_name_ends_it_as_failed() -> None:
    turn = streamed([PARTIAL, b'event: error\ndata: {"message":"engine died","code":500}\n\n'])
    assert (turn.outcome.status, turn.body["error"]["message"]) == ("failed", "engine died")


def test_what_is_no_json_ends_the_turn() -> None:
    turn = streamed([PARTIAL, b"data: {nope\n\n"])
    assert turn.body["error"]["message"] == "The model server sent an event that is not JSON."
    assert turn.items == [message("par", status="incomplete")]
    assert turn.body["usage"]["input_tokens"] == 7


@pytest.mark.parametrize("is_one_chunk", [True, False])
def test_an_event_that_is_too_large_ends_the_turn_with_what_came_before(is_one_chunk: bool) -> None:
    chunks = [PARTIAL, b"data: " + b"x" * MEGABYTE + b"\n\n"]
    turn = streamed([b"".join(chunks)] if is_one_chunk else chunks)
    assert turn.body["error"]["message"] == "The model server sent an event that is too large."
    assert turn.items == [message("par", status="incomplete")]
    assert turn.body["usage"]["input_tokens"] == 7


def test_usage_in_every_chunk_is_the_last_ones() -> None:
    usage = b'"usage":{"prompt_tokens":1,"completion_tokens":%d}'
    chunk = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}],' + usage + b"}\n\n"
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    found = streamed([chunk % 1, chunk % 2, end]).body["usage"]
    assert (found["input_tokens"], found["output_tokens"], found["total_tokens"]) == (1, 2, 3)


def test_usage_that_is_no_count_is_left_out() -> None:
    odd = raw.Object(b'{"prompt_tokens":-1,"completion_tokens":2.5,"total_tokens":"x","prompt_tokens_details":[]}')
    assert response_usage(odd) == b"{}"


def test_only_the_first_choice_is_read() -> None:
    chunk = {"choices": [{"index": 1, "delta": {"content": "no"}}, {"index": 0, "delta": {"content": "yes"}}]}
    end = {"choices": [{"index": 0, "finish_reason": "stop", "delta": {}}]}
    assert streamed([f"data: {json.dumps(one)}\n\n".encode() for one in (chunk, end)]).items == [message("yes")]


@pytest.mark.parametrize("body", [b"{}", b'{"choices":[]}', b'{"error":{"message":"x"}}', b"[]", b"<html>"])
def test_a_body_that_is_no_completion_is_refused(body: bytes) -> None:
    with pytest.raises(raw.Malformed):
        reader(STRICT_CHAT).whole(body)


@pytest.mark.parametrize("capture", RECORDED_STREAMS, ids=lambda capture: capture.name)
def test_a_recorded_stream_that_is_cut_behind_any_chunk_has_what_came(capture: Capture) -> None:
    """Whatever it had said by then is kept, the last of it as incomplete; behind a reason to finish it has ended."""
    frames = [frame + b"\n\n" for frame in capture.received.split(b"\n\n")[:-1]]
    expected = "".join(map(said_in, streamed(frames).outcome.items))
    for count in range(1, len(frames)):
        turn = streamed(frames[:count])
        has_finished = any(b'"finish_reason":"' in frame for frame in frames[:count])
        assert turn.outcome.status == ("completed" if has_finished else "failed")
        assert expected.startswith("".join(map(said_in, turn.outcome.items)))
        statuses = [json.loads(item.body)["status"] for item in turn.outcome.items]
        assert statuses[:-1] == ["completed"] * len(statuses[:-1])
        assert statuses[-1:] == ([] if not statuses else ["completed" if has_finished else "incomplete"])


def said_in(item: Item) -> str:
    body = json.loads(item.body)
    return body["arguments"] if "arguments" in body else text_of(body)
