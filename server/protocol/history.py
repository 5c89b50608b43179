"""What a turn goes on from, in the form in which one upstream reads it: made from items once, and never opened again.

What lives here is immutable, as every response's history is (DESIGN 5): a longer one shares the parts of the one that
it goes on from. So a turn costs what is new in it, however long its chain is.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from server.protocol.items import Item

# What Python needs to hold each, besides their texts, and to find it.
_PAST_BYTES = 900
_ITEM_BYTES = 300
_ID_BYTES = 100


class OpenCall(msgspec.Struct, frozen=True):
    """A call without an output; `is_followed` says whether others than a model's own items come behind it."""

    item: Item
    is_followed: bool


class Part(msgspec.Struct, frozen=True):
    """A stretch of a history: what is sent of it, as elements of an array with commas between, and its public ids.

    `size` is what it takes in memory, in bytes.
    """

    text: bytes
    ids: frozenset[str]
    size: int


class Replayed(msgspec.Struct, frozen=True):
    """A history that one upstream's replay has gone through.

    `item_count`, `left_out_count` and `body_bytes` are about the items as they are stored. `open_calls` are in order.
    """

    parts: tuple[Part, ...] = ()
    open_calls: tuple[OpenCall, ...] = ()
    item_count: int = 0
    left_out_count: int = 0
    body_bytes: int = 0

    def texts(self) -> list[bytes]:
        return [part.text for part in self.parts if part.text]

    def holds(self, public_id: str) -> bool:
        """Whether an item of this id is in it."""
        return any(public_id in part.ids for part in self.parts)

    def followed_by(
        self, items: Sequence[Item], elements: Sequence[bytes], left_out_count: int, open_calls: Sequence[OpenCall]
    ) -> "Replayed":
        """The history with these items at its end, of which `elements` are what is sent."""
        if not items:
            return self
        text, ids = b",".join(elements), frozenset(item.public_id for item in items)
        part = Part(text, ids, len(text) + sum(sys.getsizeof(one) + _ID_BYTES for one in ids))
        return Replayed(
            _merged([*self.parts, part]),
            tuple(open_calls),
            self.item_count + len(items),
            self.left_out_count + left_out_count,
            self.body_bytes + sum(len(item.body) for item in items),
        )


class Past(msgspec.Struct, frozen=True):
    """What a turn goes on from: a history that was replayed before, and behind it turns that were not, oldest first."""

    replayed: Replayed = Replayed()
    turns: Sequence[list[Item]] = ()

    def holds(self, public_ids: Iterable[str]) -> str | None:
        """The first of these ids that an item of it has."""
        unread = {item.public_id for turn in self.turns for item in turn}
        return next((one for one in public_ids if one in unread or self.replayed.holds(one)), None)

    def followed_by(self, turn: list[Item]) -> "Past":
        return Past(self.replayed, [*self.turns, turn])

    def sizes(self) -> Iterator[tuple[int, int]]:
        """What it takes in memory, piece by piece: which one it is, since others may share it, and its bytes."""
        yield id(self), _PAST_BYTES
        for part in self.replayed.parts:
            yield id(part), part.size
        for call in self.replayed.open_calls:
            yield id(call.item), _size(call.item)
        for turn in self.turns:
            yield id(turn), sum(map(_size, turn))


class KnownIds:
    """The public ids of a history, and those of what came behind it."""

    def __init__(self, replayed: Replayed, items: Iterable[Item]) -> None:
        self._replayed = replayed
        self._ids = {item.public_id for item in items}

    def __contains__(self, public_id: object) -> bool:
        return public_id in self._ids or self._replayed.holds(str(public_id))


def _size(item: Item) -> int:
    """What an item takes in memory, in bytes: its ids may be long, and of any characters."""
    ids = sys.getsizeof(item.public_id) + sys.getsizeof(item.call_id)
    return len(item.body) + len(item.fidelity or b"") + ids + _ITEM_BYTES


def _merged(parts: list[Part]) -> tuple[Part, ...]:
    """The same in few parts: a part is joined to one that is no larger, so that their number grows with the logarithm
    of the whole, and each byte is copied as rarely."""
    while len(parts) > 1 and len(parts[-2].text) <= len(parts[-1].text):
        later, earlier = parts.pop(), parts.pop()
        text = b",".join(text for text in (earlier.text, later.text) if text)
        parts.append(Part(text, earlier.ids | later.ids, earlier.size + later.size))
    return tuple(parts)
