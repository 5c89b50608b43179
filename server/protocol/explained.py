"""A turn that was only tried, told: the request that would be sent, and what became of each item by which rule.

What lives here shows items by their ids and types alone, and the request as it is.
"""

from collections.abc import Iterator, Sequence

from server.protocol import raw
from server.protocol.replay import Decision


def explained(*, upstream: str, dialect: str, body: bytes, decisions: Sequence[Decision], input_count: int) -> bytes:
    """The `response.replay` object. Of the decisions the last `input_count` are about the request's own input."""
    members = {
        "object": b'"response.replay"',
        "upstream": raw.literal(upstream),
        "dialect": raw.literal(dialect),
        "request": body,
        "items": raw.array(list(_items(decisions, input_count))),
    }
    return raw.render(members)


def _items(decisions: Sequence[Decision], input_count: int) -> Iterator[bytes]:
    first_of_input = len(decisions) - input_count
    for index, decision in enumerate(decisions):
        yield raw.render(
            {
                "index": raw.literal(index),
                "source": raw.literal("input" if index >= first_of_input else "history"),
                "id": raw.literal(decision.item.public_id),
                "type": raw.literal(decision.item.type),
                "action": raw.literal(decision.action),
                "rule": raw.literal(decision.rule),
            }
        )
