"""Work that is begun by somebody else than who awaits its end.

Most of what is sent to a client is sent at once, and a task that is woken only to do that costs as much as the sending.
"""

from collections.abc import Awaitable, Generator
from typing import Any


def begun(work: Awaitable[None]) -> Awaitable[None] | None:
    """Take the first step of what is awaited here and now; None where that was all, else the rest of it, to be awaited.

    What it raises is raised to who awaits it.
    """
    steps = work.__await__()
    try:
        awaited = next(steps)
    except StopIteration:
        return None
    except Exception as error:
        return _failed(error)
    return _Rest(steps, awaited)


async def _failed(error: Exception) -> None:
    raise error


class _Rest:
    def __init__(self, steps: Generator[Any, Any, None], awaited: Any) -> None:
        self._steps = steps
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, None]:
        """Hands on to the task that awaits this whatever the work awaits, from the first on."""
        try:
            while True:
                try:
                    answer = yield self._awaited
                except BaseException as error:
                    self._awaited = self._steps.throw(error)
                else:
                    self._awaited = self._steps.send(answer)
        except StopIteration:
            return
