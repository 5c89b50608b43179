"""What a turn cost is recorded with it, however it ended, and stays when it is deleted."""

import json
from typing import Any

import pytest

from server.mock import Reply
from tests.application import Application, both_modes, message, reply, running, stored_rows
from tests.postgres import connected, until_true

USAGE = {
    "input_tokens": 14,
    "input_tokens_details": {"cached_tokens": 3},
    "output_tokens": 18,
    "output_tokens_details": {"reasoning_tokens": 8},
    "total_tokens": 32,
}
CHAT = '[[upstreams]]\nname = "chat"\nurls = ["URL"]\nprofile = "chat-vllm"\ndefault = true\n'
CHAT_USAGE = {"prompt_tokens": 14, "completion_tokens": 18, "completion_tokens_details": {"reasoning_tokens": 8}}


async def recorded(database_url: str) -> list[tuple[Any, ...]]:
    rows = (await stored_rows(database_url)).get("usage", [])
    for row in rows:
        assert row["created_at"] <= row["ended_at"]
    names = ("upstream", "model", "status", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
    return [tuple(row[name] for name in names) for row in rows]


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed"])
@both_modes
async def test_what_an_upstream_tells_is_recorded_however_it_ended(
    application: Application, emptied_database_url: str, stream: bool, status: str
) -> None:
    application.mock.replies = [reply(message("Hi."), stream=stream, status=status, usage=USAGE)]
    response = await application.turn(input="a", stream=stream)
    assert response["status"] == status
    assert await recorded(emptied_database_url) == [("default", "m", status, 14, 3, 18, 8)]
    [row] = (await stored_rows(emptied_database_url))["usage"]
    assert row["response_public_id"] == response["id"]
    await application.http.delete(f"/v1/responses/{response['id']}")
    assert len(await recorded(emptied_database_url)) == 1


@both_modes
async def test_what_is_not_told_or_not_stored_is_not_recorded(
    application: Application, emptied_database_url: str, stream: bool
) -> None:
    application.mock.replies = [
        reply(message("Hi."), stream=stream),
        reply(message("Hi."), stream=stream, usage=USAGE),
    ]
    await application.turn(input="a", stream=stream)
    await application.turn(input="a", stream=stream, store=False)
    assert await recorded(emptied_database_url) == []


async def test_a_chat_stream_that_is_cut_has_its_price(emptied_database_url: str) -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "par"}}], "usage": CHAT_USAGE}
    cut = Reply(sse_chunks=[f"data: {json.dumps(chunk)}\n\n"], close=True)
    async with running(emptied_database_url, [cut], upstreams=CHAT) as application:
        response = await application.turn(input="a", stream=True)
    assert (response["status"], response["output"][0]["status"]) == ("failed", "incomplete")
    assert await recorded(emptied_database_url) == [("chat", "m", "failed", 14, 0, 18, 8)]


async def test_a_turn_in_a_conversation_is_recorded_once(application: Application, emptied_database_url: str) -> None:
    application.mock.replies = [reply(message("Hi."), stream=False, usage=USAGE)]
    await application.turn(input="a", conversation=await application.converse())
    assert len(await recorded(emptied_database_url)) == 1


@pytest.mark.parametrize("status", ["failed", "cancelled"])
async def test_the_latest_that_was_told_is_the_price_of_a_stream_that_was_cut_or_left(
    emptied_database_url: str, status: str
) -> None:
    """What its beginning told of its prompt is known though its end never came."""
    is_left = status == "cancelled"
    frames = reply(message("Hi."), stream=True, usage=USAGE | {"output_tokens": 0}).sse_chunks or []
    replies = [Reply(sse_chunks=["".join(frames[:5])], hang=is_left, close=not is_left)]
    async with running(emptied_database_url, replies, on_disconnect="cancel") as application:
        body = {"model": "m", "input": "a", "stream": True}
        async with application.http.stream("POST", "/v1/responses", json=body) as answer:
            async for chunk in answer.aiter_raw():
                if is_left and b"output_text.delta" in chunk:
                    break
        async with connected(emptied_database_url) as connection:
            await until_true(connection, "select exists (select from usage where status = $1)", status)
    assert await recorded(emptied_database_url) == [("default", "m", status, 14, 3, 0, 8)]
