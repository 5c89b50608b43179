"""What a sweep does to the tables, a bounded batch a call, each one statement.

What is marked here can't be reached from then on; what is removed could not be reached for as long as the grace says,
so that no turn in flight builds on it. Raises `errors.store_unavailable` when the database cannot be asked.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from server.store.database import ConstraintViolated, Database
from server.store.sql import retention as sql

LOCK: Final = 0x7265_6A6F_7377_6570
"""The advisory lock of who sweeps; any number will do that every release uses."""

RESPONSES_MAX: Final = 100
"""How many responses, with their items and bodies, one statement removes."""

ROWS_MAX: Final = 500
"""How many rows one statement marks, or removes of those that have no others."""

_NO_ID: Final = 2**63 - 1


class Deleted(Struct, frozen=True):
    """A deleted response. `is_needed` says that a live response continues it, or a conversation lists its items."""

    id: int
    parent_id: int | None
    is_needed: bool


class Link(Struct, frozen=True):
    """A place in a conversation's list, and from which version up to before which one it is valid."""

    position: int
    added_version: int
    removed_version: int | None


class Retention:
    """`retention_days` is the age at which responses expire, 0 for never.

    A turn in flight may still go on from a response that was deleted less than `response_grace_s` ago, and read a
    conversation that was less than `conversation_grace_s` ago. Too short a time for the one fails that turn, since its
    parent is a key; for the other it would shorten its history.
    """

    def __init__(
        self, database: Database, *, retention_days: int, response_grace_s: float, conversation_grace_s: float
    ) -> None:
        self._database = database
        self._age: dict[str, object] = {"retention_days": retention_days or None}
        self._response_grace: dict[str, object] = {"grace_s": response_grace_s}
        self._conversation_grace: dict[str, object] = {"grace_s": conversation_grace_s}

    async def tenants(self) -> list[int]:
        return [row["id"] for row in await self._database.run(sql.TENANTS)]

    async def expire(self, tenant_id: int) -> int:
        """Mark some responses that are too old, and say how many: none when there are no more."""
        parameters = {"tenant_id": tenant_id, "limit": ROWS_MAX, **self._age}
        marked = await self._database.run(sql.EXPIRE, parameters)
        return len(marked or await self._database.run(sql.EXPIRE_OF_DELETED_CONVERSATIONS, parameters))

    async def expired_count(self, tenant_id: int) -> int:
        """How many responses `expire` would mark, but for those of deleted conversations."""
        rows = await self._database.run(sql.COUNT_EXPIRED, {"tenant_id": tenant_id, **self._age})
        return int(rows[0]["count"])

    async def deleted(self, tenant_id: int, before: int | None, *, with_expired: bool) -> list[Deleted]:
        """Deleted responses with ids below `before`, newest first, where asked for with those that are to expire."""
        statement = sql.DELETED_OR_OLD if with_expired else sql.DELETED
        named = {"tenant_id": tenant_id, "before": _NO_ID if before is None else before, "limit": RESPONSES_MAX}
        return [Deleted(*row) for row in await self._database.run(statement, named | self._age | self._response_grace)]

    async def remove_responses(self, tenant_id: int, ids: Sequence[int]) -> tuple[int, int]:
        """Remove responses that nothing needs; how many went, and how many items with them.

        None does when a turn has gone on from one of them since.
        """
        try:
            rows = await self._database.run(sql.REMOVE_RESPONSES, {"tenant_id": tenant_id, "ids": list(ids)})
        except ConstraintViolated:
            return 0, 0
        return rows[0]["responses"], rows[0]["items"]

    async def remove_bodies(self, tenant_id: int, ids: Sequence[int]) -> int:
        return len(await self._database.run(sql.REMOVE_BODIES, {"tenant_id": tenant_id, "ids": list(ids)}))

    async def deleted_conversations(self, tenant_id: int, after: int) -> list[int]:
        named = {"tenant_id": tenant_id, "after": after, "limit": ROWS_MAX}
        return [
            row["id"] for row in await self._database.run(sql.DELETED_CONVERSATIONS, named | self._conversation_grace)
        ]

    async def needed_versions(self, tenant_id: int, conversation_id: int) -> list[int]:
        """The versions of a list that are still part of somebody's history, in ascending order."""
        named = {"tenant_id": tenant_id, "conversation_id": conversation_id}
        return [row[0] for row in await self._database.run(sql.NEEDED_VERSIONS, named | self._conversation_grace)]

    async def links(self, tenant_id: int, conversation_id: int, after: int) -> list[Link]:
        named = {"tenant_id": tenant_id, "conversation_id": conversation_id, "after": after, "limit": ROWS_MAX}
        return [Link(*row) for row in await self._database.run(sql.LINKS, named)]

    async def remove_links(self, tenant_id: int, conversation_id: int, positions: Sequence[int]) -> tuple[int, int]:
        """How many links went, and how many items that were nowhere else."""
        named = {"tenant_id": tenant_id, "conversation_id": conversation_id, "positions": list(positions)}
        rows = await self._database.run(sql.REMOVE_LINKS, named)
        return rows[0]["links"], rows[0]["items"]

    async def remove_conversation(self, tenant_id: int, conversation_id: int) -> bool:
        """Whether the conversation went, of which nothing was left."""
        named = {"tenant_id": tenant_id, "conversation_id": conversation_id}
        return bool(await self._database.run(sql.REMOVE_CONVERSATION, named))

    async def remove_keys(self, tenant_id: int) -> int:
        """Remove some idempotency keys of more than a day ago: none when there are no more."""
        return len(await self._database.run(sql.REMOVE_KEYS, {"tenant_id": tenant_id, "limit": ROWS_MAX}))

    async def old_key_count(self, tenant_id: int) -> int:
        return int((await self._database.run(sql.COUNT_KEYS, {"tenant_id": tenant_id}))[0]["count"])
