"""A coroutine that is begun by somebody else than who awaits its end.

Most of what is sent to a client is sent at once, and a task that is woken only to do that costs as much as the sending.
"""

from collections.abc import Awaitable, Coroutine, Generator
from typing import Any


def begun(work: Coroutine[Any, Any, None]) -> Awaitable[None] | None:
    """Take the first step of a coroutine here and now; None where that was all, else the rest of it, to be awaited.

    What it raises is raised to who awaits it.
    """
    try:
        awaited = work.send(None)
    except StopIteration:
        return None
    except Exception as error:
        return _failed(error)
    return _Rest(work, awaited)


async def _failed(error: Exception) -> None:
    raise error


class _Rest:
    def __init__(self, work: Coroutine[Any, Any, None], awaited: Any) -> None:
        self._work = work
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, None]:
        """Hands on to the task that awaits this whatever the work awaits, from the first on."""
        try:
            while True:
                try:
                    answer = yield self._awaited
                except BaseException as error:
                    self._awaited = self._work.throw(error)
                else:
                    self._awaited = self._work.send(answer)
        except StopIteration:
            return
