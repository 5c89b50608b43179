"""Two servers as real processes on one database: turns at once, and one that is killed or stopped in a turn's way."""

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.application import both_modes, events_of
from tests.e2e.echo import Echo, Server, started
from tests.harness import serving, until
from tests.postgres import connected, database_name, until_true

TURNS = 50
LEASE_S = 2


class Proxy:
    """Between a server and its database. While it is held, what the database says does not arrive."""

    def __init__(self, database_url: str) -> None:
        self._url = database_url
        self._may_answer = asyncio.Event()
        self._may_answer.set()

    def hold(self) -> None:
        self._may_answer.clear()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """The URL by which the same database is reached through here."""
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        parts = urlsplit(self._url)
        credentials = parts.netloc.rpartition("@")[0]
        try:
            yield f"postgresql://{credentials}@127.0.0.1:{port}/{database_name(self._url)}"
        finally:
            self._may_answer.set()
            server.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(self._url)
        folder = parse_qs(parts.query).get("host", [parts.hostname or ""])[0]
        if folder.startswith("/"):
            there = await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.{parts.port or 5432}")
        else:
            there = await asyncio.open_connection(folder or "127.0.0.1", parts.port or 5432)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(self._pump(reader, there[1], waits=False), self._pump(there[0], writer, waits=True))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, waits: bool) -> None:
        try:
            while data := await reader.read(65536):
                if waits:
                    await self._may_answer.wait()
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()


@pytest.fixture
def upstream() -> Echo:
    return Echo()


@contextlib.asynccontextmanager
async def _two_servers(
    folder: Path,
    upstream: Echo,
    database_url: str,
    *,
    first_database_url: str | None = None,
    lease_s: float = LEASE_S,
    pool_size: int = 8,
) -> AsyncIterator[tuple[Server, Server]]:
    async with contextlib.AsyncExitStack() as opened:
        address = await opened.enter_async_context(serving(upstream))
        settings = {"upstream": f"{address}/v1", "no_migrate": True, "lease_s": lease_s, "pool_size": pool_size}
        first, second = [
            await opened.enter_async_context(started(folder, name, database_url=url, **settings))
            for name, url in (("first", first_database_url or database_url), ("second", database_url))
        ]
        yield first, second


async def test_fifty_turns_at_once_are_all_there_whole_and_in_one_order(
    tmp_path: Path, upstream: Echo, database_url: str
) -> None:
    choose = random.Random(50)
    refused: Counter[str] = Counter()
    async with _two_servers(tmp_path, upstream, database_url, lease_s=30) as servers:
        conversation_id = await servers[0].converse()

        async def take_turn(number: int) -> None:
            while True:
                answer = await choose.choice(servers).ask(conversation_id, f"q{number}", stream=number % 2 == 0)
                if answer.status_code == 200:
                    return
                refused[answer.json()["error"]["code"]] += 1
                await asyncio.sleep(choose.uniform(0.005, 0.05))

        async with asyncio.timeout(120):
            await asyncio.gather(*(take_turn(number) for number in range(TURNS)))
        listed = await servers[1].listed(conversation_id)
    asked = listed[::2]
    assert sorted(asked) == sorted(f"q{number}" for number in range(TURNS))
    assert listed[1::2] == [f"re: {text}" for text in asked]
    # Each turn knew all that were before it, and those that were refused cost no inference.
    assert upstream.inputs == [listed[: 2 * number + 1] for number in range(TURNS)]
    assert set(refused) == {"conversation_locked"}


@both_modes
async def test_a_server_that_is_killed_in_a_turn_leaves_its_conversation_to_the_next(
    tmp_path: Path, upstream: Echo, database_url: str, stream: bool
) -> None:
    async with _two_servers(tmp_path, upstream, database_url) as (first, second):
        conversation_id = await first.converse()
        assert (await first.ask(conversation_id, "before")).status_code == 200
        upstream.may_answer.clear()
        asking = asyncio.create_task(first.ask(conversation_id, "lost", stream=stream))
        await until(lambda: len(upstream.inputs) == 2)
        killed_at_s = time.monotonic()
        first.kill()
        with pytest.raises(httpx.HTTPError):
            await asking
        upstream.may_answer.set()
        refused_count = await second.ask_until_free(conversation_id, "after", stream=stream)
        took_s = time.monotonic() - killed_at_s
        assert refused_count > 0
        # Its last renewal cannot be later than its end.
        assert took_s < LEASE_S + 5
        assert await second.listed(conversation_id) == ["before", "re: before", "after", "re: after"]
    assert upstream.inputs[-1] == ["before", "re: before", "after"]
    async with connected(database_url) as connection:
        assert await connection.fetchval("select count(*) from responses") == 2


@both_modes
async def test_who_waits_for_a_server_that_is_killed_answers_its_key_in_its_place(
    tmp_path: Path, upstream: Echo, database_url: str, stream: bool
) -> None:
    async with _two_servers(tmp_path, upstream, database_url) as (first, second):
        upstream.may_answer.clear()

        async def ask(server: Server) -> httpx.Response:
            body = {"model": "m", "input": "q", "stream": stream}
            return await server.http.post("/v1/responses", json=body, headers={"idempotency-key": "k"})

        lost = asyncio.create_task(ask(first))
        await until(lambda: len(upstream.inputs) == 1)
        waiting = asyncio.create_task(ask(second))
        await asyncio.sleep(LEASE_S * 1.5)
        # Longer than a lease, which the first one renews.
        assert len(upstream.inputs) == 1
        killed_at_s = time.monotonic()
        first.kill()
        with pytest.raises(httpx.HTTPError):
            await lost
        upstream.may_answer.set()
        answer = await waiting
        assert time.monotonic() - killed_at_s < LEASE_S + 5
        assert upstream.inputs == [["q"], ["q"]]
        whole = events_of(answer.content)[-1]["response"] if stream else answer.json()
        assert whole["output"][0]["content"][0]["text"] == "re: q"
        again = await ask(second)
        assert (events_of(again.content)[-1]["response"] if stream else again.json()) == whole
    async with connected(database_url) as connection:
        assert await connection.fetchval("select count(*) from responses") == 1


@both_modes
async def test_a_server_that_is_killed_behind_its_commit_has_stored_the_turn_and_freed_its_conversation(
    tmp_path: Path, upstream: Echo, database_url: str, stream: bool
) -> None:
    """The commit is done, the server does not know it yet, and its client has seen no end."""
    proxy = Proxy(database_url)
    async with (
        proxy.serving() as through,
        _two_servers(tmp_path, upstream, database_url, first_database_url=through, lease_s=60, pool_size=1) as (
            first,
            second,
        ),
        connected(database_url) as connection,
    ):
        conversation_id = await first.converse()
        # So that the one connection has the statement prepared, and the write is one round trip.
        assert (await first.ask(conversation_id, "p")).status_code == 200
        upstream.may_answer.clear()
        received = bytearray()

        async def ask() -> None:
            body = {"model": "m", "input": "q", "conversation": conversation_id, "stream": stream}
            async with first.http.stream("POST", "/v1/responses", json=body) as answer:
                async for chunk in answer.aiter_raw():
                    received.extend(chunk)

        asking = asyncio.create_task(ask())
        await until(lambda: len(upstream.inputs) == 2)
        proxy.hold()
        upstream.may_answer.set()
        await until_true(connection, "select count(*) = 2 from responses")
        first.kill()
        with pytest.raises(httpx.HTTPError):
            await asking
        assert b"response.completed" not in received
        assert b'"completed_at":1' not in received
        # At once: what stored the turn has ended the lease.
        answer = await second.ask(conversation_id, "r", stream=stream)
        assert answer.status_code == 200, answer.text
        assert await second.listed(conversation_id) == ["p", "re: p", "q", "re: q", "r", "re: r"]
    assert upstream.inputs[-1] == ["p", "re: p", "q", "re: q", "r"]


@both_modes
async def test_a_server_that_was_stopped_past_its_lease_adds_nothing(
    tmp_path: Path, upstream: Echo, database_url: str, stream: bool
) -> None:
    async with _two_servers(tmp_path, upstream, database_url) as (first, second):
        conversation_id = await first.converse()
        upstream.may_answer.clear()
        asking = asyncio.create_task(first.ask(conversation_id, "stopped", stream=stream))
        await until(lambda: len(upstream.inputs) == 1)
        first.process.send_signal(signal.SIGSTOP)
        upstream.may_answer.set()
        await second.ask_until_free(conversation_id, "overtaking")
        first.process.send_signal(signal.SIGCONT)
        answer = await asking
        if stream:
            assert events_of(answer.content)[-1]["type"] == "response.failed"
        else:
            assert answer.status_code == 503
        assert await second.listed(conversation_id) == ["overtaking", "re: overtaking"]
        assert (await first.ask(conversation_id, "again")).status_code == 200
    assert upstream.inputs[-1] == ["overtaking", "re: overtaking", "again"]
    async with connected(database_url) as connection:
        counted = await connection.fetch("select status, count(*) from responses group by status")
    # Of a stream the client knows the id, so that it can look at what became of it.
    assert dict(counted) == {"completed": 2} | ({"failed": 1} if stream else {})
