"""An upstream's reply becomes what the client sees and the turn that is stored: one state machine for both modes.

What lives here takes bytes and gives bytes. Each event's five members are compared with those that its place in our
stream wants, and only what differs is replaced; so a well-made stream passes as it came (DESIGN 3, Events), and the
client sees the grammar of the contract whatever the upstream sent. The terminal event is held back: the turn is stored
before it leaves.
"""

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
    """An output item on its way: its place and id in our stream, and where its content parts stand."""

    def __init__(self, index: int, public_id: str, item_type: str) -> None:
        self.index = index
        self.public_id = public_id
        self.type = item_type
        self.body: bytes | None = None
        self.part = -1
        self.part_is_open = False
        self.half_character = b""

    def place_part(self, event: StreamEvent) -> int:
        """Our content_index for an event: parts count from 0, whatever numbers the upstream gives (vllm#35184)."""
        opens = event.type == events.PART_ADDED or not self.part_is_open
        closes_late = event.type == events.PART_DONE and self.part >= 0
        if opens and not closes_late:
            self.part += 1
        self.part_is_open = event.type not in events.TEXT_DONES | {events.PART_DONE}
        return self.part


class Assembler:
    """One turn's stream. `feed` it the upstream's bytes, then `end` it; `outcome` is there once the turn has ended."""

    def __init__(
        self, response_object: ResponseObject, *, taken_ids: set[str], issuer: str, event_bytes_max: int
    ) -> None:
        """`taken_ids` are the public ids of the context: no output item may have one of them."""
        self.outcome: Outcome | None = None
        self._response = response_object
        self._taken_ids = taken_ids
        self._issuer = issuer
        self._decoder = sse.Decoder(event_bytes_max)
        self._sequence_number = 0
        self._opening = [events.CREATED, events.IN_PROGRESS]
        self._items: list[_OutputItem] = []
        self._by_sent_id: dict[str, list[_OutputItem]] = {}
        self._by_sent_index: dict[int, _OutputItem] = {}

    def open(self) -> bytes:
        """Our own `response.created` and `response.in_progress`, as far as they have not been sent yet."""
        frames = [self._write(name, {"response": self._response.started(None)}) for name in self._opening]
        self._opening = []
        return b"".join(frames)

    def feed(self, chunk: bytes) -> bytes:
        """What the client gets for these bytes of the upstream; nothing once the turn has ended."""
        try:
            frames = self._decoder.feed(chunk)
        except sse.EventTooLarge:
            self.fail("The model server sent an event that is too large.")
            return b""
        return b"".join(self._take(frame) for frame in frames if self.outcome is None)

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
            event = events.read(frame)
            return self._dispatch(event)
        except raw.Malformed:
            self.fail("The model server sent an event that is not JSON.")
            return b""

    def _dispatch(self, event: StreamEvent) -> bytes:
        if event.type in (events.CREATED, events.IN_PROGRESS, events.QUEUED):
            return self._take_opening(event)
        if event.type == events.ERROR or not event.type:
            return self._take_error(event)
        opening = self.open()
        if event.type == events.ITEM_ADDED:
            return opening + self._take_added(event)
        if event.type == events.ITEM_DONE:
            return opening + self._take_done(event)
        if event.type in events.STATUS_OF_TERMINAL:
            return opening + self._take_terminal(event)
        return opening + self._take_within(event)

    def _take_opening(self, event: StreamEvent) -> bytes:
        if event.type not in self._opening:
            return b""
        upstream = _object(raw.Object(event.data).get("response"))
        frames = []
        while self._opening:
            name = self._opening.pop(0)
            started = self._response.started(upstream)
            if name == event.type:
                frames.append(self._pass(event, {"response": started}))
                break
            frames.append(self._write(name, {"response": started}))
        return b"".join(frames)

    def _take_error(self, event: StreamEvent) -> bytes:
        """An `error` event, flat or nested (contract api.md 6), ends the turn."""
        cut = raw.Object(event.data)
        told = _object(cut.get("error")) or cut
        if event.type or "error" in cut.spans:
            message = told.string("message") or "The model server reported an error."
            self.fail(message, told.string("code") or "server_error")
        return b""

    def _take_added(self, event: StreamEvent) -> bytes:
        text = raw.Object(event.data).get("item")
        if text is None or not text.startswith(b"{"):
            return b""
        item = self._announce(raw.Object(text), event.output_index)
        view = shown(from_upstream(text, item.public_id, self._issuer), is_done=False)
        return self._pass(event, {} if view == text else {"item": view}, item)

    def _take_done(self, event: StreamEvent) -> bytes:
        text = raw.Object(event.data).get("item")
        if text is None or not text.startswith(b"{"):
            return b""
        cut = raw.Object(text)
        item = self._find(cut.string("id"), event.output_index)
        if item is None or item.body is not None:
            return self._present(text, event.output_index)
        item.body = text
        view = shown(from_upstream(text, item.public_id, self._issuer))
        return self._pass(event, {} if view == text else {"item": view}, item)

    def _take_within(self, event: StreamEvent) -> bytes:
        item = self._find(event.item_id, event.output_index)
        if item is None:
            # Of an item that was never announced a client can make nothing; the item itself comes when it is done.
            return self._pass(event, {}) if event.item_id is None and event.output_index is None else b""
        changes: dict[str, bytes] = {}
        if event.type in events.PART_EVENTS:
            part = item.place_part(event)
            if part != event.content_index:
                changes["content_index"] = raw.literal(part)
        if event.type.endswith(".delta"):
            changes |= _joined_halves(event, item)
        return self._pass(event, changes, item)

    def _take_terminal(self, event: StreamEvent) -> bytes:
        upstream = _object(raw.Object(event.data).get("response")) or raw.Object(b"{}")
        frames = self._reconcile(_elements(upstream.get("output")))
        told = upstream.string("status")
        status = told if told in events.TERMINAL_OF_STATUS else events.STATUS_OF_TERMINAL[event.type]
        if told == "cancelled":
            self.fail("The model server cancelled the response.")
        else:
            self._finish(status, self._response.ended(upstream, status, None))
        return frames

    def _reconcile(self, output: list[bytes]) -> bytes:
        """What the terminal event's output adds: items that were not done, or never announced, are shown first."""
        frames = []
        for text, item in self._matched([raw.Object(text) for text in output if text.startswith(b"{")]):
            if item is None:
                frames.append(self._present(text, None))
            elif item.body is None:
                item.body = text
                frames.append(self._write_item(events.ITEM_DONE, item, text, is_done=True))
        return b"".join(frames)

    def _matched(self, output: list[raw.Object]) -> list[tuple[bytes, _OutputItem | None]]:
        """Each text of the terminal output with the item it repeats: the one of its id, else the next of its type."""
        unmatched = list(self._items)
        matches = [_take_first(unmatched, self._by_sent_id.get(cut.string("id") or "", [])) for cut in output]
        for index, cut in enumerate(output):
            if matches[index] is None:
                same_type = [item for item in unmatched if item.type == cut.string("type")]
                matches[index] = _take_first(unmatched, same_type)
        return [(cut.text, match) for cut, match in zip(output, matches, strict=True)]

    def _present(self, text: bytes, sent_index: int | None) -> bytes:
        """An item that comes whole, without having been announced."""
        item = self._announce(raw.Object(text), sent_index)
        item.body = text
        return self._write_item(events.ITEM_ADDED, item, text, is_done=False) + self._write_item(
            events.ITEM_DONE, item, text, is_done=True
        )

    def _announce(self, cut: raw.Object, sent_index: int | None) -> _OutputItem:
        sent_id, item_type = cut.string("id"), cut.string("type") or "unknown"
        public_id = _public_id(sent_id, item_type, self._taken_ids)
        item = _OutputItem(len(self._items), public_id, item_type)
        self._items.append(item)
        if sent_id:
            self._by_sent_id.setdefault(sent_id, []).append(item)
        if sent_index is not None:
            self._by_sent_index[sent_index] = item
        return item

    def _find(self, sent_id: str | None, sent_index: int | None) -> _OutputItem | None:
        """The item an event speaks of: by an id that only one item has, else by its index, else by the newest id."""
        by_id = self._by_sent_id.get(sent_id or "", [])
        if len(by_id) == 1:
            return by_id[0]
        by_index = self._by_sent_index.get(sent_index) if sent_index is not None else None
        return by_index or (by_id[-1] if by_id else None)

    def _finish(self, status: str, body: raw.Object) -> None:
        items = [
            from_upstream(item.body, item.public_id, self._issuer) for item in self._items if item.body is not None
        ]
        self.outcome = Outcome(status=status, body=body, items=items)

    def _pass(self, event: StreamEvent, changes: dict[str, bytes], item: _OutputItem | None = None) -> bytes:
        """The upstream's event with what differs from its place in our stream replaced, else as it came."""
        if event.type != event.sent_type:
            changes["type"] = raw.literal(event.type)
        if event.sequence_number != self._sequence_number:
            changes["sequence_number"] = raw.literal(self._sequence_number)
        if item is not None:
            if event.output_index != item.index:
                changes["output_index"] = raw.literal(item.index)
            if event.item_id != item.public_id and event.type not in (events.ITEM_ADDED, events.ITEM_DONE):
                changes["item_id"] = raw.literal(item.public_id)
        self._sequence_number += 1
        data = raw.Object(event.data).spliced(changes) if changes else event.data
        return sse.encode(event.type.encode(), data)

    def _write(self, name: str, members: dict[str, bytes]) -> bytes:
        frame = events.write(name, {"sequence_number": raw.literal(self._sequence_number), **members})
        self._sequence_number += 1
        return frame

    def _write_item(self, name: str, item: _OutputItem, text: bytes, *, is_done: bool) -> bytes:
        view = shown(from_upstream(text, item.public_id, self._issuer), is_done=is_done)
        return self._write(name, {"output_index": raw.literal(item.index), "item": view})


def assemble_body(body: bytes, response_object: ResponseObject, *, taken_ids: set[str], issuer: str) -> Outcome:
    """The turn in a whole JSON reply, as `Assembler` would have it.

    Raises raw.Malformed where the reply is not a response object that has ended; `body` is a checked text.
    """
    upstream = raw.Object(body)
    output = upstream.get("output")
    status = upstream.string("status") or "completed"
    if output is None or status not in events.TERMINAL_OF_STATUS:
        raise raw.Malformed("it is not a response that has ended")
    items = []
    for text in _elements(output):
        cut = raw.Object(text)
        public_id = _public_id(cut.string("id"), cut.string("type") or "unknown", taken_ids)
        items.append(from_upstream(text, public_id, issuer))
    return Outcome(status=status, body=response_object.ended(upstream, status, None), items=items)


def _public_id(sent_id: str | None, item_type: str, taken_ids: set[str]) -> str:
    """The upstream's id where it can serve and no item of the context has it, else a fresh one (DESIGN 3, Ids)."""
    fits = sent_id is not None and sent_id not in taken_ids and ids.is_usable(sent_id)
    public_id = sent_id if fits and sent_id is not None else ids.new_item_id(item_type)
    taken_ids.add(public_id)
    return public_id


def _joined_halves(event: StreamEvent, item: _OutputItem) -> dict[str, bytes]:
    """A delta that neither begins nor ends within a character: a first half waits for the second (inspect_ai#3802)."""
    if not item.half_character and b"\\u" not in event.data:
        return {}
    delta = raw.Object(event.data).get("delta")
    if delta is None or not delta.startswith(b'"'):
        return {}
    whole, item.half_character = raw.split_high_surrogate(raw.joined([b'"' + item.half_character + b'"', delta]))
    return {} if whole == delta else {"delta": whole}


def _take_first(unmatched: list[_OutputItem], candidates: list[_OutputItem]) -> _OutputItem | None:
    found = next((item for item in candidates if item in unmatched), None)
    if found is not None:
        unmatched.remove(found)
    return found


def _object(text: bytes | None) -> raw.Object | None:
    return raw.Object(text) if text is not None and text.startswith(b"{") else None


def _elements(text: bytes | None) -> list[bytes]:
    return raw.elements(text) if text is not None and text.startswith(b"[") else []
