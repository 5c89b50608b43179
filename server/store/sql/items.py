"""What statements about items are pieced together from."""

from typing import Final

ITEM: Final = """item.response_id, item.public_id, item.type, item.call_id, item.is_output,
    textsend(item.body) as body, textsend(item.fidelity) as fidelity, item.issuer"""

LINKED_ITEM: Final = "(select * from items where tenant_id = :tenant_id and id = link.item_id limit 1)"

# The arrays are all of text: about those of another type asyncpg first asks the server, on every new connection.
NEW_ITEMS: Final = """unnest(
        cast(:are_output as text[]), cast(:public_ids as text[]), cast(:types as text[]), cast(:call_ids as text[]),
        cast(:bodies as text[]), cast(:fidelities as text[]), cast(:issuers as text[])
    ) with ordinality as item (is_output, public_id, type, call_id, body, fidelity, issuer, number)"""

NEW_ITEM: Final = """item.number - 1, cast(item.is_output as boolean), item.public_id, item.type, item.call_id,
        item.body, item.fidelity, item.issuer"""
