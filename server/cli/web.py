"""A process that serves HTTP: its socket, taken before anything else starts, and its end by a signal."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

from server.config import ConfigError
from server.telemetry import unwrapped

Message = MutableMapping[str, Any]
# An ASGI application. Every framework has types of its own for its three arguments.
Application = Callable[..., Awaitable[None]]

BACKLOG = 4096
GRACE_S = 5
# What the application then ends must still be stored and sent.
ENDING_S = 5
# Longer than the minute for which load balancers keep idle connections: who closes first must not be us, or a
# request that is on its way is lost.
KEEP_ALIVE_S = 75


def listen(host: str, port: int) -> socket.socket:
    """Take the address, so that a second server fails at once. Raises ConfigError if it cannot be had."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"there is no port {port}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # `localhost` is an address of each family, and the older one is what everybody tries.
        family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        return socket.create_server(address, family=family, backlog=BACKLOG)
    except UnicodeError:
        raise ConfigError(f"cannot listen on {host}: not the name of a host") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {port} of {host} is taken; choose another with --port") from None
        raise ConfigError(f"cannot listen on port {port} of {host}: {error.strerror}") from None


def url_of(listener: socket.socket) -> str:
    """The URL a listening socket is reached by, with the port it really has."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"


@contextlib.asynccontextmanager
async def lifespan(app: Application) -> AsyncIterator[None]:
    """Open the application, and close it at the end. What fails in either is raised as it is.

    uvicorn can do this too, but would leave of a failure only the text that a framework makes of it.
    """
    has_started, may_stop = asyncio.Event(), asyncio.Event()
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> Message:
        message = next(messages)
        if message["type"] == "lifespan.shutdown":
            await may_stop.wait()
        return message

    async def send(message: Message) -> None:
        if message["type"] == "lifespan.startup.complete":
            has_started.set()

    life = asyncio.ensure_future(app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send))
    life.add_done_callback(lambda _: has_started.set())
    await has_started.wait()
    if not life.done():
        yield
        may_stop.set()
        await asyncio.wait([life])
    if error := life.exception():
        raise unwrapped(error)


def run(
    app: Application,
    listener: socket.socket,
    announce: Callable[[], None],
    opened: contextlib.AbstractAsyncContextManager[None] | None = None,
    end_requests: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serve the application, within `opened`, until SIGINT or SIGTERM.

    Then requests have GRACE_S to end by themselves, before `end_requests` ends those that are still open. `announce` is
    called once requests are answered. Raises what `opened` raises.
    """
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S + ENDING_S,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )
    # Once all is closed uvicorn raises the signal that ended it again.
    with contextlib.suppress(KeyboardInterrupt):
        _Server(config, opened or contextlib.nullcontext(), announce, end_requests).run(sockets=[listener])


class _Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        opened: contextlib.AbstractAsyncContextManager[None],
        announce: Callable[[], None],
        end_requests: Callable[[], Awaitable[None]] | None,
    ) -> None:
        super().__init__(config)
        self._end_requests = end_requests
        self._opened = opened
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        async with contextlib.AsyncExitStack() as closing:
            await closing.enter_async_context(self._opened)
            await super().startup(sockets)
            self._closing = closing.pop_all()
        if not self.should_exit:
            self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(self._end_late_requests())
        await super().shutdown(sockets)
        ending.cancel()
        await self._closing.aclose()

    async def _end_late_requests(self) -> None:
        await asyncio.sleep(GRACE_S)
        if self._end_requests is not None:
            await self._end_requests()
