"""A database that is cut off, or slow, at each step of a turn.

Nothing that was acknowledged is lost, and nothing lost is acknowledged. A turn that was stored is not told as failed,
and so is not asked for again.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from tests.application import both_modes, events_of, message, reply, running, stored_rows
from tests.harness import until
from tests.postgres import connected, without_pgbouncer

pytestmark = without_pgbouncer


class Gate:
    """A way to the database that can lose what is asked or answered, with the connection, or hold it up for a while."""

    def __init__(self) -> None:
        self.loses_questions = 0
        self.loses_answers = 0
        self.lost = 0
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def pass_on(
        self, reader: asyncio.StreamReader, writers: list[asyncio.StreamWriter], *, answers: bool
    ) -> None:
        while data := await reader.read(65_536):
            await self.is_open.wait()
            if self._loses(answers=answers):
                break
            writers[0].write(data)
            await writers[0].drain()
        for writer in writers:
            writer.close()

    def _loses(self, *, answers: bool) -> bool:
        name = "loses_answers" if answers else "loses_questions"
        left = getattr(self, name)
        if left > 0:
            setattr(self, name, left - 1)
            self.lost += 1
        return bool(left)


async def to_database(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    folder = parse_qs(parts.query).get("host", [None])[0]
    if folder is not None:
        port = parse_qs(parts.query).get("port", [str(parts.port or 5432)])[0]
        return await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.{port}")
    return await asyncio.open_connection(parts.hostname, parts.port or 5432)


@contextlib.asynccontextmanager
async def gated(url: str) -> AsyncIterator[tuple[Gate, str]]:
    """A gate before a database, and the database's URL through it."""
    gate = Gate()
    passing: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await to_database(url)
        for task in (
            asyncio.create_task(gate.pass_on(reader, [back_writer, writer], answers=False)),
            asyncio.create_task(gate.pass_on(back_reader, [writer, back_writer], answers=True)),
        ):
            passing.add(task)
            task.add_done_callback(passing.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    parts = urlsplit(url)
    name = f"{quote(parts.username or 'postgres')}:{quote(parts.password or '')}"
    user = name if parts.password else quote(parts.username or "postgres")
    try:
        yield gate, f"postgresql://{user}@127.0.0.1:{port}{parts.path}"
    finally:
        server.close()
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)


@both_modes
@pytest.mark.parametrize("in_conversation", [False, True], ids=["chain", "conversation"])
async def test_a_turn_that_was_stored_is_told_as_what_it_was(
    emptied_database_url: str, stream: bool, in_conversation: bool
) -> None:
    replies = [reply(message("a"), stream=False), reply(message("b"), stream=stream), reply(message("c"), stream=False)]
    async with (
        gated(emptied_database_url) as (gate, url),
        running(url, replies, pool_size=1) as application,
    ):
        conversation_id = await application.converse() if in_conversation else None
        # The statements are prepared by this turn, so that the next one's write is one exchange.
        first = await application.turn(input="1", conversation=conversation_id)
        with application.upstream_held():
            where = {"conversation": conversation_id} if in_conversation else {"previous_response_id": first["id"]}
            asking = asyncio.create_task(application.post({"model": "m", "input": "2", "stream": stream, **where}))
            await until(lambda: len(application.mock.posts) == 2)
            gate.loses_answers = 1
        answer = await asking
        assert gate.lost == 1
        told = events_of(answer.content)[-1]["response"] if stream else answer.json()
        assert (answer.status_code, told["status"]) == (200, "completed")
        assert (await application.http.get(f"/v1/responses/{told['id']}")).json() == told
        if conversation_id is not None:
            said = [item["content"][0]["text"] for item in await application.conversed(conversation_id)]
            assert said == ["1", "a", "2", "b"]
            # It is free again: the next turn is refused nothing.
            await application.turn(input="3", conversation=conversation_id)


async def test_an_edit_that_was_carried_out_is_told_as_such(emptied_database_url: str) -> None:
    """A client that tries again would make a second conversation, and add its items twice."""
    said = {"items": [{"role": "user", "content": "1"}, {"role": "user", "content": "2", "id": "msg_2"}]}
    async with gated(emptied_database_url) as (gate, url), running(url, pool_size=1) as application:
        # The statements are prepared here, so that the next ones are one exchange.
        path = f"/v1/conversations/{await application.converse()}/items"
        assert (await application.http.post(path, json=said | {"items": said["items"][:1]})).status_code == 200
        gate.loses_answers = 1
        added = await application.http.post(path, json=said)
        assert (added.status_code, gate.lost) == (200, 1)
        assert [item["id"] for item in added.json()["data"]][1:] == ["msg_2"]
        assert (await application.http.get(path, params={"order": "asc"})).json()["data"][1:] == added.json()["data"]
        # The connection that was lost took its prepared statements with it.
        await application.converse()
        gate.loses_answers = 1
        made = await application.http.post("/v1/conversations", json=said)
        assert (made.status_code, gate.lost) == (200, 2)
        listed = await application.conversed(made.json()["id"])
        assert [item["content"][0]["text"] for item in listed] == ["1", "2"]


async def test_an_edit_that_never_reached_the_database_is_told_as_failed(emptied_database_url: str) -> None:
    said = {"items": [{"role": "user", "content": "1", "id": "msg_1"}, {"role": "user", "content": "2"}]}
    async with gated(emptied_database_url) as (gate, url), running(url, pool_size=1) as application:
        conversation_id = await application.converse({"role": "user", "content": "0"})
        path = f"/v1/conversations/{conversation_id}/items"
        assert (await application.http.post(path, json={"items": [said["items"][0]]})).status_code == 200
        # One of the two is listed already, as the same text.
        gate.loses_questions = 1
        refused = await application.http.post(path, json=said)
        assert (refused.status_code, refused.json()["error"]["type"], gate.lost) == (503, "server_error", 1)
        assert len(await application.conversed(conversation_id)) == 2
        before = (await stored_rows(emptied_database_url))["conversations"]
        gate.loses_questions = 1
        assert (await application.http.post("/v1/conversations")).status_code == 503
        assert (await stored_rows(emptied_database_url))["conversations"] == before


@both_modes
async def test_a_turn_that_was_not_stored_is_told_as_failed(emptied_database_url: str, stream: bool) -> None:
    async with (
        gated(emptied_database_url) as (_, url),
        running(url, [reply(message("a"), stream=stream)], pool_size=1) as application,
    ):
        with application.upstream_held():
            asking = asyncio.create_task(application.post({"model": "m", "input": "1", "stream": stream}))
            await until(lambda: len(application.mock.posts) == 1)
            async with connected(emptied_database_url) as connection:
                await connection.execute("alter table responses rename to responses_away")
        answer = await asking
        async with connected(emptied_database_url) as connection:
            await connection.execute("alter table responses_away rename to responses")
        if stream:
            assert events_of(answer.content)[-1]["response"]["status"] == "failed"
        else:
            assert answer.status_code >= 500
    assert (await stored_rows(emptied_database_url)).get("responses", []) == []


@both_modes
async def test_a_turn_whose_history_can_not_be_read_is_refused_and_costs_nothing(
    emptied_database_url: str, stream: bool
) -> None:
    replies = [reply(message("a"), stream=False), reply(message("b"), stream=stream)]
    async with gated(emptied_database_url) as (gate, url), running(url, replies, pool_size=1) as application:
        first = await application.turn(input="1")
        body = {"model": "m", "input": "2", "stream": stream, "previous_response_id": first["id"]}
        gate.loses_questions = 1
        answer = await application.post(body)
        assert (answer.status_code, answer.json()["error"]["type"], gate.lost) == (503, "server_error", 1)
        assert len(application.mock.posts) == 1
        again = await application.post(body)
        told = events_of(again.content)[-1]["response"] if stream else again.json()
        assert (again.status_code, told["status"]) == (200, "completed")


@both_modes
async def test_a_turn_that_never_reached_the_database_is_told_as_failed(
    emptied_database_url: str, stream: bool
) -> None:
    replies = [
        reply(message("a"), stream=False),
        reply(message("b"), stream=stream),
        reply(message("c"), stream=False),
    ]
    async with gated(emptied_database_url) as (gate, url), running(url, replies, pool_size=1) as application:
        first = await application.turn(input="1")
        body = {"model": "m", "input": "2", "stream": stream, "previous_response_id": first["id"]}
        with application.upstream_held():
            asking = asyncio.create_task(application.post(body))
            await until(lambda: len(application.mock.posts) == 2)
            gate.loses_questions = 1
        answer = await asking
        assert gate.lost == 1
        if stream:
            told = events_of(answer.content)[-1]["response"]
            assert (answer.status_code, told["status"]) == (200, "failed")
            assert (await application.http.get(f"/v1/responses/{told['id']}")).status_code == 404
        else:
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "server_error")
        assert len((await stored_rows(emptied_database_url))["responses"]) == 1
        assert (await application.turn(input="3", previous_response_id=first["id"]))["status"] == "completed"


@both_modes
async def test_a_slow_database_is_waited_for(emptied_database_url: str, stream: bool) -> None:
    async with (
        gated(emptied_database_url) as (gate, url),
        running(url, [reply(message("a"), stream=stream)], pool_size=1) as application,
    ):
        with application.upstream_held():
            asking = asyncio.create_task(application.post({"model": "m", "input": "1", "stream": stream}))
            await until(lambda: len(application.mock.posts) == 1)
            gate.is_open.clear()
        await asyncio.sleep(0.5)
        assert not asking.done()
        gate.is_open.set()
        answer = await asking
        told = events_of(answer.content)[-1]["response"] if stream else answer.json()
        assert told["status"] == "completed"
        assert (await application.http.get(f"/v1/responses/{told['id']}")).json() == told


async def test_connections_and_runs_return_to_their_level(emptied_database_url: str) -> None:
    async with gated(emptied_database_url) as (gate, url), running(url, pool_size=4) as application:
        for number in range(12):
            gate.loses_questions, gate.loses_answers = number % 2, number % 3 == 0
            await asyncio.gather(
                *(application.post({"model": "m", "input": "x", "stream": number % 2 == 0}) for number in range(4))
            )
        gate.loses_questions = gate.loses_answers = 0
        await until(lambda: application.database.engine.pool.checkedout() == 0)  # type: ignore[attr-defined]
        assert (await application.turn(input="x"))["status"] == "completed"
