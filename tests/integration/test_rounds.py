"""Turns in which a model only thought: as they are, or gone on from where that was asked for; and turns of nothing."""

import asyncio
import json
from typing import Any

import pytest

from server.mock import Reply
from tests.application import Application, both_modes, message, reasoning, reply, running, stored_rows
from tests.grammar import assert_grammar, assert_openai_accepts
from tests.harness import until

USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 15,
}


def tables(**members: Any) -> str:
    lines = [f"{name} = {json.dumps(value)}" for name, value in members.items()]
    return '[[upstreams]]\nname = "u"\nurls = ["URL"]\nprofile = "vllm"\ndefault = true\n' + "\n".join(lines)


def thought(text: str, stream: bool, **members: Any) -> Reply:
    return reply(reasoning(text), stream=stream, usage=USAGE, **members)


async def asked(application: Application, stream: bool, **members: Any) -> tuple[int, dict[str, Any]]:
    """The status of the answer, and the final response object or the error."""
    answer = await application.post({"model": "m", "input": "a", "stream": stream, **members})
    if stream and answer.status_code == 200:
        events = assert_grammar(answer.content)
        assert_openai_accepts(events)
        return 200, events[-1]["response"]
    return answer.status_code, answer.json()


def told(response: dict[str, Any]) -> list[tuple[str, str]]:
    return [(item["type"], item["content"][0]["text"]) for item in response["output"]]


@both_modes
async def test_a_turn_of_reasoning_alone_is_what_it_is(application: Application, stream: bool) -> None:
    application.mock.replies = [thought("Hm.", stream)]
    status, response = await asked(application, stream)
    assert (status, response["status"], told(response)) == (200, "completed", [("reasoning", "Hm.")])
    assert len(application.mock.posts) == 1


@both_modes
async def test_it_is_gone_on_from_as_one_response(emptied_database_url: str, stream: bool) -> None:
    replies = [
        thought("One.", stream),
        thought("Two.", stream),
        reply(message("Hi."), stream=stream, usage=USAGE),
        reply(message("On."), stream=stream),
    ]
    async with running(emptied_database_url, replies, upstreams=tables(continue_reasoning_only=3)) as application:
        status, response = await asked(application, stream)
        assert (status, response["status"]) == (200, "completed")
        assert told(response) == [("reasoning", "One."), ("reasoning", "Two."), ("message", "Hi.")]
        assert len({item["id"] for item in response["output"]}) == 3
        usage = response["usage"]
        assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (30, 15, 45)
        assert usage["input_tokens_details"]["cached_tokens"] == 12
        assert usage["output_tokens_details"]["reasoning_tokens"] == 9
        sent = [post.json["input"] for post in application.mock.posts]
        thoughts = [
            {
                "type": "reasoning",
                "id": item["id"],
                "summary": [],
                "content": [{"type": "reasoning_text", "text": text}],
            }
            for item, text in zip(response["output"], ("One.", "Two."), strict=False)
        ]
        question = {"type": "message", "role": "user", "content": "a"}
        assert sent == [[question], [question, thoughts[0]], [question, *thoughts]]
        assert {post.json["request_id"] for post in application.mock.posts} == {response["id"]}
        assert (await application.http.get(f"/v1/responses/{response['id']}")).json() == response
        await asked(application, stream, previous_response_id=response["id"])
        assert [item["type"] for item in application.sent()["input"]] == [
            "message",
            "reasoning",
            "reasoning",
            "message",
            "message",
        ]
    [row] = (await stored_rows(emptied_database_url))["usage"]
    assert (row["input_tokens"], row["cached_tokens"], row["output_tokens"], row["reasoning_tokens"]) == (30, 12, 15, 9)


@both_modes
async def test_when_its_rounds_are_used_up_it_has_failed(emptied_database_url: str, stream: bool) -> None:
    replies = [thought(text, stream) for text in ("One.", "Two.", "Three.")]
    async with running(emptied_database_url, replies, upstreams=tables(continue_reasoning_only=1)) as application:
        status, response = await asked(application, stream)
        assert len(application.mock.posts) == 2
        error = response["error"]
        assert error["message"].startswith("no_visible_output: ")
        if stream:
            assert (status, response["status"], error["code"]) == (200, "failed", "server_error")
            assert told(response) == [("reasoning", "One."), ("reasoning", "Two.")]
        else:
            assert (status, error["type"]) == (502, "server_error")
        rows = await stored_rows(emptied_database_url)
        assert [row["status"] for row in rows["responses"]] == ["failed"]
        assert [(row["status"], row["output_tokens"]) for row in rows["usage"]] == [("failed", 10)]
        assert [row["type"] for row in rows["items"] if row["is_output"]] == ["reasoning", "reasoning"]


@both_modes
async def test_a_thought_that_its_upstream_does_not_read_is_not_gone_on_from(
    emptied_database_url: str, stream: bool
) -> None:
    choice = {"index": 0, "delta" if stream else "message": {"reasoning": "Hm."}, "finish_reason": "stop"}
    body = {"id": "c", "created": 1_700_000_000, "model": "m", "choices": [choice]}
    frames = [f"data: {json.dumps(body)}\n\n", "data: [DONE]\n\n"]
    thinking = Reply(sse_chunks=frames) if stream else Reply(json=body)
    text = tables(continue_reasoning_only=3).replace('"vllm"', '"strict-chat"')
    async with running(emptied_database_url, [thinking], upstreams=text) as application:
        _, response = await asked(application, stream)
        assert response["error"]["message"].startswith("no_visible_output: ")
        assert len(application.mock.posts) == 1


@both_modes
async def test_a_round_that_was_cut_is_incomplete(emptied_database_url: str, stream: bool) -> None:
    replies = [thought("One.", stream), thought("Two", stream, status="incomplete")]
    async with running(emptied_database_url, replies, upstreams=tables(continue_reasoning_only=2)) as application:
        status, response = await asked(application, stream)
    assert (status, response["status"]) == (200, "incomplete")
    assert told(response) == [("reasoning", "One."), ("reasoning", "Two")]


@both_modes
async def test_a_round_that_fails_fails_the_turn(emptied_database_url: str, stream: bool) -> None:
    replies = [thought("One.", stream), Reply(status=500, text="no")]
    async with running(emptied_database_url, replies, upstreams=tables(continue_reasoning_only=2)) as application:
        status, response = await asked(application, stream)
        if stream:
            assert (response["status"], told(response)) == ("failed", [("reasoning", "One.")])
        else:
            assert (status, response["error"]["type"]) == (502, "server_error")
        rows = await stored_rows(emptied_database_url)
        # What the first round cost was paid.
        assert [(row["status"], row["output_tokens"]) for row in rows["usage"]] == [("failed", 5)]
        assert [row["status"] for row in rows["responses"]] == ["failed"]


@both_modes
async def test_a_client_that_leaves_a_later_round_has_the_cost_of_the_first_recorded(
    emptied_database_url: str, stream: bool
) -> None:
    replies = [thought("One.", stream), Reply(hang=True)]
    table = tables(continue_reasoning_only=2)
    async with running(emptied_database_url, replies, upstreams=table, on_disconnect="cancel") as application:
        asking = asyncio.create_task(asked(application, stream))
        await until(lambda: len(application.mock.posts) == 2)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: "turn_ended" in application.log)
        rows = await stored_rows(emptied_database_url)
    assert [(row["status"], row["output_tokens"]) for row in rows["usage"]] == [("cancelled", 5)]
    assert [row["type"] for row in rows["items"] if row["is_output"]] == ["reasoning"]


@both_modes
async def test_a_context_that_a_later_round_made_too_long_is_named(emptied_database_url: str, stream: bool) -> None:
    refusal = Reply(status=400, json={"error": {"message": "The maximum context length is 9 tokens.", "code": 400}})
    table = tables(continue_reasoning_only=2)
    async with running(emptied_database_url, [thought("One.", stream), refusal], upstreams=table) as application:
        answer = await application.post({"model": "m", "input": "a", "stream": stream})
    # The one code that openai-python's types do not know.
    final = assert_grammar(answer.content)[-1]["response"] if stream else answer.json()
    assert (answer.status_code, final["error"]["code"]) == (200 if stream else 400, "context_length_exceeded")


async def test_a_later_round_that_failed_frees_its_key(emptied_database_url: str) -> None:
    replies = [thought("One.", False), Reply(status=500, text="no"), reply(message("Hi."), stream=False)]
    table = tables(continue_reasoning_only=2)
    async with running(emptied_database_url, replies, upstreams=table) as application:
        body = {"model": "m", "input": "a"}
        first = await application.post(body, **{"idempotency-key": "k"})
        again = await application.post(body, **{"idempotency-key": "k"})
    assert (first.status_code, again.status_code, again.json()["status"]) == (502, 200, "completed")


@pytest.mark.parametrize("output", [[], [message("")], [message(" \n")]], ids=["nothing", "empty", "blank"])
@pytest.mark.parametrize("policy", ["keep", "fail"])
@both_modes
async def test_a_turn_of_nothing(emptied_database_url: str, stream: bool, policy: str, output: list[Any]) -> None:
    replies = [reply(*output, stream=stream, usage=USAGE)]
    async with running(emptied_database_url, replies, upstreams=tables(empty_output=policy)) as application:
        status, response = await asked(application, stream)
        rows = await stored_rows(emptied_database_url)
        wanted = "completed" if policy == "keep" else "failed"
        assert [row["status"] for row in rows["responses"]] == [wanted]
        assert [(row["status"], row["output_tokens"]) for row in rows["usage"]] == [(wanted, 5)]
        if policy == "keep" or stream:
            assert (status, response["status"]) == (200, wanted)
        else:
            assert (status, response["error"]["type"]) == (502, "server_error")
        if policy == "fail" and stream:
            assert response["error"]["code"] == "server_error"


@both_modes
async def test_what_a_response_may_cost_ends_its_rounds(emptied_database_url: str, stream: bool) -> None:
    text = tables(continue_reasoning_only=5) + "\nbudget = {total_tokens_max = 30, output_tokens = 20}\n"
    async with running(emptied_database_url, [thought("Hm.", stream)], upstreams=text) as application:
        _, response = await asked(application, stream)
        # Each round costs 15.
        assert len(application.mock.posts) == 2
        assert application.sent()["max_output_tokens"] == 20
        assert response["error"]["message"].endswith("Its 30 tokens are used up.")


@both_modes
async def test_thinking_that_makes_a_history_too_long_ends_its_rounds(emptied_database_url: str, stream: bool) -> None:
    text = tables(continue_reasoning_only=5) + "\nbudget = {history_items_max = 1}\n"
    async with running(emptied_database_url, [thought("Hm.", stream)], upstreams=text) as application:
        status, response = await asked(application, stream)
        assert (status, len(application.mock.posts)) == (200 if stream else 502, 1)
        message = response["error"]["message"]
        assert message.startswith("no_visible_output: ")
        assert "1 items" in message
        rows = await stored_rows(emptied_database_url)
        assert [row["status"] for row in rows["responses"]] == ["failed"]
        assert [row["output_tokens"] for row in rows["usage"]] == [5]


async def test_a_history_that_is_too_long_is_refused_before_anything_is_sent(emptied_database_url: str) -> None:
    async with running(emptied_database_url, history_items_max=2) as application:
        first = await application.turn(input="a")
        status, response = await asked(application, False, previous_response_id=first["id"])
        error = response["error"]
        assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "previous_response_id")
        assert len(application.mock.posts) == 1
