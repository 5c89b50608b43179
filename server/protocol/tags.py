"""Thinking that leaked into text: a message that begins with `<think>` becomes reasoning and a message.

What lives here stands between another reader and the assembler. After a replay, vLLM's streamed parsers of the
deepseek_r1 family return new thinking as text (contract vllm.md 0.7); what is between the tags is then the reasoning,
and what follows the text, as their own non-streamed reply has it. Thinking that never ends is reasoning and no message.
Nothing else is ever moved.
"""

from collections.abc import Iterator
from typing import Protocol

from server.protocol import events, ids, raw, sse
from server.protocol.events import StreamEvent

OPEN, CLOSE = "<think>", "</think>"

_TEXT_DELTA, _TEXT_DONE = "response.output_text.delta", "response.output_text.done"
_BEGINNINGS = frozenset({events.ITEM_ADDED, events.PART_ADDED})


class _Reader(Protocol):
    """What a reader over a reader needs of it (`dialect.Reader`)."""

    def feed(self, chunk: bytes) -> bytes: ...
    def end(self) -> bytes: ...
    def whole(self, body: bytes) -> bytes: ...
    def fidelity(self, item_id: str | None, /) -> bytes | None: ...


class ThinkTags:
    """A reader over another one (`dialect.Reader`), for one reply."""

    def __init__(self, inner: _Reader, event_bytes_max: int) -> None:
        self._inner = inner
        self._decoder = sse.Decoder(event_bytes_max)
        self._messages: dict[str, _Message] = {}
        # How many more items are told than the upstream told, up to here.
        self._shift = 0

    def feed(self, chunk: bytes) -> bytes:
        return self._taken(self._inner.feed(chunk))

    def end(self) -> bytes:
        return self._taken(self._inner.end())

    def whole(self, body: bytes) -> bytes:
        return self._with_output(raw.Object(self._inner.whole(body)))

    def fidelity(self, item_id: str | None, /) -> bytes | None:
        return self._inner.fidelity(item_id)

    def _taken(self, stream: bytes) -> bytes:
        return b"".join(told for frame in self._decoder.feed(stream) for told in self._take(frame))

    def _take(self, frame: sse.Event) -> Iterator[bytes]:
        try:
            event = events.read(frame)
            if event.type in events.STATUS_OF_TERMINAL:
                yield self._terminal(event)
            else:
                yield from self._take_within(event)
        except raw.Malformed:
            # It is judged by who reads it next, as is `[DONE]`.
            yield sse.encode(frame.name, frame.data)

    def _take_within(self, event: StreamEvent) -> Iterator[bytes]:
        message = self._message(event)
        if message is None:
            yield self._shifted(event)
            return
        before = message.extra
        yield from message.take(event)
        self._shift += message.extra - before

    def _message(self, event: StreamEvent) -> "_Message | None":
        """The message that an event is of, from its announcement on."""
        if event.type == events.ITEM_ADDED:
            item = events.opened(event).object("item")
            item_id = item.string("id") if item is not None else None
            if item is not None and item_id and item.string("type") == "message":
                self._messages[item_id] = _Message(item_id, (event.output_index or 0) + self._shift)
            return self._messages.get(item_id or "")
        if event.type == events.ITEM_DONE:
            item = events.opened(event).object("item")
            return self._messages.get((item.string("id") or "") if item is not None else "")
        return self._messages.get(event.item_id or "")

    def _shifted(self, event: StreamEvent) -> bytes:
        if event.output_index is None or not self._shift:
            return sse.encode(event.type.encode(), event.data)
        index = raw.literal(event.output_index + self._shift)
        return sse.encode(event.type.encode(), events.opened(event).spliced({"output_index": index}))

    def _terminal(self, event: StreamEvent) -> bytes:
        cut = events.opened(event)
        response = cut.object("response")
        data = event.data if response is None else cut.spliced({"response": self._with_output(response)})
        return sse.encode(event.type.encode(), data)

    def _with_output(self, response: raw.Object) -> bytes:
        output = response.get("output")
        if output is None or not output.startswith(b"["):
            return response.text
        told = [one for element in raw.elements(output) for one in self._split(element)]
        return response.spliced({"output": raw.array(told)})

    def _split(self, element: bytes) -> Iterator[bytes]:
        item = raw.Object(element) if element.startswith(b"{") else None
        text = _first_text(item) if item is not None else None
        if item is None or text is None or not text.startswith(OPEN):
            yield element
            return
        known = self._messages.get(item.string("id") or "")
        thinking, is_closed, rest = text.removeprefix(OPEN).partition(CLOSE)
        status = item.string("status") if not is_closed else "completed"
        yield _reasoning(known.reasoning_id if known else ids.new_item_id("reasoning"), thinking, status)
        if rest or len(item.elements("content")) > 1:
            yield _with_first_text(item, rest)


class _Message:
    """One message on its way, held back until its first characters tell what it is.

    `extra` is how many more items it has become: one more with reasoning and text, none with reasoning alone.
    """

    def __init__(self, item_id: str, index: int) -> None:
        self.reasoning_id = ids.new_item_id("reasoning")
        self.extra = 0
        self._item_id = item_id
        self._index = index
        self._held: list[StreamEvent] = []
        self._pending = ""
        self._thinking: list[str] = []
        # Undecided, thinking, or text, be it all of it or what follows the thinking.
        self._state = "held"
        self._is_announced = False
        self._is_split = False

    def take(self, event: StreamEvent) -> Iterator[bytes]:
        if self._state == "held":
            yield from self._decide(event)
        elif not self._is_split:
            yield self._placed(event)
        elif event.content_index:
            # Of another part than the first, which alone is taken apart.
            yield from self._announce(events.ITEM_ADDED)
            yield self._placed(event)
        elif event.type == _TEXT_DELTA:
            yield from self._say(self._text(event, "delta"), event)
        elif event.type in (_TEXT_DONE, events.PART_DONE, events.ITEM_DONE):
            yield from self._end(event)
        else:
            yield self._placed(event)

    def _decide(self, event: StreamEvent) -> Iterator[bytes]:
        self._held.append(event)
        if event.type in _BEGINNINGS:
            return
        if event.type == _TEXT_DELTA:
            self._pending += self._text(event, "delta")
            if len(self._pending) < len(OPEN) and OPEN.startswith(self._pending):
                return
        elif not self._pending:
            # A text that came without deltas.
            self._pending = _whole_text(event)
        held, self._held = self._held, []
        if not self._pending.startswith(OPEN):
            self._state = "text"
            yield from map(self._placed, held)
            return
        self._state, self._is_split = "thinking", True
        self._held = [one for one in held if one.type in _BEGINNINGS]
        yield self._written(events.ITEM_ADDED, {"item": _reasoning(self.reasoning_id, None, "in_progress")})
        yield self._of_reasoning(events.PART_ADDED, {"part": _part("")})
        text, self._pending = self._pending.removeprefix(OPEN), ""
        yield from self._say(text, event)
        if event.type != _TEXT_DELTA:
            yield from self._end(event)

    def _say(self, text: str, event: StreamEvent) -> Iterator[bytes]:
        """A piece of text: what may be the beginning of the closing tag waits for the rest of it."""
        if self._state == "text":
            yield from self._say_after(text, event)
            return
        self._pending += text
        thinking, is_closed, rest = self._pending.partition(CLOSE)
        if not is_closed:
            kept = next((n for n in range(len(CLOSE) - 1, 0, -1) if thinking.endswith(CLOSE[:n])), 0)
            thinking, self._pending = thinking[: len(thinking) - kept], thinking[len(thinking) - kept :]
        if thinking:
            self._thinking.append(thinking)
            yield self._of_reasoning("response.reasoning_text.delta", {"delta": raw.literal(thinking)})
        if is_closed:
            self._state, self._pending = "text", ""
            yield from self._end_reasoning("completed")
            yield from self._say_after(rest, event)

    def _say_after(self, text: str, event: StreamEvent) -> Iterator[bytes]:
        if not text:
            return
        yield from self._announce(*_BEGINNINGS)
        logprobs = events.opened(event).get("logprobs") if event.type == _TEXT_DELTA else None
        members = {"item_id": raw.literal(self._item_id), "content_index": b"0", "delta": raw.literal(text)}
        yield self._written(_TEXT_DELTA, {**members, "logprobs": logprobs or b"[]"})

    def _announce(self, *names: str) -> Iterator[bytes]:
        """Tell of the message behind the thinking, if that was not done yet, by its own events of these names."""
        if not self._is_announced:
            self._is_announced, self.extra = True, 1
            self._index += 1
            yield from (self._placed(one) for one in self._held if one.type in names)

    def _end(self, event: StreamEvent) -> Iterator[bytes]:
        if self._state == "thinking":
            self._state = "text"
            if self._pending:
                self._thinking.append(self._pending)
                yield self._of_reasoning("response.reasoning_text.delta", {"delta": raw.literal(self._pending)})
            yield from self._end_reasoning("incomplete")
        if not self._is_announced:
            return
        cut = events.opened(event)
        if event.type == _TEXT_DONE:
            yield self._placed(event, {"text": raw.literal(_behind_thinking(self._text(event, "text")))})
            return
        name = "part" if event.type == events.PART_DONE else "item"
        inner = cut.object(name) or raw.Object(b"{}")
        text = inner.string("text") if name == "part" else _first_text(inner)
        if text is None or not text.startswith(OPEN):
            yield self._placed(event)
            return
        rest = _behind_thinking(text)
        changed = inner.spliced({"text": raw.literal(rest)}) if name == "part" else _with_first_text(inner, rest)
        yield self._placed(event, {name: changed})

    def _end_reasoning(self, status: str) -> Iterator[bytes]:
        text = "".join(self._thinking)
        yield self._of_reasoning("response.reasoning_text.done", {"text": raw.literal(text)})
        yield self._of_reasoning(events.PART_DONE, {"part": _part(text)})
        yield self._written(events.ITEM_DONE, {"item": _reasoning(self.reasoning_id, text, status)})

    def _of_reasoning(self, name: str, members: dict[str, bytes]) -> bytes:
        return self._written(name, {"item_id": raw.literal(self.reasoning_id), "content_index": b"0", **members})

    def _written(self, name: str, members: dict[str, bytes]) -> bytes:
        return events.write(name, {"output_index": raw.literal(self._index), **members})

    def _placed(self, event: StreamEvent, changes: dict[str, bytes] | None = None) -> bytes:
        """The upstream's event at the place that its message has here."""
        changes = dict(changes or {})
        if event.output_index is not None and event.output_index != self._index:
            changes["output_index"] = raw.literal(self._index)
        data = events.opened(event).spliced(changes) if changes else event.data
        return sse.encode(event.type.encode(), data)

    def _text(self, event: StreamEvent, name: str) -> str:
        return events.opened(event).string(name) or ""


def _whole_text(event: StreamEvent) -> str:
    """The text that an event ends, be it that of a text, a part or an item."""
    cut = events.opened(event)
    part, item = cut.object("part"), cut.object("item")
    if item is not None:
        return _first_text(item) or ""
    return (part.string("text") if part is not None else cut.string("text")) or ""


def _behind_thinking(text: str) -> str:
    return text.partition(CLOSE)[2] if text.startswith(OPEN) else text


def _first_text(item: raw.Object) -> str | None:
    """The text of the first part of a message."""
    parts = item.objects("content") if item.string("type") == "message" else []
    return parts[0].string("text") if parts else None


def _with_first_text(item: raw.Object, text: str) -> bytes:
    """The message with this in its first part; without that part where nothing is left of it beside others."""
    first, *others = raw.elements(item.get("content") or b"[]")
    changed = [] if others and not text else [raw.Object(first).spliced({"text": raw.literal(text)})]
    return item.spliced({"content": raw.array([*changed, *others])})


def _part(text: str) -> bytes:
    return raw.render({"type": b'"reasoning_text"', "text": raw.literal(text)})


def _reasoning(item_id: str, text: str | None, status: str | None) -> bytes:
    members = {"id": raw.literal(item_id), "type": b'"reasoning"', "summary": b"[]"}
    content = raw.array([] if text is None else [_part(text)])
    return raw.render({**members, "content": content, "status": raw.literal(status or "completed")})
