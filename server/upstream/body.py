"""The body of a reply, whatever transport it comes by."""

from collections.abc import Callable

import httpx


class Body(httpx.AsyncByteStream):
    """Bytes that can be iterated over, as any body's can, or are handed on as they come."""

    async def pour(self, take: Callable[[bytes], bool]) -> None:
        """Gives `take` what comes, until it has enough, or all: whatever follows is there for another reader.

        What `take` raises is raised here. It may be called by the event loop itself, within no task.
        """
        async for piece in self:
            if take(piece):
                return
