"""Whether a turn's prompt begins with the prompt before it, so that the model server need not compute that again.

What lives here makes a mark of 32 bytes of what a turn sent, and compares the next turn with it. Any server makes its
prompt of these, in about this order: settings that a chat template reads, the instructions, the tools, and the input.
How much of it a server still has is its own business.
"""

import struct
import zlib
from collections.abc import Sequence

import msgspec

from server.protocol.request import Request

TAIL_BYTES = 1024
"""So much of the end of an input is compared with what stands at that place now."""

_SETTINGS = ("tool_choice", "reasoning", "text", "chat_template", "chat_template_kwargs")
_REASONS = ("upstream", "model", "settings", "instructions", "tools", "history")
# Checksums of the first five, the input's length in bytes, and a checksum of its tail.
_FORM = struct.Struct(">5IQI")


class Sent(msgspec.Struct, frozen=True):
    """What a turn sends to an upstream: the request, and the copies of history and input.

    The copies may come in larger pieces, each some of them with commas between.
    """

    upstream: str
    request: Request
    copies: Sequence[bytes]

    def mark(self) -> bytes:
        length = self._length()
        return _FORM.pack(*self._head(), length, self._tail(length))

    def broken_by(self, mark: bytes) -> list[str]:
        """Why this does not begin with what left the mark: none, or some of `_REASONS`.

        `history` is that the copies of the earlier input are not there as they were: a conversation was edited, a call
        that was left out has an answer now, or another profile or release makes other copies. They are compared by
        their length and their last TAIL_BYTES, which an item that comes, goes or changes its length moves.
        """
        *head, length, tail = _FORM.unpack(mark)
        kept = (*(one == other for one, other in zip(head, self._head(), strict=True)), self._tail(length) == tail)
        return [reason for reason, is_kept in zip(_REASONS, kept, strict=True) if not is_kept]

    def _head(self) -> tuple[int, ...]:
        members = self.request.members
        settings = b",".join(members.get(name, b"") for name in _SETTINGS)
        parts = (self.upstream.encode(), self.request.model.encode(), settings)
        return tuple(zlib.crc32(part) for part in (*parts, members.get("instructions", b""), members.get("tools", b"")))

    def _length(self) -> int:
        """Each copy has a comma behind it here, so that what one input ends with is no part of a copy in the next."""
        return sum(map(len, self.copies)) + len(self.copies)

    def _tail(self, end: int) -> int:
        """A checksum of the last bytes of the first `end`; of all there are where there are fewer."""
        begin, stop = max(end - TAIL_BYTES, 0), self._length()
        checked = []
        for copy in reversed(self.copies):
            start = stop - len(copy) - 1
            checked.append(copy[max(begin - start, 0) : max(end - start, 0)] + b"," * (start + len(copy) < end))
            stop = start
            if start <= begin:
                break
        return zlib.crc32(b"".join(reversed(checked)))
