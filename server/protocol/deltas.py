"""Deltas of a text: what one continues, and characters that two of them share."""

from server.protocol import events, raw
from server.protocol.events import StreamEvent
from server.protocol.output import OutputItem


def goes_on(last: StreamEvent, event: StreamEvent) -> bool:
    """Whether a delta is of the same text as the last, and holds no half of a character: so nothing is new in it."""
    return (
        event.type == last.type
        and event.item_id == last.item_id
        and event.output_index == last.output_index
        and event.content_index == last.content_index
        and b"\\u" not in event.data
    )


def joined_halves(event: StreamEvent, item: OutputItem) -> dict[str, bytes]:
    """A delta that neither begins nor ends within a character: a first half waits for the second (inspect_ai#3802)."""
    delta = events.opened(event).get("delta") if event.type.endswith(".delta") else None
    if delta is None or not delta.startswith(b'"'):
        return {}
    text = (event.type, event.content_index)
    first_half = item.half_characters.pop(text, b"")
    whole, half = raw.split_high_surrogate(raw.joined([b'"' + first_half + b'"', delta]))
    if half:
        item.half_characters[text] = half
    return {} if whole == delta else {"delta": whole}
