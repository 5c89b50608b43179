"""Both transports before peers that are scripted byte by byte: what they send, what they make of it, what they leave.

Each test runs with the lean transport and with aiohttp's, on asyncio's loop and on uvloop, and must leave no socket and
no task behind.
"""

import asyncio
import contextlib
import functools
import inspect
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, cast

import httpx
import msgspec
import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.upstream.body import Body
from server.upstream.over_aiohttp import NamedFaults
from server.upstream.transport import LeanTransport, tls_context
from tests.harness import DATA, captures, until

pytestmark = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)

Factory = Callable[..., httpx.AsyncBaseTransport]
CERTIFICATE = DATA / "localhost.pem"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
# What is timed out waits this long, and what must not be stays well below it.
SHORT_S = 0.25
TEST_MAX_S = 20


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test on a loop of its own, which `new_loop` makes, and looks at what it has left when it has ended."""

    async def watched(arguments: dict[str, Any]) -> None:
        sockets = open_sockets()
        async with asyncio.timeout(TEST_MAX_S):
            await test(**arguments)
        await until(lambda: open_sockets() <= sockets and len(asyncio.all_tasks()) == 1)

    parameters = inspect.signature(test).parameters.values()
    loop = inspect.Parameter("new_loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.Signature([loop, *parameters], return_annotation=None)

    @functools.wraps(test)
    def run(*values: Any, **named: Any) -> None:
        arguments = dict(signature.bind(*values, **named).arguments)
        with asyncio.Runner(loop_factory=arguments.pop("new_loop")) as runner:
            runner.run(watched(arguments))

    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


@functools.cache
def trusting() -> ssl.SSLContext:
    context = tls_context()
    context.load_verify_locations(CERTIFICATE)
    return context


def server_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def lean(idle_max_s: float = 3) -> httpx.AsyncBaseTransport:
    return LeanTransport(trusting(), idle_max_s=idle_max_s)


def aiohttp(idle_max_s: float = 3) -> httpx.AsyncBaseTransport:
    return NamedFaults(trusting(), idle_max_s)


both = pytest.mark.parametrize("made", [lean, aiohttp])


def open_sockets() -> set[str]:
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{descriptor}")
            if target.startswith("socket:"):
                found.add(target)
    return found


class Peer:
    """A server of one test. `answer` is called for each connection, and the connection closed when it returns."""

    def __init__(self, answer: Callable[["Peer", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        self.url = ""
        self.requests: list[bytes] = []
        self.connections = 0
        self.open = 0
        self._answer = answer

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        """The next request, head and body; raises IncompleteReadError when the client has left."""
        head = await reader.readuntil(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        body = await reader.readexactly(int(lengths[0].split(b":")[1]) if lengths else 0)
        self.requests.append(head + body)
        return head + body

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            # uvloop raises the last of them where a connection has gone that is written to.
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, RuntimeError):
                await self._answer(self, reader, writer)
        finally:
            self.open -= 1
            writer.close()


@contextlib.asynccontextmanager
async def serving(
    answer: Callable[[Peer, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
) -> AsyncIterator[Peer]:
    peer = Peer(answer)
    tasks: set[asyncio.Task[None]] = set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(peer.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(begin, host, 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    name = f"[{host}]" if ":" in host else host
    peer.url = f"{'https' if tls else 'http'}://{name}:{port}"
    try:
        yield peer
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def saying(*replies: bytes, close: bool = False) -> Callable[..., Awaitable[None]]:
    """Answers request after request of a connection, with these in turn; `close` ends it behind the last."""

    async def answer(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for reply in replies:
            await peer.request(reader)
            writer.write(reply)
        if not close:
            await peer.request(reader)

    return answer


def in_pieces(reply: bytes, cuts: Sequence[int]) -> Callable[..., Awaitable[None]]:
    """Answers with these bytes, each part read by itself, and closes."""

    async def answer(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.request(reader)
        for begin, end in zip([0, *cuts], [*cuts, len(reply)], strict=True):
            writer.write(reply[begin:end])
            for _ in range(3):
                # Both ends are in one loop: each turn of it lets the other read.
                await asyncio.sleep(0)

    return answer


class Pieces(httpx.AsyncByteStream):
    """A body that is not read before it is sent."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


@contextlib.asynccontextmanager
async def opened(made: Factory, **arguments: Any) -> AsyncIterator[httpx.AsyncBaseTransport]:
    transport = made(**arguments)
    try:
        yield transport
    finally:
        await transport.aclose()


async def begun(
    transport: httpx.AsyncBaseTransport,
    url: str,
    method: str = "POST",
    body: bytes = b"{}",
    headers: dict[str, str] | None = None,
    read_s: float | None = 5,
    connect_s: float | None = 5,
) -> httpx.Response:
    """The reply from its head on."""
    timeout = {"connect": connect_s, "read": read_s, "write": None, "pool": None}
    if method in {"GET", "HEAD"}:
        request = httpx.Request(method, url, headers=headers, extensions={"timeout": timeout})
    else:
        headers = {**(headers or {}), "content-length": str(len(body))}
        request = httpx.Request(method, url, headers=headers, stream=Pieces(body), extensions={"timeout": timeout})
    return await transport.handle_async_request(request)


async def body_of(response: httpx.Response) -> bytes:
    try:
        return b"".join([piece async for piece in response.stream])  # type: ignore[union-attr]
    finally:
        await response.aclose()


async def whole(*arguments: Any, **named: Any) -> bytes:
    return await body_of(await begun(*arguments, **named))


# --- how a reply is framed

CHUNKS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"
# The reply -> method, whether the peer closes, status, body, and whether the connection is used again.
FRAMED: dict[str, tuple[bytes, str, bool, int, bytes, bool]] = {
    "a length": (OK, "POST", False, 200, b"ok", True),
    "no byte": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "POST", False, 200, b"", True),
    "chunks": (CHUNKS + b"2;x=y\r\nde\r\n0\r\n\r\n", "POST", False, 200, b"abcde", True),
    "trailers": (CHUNKS + b"0\r\nX-Sum: 1\r\nY: 2\r\n\r\n", "POST", False, 200, b"abc", True),
    "until it closes": (b"HTTP/1.1 200 OK\r\nX: y\r\n\r\nabc", "POST", True, 200, b"abc", False),
    "nothing until it closes": (b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n", "POST", True, 200, b"", False),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\n\r\nabc", "POST", True, 200, b"abc", False),
    "HTTP/1.0 with a length": (b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\nabc", "POST", False, 200, b"abc", False),
    "HTTP/1.0 that stays": (
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 3\r\n\r\nabc",
        "POST",
        False,
        200,
        b"abc",
        True,
    ),
    "connection: close": (
        b"HTTP/1.1 200 OK\r\nConnection: close\r\ncontent-length: 3\r\n\r\nabc",
        "POST",
        False,
        200,
        b"abc",
        False,
    ),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", "POST", False, 204, b"", True),
    "304 that tells a length": (b"HTTP/1.1 304 N\r\ncontent-length: 5\r\n\r\n", "GET", False, 304, b"", True),
    "HEAD": (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", "HEAD", False, 200, b"", True),
    "100 before it": (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, "POST", False, 200, b"ok", True),
    "103 before it": (b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + OK, "POST", False, 200, b"ok", True),
    "an offer to upgrade": (
        b"HTTP/1.1 200 OK\r\nUpgrade: h2,h2c\r\nConnection: Upgrade\r\nContent-Length: 2\r\n\r\nok",
        "POST",
        False,
        200,
        b"ok",
        True,
    ),
    "an error": (b"HTTP/1.1 500 Oh\r\ncontent-length: 2\r\n\r\nno", "POST", False, 500, b"no", True),
    "no reason": (b"HTTP/1.1 200 \r\ncontent-length: 2\r\n\r\nok", "POST", False, 200, b"ok", True),
}


@both
@pytest.mark.parametrize(("reply", "method", "close", "status", "body", "is_kept"), FRAMED.values(), ids=FRAMED)
@on_a_loop
async def test_where_a_reply_ends(
    made: Factory, reply: bytes, method: str, close: bool, status: int, body: bytes, is_kept: bool
) -> None:
    answer = saying(reply, close=True) if close else saying(reply, reply)
    async with serving(answer) as peer, opened(made) as transport:
        for _ in range(2):
            response = await begun(transport, peer.url, method)
            assert (response.status_code, await body_of(response)) == (status, body)
        assert peer.connections == (1 if is_kept else 2)


@both
@on_a_loop
async def test_headers_arrive_as_they_are(made: Factory) -> None:
    reply = b"HTTP/1.1 200 OK\r\nX-One: a b \r\nEmpty:\r\nX-One:\tc\r\nContent-Length: 0\r\n\r\n"
    async with serving(saying(reply)) as peer, opened(made) as transport:
        response = await begun(transport, peer.url)
        assert response.headers.raw == [
            (b"X-One", b"a b"),
            (b"Empty", b""),
            (b"X-One", b"c"),
            (b"Content-Length", b"0"),
        ]
        assert await body_of(response) == b""


# --- cuts

RECORDED = [
    (capture.raw.removesuffix("<<EOF>>").encode(), msgspec.structs.replace(capture, body=None).received, capture.name)
    for version in ("0.32", "0.33")
    for capture in captures(version)
    if capture.raw is not None
]
CUTS_SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@both
@on_a_loop
async def test_every_cut_of_a_recorded_refusal(made: Factory) -> None:
    raw, body, _ = min(RECORDED, key=lambda recorded: len(recorded[0]))
    for cut in range(1, len(raw)):
        async with serving(in_pieces(raw, [cut])) as peer, opened(made) as transport:
            response = await begun(transport, peer.url)
            assert (response.status_code, await body_of(response)) == (400, body), cut


@both
@CUTS_SETTINGS
@given(data=st.data())
@on_a_loop
async def test_a_recorded_reply_in_any_pieces(made: Factory, data: st.DataObject) -> None:
    raw, body, name = data.draw(st.sampled_from(RECORDED))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw) - 1), max_size=40)))
    async with serving(in_pieces(raw, cuts)) as peer, opened(made) as transport:
        response = await begun(transport, peer.url)
        got = b""
        # The engine was killed before it could end its last chunk: all that it said comes, and then the fault.
        broken = pytest.raises(httpx.RemoteProtocolError) if name == "90-engine-killed" else contextlib.nullcontext()
        with broken:
            async for piece in response.stream:  # type: ignore[union-attr]
                got += piece
        await response.aclose()
        assert got == body


@both
@CUTS_SETTINGS
@given(
    chunks=st.lists(st.binary(min_size=1, max_size=300), max_size=20), cut_every=st.integers(1, 50), late=st.booleans()
)
@on_a_loop
async def test_any_chunks_in_any_pieces(made: Factory, chunks: list[bytes], cut_every: int, late: bool) -> None:
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"
    async with serving(in_pieces(raw, range(cut_every, len(raw), cut_every))) as peer, opened(made) as transport:
        response = await begun(transport, peer.url)
        if late:
            await asyncio.sleep(0.005)
        assert await body_of(response) == b"".join(chunks)


# --- a body that is poured


async def poured(response: httpx.Response, size_max: int | None = None) -> bytes:
    """What was taken of a body until it was enough."""
    taken: list[bytes] = []

    def take(piece: bytes) -> bool:
        taken.append(piece)
        return size_max is not None and sum(map(len, taken)) >= size_max

    await cast(Body, response.stream).pour(take)
    return b"".join(taken)


@both
@CUTS_SETTINGS
@given(
    chunks=st.lists(st.binary(min_size=1, max_size=300), max_size=20), cut_every=st.integers(1, 50), late=st.booleans()
)
@on_a_loop
async def test_any_chunks_in_any_pieces_poured(made: Factory, chunks: list[bytes], cut_every: int, late: bool) -> None:
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"
    async with serving(in_pieces(raw, range(cut_every, len(raw), cut_every))) as peer, opened(made) as transport:
        response = await begun(transport, peer.url)
        if late:
            await asyncio.sleep(0.005)
        assert await poured(response) == b"".join(chunks)
        assert await poured(response) == b""
        await response.aclose()


@both
@on_a_loop
async def test_what_follows_when_it_is_enough_is_there_for_another_reader(made: Factory) -> None:
    raw = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nabcdef"
    async with serving(in_pieces(raw, range(len(raw) - 6, len(raw)))) as peer, opened(made) as transport:
        response = await begun(transport, peer.url)
        first = await poured(response, 2)
        # What is enough may have come in one piece with more.
        assert len(first) >= 2
        await asyncio.sleep(0.005)
        assert first + await poured(response, 1) + await body_of(response) == b"abcdef"
        assert await poured(response) == b""


@both
@on_a_loop
async def test_a_connection_whose_reply_was_poured_to_its_end_is_used_again(made: Factory) -> None:
    async with serving(saying(OK, OK)) as peer, opened(made) as transport:
        for _ in range(2):
            response = await begun(transport, peer.url)
            assert await poured(response) == b"ok"
            await response.aclose()
        assert peer.connections == 1


@pytest.mark.parametrize("late_s", [0, 0.01])
@on_a_loop
async def test_what_came_before_a_fault_is_taken_before_it_is_raised(late_s: float) -> None:
    """Of the lean transport alone: aiohttp gives nothing of a reply whose fault came with its head."""
    taken: list[bytes] = []

    def take(piece: bytes) -> bool:
        taken.append(piece)
        return False

    async with serving(saying(CHUNKS + b"zz\r\n", close=True)) as peer, opened(lean) as transport:
        response = await begun(transport, peer.url)
        await asyncio.sleep(late_s)
        with pytest.raises(httpx.RemoteProtocolError):
            await cast(Body, response.stream).pour(take)
        await response.aclose()
    assert taken == [b"abc"]


@both
@pytest.mark.parametrize("pieces", [0, 1])
@on_a_loop
async def test_what_the_taker_raises_is_raised_and_nothing_is_left(made: Factory, pieces: int) -> None:
    waiting = [pieces]

    def take(_: bytes) -> bool:
        if not waiting[0]:
            raise LookupError("no more")
        waiting[0] -= 1
        return False

    async def answer(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.request(reader)
        writer.write(CHUNKS)
        await asyncio.sleep(0.02)
        writer.write(b"2\r\nde\r\n")
        await peer.request(reader)

    async with serving(answer) as peer, opened(made) as transport:
        response = await begun(transport, peer.url)
        with pytest.raises(LookupError, match="no more"):
            await cast(Body, response.stream).pour(take)
        await response.aclose()
        await until(lambda: peer.open == 0)


@both
@on_a_loop
async def test_who_is_cancelled_is_given_nothing_more(made: Factory) -> None:
    release = asyncio.Event()
    taken: list[bytes] = []

    async def answer(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.request(reader)
        writer.write(CHUNKS)
        await release.wait()
        writer.write(b"2\r\nde\r\n")
        await peer.request(reader)

    def take(piece: bytes) -> bool:
        taken.append(piece)
        return False

    async with serving(answer) as peer, opened(made) as transport:
        response = await begun(transport, peer.url)
        task = asyncio.create_task(cast(Body, response.stream).pour(take))
        await until(lambda: taken == [b"abc"])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        release.set()
        await asyncio.sleep(0.02)
        await response.aclose()
        assert taken == [b"abc"]
        await until(lambda: peer.open == 0)


# --- what is no reply

BROKEN: dict[str, bytes] = {
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "another protocol": b"SSH-2.0-x\r\n\r\n",
    "another version": b"HTTP/3.0 200 OK\r\ncontent-length: 0\r\n\r\n",
    "no status": b"HTTP/1.1 xyz OK\r\ncontent-length: 0\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    "no chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    "less than its length": b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nab",
    "no last chunk": CHUNKS,
    "half a chunk": CHUNKS + b"5\r\nab",
    "too long a header": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\ncontent-length: 0\r\n\r\n",
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"X: abcdefgh\r\n" * 40_000 + b"content-length: 0\r\n\r\n",
}


@both
@pytest.mark.parametrize("reply", BROKEN.values(), ids=BROKEN)
@on_a_loop
async def test_what_is_no_reply(made: Factory, reply: bytes) -> None:
    async with serving(saying(reply, close=True)) as peer, opened(made) as transport:
        with pytest.raises(httpx.RemoteProtocolError):
            await whole(transport, peer.url)
        assert len(peer.requests) == 1


ENDLESS = {
    "a header": (b"HTTP/1.1 200 OK\r\nX: ", b"a" * 1_000),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X: abcdefgh\r\n" * 80),
    "interim replies": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 40),
    "interim replies with headers": (b"", b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" * 25),
    "trailers": (CHUNKS + b"0\r\n", b"X: abcdefgh\r\n" * 80),
    "a trailer": (CHUNKS + b"0\r\nX: ", b"a" * 1_000),
    "a chunk's extension": (CHUNKS + b"1;x=", b"a" * 1_000),
}


@pytest.mark.parametrize(("beginning", "more"), ENDLESS.values(), ids=ENDLESS)
@on_a_loop
async def test_what_never_ends_is_given_up(beginning: bytes, more: bytes) -> None:
    """Of the lean transport alone: aiohttp takes interim replies for as long as they come."""

    async def answer(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.request(reader)
        writer.write(beginning)
        for _ in range(20_000):
            writer.write(more)
            await writer.drain()

    async with serving(answer) as peer, opened(lean) as transport:
        with pytest.raises(httpx.RemoteProtocolError):
            await whole(transport, peer.url)
        await until(lambda: peer.open == 0)


@both
@pytest.mark.parametrize(
    "beginning", [b"", b"HTTP/1.1 200 OK\r\n", CHUNKS], ids=["at once", "in its head", "in its body"]
)
@on_a_loop
async def test_a_connection_that_is_reset(made: Factory, beginning: bytes) -> None:
    async def answer(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.request(reader)
        writer.write(beginning)
        await asyncio.sleep(0.02)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()

    async with serving(answer) as peer, opened(made) as transport:
        # Of a body that breaks off, aiohttp does not tell how.
        with pytest.raises(httpx.ReadError if made is lean else (httpx.ReadError, httpx.RemoteProtocolError)):
            await whole(transport, peer.url)
        assert len(peer.requests) == 1


@both
@on_a_loop
async def test_a_peer_that_answers_before_it_has_read_the_request(made: Factory) -> None:
    async def answer(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Large\r\ncontent-length: 2\r\n\r\nno")
        await asyncio.sleep(1)

    async with serving(answer) as peer, opened(made) as transport:
        for connections in (1, 2):
            response = await begun(transport, peer.url, body=b"x" * 50_000_000)
            assert (response.status_code, await body_of(response)) == (413, b"no")
            assert peer.connections == connections


# --- time


@both
@on_a_loop
async def test_a_port_that_nobody_has(made: Factory) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with opened(made) as transport:
        with pytest.raises(httpx.ConnectError):
            await whole(transport, f"http://127.0.0.1:{port}")


@contextlib.asynccontextmanager
async def full() -> AsyncIterator[int]:
    """The port of one that lets every connection wait."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as waiting:
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        await asyncio.sleep(0.05)
        yield server.getsockname()[1]


@both
@on_a_loop
async def test_a_peer_that_takes_no_connection(made: Factory) -> None:
    async with full() as port, opened(made) as transport:
        with pytest.raises(httpx.ConnectTimeout):
            await whole(transport, f"http://127.0.0.1:{port}", connect_s=SHORT_S)


@pytest.mark.parametrize("first", ["nobody", "full"])
@on_a_loop
async def test_a_name_with_several_addresses(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the lean transport alone: aiohttp's looks names up in its own way, and takes no port from there."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = taken.getsockname()[1]
    async with full() as full_port, serving(saying(OK)) as peer, opened(lean) as transport:
        ports = [nobody if first == "nobody" else full_port, httpx.URL(peer.url).port]

        loop = asyncio.get_running_loop()
        look_up = loop.getaddrinfo

        async def found(host: str, *arguments: Any, **named: Any) -> list[Any]:
            if host != "two.test":
                return await look_up(host, *arguments, **named)
            return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", port)) for port in ports]

        monkeypatch.setattr(loop, "getaddrinfo", found)
        assert await whole(transport, "http://two.test", connect_s=2) == b"ok"


@both
@on_a_loop
async def test_a_name_that_nobody_knows(made: Factory) -> None:
    async with opened(made) as transport:
        with pytest.raises(httpx.ConnectError):
            await whole(transport, "http://nobody.invalid", connect_s=TEST_MAX_S)


@both
@on_a_loop
async def test_a_peer_that_is_silent_in_the_opening_of_tls(made: Factory) -> None:
    async with serving(saying()) as peer, opened(made) as transport:
        with pytest.raises(httpx.ConnectTimeout):
            await whole(transport, peer.url.replace("http:", "https:"), connect_s=SHORT_S)


@both
@pytest.mark.parametrize(
    "beginning", [b"", b"HTTP/1.1 200 OK\r\n", CHUNKS], ids=["at once", "in its head", "in its body"]
)
@on_a_loop
async def test_a_peer_that_falls_silent(made: Factory, beginning: bytes) -> None:
    async with serving(saying(beginning)) as peer, opened(made) as transport:
        with pytest.raises(httpx.ReadTimeout):
            await whole(transport, peer.url, read_s=SHORT_S)
        await until(lambda: peer.open == 0)


@both
@on_a_loop
async def test_a_peer_that_is_slow_is_not_silent(made: Factory) -> None:
    async def answer(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for byte in b"1\r\na\r\n0\r\n\r\n":
            await asyncio.sleep(SHORT_S / 3)
            writer.write(bytes([byte]))
        await peer.request(reader)

    async with serving(answer) as peer, opened(made) as transport:
        assert await whole(transport, peer.url, read_s=SHORT_S) == b"a"


@on_a_loop
async def test_a_silence_counts_only_while_somebody_waits() -> None:
    """Of the lean transport alone: aiohttp's clock runs on while nobody reads."""

    async def answer(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.request(reader)
        writer.write(CHUNKS)
        await asyncio.sleep(2 * SHORT_S)
        writer.write(b"0\r\n\r\n")
        await peer.request(reader)

    async with serving(answer) as peer, opened(lean) as transport:
        response = await begun(transport, peer.url, read_s=SHORT_S)
        await asyncio.sleep(1.5 * SHORT_S)
        assert await body_of(response) == b"abc"


@both
@on_a_loop
async def test_without_a_limit_silence_is_waited_for(made: Factory) -> None:
    async def answer(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.request(reader)
        await asyncio.sleep(2 * SHORT_S)
        writer.write(OK)
        await peer.request(reader)

    async with serving(answer) as peer, opened(made) as transport:
        assert await whole(transport, peer.url, read_s=None, connect_s=None) == b"ok"


# --- back-pressure


@both
@on_a_loop
async def test_what_nobody_reads_stays_with_its_sender(made: Factory) -> None:
    piece, pieces = b"x" * 65_536, 640
    written = 0

    async def answer(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await peer.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (len(piece) * pieces))
        for _ in range(pieces):
            writer.write(piece)
            await writer.drain()
            written += len(piece)
        await peer.request(reader)

    async with serving(answer) as peer, opened(made) as transport:
        response = await begun(transport, peer.url, read_s=SHORT_S)
        before = -1
        while written != before:
            before = written
            await asyncio.sleep(0.1)
        # The kernel's own buffers for both ends take up to 10 MB.
        assert written < 16_000_000
        assert len(await body_of(response)) == len(piece) * pieces
        assert peer.connections == 1


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
@both
@on_a_loop
async def test_what_was_held_back_is_poured_when_somebody_reads(made: Factory, tls: bool) -> None:
    """TLS gives what it has decrypted in one piece, which may be larger than all that is held back."""
    large = bytes(range(256)) * 20_000
    reply = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(large) + large
    async with serving(saying(reply, OK), server_tls() if tls else None) as peer, opened(made) as transport:
        response = await begun(transport, peer.url.replace("127.0.0.1", "localhost"))
        await asyncio.sleep(0.1)
        pieces: list[bytes] = []
        await cast(Body, response.stream).pour(lambda piece: bool(pieces.append(piece)))
        await response.aclose()
        assert b"".join(pieces) == large


# --- connections that are kept


@both
@on_a_loop
async def test_idle_connections_are_let_go(made: Factory) -> None:
    async with serving(saying(OK, OK, OK)) as peer, opened(made, idle_max_s=0.2) as transport:
        assert await asyncio.gather(*(whole(transport, peer.url) for _ in range(3))) == [b"ok"] * 3
        assert (peer.connections, peer.open) == (3, 3)
        await asyncio.sleep(0.1)
        assert await whole(transport, peer.url) == b"ok"
        await until(lambda: peer.open == 0, within_s=2)
        assert peer.connections == 3
        assert await whole(transport, peer.url) == b"ok"
        assert peer.connections == 4


@both
@on_a_loop
async def test_a_connection_that_was_closed_while_idle(made: Factory) -> None:
    async with serving(saying(OK, close=True)) as peer, opened(made) as transport:
        for _ in range(3):
            assert await whole(transport, peer.url) == b"ok"
            await until(lambda: peer.open == 0)
            await asyncio.sleep(0.02)
        assert (peer.connections, len(peer.requests)) == (3, 3)


def leaving(beginning: bytes) -> Callable[..., Awaitable[None]]:
    """Answers one request of each connection, and of the first connections' second request only this much."""

    async def answer(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.request(reader)
        writer.write(OK)
        await peer.request(reader)
        writer.write(beginning)

    return answer


@pytest.mark.parametrize(("made", "method"), [(lean, "POST"), (lean, "GET"), (aiohttp, "GET")])
@on_a_loop
async def test_a_kept_connection_that_closes_without_a_byte_is_replaced_by_a_fresh_one(
    made: Factory, method: str
) -> None:
    """aiohttp does this for what may be asked twice without harm, which a POST is not by its name alone."""
    async with serving(leaving(b"")) as peer, opened(made) as transport:
        # Of three that are kept, all stale, one is tried.
        await asyncio.gather(*(whole(transport, peer.url, method) for _ in range(3 if made is lean else 1)))
        first = peer.connections
        assert await whole(transport, peer.url, method, body=b"again") == b"ok"
        assert (peer.connections, len(peer.requests)) == (first + 1, first + 2)
        assert peer.requests[-1] == peer.requests[-2]


@both
@on_a_loop
async def test_a_kept_connection_that_has_begun_to_answer_is_not_replaced(made: Factory) -> None:
    async with serving(leaving(b"H")) as peer, opened(made) as transport:
        assert await whole(transport, peer.url) == b"ok"
        with pytest.raises(httpx.RemoteProtocolError):
            await whole(transport, peer.url)
        assert (peer.connections, len(peer.requests)) == (1, 2)


@both
@on_a_loop
async def test_a_kept_connection_that_is_silent_is_not_replaced(made: Factory) -> None:
    async with serving(saying(OK, b"")) as peer, opened(made) as transport:
        assert await whole(transport, peer.url) == b"ok"
        with pytest.raises(httpx.ReadTimeout):
            await whole(transport, peer.url, read_s=SHORT_S)
        assert (peer.connections, len(peer.requests)) == (1, 2)


@both
@on_a_loop
async def test_a_fresh_connection_that_takes_the_place_of_a_stale_one_may_fail(made: Factory) -> None:
    async def answer(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.request(reader)
        if peer.connections == 1:
            writer.write(OK)
            await peer.request(reader)

    async with serving(answer) as peer, opened(made) as transport:
        assert await whole(transport, peer.url, "GET") == b"ok"
        with pytest.raises(httpx.RemoteProtocolError):
            await whole(transport, peer.url, "GET")
        assert peer.connections == 2


@pytest.mark.parametrize(
    "surplus", [OK.replace(b"ok", b"no"), b"x", b"\r\nHTTP/1.1 2"], ids=["a reply", "a byte", "half"]
)
@on_a_loop
async def test_bytes_behind_a_reply_answer_no_other_request(surplus: bytes) -> None:
    """Of the lean transport alone: aiohttp's raises for a reply that was whole, or uses the connection again."""

    async with serving(saying(OK + surplus, OK)) as peer, opened(lean) as transport:
        for connections in (1, 2):
            assert await whole(transport, peer.url) == b"ok"
            assert peer.connections == connections


@on_a_loop
async def test_bytes_to_an_idle_connection_answer_no_request() -> None:
    """Of the lean transport alone: aiohttp's takes them for the next reply."""

    async def answer(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.request(reader)
        writer.write(OK)
        await asyncio.sleep(0.05)
        writer.write(b"HTTP/1.1 408 Slow\r\ncontent-length: 0\r\n\r\n")
        await peer.request(reader)

    async with serving(answer) as peer, opened(lean) as transport:
        assert await whole(transport, peer.url) == b"ok"
        await asyncio.sleep(0.1)
        response = await begun(transport, peer.url)
        assert (response.status_code, await body_of(response)) == (200, b"ok")
        assert peer.connections == 2


@pytest.mark.parametrize(
    ("connection", "body"), [("close", b"ok"), ("Close", b"ok"), ("keep-alive", b"")], ids=["told", "Told", "a reply"]
)
@on_a_loop
async def test_a_request_that_met_the_end_of_its_connection_is_sent_again(connection: str, body: bytes) -> None:
    """Of the lean transport alone. A time-out that a gateway tells of the request itself is its answer."""
    timed_out = f"HTTP/1.1 408 Slow\r\nconnection: {connection}\r\ncontent-length: 0\r\n\r\n".encode()

    async def answer(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await saying(OK, timed_out)(peer, reader, writer)

    async with serving(answer) as peer, opened(lean) as transport:
        assert await whole(transport, peer.url) == b"ok"
        response = await begun(transport, peer.url, body=b"again")
        assert (response.status_code, await body_of(response)) == (200 if body else 408, body)
        assert [request[-5:] for request in peer.requests[1:]] == [b"again"] * (2 if body else 1)


@both
@on_a_loop
async def test_a_time_out_on_a_fresh_connection_is_the_answer(made: Factory) -> None:
    timed_out = b"HTTP/1.1 408 Slow\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    async with serving(saying(timed_out, close=True)) as peer, opened(made) as transport:
        assert (await begun(transport, peer.url)).status_code == 408
        assert peer.connections == 1


@both
@on_a_loop
async def test_a_reply_that_is_not_read_to_its_end_ends_its_connection(made: Factory) -> None:
    async with serving(saying(CHUNKS)) as peer, opened(made) as transport:
        response = await begun(transport, peer.url)
        async for piece in response.stream:  # type: ignore[union-attr]
            assert piece == b"abc"
            break
        await response.aclose()
        await response.aclose()
        await until(lambda: peer.open == 0)


@on_a_loop
async def test_a_reply_that_was_read_reads_nothing_of_the_next() -> None:
    """Of the lean transport alone: aiohttp's raises."""

    async with serving(saying(OK, OK)) as peer, opened(lean) as transport:
        first = await begun(transport, peer.url)
        assert await body_of(first) == b"ok"
        second = await begun(transport, peer.url)
        assert [piece async for piece in first.stream] == []  # type: ignore[union-attr]
        await first.aclose()
        assert await body_of(second) == b"ok"
        assert peer.connections == 1


@both
@on_a_loop
async def test_many_at_once(made: Factory) -> None:
    async def answer(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            said = (await peer.request(reader)).partition(b"\r\n\r\n")[2]
            await asyncio.sleep(0.001)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(said), said))

    async with serving(answer) as peer, opened(made) as transport:

        async def several(first: int) -> None:
            for number in range(first, first + 20):
                assert await whole(transport, peer.url, body=b"number %d" % number) == b"number %d" % number

        await asyncio.gather(*(several(first) for first in range(0, 1_000, 20)))
        assert (len(peer.requests), peer.connections) == (1_000, 50)


# --- whoever leaves


@both
@pytest.mark.parametrize("beginning", [b"", CHUNKS], ids=["before its head", "in its body"])
@on_a_loop
async def test_whoever_is_cancelled_leaves_no_connection(made: Factory, beginning: bytes) -> None:
    async with serving(saying(beginning)) as peer, opened(made) as transport:
        task = asyncio.create_task(whole(transport, peer.url))
        await until(lambda: len(peer.requests) == 1)
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: peer.open == 0)


@both
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
@on_a_loop
async def test_a_cancellation_at_any_moment_leaves_no_connection(made: Factory, tls: bool) -> None:
    async with serving(in_pieces(CHUNKS, range(10, len(CHUNKS), 10)), server_tls() if tls else None) as peer:
        url = peer.url.replace("127.0.0.1", "localhost") if tls else peer.url
        for turns in range(60):
            transport = made()
            task = asyncio.create_task(whole(transport, url))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, httpx.RemoteProtocolError):
                await task
            await until(lambda: peer.open == 0)
            await transport.aclose()


@on_a_loop
async def test_closing_ends_everything() -> None:
    """Of the lean transport alone: with aiohttp's, who reads meanwhile waits for ever."""

    async with serving(saying(CHUNKS + b"0\r\n\r\n", CHUNKS)) as peer, opened(lean) as transport:
        assert await asyncio.gather(*(whole(transport, peer.url) for _ in range(2))) == [b"abc"] * 2
        response = await begun(transport, peer.url)
        reading = asyncio.create_task(body_of(response))
        await asyncio.sleep(0.02)
        assert peer.open == 2
        await transport.aclose()
        with pytest.raises(httpx.ReadError):
            await reading
        await until(lambda: peer.open == 0)


@on_a_loop
async def test_closing_sends_nothing_again() -> None:
    async with serving(saying(OK, b"")) as peer:
        transport = lean()
        assert await whole(transport, peer.url) == b"ok"
        waiting = asyncio.create_task(whole(transport, peer.url))
        await until(lambda: len(peer.requests) == 2)
        await transport.aclose()
        with pytest.raises(httpx.ReadError):
            await waiting
        await until(lambda: peer.open == 0)
        assert peer.connections == 1


@on_a_loop
async def test_what_is_opened_while_the_transport_closes_is_closed_too() -> None:
    async with serving(saying(OK)) as peer:
        transport = lean()
        task = asyncio.create_task(whole(transport, peer.url))
        await asyncio.sleep(0)
        await transport.aclose()
        with pytest.raises(httpx.ConnectError):
            await task
        await until(lambda: peer.open == 0)
        assert peer.requests == []


# --- what is sent


def fields(request: bytes) -> dict[bytes, bytes]:
    lines = request.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    pairs = [line.split(b": ", 1) for line in lines]
    assert len(dict(pairs)) == len(pairs)
    return {name.lower(): value for name, value in pairs}


@both
@on_a_loop
async def test_a_request_as_it_is_sent(made: Factory) -> None:
    async with serving(saying(OK, OK)) as peer, opened(made) as transport:
        await whole(transport, f"{peer.url}/v1/a%20b?c=d", body=b"body", headers={"X-One": "a  b"})
        await whole(transport, f"{peer.url}/v1", "GET")
    post, get = peer.requests
    assert post.startswith(b"POST /v1/a%20b?c=d HTTP/1.1\r\n")
    assert post.endswith(b"\r\n\r\nbody")
    assert fields(post)[b"host"] == peer.url.removeprefix("http://").encode()
    assert (fields(post)[b"content-length"], fields(post)[b"x-one"]) == (b"4", b"a  b")
    assert get.startswith(b"GET /v1 HTTP/1.1\r\n")
    assert get.endswith(b"\r\n\r\n")
    assert {b"content-length", b"transfer-encoding", b"authorization"}.isdisjoint(fields(get))


@both
@on_a_loop
async def test_a_body_that_comes_in_pieces(made: Factory) -> None:
    async with serving(saying(OK)) as peer, opened(made) as transport:
        request = httpx.Request("POST", peer.url, headers={"content-length": "4"}, stream=Pieces(b"bo", b"", b"dy"))
        assert await body_of(await transport.handle_async_request(request)) == b"ok"
    assert peer.requests[0].endswith(b"\r\n\r\nbody")


@on_a_loop
async def test_a_body_without_a_length_gets_one() -> None:
    """Of the lean transport alone: aiohttp sends it in chunks."""
    async with serving(saying(OK)) as peer, opened(lean) as transport:
        request = httpx.Request(
            "POST", peer.url, headers={"transfer-encoding": "chunked"}, stream=Pieces(b"bo", b"", b"dy")
        )
        assert await body_of(await transport.handle_async_request(request)) == b"ok"
    assert fields(peer.requests[0])[b"content-length"] == b"4"
    assert b"transfer-encoding" not in fields(peer.requests[0])


@both
@on_a_loop
async def test_large_bodies_both_ways(made: Factory) -> None:
    large = bytes(range(256)) * 40_000

    async def answer(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = (await peer.request(reader)).partition(b"\r\n\r\n")[2]
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(said), said))
        await peer.request(reader)

    async with serving(answer) as peer, opened(made) as transport:
        assert await whole(transport, peer.url, body=large) == large


@both
@pytest.mark.parametrize(
    ("userinfo", "sent"),
    # By hand: base64 of `user:pass`, `us/er:p@ss`, `user:`.
    [("user:pass", b"dXNlcjpwYXNz"), ("us%2Fer:p%40ss", b"dXMvZXI6cEBzcw=="), ("user", b"dXNlcjo=")],
)
@on_a_loop
async def test_credentials_of_a_url(made: Factory, userinfo: str, sent: bytes) -> None:
    async with serving(saying(OK)) as peer, opened(made) as transport:
        await whole(transport, peer.url.replace("//", f"//{userinfo}@"))
    assert fields(peer.requests[0])[b"authorization"] == b"Basic " + sent
    assert b"@" not in fields(peer.requests[0])[b"host"]


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nb", "a\rb"])
@on_a_loop
async def test_no_header_brings_another(value: str) -> None:
    """Of the lean transport alone: aiohttp refuses it as a ValueError."""
    async with serving(saying(OK)) as peer, opened(lean) as transport:
        with pytest.raises(httpx.LocalProtocolError):
            await whole(transport, peer.url, headers={"x-one": value})
        assert peer.connections == 0


@on_a_loop
async def test_another_scheme_is_not_spoken() -> None:
    async with opened(lean) as transport:
        with pytest.raises(httpx.UnsupportedProtocol):
            await whole(transport, "ftp://127.0.0.1/")


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@both
@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@on_a_loop
async def test_ipv6(made: Factory) -> None:
    async with serving(saying(OK), host="::1") as peer, opened(made) as transport:
        assert await whole(transport, peer.url) == b"ok"
    assert fields(peer.requests[0])[b"host"] == peer.url.removeprefix("http://").encode()


# --- TLS


@both
@on_a_loop
async def test_tls(made: Factory) -> None:
    agreed = []

    async def answer(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        agreed.append(writer.get_extra_info("ssl_object").selected_alpn_protocol())
        await saying(CHUNKS + b"0\r\n\r\n", OK)(peer, reader, writer)

    async with serving(answer, server_tls()) as peer, opened(made) as transport:
        url = peer.url.replace("127.0.0.1", "localhost")
        assert [await whole(transport, url), await whole(transport, url)] == [b"abc", b"ok"]
    assert agreed == ["http/1.1"]


@both
@on_a_loop
async def test_a_large_reply_over_tls_until_it_closes(made: Factory) -> None:
    large = bytes(range(256)) * 10_000
    reply = b"HTTP/1.1 200 OK\r\n\r\n" + large
    async with serving(saying(reply, close=True), server_tls()) as peer, opened(made) as transport:
        assert await whole(transport, peer.url.replace("127.0.0.1", "localhost")) == large


@pytest.mark.parametrize("transport", [LeanTransport, lambda: NamedFaults(tls_context(), 3)], ids=["lean", "aiohttp"])
@on_a_loop
async def test_a_certificate_that_nobody_vouches_for(transport: Callable[[], httpx.AsyncBaseTransport]) -> None:
    async with serving(saying(OK), server_tls()) as peer, opened(transport) as strict:
        with pytest.raises(httpx.ConnectError):
            await whole(strict, peer.url.replace("127.0.0.1", "localhost"))
        assert peer.requests == []


@both
@on_a_loop
async def test_a_certificate_of_another_name(made: Factory) -> None:
    async with serving(saying(OK), server_tls()) as peer, opened(made) as transport:
        with pytest.raises(httpx.ConnectError):
            await whole(transport, peer.url.replace("127.0.0.1", "127.0.0.2"))
        assert peer.requests == []


@both
@on_a_loop
async def test_tls_to_a_peer_that_speaks_none(made: Factory) -> None:
    async def answer(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with serving(answer) as peer, opened(made) as transport:
        with pytest.raises(httpx.ConnectError):
            await whole(transport, peer.url.replace("http:", "https:"))
