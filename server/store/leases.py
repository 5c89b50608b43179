"""The lease that a turn has on its conversation: one turn at a time, also between processes (DESIGN 7.7).

A lease has a fresh token. It ends by the turn's own write, by its release, or by time; whoever was stopped past that
time can append nothing, for its token no longer holds.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from typing import Any

from asyncpg import Record
from msgspec import Struct

from server import errors
from server.errors import ApiError
from server.store.conversations import ConversationHistory, history_of
from server.store.database import Database
from server.store.sql import conversations as sql


class Lease(Struct, frozen=True):
    """A claim on a conversation, whose items were read at `version`. `token` fences the turn's write.

    `prefix_mark` is that of the last turn in it, where there was one.
    """

    tenant_id: int
    public_id: str
    conversation_id: int
    version: int
    token: str
    prefix_mark: bytes | None = None

    @property
    def names(self) -> dict[str, str]:
        return {"conversation_id": self.public_id}


class Leases:
    """The leases of this process; each lasts `lease_s` unless it is renewed."""

    def __init__(self, database: Database, lease_s: float) -> None:
        self._database = database
        self.lease_s = lease_s

    async def take(self, tenant_id: int, public_id: str) -> tuple[Lease, ConversationHistory] | None:
        """The lease, and the history that it protects; None for an unknown conversation.

        Raises `errors.conversation_locked` where another turn has it.
        """
        token = secrets.token_hex(16)
        parameters = {"tenant_id": tenant_id, "public_id": public_id, "lease_token": token}
        try:
            rows, is_taken = await self._taken(parameters)
        except BaseException:
            # A lease that nobody knows of locks everybody out, and most of all who is told to try again.
            await asyncio.shield(self._give_back(parameters))
            raise
        if not rows:
            return None
        if not is_taken:
            raise errors.conversation_locked()
        history = history_of(rows)
        lease = Lease(tenant_id, public_id, history.conversation_id, history.version, token, history.prefix_mark)
        return lease, history

    async def _taken(self, parameters: dict[str, Any]) -> tuple[Sequence[Record], bool]:
        """The conversation's rows, and whether the lease is had."""
        rows = await self._database.run(sql.LOCK, parameters | {"lease_s": self.lease_s})
        if not rows or rows[0]["locked_version"] is None:
            return rows, False
        if rows[0]["locked_version"] != rows[0]["version"]:
            # Another turn ended between the statement's start and the lease: with the lease held, look again.
            named = {name: parameters[name] for name in ("tenant_id", "public_id")}
            rows = await self._database.run(sql.CONVERSATION_HISTORY, named)
        return rows, True

    async def _give_back(self, parameters: dict[str, Any]) -> None:
        with contextlib.suppress(ApiError, TimeoutError):
            async with asyncio.timeout(self.lease_s / 3):
                await self._database.run(sql.RELEASE, parameters)

    async def renew(self, lease: Lease) -> bool:
        """Whether the lease still holds, and now for `lease_s` more."""
        return bool(
            await self._database.run(
                sql.RENEW,
                {
                    "tenant_id": lease.tenant_id,
                    "conversation_id": lease.conversation_id,
                    "lease_token": lease.token,
                    "lease_s": self.lease_s,
                },
            )
        )

    async def release(self, lease: Lease) -> None:
        """Free the conversation, if the lease still holds."""
        parameters = {"tenant_id": lease.tenant_id, "public_id": lease.public_id, "lease_token": lease.token}
        await self._database.run(sql.RELEASE, parameters)
