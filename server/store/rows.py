"""Items as columns and as rows: bytes outside, text inside, and nothing in between that looks into them."""

from collections.abc import Iterable, Sequence

from asyncpg import Record

from server.protocol.items import Item


def items_of(rows: Iterable[Record]) -> list[Item]:
    """The items of these rows, in their order. A row without a public id stands for what holds no item.

    A row is a key to group by, and then the columns of an item; what comes behind is left to others.
    """
    # By position: looking a column up by its name takes three times as long, on every item of every history.
    return [
        Item(
            body=body,
            public_id=public_id,
            type=type_,
            call_id=call_id,
            is_output=is_output,
            fidelity=fidelity,
            issuer=issuer,
        )
        for _, public_id, type_, call_id, is_output, body, fidelity, issuer, *_ in rows
        if public_id is not None
    ]


def item_columns(items: Sequence[Item]) -> dict[str, object]:
    """The items as arrays, one a column, for a statement to unnest."""
    return {
        "are_output": [str(item.is_output) for item in items],
        "public_ids": [item.public_id for item in items],
        "types": [item.type for item in items],
        "call_ids": [item.call_id for item in items],
        "bodies": [item.body.decode() for item in items],
        "fidelities": [None if item.fidelity is None else item.fidelity.decode() for item in items],
        "issuers": [item.issuer for item in items],
    }
