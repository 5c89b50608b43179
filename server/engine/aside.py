"""Pure work that is too much to be done while every other turn waits for it."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")

# About what is cut and copied in ten milliseconds.
ASIDE_BYTES_MIN = 1_000_000


async def aside(size_bytes: int, work: Callable[..., Result], *arguments: Any) -> Result:
    """Do pure work on so many bytes, in a thread where they are many."""
    if size_bytes <= ASIDE_BYTES_MIN:
        return work(*arguments)
    return await asyncio.to_thread(work, *arguments)
