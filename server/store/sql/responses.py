"""The statements about responses: the walk of a history, the write of a turn, and what a reference means."""

from typing import Final

from server.store.sql.items import ITEM, LINKED_ITEM, NEW_ITEM, NEW_ITEMS
from server.store.statement import Statement

# The turns up to the named response, oldest first: one row an item, and one without an item for a turn that adds none.
# With `input_only` the named response gives its input alone, whatever became of it. What a response that was made in a
# conversation saw there comes before its own items: the links that were valid at the version it read.
#
# The chain is sorted before the items are joined to it, so that they are sorted turn by turn; 6,000 at once spill to
# disk. A step demands the depth before: a chain with a cycle in it ends, and ends wrong. It stops behind the response
# `since`, where that is met.
HISTORY: Final = Statement(f"""
with recursive known as (
    select id from responses where tenant_id = :tenant_id and public_id = :since
), chain as (
    select id, parent_id, depth, status, root_id, conversation_id, conversation_version, true as is_named,
        prefix_mark, (
            select root.public_id from responses as root
            where root.tenant_id = :tenant_id and root.id = responses.root_id
        ) as root_public_id
    from responses
    where tenant_id = :tenant_id and public_id = :public_id and deleted_at is null
    union all
    select earlier.id, earlier.parent_id, earlier.depth, earlier.status, chain.root_id, earlier.conversation_id,
        earlier.conversation_version, false, null, chain.root_public_id
    from chain cross join lateral (
        select id, parent_id, depth, status, conversation_id, conversation_version
        from responses
        where tenant_id = :tenant_id and id = chain.parent_id and depth = chain.depth - 1
            and id is distinct from (select id from known)
        limit 1
    ) as earlier
)
select {ITEM}, turn.id as turn_id, turn.parent_id, turn.root_id, turn.depth, turn.root_public_id, turn.prefix_mark,
    coalesce(turn.parent_id = (select id from known), false) as is_behind_known
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
    from conversation_items as link cross join lateral {LINKED_ITEM} as seen
    where turn.conversation_id is not null
        and link.tenant_id = :tenant_id and link.conversation_id = turn.conversation_id
        and link.added_version <= turn.conversation_version
        and (link.removed_version is null or link.removed_version > turn.conversation_version)
) as item on true
order by turn.depth, item.is_own, item.place
""")

PARENT: Final = Statement("""
select id, root_id, depth, (
        select root.public_id from responses as root where root.tenant_id = :tenant_id and root.id = responses.root_id
    ) as root_public_id, prefix_mark
from responses
where tenant_id = :tenant_id and public_id = :public_id and deleted_at is null
""")

IS_STORED: Final = Statement("select id from responses where tenant_id = :tenant_id and public_id = :public_id")

PUBLIC_ID: Final = Statement("select public_id from responses where tenant_id = :tenant_id and id = :id")


# A turn as one statement, so that it is stored whole or not at all, in one round trip. The id is drawn first, because a
# response that has no parent is its own root. Positions are the order of the arrays.
def _add(condition: str) -> str:
    return f"""
fresh as (
    select nextval('responses_id_seq') as id
), response as (
    insert into responses (
        tenant_id, id, public_id, parent_id, root_id, depth, status, model, upstream, created_at, completed_at,
        conversation_id, conversation_version, prefix_mark
    )
    select cast(:tenant_id as bigint), id, cast(:public_id as text), cast(:parent_id as bigint),
        coalesce(cast(:root_id as bigint), id), cast(:depth as integer), cast(:status as text), cast(:model as text),
        cast(:upstream as text), cast(:created_at as timestamptz), cast(:completed_at as timestamptz),
        cast(:conversation_id as bigint), cast(:conversation_version as bigint), cast(:prefix_mark as bytea)
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
    select response.tenant_id, response.id, {NEW_ITEM}
    from response cross join {NEW_ITEMS}
    returning tenant_id, id, position, public_id
)"""


ADD: Final = Statement(f"with {_add('true')} select id from response")

# The same, appended to its conversation, which is free again with it. Where the lease is another's or has run out,
# nothing is stored and no row comes back. A clock may be set back: a list that has changed since is not appended to.
ADD_IN_CONVERSATION: Final = Statement(f"""
with conversation as (
    update conversations
    set version = version + 1, next_position = next_position + cardinality(cast(:public_ids as text[])),
        locked_by = null, locked_until = null, prefix_mark = cast(:prefix_mark as bytea)
    where tenant_id = :tenant_id and id = cast(:conversation_id as bigint) and locked_by = :lease_token
        and locked_until > clock_timestamp() and version = cast(:conversation_version as bigint)
    returning id, version, next_position - cardinality(cast(:public_ids as text[])) as first_position
), {_add("exists (select from conversation)")}, links as (
    insert into conversation_items (tenant_id, conversation_id, position, item_id, public_id, added_version)
    select item.tenant_id, conversation.id, conversation.first_position + item.position, item.id, item.public_id,
        conversation.version
    from stored_items as item cross join conversation
)
select id from response
""")

# The body comes as a row before those of the output, so that it travels once. The id is a scalar and not joined: like
# the walk, this must not be planned as a scan of the tenant's items.
GET: Final = Statement("""
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
DELETE: Final = Statement("""
update responses
set deleted_at = now()
where tenant_id = :tenant_id and public_id = :public_id and deleted_at is null
returning id
""")

# Above every version: what bounds a search in an index must be one value. It is told by `case`, since Postgres does not
# know that `coalesce` leaks nothing (ADR 15).
_NO_VERSION = 2**63 - 1

# What a reference means: the newest item of that id which a client can still reach, by its response, in a list, or in
# what a response saw of a list. The look-up ends at it, since a model server may use an id again in every turn. The
# conditions are values: an `exists` is answered for all items of the tenant at once.
REFERENCED: Final = Statement(f"""
select {ITEM}
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
            ) or (
                select true
                from responses
                where tenant_id = :tenant_id and conversation_id = link.conversation_id
                    and conversation_version >= link.added_version
                    and conversation_version
                        < case when link.removed_version is null then {_NO_VERSION} else link.removed_version end
                    and deleted_at is null
                limit 1
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
