"""How much one key may ask for: requests in a minute, and turns at once. 0 is no limit.

Requests are counted here and told to the database each second, which says what other processes have counted: between
two tellings each process may let through as many as are left, so that a limit can be passed by a second's requests of
each. A minute is one of the clock's: it begins anew for everybody at once.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from server import errors
from server.engine.askers import Asker
from server.errors import ApiError
from server.store.keys import ApiKeys

TELL_INTERVAL_S: Final = 1.0

Key = tuple[int, str]


@dataclass
class _Minute:
    """The requests of a key in one minute: those that the database knows of, and those that it is to be told."""

    number: int
    told: int = 0
    untold: int = 0


class Requests:
    """The requests of each key in the minute that it is. `now_s` is the time since the epoch."""

    def __init__(self, keys: ApiKeys, now_s: Callable[[], float] = time.time) -> None:
        self._keys = keys
        self._now_s = now_s
        self._minutes: dict[Key, _Minute] = {}
        self._telling: asyncio.Task[None] | None = None

    def admit(self, asker: Asker) -> None:
        """Count a request; raises ApiError 429, and counts it not, where that would be one too many."""
        limit = asker.requests_per_minute
        if not limit:
            return
        number, past_s = divmod(self._now_s(), 60)
        minute = self._minutes.get((asker.tenant_id, asker.key))
        if minute is None or minute.number != number:
            minute = self._minutes[asker.tenant_id, asker.key] = _Minute(int(number))
        if minute.told + minute.untold >= limit:
            raise errors.too_many_requests(limit, 60 - int(past_s))
        minute.untold += 1
        if self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._tell_all())

    async def close(self) -> None:
        """Tell at once what is left to be told."""
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.wait([self._telling])
            await self.tell()

    async def tell(self) -> None:
        """Tell the database what it does not know yet; what it can't be told is kept for the next time."""
        for (tenant_id, key), minute in list(self._minutes.items()):
            untold = minute.untold
            if not untold:
                continue
            try:
                total = await self._keys.count(tenant_id, key, minute.number, untold)
            except ApiError:
                continue
            minute.told, minute.untold = total, minute.untold - untold

    async def _tell_all(self) -> None:
        try:
            while any(minute.untold for minute in self._minutes.values()):
                await asyncio.sleep(TELL_INTERVAL_S)
                await self.tell()
        finally:
            # Whatever ended it, the next request begins it anew.
            self._telling = None


class OpenTurns:
    """The turns of this process that are in flight or beginning: `count` together, and those of each key."""

    def __init__(self, turns_max: int) -> None:
        self._turns_max = turns_max
        self.count = 0
        self._by_key: Counter[Key] = Counter()

    @contextlib.contextmanager
    def one_more(self, asker: Asker) -> Iterator[None]:
        """Count one more, and no longer if what it begins with fails: who gets through it must give it back.

        Raises ApiError 503 or 429 where that would be one too many.
        """
        if 0 < self._turns_max <= self.count:
            raise errors.overloaded()
        key = (asker.tenant_id, asker.key)
        if 0 < asker.open_turns_max <= self._by_key[key]:
            raise errors.too_many_open_turns(asker.open_turns_max)
        self.count += 1
        self._by_key[key] += 1
        try:
            yield
        except BaseException:
            self.give_back(asker)
            raise

    def give_back(self, asker: Asker) -> None:
        self.count -= 1
        self._by_key[asker.tenant_id, asker.key] -= 1
