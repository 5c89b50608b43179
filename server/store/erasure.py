"""All that a tenant has, removed in bounded batches, but for what its turns cost.

Everything is made unreachable first, then removed from what points to others down to what is pointed to.
"""

from typing import Final

from server.store.database import ConstraintViolated, Database
from server.store.statement import Statement

ROWS_MAX: Final = 500
"""How many rows one statement marks or removes, besides the items and the body of each response."""

TRIES_MAX: Final = 100
"""How often turns may come between, before it is given up."""


# One batch after the other by id, so that no row is looked at twice; null behind the last.
def _changed(table: str, change: str) -> Statement:
    return Statement(f"""
with batch as (
    select id from {table} where tenant_id = :tenant_id and id > :after order by id limit :limit
), changed as (
    update {table}
    set {change}
    where tenant_id = :tenant_id and id = any(array(select id from batch))
)
select max(id) as last from batch
""")


_IS_DELETED: Final = "deleted_at = coalesce(deleted_at, clock_timestamp())"

_CHANGES: Final = (
    # A turn that has a conversation loses it: what it appends would be nobody's.
    _changed("conversations", f"{_IS_DELETED}, locked_by = null, locked_until = null"),
    _changed("responses", _IS_DELETED),
    # What the sums are made of stays, and no longer says of which response it was.
    _changed("usage", "response_public_id = ''"),
)


def _removed(table: str, key: str, order: str = "") -> Statement:
    return Statement(f"""
delete from {table}
where tenant_id = :tenant_id and ({key}) in (
    select {key} from {table} where tenant_id = :tenant_id {order} limit :limit
)
returning 1
""")


# Of responses the newest go first: what continues a response is newer.
_REMOVALS: Final = {
    "conversation_items": _removed("conversation_items", "conversation_id, position"),
    "responses": _removed("responses", "id", "order by id desc"),
    "items": _removed("items", "id"),
    "conversations": _removed("conversations", "id"),
    "idempotency_keys": _removed("idempotency_keys", "tenant_id, key"),
    "request_counts": _removed("request_counts", "tenant_id, key_prefix"),
}

_COUNTS: Final = Statement(
    "select "
    + ", ".join(f"(select count(*) from {table} where tenant_id = :tenant_id) as {table}" for table in _REMOVALS)
)


# The rows stay, so that a server whose keys were all of this tenant is not open to all.
_REVOKE_KEYS: Final = Statement("""
update api_keys set revoked_at = coalesce(revoked_at, clock_timestamp()) where tenant_id = :tenant_id returning prefix
""")


class Erasure:
    """Raises `errors.store_unavailable`; what was erased by then stays so, and may be gone on with."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def counts(self, tenant_id: int) -> dict[str, int]:
        """How many rows would go, by table."""
        [row] = await self._database.run(_COUNTS, {"tenant_id": tenant_id})
        return dict(row)

    async def erase(self, tenant_id: int) -> None:
        """Remove all that the tenant had when this began, and revoke its keys.

        A turn that ends meanwhile fails, is removed too, or stays where it continues nothing and ends late.
        """
        await self._database.run(_REVOKE_KEYS, {"tenant_id": tenant_id})
        for statement in _CHANGES:
            await self._change(statement, tenant_id)
        for tries in range(1, TRIES_MAX + 1):
            try:
                for statement in _REMOVALS.values():
                    await self._exhaust(statement, tenant_id)
            except ConstraintViolated:
                # A turn has just gone on from one of these, or ended in one; what it stored goes first now.
                if tries == TRIES_MAX:
                    raise
            else:
                return

    async def _change(self, statement: Statement, tenant_id: int) -> None:
        last: int | None = 0
        while last is not None:
            named = {"tenant_id": tenant_id, "after": last, "limit": ROWS_MAX}
            last = (await self._database.run(statement, named))[0]["last"]

    async def _exhaust(self, statement: Statement, tenant_id: int) -> None:
        named = {"tenant_id": tenant_id, "limit": ROWS_MAX}
        while await self._database.run(statement, named):
            pass
