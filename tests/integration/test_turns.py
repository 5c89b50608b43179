"""A turn and its continuations over HTTP: what the upstream receives of what was said, in both modes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from server.mock import Reply
from tests.application import (
    Application,
    both_modes,
    function_call,
    message,
    reasoning,
    reply,
    running,
    stored_rows,
)
from tests.harness import Capture, captures

ASKED = {"type": "message", "role": "user", "content": "Weather?"}
CALL = function_call("get_weather", '{"city":"Paris"}')
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}

# Names of our storage and of what our code makes of an item: none of them may be seen by an upstream.
OURS = {
    "public_id", "fidelity", "issuer", "is_output", "tenant_id", "response_id", "position", "body", "parent_id",
    "root_id", "depth", "upstream", "rule", "action", "copy",
}  # fmt: skip


@both_modes
async def test_second_request_holds_the_history_in_order(application: Application, stream: bool) -> None:
    application.mock.replies = [reply(reasoning("I must look."), message("One moment."), CALL, stream=stream)]
    first = await application.turn(input="Weather?", stream=stream)
    asked_again = {"role": "user", "content": [{"type": "input_text", "text": "And tomorrow?"}]}
    second = await application.turn(input=[OUTPUT, asked_again], previous_response_id=first["id"], stream=stream)

    assert application.sent()["input"] == [
        {"type": "message", "role": "user", "content": "Weather?"},
        {
            "type": "reasoning",
            "id": "rs_up",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "I must look."}],
        },
        {
            "type": "message",
            "id": "msg_up",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "One moment.", "annotations": []}],
        },
        {
            "type": "function_call",
            "id": "fc_up",
            "call_id": "call_1",
            "name": "get_weather",
            "arguments": '{"city":"Paris"}',
        },
        {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And tomorrow?"}]},
    ]
    others = {name: value for name, value in application.sent().items() if name != "input"}
    assert others == {"model": "m", "request_id": second["id"], "store": False, "stream": stream}
    assert second["previous_response_id"] == first["id"]


@both_modes
async def test_each_request_begins_with_the_bytes_of_the_one_before(application: Application, stream: bool) -> None:
    """So that the upstream's prefix cache keeps hitting, whatever an output or an answer made of the items before."""
    application.mock.replies = [
        reply(reasoning("a", "b"), message("\n\n"), function_call("f", '{"x"'), stream=stream),
        reply(reasoning(), message("Done.", phase="final_answer"), stream=stream),
    ]
    response_id = None
    for asked in ([{"role": "user", "content": "One"}], [OUTPUT], [{"role": "user", "content": "Three"}]):
        turn = await application.turn(input=asked, previous_response_id=response_id, stream=stream)
        response_id = turn["id"]
    second, third = (_input_text(post.body) for post in application.mock.posts[1:])
    assert len(second) > 100
    assert third.startswith(second.removesuffix(b"]") + b",")


def _input_text(body: bytes) -> bytes:
    text = body[body.index(b'"input":[') + len(b'"input":') :]
    _, end = json.JSONDecoder().raw_decode(text.decode("latin-1"))
    return text[:end]


# --- reasoning, as an upstream made it

SEALED = "gAAAA-sealed-by-a-provider"
REASONING: dict[str, tuple[dict[str, Any], list[dict[str, Any]] | None]] = {
    "plaintext, no encrypted state": (reasoning("I think."), [{"type": "reasoning_text", "text": "I think."}]),
    "plaintext, empty encrypted state": (
        reasoning("I think.", encrypted_content=""),
        [{"type": "reasoning_text", "text": "I think."}],
    ),
    "plaintext and encrypted state": (
        reasoning("I think.", encrypted_content=SEALED),
        [{"type": "reasoning_text", "text": "I think."}],
    ),
    "two parts": (reasoning("I think.", "Therefore."), [{"type": "reasoning_text", "text": "I think.\nTherefore."}]),
    "plaintext and summary": (
        reasoning("I think.", summary=[{"type": "summary_text", "text": "In short."}]),
        [{"type": "reasoning_text", "text": "I think."}],
    ),
    "summary alone": (reasoning(summary=[{"type": "summary_text", "text": "In short."}]), None),
    "summary alone, content null": (
        reasoning(summary=[{"type": "summary_text", "text": "In short."}], content=None),
        None,
    ),
    "nothing": (reasoning(), None),
    "all members, and a provider's own": (
        {
            "id": "rs_up",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "In short."}],
            "content": [{"type": "reasoning_text", "text": "I think.", "signature": "s"}],
            "encrypted_content": SEALED,
            "status": "completed",
            "format": "provider-v1",
        },
        [{"type": "reasoning_text", "text": "I think."}],
    ),
}


@both_modes
@pytest.mark.parametrize(("made", "content"), REASONING.values(), ids=REASONING)
async def test_reasoning_is_kept_as_it_came_and_sent_as_it_can_be_read(
    application: Application, stream: bool, made: dict[str, Any], content: list[dict[str, Any]] | None
) -> None:
    application.mock.replies = [reply(made, message("Hi."), stream=stream), reply(message("Yes."), stream=stream)]
    first = await application.turn(input="One", stream=stream)
    second = await application.turn(input="Two", previous_response_id=first["id"], stream=stream)
    third = await application.turn(input="Three", previous_response_id=second["id"], stream=stream)

    for request in (application.sent(1), application.sent(2)):
        sent = [item for item in request["input"] if item["type"] == "reasoning"]
        expected = {"type": "reasoning", "id": "rs_up", "summary": [], "content": content}
        assert sent == ([expected] if content is not None else [])
        assert SEALED not in json.dumps(request)
    assert first["output"][0] == made
    assert (await application.http.get(f"/v1/responses/{first['id']}")).json()["output"][0] == made
    for response_id in (second["id"], third["id"]):
        assert (await application.listed(response_id))[1] == made


@both_modes
async def test_reasoning_that_only_its_maker_can_read_is_refused(
    application: Application, emptied_database_url: str, stream: bool
) -> None:
    sealed = reasoning(encrypted_content=SEALED, id="rs_sealed")
    application.mock.replies = [reply(sealed, message("Hi."), stream=stream)]
    first = await application.turn(input="One", stream=stream)
    stored = await stored_rows(emptied_database_url)

    answer = await application.post(
        {"model": "m", "input": "Two", "previous_response_id": first["id"], "stream": stream}
    )

    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "previous_response_id")
    assert error["code"] == "encrypted_reasoning_not_supported"
    assert "rs_sealed" in error["message"]
    assert "omit" in error["message"]
    assert len(application.mock.posts) == 1
    assert await stored_rows(emptied_database_url) == stored
    assert (await application.http.get(f"/v1/responses/{first['id']}")).json()["output"][0] == sealed


@both_modes
async def test_sealed_reasoning_in_the_input_is_refused_by_its_place(
    application: Application, emptied_database_url: str, stream: bool
) -> None:
    asked = {"role": "user", "content": "One"}
    sealed = {"id": "rs_sealed", "type": "reasoning", "summary": [], "encrypted_content": SEALED}
    answer = await application.post({"model": "m", "input": [asked, sealed, asked], "stream": stream})
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("encrypted_reasoning_not_supported", "input[1]")
    assert "rs_sealed" in error["message"]
    assert application.mock.received == []
    assert await stored_rows(emptied_database_url) == {}


@both_modes
async def test_sealed_reasoning_is_left_out_where_the_operator_says_so(emptied_database_url: str, stream: bool) -> None:
    sealed = reasoning(encrypted_content=SEALED)
    replies = [reply(sealed, message("Hi."), stream=stream)]
    async with running(emptied_database_url, replies, encrypted_only="omit") as application:
        first = await application.turn(input="One", stream=stream)
        second = await application.turn(input="Two", previous_response_id=first["id"], stream=stream)
        assert [item["type"] for item in application.sent()["input"]] == ["message", "message", "message"]
        assert (await application.listed(second["id"]))[1] == sealed


@both_modes
async def test_an_upstream_sees_nothing_of_our_storage(application: Application, stream: bool) -> None:
    application.mock.replies = [
        reply(reasoning("a", encrypted_content=SEALED), message("b"), CALL, stream=stream),
        reply(message("c"), stream=stream),
    ]
    first = await application.turn(input="One", stream=stream)
    second = await application.turn(input=[OUTPUT], previous_response_id=first["id"], stream=stream)
    await application.turn(input="Three", previous_response_id=second["id"], stream=stream)
    for post in application.mock.posts:
        assert set(_names(post.json)) & OURS == set()
        assert b"rejoinder" not in post.body.lower()


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _names(inner)


# --- a streamed turn and a plain one are the same history


async def test_histories_of_both_modes_are_equal(application: Application) -> None:
    output = [reasoning("Hm.", encrypted_content=SEALED), message("Hi."), CALL]
    application.mock.replies = [reply(*output, stream=True), reply(*output, stream=False), reply(stream=False)]
    streamed = await application.turn(input="One", stream=True)
    plain = await application.turn(input="One")
    for first in (streamed, plain):
        await application.turn(input=[OUTPUT], previous_response_id=first["id"])
    assert application.sent(2)["input"] == application.sent(3)["input"]
    assert _without_minted(await application.listed(streamed["id"])) == _without_minted(
        await application.listed(plain["id"])
    )
    assert streamed["output"] == plain["output"]


@pytest.mark.parametrize("version", ["0.32", "0.33"])
@pytest.mark.parametrize("number", ["12", "13"])
async def test_histories_of_both_modes_are_equal_as_vllm_makes_them(
    application: Application, version: str, number: str
) -> None:
    """Streamed, vLLM adds a message of white space before a call (vllm.md 0.6), which is stored and not sent."""
    plain, streamed = [capture for capture in captures(version) if capture.name.startswith(f"{number}-")]
    done = reply(message("Done."), stream=False)
    application.mock.replies = [_recorded(plain), done, _recorded(streamed), done]
    sent = []
    for capture in (plain, streamed):
        first = await application.turn(**json.loads(capture.request or "") | {"store": True})
        calls = [item for item in first["output"] if item["type"] == "function_call"]
        outputs = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": call["name"]} for call in calls
        ]
        await application.turn(input=outputs, previous_response_id=first["id"])
        sent.append(_without_minted(application.sent()["input"]))
    assert sent[0] == sent[1]
    expected = {"12": ["reasoning", "function_call"], "13": ["reasoning", "message", "function_call", "function_call"]}
    made = [item["type"] for item in sent[0][1 : 1 + len(expected[number])]]
    assert made == expected[number]


def _recorded(capture: Capture) -> Reply:
    content_type = "text/event-stream; charset=utf-8" if capture.is_stream else "application/json"
    return Reply(sse_chunks_b64=[capture.received], headers={"content-type": content_type})


def _without_minted(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items with each id replaced by the number of its first place, since ids are minted anew in each run."""
    numbers: dict[str, str] = {}
    return [
        {
            name: numbers.setdefault(value, f"id {len(numbers)}") if name in ("id", "call_id") else value
            for name, value in item.items()
        }
        for item in items
    ]


# --- chains


@both_modes
async def test_a_response_may_be_continued_twice(application: Application, stream: bool) -> None:
    application.mock.replies = [reply(message(f"Answer {n}."), stream=stream) for n in range(5)]
    root = await application.turn(input="Root", stream=stream)
    left = await application.turn(input="Left", previous_response_id=root["id"], stream=stream)
    right = await application.turn(input="Right", previous_response_id=root["id"], stream=stream)
    await application.turn(input="Left again", previous_response_id=left["id"], stream=stream)
    assert _said(application.sent()) == ["Root", "Answer 0.", "Left", "Answer 1.", "Left again"]
    await application.turn(input="Right again", previous_response_id=right["id"], stream=stream)
    assert _said(application.sent()) == ["Root", "Answer 0.", "Right", "Answer 2.", "Right again"]


@both_modes
async def test_a_chain_goes_through_several_models_and_inherits_nothing(application: Application, stream: bool) -> None:
    application.mock.replies = [reply(message("Hi."), stream=stream)]
    first = await application.turn(
        model="large",
        input="One",
        instructions="Be brief.",
        tools=[{"type": "function", "name": "f", "parameters": {}, "strict": False}],
        tool_choice="required",
        text={"format": {"type": "json_object"}, "verbosity": "low"},
        reasoning={"effort": "low"},
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=100,
        metadata={"k": "v"},
        top_k=3,
        stream=stream,
    )
    second = await application.turn(model="small", input="Two", previous_response_id=first["id"], stream=stream)
    assert set(application.sent()) == {"model", "input", "request_id", "store", "stream"}
    assert (application.sent(0)["model"], application.sent(1)["model"]) == ("large", "small")
    assert _said(application.sent()) == ["One", "Hi.", "Two"]
    assert (first["model"], second["model"]) == ("large", "small")
    inherited = ("instructions", "tools", "tool_choice", "text", "reasoning", "temperature", "top_p", "metadata")
    assert [second[name] for name in inherited] == [
        None, [], "auto", {"format": {"type": "text"}}, None, 1.0, 1.0, {},
    ]  # fmt: skip
    assert "top_k" in first
    assert "top_k" not in second


@both_modes
async def test_ids_that_an_upstream_reuses_in_every_turn(application: Application, stream: bool) -> None:
    application.mock.replies = [reply(reasoning("Hm."), message("a"), CALL, stream=stream)]
    response_id, seen = None, []
    for asked in ("One", [OUTPUT], [OUTPUT]):
        turn = await application.turn(input=asked, previous_response_id=response_id, stream=stream)
        response_id = turn["id"]
        seen += [item["id"] for item in turn["output"]]
    assert len(set(seen)) == 9
    assert seen[:3] == ["rs_up", "msg_up", "fc_up"]
    listed = [item["id"] for item in await application.listed(turn["id"])]
    assert len(set(listed)) == len(listed) == 9
    sent = [item["id"] for item in application.sent()["input"] if item.get("id")]
    assert sent == seen[:6]


@both_modes
async def test_a_failed_turn_is_kept_but_adds_nothing_to_the_history(application: Application, stream: bool) -> None:
    error = {"code": "server_error", "message": "The GPU is gone."}
    application.mock.replies = [
        reply(CALL, stream=stream),
        reply(message("Half a"), stream=stream, status="failed", error=error),
        reply(message("Hi."), stream=stream),
    ]
    first = await application.turn(input="One", stream=stream)
    failed = await application.turn(input=[OUTPUT], previous_response_id=first["id"], stream=stream)
    assert (failed["status"], failed["error"]) == ("failed", error)

    # The output that the failed turn brought is not in the history, so that it must be sent again.
    refused = await application.post({"model": "m", "input": "Well?", "previous_response_id": failed["id"]})
    assert refused.status_code == 400
    assert "call_1" in refused.json()["error"]["message"]
    await application.turn(input=[OUTPUT], previous_response_id=failed["id"], stream=stream)
    assert [item["type"] for item in application.sent()["input"]] == [
        "message",
        "function_call",
        "function_call_output",
    ]
    assert (await application.http.get(f"/v1/responses/{failed['id']}")).json() == failed
    assert [item["type"] for item in await application.listed(failed["id"])] == [
        "message",
        "function_call",
        "function_call_output",
    ]


@both_modes
async def test_an_incomplete_turn_counts(application: Application, stream: bool) -> None:
    details = {"reason": "max_output_tokens"}
    application.mock.replies = [
        reply(message("Half a", status="incomplete"), stream=stream, status="incomplete", incomplete_details=details),
        reply(message("sentence."), stream=stream),
    ]
    first = await application.turn(input="One", stream=stream)
    assert (first["status"], first["incomplete_details"], first["completed_at"]) == ("incomplete", details, None)
    await application.turn(input="Go on", previous_response_id=first["id"], stream=stream)
    assert _said(application.sent()) == ["One", "Half a", "Go on"]
    assert "status" not in application.sent()["input"][1]


async def test_a_deleted_response_stays_in_the_history_of_its_descendants(application: Application) -> None:
    application.mock.replies = [reply(message("Hi."), stream=False)]
    first = await application.turn(input="One")
    second = await application.turn(input="Two", previous_response_id=first["id"])
    deleted = await application.http.delete(f"/v1/responses/{first['id']}")
    assert deleted.json() == {"id": first["id"], "object": "response", "deleted": True}

    await application.turn(input="Three", previous_response_id=second["id"])
    assert _said(application.sent()) == ["One", "Hi.", "Two", "Hi.", "Three"]
    refused = await application.post({"model": "m", "input": "x", "previous_response_id": first["id"]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "previous_response_not_found")
    for path in ("", "/input_items"):
        assert (await application.http.get(f"/v1/responses/{first['id']}{path}")).status_code == 404
    assert (await application.http.delete(f"/v1/responses/{first['id']}")).status_code == 404
    assert len(application.mock.posts) == 3


@both_modes
async def test_an_unstored_turn_may_use_a_stored_history_and_leaves_nothing(
    application: Application, emptied_database_url: str, stream: bool
) -> None:
    application.mock.replies = [reply(message("Hi."), stream=stream)]
    first = await application.turn(input="One", stream=stream)
    stored = await stored_rows(emptied_database_url)
    second = await application.turn(input="Two", previous_response_id=first["id"], store=False, stream=stream)
    assert second["store"] is False
    assert _said(application.sent()) == ["One", "Hi.", "Two"]
    assert await stored_rows(emptied_database_url) == stored
    assert (await application.http.get(f"/v1/responses/{second['id']}")).status_code == 404
    assert (await application.http.get(f"/v1/responses/{second['id']}/input_items")).status_code == 404
    refused = await application.post({"model": "m", "input": "Three", "previous_response_id": second["id"]})
    assert refused.json()["error"]["code"] == "previous_response_not_found"


async def test_a_first_turn_that_is_not_stored_leaves_every_table_empty(
    application: Application, emptied_database_url: str
) -> None:
    for stream in (False, True):
        await application.turn(input="One", store=False, stream=stream)
    assert await stored_rows(emptied_database_url) == {}


def _said(request: dict[str, Any]) -> list[str]:
    """The texts of a request's messages, in order."""
    contents = [item["content"] for item in request["input"]]
    return [content if isinstance(content, str) else content[0]["text"] for content in contents]


# --- whole contexts

CALL_OF_CLIENT = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
BROKEN: dict[str, tuple[list[dict[str, Any]], str]] = {
    "an output without a call": ([OUTPUT], "No tool call found for function call output with call_id call_1."),
    "an output before its call": (
        [OUTPUT, CALL_OF_CLIENT],
        "No tool call found for function call output with call_id call_1.",
    ),
    "an output of another family": (
        [CALL_OF_CLIENT, {"type": "custom_tool_call_output", "call_id": "call_1", "output": "x"}],
        "No tool call found for function call output with call_id call_1.",
    ),
    "two outputs of one call": (
        [CALL_OF_CLIENT, OUTPUT, OUTPUT],
        "No tool call found for function call output with call_id call_1.",
    ),
    "a call without an output": (
        [CALL_OF_CLIENT, {"role": "user", "content": "Well?"}],
        "No tool output found for function call call_1.",
    ),
}


@both_modes
@pytest.mark.parametrize(("asked", "text"), BROKEN.values(), ids=BROKEN)
async def test_a_broken_context_is_refused_by_the_call_it_breaks_at(
    application: Application, emptied_database_url: str, stream: bool, asked: list[dict[str, Any]], text: str
) -> None:
    answer = await application.post({"model": "m", "input": asked, "stream": stream})
    assert answer.status_code == 400
    assert answer.json()["error"] == {"message": text, "type": "invalid_request_error", "param": "input", "code": None}
    assert application.mock.received == []
    assert await stored_rows(emptied_database_url) == {}


@both_modes
async def test_a_call_of_the_history_must_be_answered_before_more_is_said(
    application: Application, stream: bool
) -> None:
    application.mock.replies = [reply(CALL, function_call("f", call_id="call_2", id="fc_2"), stream=stream)]
    first = await application.turn(input="One", stream=stream)
    refused = await application.post({"model": "m", "input": [OUTPUT], "previous_response_id": first["id"]})
    assert refused.json()["error"]["message"] == "No tool output found for function call call_2."
    second_output = OUTPUT | {"call_id": "call_2"}
    await application.turn(input=[second_output, OUTPUT], previous_response_id=first["id"], stream=stream)
    assert [item.get("call_id") for item in application.sent()["input"]] == [
        None, "call_1", "call_2", "call_2", "call_1",
    ]  # fmt: skip


async def test_a_call_that_was_cut_need_not_be_answered(application: Application) -> None:
    cut = function_call("f", '{"city": "Par', status="incomplete")
    details = {"reason": "max_output_tokens"}
    application.mock.replies = [
        reply(message("Hm."), cut, stream=False, status="incomplete", incomplete_details=details),
        reply(message("Hi."), stream=False),
    ]
    first = await application.turn(input="One")
    await application.turn(input="Go on", previous_response_id=first["id"])
    assert _said(application.sent()) == ["One", "Hm.", "Go on"]
    await application.turn(input=[OUTPUT], previous_response_id=first["id"])
    assert application.sent()["input"][2:] == [
        {"type": "function_call", "id": "fc_up", "call_id": "call_1", "name": "f", "arguments": "{}"},
        OUTPUT,
    ]


async def test_an_id_that_the_history_has_may_not_come_again(application: Application) -> None:
    application.mock.replies = [reply(message("Hi.", id="msg_twice"), stream=False)]
    first = await application.turn(input="One")
    again = {"type": "message", "id": "msg_twice", "role": "user", "content": "x"}
    for members in ({"input": [again], "previous_response_id": first["id"]}, {"input": [again, again]}):
        answer = await application.post({"model": "m", **members})
        assert answer.status_code == 400
        assert "msg_twice" in answer.json()["error"]["message"]
    assert len(application.mock.posts) == 1
    await application.turn(input=[again])


async def test_a_history_alone_may_be_continued(application: Application) -> None:
    """An empty input is allowed where there is a history, and only there (api.md 2)."""
    application.mock.replies = [reply(message("Hi."), stream=False)]
    first = await application.turn(input="One")
    for empty in ("", []):
        await application.turn(input=empty, previous_response_id=first["id"])
        assert _said(application.sent()) == ["One", "Hi."]
        refused = await application.post({"model": "m", "input": empty})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")


@both_modes
@pytest.mark.parametrize("transport", ["lean", "aiohttp"])
async def test_either_transport_carries_a_chain_and_tells_what_it_cannot_reach(
    emptied_database_url: str, transport: str, stream: bool
) -> None:
    replies = [reply(message("Hi."), stream=stream)] * 2
    async with running(emptied_database_url, replies, upstream_transport=transport) as application:
        first = await application.turn(input="One", stream=stream)
        second = await application.turn(input="Two", previous_response_id=first["id"], stream=stream)
        assert second["status"] == "completed"
        assert [item["content"] for item in application.sent()["input"][::2]] == ["One", "Two"]
    async with running(
        emptied_database_url, upstream="http://127.0.0.1:1/v1", upstream_transport=transport, retries_max=0
    ) as application:
        refused = await application.post({"model": "m", "input": "x", "stream": stream})
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "server_error")
