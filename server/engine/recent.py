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


class Known(NamedTuple):
    """The history up to and with a response."""

    response_id: str
    past: Past


class RecentHistories:
    """At most `bytes_max` of them, those that were used last. What several have in common counts once, and one that is
    larger than this by itself is not kept: it would force all others out.

    Of each chain, named by its root's id, it is known which history was put last: a response that another process made
    goes on from it, as a rule.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._pasts: OrderedDict[Reading, tuple[str, Past]] = OrderedDict()
        self._last_of_chains: dict[Reading, Reading] = {}
        self._holders: Counter[int] = Counter()

    def __bool__(self) -> bool:
        return bool(self._pasts)

    def get(self, reading: Reading) -> Past | None:
        known = self._pasts.get(reading)
        if known is None:
            return None
        self._pasts.move_to_end(reading)
        return known[1]

    def last_of_chain(self, root: Reading) -> Known | None:
        """What was put last of the chain that begins with this response."""
        reading = self._last_of_chains.get(root)
        return None if reading is None else Known(reading.response_id, self._pasts[reading][1])

    def put(self, reading: Reading, root_id: str, past: Past) -> None:
        if sum(size for _, size in past.sizes()) > self._bytes_max:
            return
        known = self._pasts.pop(reading, None)
        self._hold(past)
        self._pasts[reading] = root_id, past
        self._last_of_chains[reading._replace(response_id=root_id)] = reading
        if known is not None:
            self._let_go(known[1])
        while self.bytes > self._bytes_max:
            self._forget(*self._pasts.popitem(last=False))

    def _forget(self, reading: Reading, known: tuple[str, Past]) -> None:
        root_id, past = known
        root = reading._replace(response_id=root_id)
        if self._last_of_chains.get(root) == reading:
            del self._last_of_chains[root]
        self._let_go(past)

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
