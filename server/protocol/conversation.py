"""Conversations on the wire: what their requests hold, and the objects that answer them (contract api.md 1).

What lives here judges a request by itself. Whether the conversation is there, and free, is for others to say.
"""

from datetime import datetime

import msgspec

from server import errors
from server.protocol import raw
from server.protocol.items import Input, parse_input
from server.protocol.request import check_metadata, parse_object

ITEMS_MAX = 20

_NO_METADATA = b"{}"


class NewConversation(msgspec.Struct, frozen=True):
    """A conversation to be made: its metadata as the client wrote it, and its first items."""

    metadata: bytes
    items: Input


def parse_new_conversation(body: bytes, depth_max: int) -> NewConversation:
    """The conversation that a body asks for; clients send none at all for an empty one. Raises ApiError 400."""
    cut = parse_object(body, depth_max) if body.strip() else raw.Object(b"{}")
    return NewConversation(_metadata(cut), _items(cut.get("items") or b"[]", minimum=0))


def parse_metadata(body: bytes, depth_max: int) -> bytes:
    """The metadata that replaces a conversation's; raises ApiError 400."""
    cut = parse_object(body, depth_max)
    if "metadata" not in cut:
        raise errors.missing_parameter("metadata")
    return _metadata(cut)


def parse_new_items(body: bytes, depth_max: int) -> Input:
    """The items to be added to a conversation, at least one; raises ApiError 400."""
    items = parse_object(body, depth_max).get("items")
    if items is None:
        raise errors.missing_parameter("items")
    return _items(items, minimum=1)


def conversation_object(public_id: str, metadata: bytes, created_at: datetime) -> bytes:
    return raw.render(
        {
            "id": raw.literal(public_id),
            "object": b'"conversation"',
            "created_at": raw.literal(int(created_at.timestamp())),
            "metadata": metadata,
        }
    )


def deleted_conversation_object(public_id: str) -> bytes:
    return raw.render({"id": raw.literal(public_id), "object": b'"conversation.deleted"', "deleted": b"true"})


def _metadata(cut: raw.Object) -> bytes:
    metadata = cut.get("metadata")
    if metadata is None:
        return _NO_METADATA
    check_metadata("metadata", metadata)
    return metadata


def _items(text: bytes, minimum: int) -> Input:
    if not text.startswith(b"["):
        raise errors.invalid_type("items", "an array", raw.kind(text))
    count = len(raw.elements(text))
    if count > ITEMS_MAX:
        raise errors.array_too_long("items", ITEMS_MAX, count)
    if count < minimum:
        raise errors.array_too_short("items", minimum, count)
    return parse_input(text, "items")
