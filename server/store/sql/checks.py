"""What must hold between the rows, each as the statement that finds where it does not, worst first.

A statement reads every row that a tenant has in its tables once, and changes none. It gives the place of what it finds;
no text of a client or a model.
"""

from typing import Final

from server.store.statement import Statement

PLACES_MAX: Final = 20

_RESPONSE: Final = "response.tenant_id, response.public_id as place"
_CONVERSATION: Final = "conversation.tenant_id, conversation.public_id as place"
_LINK: Final = "link.tenant_id, format('conversation %s, position %s', link.conversation_id, link.position) as place"
_ITEM: Final = "item.tenant_id, format('%s (row %s)', item.public_id, item.id) as place"

_WITH_PARENT: Final = """from responses as response
    join responses as parent on parent.tenant_id = response.tenant_id and parent.id = response.parent_id"""

_WITH_CONVERSATION: Final = """from conversation_items as link
    join conversations as conversation
        on conversation.tenant_id = link.tenant_id and conversation.id = link.conversation_id"""


def _missing(table: str, alias: str, keys: str) -> str:
    return f"left join {table} as {alias} on {alias}.tenant_id = {keys} where {alias}.id is null"


_FAULTS: Final = {
    # --- chains
    "responses whose parent is missing": f"""select {_RESPONSE} from responses as response
        {_missing("responses", "parent", "response.tenant_id and parent.id = response.parent_id")}
            and response.parent_id is not null""",
    "responses whose depth is not their parent's and one, as on a cycle": f"""select {_RESPONSE} {_WITH_PARENT}
        where response.depth <> parent.depth + 1""",
    "responses that are older than their parent, as on a cycle": f"""select {_RESPONSE} {_WITH_PARENT}
        where response.id <= parent.id""",
    "responses whose root is not their parent's": f"""select {_RESPONSE} {_WITH_PARENT}
        where response.root_id <> parent.root_id""",
    "first responses of a chain with a depth or the root of another": f"""select {_RESPONSE}
        from responses as response
        where response.parent_id is null and (response.depth <> 0 or response.root_id <> response.id)""",
    "responses without a body": f"""select {_RESPONSE} from responses as response
        left join response_bodies as body
            on body.tenant_id = response.tenant_id and body.response_id = response.id
        where body.response_id is null and response.deleted_at is null""",
    "responses with an unknown status": f"""select {_RESPONSE} from responses as response
        where response.status not in ('completed', 'incomplete', 'failed', 'cancelled')""",
    # --- items
    "responses whose items have gaps between their positions": f"""select {_RESPONSE} from responses as response
        join (
            select tenant_id, response_id from items where response_id is not null
            group by tenant_id, response_id
            having min(position) <> 0 or max(position) <> count(*) - 1
        ) as item on item.tenant_id = response.tenant_id and item.response_id = response.id""",
    "items whose response is missing": f"""select {_ITEM} from items as item
        {_missing("responses", "response", "item.tenant_id and response.id = item.response_id")}
            and item.response_id is not null""",
    "items that belong to no response and to no conversation": f"""select {_ITEM} from items as item
        left join conversation_items as link on link.tenant_id = item.tenant_id and link.item_id = item.id
        where item.response_id is null and link.item_id is null""",
    # --- conversations
    "links to an item that is missing": f"""select {_LINK} from conversation_items as link
        {_missing("items", "item", "link.tenant_id and item.id = link.item_id")}""",
    "links of a conversation that is missing": f"""select {_LINK} from conversation_items as link
        {_missing("conversations", "conversation", "link.tenant_id and conversation.id = link.conversation_id")}""",
    "links with another id than their item": f"""select {_LINK} from conversation_items as link
        join items as item on item.tenant_id = link.tenant_id and item.id = link.item_id
        where item.public_id <> link.public_id""",
    "links at a position that their conversation has not given": f"""select {_LINK} {_WITH_CONVERSATION}
        where link.position < 0 or link.position >= conversation.next_position""",
    "links with versions that their conversation has not had": f"""select {_LINK} {_WITH_CONVERSATION}
        where link.added_version < 1 or link.added_version > conversation.version
            or link.removed_version <= link.added_version or link.removed_version > conversation.version""",
    "links that list an id twice": """select tenant_id,
            format('conversation %s, id %s', conversation_id, public_id) as place
        from conversation_items where removed_version is null
        group by tenant_id, conversation_id, public_id having count(*) > 1""",
    "conversations with another number of links than positions": f"""select {_CONVERSATION}
        from conversations as conversation
        left join (
            select tenant_id, conversation_id, count(*) as count from conversation_items group by 1, 2
        ) as link on link.tenant_id = conversation.tenant_id and link.conversation_id = conversation.id
        where conversation.deleted_at is null and coalesce(link.count, 0) <> conversation.next_position""",
    "responses made in a conversation that is missing": f"""select {_RESPONSE} from responses as response
        {_missing("conversations", "conversation", "response.tenant_id and conversation.id = response.conversation_id")}
            and response.conversation_id is not null""",
    "responses that saw a version which their conversation has not had": f"""select {_RESPONSE}
        from responses as response
        join conversations as conversation
            on conversation.tenant_id = response.tenant_id and conversation.id = response.conversation_id
        where response.conversation_version is null or response.conversation_version < 1
            or response.conversation_version > conversation.version""",
    "leases without an end, or ends without a lease": f"""select {_CONVERSATION} from conversations as conversation
        where (locked_by is null) <> (locked_until is null)""",
}


def _found(rows: str) -> Statement:
    """How many there are, on each of the first of them."""
    return Statement(
        f"select count(*) over () as count, place from ({rows}) as found where tenant_id = :tenant_id "
        f"order by 2 limit {PLACES_MAX}"
    )


# What was just restored has no statistics, and without them every check may look row for row. Tables that the role does
# not own are passed over with a warning.
ANALYZE: Final = Statement("analyze responses, response_bodies, items, conversations, conversation_items")

FAULTS: Final = {name: _found(rows) for name, rows in _FAULTS.items()}

# No faults: a process died in a turn, and nobody has wanted its conversation since.
EXPIRED_LEASES: Final = _found(
    f"select {_CONVERSATION} from conversations as conversation where locked_until <= clock_timestamp()"
)

_COUNTED: Final = {
    "responses": "responses where deleted_at is null and",
    "deleted responses": "responses where deleted_at is not null and",
    "items": "items where",
    "conversations": "conversations where deleted_at is null and",
    "deleted conversations": "conversations where deleted_at is not null and",
    "links": "conversation_items where",
    "idempotency keys": "idempotency_keys where",
    "usage rows": "usage where",
}

COUNTS: Final = Statement(
    "select "
    + ", ".join(f'(select count(*) from {rows} tenant_id = :tenant_id) as "{name}"' for name, rows in _COUNTED.items())
)
