"""Tenants and their limits, API keys, and the requests that each key has sent in a minute."""

from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct

from server.protocol import keys
from server.protocol.budget import Budget
from server.store.database import Database
from server.store.statement import Statement

_READ: Final = Statement("""
select tenant.id, tenant.name, tenant.limits, tenant.cache_salt, key.prefix, key.hash,
    key.revoked_at is not null as is_revoked
from tenants as tenant left join api_keys as key on key.tenant_id = tenant.id
order by tenant.id
""")

_NOTE_USE: Final = Statement("update api_keys set last_used_at = clock_timestamp() where prefix = :prefix")

# Who comes at the same moment finds the tenant that the other has made.
_CREATE: Final = Statement("""
with tenant as (
    insert into tenants as known (name, created_at, limits, cache_salt)
    select cast(:tenant as text), clock_timestamp(), '{}', cast(:cache_salt as text)
    where not (:is_first_only and exists (select from api_keys))
    on conflict (name) do update set name = known.name
    returning id
)
insert into api_keys (prefix, hash, tenant_id, created_at)
select cast(:prefix as text), cast(:hash as bytea), id, clock_timestamp() from tenant
returning prefix
""")

# Those that are not said stay as they are.
_LIMIT: Final = Statement("""
update tenants set limits = cast(limits::jsonb || cast(:limits as jsonb) as text) where name = :tenant returning id
""")

_ROTATE: Final = Statement("""
with revoked as (
    update api_keys set revoked_at = clock_timestamp()
    where prefix = :old_prefix and revoked_at is null
    returning tenant_id
)
insert into api_keys (prefix, hash, tenant_id, created_at)
select cast(:prefix as text), cast(:hash as bytea), tenant_id, clock_timestamp() from revoked
returning prefix
""")

_REVOKE: Final = Statement("""
update api_keys set revoked_at = clock_timestamp() where prefix = :prefix and revoked_at is null returning prefix
""")

_LIST: Final = Statement("""
select key.prefix, tenant.name, key.created_at, key.last_used_at, key.revoked_at
from api_keys as key join tenants as tenant on tenant.id = key.tenant_id
order by key.created_at, key.prefix
""")

# A process whose clock is a little behind counts for the newer minute, which is at most too strict. A minute that is
# further ahead was left by a clock that was wrong, and would lock the key out until it comes.
_COUNT: Final = Statement("""
insert into request_counts as known (tenant_id, key_prefix, minute, requests)
values (:tenant_id, :prefix, :minute, :requests)
on conflict (tenant_id, key_prefix) do update
set minute = case when known.minute - excluded.minute in (0, 1) then known.minute else excluded.minute end,
    requests = excluded.requests
        + case when known.minute - excluded.minute in (0, 1) then known.requests else 0 end
returning requests
""")

STATEMENTS_ASIDE: Final = (_READ, _NOTE_USE, _COUNT)
"""Those that run beside requests, now and then, and are of none of them."""


class TenantLimits(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What holds for a tenant, where it is not None; 0 is no limit.

    The first two are of each of its keys, and come before the settings. The others are a `Budget` (protocol.budget),
    which narrows that of the upstream.
    """

    requests_per_minute: int | None = None
    open_turns_max: int | None = None
    output_tokens: int | None = None
    output_tokens_max: int | None = None
    total_tokens_max: int | None = None
    history_items_max: int | None = None
    history_bytes_max: int | None = None

    def budget(self) -> Budget:
        return Budget(**{name: getattr(self, name) or 0 for name in Budget.__struct_fields__})


class Tenant(Struct, frozen=True):
    name: str
    limits: TenantLimits
    cache_salt: str


class ApiKey(Struct, frozen=True):
    hash: bytes
    tenant_id: int
    is_revoked: bool


class Tenancy(Struct, frozen=True):
    """All tenants by their ids, and all keys by their prefixes, revoked ones too."""

    tenants: dict[int, Tenant]
    keys: dict[str, ApiKey]


class ListedKey(Struct, frozen=True):
    prefix: str
    tenant: str
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


class ApiKeys:
    """The keys of all tenants. Every method raises `errors.store_unavailable`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self) -> Tenancy:
        read = Tenancy({}, {})
        for tenant_id, name, limits, cache_salt, prefix, key_hash, is_revoked in await self._database.run(_READ):
            if tenant_id not in read.tenants:
                read.tenants[tenant_id] = Tenant(name, msgspec.json.decode(limits, type=TenantLimits), cache_salt)
            if prefix is not None:
                read.keys[prefix] = ApiKey(key_hash, tenant_id, is_revoked)
        return read

    async def create(self, key: str, tenant: str, *, is_first_only: bool = False) -> bool:
        """Keep a key for the tenant of this name, which is made where it is not there.

        False, and nothing is kept, where it was to be the first one and there are others.
        """
        given = {"tenant": tenant, "cache_salt": keys.new_cache_salt(), "is_first_only": is_first_only}
        return bool(await self._database.run(_CREATE, _kept(key) | given))

    async def limit(self, tenant: str, limits: TenantLimits) -> bool:
        """Set the limits of a tenant that are not None; False where there is no such tenant."""
        given = {"tenant": tenant, "limits": msgspec.json.encode(limits).decode()}
        return bool(await self._database.run(_LIMIT, given))

    async def rotate(self, old_prefix: str, key: str) -> bool:
        """Keep a key in place of the one with that prefix; False where there is none that is good."""
        return bool(await self._database.run(_ROTATE, _kept(key) | {"old_prefix": old_prefix}))

    async def revoke(self, prefix: str) -> bool:
        return bool(await self._database.run(_REVOKE, {"prefix": prefix}))

    async def listed(self) -> list[ListedKey]:
        return [ListedKey(*row) for row in await self._database.run(_LIST)]

    async def note_use(self, prefix: str) -> None:
        await self._database.run(_NOTE_USE, {"prefix": prefix})

    async def count(self, tenant_id: int, prefix: str, minute: int, requests: int) -> int:
        """Add to the requests of a key in a minute, counted from the epoch; how many all have told of then."""
        counted = {"tenant_id": tenant_id, "prefix": prefix, "minute": minute, "requests": requests}
        rows = await self._database.run(_COUNT, counted)
        total: int = rows[0]["requests"]
        return total


def _kept(key: str) -> dict[str, object]:
    return {"prefix": keys.prefix_of(key), "hash": keys.hash_of(key)}
