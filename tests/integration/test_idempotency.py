"""One answer to one request, however often it is sent with one key."""

import asyncio
from typing import Any

import httpx
import pytest

from server.mock import Reply
from tests.application import Application, both_modes, events_of, message, reply, running, stored_rows
from tests.harness import until
from tests.postgres import connected


async def asked(application: Application, key: str = "k", **members: Any) -> httpx.Response:
    return await application.post({"model": "m", "input": "a", **members}, **{"idempotency-key": key})


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
        answers = [told(await task) for task in asking]
        assert answers[0] == answers[1] == answers[2]
        assert (len(first.mock.posts), len(second.mock.posts)) == (1, 0)


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


async def test_a_server_that_stops_has_given_back_its_keys(emptied_database_url: str) -> None:
    """What is left undone then would ask for a connection to a database that is closed."""
    async with running(emptied_database_url, [Reply(hang=True)], lease_s=60) as application:
        asking = asyncio.create_task(asked(application))
        await until(lambda: len(application.mock.posts) == 1)
        await application.end_turns()
        assert (await asking).status_code == 503
    assert "idempotency_keys" not in await stored_rows(emptied_database_url)
