"""Every statement of the store, by name, each with the reason for its form.

Every one is a transaction of its own, and takes the tenant first: no statement can be written that forgets it and
still finds a row by its key. Bodies leave as `textsend(...)`, which is their bytes: a text would be decoded by the
driver only to be encoded again. What reads items gives what they are grouped by and then the columns of an item, in one
order.

A row is found by its key in a lateral look-up with a limit. Joined plainly, Postgres hashes all rows of the tenant
while the tables are too young to have statistics (a walk of 240 ms at depth 1,000, not 3).
"""

from typing import Final

from sqlalchemy import text

PING: Final = text("select 1")

_ITEM = """item.response_id, item.public_id, item.type, item.call_id, item.is_output,
    textsend(item.body) as body, textsend(item.fidelity) as fidelity, item.issuer"""

_LINKED_ITEM = "(select * from items where tenant_id = :tenant_id and id = link.item_id limit 1)"

# The arrays are all of text: about those of another type asyncpg first asks the server, on every new connection.
_NEW_ITEMS = """unnest(
        cast(:are_output as text[]), cast(:public_ids as text[]), cast(:types as text[]), cast(:call_ids as text[]),
        cast(:bodies as text[]), cast(:fidelities as text[]), cast(:issuers as text[])
    ) with ordinality as item (is_output, public_id, type, call_id, body, fidelity, issuer, number)"""

_NEW_ITEM = """item.number - 1, cast(item.is_output as boolean), item.public_id, item.type, item.call_id, item.body,
        item.fidelity, item.issuer"""

# --- Responses.

# The turns up to the named response, oldest first: one row an item, and one without an item for a turn that adds none.
# With `input_only` the named response gives its input alone, whatever became of it. What a response that was made in a
# conversation saw there comes before its own items: the links that were valid at the version it read.
#
# The chain is sorted before the items are joined to it, so that they are sorted turn by turn; 6,000 at once spill to
# disk. A step demands the depth before: a chain with a cycle in it ends, and ends wrong.
HISTORY: Final = text(f"""
with recursive chain as (
    select id, parent_id, depth, status, root_id, conversation_id, conversation_version, true as is_named, (
            select root.public_id from responses as root
            where root.tenant_id = :tenant_id and root.id = responses.root_id
        ) as root_public_id
    from responses
    where tenant_id = :tenant_id and public_id = :public_id and deleted_at is null
    union all
    select earlier.id, earlier.parent_id, earlier.depth, earlier.status, chain.root_id, earlier.conversation_id,
        earlier.conversation_version, false, chain.root_public_id
    from chain cross join lateral (
        select id, parent_id, depth, status, conversation_id, conversation_version
        from responses
        where tenant_id = :tenant_id and id = chain.parent_id and depth = chain.depth - 1
        limit 1
    ) as earlier
)
select {_ITEM}, turn.id as turn_id, turn.parent_id, turn.root_id, turn.depth, turn.root_public_id
from (select * from chain order by depth) as turn
left join lateral (
    select true as is_own, position as place, items.*
    from items
    where tenant_id = :tenant_id and response_id = turn.id and case
        when turn.is_named and :input_only then not is_output
        else turn.status in ('completed', 'incomplete')
    end
    union all
    select false, link.position, seen.*
    from conversation_items as link cross join lateral {_LINKED_ITEM} as seen
    where turn.conversation_id is not null
        and link.tenant_id = :tenant_id and link.conversation_id = turn.conversation_id
        and link.added_version <= turn.conversation_version
        and (link.removed_version is null or link.removed_version > turn.conversation_version)
) as item on true
order by turn.depth, item.is_own, item.place
""")

IS_STORED: Final = text("select id from responses where tenant_id = :tenant_id and public_id = :public_id")

PUBLIC_ID: Final = text("select public_id from responses where tenant_id = :tenant_id and id = :id")


# A turn as one statement, so that it is stored whole or not at all, in one round trip. The id is drawn first, because a
# response that has no parent is its own root. Positions are the order of the arrays.
def _add(condition: str) -> str:
    return f"""
fresh as (
    select nextval('responses_id_seq') as id
), response as (
    insert into responses (
        tenant_id, id, public_id, parent_id, root_id, depth, status, model, upstream, created_at, completed_at,
        conversation_id, conversation_version
    )
    select cast(:tenant_id as bigint), id, cast(:public_id as text), cast(:parent_id as bigint),
        coalesce(cast(:root_id as bigint), id), cast(:depth as integer), cast(:status as text), cast(:model as text),
        cast(:upstream as text), cast(:created_at as timestamptz), cast(:completed_at as timestamptz),
        cast(:conversation_id as bigint), cast(:conversation_version as bigint)
    from fresh
    where {condition}
    returning tenant_id, id
), stored_body as (
    insert into response_bodies (tenant_id, response_id, body)
    select tenant_id, id, cast(:body as text)
    from response
), stored_usage as (
    insert into usage (
        tenant_id, response_public_id, upstream, model, status, input_tokens, cached_tokens, output_tokens,
        reasoning_tokens, created_at, ended_at
    )
    select tenant_id, cast(:public_id as text), cast(:upstream as text), cast(:model as text), cast(:status as text),
        cast(:input_tokens as bigint), cast(:cached_tokens as bigint), cast(:output_tokens as bigint),
        cast(:reasoning_tokens as bigint), cast(:created_at as timestamptz), cast(:ended_at as timestamptz)
    from response
    where cast(:input_tokens as bigint) is not null
), stored_items as (
    insert into items (
        tenant_id, response_id, position, is_output, public_id, type, call_id, body, fidelity, issuer
    )
    select response.tenant_id, response.id, {_NEW_ITEM}
    from response cross join {_NEW_ITEMS}
    returning tenant_id, id, position
)"""


ADD: Final = text(f"with {_add('true')} select id from response")

# The same, appended to its conversation, which is free again with it. Where the lease is another's or has run out,
# nothing is stored and no row comes back. A clock may be set back: a list that has changed since is not appended to.
ADD_IN_CONVERSATION: Final = text(f"""
with conversation as (
    update conversations
    set version = version + 1, next_position = next_position + cardinality(cast(:public_ids as text[])),
        locked_by = null, locked_until = null
    where tenant_id = :tenant_id and id = cast(:conversation_id as bigint) and locked_by = :lease_token
        and locked_until > clock_timestamp() and version = cast(:conversation_version as bigint)
    returning id, version, next_position - cardinality(cast(:public_ids as text[])) as first_position
), {_add("exists (select from conversation)")}, links as (
    insert into conversation_items (tenant_id, conversation_id, position, item_id, added_version)
    select item.tenant_id, conversation.id, conversation.first_position + item.position, item.id, conversation.version
    from stored_items as item cross join conversation
)
select id from response
""")

# The body comes as a row before those of the output, so that it travels once. The id is a scalar and not joined: like
# the walk, this must not be planned as a scan of the tenant's items.
GET: Final = text("""
with named as (
    select id
    from responses
    where tenant_id = :tenant_id and public_id = :public_id and deleted_at is null
)
select -1 as position, null as public_id, null as type, null as call_id, false as is_output, textsend(body) as body,
    null as fidelity, null as issuer
from response_bodies
where tenant_id = :tenant_id and response_id = (select id from named)
union all
select position, public_id, type, call_id, is_output, textsend(body), textsend(fidelity), issuer
from items
where tenant_id = :tenant_id and response_id = (select id from named) and is_output
order by position
""")

# Its rows stay: those who continued from it still have it in their history.
DELETE: Final = text("""
update responses
set deleted_at = now()
where tenant_id = :tenant_id and public_id = :public_id and deleted_at is null
returning id
""")

# What a reference means: the newest item of that id which a client can still reach, by its response or in a list. The
# look-up ends at it, since a model server may use an id again in every turn. The conditions are values: an `exists` is
# answered for all items of the tenant at once.
REFERENCED: Final = text(f"""
select {_ITEM}
from unnest(cast(:public_ids as text[])) as named (public_id) cross join lateral (
    select *
    from items as one
    where one.tenant_id = :tenant_id and one.public_id = named.public_id and (
        (select deleted_at is null from responses where tenant_id = :tenant_id and id = one.response_id)
        or (
            select link.removed_version is null and (
                select deleted_at is null
                from conversations
                where tenant_id = :tenant_id and id = link.conversation_id
            )
            from conversation_items as link
            where link.tenant_id = :tenant_id and link.item_id = one.id
            limit 1
        )
    )
    order by one.id desc
    limit 1
) as item
""")

# --- Conversations.
#
# A statement that changes one waits for its row, but what it reads besides is as old as its own start. So each says
# which version it has read, and changes no other: who is overtaken is told, and tries again.

_IS_FREE = "(locked_until is null or locked_until <= clock_timestamp())"

_NAMED_CONVERSATION = f"""
named as (
    select tenant_id, id, public_id, metadata, created_at, version, next_position, not {_IS_FREE} as is_locked
    from conversations
    where tenant_id = :tenant_id and public_id = :public_id and deleted_at is null
)"""

# Items that are or were in the named conversation, each with its link: by their public ids, so to be told which.
_ITEMS_WITH_LINKS = """items as item cross join lateral (
        select position, removed_version
        from conversation_items
        where tenant_id = :tenant_id and item_id = item.id and conversation_id = (select id from named)
        limit 1
    ) as link"""

# Adds the items to the conversation that the statement has named `changed`, from its `first_position` on.
_ADD_LINKED_ITEMS = f"""
added as (
    insert into items (tenant_id, position, is_output, public_id, type, call_id, body, fidelity, issuer)
    select changed.tenant_id, {_NEW_ITEM}
    from changed cross join {_NEW_ITEMS}
    returning id, position
), links as (
    insert into conversation_items (tenant_id, conversation_id, position, item_id, added_version)
    select changed.tenant_id, changed.id, changed.first_position + added.position, added.id, changed.version
    from changed cross join added
)"""

ADD_CONVERSATION: Final = text(f"""
with changed as (
    insert into conversations (tenant_id, public_id, metadata, version, next_position, created_at)
    values (:tenant_id, :public_id, :metadata, 1, cardinality(cast(:public_ids as text[])), :created_at)
    returning tenant_id, id, version, 0 as first_position
), {_ADD_LINKED_ITEMS}
select id from changed
""")

CONVERSATION: Final = text("""
select public_id, textsend(metadata) as metadata, created_at
from conversations
where tenant_id = :tenant_id and public_id = :public_id and deleted_at is null
""")

SET_METADATA: Final = text("""
update conversations
set metadata = :metadata
where tenant_id = :tenant_id and public_id = :public_id and deleted_at is null
returning public_id, textsend(metadata) as metadata, created_at
""")

# Its links stay: responses that were made in it still have them in their history.
DELETE_CONVERSATION: Final = text(f"""
with {_NAMED_CONVERSATION}, changed as (
    update conversations
    set deleted_at = now()
    where tenant_id = :tenant_id and id = (select id from named) and deleted_at is null and {_IS_FREE}
    returning id
)
select exists (select from changed) as is_changed, named.is_locked
from named
""")

ADD_ITEMS: Final = text(f"""
with {_NAMED_CONVERSATION}, repeated as (
    select min(item.public_id) as public_id
    from {_ITEMS_WITH_LINKS}
    where item.tenant_id = :tenant_id and item.public_id = any(cast(:public_ids as text[]))
        and link.removed_version is null
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

REMOVE_ITEM: Final = text(f"""
with {_NAMED_CONVERSATION}, listed as (
    select max(link.position) as position
    from {_ITEMS_WITH_LINKS}
    where item.tenant_id = :tenant_id and item.public_id = :item_id and link.removed_version is null
), changed as (
    update conversations
    set version = version + 1
    where tenant_id = :tenant_id and id = (select id from named) and deleted_at is null and {_IS_FREE}
        and version = (select version from named) and (select position from listed) is not null
    returning id, version
), removed as (
    update conversation_items as link
    set removed_version = changed.version
    from changed
    where link.tenant_id = :tenant_id and link.conversation_id = changed.id
        and link.position = (select position from listed)
)
select exists (select from changed) as is_changed, named.is_locked, listed.position is not null as is_listed,
    named.public_id, textsend(named.metadata) as metadata, named.created_at
from named cross join listed
""")

FIND_ITEM: Final = text(f"""
with {_NAMED_CONVERSATION}
select {_ITEM}
from named left join lateral (
    select item.*
    from {_ITEMS_WITH_LINKS}
    where item.tenant_id = :tenant_id and item.public_id = :item_id and link.removed_version is null
) as item on true
""")


# One page behind the cursor, which may be an item that was removed: its place stays.
def _list_items(order: str, behind: str, before_all: str) -> str:
    return f"""
with {_NAMED_CONVERSATION}, cursor as (
    select max(link.position) as place
    from {_ITEMS_WITH_LINKS}
    where item.tenant_id = :tenant_id and item.public_id = :after
)
select {_ITEM}, cursor.place as cursor_place
from named cross join cursor left join lateral (
    select item_id, position
    from conversation_items
    where tenant_id = :tenant_id and conversation_id = named.id and removed_version is null
        and position {behind} coalesce(cursor.place, {before_all})
    order by position {order}
    limit :limit
) as link on true left join lateral {_LINKED_ITEM} as item on true
order by link.position {order}
"""


LIST_ITEMS: Final = {
    "asc": text(_list_items("asc", ">", "-1")),
    "desc": text(_list_items("desc", "<", "named.next_position")),
}

_LISTED_ITEMS = f"""
    select item.*, link.position as place
    from conversation_items as link cross join lateral {_LINKED_ITEM} as item
    where link.tenant_id = :tenant_id and link.conversation_id = named.id and link.removed_version is null"""

CONVERSATION_HISTORY: Final = text(f"""
with {_NAMED_CONVERSATION}
select {_ITEM}, named.id as conversation_id, named.version
from named left join lateral ({_LISTED_ITEMS}) as item on true
order by item.place
""")

# The same, and the lease on it in the same statement. Where another turn's end was waited for, the lease is had but the
# items are those of before it: `locked_version` is then not `version`.
LOCK: Final = text(f"""
with {_NAMED_CONVERSATION}, locked as (
    update conversations
    set locked_by = :lease_token, locked_until = clock_timestamp() + make_interval(secs => :lease_s)
    where tenant_id = :tenant_id and id = (select id from named) and deleted_at is null and {_IS_FREE}
    returning version
)
select {_ITEM}, named.id as conversation_id, named.version, locked.version as locked_version
from named left join locked on true left join lateral ({_LISTED_ITEMS} and locked.version is not null) as item on true
order by item.place
""")

RENEW: Final = text("""
update conversations
set locked_until = clock_timestamp() + make_interval(secs => :lease_s)
where tenant_id = :tenant_id and id = :conversation_id and locked_by = :lease_token
    and locked_until > clock_timestamp()
returning id
""")

RELEASE: Final = text("""
update conversations
set locked_by = null, locked_until = null
where tenant_id = :tenant_id and public_id = :public_id and locked_by = :lease_token
""")
