"""What a turn asks of the database and when: statements, connections, the commit, and a database that fails."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec

from server.mock import Reply
from server.protocol.items import Item
from server.store.responses import NewResponse, Parent, Responses
from tests.application import Application, both_modes, events_of, message, reply, running, stored_rows
from tests.harness import until
from tests.postgres import connected, database_name, recorded_statements, until_true, with_database, without_pgbouncer

SILENCE_S = 0.3


def _slow(answer: Reply, silence_s: float) -> Reply:
    """The same answer, its headers at once and its body later."""
    return msgspec.structs.replace(answer, first_byte_delay_ms=silence_s * 1000)


# --- statements and connections


def _kinds(statements: list[str]) -> list[str]:
    return ["write" if "insert into responses" in statement else "read" for statement in statements]


@both_modes
async def test_a_turn_is_one_write_and_a_continuation_one_read_more(application: Application, stream: bool) -> None:
    application.mock.replies = [reply(message("Hi."), stream=stream)]
    with recorded_statements(application.database) as statements:
        first = await application.turn(input="One", stream=stream)
    assert _kinds(statements) == ["write"]
    with recorded_statements(application.database) as statements:
        await application.turn(input="Two", previous_response_id=first["id"], stream=stream)
    assert _kinds(statements) == ["read", "write"]
    with recorded_statements(application.database) as statements:
        await application.turn(input="Two", previous_response_id=first["id"], store=False, stream=stream)
    assert _kinds(statements) == ["read"]
    with recorded_statements(application.database) as statements:
        await application.turn(input="One", store=False, stream=stream)
    assert statements == []


async def test_a_chain_of_three_hundred_turns_is_read_at_once_and_whole(emptied_database_url: str) -> None:
    # A server that remembers nothing need not ask of which chain it is.
    async with running(emptied_database_url) as application:
        texts = [f"Text {number}" for number in range(600)]
        response_id = await _chain(emptied_database_url, Responses(application.database), texts)
        application.mock.replies = [reply(message("Hi."), stream=False)]
        with recorded_statements(application.database) as statements:
            turn = await application.turn(input="Last", previous_response_id=response_id)
        assert _kinds(statements) == ["read", "write"]
        sent = application.sent()["input"]
        assert [item["content"][0]["text"] for item in sent[:-1]] == texts
        assert sent[-1]["content"] == "Last"
        with recorded_statements(application.database) as statements:
            listed = await application.listed(turn["id"])
        assert _kinds(statements) == ["read"]
        assert [item["content"][0]["text"] for item in listed] == texts[:100]


async def _chain(database_url: str, responses: Responses, texts: list[str]) -> str:
    """Stores a chain of turns, each an asked and an answered text, and gives the id of its last response."""
    parent: Parent | None = None
    async with connected(database_url) as connection:
        for number, (asked, answered) in enumerate(zip(texts[::2], texts[1::2], strict=True)):
            turn = NewResponse(
                tenant_id=1,
                public_id=f"resp_{number}",
                parent=parent,
                status="completed",
                model="m",
                upstream="default",
                created_at=datetime.now(UTC),
                completed_at=None,
                ended_at=datetime.now(UTC),
                body=b'{"output":[]}',
                items=[_spoken("user", asked, number), _spoken("assistant", answered, number)],
            )
            await responses.add(turn)
            key = await connection.fetchrow(
                "select id, root_id, depth from responses where public_id = $1", turn.public_id
            )
            assert key is not None
            parent = Parent(*key, root_public_id="resp_0")
    return turn.public_id


def _spoken(role: str, text: str, number: int) -> Item:
    part = "output_text" if role == "assistant" else "input_text"
    body = f'{{"type":"message","role":"{role}","content":[{{"type":"{part}","text":"{text}"}}]}}'
    return Item(body=body.encode(), public_id=f"msg_{role}_{number}", type="message", is_output=role == "assistant")


async def test_turns_at_the_same_time_are_not_mixed_up(application: Application, emptied_database_url: str) -> None:
    """The mock's answer repeats the last that was said to it."""
    first = await application.turn(input="One")

    async def ask(number: int) -> None:
        said = f"This is number {number}."
        turn = await application.turn(input=said, previous_response_id=first["id"], stream=number % 2 == 0)
        assert turn["output"][-1]["content"][0]["text"].endswith(
            f"It received 4 input items; the last one said: {said}"
        )
        assert (await application.listed(turn["id"]))[-1]["content"][0]["text"] == said

    await asyncio.gather(*map(ask, range(40)))
    rows = (await stored_rows(emptied_database_url))["responses"]
    assert len(rows) == len({row["public_id"] for row in rows}) == 41


async def test_no_connection_is_held_while_the_upstream_is_silent(emptied_database_url: str) -> None:
    """Twenty streams wait for their upstream, on two connections, and all the while responses are read."""
    replies = [reply(message("Hi."), stream=False), _slow(reply(message("Hi."), stream=True), silence_s=2)]
    async with running(emptied_database_url, replies, pool_size=2) as application:
        first = await application.turn(input="One")
        continuations = [
            asyncio.create_task(application.turn(input=f"Two {number}", previous_response_id=first["id"], stream=True))
            for number in range(20)
        ]
        await until(lambda: len(application.mock.posts) == 21, within_s=10)
        assert application.database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
        assert not any(turn.done() for turn in continuations)
        for _ in range(5):
            assert (await application.http.get(f"/v1/responses/{first['id']}")).json() == first
            assert len(await application.listed(first["id"])) == 1
        ended = await asyncio.gather(*continuations)
        assert {turn["status"] for turn in ended} == {"completed"}
        assert len({turn["id"] for turn in ended}) == 20


# --- the commit


@both_modes
async def test_a_turn_is_committed_before_its_end_is_told(
    application: Application, emptied_database_url: str, stream: bool
) -> None:
    """A lock holds the write up: what came before the end arrives, the end does not until the row is there."""
    application.mock.replies = [reply(message("Hi."), stream=stream)]
    received = bytearray()

    async def read() -> None:
        body = {"model": "m", "input": "One", "stream": stream}
        async with application.http.stream("POST", "/v1/responses", json=body) as answer:
            async for chunk in answer.aiter_raw():
                received.extend(chunk)

    async with connected(emptied_database_url) as connection:
        async with connection.transaction():
            await connection.execute("lock table responses in exclusive mode")
            reading = asyncio.create_task(read())
            await _until_waiting(emptied_database_url)
            if stream:
                await until(lambda: b"response.output_item.done" in received)
            await asyncio.sleep(SILENCE_S)
            assert b'"completed_at":1' not in received
            assert b"response.completed" not in received
            assert b"[DONE]" not in received
            assert not reading.done()
        await reading
        assert await connection.fetchval("select count(*) from responses where status = 'completed'") == 1
    assert b'"completed_at":1' in received


async def _until_waiting(database_url: str) -> None:
    """Until some statement on this database waits for a lock."""
    async with connected(database_url) as connection:
        await until_true(
            connection,
            "select exists (select from pg_stat_activity"
            " where datname = current_database() and wait_event_type = 'Lock')",
        )


@contextlib.asynccontextmanager
async def _full_disk(database_url: str) -> AsyncIterator[None]:
    """Nothing can be stored, though everything can be read."""
    async with connected(database_url) as connection:
        await connection.execute(
            "create function no_space() returns trigger language plpgsql as "
            "$$ begin raise exception using errcode = 'disk_full'; end $$"
        )
        await connection.execute(
            "create trigger no_space before insert on items for each row execute function no_space()"
        )
        try:
            yield
        finally:
            await connection.execute("drop function no_space cascade")


async def test_a_turn_that_cannot_be_stored_is_not_acknowledged(
    application: Application, emptied_database_url: str
) -> None:
    application.mock.replies = [reply(message("Hi."), stream=False)]
    async with _full_disk(emptied_database_url):
        answer = await application.post({"model": "m", "input": "One"})
        assert answer.status_code == 503
        assert answer.json()["error"]["type"] == "server_error"
        assert "Hi." not in answer.text
        # Nothing has to be stored here, so nothing can fail.
        assert (await application.turn(input="One", store=False))["status"] == "completed"
    assert await stored_rows(emptied_database_url) == {}


async def test_a_stream_that_cannot_be_stored_ends_as_failed(
    application: Application, emptied_database_url: str
) -> None:
    application.mock.replies = [reply(message("Hi."), stream=True)]
    async with _full_disk(emptied_database_url):
        answer = await application.post({"model": "m", "input": "One", "stream": True})
    events = events_of(answer.content)
    assert answer.status_code == 200
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.failed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(9))
    response = events[-1]["response"]
    assert (response["status"], response["completed_at"]) == ("failed", None)
    assert response["error"]["code"] == "server_error"
    assert "stored" in response["error"]["message"]
    assert '"turn_not_stored"' in application.log
    assert await stored_rows(emptied_database_url) == {}
    assert (await application.http.get(f"/v1/responses/{response['id']}")).status_code == 404


# --- a database that is down


@contextlib.asynccontextmanager
async def _down(database_url: str) -> AsyncIterator[None]:
    """Nobody can be connected to the database."""
    name = database_name(database_url)
    async with connected(with_database(database_url, "postgres")) as connection:
        await connection.execute(f"alter database {name} allow_connections false")
        await connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name)
        try:
            yield
        finally:
            await connection.execute(f"alter database {name} allow_connections true")


@without_pgbouncer
@both_modes
async def test_without_its_database_a_continuation_never_reaches_the_upstream(database_url: str, stream: bool) -> None:
    async with running(database_url, [reply(message("Hi."), stream=stream)]) as application:
        first = await application.turn(input="One", stream=stream)
        again = {"model": "m", "input": "Two", "previous_response_id": first["id"], "stream": stream}
        async with _down(database_url):
            refused = await application.post(again)
            assert refused.status_code == 503
            assert refused.headers["content-type"] == "application/json"
            assert refused.json()["error"]["type"] == "server_error"
            assert len(application.mock.posts) == 1
            for path in (f"/v1/responses/{first['id']}", f"/v1/responses/{first['id']}/input_items"):
                assert (await application.http.get(path)).status_code == 503
            assert (await application.http.delete(f"/v1/responses/{first['id']}")).status_code == 503
            unstored = await application.turn(input="One", store=False, stream=stream)
            assert unstored["status"] == "completed"
        assert (await application.post(again)).status_code == 200


@without_pgbouncer
async def test_readiness_is_that_of_the_database_and_tells_of_the_upstream(database_url: str) -> None:
    async with running(database_url) as application:
        ready = await application.http.get("/readyz")
        assert (ready.status_code, ready.json()) == (
            200,
            {"status": "ready", "database": "ready", "upstream": "ready"},
        )
        async with _down(database_url):
            down = await application.http.get("/readyz")
            assert (down.status_code, down.json()["database"]) == (503, "unavailable")
            assert (await application.http.get("/healthz")).status_code == 200
        assert (await application.http.get("/readyz")).status_code == 200


async def test_readiness_does_not_depend_on_the_upstream(emptied_database_url: str) -> None:
    async with running(emptied_database_url, upstream="http://127.0.0.1:1/v1") as application:
        ready = await application.http.get("/readyz")
        assert (ready.status_code, ready.json()["upstream"]) == (200, "unavailable")
