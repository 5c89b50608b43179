"""How long an upstream and a turn may take: each limit by itself, told and stored as what it is."""

from server.mock import Reply
from tests.application import both_modes, events_of, message, reply, running, stored_rows
from tests.harness import until


@both_modes
async def test_a_turn_that_takes_too_long_fails_and_its_upstream_is_left(
    emptied_database_url: str, stream: bool
) -> None:
    frames = (reply(message("Hi."), stream=True).sse_chunks or [])[:4]
    replies = [Reply(sse_chunks=frames, hang=True) if stream else Reply(hang=True)]
    async with running(emptied_database_url, replies, turn_max_s=0.5) as application:
        answer = await application.post({"model": "m", "input": "a", "stream": stream})
        if stream:
            failed = events_of(answer.content)[-1]["response"]
            assert (failed["status"], failed["error"]["message"]) == (
                "failed",
                "The turn took longer than 0.5 seconds.",
            )
        else:
            assert (answer.status_code, answer.json()["error"]["type"]) == (504, "server_error")
        await until(lambda: application.mock.posts[0].left)
    statuses = [row["status"] for row in (await stored_rows(emptied_database_url)).get("responses", [])]
    assert statuses == (["failed"] if stream else [])


async def test_the_head_of_a_stream_has_a_limit_of_its_own(emptied_database_url: str) -> None:
    async with running(
        emptied_database_url, [Reply(hang=True, delay_ms=60_000)], first_byte_timeout_s=0.3
    ) as application:
        answer = await application.post({"model": "m", "input": "a", "stream": True})
        assert (answer.status_code, answer.json()["error"]["type"]) == (504, "server_error")
        await until(lambda: application.mock.posts[0].left)


async def test_the_head_of_a_whole_reply_comes_with_it(emptied_database_url: str) -> None:
    replies = [reply(message("Hi."), stream=False)]
    slow = Reply(text=replies[0].text, headers=replies[0].headers, delay_ms=600)
    async with running(emptied_database_url, [slow], first_byte_timeout_s=0.3) as application:
        assert (await application.turn(input="a"))["status"] == "completed"


@both_modes
async def test_a_model_server_that_asks_to_wait_a_moment_is_asked_again(
    emptied_database_url: str, stream: bool
) -> None:
    busy = Reply(status=503, headers={"retry-after": "0"}, text="busy")
    async with running(emptied_database_url, [busy, reply(message("Hi."), stream=stream)]) as application:
        assert (await application.turn(input="a", stream=stream))["status"] == "completed"
        assert len(application.mock.posts) == 2
