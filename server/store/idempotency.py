"""Which request an idempotency key was first sent with, and whether its response is there.

A claim on a key is the row itself. It is done when its response is stored; until then its process renews it, and when
that has died or failed the key is free again.
"""

from typing import Any, Final

from msgspec import Struct

from server.store.database import Database
from server.store.statement import Statement

_IS_DONE = """exists (
    select from responses as response
    where response.tenant_id = known.tenant_id and response.public_id = known.response_public_id
        and response.status <> 'cancelled'
)"""

# A key that is a day old, or whose process has died before its response was stored, is anybody's.
_CLAIM: Final = Statement(f"""
insert into idempotency_keys as known (tenant_id, key, body_hash, response_public_id, created_at, claimed_until)
values (
    :tenant_id, :key, :body_hash, :response_public_id, clock_timestamp(),
    clock_timestamp() + make_interval(secs => :lease_s)
)
on conflict (tenant_id, key) do update
set body_hash = excluded.body_hash, response_public_id = excluded.response_public_id,
    created_at = excluded.created_at, claimed_until = excluded.claimed_until
where known.created_at < clock_timestamp() - interval '24 hours'
    or (known.claimed_until <= clock_timestamp() and not {_IS_DONE})
returning response_public_id
""")

_FIND: Final = Statement(f"""
select body_hash, response_public_id, {_IS_DONE} as is_done
from idempotency_keys as known
where tenant_id = :tenant_id and key = :key
""")

_RENEW: Final = Statement("""
update idempotency_keys
set claimed_until = clock_timestamp() + make_interval(secs => :lease_s)
where tenant_id = :tenant_id and key = :key and response_public_id = :response_public_id
returning key
""")

_RELEASE: Final = Statement(f"""
delete from idempotency_keys as known
where tenant_id = :tenant_id and key = :key and response_public_id = :response_public_id
    and not {_IS_DONE}
""")

_FORGET: Final = Statement("""
delete from idempotency_keys
where tenant_id = :tenant_id and key = :key and response_public_id = :response_public_id
""")


class KeyClaim(Struct, frozen=True):
    """The right to answer the request that a key names, by the response of this id."""

    tenant_id: int
    key: str
    body_hash: str
    response_public_id: str

    @property
    def names(self) -> dict[str, str]:
        return {"response_id": self.response_public_id}


class KnownKey(Struct, frozen=True):
    """Who has a key: the hash of the body it came with, and the response that is, or will be, the answer."""

    body_hash: str
    response_public_id: str
    is_done: bool


class IdempotencyKeys:
    """The keys of all tenants. Every method raises `errors.store_unavailable`."""

    def __init__(self, database: Database, lease_s: float) -> None:
        self._database = database
        self.lease_s = lease_s

    async def claim(self, claim: KeyClaim) -> bool:
        """Whether the key is had now."""
        return bool(await self._database.run(_CLAIM, _columns(claim) | {"lease_s": self.lease_s}))

    async def find(self, tenant_id: int, key: str) -> KnownKey | None:
        rows = await self._database.run(_FIND, {"tenant_id": tenant_id, "key": key})
        return KnownKey(*rows[0]) if rows else None

    async def renew(self, claim: KeyClaim) -> bool:
        """Whether the claim still holds, and now for `lease_s` more."""
        return bool(await self._database.run(_RENEW, _named(claim) | {"lease_s": self.lease_s}))

    async def release(self, claim: KeyClaim) -> None:
        """Give up a key whose response is not there; one that has its answer keeps it."""
        await self._database.run(_RELEASE, _named(claim))

    async def forget(self, claim: KeyClaim) -> None:
        """Give up a key whose response, though it is there, is no answer."""
        await self._database.run(_FORGET, _named(claim))


def _named(claim: KeyClaim) -> dict[str, Any]:
    return {"tenant_id": claim.tenant_id, "key": claim.key, "response_public_id": claim.response_public_id}


def _columns(claim: KeyClaim) -> dict[str, Any]:
    return _named(claim) | {"body_hash": claim.body_hash}
