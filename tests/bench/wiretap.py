"""A way to Postgres that counts the statements that pass, of any server in any language.

It reads the frontend half of Postgres' message protocol (its documentation, chapter "Frontend/Backend Protocol").
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from urllib.parse import parse_qs, urlsplit

_TRANSACTION_CONTROL = (b"BEGIN", b"COMMIT", b"ROLLBACK", b"START TRANSACTION", b"SAVEPOINT", b"RELEASE")
_PORT = 5432


class Wiretap:
    """`url` leads to the same database by way of this process; `statements` is the count so far."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.statements = 0

    def count(self, kind: bytes, content: bytes) -> None:
        """Count an execution, by name or as a text; what only controls transactions is none."""
        is_control = kind == b"Q" and content.lstrip().upper().startswith(_TRANSACTION_CONTROL)
        if kind in (b"Q", b"E") and not is_control:
            self.statements += 1


@contextlib.asynccontextmanager
async def wiretapped(database_url: str) -> AsyncIterator[Wiretap]:
    """A wiretap before the database at `database_url`, over TCP or a unix socket, without TLS."""
    parts = urlsplit(database_url)
    socket_folder = parse_qs(parts.query).get("host", [None])[0]

    async def reach() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if socket_folder is not None:
            return await asyncio.open_unix_connection(f"{socket_folder}/.s.PGSQL.{_PORT}")
        return await asyncio.open_connection(parts.hostname, parts.port or _PORT)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await reach()
        await asyncio.gather(_forward_messages(reader, to_writer, wiretap.count), _forward(to_reader, writer))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        user, _, _ = parts.netloc.rpartition("@")
        wiretap = Wiretap(f"postgresql://{user}@127.0.0.1:{port}{parts.path}?sslmode=disable")
        yield wiretap


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with _closing(writer):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()


async def _forward_messages(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[bytes, bytes], None]
) -> None:
    with _closing(writer):
        # The first message alone has no byte for its kind.
        kind = b""
        while True:
            length = await reader.readexactly(4)
            content = await reader.readexactly(int.from_bytes(length) - 4)
            count(kind, content)
            writer.write(kind + length + content)
            kind = await reader.readexactly(1)


@contextlib.contextmanager
def _closing(writer: asyncio.StreamWriter) -> Iterator[None]:
    """Whichever side leaves first, the other then learns of it."""
    try:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            yield
    finally:
        writer.close()
