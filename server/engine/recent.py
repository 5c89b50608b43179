"""Histories of responses that were made or read lately, as one upstream reads them.

What lives here is a memory that may forget: every response's history is immutable (DESIGN 5), so that an entry is right
for as long as its response is there, which the one look at the parent's row tells.
"""

from collections import Counter, OrderedDict
from typing import NamedTuple

from server.protocol.history import Past


class Reading(NamedTuple):
    """A response, and who reads its history: the issuer of what its upstream makes."""

    tenant_id: int
    response_id: str
    issuer: str


class RecentHistories:
    """At most `bytes_max` of them, those that were used last. What several have in common counts once."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._pasts: OrderedDict[Reading, Past] = OrderedDict()
        self._holders: Counter[int] = Counter()

    def get(self, reading: Reading) -> Past | None:
        past = self._pasts.get(reading)
        if past is not None:
            self._pasts.move_to_end(reading)
        return past

    def put(self, reading: Reading, past: Past) -> None:
        known = self._pasts.pop(reading, None)
        self._hold(past)
        self._pasts[reading] = past
        if known is not None:
            self._let_go(known)
        while self.bytes > self._bytes_max:
            self._let_go(self._pasts.popitem(last=False)[1])

    def _hold(self, past: Past) -> None:
        for part, size in past.sizes():
            if not self._holders[part]:
                self.bytes += size
            self._holders[part] += 1

    def _let_go(self, past: Past) -> None:
        for part, size in past.sizes():
            self._holders[part] -= 1
            if not self._holders[part]:
                del self._holders[part]
                self.bytes -= size
