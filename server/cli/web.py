"""A process that serves HTTP: its socket, taken before anything else starts, and its end by a signal."""

import asyncio
import contextlib
import errno
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from typing import Any, NamedTuple

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.config import ConfigError
from server.telemetry import unwrapped

Message = MutableMapping[str, Any]
# An ASGI application. Every framework has types of its own for its three arguments.
Application = Callable[..., Awaitable[None]]
# Host and port, and for IPv6 two numbers more.
Address = tuple[Any, ...]

BACKLOG = 4096
GRACE_S = 5
# What the application then ends must still be stored and sent.
ENDING_S = 5
# Longer than the minute for which load balancers keep idle connections: who closes first must not be us, or a
# request that is on its way is lost.
KEEP_ALIVE_S = 75


class Work(NamedTuple):
    """What requests have begun, and what may go on without them: `ended` waits for its end, `end` ends all of it."""

    ended: Callable[[], Awaitable[None]]
    end: Callable[[], Awaitable[None]]


def listen(host: str, port: int) -> socket.socket:
    """Take the address, so that a second server fails at once. Raises ConfigError if it cannot be had."""
    return _taken(host, port, lambda family, address: socket.create_server(address, family=family, backlog=BACKLOG))


def reserve(host: str, port: int) -> socket.socket:
    """Take the address for sockets `beside` this one, where nothing listens before they do. Raises as `listen` does."""
    reserved = _taken(host, port, _bound)
    # Not before it is bound: then it would be had beside whoever listens there too.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return reserved


def beside(reserved: socket.socket) -> socket.socket:
    """One more socket at a reserved address, which does not listen yet. The kernel shares connections among them."""
    return _bound(reserved.family, reserved.getsockname(), is_shared=True)


def _bound(family: int, address: Address, *, is_shared: bool = False) -> socket.socket:
    with contextlib.ExitStack() as failing:
        bound = failing.enter_context(socket.socket(family, socket.SOCK_STREAM))
        # What an earlier server's connections leave behind does not keep the address.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
        failing.pop_all()
    return bound


def _taken(host: str, port: int, take: Callable[[int, Address], socket.socket]) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ConfigError(f"there is no port {port}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # `localhost` is an address of each family, and the older one is what everybody tries.
        family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        return take(family, address)
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
    listeners: Sequence[socket.socket],
    announce: Callable[[], None],
    opened: contextlib.AbstractAsyncContextManager[None] | None = None,
    work: Work | None = None,
    *,
    drain_max_s: float = GRACE_S,
) -> None:
    """Serve the application on all of these, within `opened`, until SIGINT or SIGTERM.

    Then requests, and `work` that goes on without them, have `drain_max_s` to end by themselves, before what is left of
    it is ended.
    `announce` is called once requests are answered. Raises what `opened` raises.
    """
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=HttpProtocol,
        ws="none",
        lifespan="off",
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(drain_max_s) + ENDING_S,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )
    # Once all is closed uvicorn raises the signal that ended it again.
    with contextlib.suppress(KeyboardInterrupt):
        _Server(config, opened or contextlib.nullcontext(), announce, work, drain_max_s).run(sockets=list(listeners))


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP, for clients that offer another protocol: the offer is ignored (RFC 9110, 7.8).

    curl's `--http2` and Java's client offer h2c with every request; the parser takes what follows the head of such a
    request for that protocol, so that its body would be lost. Here it is parsed once more without the offer.
    """

    # As in uvicorn, what it takes is narrower than asyncio's own; and _Gathering hands on all that uvicorn asks of it.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Gathering(transport, self.loop))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if self.parser.get_method() == b"CONNECT":
                self.send_400_response("This server is no proxy.")
            else:
                self._parse_without_offer(data[offer.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def on_headers_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _parse_without_offer(self, rest: bytes) -> None:
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + self.parser.get_http_version().encode()]
        for name, value in self.headers:
            # Without this word `Upgrade` is a header like any other, which the application may look at.
            kept = _without_upgrade(value) if name == b"connection" else value
            if kept:
                lines.append(name + b": " + kept)
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join([*lines, b"", rest]))


class _Gathering:
    """A transport that keeps the head of a reply until its body comes in the same step of the loop.

    uvicorn writes them one after the other, and each write is a call of the system and a packet.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            self._transport.writelines([self._head, data])
            self._head = b""
        elif data.startswith(b"HTTP/1.1 "):
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head and not self._transport.is_closing():
            self._transport.write(self._head)
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _without_upgrade(value: bytes) -> bytes:
    return b", ".join(word for word in value.split(b",") if word.strip().lower() != b"upgrade").strip()


class _Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        opened: contextlib.AbstractAsyncContextManager[None],
        announce: Callable[[], None],
        work: Work | None,
        drain_max_s: float,
    ) -> None:
        super().__init__(config)
        self._work = work
        self._drain_max_s = drain_max_s
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
        # Who sends a second signal does not want to wait.
        if self._work is not None and not self.force_exit:
            rest = asyncio.ensure_future(self._work.ended())
            await asyncio.wait([ending, rest], return_when=asyncio.FIRST_COMPLETED)
            rest.cancel()
        ending.cancel()
        await self._closing.aclose()

    async def _end_late_requests(self) -> None:
        await asyncio.sleep(self._drain_max_s)
        if self._work is not None:
            await self._work.end()
