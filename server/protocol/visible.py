"""What of a turn's output a client can see or act on: messages, refusals and calls, but not reasoning alone.

What lives here judges items by what is in them, whoever made them; no text is ever moved or made up.
"""

from collections.abc import Sequence

from server.protocol import raw
from server.protocol.items import Item


def is_reasoning_only(items: Sequence[Item]) -> bool:
    """Whether a model thought and did nothing else."""
    return any(item.type == "reasoning" for item in items) and not any(map(_is_visible, items))


def is_empty(items: Sequence[Item]) -> bool:
    """Whether there is nothing at all, or nothing but blank messages."""
    return not any(item.type == "reasoning" or _is_visible(item) for item in items)


def _is_visible(item: Item) -> bool:
    if item.type != "message":
        return item.type != "reasoning"
    body = raw.Object(item.body)
    if (body.string("content") or "").strip():
        return True
    parts = body.objects("content")
    return any(part.get("refusal") is not None or (part.string("text") or "").strip() for part in parts)
