"""Server-sent events as bytes: what an upstream sends is cut into events, what we send is encoded.

What lives here knows the framing of the WHATWG HTML standard (section 9.2, server-sent events) and nothing of what an
event means: no JSON is read, and `[DONE]` is data like any other.
"""

from typing import NamedTuple

COMMENT = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

_CARRIAGE_RETURN = ord("\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One dispatched event: `name` is empty where the stream named none, `data` may be empty."""

    name: bytes
    data: bytes


class EventTooLarge(Exception):
    """One event is larger than `event_bytes_max`. The decoder is of no use afterwards.

    `blocks_before` are those that the same chunk completed before it, `events_before` their events.
    """

    def __init__(self, event_bytes_max: int, blocks_before: list[bytes]) -> None:
        super().__init__(f"an event is larger than {event_bytes_max} bytes")
        self.blocks_before = blocks_before

    @property
    def events_before(self) -> list[Event]:
        return _events(self.blocks_before)


class Decoder:
    """Cuts a byte stream into events, the same ones wherever the borders of its chunks are.

    The end of the stream needs no call: the standard discards an event that no empty line has ended.
    """

    def __init__(self, event_bytes_max: int) -> None:
        self._event_bytes_max = event_bytes_max
        self._start: bytes | None = b""
        self._after_carriage_return = False
        self._unfinished = bytearray()

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes, in order; raises EventTooLarge as `cut` does."""
        return _events(self.cut(chunk))

    def cut(self, chunk: bytes) -> list[bytes]:
        """The blocks of lines that `chunk` completes, in order, each without the empty line that ends it.

        A block is an event, or nothing: `parsed` tells. Raises EventTooLarge when the text of one, with its comments,
        is longer than `event_bytes_max`.
        """
        if self._start is not None:
            chunk = self._without_byte_order_mark(chunk)
        if self._after_carriage_return or _CARRIAGE_RETURN in chunk:
            chunk = self._with_line_feeds(chunk)
        first_unseen = 0
        if self._unfinished:
            # Only the border to what is already there can hold an empty line not yet seen: nothing is scanned twice.
            first_unseen = len(self._unfinished) - 1
            self._unfinished += chunk
        text = self._unfinished or chunk
        end = text.rfind(b"\n\n", first_unseen)
        if end < 0:
            self._unfinished = self._unfinished or bytearray(chunk)
            self._check_size(self._unfinished, [])
            return []
        blocks = bytes(text[:end]).split(b"\n\n")
        self._unfinished = bytearray(text[end + 2 :])
        if end > self._event_bytes_max:
            self._check_sizes(blocks)
        if self._unfinished:
            self._check_size(self._unfinished, blocks)
        return blocks

    def _without_byte_order_mark(self, chunk: bytes) -> bytes:
        start = (self._start or b"") + chunk
        if len(start) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(start):
            self._start = start
            return b""
        self._start = None
        return start.removeprefix(_BYTE_ORDER_MARK)

    def _with_line_feeds(self, chunk: bytes) -> bytes:
        # A CR at the end of a chunk counts as a line end at once, so that an event never waits for the next chunk. Its
        # LF, if one follows, is then the second half of a line end already counted.
        if self._after_carriage_return and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_carriage_return = False
        if _CARRIAGE_RETURN not in chunk:
            return chunk
        self._after_carriage_return = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _check_sizes(self, blocks: list[bytes]) -> None:
        for number, block in enumerate(blocks):
            if len(block) > self._event_bytes_max:
                self._check_size(block, blocks[:number])

    def _check_size(self, text: bytes | bytearray, blocks_before: list[bytes]) -> None:
        # Empty lines around an event are not counted: where they fall depends on the borders of the chunks.
        if len(text) > self._event_bytes_max and len(text.strip(b"\n")) > self._event_bytes_max:
            raise EventTooLarge(self._event_bytes_max, blocks_before)


def encode(name: bytes, data: bytes) -> bytes:
    """One event as bytes. `data` is JSON text, where a raw line break can only be white space: it becomes a space."""
    return beginning(name) + data.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n\n"


def beginning(name: bytes) -> bytes:
    """What stands before the data in an event as we write it."""
    return b"event: " + name + b"\ndata: "


def joined(blocks: list[bytes]) -> bytes:
    """The blocks as a stream again."""
    return b"\n\n".join(blocks) + b"\n\n"


def parsed(block: bytes) -> Event | None:
    """The event of one block of lines; None where no line is a data line, since such an event is not dispatched."""
    name = b""
    data: list[bytes] = []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return Event(name, b"\n".join(data)) if data else None


def _events(blocks: list[bytes]) -> list[Event]:
    return [event for block in blocks if (event := parsed(block)) is not None]
