"""What every tier of tests shares: serving an application on a free port, and the recorded data.

What lives here knows no application: it serves the ones it is given, and reads what lies in `tests/data`.
"""

import asyncio
import contextlib
import functools
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from server.cli.web import HttpProtocol
from server.mock import Reply

DATA = Path(__file__).parent / "data"
STOP_MAX_S = 5


@contextlib.asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """Serves an ASGI application in the running loop and yields its `http://127.0.0.1:PORT`.

    Its start-up runs before and its shutdown after, where it has them. Raises RuntimeError when the start-up fails.
    Requests still open at the end are cancelled after STOP_MAX_S.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    # asyncio sets this for the sockets that it makes itself; without it every answer in two writes takes 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Its own logs are wanted where a test fails, and pytest shows them there: uvicorn's handlers are left out.
    config = uvicorn.Config(
        app, http=HttpProtocol, log_config=None, log_level="error", access_log=False, lifespan="auto", ws="none"
    )
    config.load()
    # Not `server.serve`: it takes over the signals, leaves the process when a start-up fails, and ends in long sleeps.
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    try:
        await server.startup(sockets=[listener])
    except SystemExit as exit:
        listener.close()
        raise RuntimeError("the application did not start: see the log") from exit
    await server.on_tick(0)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await _stop(server)


async def until(condition: Callable[[], bool], within_s: float = 5) -> None:
    """Waits for something that no event tells. Raises TimeoutError when it has not come in time."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 (the condition has no event to wait for)
            await asyncio.sleep(0.001)


async def _stop(server: uvicorn.Server) -> None:
    for listening in server.servers:
        listening.close()
    for connection in list(server.server_state.connections):
        connection.shutdown()
    state = server.server_state
    with contextlib.suppress(TimeoutError):
        await until(lambda: not (state.connections or state.tasks), STOP_MAX_S)
    for task in state.tasks:
        task.cancel()
    await until(lambda: not (state.connections or state.tasks))
    await server.lifespan.shutdown()


class Capture(msgspec.Struct, frozen=True):
    """One recorded exchange with a real vLLM, byte for byte. What was not kept in the recording is None.

    `stream` is what the recorder was told, which for the chains is not what the request says; `is_stream` is what came.
    `raw`, where it was kept, is a second recording of the same request with its head and chunk framing; it ends with
    `<<EOF>>`, the recorder's mark for the end of the connection.
    """

    name: str
    stream: bool
    request: str | None
    status: int | None
    headers: str | None
    body: str | None
    raw: str | None

    @property
    def is_stream(self) -> bool:
        """Whether named events came, as the Responses API sends them; those of Chat Completions have no names."""
        return self.received.startswith(b"event:")

    @property
    def received(self) -> bytes:
        """The bytes of `body`; of a capture without one, those that came in `raw`."""
        if self.body is not None:
            return self.body.encode()
        head, _, rest = (self.raw or "").removesuffix("<<EOF>>").encode().partition(b"\r\n\r\n")
        body = b""
        while b"transfer-encoding: chunked" in head and rest:
            size, _, rest = rest.partition(b"\r\n")
            body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + len(b"\r\n") :]
        return body + rest


@functools.cache
def captures(version: str) -> list[Capture]:
    """Every capture of `0.32`, `0.33` or `deepseek-r1`, in the order they were recorded in."""
    records = [json.loads(line) for line in (DATA / f"captures-{version}.jsonl").read_bytes().splitlines()]
    # The recorder wrote "HTTP status, exit code of curl".
    statuses = [record["status"] and int(record["status"].split()[0]) for record in records]
    return [
        Capture(**{"raw": None, **record, "status": status}) for record, status in zip(records, statuses, strict=True)
    ]


@functools.cache
def cases() -> dict[str, dict[str, Any]]:
    """The reported failures by id, the tokens of their `expand` replaced. They are shared: change a copy."""
    records = [json.loads(line) for line in (DATA / "cases.jsonl").read_bytes().splitlines()]
    return {record["id"]: _expanded(record) for record in records}


def case_replies(case: dict[str, Any]) -> list[Reply]:
    """What the case's upstream answers. A connection that it refuses is no answer, and is left out."""
    replies = [reply for reply in case["upstream_behaviour"]["replies"] if not reply.get("refuse_connection")]
    return msgspec.convert(replies, list[Reply])


def _expanded(case: dict[str, Any]) -> dict[str, Any]:
    tokens = case.pop("expand", {})
    text = json.dumps(case)
    for token, rule in tokens.items():
        text = text.replace(token, rule["char"] * rule["count"])
    expanded: dict[str, Any] = json.loads(text)
    return expanded
