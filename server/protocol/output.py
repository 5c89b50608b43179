"""The output of a turn on its way: which item an upstream speaks of, and what place and id it has in our stream.

What lives here keeps places and ids apart, the upstream's from ours; it reads no text and writes no event.
"""

from collections.abc import Callable, Container, Iterable, Sequence

from server.protocol import events, ids, raw
from server.protocol.events import StreamEvent
from server.protocol.items import Item, from_upstream

# What announces a part of a message in which text comes unannounced: clients index the parts that they were told of.
_EMPTY_TEXT = b'{"type":"output_text","text":"","annotations":[],"logprobs":[]}'
_EMPTY_REFUSAL = b'{"type":"refusal","refusal":""}'
_EMPTY_PARTS = {
    "response.output_text.delta": _EMPTY_TEXT,
    "response.output_text.done": _EMPTY_TEXT,
    "response.refusal.delta": _EMPTY_REFUSAL,
    "response.refusal.done": _EMPTY_REFUSAL,
}


class Parts:
    """The content parts of one item: what number each has in our stream, whatever the upstream's are (vllm#35184).

    Ours count from 0. A part begins where it is announced, or where a number that is new comes while no part is open;
    any other number that is new is one more name of the latest part.
    """

    def __init__(self) -> None:
        self._ours_by_sent: dict[int | None, int] = {}
        self._announced: set[int] = set()
        self._count = 0
        self._is_open = False

    def place(self, event: StreamEvent) -> tuple[int, bytes | None]:
        """Our content_index for one of PART_EVENTS, and the empty part that must be announced before it, if any."""
        sent = event.content_index
        is_late = event.type == events.PART_DONE and self._count > 0
        if event.type == events.PART_ADDED or not (sent in self._ours_by_sent or self._is_open or is_late):
            self._ours_by_sent[sent] = self._count
            self._count += 1
            self._is_open = True
        if event.type == events.PART_DONE or event.type in events.TEXT_DONES:
            self._is_open = False
        ours = self._ours_by_sent.setdefault(sent, self._count - 1)
        empty = None if ours in self._announced else _EMPTY_PARTS.get(event.type)
        if event.type == events.PART_ADDED or empty is not None:
            self._announced.add(ours)
        return ours, empty


class OutputItem:
    """One item on its way: its place and ids in both streams. `finished` is the item itself, once it is done.

    `half_characters` are the first halves of surrogate pairs that wait for the second, by the text they are of.
    """

    def __init__(self, index: int, public_id: str, announced: raw.Object, sent_index: int | None) -> None:
        self.index = index
        self.public_id = public_id
        self.type = announced.string("type")
        self.sent_id = announced.string("id")
        self.sent_index = sent_index
        self.finished: Item | None = None
        self.parts = Parts()
        self.half_characters: dict[tuple[str, int | None], bytes] = {}

    def is_announced_by(self, sent_id: str | None, sent_index: int | None) -> bool:
        """Whether an `added` with these announces once more what is still on its way."""
        return self.finished is None and self._is_at(sent_id, sent_index)

    def is_finished_by(self, text: bytes, sent_id: str | None, sent_index: int | None) -> bool:
        """Whether a `done` with these ends once more what has ended."""
        return self.finished is not None and (text == self.finished.body or self._is_at(sent_id, sent_index))

    def _is_at(self, sent_id: str | None, sent_index: int | None) -> bool:
        return sent_id is not None and (sent_id, sent_index) == (self.sent_id, self.sent_index)


class Output:
    """All items of a turn, in the order of our stream. `issuer` is the upstream that makes them.

    `fidelity` tells what must be recorded of the item that the upstream gave under an id.
    """

    def __init__(
        self,
        taken_ids: Container[str],
        issuer: str,
        fidelity: Callable[[str | None], bytes | None],
        given_ids: Iterable[str] = (),
    ) -> None:
        """`taken_ids` are the public ids of the context, `given_ids` those of earlier rounds: no item may have one."""
        self.items: list[OutputItem] = []
        self._first_of_round = 0
        self._taken_ids = taken_ids
        self._given_ids = set(given_ids)
        self._issuer = issuer
        self._fidelity = fidelity
        self._by_sent_id: dict[str | None, OutputItem] = {}
        self._by_sent_index: dict[int | None, OutputItem] = {}

    def announce(self, announced: raw.Object, sent_index: int | None) -> OutputItem:
        """A new item at the next place, under the id that it has from here on."""
        item = OutputItem(len(self.items), self._public_id(announced), announced, sent_index)
        self.items.append(item)
        if item.sent_id is not None:
            self._by_sent_id[item.sent_id] = item
        if sent_index is not None:
            self._by_sent_index[sent_index] = item
        return item

    def begin_round(self) -> None:
        """Another reply goes on with the same output: it has ids and indexes of its own."""
        self._by_sent_id.clear()
        self._by_sent_index.clear()
        self._first_of_round = len(self.items)

    def finish(self, item: OutputItem, body: raw.Object) -> Item:
        """The item is done, and this is what it became; the id that it came with at last is one of its own."""
        item.finished = self.as_item(item, body)
        sent_id = body.string("id")
        if sent_id is not None:
            self._by_sent_id.setdefault(sent_id, item)
        return item.finished

    def as_item(self, item: OutputItem, body: raw.Object) -> Item:
        return from_upstream(body, item.public_id, self._issuer, self._fidelity(body.string("id")))

    def finished(self) -> list[Item]:
        return [item.finished for item in self.items if item.finished is not None]

    def has_open_items(self) -> bool:
        return any(item.finished is None for item in self.items)

    def find(self, sent_id: str | None, sent_index: int | None) -> OutputItem | None:
        """The item that an upstream speaks of: that of its index if the ids agree, else that of its id.

        Under an id that nobody knows it can only be the one of its index, as long as that is on its way.
        """
        by_index = self._by_sent_index.get(sent_index)
        if by_index is not None and sent_id in (None, by_index.sent_id):
            return by_index
        by_id = self._by_sent_id.get(sent_id)
        if by_id is not None:
            return by_id
        return by_index if by_index is not None and by_index.finished is None else None

    def latest(self) -> OutputItem | None:
        """The newest item, while it is on its way."""
        return next((item for item in self.items[-1:] if item.finished is None), None)

    def matched(self, output: Sequence[raw.Object]) -> list[OutputItem | None]:
        """For each element of a whole output the item that it repeats: that of its id, else the next of its type."""
        unmatched = self.items[self._first_of_round :]
        matches = [
            _take_first(
                unmatched, [item for item in unmatched if item.sent_id and item.sent_id == element.string("id")]
            )
            for element in output
        ]
        for place, element in enumerate(output):
            if matches[place] is None:
                element_type = element.string("type")
                matches[place] = _take_first(unmatched, [item for item in unmatched if item.type == element_type])
        return matches

    def _public_id(self, announced: raw.Object) -> str:
        """The upstream's id where it can serve and no item of the context has it, else a fresh one (DESIGN 3, Ids)."""
        public_id = announced.string("id")
        if public_id is None or not ids.is_usable(public_id) or self._is_taken(public_id):
            public_id = ids.new_item_id(announced.string("type") or "unknown")
        self._given_ids.add(public_id)
        return public_id

    def _is_taken(self, public_id: str) -> bool:
        return public_id in self._given_ids or public_id in self._taken_ids


def _take_first(unmatched: list[OutputItem], candidates: list[OutputItem]) -> OutputItem | None:
    if not candidates:
        return None
    unmatched.remove(candidates[0])
    return candidates[0]
