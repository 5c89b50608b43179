"""An upstream's reply becomes what the client sees and the turn that is stored: one state machine for both modes.

What lives here takes bytes and gives bytes. Each event's five members are compared with those that its place in our
stream wants, and only what differs is replaced; so a well-made stream passes as it came (DESIGN 3, Events), and the
client sees the grammar of the contract whatever the upstream sent. The terminal event is held back: the turn is stored
before it leaves.
"""

from collections.abc import Callable, Collection

import msgspec

from server.protocol import events, ids, raw, response, sse
from server.protocol.events import StreamEvent
from server.protocol.items import Item, from_upstream
from server.protocol.response import ResponseObject
from server.protocol.shown import shown


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended: `body` is the final response object without its items, `items` its output in order."""

    status: str
    body: raw.Object
    items: list[Item]

    def shown(self) -> bytes:
        """The final response object: body, terminal event and GET are these bytes."""
        return response.whole(self.body, [shown(item) for item in self.items])


class _OutputItem:
    """An output item on its way: its place and ids in both streams, and what has come of it."""

    def __init__(self, index: int, public_id: str, announced: raw.Object, sent_index: int | None) -> None:
        self.index = index
        self.public_id = public_id
        self.announced = announced.text
        self.type = announced.string("type")
        self.sent_id = announced.string("id")
        self.sent_index = sent_index
        self.finished: Item | None = None
        self.half_character = b""
        self.parts = events.Parts()

    def is_announced_by(self, sent_id: str | None, sent_index: int | None) -> bool:
        """Whether an `added` with these announces once more what is still on its way."""
        return self.finished is None and self._is_at(sent_id, sent_index)

    def is_finished_by(self, text: bytes, sent_id: str | None, sent_index: int | None) -> bool:
        """Whether a `done` with these ends once more what has ended."""
        return self.finished is not None and (text == self.finished.body or self._is_at(sent_id, sent_index))

    def _is_at(self, sent_id: str | None, sent_index: int | None) -> bool:
        return sent_id is not None and (sent_id, sent_index) == (self.sent_id, self.sent_index)


class Assembler:
    """One turn's stream. `feed` it the upstream's bytes, then `end` it; `outcome` is there once the turn has ended."""

    def __init__(
        self, response_object: ResponseObject, *, taken_ids: Collection[str], issuer: str, event_bytes_max: int
    ) -> None:
        """`taken_ids` are the public ids of the context: no output item may have one of them."""
        self.outcome: Outcome | None = None
        self._response = response_object
        self._taken_ids = set(taken_ids)
        self._issuer = issuer
        self._decoder = sse.Decoder(event_bytes_max)
        self._sequence_number = 0
        self._opening = [events.CREATED, events.IN_PROGRESS]
        self._started: bytes | None = None
        self._items: list[_OutputItem] = []
        self._by_sent_id: dict[str | None, _OutputItem] = {}
        self._by_sent_index: dict[int | None, _OutputItem] = {}

    def open(self) -> bytes:
        """Our own `response.created` and `response.in_progress`, as far as they have not been sent yet."""
        missing, self._opening = self._opening, []
        return self._write_started(missing, None)

    def feed(self, chunk: bytes) -> bytes:
        """What the client gets for these bytes of the upstream; nothing once the turn has ended."""
        try:
            frames = self._decoder.feed(chunk)
        except sse.EventTooLarge:
            self.fail("The model server sent an event that is too large.")
            return b""
        return b"".join([self._take(frame) for frame in frames if self.outcome is None])

    def end(self) -> None:
        """The upstream's bytes have ended; without a terminal event the turn has failed (contract vllm.md 0.5)."""
        self.fail("The model server's stream ended before the response was finished.")

    def fail(self, message: str, code: str = "server_error") -> None:
        """End the turn as failed, with the items that were finished; a turn that has ended stays as it is."""
        if self.outcome is None:
            self._finish("failed", self._response.ended(None, "failed", {"code": code, "message": message}))

    def cancel(self) -> None:
        """End the turn as cancelled, with the items that were finished; a turn that has ended stays as it is."""
        if self.outcome is None:
            self._finish("cancelled", self._response.ended(None, "cancelled", None))

    def withdraw(self, message: str) -> None:
        """The turn could not be stored: it is told as failed, whatever it was (DESIGN 3, The final write fails)."""
        self.outcome = None
        self.fail(message)

    def closing(self) -> bytes:
        """What ends the client's stream: the terminal event, opened first if need be, and `[DONE]`.

        A cancelled turn has no terminal event (contract api.md 6).
        """
        name = events.TERMINAL_OF_STATUS.get(self.outcome.status) if self.outcome else None
        if self.outcome is None or name is None:
            return sse.DONE
        return self.open() + self._write(name, {"response": self.outcome.shown()}) + sse.DONE

    def _take(self, frame: sse.Event) -> bytes:
        data = frame.data.strip()
        if data in (b"", b"null"):
            return b""
        if data == b"[DONE]":
            self.end()
            return b""
        try:
            return self._dispatch(events.read(frame))
        except raw.Malformed:
            self.fail("The model server sent an event that is not JSON.")
            return b""

    def _dispatch(self, event: StreamEvent) -> bytes:
        if event.type in (events.CREATED, events.IN_PROGRESS, events.QUEUED):
            return self._take_opening(event)
        if event.type == events.ERROR or not event.type:
            return self._take_error(event)
        opening = self.open() if self._opening else b""
        take = _TAKERS.get(event.type, Assembler._take_within)
        return opening + take(self, event)

    def _take_opening(self, event: StreamEvent) -> bytes:
        """The event that is due next, preceded by one that the upstream left out; any other is dropped."""
        if event.type not in self._opening:
            return b""
        upstream = _object(events.opened(event).get("response")) if self._started is None else None
        due = self._opening.index(event.type)
        missing, self._opening = self._opening[:due], self._opening[due + 1 :]
        return self._write_started(missing, upstream) + self._pass(event, {"response": self._started_as(upstream)})

    def _take_error(self, event: StreamEvent) -> bytes:
        """An error, flat or nested (contract api.md 6), ends the turn; an event without name or error says nothing."""
        cut = events.opened(event)
        error = cut.get("error")
        if event.type or error is not None:
            told = _object(error) or cut
            self.fail(response.fit_to_tell(told.string("message") or cut.string("error")), told.string("code") or "")
        return b""

    def _take_added(self, event: StreamEvent) -> bytes:
        cut = _object(events.opened(event).get("item"))
        if cut is None:
            return b""
        sent_id = cut.string("id")
        known = self._find(sent_id, event.output_index)
        if known is not None and known.is_announced_by(sent_id, event.output_index):
            return b""
        item = self._announce(cut, event.output_index)
        return self._pass_item(event, item, self._item_of(cut.text, item), is_done=False)

    def _take_done(self, event: StreamEvent) -> bytes:
        cut = _object(events.opened(event).get("item"))
        if cut is None:
            return b""
        sent_id = cut.string("id")
        item = self._find(sent_id, event.output_index)
        if item is not None and item.is_finished_by(cut.text, sent_id, event.output_index):
            return b""
        if item is None or item.finished is not None:
            return self._present(cut, event.output_index)
        if sent_id is not None:
            self._by_sent_id.setdefault(sent_id, item)
        item.finished = self._item_of(cut.text, item)
        return self._pass_item(event, item, item.finished, is_done=True)

    def _take_within(self, event: StreamEvent) -> bytes:
        names_none = event.item_id is None and event.output_index is None
        if names_none and event.type not in events.OF_AN_ITEM:
            return self._take_of_no_item(event)
        item = self._latest() if names_none else self._find(event.item_id, event.output_index)
        if item is None:
            # Of an item that was never announced a client can make nothing; the item itself comes when it is done.
            return b""
        announcement, changes = b"", {}
        if event.type in events.PART_EVENTS:
            if item.finished is not None:
                return b""
            part, empty = item.parts.place(event)
            if empty is not None:
                announcement = self._write_part(item, part, empty)
            if part != event.content_index:
                changes["content_index"] = raw.literal(part)
        if item.half_character or b"\\u" in event.data:
            changes |= _joined_halves(event, item)
        return announcement + self._pass(event, changes, item)

    def _take_of_no_item(self, event: StreamEvent) -> bytes:
        """An event of a type that we do not know: whatever response object it carries is ours by then."""
        cut = events.opened(event)
        if cut.get("error") is not None:
            return self._take_error(event)
        return self._pass(event, {"response": self._started_as(None)} if _object(cut.get("response")) else {})

    def _take_terminal(self, event: StreamEvent) -> bytes:
        upstream = _object(events.opened(event).get("response")) or raw.Object(b"{}")
        status = upstream.string("status") or ""
        if status not in events.STATUS_OF_TERMINAL.values():
            status = events.STATUS_OF_TERMINAL[event.type]
        frames = self._reconcile(_elements(upstream.get("output")))
        if status in ("completed", "incomplete"):
            frames += b"".join([self._finish_item(item, item.announced) for item in self._items if not item.finished])
        if status == "cancelled":
            self.fail("The model server cancelled the response.")
        else:
            self._finish(status, self._response.ended(upstream, status, None))
        return frames

    def _reconcile(self, output: list[bytes]) -> bytes:
        """What the terminal event's output adds: items that were not done, or never announced, are shown first."""
        frames = []
        for cut, item in self._matched([raw.Object(text) for text in output if text.startswith(b"{")]):
            if item is None:
                frames.append(self._present(cut, None))
            elif item.finished is None:
                frames.append(self._finish_item(item, cut.text))
        return b"".join(frames)

    def _matched(self, output: list[raw.Object]) -> list[tuple[raw.Object, _OutputItem | None]]:
        """Each element of the terminal output with the item it repeats: that of its id, else the next of its type."""
        unmatched = list(self._items)
        matches = [
            _take_first(unmatched, [item for item in unmatched if item.sent_id and item.sent_id == cut.string("id")])
            for cut in output
        ]
        for place, cut in enumerate(output):
            if matches[place] is None:
                item_type = cut.string("type")
                matches[place] = _take_first(unmatched, [item for item in unmatched if item.type == item_type])
        return list(zip(output, matches, strict=True))

    def _present(self, cut: raw.Object, sent_index: int | None) -> bytes:
        """An item that comes whole, without having been announced."""
        item = self._announce(cut, sent_index)
        view = shown(self._item_of(cut.text, item), is_done=False)
        return self._write_item(events.ITEM_ADDED, item, view) + self._finish_item(item, cut.text)

    def _finish_item(self, item: _OutputItem, text: bytes) -> bytes:
        """The `done` of an item for which the upstream sent none."""
        item.finished = self._item_of(text, item)
        return self._write_item(events.ITEM_DONE, item, shown(item.finished))

    def _announce(self, cut: raw.Object, sent_index: int | None) -> _OutputItem:
        item = _OutputItem(len(self._items), _public_id(cut, self._taken_ids), cut, sent_index)
        self._items.append(item)
        if item.sent_id is not None:
            self._by_sent_id[item.sent_id] = item
        if sent_index is not None:
            self._by_sent_index[sent_index] = item
        return item

    def _find(self, sent_id: str | None, sent_index: int | None) -> _OutputItem | None:
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

    def _latest(self) -> _OutputItem | None:
        return next((item for item in self._items[-1:] if item.finished is None), None)

    def _finish(self, status: str, body: raw.Object) -> None:
        finished = [item.finished for item in self._items if item.finished is not None]
        self.outcome = Outcome(status=status, body=body, items=finished)

    def _item_of(self, text: bytes, item: _OutputItem) -> Item:
        return from_upstream(text, item.public_id, self._issuer)

    def _pass_item(self, event: StreamEvent, item: _OutputItem, body: Item, *, is_done: bool) -> bytes:
        view = shown(body, is_done=is_done)
        return self._pass(event, {} if view == body.body else {"item": view}, item)

    def _pass(self, event: StreamEvent, changes: dict[str, bytes], item: _OutputItem | None = None) -> bytes:
        """The upstream's event with what differs from its place in our stream replaced, else as it came."""
        if event.type != event.sent_type:
            changes["type"] = raw.literal(event.type)
        if event.sequence_number != self._sequence_number:
            changes["sequence_number"] = raw.literal(self._sequence_number)
        if item is not None:
            if event.output_index != item.index:
                changes["output_index"] = raw.literal(item.index)
            if event.item_id != item.public_id and event.type not in events.WITHOUT_ITEM_ID:
                changes["item_id"] = raw.literal(item.public_id)
        self._sequence_number += 1
        data = events.opened(event).spliced(changes) if changes else event.data
        return sse.encode(event.type.encode(), data)

    def _write(self, name: str, members: dict[str, bytes]) -> bytes:
        frame = events.write(name, {"sequence_number": raw.literal(self._sequence_number), **members})
        self._sequence_number += 1
        return frame

    def _write_started(self, names: list[str], upstream: raw.Object | None) -> bytes:
        return b"".join([self._write(name, {"response": self._started_as(upstream)}) for name in names])

    def _started_as(self, upstream: raw.Object | None) -> bytes:
        """The response object at the start of the turn, settled by the first event that carries it."""
        if self._started is None:
            self._started = self._response.started(upstream)
        return self._started

    def _write_item(self, name: str, item: _OutputItem, view: bytes) -> bytes:
        return self._write(name, {"output_index": raw.literal(item.index), "item": view})

    def _write_part(self, item: _OutputItem, part: int, empty: bytes) -> bytes:
        place: dict[str, str | int] = {
            "item_id": item.public_id,
            "output_index": item.index,
            "content_index": part,
        }
        members = {name: raw.literal(value) for name, value in place.items()}
        return self._write(events.PART_ADDED, {**members, "part": empty})


_TAKERS: dict[str, Callable[[Assembler, StreamEvent], bytes]] = {
    events.ITEM_ADDED: Assembler._take_added,
    events.ITEM_DONE: Assembler._take_done,
    **dict.fromkeys(events.STATUS_OF_TERMINAL, Assembler._take_terminal),
}


def assemble_body(body: bytes, response_object: ResponseObject, *, taken_ids: Collection[str], issuer: str) -> Outcome:
    """The turn in a whole JSON reply, as `Assembler` would have it.

    Raises raw.Malformed where the reply is not a response object that has ended; `body` is a checked text.
    """
    upstream = raw.Object(body)
    output = upstream.get("output")
    status = upstream.string("status") or "completed"
    if output is None or status not in events.TERMINAL_OF_STATUS:
        raise raw.Malformed("it is not a response that has ended")
    taken_ids = set(taken_ids)
    items = [from_upstream(text, _public_id(raw.Object(text), taken_ids), issuer) for text in raw.elements(output)]
    return Outcome(status=status, body=response_object.ended(upstream, status, None), items=items)


def _public_id(cut: raw.Object, taken_ids: set[str]) -> str:
    """The upstream's id where it can serve and no item of the context has it, else a fresh one (DESIGN 3, Ids)."""
    public_id = cut.string("id")
    if public_id is None or public_id in taken_ids or not ids.is_usable(public_id):
        public_id = ids.new_item_id(cut.string("type") or "unknown")
    taken_ids.add(public_id)
    return public_id


def _joined_halves(event: StreamEvent, item: _OutputItem) -> dict[str, bytes]:
    """A delta that neither begins nor ends within a character: a first half waits for the second (inspect_ai#3802)."""
    delta = events.opened(event).get("delta") if event.type.endswith(".delta") else None
    if delta is None or not delta.startswith(b'"'):
        item.half_character = b""
        return {}
    whole, item.half_character = raw.split_high_surrogate(raw.joined([b'"' + item.half_character + b'"', delta]))
    return {} if whole == delta else {"delta": whole}


def _take_first(unmatched: list[_OutputItem], candidates: list[_OutputItem]) -> _OutputItem | None:
    if not candidates:
        return None
    unmatched.remove(candidates[0])
    return candidates[0]


def _object(text: bytes | None) -> raw.Object | None:
    return raw.Object(text) if text is not None and text.startswith(b"{") else None


def _elements(text: bytes | None) -> list[bytes]:
    return raw.elements(text) if text is not None and text.startswith(b"[") else []
