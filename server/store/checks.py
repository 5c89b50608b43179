"""Whether what is stored is whole: chains, positions, links, leases, counts. Nothing is changed, no body is read."""

from typing import Final

from msgspec import Struct

from server.store.database import Database
from server.store.sql import checks as sql

TIMEOUT_S: Final = 3600
"""How long one check may take: it reads whole tables."""


class Finding(Struct, frozen=True):
    """What is wrong, how often, and where the first times: a tenant, and a response, conversation, item or link."""

    what: str
    count: int
    places: list[tuple[int, str]]


class Checks:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def faults(self) -> list[Finding]:
        """What is wrong, by kind; raises `errors.store_unavailable`."""
        findings: list[Finding] = []
        for what, statement in sql.FAULTS.items():
            if rows := await self._database.run(statement):
                findings.append(Finding(what, rows[0]["count"], [(row["tenant_id"], row["place"]) for row in rows]))
        return findings

    async def expired_leases(self) -> Finding | None:
        """Conversations that are free though a turn did not give them back: it died. Nothing is wrong with them."""
        rows = await self._database.run(sql.EXPIRED_LEASES)
        if not rows:
            return None
        return Finding("leases that ran out", rows[0]["count"], [(row["tenant_id"], row["place"]) for row in rows])

    async def counts(self) -> dict[str, int]:
        """How many there are of each kind, by its name."""
        [row] = await self._database.run(sql.COUNTS)
        return dict(row)
