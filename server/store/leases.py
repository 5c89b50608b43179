"""The lease that a turn has on its conversation: one turn at a time, also between processes (DESIGN 7.7).

A lease has a fresh token. It ends by the turn's own write, by its release, or by time; whoever was stopped past that
time can append nothing, for its token no longer holds.
"""

import secrets

from msgspec import Struct

from server import errors
from server.store import sql
from server.store.conversations import ConversationHistory, history_of
from server.store.database import Database


class Lease(Struct, frozen=True):
    """A claim on a conversation, whose items were read at `version`. `token` fences the turn's write."""

    tenant_id: int
    public_id: str
    conversation_id: int
    version: int
    token: str


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
        parameters = {"tenant_id": tenant_id, "public_id": public_id, "lease_token": token, "lease_s": self.lease_s}
        rows = await self._database.run(sql.LOCK, parameters)
        if not rows:
            return None
        locked_version = rows[0].locked_version
        if locked_version is None:
            raise errors.conversation_locked()
        if locked_version != rows[0].version:
            # Another turn ended between the statement's start and the lease: with the lease held, look again.
            rows = await self._database.run(sql.CONVERSATION_HISTORY, {"tenant_id": tenant_id, "public_id": public_id})
        history = history_of(rows)
        return Lease(tenant_id, public_id, history.conversation_id, history.version, token), history

    async def renew(self, lease: Lease) -> bool:
        """Whether the lease still holds, and now for `lease_s` more."""
        return bool(await self._database.run(sql.RENEW, _named(lease) | {"lease_s": self.lease_s}))

    async def release(self, lease: Lease) -> None:
        """Free the conversation, if the lease still holds."""
        await self._database.run(sql.RELEASE, _named(lease))


def _named(lease: Lease) -> dict[str, object]:
    return {"tenant_id": lease.tenant_id, "conversation_id": lease.conversation_id, "lease_token": lease.token}
