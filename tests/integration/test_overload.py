"""More turns than a process takes: what is refused costs nothing, and those that are open don't notice."""

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest

from tests.application import Application, both_modes, events_of, message, reply, running
from tests.harness import until
from tests.postgres import recorded_statements

OPEN_MAX = 20


def ask(application: Application, number: int, **members: Any) -> "asyncio.Task[httpx.Response]":
    body = {"model": "m", "input": f"question {number}", **members}
    return asyncio.create_task(application.post(body))


def answered(asking: list["asyncio.Task[httpx.Response]"]) -> list[httpx.Response]:
    return [task.result() for task in asking if task.done()]


async def test_twice_as_many_turns_as_a_process_takes(emptied_database_url: str) -> None:
    async with running(emptied_database_url, open_turns_max=OPEN_MAX) as application:
        before = await application.turn(input="before")
        with application.upstream_held(), recorded_statements(application.database) as statements:
            # A history to read, were they let in; every other one is a stream.
            asking = [
                ask(application, number, stream=number % 2 == 0, previous_response_id=before["id"])
                for number in range(2 * OPEN_MAX)
            ]
            await until(lambda: len(answered(asking)) == OPEN_MAX and len(application.mock.posts) == 1 + OPEN_MAX)
            for refused in answered(asking):
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
                assert refused.json()["error"] == {
                    "message": "The server has as many turns open as it takes. Please try again in a moment.",
                    "type": "server_error",
                    "param": None,
                    "code": "server_is_overloaded",
                }
            # One walk for each that was let in, and nothing for the others.
            assert len(statements) == OPEN_MAX
            kept = await application.http.get(f"/v1/responses/{before['id']}")
            assert kept.status_code == 200
            ready = await application.http.get("/readyz")
            assert ready.status_code == 200
            open_numbers = [number for number, task in enumerate(asking) if not task.done()]
        answers = dict(zip(range(2 * OPEN_MAX), await asyncio.gather(*asking), strict=True))
        # All who were let in have their whole answer, and the upstream heard of nobody else.
        assert Counter(answer.status_code for answer in answers.values()) == {200: OPEN_MAX, 503: OPEN_MAX}
        asked = sorted(post.json["input"][-1]["content"] for post in application.mock.posts[1:])
        assert asked == sorted(f"question {number}" for number in open_numbers)
        for number in open_numbers:
            answer = answers[number]
            whole = events_of(answer.content)[-1]["response"] if number % 2 == 0 else answer.json()
            assert whole["status"] == "completed"
            assert [item["type"] for item in whole["output"]] == ["reasoning", "message"]
        # And there is room again for as many.
        again = await asyncio.gather(*(ask(application, number) for number in range(OPEN_MAX)))
        assert [answer.status_code for answer in again] == [200] * OPEN_MAX


@both_modes
async def test_a_turn_has_its_place_until_its_end(emptied_database_url: str, stream: bool) -> None:
    failing = reply(message("No."), stream=stream, status="failed")
    async with running(emptied_database_url, [failing], open_turns_max=1) as application:
        # Neither one that is refused nor one that its upstream fails keeps it.
        assert (await application.post({"model": "m", "input": "q", "previous_response_id": "none"})).status_code == 400
        assert (await application.turn(input="q", stream=stream))["status"] == "failed"
        application.forget()
        with application.upstream_held():
            left = ask(application, 1, stream=stream)
            await until(lambda: len(application.mock.posts) == 1)
            left.cancel()
            await asyncio.wait([left])
            # It goes on without its client, and costs as much as before.
            refused = await application.post({"model": "m", "input": "q"})
            assert refused.status_code == 503
        async with asyncio.timeout(5):
            while refused.status_code == 503:
                refused = await application.post({"model": "m", "input": "q"})
        assert refused.status_code == 200


@pytest.mark.parametrize("number", [0, OPEN_MAX])
async def test_without_a_limit_all_are_let_in(emptied_database_url: str, number: int) -> None:
    async with running(emptied_database_url, open_turns_max=number) as application:
        with application.upstream_held():
            asking = [ask(application, number) for number in range(OPEN_MAX)]
            await until(lambda: len(application.mock.posts) == OPEN_MAX)
        assert [answer.status_code for answer in await asyncio.gather(*asking)] == [200] * OPEN_MAX


async def test_who_sends_the_same_again_takes_no_place(emptied_database_url: str) -> None:
    async with running(emptied_database_url, open_turns_max=1) as application:
        body, key = {"model": "m", "input": "q"}, {"idempotency-key": "k"}
        with application.upstream_held():
            first = asyncio.create_task(application.post(body, **key))
            await until(lambda: len(application.mock.posts) == 1)
            second = asyncio.create_task(application.post(body, **key))
            refused = await application.post(body, **{"idempotency-key": "other"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        one, other = await asyncio.gather(first, second)
        assert one.status_code == other.status_code == 200
        assert one.content == other.content
        # The key of the one that was refused is its own still.
        assert (await application.post(body, **{"idempotency-key": "other"})).status_code == 200
