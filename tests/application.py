"""The server as its clients meet it: served on a port, before a scripted upstream, on a database of its own.

A test takes the fixture `application`, whose database is `emptied_database_url`, or starts one with settings of its own
by `running(database_url, name=value)`.
"""

import asyncio
import contextlib
import io
import json
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import openai
import pytest
from litestar import Litestar

from server.app import create
from server.config import load
from server.mock import Mock, Reply
from server.protocol.sse import encode
from server.store.database import Database
from server.telemetry import Telemetry
from server.tracing import NO_SPANS, Spans
from tests.harness import serving
from tests.postgres import PostgresServer, as_servers_reach_it, connected, database_name

TIMEOUT_S = 30
both_modes = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
UPSTREAM_API_KEY = "upstream-key-that-nobody-may-see"
CLIENT_API_KEY = "client-key-that-nobody-may-see"


class Application:
    """The running server at `url` and what stands around it.

    `client` is strict about types and never retries; `http` has `url` as its base. `log` is what the server wrote, at
    level debug.
    """

    def __init__(
        self,
        app: Litestar,
        upstream: "_Upstream",
        client: openai.AsyncOpenAI,
        http: httpx.AsyncClient,
        log: io.StringIO,
    ) -> None:
        self.url = str(http.base_url).rstrip("/")
        self.port = http.base_url.port
        self.client = client
        self.http = http
        self._app = app
        self._upstream = upstream
        self._log = log

    @property
    def mock(self) -> Mock:
        return self._upstream.mock

    @property
    def database(self) -> Database:
        """The server's own, for counting its statements."""
        database: Database = self._app.state.database
        return database

    async def read_keys(self) -> None:
        """Let the server know of all keys now, so that it need not read them in the next second."""
        await self._app.state.askers.read()

    async def end_turns(self) -> None:
        """What the server does with turns in flight when it is told to stop."""
        await self._app.state.turns.close()

    @property
    def log(self) -> str:
        return self._log.getvalue()

    @contextlib.contextmanager
    def upstream_held(self) -> Iterator[None]:
        """While this lasts the upstream gets requests and answers none."""
        self._upstream.may_answer.clear()
        try:
            yield
        finally:
            self._upstream.may_answer.set()

    def forget(self) -> None:
        """Begin anew: with a mock that has no script and has received nothing, and an empty log."""
        self._upstream.mock = Mock()
        self._log.seek(0)
        self._log.truncate()

    async def post(self, body: bytes | dict[str, Any], **headers: str) -> httpx.Response:
        """POST /v1/responses; a streamed answer is read to its end."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.http.post(
            "/v1/responses", content=content, headers={"content-type": "application/json", **headers}
        )

    async def turn(self, **members: Any) -> dict[str, Any]:
        """The final response object of one turn, in either mode. The turn must be accepted."""
        answer = await self.post({"model": "m", **members})
        assert answer.status_code == 200, answer.text
        if members.get("stream"):
            response: dict[str, Any] = events_of(answer.content)[-1]["response"]
            return response
        whole: dict[str, Any] = answer.json()
        return whole

    def sent(self, number: int = -1) -> dict[str, Any]:
        """What the upstream received, by default last."""
        request: dict[str, Any] = self.mock.posts[number].json
        return request

    async def listed(self, response_id: str) -> list[dict[str, Any]]:
        """What input_items lists of a response, oldest first; at most 100 items."""
        answer = await self.http.get(f"/v1/responses/{response_id}/input_items", params={"order": "asc", "limit": 100})
        assert answer.status_code == 200, answer.text
        listed: list[dict[str, Any]] = answer.json()["data"]
        return listed

    async def converse(self, *items: Any, **members: Any) -> str:
        """The id of a new conversation with these items. It must be accepted."""
        answer = await self.http.post("/v1/conversations", json={"items": items, **members})
        assert answer.status_code == 200, answer.text
        conversation_id: str = answer.json()["id"]
        return conversation_id

    async def conversed(self, conversation_id: str) -> list[dict[str, Any]]:
        """All that a conversation lists, oldest first, page by page."""
        path, items, has_more = f"/v1/conversations/{conversation_id}/items", list[dict[str, Any]](), True
        while has_more:
            behind = {"after": items[-1]["id"]} if items else {}
            answer = await self.http.get(path, params={"order": "asc", "limit": 100, **behind})
            assert answer.status_code == 200, answer.text
            items += answer.json()["data"]
            has_more = answer.json()["has_more"]
        return items


@contextlib.asynccontextmanager
async def running(
    database_url: str,
    replies: Sequence[Reply] = (),
    *,
    upstreams: str | None = None,
    spans: Spans = NO_SPANS,
    **settings: Any,
) -> AsyncIterator[Application]:
    """The server on a migrated database, before a mock that answers by `replies`; without any it answers by itself.

    `upstreams` are the tables of a configuration file in place of the one upstream; `URL` in them is the mock's.
    """
    upstream, log = _Upstream(Mock(replies)), io.StringIO()
    async with contextlib.AsyncExitStack() as opened:
        upstream_url = await opened.enter_async_context(serving(upstream))
        given: dict[str, Any] = {
            "upstream": f"{upstream_url}/v1",
            "upstream_api_key": UPSTREAM_API_KEY,
            "no_migrate": True,
            **as_servers_reach_it(database_url),
            # Statements are counted, and a sweep's are none of a turn's.
            "sweep_interval_s": 0,
        }
        if upstreams is not None:
            file = opened.enter_context(_config_file(upstreams.replace("URL", f"{upstream_url}/v1")))
            given |= {"config": file, "upstream": None, "upstream_api_key": None}
        app = create(load(given | settings, {}), Telemetry("debug", log, spans=spans))
        url = await opened.enter_async_context(serving(app))
        # Without a key it has warned that it is open to all.
        log.seek(0)
        log.truncate()
        # Nothing here is encrypted, and to read the system's certificates takes longer than a turn.
        http = httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False, verify=False)
        await opened.enter_async_context(http)
        client = openai.AsyncOpenAI(
            base_url=f"{url}/v1",
            api_key=CLIENT_API_KEY,
            max_retries=0,
            timeout=TIMEOUT_S,
            http_client=httpx.AsyncClient(trust_env=False, verify=False),
            _strict_response_validation=True,
        )
        await opened.enter_async_context(client)
        yield Application(app, upstream, client, http, log)


@contextlib.contextmanager
def _config_file(text: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.toml")
        path.write_text(text)
        yield str(path)


class _Upstream:
    """What the upstream's port serves: a mock that can be changed for another, and made to wait with its answers."""

    def __init__(self, mock: Mock) -> None:
        self.mock = mock
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_when_allowed(message: Any) -> None:
            await self.may_answer.wait()
            await send(message)

        await self.mock(scope, receive, send_when_allowed)


@pytest.fixture(scope="session")
async def shared_database_url(postgres: PostgresServer, migrated_template: str) -> AsyncIterator[str]:
    """One database for all tests that do nothing to it but store turns: to create one takes as long as twenty turns."""
    async with postgres.new_database(template=migrated_template) as url:
        async with connected(url) as connection:
            # Nothing in it need survive a crash, so that no commit has to wait for the disk.
            await connection.execute(f"alter database {database_name(url)} set synchronous_commit = off")
        yield url


@pytest.fixture
async def emptied_database_url(shared_database_url: str) -> str:
    async with connected(shared_database_url) as connection:
        # What hangs on a response goes with it. To truncate would take twenty times as long.
        await connection.execute(
            "delete from conversation_items; delete from responses; delete from items; delete from conversations;"
            "delete from usage; delete from idempotency_keys; delete from request_counts; delete from api_keys;"
            "delete from tenants where id > 1"
        )
    return shared_database_url


@pytest.fixture(scope="session")
async def shared_application(shared_database_url: str) -> AsyncIterator[Application]:
    async with running(shared_database_url) as started:
        yield started


@pytest.fixture
def application(shared_application: Application, emptied_database_url: str) -> Application:
    """The server as it is by default, on `emptied_database_url`. A test must let every turn end that it began."""
    shared_application.forget()
    return shared_application


async def stored_rows(database_url: str) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table of ours that has any, oldest first; but not who may ask."""
    async with connected(database_url) as connection:
        tables = {
            name: await connection.fetch(f"select * from {name} order by 2") for name in await _tables(connection)
        }
    return {name: [dict(row) for row in rows] for name, rows in tables.items() if rows}


async def _tables(connection: "asyncpg.Connection[asyncpg.Record]") -> list[str]:
    names = await connection.fetch("select tablename from pg_tables where schemaname = 'public'")
    return [name for (name,) in names if name not in ("alembic_version", "tenants", "api_keys")]


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream that has ended as the contract says: each named by its type, and `[DONE]` at last."""
    *frames, done, rest = stream.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b""), stream[-200:]
    events = []
    for frame in frames:
        if frame.startswith(b":"):
            continue
        name, data = frame.split(b"\n")
        event = json.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + event["type"].encode()
        events.append(event)
    return events


class Minted:
    """Equal to an id that the server made: a prefix and 48 hexadecimal digits."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return False
        prefix, _, digits = other.partition("_")
        return prefix == self._prefix and len(digits) == 48 and set(digits) <= set("0123456789abcdef")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<a minted {self._prefix}_>"


# --- what an upstream answers


def message(text: str, **members: Any) -> dict[str, Any]:
    """An assistant's message as vLLM makes it."""
    content = [{"annotations": [], "text": text, "type": "output_text", "logprobs": None}]
    return {
        "id": "msg_up",
        "content": content,
        "role": "assistant",
        "status": "completed",
        "type": "message",
        "phase": None,
    } | members


def reasoning(*texts: str, **members: Any) -> dict[str, Any]:
    content = [{"text": text, "type": "reasoning_text"} for text in texts]
    return {
        "id": "rs_up",
        "summary": [],
        "type": "reasoning",
        "content": content,
        "encrypted_content": None,
        "status": None,
    } | members


def function_call(name: str, arguments: str = "{}", call_id: str = "call_1", **members: Any) -> dict[str, Any]:
    return {
        "arguments": arguments,
        "call_id": call_id,
        "name": name,
        "type": "function_call",
        "id": "fc_up",
        "namespace": None,
        "status": "completed",
    } | members


def reply(*output: dict[str, Any] | str, stream: bool, **members: Any) -> Reply:
    """An upstream's success with these output items, each a dict or a JSON text that arrives as it is here.

    `members` are further ones of the response object, or others than it has.
    """
    items = [item if isinstance(item, str) else json.dumps(item) for item in output]
    whole = {"id": "{{request_id}}", "created_at": 1_700_000_000, "model": "m", "object": "response"}
    whole |= {"status": "completed", "usage": None} | members
    head = json.dumps(whole)[:-1]
    if not stream:
        return Reply(text=f'{head}, "output": [{", ".join(items)}]}}', headers={"content-type": "application/json"})
    return Reply(sse_chunks=list(_stream(head, items, f"response.{whole['status']}")))


def _stream(head: str, items: list[str], terminal: str) -> Iterator[str]:
    begun = f'"response": {head}, "output": []}}'
    frames = [("response.created", begun), ("response.in_progress", begun)]
    for index, item in enumerate(items):
        place = f'"output_index": {index}'
        frames.append(("response.output_item.added", f'{place}, "item": {item}'))
        frames += [(name, f"{place}, {rest}") for name, rest in _text_events(json.loads(item, parse_int=str))]
        frames.append(("response.output_item.done", f'{place}, "item": {item}'))
    frames.append((terminal, f'"response": {head}, "output": [{", ".join(items)}]}}'))
    for number, (name, rest) in enumerate(frames):
        yield encode(name.encode(), f'{{"type": "{name}", "sequence_number": {number}, {rest}}}'.encode()).decode()


def _text_events(item: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The events of the one text of a message. Those of other items are in vLLM's recorded streams."""
    if item["type"] != "message":
        return
    place = f'"item_id": {json.dumps(item["id"])}, "content_index": 0'
    [part] = item["content"]
    empty, text = json.dumps(part | {"text": ""}), json.dumps(part["text"])
    yield "response.content_part.added", f'{place}, "part": {empty}'
    yield "response.output_text.delta", f'{place}, "delta": {text}, "logprobs": []'
    yield "response.output_text.done", f'{place}, "text": {text}, "logprobs": []'
    yield "response.content_part.done", f'{place}, "part": {json.dumps(part)}'
