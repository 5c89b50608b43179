"""Every statement of the store, by name, each with the reason for its form.

Every one is a transaction of its own, and takes the tenant first: no statement can be written that forgets it and
still finds a row by its key. Bodies leave as `textsend(...)`, which is their bytes: a text would be decoded by the
driver only to be encoded again. What reads items gives a number and then the columns of an item, in one order.
"""

from typing import Final

from sqlalchemy import text

PING: Final = text("select 1")

# The turns up to the named response, oldest first: one row an item, and one without an item for a turn that adds none.
# With `input_only` the named response gives its input alone, whatever became of it.
#
# A step up is a look-up with a limit, and the items come laterally: joined plainly, Postgres hashes all rows of the
# tenant at each step while the tables are too young to have statistics (at depth 1,000 a walk of 240 ms, not 3).
# The chain is sorted before the items are joined to it, so that they are sorted turn by turn; 6,000 at once spill to
# disk. A step demands the depth before: a chain with a cycle in it ends, and ends wrong.
HISTORY: Final = text("""
with recursive chain as (
    select id, parent_id, depth, status, root_id, true as is_named
    from responses
    where tenant_id = :tenant_id and public_id = :public_id and deleted_at is null
    union all
    select earlier.id, earlier.parent_id, earlier.depth, earlier.status, chain.root_id, false
    from chain cross join lateral (
        select id, parent_id, depth, status
        from responses
        where tenant_id = :tenant_id and id = chain.parent_id and depth = chain.depth - 1
        limit 1
    ) as earlier
)
select turn.id as response_id, item.public_id, item.type, item.call_id, item.is_output, textsend(item.body) as body,
    textsend(item.fidelity) as fidelity, item.issuer, turn.parent_id, turn.root_id, turn.depth
from (select * from chain order by depth) as turn
left join lateral (
    select *
    from items
    where tenant_id = :tenant_id and response_id = turn.id and case
        when turn.is_named and :input_only then not is_output
        else turn.status in ('completed', 'incomplete')
    end
    order by position
) as item on true
order by turn.depth, item.position
""")

PUBLIC_ID: Final = text("select public_id from responses where tenant_id = :tenant_id and id = :id")

# A turn as one statement, so that it is stored whole or not at all, in one round trip. The id is drawn first, because a
# response that has no parent is its own root. Positions are the order of the arrays. The arrays are all of text: about
# those of another type asyncpg first asks the server, on every new connection.
ADD: Final = text("""
with fresh as (
    select nextval('responses_id_seq') as id
), response as (
    insert into responses (
        tenant_id, id, public_id, parent_id, root_id, depth, status, model, upstream, created_at, completed_at
    )
    select cast(:tenant_id as bigint), id, cast(:public_id as text), cast(:parent_id as bigint),
        coalesce(cast(:root_id as bigint), id), cast(:depth as integer), cast(:status as text), cast(:model as text),
        cast(:upstream as text), cast(:created_at as timestamptz), cast(:completed_at as timestamptz)
    from fresh
    returning tenant_id, id
), stored_body as (
    insert into response_bodies (tenant_id, response_id, body)
    select tenant_id, id, cast(:body as text)
    from response
)
insert into items (
    tenant_id, response_id, position, is_output, public_id, type, call_id, body, fidelity, issuer
)
select response.tenant_id, response.id, item.number - 1, cast(item.is_output as boolean), item.public_id, item.type,
    item.call_id, item.body, item.fidelity, item.issuer
from response cross join unnest(
    cast(:are_output as text[]), cast(:public_ids as text[]), cast(:types as text[]), cast(:call_ids as text[]),
    cast(:bodies as text[]), cast(:fidelities as text[]), cast(:issuers as text[])
) with ordinality as item (is_output, public_id, type, call_id, body, fidelity, issuer, number)
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
