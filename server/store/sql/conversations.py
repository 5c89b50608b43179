"""The statements about conversations and the leases on them.

A statement that changes one waits for its row, but what it reads besides is as old as its own start. So one that edits
the list says which version it has read, and changes no other: who is overtaken is told, and tries again. Who takes the
lease is told both versions. Metadata, deletion, and the end of a lease depend on nothing but the row itself.
"""

from typing import Final

from server.store.sql.items import ITEM, LINKED_ITEM, NEW_ITEM, NEW_ITEMS
from server.store.statement import Statement

_IS_FREE = "(locked_until is null or locked_until <= clock_timestamp())"

_NAMED_CONVERSATION = f"""
named as (
    select tenant_id, id, public_id, metadata, created_at, version, next_position, prefix_mark,
        not {_IS_FREE} as is_locked
    from conversations
    where tenant_id = :tenant_id and public_id = :public_id and deleted_at is null
)"""


# The link of a listed id, of which there is one at most: an id comes again only when it was removed.
def _listed(public_id: str) -> str:
    return f"""
    select position, item_id
    from conversation_items
    where tenant_id = :tenant_id and conversation_id = (select id from named) and public_id = {public_id}
        and removed_version is null
    limit 1"""


# Adds the items to the conversation that the statement has named `changed`, from its `first_position` on.
_ADD_LINKED_ITEMS = f"""
added as (
    insert into items (tenant_id, position, is_output, public_id, type, call_id, body, fidelity, issuer)
    select changed.tenant_id, {NEW_ITEM}
    from changed cross join {NEW_ITEMS}
    returning id, position, public_id
), links as (
    insert into conversation_items (tenant_id, conversation_id, position, item_id, public_id, added_version)
    select changed.tenant_id, changed.id, changed.first_position + added.position, added.id, added.public_id,
        changed.version
    from changed cross join added
)"""

ADD_CONVERSATION: Final = Statement(f"""
with changed as (
    insert into conversations (tenant_id, public_id, metadata, version, next_position, created_at)
    values (:tenant_id, :public_id, :metadata, 1, cardinality(cast(:public_ids as text[])), :created_at)
    returning tenant_id, id, version, 0 as first_position
), {_ADD_LINKED_ITEMS}
select id from changed
""")

CONVERSATION: Final = Statement("""
select public_id, textsend(metadata) as metadata, created_at
from conversations
where tenant_id = :tenant_id and public_id = :public_id and deleted_at is null
""")

SET_METADATA: Final = Statement("""
update conversations
set metadata = :metadata
where tenant_id = :tenant_id and public_id = :public_id and deleted_at is null
returning public_id, textsend(metadata) as metadata, created_at
""")

# Its links stay: responses that were made in it still have them in their history.
DELETE_CONVERSATION: Final = Statement(f"""
with {_NAMED_CONVERSATION}, changed as (
    update conversations
    set deleted_at = now()
    where tenant_id = :tenant_id and id = (select id from named) and deleted_at is null and {_IS_FREE}
    returning id
)
select exists (select from changed) as is_changed, named.is_locked
from named
""")

ADD_ITEMS: Final = Statement(f"""
with {_NAMED_CONVERSATION}, repeated as (
    select min(given.public_id) as public_id
    from unnest(cast(:public_ids as text[])) as given (public_id)
        cross join lateral ({_listed("given.public_id")}) as link
), changed as (
    update conversations
    set version = version + 1, next_position = next_position + cardinality(cast(:public_ids as text[]))
    where tenant_id = :tenant_id and id = (select id from named) and deleted_at is null and {_IS_FREE}
        and version = (select version from named) and (select public_id from repeated) is null
    returning tenant_id, id, version, next_position - cardinality(cast(:public_ids as text[])) as first_position
), {_ADD_LINKED_ITEMS}
select exists (select from changed) as is_changed, named.is_locked, repeated.public_id as repeated_id
from named cross join repeated
""")

# A row where all of these items are listed, each with its text: as they are when they were added this moment.
ARE_LISTED: Final = Statement(f"""
with {_NAMED_CONVERSATION}
select count(*)
from unnest(cast(:public_ids as text[]), cast(:bodies as text[])) as given (public_id, body)
    cross join lateral ({_listed("given.public_id")}) as link cross join lateral {LINKED_ITEM} as item
where item.body = given.body
having count(*) = cardinality(cast(:public_ids as text[]))
""")

# The link is found by scalars: joined, it would be looked for at its position in every conversation.
REMOVE_ITEM: Final = Statement(f"""
with {_NAMED_CONVERSATION}, listed as (
    select max(link.position) as position
    from ({_listed(":item_id")}) as link
), changed as (
    update conversations
    set version = version + 1
    where tenant_id = :tenant_id and id = (select id from named) and deleted_at is null and {_IS_FREE}
        and version = (select version from named) and (select position from listed) is not null
    returning id, version
), removed as (
    update conversation_items
    set removed_version = (select version from changed)
    where tenant_id = :tenant_id and conversation_id = (select id from changed) and public_id = :item_id
        and position = (select position from listed)
)
select exists (select from changed) as is_changed, named.is_locked, listed.position is not null as is_listed,
    named.public_id, textsend(named.metadata) as metadata, named.created_at
from named cross join listed
""")

FIND_ITEM: Final = Statement(f"""
with {_NAMED_CONVERSATION}
select {ITEM}
from named left join lateral (
    select item.*
    from ({_listed(":item_id")}) as link cross join lateral {LINKED_ITEM} as item
) as item on true
""")


# One page behind the cursor. That is where its id is listed; if it is no more, the first of the places that it had, in
# the order asked for: some of the list may come again, but nothing is left out.
def _list_items(order: str, behind: str, before_all: str) -> str:
    return f"""
with {_NAMED_CONVERSATION}, cursor as materialized (
    select (
        select position
        from conversation_items
        where tenant_id = :tenant_id and conversation_id = (select id from named) and public_id = :after
        order by removed_version is not null, position {order}
        limit 1
    ) as place
)
select {ITEM}, cursor.place as cursor_place
from named cross join cursor left join lateral (
    select item_id, position
    from conversation_items
    where tenant_id = :tenant_id and conversation_id = named.id and removed_version is null
        and position {behind} case when cursor.place is null then {before_all} else cursor.place end
    order by position {order}
    limit :limit
) as link on true left join lateral {LINKED_ITEM} as item on true
order by link.position {order}
"""


LIST_ITEMS: Final = {
    "asc": Statement(_list_items("asc", ">", "-1")),
    "desc": Statement(_list_items("desc", "<", "named.next_position")),
}

_LISTED_ITEMS = f"""
    select item.*, link.position as place
    from conversation_items as link cross join lateral {LINKED_ITEM} as item
    where link.tenant_id = :tenant_id and link.conversation_id = named.id and link.removed_version is null"""

CONVERSATION_HISTORY: Final = Statement(f"""
with {_NAMED_CONVERSATION}
select {ITEM}, named.id as conversation_id, named.version, named.prefix_mark
from named left join lateral ({_LISTED_ITEMS}) as item on true
order by item.place
""")

# The same, and the lease on it in the same statement. Where another turn's end was waited for, the lease is had but the
# items are those of before it: `locked_version` is then not `version`.
LOCK: Final = Statement(f"""
with {_NAMED_CONVERSATION}, locked as (
    update conversations
    set locked_by = :lease_token, locked_until = clock_timestamp() + make_interval(secs => :lease_s)
    where tenant_id = :tenant_id and id = (select id from named) and deleted_at is null and {_IS_FREE}
    returning version
)
select {ITEM}, named.id as conversation_id, named.version, named.prefix_mark, locked.version as locked_version
from named left join locked on true left join lateral ({_LISTED_ITEMS} and locked.version is not null) as item on true
order by item.place
""")

RENEW: Final = Statement("""
update conversations
set locked_until = clock_timestamp() + make_interval(secs => :lease_s)
where tenant_id = :tenant_id and id = :conversation_id and locked_by = :lease_token
    and locked_until > clock_timestamp()
returning id
""")

RELEASE: Final = Statement("""
update conversations
set locked_by = null, locked_until = null
where tenant_id = :tenant_id and public_id = :public_id and locked_by = :lease_token
""")
