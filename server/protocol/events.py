"""Stream events: their names, and the five members that place an event in a stream.

What lives here reads and replaces `type`, `sequence_number`, `output_index`, `item_id` and `content_index` (DESIGN 3,
Events) and leaves every other byte of an event alone.
"""

from typing import Any

import msgspec

from server.protocol import raw, sse

CREATED = "response.created"
IN_PROGRESS = "response.in_progress"
QUEUED = "response.queued"
ITEM_ADDED = "response.output_item.added"
ITEM_DONE = "response.output_item.done"
PART_ADDED = "response.content_part.added"
PART_DONE = "response.content_part.done"
ERROR = "error"

TERMINAL_OF_STATUS = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
}
STATUS_OF_TERMINAL = {name: status for status, name in TERMINAL_OF_STATUS.items()} | {"response.done": "completed"}

# Events of one content part: they carry a content_index.
TEXT_DELTAS = frozenset({"response.output_text.delta", "response.refusal.delta", "response.reasoning_text.delta"})
TEXT_DONES = frozenset({"response.output_text.done", "response.refusal.done", "response.reasoning_text.done"})
PART_EVENTS = TEXT_DELTAS | TEXT_DONES | {PART_ADDED, PART_DONE, "response.output_text.annotation.added"}

# Names that older vLLM releases and the Open Responses draft use (contract vllm.md 6, api.md 9).
RENAMED = {
    "response.reasoning_part.added": PART_ADDED,
    "response.reasoning_part.done": PART_DONE,
    "response.reasoning.delta": "response.reasoning_text.delta",
    "response.reasoning.done": "response.reasoning_text.done",
}


class _Head(msgspec.Struct):
    type: Any = None
    sequence_number: Any = None
    output_index: Any = None
    item_id: Any = None
    content_index: Any = None


_HEAD = msgspec.json.Decoder(_Head)


class StreamEvent(msgspec.Struct, frozen=True):
    """An upstream's event: its JSON text and the five members, each None where it is absent, null or of a wrong type.

    `sent_type` is the type that the text holds, `type` the one that it means.
    """

    data: bytes
    type: str
    sent_type: str | None
    sequence_number: int | None
    output_index: int | None
    item_id: str | None
    content_index: int | None


def read(event: sse.Event) -> StreamEvent:
    """The event in a frame; the JSON's own type decides, the frame's name serves where it has none.

    Raises raw.Malformed where the data is not one JSON object.
    """
    try:
        head = _HEAD.decode(event.data)
    except (msgspec.DecodeError, RecursionError):
        head = _read_slowly(event.data)
    sent_type = head.type if isinstance(head.type, str) else None
    name = sent_type or event.name.decode("utf-8", "replace")
    return StreamEvent(
        data=event.data,
        type=RENAMED.get(name, name),
        sent_type=sent_type,
        sequence_number=_integer(head.sequence_number),
        output_index=_integer(head.output_index),
        item_id=head.item_id if isinstance(head.item_id, str) else None,
        content_index=_integer(head.content_index),
    )


def write(name: str, members: dict[str, bytes]) -> bytes:
    """A frame of our own making; `members` come after `type`."""
    return sse.encode(name.encode(), raw.render({"type": raw.literal(name), **members}))


def _read_slowly(data: bytes) -> _Head:
    raw.check(data, depth_max=1_000)
    cut = raw.Object(data)
    values = {name: cut.get(name) for name in _Head.__struct_fields__}
    return _Head(**{name: raw.decode(value) for name, value in values.items() if value is not None})


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
