"""An upstream's reply becomes what the client sees and the turn that is stored: one state machine for both modes.

What lives here takes bytes and gives bytes. Each event's five members are compared with those that its place in our
stream wants, and only what differs is replaced; so a well-made stream passes as it came (DESIGN 3, Events), and the
client sees the grammar of the contract whatever the upstream sent. The terminal event is held back: the turn is stored
before it leaves.
"""

from collections.abc import Callable, Container, Sequence

import msgspec

from server.protocol import events, raw, response, sse, usage
from server.protocol.deltas import Flow, joined_halves
from server.protocol.dialect import Reader
from server.protocol.events import StreamEvent
from server.protocol.items import Item
from server.protocol.output import Output, OutputItem
from server.protocol.response import ResponseObject
from server.protocol.shown import shown
from server.protocol.telling import told


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended: `body` is the final response object without its items, `items` its output in order."""

    status: str
    body: raw.Object
    items: list[Item]

    def shown(self) -> bytes:
        """The final response object: body, terminal event and GET are these bytes."""
        return response.whole(self.body, [shown(item) for item in self.items])


class Assembler:
    """One turn's stream. `feed` it the upstream's bytes, then `end` it; `outcome` is there once the turn has ended."""

    def __init__(
        self,
        response_object: ResponseObject,
        *,
        taken_ids: Container[str],
        issuer: str,
        event_bytes_max: int,
        reader: Reader,
    ) -> None:
        """`taken_ids` are the public ids of the context: no output item may have one of them."""
        self.outcome: Outcome | None = None
        self._response = response_object
        self._reader = reader
        self._output = Output(taken_ids, issuer, reader.fidelity)
        self._event_bytes_max = event_bytes_max
        self._decoder = sse.Decoder(event_bytes_max)
        self._earlier: list[raw.Object] = []
        self._frames: list[bytes] = []
        self._sequence_number = 0
        self._opening = [events.CREATED, events.IN_PROGRESS]
        self._started: bytes | None = None
        # Of the delta that came last, if it passed as it came.
        self._flow: Flow | None = None
        # What an upstream has told of its usage before it told the end.
        self._costs: raw.Object | None = None

    def open(self) -> bytes:
        """Our own `response.created` and `response.in_progress`, as far as they have not been sent yet."""
        self._open()
        return self._written()

    def feed(self, chunk: bytes) -> bytes:
        """What the client gets for these bytes of the upstream; nothing once the turn has ended."""
        self._take_bytes(self._reader.feed(chunk))
        return self._written()

    def go_on(self, reader: Reader) -> None:
        """The turn has not ended after all: another reply goes on with it, whose bytes come now."""
        assert self.outcome is not None
        # Its usage is that of all rounds so far.
        self._earlier = [self.outcome.body]
        self._costs = None
        self.outcome = None
        self._reader = reader
        self._decoder = sse.Decoder(self._event_bytes_max)
        self._output.begin_round()

    def take_body(self, body: bytes) -> bytes:
        """What the client gets for a whole reply where a stream was asked for; the turn has ended with it.

        Raises raw.Malformed where the reply is not a response object that has ended.
        """
        upstream, status, elements = _ended_response(self._reader.whole(body))
        self._started_as(upstream)
        self._open()
        self._reconcile(elements)
        self._finish(status, self._response.ended(upstream, status, None))
        return self._written()

    def end(
        self,
        message: str = "The model server's stream ended before the response was finished.",
        code: str | None = None,
    ) -> None:
        """The upstream's bytes have ended, or broken off; without a terminal event the turn has failed, as `message`
        and `code` tell (contract vllm.md 0.5)."""
        self._end_reading()
        self.fail(message, code or "server_error")

    def fail(self, message: str, code: str = "server_error") -> None:
        """End the turn as failed, with the items that were finished; a turn that has ended stays as it is."""
        if self.outcome is None:
            error = {"code": code, "message": message}
            self._finish("failed", self._response.ended(self._costs, "failed", error))

    def cancel(self) -> None:
        """End the turn as cancelled, with the items that were finished; a turn that has ended stays as it is."""
        self._end_reading()
        if self.outcome is None:
            self._finish("cancelled", self._response.ended(self._costs, "cancelled", None))

    def withdraw(self, message: str) -> None:
        """The turn can't be told as what it was: it has failed, at the price that it had."""
        assert self.outcome is not None
        self._costs, self._earlier = self.outcome.body, []
        self.outcome = None
        self.fail(message)

    def closing(self) -> bytes:
        """What ends the client's stream: the terminal event, opened first if need be, and `[DONE]`.

        A cancelled turn has no terminal event (contract api.md 6).
        """
        name = events.TERMINAL_OF_STATUS.get(self.outcome.status) if self.outcome else None
        if self.outcome is None or name is None:
            return sse.DONE
        self._open()
        self._write(name, {"response": self.outcome.shown()})
        return self._written() + sse.DONE

    def _end_reading(self) -> None:
        """What was on its way when the bytes ended is as far as it came, if the reader can tell."""
        if self.outcome is None:
            self._take_bytes(self._reader.end())

    def _take_bytes(self, chunk: bytes) -> None:
        try:
            self._take_all(self._decoder.cut(chunk))
        except sse.EventTooLarge as too_large:
            self._take_all(too_large.blocks_before)
            self.fail("The model server sent an event that is too large.")

    def _take_all(self, blocks: list[bytes]) -> None:
        at = 0
        while at < len(blocks) and self.outcome is None:
            length = 0 if self._flow is None else self._flow.length(blocks, at, self._sequence_number)
            if length:
                self._frames.append(sse.joined(blocks[at : at + length]))
                self._sequence_number += length
            elif (frame := sse.parsed(blocks[at])) is not None:
                self._flow = None
                self._take(frame)
            at += length or 1

    def _take(self, frame: sse.Event) -> None:
        data = frame.data.strip()
        if data == b"[DONE]":
            self.end()
        elif data not in (b"", b"null"):
            try:
                self._dispatch(events.read(frame))
            except raw.Malformed:
                self.fail("The model server sent an event that is not JSON.")

    def _dispatch(self, event: StreamEvent) -> None:
        if event.type in (events.CREATED, events.IN_PROGRESS, events.QUEUED):
            self._take_opening(event)
        elif event.type == events.ERROR or not event.type:
            self._take_error(event)
        else:
            self._open()
            take = _TAKERS.get(event.type, Assembler._take_within)
            take(self, event)

    def _take_opening(self, event: StreamEvent) -> None:
        """The event that is due next, preceded by one that the upstream left out; any other is dropped."""
        upstream = events.opened(event).object("response")
        if upstream is not None and (costs := upstream.get("usage")) is not None:
            self._costs = raw.Object(raw.render({"usage": costs}))
        if event.type not in self._opening:
            return
        started = self._started_as(upstream)
        while self._opening.pop(0) != event.type:
            self._write(events.CREATED, {"response": started})
        self._pass(event, {"response": started})

    def _take_error(self, event: StreamEvent) -> None:
        """An error, flat or nested (contract api.md 6), ends the turn; an event without name or error says nothing."""
        cut = events.opened(event)
        error = cut.get("error")
        if event.type or error is not None:
            told = self._response.told(cut.object("error") or cut)
            self.fail(told["message"], told["code"])

    def _take_added(self, event: StreamEvent) -> None:
        cut = events.opened(event).object("item")
        if cut is None:
            return
        sent_id = cut.string("id")
        known = self._output.find(sent_id, event.output_index)
        if known is not None and known.is_announced_by(sent_id, event.output_index):
            return
        item = self._output.announce(cut, event.output_index)
        self._pass_item(event, item, self._output.as_item(item, cut), is_done=False)

    def _take_done(self, event: StreamEvent) -> None:
        cut = events.opened(event).object("item")
        if cut is None:
            return
        sent_id = cut.string("id")
        item = self._output.find(sent_id, event.output_index)
        if item is not None and item.is_finished_by(cut.text, sent_id, event.output_index):
            return
        if item is None or item.finished is not None:
            self._present(cut, event.output_index)
            return
        self._pass_item(event, item, self._output.finish(item, cut), is_done=True)

    def _take_within(self, event: StreamEvent) -> None:
        if event.item_id is not None or event.output_index is not None:
            item = self._output.find(event.item_id, event.output_index)
        elif event.type in events.OF_AN_ITEM:
            item = self._output.latest()
        else:
            self._take_of_no_item(event)
            return
        # Of an item that was never announced a client can make nothing; the item itself comes when it is done. And of
        # one that is done there is nothing more to say.
        if item is not None and item.finished is None:
            self._take_of_item(event, item)

    def _take_of_item(self, event: StreamEvent, item: OutputItem) -> None:
        changes: dict[str, bytes] = {}
        if event.type in events.PART_EVENTS:
            part, empty = item.parts.place(event)
            if empty is not None:
                self._write_part(item, part, empty)
            if part != event.content_index:
                changes["content_index"] = raw.literal(part)
        if item.half_characters or b"\\u" in event.data:
            changes |= joined_halves(event, item)
        as_it_came = self._pass(event, changes, item)
        if as_it_came and not item.half_characters and event.type.endswith(".delta"):
            self._flow = Flow(event)

    def _take_of_no_item(self, event: StreamEvent) -> None:
        """An event of a type that we do not know: whatever response object it carries is ours by then."""
        cut = events.opened(event)
        if cut.get("error") is not None:
            self._take_error(event)
        else:
            self._pass(event, {"response": self._started_as(None)} if cut.object("response") else {})

    def _take_terminal(self, event: StreamEvent) -> None:
        upstream = events.opened(event).object("response") or raw.Object(b"{}")
        status = upstream.string("status") or ""
        if status not in events.STATUS_OF_TERMINAL.values():
            status = events.STATUS_OF_TERMINAL[event.type]
        self._reconcile(upstream.objects("output"))
        if status == "cancelled":
            self.fail("The model server cancelled the response.")
        elif status != "failed" and self._output.has_open_items():
            # Nobody can say what became of it: the text of its deltas is no item, and the item announced has no text.
            self.fail("The model server ended the response without an item that it had begun.")
        else:
            self._finish(status, self._response.ended(upstream, status, None))

    def _reconcile(self, output: list[raw.Object]) -> None:
        """What the terminal event's output adds: items that were not done, or never announced, are shown first."""
        for element, item in zip(output, self._output.matched(output), strict=True):
            if item is None:
                self._present(element, None)
            elif item.finished is None:
                self._finish_item(item, element)

    def _present(self, cut: raw.Object, sent_index: int | None) -> None:
        """An item that comes whole, without having been announced: it is told as if it had come in pieces."""
        item = self._output.announce(cut, sent_index)
        for name, members in told(shown(self._output.finish(item, cut))):
            place = {} if name in events.WITHOUT_ITEM_ID else {"item_id": raw.literal(item.public_id)}
            self._write(name, {**place, "output_index": raw.literal(item.index), **members})

    def _finish_item(self, item: OutputItem, body: raw.Object) -> None:
        """The `done` of an item for which the upstream sent none."""
        self._write_item(events.ITEM_DONE, item, shown(self._output.finish(item, body)))

    def _finish(self, status: str, body: raw.Object) -> None:
        self.outcome = Outcome(status=status, body=_with_costs(body, self._earlier), items=self._output.finished())

    def _pass_item(self, event: StreamEvent, item: OutputItem, body: Item, *, is_done: bool) -> None:
        view = shown(body, is_done=is_done)
        self._pass(event, {} if view == body.body else {"item": view}, item)

    def _pass(self, event: StreamEvent, changes: dict[str, bytes], item: OutputItem | None = None) -> bool:
        """The upstream's event with what differs from its place in our stream replaced, else as it came: whether so."""
        if event.type != event.sent_type:
            changes["type"] = raw.literal(event.type)
        if event.sequence_number != self._sequence_number:
            changes["sequence_number"] = raw.literal(self._sequence_number)
        if item is not None:
            if event.output_index != item.index:
                changes["output_index"] = raw.literal(item.index)
            if event.item_id != item.public_id and event.type not in events.WITHOUT_ITEM_ID:
                changes["item_id"] = raw.literal(item.public_id)
        data = events.opened(event).spliced(changes) if changes else event.data
        self._add(sse.encode(event.type.encode(), data))
        return not changes

    def _write(self, name: str, members: dict[str, bytes]) -> None:
        self._add(events.write(name, {"sequence_number": raw.literal(self._sequence_number), **members}))

    def _add(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._sequence_number += 1

    def _written(self) -> bytes:
        """What was added since this was asked last: whatever goes wrong in between, a number given is a number sent."""
        frames, self._frames = self._frames, []
        return b"".join(frames)

    def _open(self) -> None:
        while self._opening:
            self._write(self._opening.pop(0), {"response": self._started_as(None)})

    def _started_as(self, upstream: raw.Object | None) -> bytes:
        """The response object at the start of the turn, settled by the first event that carries it."""
        if self._started is None:
            self._started = self._response.started(upstream)
        return self._started

    def _write_item(self, name: str, item: OutputItem, view: bytes) -> None:
        self._write(name, {"output_index": raw.literal(item.index), "item": view})

    def _write_part(self, item: OutputItem, part: int, empty: bytes) -> None:
        members = {
            "item_id": raw.literal(item.public_id),
            "output_index": raw.literal(item.index),
            "content_index": raw.literal(part),
            "part": empty,
        }
        self._write(events.PART_ADDED, members)


_TAKERS: dict[str, Callable[[Assembler, StreamEvent], None]] = {
    events.ITEM_ADDED: Assembler._take_added,
    events.ITEM_DONE: Assembler._take_done,
    **dict.fromkeys(events.STATUS_OF_TERMINAL, Assembler._take_terminal),
}


def assemble_body(
    body: bytes,
    response_object: ResponseObject,
    *,
    taken_ids: Container[str],
    issuer: str,
    reader: Reader,
    earlier: Outcome | None = None,
) -> Outcome:
    """The turn in a whole JSON reply, as `Assembler` would have it; it has gone on from what came `earlier`.

    Raises raw.Malformed where the reply is not a response object that has ended.
    """
    upstream, status, elements = _ended_response(reader.whole(body))
    before = earlier.items if earlier else []
    output = Output(taken_ids, issuer, reader.fidelity, [item.public_id for item in before])
    for element in elements:
        output.finish(output.announce(element, None), element)
    ended = response_object.ended(upstream, status, None)
    return Outcome(
        status=status,
        body=_with_costs(ended, [earlier.body] if earlier else []),
        items=[*before, *output.finished()],
    )


def _with_costs(body: raw.Object, earlier: Sequence[raw.Object]) -> raw.Object:
    """The response object with the usage of earlier rounds added to its own."""
    total = usage.total(*earlier, body) if earlier else None
    return body if total is None else raw.Object(body.spliced({"usage": total}))


def _ended_response(body: bytes) -> tuple[raw.Object, str, list[raw.Object]]:
    """A whole reply, its status and its output; raises raw.Malformed where it is none."""
    raw.check(body, events.DEPTH_MAX)
    upstream = raw.Object(body)
    output = upstream.get("output")
    status = upstream.string("status") or "completed"
    if output is None or status not in events.TERMINAL_OF_STATUS:
        raise raw.Malformed("it is not a response that has ended")
    return upstream, status, [raw.Object(element) for element in raw.elements(output)]
