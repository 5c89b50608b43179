"""A lean HTTP/1.1 transport for httpx: the event loop's sockets, httptools' parser, and nothing between them.

What lives here moves bytes and knows no upstream (ADR 9). Sizes are in bytes, times in seconds. Whatever goes wrong is
raised as httpx's own exception for it.
"""

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, Literal, cast
from urllib.parse import unquote_to_bytes

import httpx
from aiohappyeyeballs import start_connection

from server.upstream.body import Body
from server.upstream.http_reply import HttpReply
from server.upstream.over_aiohttp import NamedFaults

BUFFER_BYTES_MAX = 262_144
"""From here on what nobody reads stays with its sender. The loop's last read may come on top, as much again."""

IDLE_MAX_S = 3
"""vLLM's own server closes an idle connection after 5 s; ours must let go of it first, or a turn meets a closed one."""

_NEXT_ADDRESS_AFTER_S = 0.25
"""A name may have an address that swallows what is sent there; another is tried beside it (RFC 8305, 5)."""

_Origin = tuple[str, str, int | None]


class LeanTransport(httpx.AsyncBaseTransport):
    """Sends requests over connections that it keeps. It has no limit of their number: turns have one.

    Of the extension `timeout`, `connect` bounds the opening of a connection with its TLS, and `read` each silence of
    the peer while a reply is awaited. A request's body is read whole before its first byte is sent. Raises
    ConnectError, ConnectTimeout, ReadError, ReadTimeout, RemoteProtocolError, UnsupportedProtocol for other schemes
    than http and https, and LocalProtocolError for a header that holds a line break.
    """

    def __init__(self, tls: ssl.SSLContext | None = None, *, idle_max_s: float = IDLE_MAX_S) -> None:
        self._tls = tls
        self._pool = _Pool(idle_max_s)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.scheme not in {"http", "https"}:
            raise httpx.UnsupportedProtocol("Only http and https are spoken here.")
        body = [piece async for piece in cast(httpx.AsyncByteStream, request.stream)]
        message = [_head(request, sum(map(len, body))), *body]
        limits = request.extensions.get("timeout", {})
        silence_max_s = limits.get("read")
        origin = (request.url.scheme, request.url.host, request.url.port)
        kept = self._pool.take(origin)
        if kept is not None:
            try:
                response = await self._ask(kept, request.method, message, silence_max_s)
                if not _is_told_of_idleness(response):
                    return response
                await response.aclose()
            except (httpx.ReadError, httpx.RemoteProtocolError):
                # Its peer closed it, most likely before the request came there: a fresh one is asked, once.
                if kept.has_answered or self._pool.is_closed:
                    raise
        fresh = await self._open(origin, limits.get("connect"))
        return await self._ask(fresh, request.method, message, silence_max_s)

    async def aclose(self) -> None:
        """Ends every connection and waits until all are gone; replies that are being read raise ReadError."""
        await self._pool.close()

    async def _ask(
        self, connection: "_Connection", method: str, message: list[bytes], silence_max_s: float | None
    ) -> httpx.Response:
        reply = HttpReply(method)
        connection.send(message, reply, silence_max_s)
        try:
            while not reply.status:
                await connection.news(_anything)
        except BaseException:
            self._pool.give_back(connection)
            raise
        return httpx.Response(reply.status, headers=reply.headers, stream=_Body(self._pool, connection, reply))

    async def _open(self, origin: _Origin, timeout_s: float | None) -> "_Connection":
        scheme, host, port = origin
        is_tls = scheme == "https"
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                found = await loop.getaddrinfo(host, port or (443 if is_tls else 80), type=socket.SOCK_STREAM)
                _, connection = await loop.create_connection(
                    lambda: _Connection(origin, self._pool.opened),
                    sock=await start_connection(found, happy_eyeballs_delay=_NEXT_ADDRESS_AFTER_S),
                    ssl=self._tls_context() if is_tls else None,
                    server_hostname=host if is_tls else None,
                )
        except TimeoutError as error:
            raise httpx.ConnectTimeout("No connection was made in time.") from error
        except (OSError, RuntimeError, UnicodeError) as error:
            # uvloop has a RuntimeError for some of what is an OSError elsewhere.
            raise httpx.ConnectError("No connection was made.") from error
        if self._pool.is_closed or not connection.is_usable:
            connection.end()
            raise httpx.ConnectError("The connection was closed before it was used.")
        self._pool.opened.add(connection)
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        # To read the certificates takes longer than a turn, and most upstreams are spoken to without.
        self._tls = self._tls or tls_context()
        return self._tls


def lean(tls: ssl.SSLContext | None = None) -> httpx.AsyncBaseTransport:
    """The transport by default. `tls` takes the place of what `tls_context` makes."""
    return LeanTransport(tls)


def aiohttp(tls: ssl.SSLContext | None = None) -> httpx.AsyncBaseTransport:
    """The same over aiohttp, which costs more and has been proven for longer."""
    return NamedFaults(tls or tls_context(), IDLE_MAX_S)


TRANSPORTS: Final[dict[Literal["lean", "aiohttp"], Callable[[], httpx.AsyncBaseTransport]]] = {
    "lean": lean,
    "aiohttp": aiohttp,
}


def tls_context() -> ssl.SSLContext:
    """Trusts whom certifi trusts, and offers HTTP/1.1 alone."""
    context = httpx.create_ssl_context(trust_env=False)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _head(request: httpx.Request, body_bytes: int) -> bytes:
    """The request's first line and headers, with those added that it needs on the wire."""
    url, fields = request.url, request.headers.raw
    names = {name.lower() for name, _ in fields}
    lines = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), url.raw_path)]
    if b"host" not in names:
        lines.append(b"host: " + url.netloc)
    if url.userinfo and b"authorization" not in names:
        user, _, password = url.userinfo.partition(b":")
        credentials = unquote_to_bytes(user) + b":" + unquote_to_bytes(password)
        lines.append(b"authorization: Basic " + base64.b64encode(credentials))
    if body_bytes and b"content-length" not in names:
        lines.append(b"content-length: %d" % body_bytes)
    # The body is whole by now, so that its length frames it in place of chunks.
    lines += [b"%b: %b" % field for field in fields if field[0].lower() != b"transfer-encoding"]
    head = b"\r\n".join([*lines, b"", b""])
    if head.count(b"\r") + head.count(b"\n") != 2 * (len(lines) + 1):
        raise httpx.LocalProtocolError("A header of the request holds a line break.")
    return head


def _is_told_of_idleness(response: httpx.Response) -> bool:
    """Whether a kept connection was given up, as some proxies say it, while a request was on its way to there.

    Such a request was not read, and may be sent again (RFC 9110, 15.5.9). A gateway's own time-out is a 408 as well,
    but keeps the connection: that request was read.
    """
    return response.status_code == 408 and response.headers.get("connection", "").lower() == "close"


def _anything() -> bool:
    return True


class _Connection(asyncio.Protocol):
    """One socket, which carries one reply after the other. It leaves `opened` at its very end.

    Who opens it adds it there, once it has it: uvloop says nothing of the end of one whose opening is cancelled.
    """

    def __init__(self, origin: _Origin, opened: "set[_Connection]") -> None:
        self.origin = origin
        self.idle_since_s = 0.0
        self.has_answered = False
        """Whether a byte came since the last request was sent."""
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._reply: HttpReply | None = None
        self._fault: httpx.TransportError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_awaited: Callable[[], bool] = _anything
        self._is_paused = False
        self._heard_at_s = 0.0
        self._silence: asyncio.TimerHandle | None = None

    @property
    def is_usable(self) -> bool:
        return not self._transport.is_closing()

    def send(self, message: Iterable[bytes], reply: HttpReply, silence_max_s: float | None) -> None:
        """Sends a request; what comes from now on goes to `reply`."""
        self._reply = reply
        self.has_answered = False
        self._transport.writelines(message)
        if silence_max_s is not None:
            self._silence = self._loop.call_later(silence_max_s, self._watch_silence, silence_max_s)

    async def news(self, is_awaited: Callable[[], bool]) -> None:
        """Waits until more of the reply is there, or raises why nothing more comes.

        Whether it is what the waiting is for is asked as soon as it comes. Nobody is woken for anything else, which
        takes longer than to hand on a piece.
        """
        if self._fault is not None:
            raise self._fault
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        self._heard_at_s = self._loop.time()
        self._waiter, self._is_awaited = self._loop.create_future(), is_awaited
        try:
            await self._waiter
        finally:
            self._waiter, self._is_awaited = None, _anything

    def end(self) -> bool:
        """Ends the reply, read or not; whether the connection can carry another. One that cannot is closed."""
        reply, self._reply = self._reply, None
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None
        if reply is not None:
            reply.end()
            # A peer that answers before it has read the request may never read the rest of it.
            if reply.is_complete and reply.is_kept and self.is_usable and not self._transport.get_write_buffer_size():
                if self._is_paused:
                    self._is_paused = False
                    self._transport.resume_reading()
                return True
        self._transport.abort()
        return False

    def fail(self, fault: httpx.TransportError) -> None:
        """Closes the connection. Who reads its reply gets what came, and then the fault."""
        self._fault = self._fault or fault
        self._transport.abort()
        self._wake()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:
            # Nothing was asked; what comes now, such as a 408, must not answer the next request.
            self._transport.abort()
            return
        self.has_answered = True
        self._heard_at_s = self._loop.time()
        try:
            reply.feed(data)
        except httpx.RemoteProtocolError as fault:
            self.fail(fault)
            return
        if reply.status:
            self._wake()
        # What was handed on just now is not waited for: nobody would resume the reading.
        if reply.pieces_bytes > BUFFER_BYTES_MAX and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._opened.discard(self)
        self.closed.set_result(None)
        if error is not None:
            self._fault = self._fault or httpx.ReadError("The connection broke.")
        elif self._reply is None or not self._reply.end_of_connection():
            self._fault = self._fault or httpx.RemoteProtocolError("The peer closed the connection.")
        self._wake()

    def _wake(self) -> None:
        if self._waiter is None or self._waiter.done():
            return
        try:
            if self._fault is not None or self._is_awaited():
                self._waiter.set_result(None)
        except Exception as error:
            self._waiter.set_exception(error)

    def _watch_silence(self, silence_max_s: float) -> None:
        """Looks once in a while, since a timer for each wait would cost more than the wait itself.

        A silence counts only while somebody waits: one that reads slowly has caused it himself.
        """
        silent_s = self._loop.time() - self._heard_at_s if self._waiter is not None else 0.0
        if silent_s >= silence_max_s:
            self.fail(httpx.ReadTimeout("The peer was silent for too long."))
        else:
            self._silence = self._loop.call_later(silence_max_s - silent_s, self._watch_silence, silence_max_s)


class _Body(Body):
    """The body of one reply. To read or close it ends the reply, and gives its connection back."""

    def __init__(self, pool: "_Pool", connection: _Connection, reply: HttpReply) -> None:
        self._pool = pool
        self._connection: _Connection | None = connection
        self._reply = reply

    async def __aiter__(self) -> AsyncIterator[bytes]:
        reply = self._reply
        try:
            while self._connection is not None:
                if reply.pieces:
                    yield reply.take()
                elif reply.is_complete:
                    break
                else:
                    await self._connection.news(_anything)
        finally:
            await self.aclose()

    async def pour(self, take: Callable[[bytes], bool]) -> None:
        reply, is_enough = self._reply, False

        def is_over() -> bool:
            nonlocal is_enough
            if reply.pieces and not is_enough:
                is_enough = take(reply.take())
            return is_enough or reply.is_complete

        while self._connection is not None and not is_over():
            await self._connection.news(is_over)

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give_back(connection)


class _Pool:
    """The connections that are open, and which of them wait for a request."""

    def __init__(self, idle_max_s: float) -> None:
        self.opened: set[_Connection] = set()
        self.is_closed = False
        self._idle: dict[_Origin, list[_Connection]] = {}
        self._idle_max_s = idle_max_s
        self._sweep: asyncio.TimerHandle | None = None

    def take(self, origin: _Origin) -> _Connection | None:
        """The connection to there that was used last, since it is the least likely to be stale."""
        idle = self._idle.get(origin, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
        return None

    def give_back(self, connection: _Connection) -> None:
        """Keeps a connection whose reply was read to its end, and closes any other."""
        if connection.end():
            connection.idle_since_s = asyncio.get_running_loop().time()
            self._idle.setdefault(connection.origin, []).append(connection)
            self._sweep = self._sweep or self._sweep_later(self._idle_max_s)

    async def close(self) -> None:
        self.is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        opened = list(self.opened)
        for connection in opened:
            connection.fail(httpx.ReadError("The transport was closed."))
        await asyncio.gather(*(connection.closed for connection in opened))

    def _sweep_later(self, wait_s: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(wait_s, self._close_idle)

    def _close_idle(self) -> None:
        now_s = asyncio.get_running_loop().time()
        kept: dict[_Origin, list[_Connection]] = {}
        for origin, connections in self._idle.items():
            for connection in connections:
                if connection.is_usable and now_s - connection.idle_since_s < self._idle_max_s:
                    kept.setdefault(origin, []).append(connection)
                else:
                    connection.end()
        self._idle = kept
        oldest_s = min((connection.idle_since_s for idle in kept.values() for connection in idle), default=None)
        self._sweep = None if oldest_s is None else self._sweep_later(oldest_s + self._idle_max_s - now_s)
