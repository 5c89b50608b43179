"""Stream events: their names, and the five members that place an event in a stream.

What lives here reads `type`, `sequence_number`, `output_index`, `item_id` and `content_index` (DESIGN 3, Events) and
leaves every other byte of an event alone.
"""

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
# `response.done` is the terminal event of some servers; its response's status decides, as it does for all of them.
STATUS_OF_TERMINAL = {name: status for status, name in TERMINAL_OF_STATUS.items()} | {
    "response.cancelled": "cancelled",
    "response.done": "completed",
}

# Events of one content part: they carry a content_index.
TEXT_DELTAS = frozenset({"response.output_text.delta", "response.refusal.delta", "response.reasoning_text.delta"})
TEXT_DONES = frozenset({"response.output_text.done", "response.refusal.done", "response.reasoning_text.done"})
PART_EVENTS = TEXT_DELTAS | TEXT_DONES | {PART_ADDED, PART_DONE, "response.output_text.annotation.added"}

# Events that say nothing without an item; one that names none speaks of the latest.
OF_AN_ITEM = PART_EVENTS | {"response.function_call_arguments.delta", "response.function_call_arguments.done"}

# Events that name their item by its index alone (contract api.md 6.1).
WITHOUT_ITEM_ID = frozenset(
    {
        ITEM_ADDED,
        ITEM_DONE,
        "response.shell_call_command.added",
        "response.shell_call_command.delta",
        "response.shell_call_command.done",
    }
)

# Names that older vLLM releases and the Open Responses draft use (contract vllm.md 6, api.md 9).
RENAMED = {
    "response.reasoning_part.added": PART_ADDED,
    "response.reasoning_part.done": PART_DONE,
    "response.reasoning.delta": "response.reasoning_text.delta",
    "response.reasoning.done": "response.reasoning_text.done",
}

# What an event wraps around an item comes on top of what a request may nest (`json_depth_max` is 500 at most).
DEPTH_MAX = 512
_INTEGER_DIGITS_MAX = 15


class Head(msgspec.Struct, gc=False):
    """The five members as they were sent."""

    type: str | None = None
    sequence_number: int | None = None
    output_index: int | None = None
    item_id: str | None = None
    content_index: int | None = None


HEADS = msgspec.json.Decoder(Head)
"""Raises msgspec.DecodeError where a text is no JSON object, or one of the five is neither null nor of its type.

It looks at the strings that it reads, not at those that it skips: whether they are UTF-8 is for others to see.
"""


class StreamEvent(msgspec.Struct, frozen=True):
    """An upstream's event: its JSON text and the five members, each None where it is absent, null or of a wrong type.

    `sent_type` is the type that the text holds, `type` the one that it means; that is "" where the event has no name.
    """

    data: bytes
    type: str
    sent_type: str | None
    sequence_number: int | None
    output_index: int | None
    item_id: str | None
    content_index: int | None


def read(frame: sse.Event) -> StreamEvent:
    """The event in a frame; the JSON's own type decides, the frame's name serves where it has none.

    Raises raw.Malformed where the data is not one JSON object in strict UTF-8.
    """
    data = frame.data
    try:
        head = HEADS.decode(data)
    except (msgspec.DecodeError, RecursionError):
        head = _read_slowly(data)
    if not data.isascii():
        raw.check(data, DEPTH_MAX)
    sent_type = head.type
    name = sent_type or frame.name.decode("utf-8", "replace")
    # A name with a line break or a surrogate can't be written into a frame.
    name = RENAMED.get(name, name) if name.isprintable() else ""
    return StreamEvent(data, name, sent_type, head.sequence_number, head.output_index, head.item_id, head.content_index)


def opened(event: StreamEvent) -> raw.Object:
    """The event cut into its members, for what the five do not tell; raises raw.Malformed where it is too deep."""
    raw.check(event.data, DEPTH_MAX)
    return raw.Object(event.data)


def write(name: str, members: dict[str, bytes]) -> bytes:
    """A frame of our own making; `members` come after `type`."""
    return sse.encode(name.encode(), raw.render({"type": raw.literal(name), **members}))


def _read_slowly(data: bytes) -> Head:
    """The five members of an event in which one has a wrong type, or that holds a lone surrogate."""
    raw.check(data, DEPTH_MAX)
    cut = raw.Object(data)
    return Head(
        type=cut.string("type"),
        sequence_number=_integer(cut.get("sequence_number")),
        output_index=_integer(cut.get("output_index")),
        item_id=cut.string("item_id"),
        content_index=_integer(cut.get("content_index")),
    )


def _integer(value: bytes | None) -> int | None:
    is_one = value is not None and len(value) <= _INTEGER_DIGITS_MAX and raw.kind(value) == "an integer"
    return int(value) if value is not None and is_one else None
