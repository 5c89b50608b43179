"""The statements of a sweep: what has expired is marked as deleted, and what nobody needs any more is removed.

Each reads and changes a bounded number of rows, found by an index. What a row depends on is looked up by a scalar
sub-select with a limit: an `exists` may be answered for all rows of the tenant at once. A mark takes no lock that a
turn waits for, and what is removed can no longer be reached.
"""

from typing import Final

from server.store.statement import Statement

TENANTS: Final = Statement("select id from tenants order by id")

# Without a number of days nothing is older: a null is no condition that holds.
_IS_OLD: Final = "created_at < clock_timestamp() - make_interval(days => cast(:retention_days as integer))"

_IS_SETTLED: Final = "deleted_at < clock_timestamp() - make_interval(secs => cast(:grace_s as double precision))"


def _marked(found: str) -> Statement:
    return Statement(f"""
update responses
set deleted_at = clock_timestamp()
where tenant_id = :tenant_id and deleted_at is null and id = any(array({found} limit :limit))
returning id
""")


EXPIRE: Final = _marked(f"""
    select id from responses
    where tenant_id = :tenant_id and deleted_at is null and conversation_id is null and {_IS_OLD}
    order by created_at""")

# What was made in a conversation belongs to nothing when that is deleted.
EXPIRE_OF_DELETED_CONVERSATIONS: Final = _marked(f"""
    select made.id
    from conversations as deleted cross join lateral (
        select id from responses
        where tenant_id = :tenant_id and conversation_id = deleted.id and conversation_id is not null
            and responses.deleted_at is null and {_IS_OLD}
    ) as made
    where deleted.tenant_id = :tenant_id and deleted.deleted_at is not null""")

COUNT_EXPIRED: Final = Statement(f"""
select count(*) as count from responses
where tenant_id = :tenant_id and deleted_at is null and conversation_id is null and {_IS_OLD}
""")


# Deleted responses, newest first, and what is needed of them for sure: one that a live response continues, or whose
# items a conversation lists. Only a response that was made in a conversation has such items.
def _deleted(is_gone: str) -> Statement:
    return Statement(f"""
select id, parent_id, coalesce((
        select true from (
            select {is_gone} as is_gone from responses
            where tenant_id = :tenant_id and parent_id = response.id
        ) as child
        where child.is_gone is not true
        limit 1
    ), false) or response.conversation_id is not null and coalesce((
        select true
        from items as item cross join lateral (
            select from conversation_items where tenant_id = :tenant_id and item_id = item.id limit 1
        ) as link
        where item.tenant_id = :tenant_id and item.response_id = response.id
        limit 1
    ), false) as is_needed
from responses as response
where tenant_id = :tenant_id and id < :before and ({is_gone})
order by id desc
limit :limit
""")


DELETED: Final = _deleted(f"deleted_at is not null and {_IS_SETTLED}")

# The same as if what is too old were marked already.
DELETED_OR_OLD: Final = _deleted(
    f"deleted_at is not null and {_IS_SETTLED} or deleted_at is null and conversation_id is null and {_IS_OLD}"
)

# Items and bodies go with their response, all or none: a turn that goes on from one of these makes it fail whole.
REMOVE_RESPONSES: Final = Statement("""
with counted as (
    select count(*) as count from items where tenant_id = :tenant_id and response_id = any(cast(:ids as bigint[]))
), gone as (
    delete from responses
    where tenant_id = :tenant_id and id = any(cast(:ids as bigint[])) and deleted_at is not null
    returning id
)
select (select count(*) from gone) as responses, counted.count as items from counted
""")

# Who continued a response needs its items, and never its body.
REMOVE_BODIES: Final = Statement("""
delete from response_bodies
where tenant_id = :tenant_id and response_id = any(cast(:ids as bigint[]))
returning response_id
""")

DELETED_CONVERSATIONS: Final = Statement(f"""
select id from conversations
where tenant_id = :tenant_id and deleted_at is not null and {_IS_SETTLED} and id > :after
order by id
limit :limit
""")

# The versions that responses saw which can still be reached, or which somebody continued.
NEEDED_VERSIONS: Final = Statement(f"""
select distinct conversation_version
from responses as response
where tenant_id = :tenant_id and conversation_id = :conversation_id and (
    ({_IS_SETTLED}) is not true
    or (select true from responses where tenant_id = :tenant_id and parent_id = response.id limit 1)
)
order by conversation_version
""")

LINKS: Final = Statement("""
select position, added_version, removed_version
from conversation_items
where tenant_id = :tenant_id and conversation_id = :conversation_id and position > :after
order by position
limit :limit
""")

# Items that a client added belong to nothing else; those of responses go with their responses.
REMOVE_LINKS: Final = Statement("""
with link as (
    delete from conversation_items
    where tenant_id = :tenant_id and conversation_id = :conversation_id and position = any(cast(:positions as bigint[]))
    returning item_id
), gone as (
    delete from items
    where tenant_id = :tenant_id and id = any(array(select item_id from link)) and response_id is null
    returning id
)
select (select count(*) from link) as links, (select count(*) from gone) as items
""")

REMOVE_CONVERSATION: Final = Statement("""
delete from conversations as conversation
where tenant_id = :tenant_id and id = :conversation_id and deleted_at is not null
    and not exists (select from conversation_items where tenant_id = :tenant_id and conversation_id = conversation.id)
    and not exists (select from responses where tenant_id = :tenant_id and conversation_id = conversation.id)
returning id
""")

_OLD_KEYS: Final = """select key from idempotency_keys
    where tenant_id = :tenant_id and created_at < clock_timestamp() - interval '24 hours'
        and claimed_until < clock_timestamp()"""

REMOVE_KEYS: Final = Statement(f"""
delete from idempotency_keys
where tenant_id = :tenant_id and key = any(array({_OLD_KEYS} order by created_at limit :limit))
    and created_at < clock_timestamp() - interval '24 hours' and claimed_until < clock_timestamp()
returning key
""")

COUNT_KEYS: Final = Statement(f"select count(*) as count from ({_OLD_KEYS}) as old")
