"""Deltas of a text: how many pass as they came, and characters that two of them share."""

import msgspec

from server.protocol import events, raw, sse
from server.protocol.events import StreamEvent
from server.protocol.output import OutputItem

_LINE_FEED = ord("\n")


class Flow:
    """The text of a delta that passed as it came: those that go on with it pass likewise, and nothing is looked up.

    Such a delta is written as we write it, and differs from the one before in its words and in its number, the next
    one. None of them holds half of a character: HEADS refuses it, wherever it stands.
    """

    def __init__(self, delta: StreamEvent) -> None:
        self._delta = delta
        self._beginning = sse.beginning(delta.type.encode())

    def length(self, blocks: list[bytes], first: int, number: int) -> int:
        """How many blocks from the `first` on go on with the text, if `number` is the first one's in our stream."""
        place = self._delta
        beginning, data_at = self._beginning, len(self._beginning)
        due = number
        try:
            for at in range(first, len(blocks)):
                block = blocks[at]
                if not block.startswith(beginning):
                    break
                data = block[data_at:]
                head = events.HEADS.decode(data)
                if (
                    head.sequence_number != due
                    or head.type != place.type
                    or head.item_id != place.item_id
                    or head.output_index != place.output_index
                    or head.content_index != place.content_index
                    or _LINE_FEED in data
                ):
                    break
                if not data.isascii():
                    raw.check(data, events.DEPTH_MAX)
                due += 1
        except (msgspec.DecodeError, RecursionError, raw.Malformed):
            # What is wrong with the block is said by who takes it by itself.
            pass
        return due - number


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
