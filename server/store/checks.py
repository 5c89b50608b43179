"""Whether what is stored is whole: chains, positions, links, leases, counts. Nothing is changed, no body is read."""

from typing import Final

from msgspec import Struct

from server.store.database import Database
from server.store.sql import checks as sql
from server.store.sql.retention import TENANTS
from server.store.statement import Statement

TIMEOUT_S: Final = 3600
"""How long one check may take: it reads whole tables."""


class Finding(Struct, frozen=True):
    """What is wrong with a tenant's rows, how often, and where the first times: a response, conversation or item."""

    tenant_id: int
    what: str
    count: int
    places: list[str]


class Checks:
    """Every method raises `errors.store_unavailable`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def tenants(self) -> list[int]:
        """Those to be checked; the statistics by which the checks are planned are brought up to date first."""
        await self._database.run(sql.ANALYZE)
        return [row["id"] for row in await self._database.run(TENANTS)]

    async def faults(self, tenant_id: int) -> list[Finding]:
        """What is wrong, by kind."""
        found = [await self._found(tenant_id, what, statement) for what, statement in sql.FAULTS.items()]
        return [finding for finding in found if finding is not None]

    async def expired_leases(self, tenant_id: int) -> Finding | None:
        """Conversations that are free though a turn did not give them back: it died. Nothing is wrong with them."""
        return await self._found(tenant_id, "leases that ran out", sql.EXPIRED_LEASES)

    async def counts(self, tenant_id: int) -> dict[str, int]:
        """How many there are of each kind, by its name."""
        [row] = await self._database.run(sql.COUNTS, {"tenant_id": tenant_id})
        return dict(row)

    async def _found(self, tenant_id: int, what: str, statement: Statement) -> Finding | None:
        rows = await self._database.run(statement, {"tenant_id": tenant_id})
        return Finding(tenant_id, what, rows[0]["count"], [row["place"] for row in rows]) if rows else None
