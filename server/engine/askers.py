"""Who asks: the tenant of a request's key, from what was read of tenants and keys a moment ago.

What lives here asks the database beside requests, and at most once in FRESH_S: a key that was revoked, or is the first
one, counts everywhere within OLDEST_S and the time that reading takes, without a restart.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Literal

import msgspec

from server import errors
from server.errors import ApiError
from server.protocol import keys
from server.protocol.budget import NO_LIMITS, Budget
from server.store.keys import ApiKeys, Tenancy, TenantLimits
from server.telemetry import Telemetry

FRESH_S: Final = 1.5
"""What was read so long ago is read again, while requests go on by it."""
OLDEST_S: Final = 3.0
"""What was read so long ago lets nobody in any more."""
READ_MAX_S: Final = 1.5
USE_NOTED_S: Final = 60
"""How exactly it is noted when a key was last used."""

OPEN_TENANT_ID: Final = 1

CacheSalts = Literal["auto", "always", "never"]


class Asker(msgspec.Struct, frozen=True, kw_only=True):
    """Whose a request is, and what it may do. `key` is the prefix of its key, empty where none is asked for.

    `authorization` is the header as the client sent it, `cache_salt` what sets the tenant's prompts apart in a model
    server's prefix cache; of the limits, 0 is none. `budget` narrows the upstream's.
    """

    tenant_id: int
    key: str = ""
    cache_salt: str | None = None
    requests_per_minute: int = 0
    open_turns_max: int = 0
    budget: Budget = NO_LIMITS
    authorization: str | None = None

    def __repr__(self) -> str:
        """Without the secrets."""
        return f"Asker(tenant_id={self.tenant_id}, key={self.key!r})"


class Askers:
    """Tells askers by their Authorization. `may_be_open` lets everybody in while there is no key at all.

    A revoked key is one: who revokes his last one has not opened his server.
    """

    def __init__(
        self,
        keys: ApiKeys,
        telemetry: Telemetry,
        *,
        may_be_open: bool,
        cache_salts: CacheSalts,
        limits: TenantLimits,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = keys
        self._telemetry = telemetry
        self._may_be_open = may_be_open
        self._cache_salts = cache_salts
        self._limits = limits
        self._now_s = now_s
        self._tenancy = Tenancy({}, {})
        self._by_prefix: dict[str, Asker] = {}
        self._open = Asker(tenant_id=OPEN_TENANT_ID)
        self._read_at_s = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._use_noted_at_s: dict[str, float] = {}
        self._aside: set[asyncio.Task[None]] = set()

    @property
    def tenant_count(self) -> int:
        return len(self._tenancy.tenants)

    @property
    def has_keys(self) -> bool:
        return bool(self._tenancy.keys)

    async def read(self) -> None:
        """Read all tenants and keys now; raises `errors.store_unavailable`."""
        began_at_s = self._now_s()
        try:
            async with asyncio.timeout(READ_MAX_S):
                self._tenancy = await self._keys.read()
        except TimeoutError as error:
            raise errors.store_unavailable() from error
        self._by_prefix = {prefix: self._asker(key.tenant_id, prefix) for prefix, key in self._tenancy.keys.items()}
        self._open = self._asker(OPEN_TENANT_ID, "")
        self._read_at_s = began_at_s

    async def of(self, authorization: str | None) -> Asker:
        """Whose request it is that has this header.

        Raises ApiError: 401 where it has no key that is good, 503 where the database can't tell.
        """
        if self._age_s() > FRESH_S:
            if self._reading is None:
                self._reading = self._run_aside(self._read_again())
            if self._age_s() > OLDEST_S:
                await asyncio.wait([self._reading])
                if self._age_s() > OLDEST_S:
                    raise errors.store_unavailable()
        is_open = self._may_be_open and not self.has_keys
        asker = self._open if is_open else self._known(authorization)
        return asker if authorization is None else msgspec.structs.replace(asker, authorization=authorization)

    async def close(self) -> None:
        """Wait for what is written and read beside requests."""
        await asyncio.gather(*self._aside, return_exceptions=True)

    def _known(self, authorization: str | None) -> Asker:
        key = keys.presented(authorization)
        if key is None:
            raise errors.no_api_key()
        prefix = keys.prefix_of(key)
        known = self._tenancy.keys.get(prefix)
        if known is None or not keys.is_key_of(key, known.hash) or known.is_revoked:
            raise errors.invalid_api_key()
        if self._now_s() - self._use_noted_at_s.get(prefix, float("-inf")) > USE_NOTED_S:
            self._use_noted_at_s[prefix] = self._now_s()
            self._run_aside(self._note_use(prefix))
        return self._by_prefix[prefix]

    def _asker(self, tenant_id: int, prefix: str) -> Asker:
        tenant = self._tenancy.tenants.get(tenant_id)
        if tenant is None:
            return Asker(tenant_id=tenant_id, key=prefix)
        is_salted = self._cache_salts == "always" or (self._cache_salts == "auto" and len(self._tenancy.tenants) > 1)
        own, general = tenant.limits, self._limits
        requests = general.requests_per_minute if own.requests_per_minute is None else own.requests_per_minute
        open_turns = general.open_turns_max if own.open_turns_max is None else own.open_turns_max
        return Asker(
            tenant_id=tenant_id,
            key=prefix,
            cache_salt=tenant.cache_salt if is_salted else None,
            requests_per_minute=requests or 0,
            open_turns_max=open_turns or 0,
            budget=NO_LIMITS if (budget := own.budget()) == NO_LIMITS else budget,
        )

    def _age_s(self) -> float:
        return self._now_s() - self._read_at_s

    async def _read_again(self) -> None:
        try:
            await self.read()
        except ApiError as error:
            self._telemetry.warning("keys_not_read", cause=type(error.__cause__).__name__)
        finally:
            self._reading = None

    async def _note_use(self, prefix: str) -> None:
        try:
            await self._keys.note_use(prefix)
        except ApiError:
            # It is noted at the next use.
            self._use_noted_at_s.pop(prefix, None)

    def _run_aside(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)
        return task
