"""A stored response told again: as its one body, or as the stream that it might have been.

What lives here is pure, so that whoever finds a response stored tells it in the same way.
"""

from collections.abc import Sequence

from server.protocol import events, raw, response, sse
from server.protocol.items import Item
from server.protocol.shown import shown
from server.protocol.telling import told


def retold(body: raw.Object, output: Sequence[Item], *, stream: bool) -> bytes:
    """All bytes of the answer. `body` is the response object without its output.

    A stream ends in the terminal event of the response's status; one that was cancelled has none (contract api.md 6).
    """
    views = [shown(item) for item in output]
    final = response.whole(body, views)
    return b"".join([*_frames(body, output, views, final), sse.DONE]) if stream else final


def _frames(body: raw.Object, output: Sequence[Item], views: Sequence[bytes], final: bytes) -> list[bytes]:
    frames: list[bytes] = []

    def write(name: str, members: dict[str, bytes]) -> None:
        frames.append(events.write(name, {"sequence_number": raw.literal(len(frames)), **members}))

    started = body.spliced(_AT_THE_START)
    write(events.CREATED, {"response": started})
    write(events.IN_PROGRESS, {"response": started})
    for index, (item, view) in enumerate(zip(output, views, strict=True)):
        for name, members in told(view):
            place = {} if name in events.WITHOUT_ITEM_ID else {"item_id": raw.literal(item.public_id)}
            write(name, {**place, "output_index": raw.literal(index), **members})
    terminal = events.TERMINAL_OF_STATUS.get(body.string("status") or "")
    if terminal is not None:
        write(terminal, {"response": final})
    return frames


_AT_THE_START = {
    "status": b'"in_progress"',
    "output": b"[]",
    "usage": raw.NULL,
    "error": raw.NULL,
    "incomplete_details": raw.NULL,
    "completed_at": raw.NULL,
}
