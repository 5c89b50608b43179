"""Who asks, by keys that were read a moment ago: who is let in, when they are read again, how long they are believed.

Time stands still but where a test moves it. The keys are what a database would say.
"""

import asyncio
import io
from typing import Any, cast

import pytest

from server import errors
from server.engine.askers import FRESH_S, OLDEST_S, READ_MAX_S, USE_NOTED_S, Asker, Askers, CacheSalts
from server.errors import ApiError
from server.protocol import keys
from server.store.keys import ApiKey, ApiKeys, Tenancy, Tenant, TenantLimits
from server.telemetry import Telemetry

ADAS, BOBS = "rjk_AdaAdaAd" + "a" * 35, "rjk_BobBobBo" + "b" * 35


def key_of(key: str, tenant_id: int, *, is_revoked: bool = False) -> ApiKey:
    return ApiKey(keys.hash_of(key), tenant_id, is_revoked)


class Stored:
    """What the database says, and how often it was asked. `fault` is raised in place of it, `may_answer` held back."""

    def __init__(self) -> None:
        self.tenants = {1: Tenant("default", TenantLimits(), "salt-1")}
        self.keys: dict[str, ApiKey] = {}
        self.fault: ApiError | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.reads = 0
        self.uses: list[str] = []

    def add(self, key: str, tenant_id: int = 1, **limits: int) -> None:
        self.tenants.setdefault(tenant_id, Tenant(f"t{tenant_id}", TenantLimits(**limits), f"salt-{tenant_id}"))
        self.keys[keys.prefix_of(key)] = key_of(key, tenant_id)

    def revoke(self, key: str) -> None:
        self.keys[keys.prefix_of(key)] = key_of(key, 1, is_revoked=True)

    async def read(self) -> Tenancy:
        self.reads += 1
        read = Tenancy(dict(self.tenants), dict(self.keys))
        await self.may_answer.wait()
        if self.fault is not None:
            raise self.fault
        return read

    async def note_use(self, prefix: str) -> None:
        self.uses.append(prefix)


class Clock:
    now_s = 1000.0


def askers_of(
    stored: Stored,
    clock: Clock,
    *,
    may_be_open: bool = True,
    cache_salts: CacheSalts = "auto",
    limits: TenantLimits | None = None,
) -> Askers:
    return Askers(
        cast(ApiKeys, stored),
        Telemetry("debug", io.StringIO()),
        may_be_open=may_be_open,
        cache_salts=cache_salts,
        limits=limits or TenantLimits(),
        now_s=lambda: clock.now_s,
    )


async def refused(askers: Askers, header: str | None) -> tuple[int, str | None]:
    with pytest.raises(ApiError) as raised:
        await askers.of(header)
    return raised.value.status, raised.value.code


async def test_without_any_key_everybody_is_the_open_tenant() -> None:
    askers = askers_of(Stored(), Clock())
    assert await askers.of(None) == Asker(tenant_id=1)
    assert await askers.of("Bearer what anybody says") == Asker(tenant_id=1, authorization="Bearer what anybody says")


async def test_without_any_key_nobody_is_let_in_where_it_may_not_be_open() -> None:
    askers = askers_of(Stored(), Clock(), may_be_open=False)
    assert await refused(askers, None) == (401, "invalid_api_key")


async def test_a_key_is_its_tenants() -> None:
    stored = Stored()
    stored.add(ADAS, 7)
    stored.add(BOBS, 8)
    askers = askers_of(stored, Clock(), cache_salts="never")
    for key, tenant_id in ((ADAS, 7), (BOBS, 8)):
        asker = await askers.of(f"Bearer {key}")
        assert asker == Asker(tenant_id=tenant_id, key=keys.prefix_of(key), authorization=f"Bearer {key}")


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        f"Basic {ADAS}",
        ADAS,
        f"Bearer {ADAS}x",
        f"Bearer {ADAS[:-1]}",
        f"Bearer {keys.prefix_of(ADAS)}",
        f"Bearer {keys.prefix_of(ADAS)}{BOBS[12:]}",
        f"Bearer {BOBS}",
    ],
)
async def test_what_is_no_good_key_is_refused(header: str | None) -> None:
    stored = Stored()
    stored.add(ADAS)
    assert await refused(askers_of(stored, Clock()), header) == (401, "invalid_api_key")


async def test_the_last_key_that_is_revoked_opens_nothing() -> None:
    stored = Stored()
    stored.add(ADAS)
    stored.revoke(ADAS)
    askers = askers_of(stored, Clock())
    assert await refused(askers, f"Bearer {ADAS}") == (401, "invalid_api_key")
    assert await refused(askers, None) == (401, "invalid_api_key")


async def test_what_was_read_is_asked_for_once_until_it_is_old() -> None:
    stored, clock = Stored(), Clock()
    stored.add(ADAS)
    askers = askers_of(stored, clock)
    for _ in range(5):
        await askers.of(f"Bearer {ADAS}")
    assert stored.reads == 1
    clock.now_s += FRESH_S + 0.01
    # Nobody waits for the next reading, and only one begins it.
    stored.may_answer.clear()
    for _ in range(5):
        await askers.of(f"Bearer {ADAS}")
    await asyncio.sleep(0)
    assert stored.reads == 2
    stored.may_answer.set()
    await askers.close()


async def test_a_change_counts_as_soon_as_it_is_read() -> None:
    stored, clock = Stored(), Clock()
    askers = askers_of(stored, clock)
    assert (await askers.of(None)).key == ""
    stored.add(ADAS)
    clock.now_s += OLDEST_S + 0.01
    # What is too old lets nobody in before it was read anew.
    assert await refused(askers, None) == (401, "invalid_api_key")
    assert (await askers.of(f"Bearer {ADAS}")).tenant_id == 1
    stored.revoke(ADAS)
    clock.now_s += OLDEST_S + 0.01
    assert await refused(askers, f"Bearer {ADAS}") == (401, "invalid_api_key")


async def test_a_change_counts_within_five_seconds() -> None:
    """The promise of docs/operations.md: what is believed the longest was read so long ago, by so long a reading."""
    assert OLDEST_S + READ_MAX_S < 5


async def test_a_database_that_can_not_tell_is_believed_for_a_while_only() -> None:
    stored, clock = Stored(), Clock()
    stored.add(ADAS)
    askers = askers_of(stored, clock)
    await askers.of(f"Bearer {ADAS}")
    stored.fault = errors.store_unavailable()
    clock.now_s += OLDEST_S - 0.1
    assert (await askers.of(f"Bearer {ADAS}")).tenant_id == 1
    await askers.close()
    clock.now_s += 0.2
    assert (await refused(askers, f"Bearer {ADAS}"))[0] == 503
    assert (await refused(askers, None))[0] == 503
    stored.fault = None
    assert (await askers.of(f"Bearer {ADAS}")).tenant_id == 1


async def test_the_reading_at_the_start_tells_of_a_fault() -> None:
    stored = Stored()
    stored.fault = errors.store_unavailable()
    with pytest.raises(errors.StoreUnavailable):
        await askers_of(stored, Clock()).read()


async def test_the_use_of_a_key_is_noted_once_a_minute() -> None:
    stored, clock = Stored(), Clock()
    stored.add(ADAS)
    askers = askers_of(stored, clock)
    for _ in range(3):
        await askers.of(f"Bearer {ADAS}")
    clock.now_s += USE_NOTED_S + 1
    await askers.of(f"Bearer {ADAS}")
    await askers.close()
    assert stored.uses == [keys.prefix_of(ADAS)] * 2


@pytest.mark.parametrize(
    ("cache_salts", "tenants", "expected"),
    [
        ("auto", 1, None),
        ("auto", 2, "salt-1"),
        ("always", 1, "salt-1"),
        ("always", 2, "salt-1"),
        ("never", 2, None),
    ],
)
async def test_tenants_are_set_apart_in_a_prefix_cache_where_there_are_several(
    cache_salts: CacheSalts, tenants: int, expected: str | None
) -> None:
    stored = Stored()
    for tenant_id, key in zip(range(1, tenants + 1), (ADAS, BOBS), strict=False):
        stored.add(key, tenant_id)
    askers = askers_of(stored, Clock(), cache_salts=cache_salts)
    assert (await askers.of(f"Bearer {ADAS}")).cache_salt == expected


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, (60, 4)),
        ({"requests_per_minute": 5}, (5, 4)),
        ({"requests_per_minute": 0, "open_turns_max": 9}, (0, 9)),
    ],
)
async def test_a_tenants_own_limits_come_before_the_general_ones(
    own: dict[str, int], expected: tuple[int, int]
) -> None:
    stored = Stored()
    stored.add(ADAS, 7, **own)
    asker = await askers_of(stored, Clock(), limits=TenantLimits(requests_per_minute=60, open_turns_max=4)).of(
        f"Bearer {ADAS}"
    )
    assert (asker.requests_per_minute, asker.open_turns_max) == expected


def test_what_is_written_of_an_asker_holds_no_secret() -> None:
    asker: Any = Asker(tenant_id=1, key="rjk_ab", cache_salt="pepper", authorization=f"Bearer {ADAS}")
    assert repr(asker) == "Asker(tenant_id=1, key='rjk_ab')"
    assert str(asker) == repr(asker)
