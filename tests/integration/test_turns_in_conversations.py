"""Turns in a conversation over HTTP: what goes up, what is appended, and that one turn at a time has it."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from server.mock import Mock, Reply
from tests.application import (
    Application,
    both_modes,
    events_of,
    function_call,
    message,
    reasoning,
    reply,
    running,
    stored_rows,
)
from tests.harness import until
from tests.postgres import connected, recorded_statements, until_true

LOCKED = (400, "conversation", "conversation_locked")
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
LONG_MS = 20_000


def user(text: str) -> dict[str, Any]:
    """A user's message, as it is sent and as the upstream gets it."""
    return {"type": "message", "role": "user", "content": text}


def assistant(text: str, item_id: str = "msg_up") -> dict[str, Any]:
    """What the upstream gets of its own message."""
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": item_id, "role": "assistant", "content": [part]}


def error_of(answer: httpx.Response) -> tuple[int, Any, Any]:
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["code"]


def texts(items: list[dict[str, Any]]) -> list[str]:
    """The text of each message; of any other item its type."""
    return [item["content"][0]["text"] if item["type"] == "message" else item["type"] for item in items]


async def ask(application: Application, conversation_id: str, given: Any = "q", **members: Any) -> httpx.Response:
    return await application.post({"model": "m", "input": given, "conversation": conversation_id, **members})


# --- history and what is appended


@both_modes
async def test_a_conversation_is_the_history_and_gets_each_turn_once(application: Application, stream: bool) -> None:
    application.mock.replies = [
        reply(reasoning("I must look."), message("One moment."), function_call("f", '{"city":"Paris"}'), stream=stream),
        reply(message("Sunny.", id="msg_2"), stream=stream),
        reply(message("Rain.", id="msg_3"), stream=stream),
    ]
    conversation_id = await application.converse({"role": "developer", "content": "Be brief."}, user("Hello."))
    first = await application.turn(input="Weather?", conversation=conversation_id, stream=stream)
    await application.turn(input=[OUTPUT], conversation={"id": conversation_id}, stream=stream)
    await application.turn(input=[user("And tomorrow?")], conversation=conversation_id, stream=stream)
    thought = {"type": "reasoning", "id": "rs_up", "summary": []}
    asked = [
        {"type": "message", "role": "developer", "content": "Be brief."},
        user("Hello."),
        user("Weather?"),
        thought | {"content": [{"type": "reasoning_text", "text": "I must look."}]},
        assistant("One moment."),
        {"type": "function_call", "id": "fc_up", "call_id": "call_1", "name": "f", "arguments": '{"city":"Paris"}'},
        OUTPUT,
        assistant("Sunny.", "msg_2"),
        user("And tomorrow?"),
    ]
    assert [application.sent(number)["input"] for number in range(3)] == [asked[:3], asked[:7], asked]
    assert all("conversation" not in application.sent(number) for number in range(3))
    listed = await application.conversed(conversation_id)
    assert texts(listed) == [
        "Be brief.", "Hello.", "Weather?", "reasoning", "One moment.", "function_call", "function_call_output",
        "Sunny.", "And tomorrow?", "Rain.",
    ]  # fmt: skip
    assert listed[3:6] == first["output"]
    assert len({item["id"] for item in listed}) == 10


@both_modes
async def test_each_request_begins_with_the_bytes_of_the_one_before(application: Application, stream: bool) -> None:
    application.mock.replies = [
        reply(reasoning("a", "b"), message("\n\n"), function_call("f", '{"x"'), stream=stream),
        reply(reasoning(), message("Done.", phase="final_answer"), stream=stream),
    ]
    conversation_id = await application.converse({"role": "assistant", "content": "Hi."}, user("Hello."))
    for asked in ([user("One")], [OUTPUT], [user("Three")]):
        await application.turn(input=asked, conversation=conversation_id, stream=stream)
    sent = [post.body[post.body.index(b'"input":[') : post.body.rindex(b"]")] for post in application.mock.posts]
    for before, after in itertools.pairwise(sent):
        assert len(before) > 100
        assert after.startswith(before + b",")


@pytest.mark.parametrize("form", ["text", "object", "object with more"])
async def test_every_response_object_names_its_conversation(application: Application, form: str) -> None:
    application.mock.replies = [reply(message("Hi."), stream=True), reply(message("Hi.", id="msg_2"), stream=False)]
    conversation_id = await application.converse()
    forms: dict[str, Any] = {
        "text": conversation_id,
        "object": {"id": conversation_id},
        "object with more": {"metadata": {}, "id": conversation_id, "x": None},
    }
    named = forms[form]
    answer = await application.post({"model": "m", "input": "a", "conversation": named, "stream": True})
    shown = [event["response"] for event in events_of(answer.content) if "response" in event]
    assert len(shown) == 3
    whole = await application.turn(input="a", conversation=named)
    stored = [(await application.http.get(f"/v1/responses/{one['id']}")).json() for one in (shown[-1], whole)]
    assert stored == [shown[-1], whole]
    for response in (*shown, whole, *stored):
        assert response["conversation"] == {"id": conversation_id}
        assert response["previous_response_id"] is None


@pytest.mark.parametrize("nothing", [None, ""])
async def test_no_conversation_is_none(application: Application, emptied_database_url: str, nothing: Any) -> None:
    first = await application.turn(input="a", conversation=nothing)
    second = await application.turn(input="b", conversation=nothing, previous_response_id=first["id"])
    assert (first["conversation"], second["conversation"]) == (None, None)
    assert "conversations" not in await stored_rows(emptied_database_url)


@pytest.mark.parametrize(
    ("named", "status", "param"),
    [
        ({}, 400, "conversation.id"),
        ({"id": None}, 400, "conversation.id"),
        ({"id": ""}, 400, "conversation.id"),
        ({"id": 5}, 400, "conversation.id"),
        (5, 400, "conversation"),
        ([], 400, "conversation"),
        ("a\x00", 400, "conversation"),
        ("\ud83d", 400, "conversation"),
        ("c" * 257, 400, "conversation"),
        ("c" * 256, 404, None),
        ("conv_unknown", 404, None),
        ({"id": "conv_unknown"}, 404, None),
        ("'; drop table conversations; --", 404, None),
    ],
)
@both_modes
async def test_a_conversation_that_is_none_costs_nothing(
    application: Application, emptied_database_url: str, named: Any, status: int, param: str | None, stream: bool
) -> None:
    answer = await application.post({"model": "m", "input": "a", "conversation": named, "stream": stream})
    assert error_of(answer)[:2] == (status, param)
    if status == 404:
        name = named["id"] if isinstance(named, dict) else named
        assert answer.json()["error"]["message"] == f"Conversation with id '{name}' not found."
    assert application.mock.posts == []
    assert await stored_rows(emptied_database_url) == {}


async def test_a_deleted_conversation_is_unknown_to_turns(application: Application) -> None:
    conversation_id = await application.converse(user("a"))
    await application.http.delete(f"/v1/conversations/{conversation_id}")
    assert error_of(await ask(application, conversation_id)) == (404, None, None)
    assert error_of(await ask(application, conversation_id, store=False)) == (404, None, None)
    assert application.mock.posts == []


async def test_an_incomplete_turn_is_appended(application: Application) -> None:
    members = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    application.mock.replies = [reply(message("cu", status="incomplete"), stream=False, **members)]
    conversation_id = await application.converse()
    turn = await application.turn(input="a", conversation=conversation_id)
    assert turn["status"] == "incomplete"
    assert (await application.conversed(conversation_id))[1] == turn["output"][0]


@both_modes
async def test_an_unstored_turn_reads_without_the_lock_and_leaves_nothing(
    application: Application, emptied_database_url: str, stream: bool
) -> None:
    application.mock.replies = [reply(message("b"), stream=stream)]
    conversation_id = await application.converse(user("a"))
    before = await stored_rows(emptied_database_url)
    for _ in range(2):
        turn = await application.turn(input="q", conversation=conversation_id, store=False, stream=stream)
        assert application.sent()["input"] == [user("a"), user("q")]
        assert (turn["conversation"], turn["store"]) == ({"id": conversation_id}, False)
        assert await stored_rows(emptied_database_url) == before
    with application.upstream_held():
        locking = asyncio.create_task(ask(application, conversation_id, "locking", stream=stream))
        await until(lambda: len(application.mock.posts) == 3)
        unlocked = asyncio.create_task(ask(application, conversation_id, "reading", store=False, stream=stream))
        await until(lambda: len(application.mock.posts) == 4)
        assert application.sent()["input"] == [user("a"), user("reading")]
    assert ((await locking).status_code, (await unlocked).status_code) == (200, 200)
    assert texts(await application.conversed(conversation_id)) == ["a", "locking", "b"]


# --- chains and edits


@both_modes
async def test_a_chain_goes_on_from_what_a_response_saw_of_its_conversation(
    application: Application, stream: bool
) -> None:
    application.mock.replies = [
        reply(message(f"a{number}", id=f"msg_{number}"), stream=stream) for number in range(1, 6)
    ]
    conversation_id = await application.converse({**user("zero"), "id": "msg_zero"})
    first = await application.turn(input="q1", conversation=conversation_id, stream=stream)
    second = await application.turn(input="q2", conversation=conversation_id, stream=stream)
    await application.http.delete(f"/v1/conversations/{conversation_id}/items/msg_zero")
    fork = await application.turn(input="q3", previous_response_id=first["id"], stream=stream)
    seen = [{**user("zero"), "id": "msg_zero"}, user("q1"), assistant("a1", "msg_1")]
    assert application.sent()["input"] == [*seen, user("q3")]
    assert (fork["conversation"], fork["previous_response_id"]) == (None, first["id"])
    await application.turn(input="q4", previous_response_id=fork["id"], stream=stream)
    assert application.sent()["input"] == [*seen, user("q3"), assistant("a3", "msg_3"), user("q4")]
    # What was said in the fork is no part of the conversation, and the edit reaches its next turn.
    await application.turn(input="q5", conversation=conversation_id, stream=stream)
    assert application.sent()["input"] == [*seen[1:], user("q2"), assistant("a2", "msg_2"), user("q5")]
    assert texts(await application.conversed(conversation_id)) == ["q1", "a1", "q2", "a2", "q5", "a5"]
    # No edit has changed what the responses were made from.
    assert texts(await application.listed(first["id"])) == ["zero", "q1"]
    assert texts(await application.listed(second["id"])) == ["zero", "q1", "a1", "q2"]
    assert texts(await application.listed(fork["id"])) == ["zero", "q1", "a1", "q3"]


async def test_items_that_were_added_reach_the_model_in_their_place(application: Application) -> None:
    application.mock.replies = [reply(message("a1"), stream=False), reply(message("a2", id="msg_2"), stream=False)]
    conversation_id = await application.converse()
    await application.turn(input="q1", conversation=conversation_id)
    path = f"/v1/conversations/{conversation_id}/items"
    await application.http.post(path, json={"items": [user("added"), {"role": "assistant", "content": "so"}]})
    await application.turn(input="q2", conversation=conversation_id)
    said = {"type": "message", "role": "assistant", "content": assistant("so")["content"]}
    assert application.sent()["input"] == [user("q1"), assistant("a1"), user("added"), said, user("q2")]
    # With nothing of its own to say, a turn answers what was added.
    await application.http.post(path, json={"items": [user("answer this")]})
    await application.turn(input=[], conversation=conversation_id)
    assert application.sent()["input"][-2:] == [assistant("a2", "msg_2"), user("answer this")]


async def test_a_deleted_response_stays_in_its_conversation(application: Application) -> None:
    application.mock.replies = [reply(message("a1"), stream=False), reply(message("a2", id="msg_2"), stream=False)]
    conversation_id = await application.converse()
    first = await application.turn(input="q1", conversation=conversation_id)
    await application.http.delete(f"/v1/responses/{first['id']}")
    await application.turn(input="q2", conversation=conversation_id)
    assert application.sent()["input"] == [user("q1"), assistant("a1"), user("q2")]
    assert texts(await application.conversed(conversation_id)) == ["q1", "a1", "q2", "a2"]


async def test_a_deleted_conversation_stays_in_what_its_responses_saw(application: Application) -> None:
    application.mock.replies = [reply(message("a1"), stream=False), reply(message("a2", id="msg_2"), stream=False)]
    conversation_id = await application.converse(user("zero"))
    first = await application.turn(input="q1", conversation=conversation_id)
    await application.http.delete(f"/v1/conversations/{conversation_id}")
    assert (await application.http.get(f"/v1/responses/{first['id']}")).json() == first
    assert texts(await application.listed(first["id"])) == ["zero", "q1"]
    await application.turn(input="q2", previous_response_id=first["id"])
    assert application.sent()["input"] == [user("zero"), user("q1"), assistant("a1"), user("q2")]


# --- a whole context


@both_modes
async def test_an_open_call_can_be_answered_or_deleted(application: Application, stream: bool) -> None:
    for way_out in ("answer", "answer added", "delete"):
        application.mock.replies = [
            reply(message("Look."), function_call("f"), stream=stream),
            reply(message("b", id="msg_b"), stream=stream),
        ]
        application.mock._post_count = 0
        conversation_id = await application.converse()
        await application.turn(input="a", conversation=conversation_id, stream=stream)
        refused = await ask(application, conversation_id, "never mind", stream=stream)
        assert error_of(refused) == (400, "input", None)
        assert refused.json()["error"]["message"] == "No tool output found for function call call_1."
        items = f"/v1/conversations/{conversation_id}/items"
        given: Any = "never mind"
        if way_out == "answer":
            given = [OUTPUT, user("never mind")]
        elif way_out == "answer added":
            await application.http.post(items, json={"items": [OUTPUT]})
        else:
            await application.http.delete(f"{items}/fc_up")
        await application.turn(input=given, conversation=conversation_id, stream=stream)
        between = ["function_call", "function_call_output"] if way_out != "delete" else []
        assert [item["type"] for item in application.sent()["input"]] == ["message", "message", *between, "message"]


async def test_an_edit_that_breaks_a_context_is_told_by_the_call(application: Application) -> None:
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}"}
    conversation_id = await application.converse(user("a"), call, {**OUTPUT, "id": "fco_1"}, user("b"))
    path = f"/v1/conversations/{conversation_id}/items"
    await application.http.delete(f"{path}/fco_1")
    # Also where the request brings nothing of its own: what stands behind the call was there before.
    for given in ("c", [], [{"role": "assistant", "content": "so"}]):
        refused = await ask(application, conversation_id, given)
        assert error_of(refused) == (400, "input", None)
        assert refused.json()["error"]["message"] == "No tool output found for function call call_1."
    await application.http.post(path, json={"items": [{**OUTPUT, "id": "fco_2"}]})
    assert (await ask(application, conversation_id, "c")).status_code == 200
    await application.http.delete(f"{path}/fc_1")
    # Nothing that a request brings can mend this: it is the list that has an output without its call.
    refused = await ask(application, conversation_id, "d")
    assert error_of(refused) == (400, "conversation", None)
    assert refused.json()["error"]["message"] == "No tool call found for function call output with call_id call_1."
    refused = await ask(application, await application.converse(), [OUTPUT])
    assert error_of(refused) == (400, "input", None)
    await application.http.delete(f"{path}/fco_2")
    assert (await ask(application, conversation_id, "d")).status_code == 200


async def test_what_the_history_has_is_not_taken_again(application: Application) -> None:
    application.mock.replies = [reply(message("b"), stream=False)]
    conversation_id = await application.converse({**user("zero"), "id": "msg_zero"})
    await application.turn(input=[{**user("a"), "id": "msg_a"}], conversation=conversation_id)
    for repeated in ("msg_zero", "msg_a", "msg_up"):
        for again in ({**user("x"), "id": repeated}, {"type": "item_reference", "id": repeated}):
            refused = await ask(application, conversation_id, [again])
            assert error_of(refused) == (400, "input", "invalid_value")
            assert f"'{repeated}'" in refused.json()["error"]["message"]
    assert len(application.mock.posts) == 1


async def test_an_upstream_that_uses_its_ids_again_is_listed_by_fresh_ones(application: Application) -> None:
    application.mock.replies = [reply(message("b"), stream=False)]
    conversation_id = await application.converse({**user("zero"), "id": "msg_up"})
    for number in range(3):
        await application.turn(input=str(number), conversation=conversation_id)
    listed = await application.conversed(conversation_id)
    assert len({item["id"] for item in listed}) == len(listed) == 7
    # They are sent by the ids that clients know.
    assert [item.get("id") for item in application.sent()["input"]][2::2] == [item["id"] for item in listed[2:5:2]]


# --- what is refused leaves the conversation free

SEALED = {"type": "reasoning", "id": "rs_sealed", "summary": [], "encrypted_content": "gAAAA"}
REFUSED: dict[str, tuple[list[Any], dict[str, Any], tuple[int, Any, Any]]] = {
    "a call without an output": (
        [{"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}],
        {"input": "q"},
        (400, "input", None),
    ),
    "an output without a call": ([user("a")], {"input": [OUTPUT]}, (400, "input", None)),
    "an id twice": ([{**user("a"), "id": "x"}], {"input": [{**user("b"), "id": "x"}]}, (400, "input", "invalid_value")),
    "only encrypted": ([user("a"), SEALED], {"input": "q"}, (400, "conversation", "encrypted_reasoning_not_supported")),
    "only encrypted input": ([], {"input": [SEALED]}, (400, "input[0]", "encrypted_reasoning_not_supported")),
    "nothing to answer": ([], {"input": ""}, (400, "input", "missing_required_parameter")),
    "nothing to send": ([{"type": "x"}], {"input": []}, (400, "input", "missing_required_parameter")),
    "no such tool": (
        [],
        {"input": "q", "tool_choice": {"type": "function", "name": "f"}},
        (400, "tool_choice", "invalid_value"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@both_modes
async def test_a_turn_that_is_refused_gives_its_conversation_back(
    application: Application, emptied_database_url: str, name: str, stream: bool
) -> None:
    items, members, expected = REFUSED[name]
    conversation_id = await application.converse(*items)
    before = await stored_rows(emptied_database_url)
    answer = await application.post({"model": "m", "conversation": conversation_id, "stream": stream, **members})
    assert error_of(answer) == expected
    assert application.mock.posts == []
    assert await stored_rows(emptied_database_url) == before


async def test_what_is_only_encrypted_can_be_deleted_from_its_conversation(application: Application) -> None:
    conversation_id = await application.converse(user("a"), SEALED)
    refused = await ask(application, conversation_id)
    assert "'rs_sealed'" in refused.json()["error"]["message"]
    await application.http.delete(f"/v1/conversations/{conversation_id}/items/rs_sealed")
    await application.turn(input="q", conversation=conversation_id)
    assert application.sent()["input"] == [user("a"), user("q")]


FAULTS: dict[str, tuple[Reply, int | None]] = {
    "400": (Reply(status=400, json={"error": {"message": "no"}}), 400),
    "429": (Reply(status=429, json={"error": {"message": "no"}}), 429),
    "401": (Reply(status=401, text="no"), 502),
    "500": (Reply(status=500, text="no"), 502),
    "503": (Reply(status=503, text="no"), 503),
    "cut": (Reply(text='{"id":"x","outp', close=True), 502),
    "no JSON": (Reply(text="<html>"), 502),
}
STREAM_FAULTS: dict[str, tuple[Reply, int | None]] = {
    "400": FAULTS["400"],
    "500": FAULTS["500"],
    "empty": (Reply(sse=""), 502),
    "cut at once": (Reply(sse="", close=True), 502),
    "cut in the middle": (Reply(sse_chunks=(reply(message("b"), stream=True).sse_chunks or [])[:5], close=True), None),
    "no end": (Reply(sse_chunks=(reply(message("b"), stream=True).sse_chunks or [])[:-1]), None),
    "an error": (
        Reply(sse='data: {"type":"response.created","response":{}}\n\ndata: {"type":"error","message":"no"}\n\n'),
        None,
    ),
    "failed": (
        reply(message("b"), stream=True, status="failed", error={"code": "server_error", "message": "no"}),
        None,
    ),
}


@pytest.mark.parametrize(
    ("fault", "stream"),
    [*((fault, False) for fault in FAULTS), *((fault, True) for fault in STREAM_FAULTS)],
)
async def test_a_turn_that_fails_adds_nothing_and_gives_its_conversation_back(
    application: Application, fault: str, stream: bool
) -> None:
    broken, status = (STREAM_FAULTS if stream else FAULTS)[fault]
    application.mock.replies = [broken, reply(message("good"), stream=stream)]
    conversation_id = await application.converse(user("a"))
    answer = await ask(application, conversation_id, "bad", stream=stream)
    if status is None:
        [*_, last] = events_of(answer.content)
        assert last["type"] == "response.failed"
        failed = last["response"]
        assert failed["conversation"] == {"id": conversation_id}
        # It is kept, with what it was made from, and a chain goes on as if it had not been.
        assert (await application.http.get(f"/v1/responses/{failed['id']}")).json() == failed
        assert texts(await application.listed(failed["id"])) == ["a", "bad"]
    else:
        assert answer.status_code == status
    assert texts(await application.conversed(conversation_id)) == ["a"]
    await application.turn(input="good?", conversation=conversation_id, stream=stream)
    assert application.sent()["input"] == [user("a"), user("good?")]
    assert texts(await application.conversed(conversation_id)) == ["a", "good?", "good"]
    if status is None:
        await application.turn(input="on", previous_response_id=failed["id"], stream=stream)
        assert application.sent()["input"] == [user("a"), user("on")]


async def test_a_json_reply_that_says_failed_adds_nothing(application: Application) -> None:
    application.mock.replies = [reply(message("b"), stream=False, status="failed"), reply(message("c"), stream=False)]
    conversation_id = await application.converse(user("a"))
    assert (await application.turn(input="bad", conversation=conversation_id))["status"] == "failed"
    await application.turn(input="good", conversation=conversation_id)
    assert texts(await application.conversed(conversation_id)) == ["a", "good", "c"]


async def test_an_absent_upstream_gives_the_conversation_back(emptied_database_url: str) -> None:
    async with running(emptied_database_url, upstream="http://127.0.0.1:1/v1") as application:
        conversation_id = await application.converse(user("a"))
        for stream in (False, True, False):
            assert (await ask(application, conversation_id, stream=stream)).status_code == 503
        assert (await stored_rows(emptied_database_url))["conversations"][0]["locked_by"] is None


@contextlib.asynccontextmanager
async def full_disk(database_url: str) -> AsyncIterator[None]:
    async with connected(database_url) as connection:
        await connection.execute(
            "create function no_space() returns trigger language plpgsql as "
            "$$ begin raise exception using errcode = 'disk_full'; end $$;"
            "create trigger no_space before insert on conversation_items for each row execute function no_space()"
        )
        try:
            yield
        finally:
            await connection.execute("drop function no_space cascade")


@both_modes
async def test_a_turn_that_cannot_be_appended_fails_whole_and_gives_its_conversation_back(
    application: Application, emptied_database_url: str, stream: bool
) -> None:
    application.mock.replies = [reply(message("b"), stream=stream)]
    conversation_id = await application.converse(user("a"))
    before = await stored_rows(emptied_database_url)
    async with full_disk(emptied_database_url):
        answer = await ask(application, conversation_id, "lost?", stream=stream)
        if stream:
            [*_, last] = events_of(answer.content)
            assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "server_error")
        else:
            assert answer.status_code == 503
        assert await stored_rows(emptied_database_url) == before
    await application.turn(input="again", conversation=conversation_id, stream=stream)
    assert application.sent()["input"] == [user("a"), user("again")]


# --- one turn at a time


@both_modes
async def test_a_second_turn_is_refused_before_it_costs_anything(application: Application, stream: bool) -> None:
    application.mock.replies = [reply(message("b"), stream=stream)]
    conversation_id = await application.converse(user("a"))
    with application.upstream_held():
        turning = asyncio.create_task(ask(application, conversation_id, "first", stream=stream))
        await until(lambda: len(application.mock.posts) == 1)
        for second_stream in (False, True):
            refused = await ask(application, conversation_id, "second", stream=second_stream)
            assert refused.headers["content-type"] == "application/json"
            assert error_of(refused) == LOCKED
            assert "x-should-retry" not in refused.headers
        # Another conversation is free, and so is a chain.
        other = await application.converse()
        others = [asyncio.create_task(ask(application, other, stream=stream))]
        others.append(asyncio.create_task(application.post({"model": "m", "input": "c", "stream": stream})))
        await until(lambda: len(application.mock.posts) == 3)
    assert [(await one).status_code for one in (turning, *others)] == [200, 200, 200]
    assert texts(await application.conversed(conversation_id)) == ["a", "first", "b"]
    assert (await ask(application, conversation_id, "third", stream=stream)).status_code == 200


async def test_a_tool_output_sent_at_the_terminal_event_is_never_refused(emptied_database_url: str) -> None:
    """Two hundred times, to the same server or another, while the stream that told of the call is still open."""
    call = reply(function_call("f"), stream=True)
    async with running(emptied_database_url, [call]) as first, running(emptied_database_url, [call]) as second:
        body: dict[str, Any] = {"model": "m", "stream": True}
        for number in range(200):
            if number % 20 == 0:
                # The history would grow for ever; what is tested is the lock.
                body |= {"conversation": await first.converse(), "input": "go"}
            asked, asked_next = (first, second) if number % 3 else (second, second)
            async with asked.http.stream("POST", "/v1/responses", json=body) as answer:
                assert answer.status_code == 200, await answer.aread()
                received = b""
                async for chunk in answer.aiter_raw():
                    received += chunk
                    if b"event: response.completed\n" in received:
                        break
                body["input"] = [{**OUTPUT, "output": str(number)}]
                again = await asked_next.post(body)
                assert again.status_code == 200, again.text
                assert events_of(again.content)[-1]["type"] == "response.completed"
        assert len(first.mock.posts) + len(second.mock.posts) == 400


@both_modes
async def test_a_turn_may_outlast_its_lease(emptied_database_url: str, stream: bool) -> None:
    async with running(emptied_database_url, [reply(message("b"), stream=stream)], lease_s=0.3) as application:
        conversation_id = await application.converse(user("a"))
        with application.upstream_held():
            turning = asyncio.create_task(ask(application, conversation_id, "slow", stream=stream))
            await until(lambda: len(application.mock.posts) == 1)
            for _ in range(12):
                await asyncio.sleep(0.1)
                assert error_of(await ask(application, conversation_id, "impatient")) == LOCKED
        assert (await turning).status_code == 200
        assert texts(await application.conversed(conversation_id)) == ["a", "slow", "b"]
        assert "lease" not in application.log


@pytest.mark.parametrize("then", ["nothing", "another turn", "an edit", "a deletion"])
@both_modes
async def test_a_lease_that_was_lost_appends_nothing_and_the_turn_fails(
    emptied_database_url: str, then: str, stream: bool
) -> None:
    """As of a process that was stopped for longer than its lease, while others went on."""
    replies = [reply(message("late"), stream=stream), reply(message("b"), stream=False)]
    async with running(emptied_database_url, replies) as application:
        conversation_id = await application.converse({**user("a"), "id": "msg_a"})
        path = f"/v1/conversations/{conversation_id}"
        with application.upstream_held():
            turning = asyncio.create_task(ask(application, conversation_id, "stopped", stream=stream))
            await until(lambda: len(application.mock.posts) == 1)
            async with connected(emptied_database_url) as connection:
                await connection.execute("update conversations set locked_until = now() - interval '1 second'")
            if then == "an edit":
                await application.http.delete(f"{path}/items/msg_a")
            if then == "a deletion":
                await application.http.delete(path)
            if then == "another turn":
                async with running(emptied_database_url, [reply(message("b"), stream=False)]) as other:
                    await other.turn(input="overtaking", conversation=conversation_id)
        answer = await turning
        if stream:
            failed = events_of(answer.content)[-1]["response"]
            assert failed["status"] == "failed"
            assert failed["error"]["code"] == "server_error"
            assert "claim on the conversation" in failed["error"]["message"]
            # Its id was told, so it is known; but nothing goes on from what it said.
            assert (await application.http.get(f"/v1/responses/{failed['id']}")).json() == failed
        else:
            assert error_of(answer) == (503, "conversation", None)
        rows = await stored_rows(emptied_database_url)
        statuses = [row["status"] for row in rows.get("responses", [])]
        assert statuses == ["completed"] * (then == "another turn") + ["failed"] * stream
        if then == "a deletion":
            return
        expected = {"nothing": ["a"], "an edit": [], "another turn": ["a", "overtaking", "b"]}[then]
        assert texts(await application.conversed(conversation_id)) == expected
        await application.turn(input="on", conversation=conversation_id)
        assert texts(await application.conversed(conversation_id)) == [*expected, "on", "b"]


@both_modes
async def test_a_turn_whose_lease_is_lost_costs_no_more_inference(emptied_database_url: str, stream: bool) -> None:
    async with running(emptied_database_url, [Reply(hang=True)], lease_s=0.3) as application:
        conversation_id = await application.converse(user("a"))
        turning = asyncio.create_task(ask(application, conversation_id, "slow", stream=stream))
        await until(lambda: len(application.mock.posts) == 1)
        async with connected(emptied_database_url) as connection:
            await connection.execute("update conversations set locked_by = 'another'")
        answer = await asyncio.wait_for(turning, 3)
        if stream and answer.status_code == 200:
            assert events_of(answer.content)[-1]["response"]["status"] == "failed"
        else:
            assert error_of(answer) == (503, "conversation", None)
        await until(lambda: application.mock.posts[0].left)
        assert texts(await application.conversed(conversation_id)) == ["a"]
        assert "lease_lost" in application.log


async def test_a_turn_of_another_server_is_one_at_a_time_too(emptied_database_url: str) -> None:
    replies = [reply(message("b"), stream=False)]
    async with running(emptied_database_url, replies) as first, running(emptied_database_url, replies) as second:
        conversation_id = await first.converse()
        with first.upstream_held():
            turning = asyncio.create_task(ask(first, conversation_id))
            await until(lambda: len(first.mock.posts) == 1)
            assert error_of(await ask(second, conversation_id)) == LOCKED
            assert second.mock.posts == []
        await turning
        await second.turn(input="r", conversation=conversation_id)
        assert second.sent()["input"] == [user("q"), assistant("b"), user("r")]


# --- clients that leave, and servers that stop


def two_parts(*, stream: bool) -> Reply:
    """An upstream that says something at once, and the rest much later; as JSON all of it much later."""
    whole = reply(reasoning("Hm."), message("Hi."), stream=stream)
    if not stream:
        return msgspec.structs.replace(whole, delay_ms=LONG_MS)
    frames = whole.sse_chunks or []
    return Reply(sse_chunks=["".join(frames[:4]), "".join(frames[4:])], chunk_delay_ms=LONG_MS)


@contextlib.asynccontextmanager
async def leaving(application: Application, body: dict[str, Any]) -> AsyncIterator[None]:
    """A turn is in flight, as far as its upstream goes at once; at the end of this its client hangs up."""
    known = len(application.mock.posts)

    async def read() -> None:
        async with application.http.stream("POST", "/v1/responses", json=body) as answer:
            async for _ in answer.aiter_raw():
                has_begun.set()

    has_begun = asyncio.Event()
    reading = asyncio.create_task(read())
    await until(lambda: len(application.mock.posts) > known)
    if body.get("stream"):
        await has_begun.wait()
    yield
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


@both_modes
async def test_a_client_that_leaves_frees_the_conversation_at_once(application: Application, stream: bool) -> None:
    application.mock.replies = [two_parts(stream=stream), reply(message("b"), stream=stream)]
    conversation_id = await application.converse(user("a"))
    body = {"model": "m", "input": "left", "conversation": conversation_id, "stream": stream}
    async with leaving(application, body):
        response_id = application.sent()["request_id"]
        assert error_of(await ask(application, conversation_id)) == LOCKED
    mock: Mock = application.mock
    await until(lambda: mock.posts[0].left, within_s=3)
    async with asyncio.timeout(3):
        while (answer := await ask(application, conversation_id, "next", stream=stream)).status_code != 200:
            assert error_of(answer) == LOCKED
            await asyncio.sleep(0.01)
    assert application.sent()["input"] == [user("a"), user("next")]
    assert texts(await application.conversed(conversation_id)) == ["a", "next", "b"]
    cancelled = (await application.http.get(f"/v1/responses/{response_id}")).json()
    assert (cancelled["status"], cancelled["conversation"]) == ("cancelled", {"id": conversation_id})
    assert texts(await application.listed(response_id)) == ["a", "left"]


@both_modes
async def test_a_client_that_leaves_before_its_turn_has_begun_frees_it_too(
    application: Application, emptied_database_url: str, stream: bool
) -> None:
    """It hangs up while the lease is being taken."""
    application.mock.replies = [two_parts(stream=stream), reply(message("b"), stream=False)]
    conversation_id = await application.converse(user("a"))
    body = json.dumps({"model": "m", "input": "left", "conversation": conversation_id, "stream": stream}).encode()
    async with connected(emptied_database_url) as connection:
        async with connection.transaction():
            await connection.execute("select from conversations for update")
            _, writer = await asyncio.open_connection("127.0.0.1", application.port)
            writer.write(b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
            await until_true(connection, "select exists (select from pg_locks where not granted)")
            writer.transport.abort()
            await asyncio.sleep(0.05)
        await until_true(connection, "select exists (select from responses where status = 'cancelled')", within_s=3)
        await until_true(connection, "select locked_by is null from conversations", within_s=3)
    assert texts(await application.conversed(conversation_id)) == ["a"]


@both_modes
async def test_a_client_that_leaves_while_its_conversation_is_given_back_does_not_stop_that(
    application: Application, emptied_database_url: str, stream: bool
) -> None:
    """Its turn has failed, and it hangs up before it is told."""
    application.mock.replies = [Reply(status=500, text="no")]
    conversation_id = await application.converse(user("a"))
    body = {"model": "m", "input": "q", "conversation": conversation_id, "stream": stream}
    async with connected(emptied_database_url) as connection:
        with application.upstream_held():
            asking = asyncio.create_task(application.post(body))
            await until(lambda: len(application.mock.posts) == 1)
            row = connection.transaction()
            await row.start()
            await connection.execute("select from conversations for update")
        await until_true(connection, "select exists (select from pg_locks where not granted)")
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await asyncio.sleep(0.1)
        await row.commit()
        await until_true(connection, "select locked_by is null from conversations", within_s=3)


async def test_a_slow_reader_that_is_let_go_frees_the_conversation(emptied_database_url: str) -> None:
    frames = reply(message("Hi."), stream=True).sse_chunks or []
    at = next(place for place, frame in enumerate(frames) if "output_text.delta" in frame)
    flood = [*frames[:at], *[frames[at].replace("Hi.", "x" * 100_000)] * 100, *frames[at + 1 :]]
    async with running(emptied_database_url, [Reply(sse_chunks=flood)], stream_bytes_max=1_000_000) as application:
        conversation_id = await application.converse()
        body = json.dumps({"model": "m", "input": "a", "conversation": conversation_id, "stream": True}).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", application.port, limit=4096)
        writer.write(b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        try:
            async with connected(emptied_database_url) as connection:
                await until_true(connection, "select exists (select from responses where status = 'cancelled')")
                await until_true(connection, "select locked_by is null from conversations", within_s=3)
        finally:
            writer.transport.abort()
        assert await application.conversed(conversation_id) == []


@both_modes
async def test_a_server_that_stops_gives_its_conversations_back(emptied_database_url: str, stream: bool) -> None:
    async with running(emptied_database_url, [two_parts(stream=stream)]) as application:
        conversation_id = await application.converse(user("a"))
        body = {"model": "m", "input": "cut", "conversation": conversation_id, "stream": stream}
        asking = asyncio.create_task(application.http.post("/v1/responses", json=body))
        await until(lambda: len(application.mock.posts) == 1)
    await asyncio.gather(asking, return_exceptions=True)
    async with running(emptied_database_url, [reply(message("b"), stream=False)]) as application:
        await application.turn(input="on", conversation=conversation_id)
        assert texts(await application.conversed(conversation_id)) == ["a", "on", "b"]


# --- statements and logs


@both_modes
async def test_a_turn_in_a_conversation_is_one_read_and_one_write(application: Application, stream: bool) -> None:
    application.mock.replies = [reply(message("b"), stream=stream)]
    conversation_id = await application.converse(user("a"))
    for _ in range(3):
        with recorded_statements(application.database) as statements:
            await application.turn(input="q", conversation=conversation_id, stream=stream)
        assert len(statements) == 2
        assert "insert into responses" in statements[1]
    with recorded_statements(application.database) as statements:
        await application.turn(input="q", conversation=conversation_id, store=False, stream=stream)
    assert len(statements) == 1
    assert "update" not in statements[0]


async def test_no_connection_is_held_while_the_upstream_works(emptied_database_url: str) -> None:
    async with running(emptied_database_url, [reply(message("b"), stream=False)], pool_size=1) as application:
        conversations = [await application.converse() for _ in range(5)]
        with application.upstream_held():
            turning = [asyncio.create_task(ask(application, one)) for one in conversations]
            await until(lambda: len(application.mock.posts) == 5)
            assert application.database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
            assert await application.conversed(conversations[0]) == []
        assert {(await one).status_code for one in turning} == {200}


async def test_a_turn_is_logged_with_its_conversation_and_without_its_words(application: Application) -> None:
    conversation_id = await application.converse(user("SECRET"), metadata={"k": "SECRET"})
    await application.turn(input="SECRET", conversation=conversation_id)
    began = [json.loads(line) for line in application.log.splitlines() if "turn_began" in line]
    assert [line["conversation_id"] for line in began] == [conversation_id]
    assert "SECRET" not in application.log
