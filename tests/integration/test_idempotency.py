"""One answer to one request, however often it is sent with one key."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from server.mock import Reply
from tests.application import Application, both_modes, events_of, message, reply, running, stored_rows
from tests.grammar import assert_grammar, assert_openai_accepts
from tests.harness import until
from tests.postgres import connected


async def asked(application: Application, key: str = "k", **members: Any) -> httpx.Response:
    return await application.post({"model": "m", "input": "a", **members}, **{"idempotency-key": key})


@contextlib.asynccontextmanager
async def _streamed(application: Application, **members: Any) -> AsyncIterator[AsyncIterator[bytes]]:
    # The very bytes that `asked` sends: the same request otherwise spelled is another one.
    body = json.dumps({"model": "m", "input": "a", "stream": True, **members}).encode()
    headers = {"content-type": "application/json", "idempotency-key": "k"}
    async with application.http.stream("POST", "/v1/responses", content=body, headers=headers) as answer:
        assert answer.status_code == 200
        yield answer.aiter_raw()


async def _next_until(chunks: AsyncIterator[bytes], mark: bytes) -> bytes:
    """What comes until the mark is in it."""
    seen = b""
    while mark not in seen:
        seen += await anext(chunks)
    return seen


def _in_two_parts(text: str) -> Reply:
    """A stream that rests a second behind its first delta of text."""
    frames = reply(message(text), stream=True).sse_chunks or []
    first = next(at for at, frame in enumerate(frames) if "output_text.delta" in frame) + 1
    return Reply(sse_chunks=["".join(frames[:first]), "".join(frames[first:])], chunk_delay_ms=1_000)


def told(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"].startswith("text/event-stream"):
        streamed: dict[str, Any] = events_of(answer.content)[-1]["response"]
        return streamed
    whole: dict[str, Any] = answer.json()
    return whole


def refused(answer: httpx.Response) -> tuple[int, str | None, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["code"]


@both_modes
async def test_the_same_request_again_gets_the_same_response(
    application: Application, emptied_database_url: str, stream: bool
) -> None:
    application.mock.replies = [reply(message("Hi."), stream=stream)]
    first = await asked(application, stream=stream)
    again = await asked(application, stream=stream)
    assert told(again) == told(first)
    if not stream:
        assert again.content == first.content
    assert len(application.mock.posts) == 1
    assert len((await stored_rows(emptied_database_url))["responses"]) == 1


@both_modes
async def test_who_asks_again_meanwhile_waits_for_the_first(emptied_database_url: str, stream: bool) -> None:
    replies = [reply(message("Hi."), stream=stream)]
    async with running(emptied_database_url, replies) as first, running(emptied_database_url, replies) as second:
        with first.upstream_held():
            asking = [asyncio.create_task(asked(first, stream=stream))]
            await until(lambda: len(first.mock.posts) == 1)
            asking += [asyncio.create_task(asked(server, stream=stream)) for server in (first, second)]
            await asyncio.sleep(0.2)
            assert [task.done() for task in asking] == [False] * 3
        answers = [await task for task in asking]
        assert told(answers[0]) == told(answers[1]) == told(answers[2])
        assert answers[0].content == answers[1].content
        assert (len(first.mock.posts), len(second.mock.posts)) == (1, 0)
    if stream:
        events = assert_grammar(answers[2].content)
        assert_openai_accepts(events)


async def test_a_stream_is_followed_live_from_its_beginning(application: Application) -> None:
    """The upstream goes on only after both have seen what it said so far."""
    application.mock.replies = [_in_two_parts("Hi.")]
    async with _streamed(application) as first:
        seen = await _next_until(first, b"output_text.delta")
        async with _streamed(application) as again:
            assert await _next_until(again, b"output_text.delta") == seen
            assert b"response.completed" not in seen
            rest = [b"".join([chunk async for chunk in chunks]) for chunks in (first, again)]
    assert rest[0] == rest[1]
    assert events_of(seen + rest[0])[-1]["type"] == "response.completed"
    assert len(application.mock.posts) == 1


async def test_a_stream_that_was_too_long_to_keep_is_waited_for(emptied_database_url: str) -> None:
    """No event is as long as the limit, but those up to the first text are."""
    frames = reply(message("A" * 2_500), stream=True).sse_chunks or []
    replies = [Reply(sse_chunks=frames, chunk_delay_ms=100)]
    async with running(emptied_database_url, replies, stream_bytes_max=5_000) as application:
        async with _streamed(application) as first:
            seen = await _next_until(first, b"output_text.delta")
            assert len(seen) > 5_000
            again = asyncio.create_task(asked(application, stream=True))
            rest = b"".join([chunk async for chunk in first])
        assert told(await again) == events_of(seen + rest)[-1]["response"]
        # It was told anew, from what is stored.
        assert (await again).content != seen + rest
        assert len(application.mock.posts) == 1


@pytest.mark.parametrize("on_disconnect", ["finish", "cancel"])
async def test_a_turn_goes_on_for_who_follows_it_when_its_first_client_leaves(
    emptied_database_url: str, on_disconnect: str
) -> None:
    replies = [_in_two_parts("Hi.")]
    async with running(emptied_database_url, replies, on_disconnect=on_disconnect) as application:
        conversation_id = await application.converse()
        async with _streamed(application, conversation=conversation_id) as first:
            await _next_until(first, b"output_text.delta")
            again = asyncio.create_task(asked(application, stream=True, conversation=conversation_id))
            await asyncio.sleep(0.2)
        assert told(await again)["status"] == "completed"
        assert len(await application.conversed(conversation_id)) == 2
        assert len(application.mock.posts) == 1


@both_modes
async def test_who_waited_for_a_first_that_failed_takes_its_place(application: Application, stream: bool) -> None:
    application.mock.replies = [Reply(status=500, text="no"), reply(message("Hi."), stream=stream)]
    with application.upstream_held():
        first = asyncio.create_task(asked(application, stream=stream))
        await until(lambda: len(application.mock.posts) == 1)
        again = asyncio.create_task(asked(application, stream=stream))
        await asyncio.sleep(0.2)
    assert (await first).status_code == 502
    assert told(await again)["status"] == "completed"


@both_modes
async def test_who_left_while_waiting_begins_no_turn(application: Application, stream: bool) -> None:
    application.mock.replies = [Reply(status=500, text="no")]
    with application.upstream_held():
        first = asyncio.create_task(asked(application, stream=stream))
        await until(lambda: len(application.mock.posts) == 1)
        again = asyncio.create_task(asked(application, stream=stream))
        await asyncio.sleep(0.2)
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)
        await asyncio.sleep(0.1)
    assert (await first).status_code == 502
    await asyncio.sleep(1)
    assert len(application.mock.posts) == 1


async def test_who_left_while_another_server_had_the_key_begins_no_turn(
    application: Application, emptied_database_url: str
) -> None:
    async with connected(emptied_database_url) as connection:
        await connection.execute(
            "insert into idempotency_keys values (1, 'k', $1, 'resp_other', now(), now() + interval '1 minute')",
            hashlib.sha256(b'{"model": "m", "input": "a"}').hexdigest(),
        )
        asking = asyncio.create_task(asked(application))
        # It waits 50, 100, 200, then 400 ms: the key is given back in the midst of the last, and its client leaves.
        await asyncio.sleep(0.5)
        await connection.execute("delete from idempotency_keys")
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await asyncio.sleep(0.5)
    assert application.mock.posts == []


async def test_a_body_that_is_not_utf_8_is_told_to_be_so(application: Application) -> None:
    answer = await application.post(b'{"\xff": 1}', **{"idempotency-key": "k"})
    assert answer.status_code == 400


async def test_a_turn_that_showed_nothing_and_was_to_be_tried_again_frees_its_key(emptied_database_url: str) -> None:
    table = '[[upstreams]]\nname = "u"\nurls = ["URL"]\nprofile = "vllm"\ndefault = true\nempty_output = "fail"\n'
    replies = [reply(stream=False), reply(message("Hi."), stream=False)]
    async with running(emptied_database_url, replies, upstreams=table) as application:
        assert (await asked(application)).status_code == 502
        assert told(await asked(application))["status"] == "completed"
        assert len(application.mock.posts) == 2


async def test_another_body_is_a_conflict_that_is_not_tried_again(application: Application) -> None:
    await asked(application)
    answer = await asked(application, input="b")
    assert refused(answer) == (409, "Idempotency-Key", "idempotency_conflict")
    assert answer.headers["x-should-retry"] == "false"
    assert len(application.mock.posts) == 1


@pytest.mark.parametrize("status", [500, 429, 503, 400])
@both_modes
async def test_a_first_that_failed_frees_its_key(application: Application, stream: bool, status: int) -> None:
    application.mock.replies = [Reply(status=status, text="no"), reply(message("Hi."), stream=stream)]
    assert (await asked(application, stream=stream)).status_code in (status, 502)
    assert told(await asked(application, stream=stream))["status"] == "completed"


async def test_a_request_that_was_refused_frees_its_key(application: Application) -> None:
    assert (await asked(application, previous_response_id="resp_none")).status_code == 400
    assert told(await asked(application))["status"] == "completed"


async def test_a_stream_that_failed_after_it_began_is_told_again_as_failed(application: Application) -> None:
    frames = (reply(message("Hi."), stream=True).sse_chunks or [])[:5]
    application.mock.replies = [Reply(sse_chunks=frames, close=True)]
    first = told(await asked(application, stream=True))
    assert first["status"] == "failed"
    assert told(await asked(application, stream=True)) == first
    assert len(application.mock.posts) == 1


async def test_a_client_that_left_gets_what_became_of_it(application: Application) -> None:
    application.mock.replies = [reply(message("Hi."), stream=False)]
    with application.upstream_held():
        asking = asyncio.create_task(asked(application))
        await until(lambda: len(application.mock.posts) == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert told(await asked(application))["status"] == "completed"
    assert len(application.mock.posts) == 1


async def test_the_key_of_a_process_that_died_is_free_when_its_claim_has_run_out(emptied_database_url: str) -> None:
    async with running(emptied_database_url, lease_s=0.5) as application:
        async with connected(emptied_database_url) as connection:
            await connection.execute(
                "insert into idempotency_keys values (1, 'k', 'x', 'resp_dead', now(), now() + interval '0.5 s')"
            )
        assert refused(await asked(application)) == (409, "Idempotency-Key", "idempotency_conflict")
        await asyncio.sleep(0.6)
        assert told(await asked(application))["status"] == "completed"


async def test_a_long_turn_keeps_its_key(emptied_database_url: str) -> None:
    async with running(emptied_database_url, lease_s=0.3) as application:
        with application.upstream_held():
            first = asyncio.create_task(asked(application))
            await until(lambda: len(application.mock.posts) == 1)
            again = asyncio.create_task(asked(application))
            await asyncio.sleep(1)
            assert len(application.mock.posts) == 1
        assert told(await again) == told(await first)


@both_modes
async def test_a_turn_whose_key_another_server_has_ends_as_failed(emptied_database_url: str, stream: bool) -> None:
    """As after an outage that was longer than the claim: nobody pays for a second answer."""
    async with running(emptied_database_url, lease_s=0.3) as application:
        with application.upstream_held():
            waiting = asyncio.create_task(asked(application, stream=stream))
            await until(lambda: len(application.mock.posts) == 1)
            async with connected(emptied_database_url) as connection:
                await connection.execute("update idempotency_keys set response_public_id = 'resp_of_another'")
            answer = await waiting
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "server_error")
    assert "responses" not in await stored_rows(emptied_database_url)


async def test_a_key_is_forgotten_after_a_day(application: Application, emptied_database_url: str) -> None:
    first = told(await asked(application))
    async with connected(emptied_database_url) as connection:
        await connection.execute("update idempotency_keys set created_at = created_at - interval '25 hours'")
    assert told(await asked(application))["id"] != first["id"]


async def test_a_deleted_response_is_not_made_again(application: Application) -> None:
    first = told(await asked(application))
    await application.http.delete(f"/v1/responses/{first['id']}")
    assert (await asked(application)).status_code == 404
    assert len(application.mock.posts) == 1


@pytest.mark.parametrize("key", ["", "k" * 256])
async def test_what_can_be_no_key(application: Application, key: str) -> None:
    assert refused(await asked(application, key)) == (400, "Idempotency-Key", "invalid_value")


async def test_what_is_not_stored_can_not_be_told_again(application: Application, emptied_database_url: str) -> None:
    assert refused(await asked(application, store=False)) == (400, "Idempotency-Key", "unsupported_value")
    assert await stored_rows(emptied_database_url) == {}


async def test_the_official_client_may_send_one(application: Application) -> None:
    headers = {"Idempotency-Key": "from-the-client"}
    first = await application.client.responses.create(model="m", input="a", extra_headers=headers)
    again = await application.client.responses.create(model="m", input="a", extra_headers=headers)
    assert (first.id, first.output) == (again.id, again.output)


async def test_the_official_client_sends_its_key_again_when_it_tries_again(application: Application) -> None:
    application.mock.replies = [Reply(status=500, text="no"), reply(message("Hi."), stream=False)]
    client = application.client.with_options(max_retries=1)
    headers = {"Idempotency-Key": "tried-again"}
    first = await client.responses.create(model="m", input="a", extra_headers=headers)
    assert len(application.mock.posts) == 2
    again = await client.responses.create(model="m", input="a", extra_headers=headers)
    assert (first.output_text, first.id) == ("Hi.", again.id)
    assert len(application.mock.posts) == 2
    with pytest.raises(openai.ConflictError) as conflict:
        await client.responses.create(model="m", input="b", extra_headers=headers)
    assert conflict.value.response.request.headers["x-stainless-retry-count"] == "0"


async def test_a_server_that_stops_has_given_back_its_keys(emptied_database_url: str) -> None:
    """What is left undone then would ask for a connection to a database that is closed."""
    async with running(emptied_database_url, [Reply(hang=True)], lease_s=60) as application:
        asking = asyncio.create_task(asked(application))
        await until(lambda: len(application.mock.posts) == 1)
        await application.end_turns()
        assert (await asking).status_code == 503
    assert "idempotency_keys" not in await stored_rows(emptied_database_url)
