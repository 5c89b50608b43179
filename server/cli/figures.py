"""How the metrics of several workers become one answer, whichever of them is asked (ADR 14).

The parent binds a socket for each worker before it forks, so that every worker knows where the others are, and one that
takes a dead one's place is found where that one was. What is said there is what `/metrics` says.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from server.metrics import Metrics, merged

ANSWER_MAX_S = 1.0
"""Who does not answer within this time is left out: a worker that hangs must not hide the others."""


def meeting_places(count: int) -> list[socket.socket]:
    """A listening socket for each worker, in Linux' abstract namespace: there is no file to make or to clear away."""
    places = []
    for _ in range(count):
        place = socket.socket(socket.AF_UNIX)
        # Without a name the kernel chooses one that nobody has.
        place.bind("")
        place.listen()
        places.append(place)
    return places


class Figures:
    """The metrics of all workers, as worker `number` gathers them; the first is 1."""

    def __init__(self, places: list[socket.socket], number: int, metrics: Metrics) -> None:
        self._places = places
        self._number = number
        self._metrics = metrics

    @contextlib.asynccontextmanager
    async def told_within(self, opened: contextlib.AbstractAsyncContextManager[None]) -> AsyncIterator[None]:
        """What the worker opens; while it lasts the others are told this one's metrics."""
        async with opened:
            server = await asyncio.start_unix_server(self._tell, sock=self._places[self._number - 1])
            try:
                yield
            finally:
                server.close()

    async def text(self) -> bytes:
        """The metrics of every worker that answers in time."""
        numbers = range(1, len(self._places) + 1)
        texts = await asyncio.gather(*(self._of(number) for number in numbers))
        return merged(text for text in texts if text is not None)

    async def _of(self, number: int) -> bytes | None:
        if number == self._number:
            return self._metrics.text(number)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(ANSWER_MAX_S):
                return await _asked(self._places[number - 1].getsockname())
        return None

    async def _tell(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(self._metrics.text(self._number))
            await writer.drain()
        writer.close()


async def _asked(place: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, place)
        pieces = []
        while piece := await loop.sock_recv(connection, 1 << 16):
            pieces.append(piece)
        return b"".join(pieces)
