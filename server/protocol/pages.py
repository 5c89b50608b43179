"""Lists: cursors, and the envelope around a page (contract api.md 1).

What lives here slices what is already in order. The SDKs page by `last_id` or by the id of the last element: both are
the same.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from server import errors
from server.protocol import ids, raw
from server.protocol.items import Item
from server.protocol.shown import shown

LIMIT_DEFAULT = 20
LIMIT_MAX = 100
LIMIT_DIGITS_MAX = 20
"""A longer number is not quoted, and so not read."""

ORDERS = ("asc", "desc")


class PageRequest(msgspec.Struct, frozen=True):
    """What a list request asks for: at most `limit` elements behind the one whose id is `after`."""

    limit: int
    order: Literal["asc", "desc"]
    after: str | None


def parse_page_request(limit: str | None, order: str | None, after: str | None) -> PageRequest:
    """The page that query parameters ask for; raises ApiError 400 that names the parameter."""
    if order is not None and order not in ORDERS:
        raise errors.invalid_value("order", ORDERS)
    if after and not ids.is_usable(after):
        raise errors.cursor_not_found("(unprintable)")
    return PageRequest(_limit(limit), "asc" if order == "asc" else "desc", after or None)


def item_page(items: Sequence[Item], page: PageRequest) -> bytes:
    """A page of items given oldest first; raises ApiError 400 where `after` is none of them."""
    ordered = list(items) if page.order == "asc" else list(reversed(items))
    start = 0
    if page.after is not None:
        places = [place for place, item in enumerate(ordered) if item.public_id == page.after]
        if not places:
            raise errors.cursor_not_found(page.after)
        start = places[0] + 1
    return envelope(ordered[start : start + page.limit], has_more=start + page.limit < len(ordered))


def envelope(items: Sequence[Item], *, has_more: bool) -> bytes:
    """A list object of these items; an empty one has empty ids, which both SDKs take for the end."""
    return raw.render(
        {
            "object": b'"list"',
            "data": raw.array([shown(item) for item in items]),
            "first_id": raw.literal(items[0].public_id if items else ""),
            "last_id": raw.literal(items[-1].public_id if items else ""),
            "has_more": raw.literal(has_more),
        }
    )


def _limit(text: str | None) -> int:
    if text is None:
        return LIMIT_DEFAULT
    # `int` takes signs, spaces, underscores and other scripts' digits; a number of this query has at most a minus.
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= LIMIT_DIGITS_MAX):
        raise errors.invalid_type("limit", "an integer", "a string")
    limit = int(text)
    if limit < 1:
        raise errors.below_minimum("limit", 1, limit)
    if limit > LIMIT_MAX:
        raise errors.above_maximum("limit", LIMIT_MAX, limit)
    return limit
