"""A turn's claim on its conversation: renewed while it is held, given up once, and told of when it is in danger."""

import asyncio
import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from server import errors
from server.engine.claim import Claim
from server.store.leases import Lease
from server.telemetry import Telemetry
from tests.harness import until

LEASE = Lease(tenant_id=1, public_id="conv_1", conversation_id=7, version=3, token="t")


class FakeLeases:
    """Leases that end by nobody's clock: each renewal and release does what `answer` says."""

    def __init__(self, answer: Callable[[], bool] = lambda: True, lease_s: float = 0.03) -> None:
        self.lease_s = lease_s
        self.calls: list[str] = []
        self._answer = answer

    async def renew(self, lease: Lease) -> bool:
        assert lease is LEASE
        self.calls.append("renew")
        return self._answer()

    async def release(self, lease: Lease) -> None:
        assert lease is LEASE
        self.calls.append("release")
        self._answer()


def claim_on(leases: Any) -> tuple[Claim, io.StringIO]:
    log = io.StringIO()
    return Claim(leases, LEASE, Telemetry("debug", log)), log


def told(log: io.StringIO) -> list[tuple[str, str]]:
    lines = map(json.loads, log.getvalue().splitlines())
    return [(line["event"], line["conversation_id"]) for line in lines]


def unavailable() -> bool:
    raise errors.store_unavailable()


async def test_a_claim_is_renewed_until_it_is_freed() -> None:
    leases = FakeLeases()
    claim, log = claim_on(leases)
    await until(lambda: len(leases.calls) >= 3)
    await claim.free()
    renewals = leases.calls.count("renew")
    await asyncio.sleep(0.03)
    assert leases.calls == ["renew"] * renewals + ["release"]
    assert log.getvalue() == ""


async def test_a_claim_is_renewed_when_a_third_of_its_time_is_over() -> None:
    """So that a renewal which fails, or comes late, costs nothing."""
    leases = FakeLeases(lease_s=4.5)
    claim, _ = claim_on(leases)
    loop = asyncio.get_running_loop()
    began_at_s = loop.time()
    await until(lambda: leases.calls == ["renew"])
    # The margin is for a slow machine, and ends before the half.
    assert 1.49 < loop.time() - began_at_s < 2.2
    claim.use_up()


@pytest.mark.parametrize("is_used_up", [False, True])
async def test_a_claim_is_given_up_once(is_used_up: bool) -> None:
    leases = FakeLeases(lease_s=60)
    claim, _ = claim_on(leases)
    if is_used_up:
        claim.use_up()
    await claim.free()
    await claim.free()
    assert leases.calls == ([] if is_used_up else ["release"])


async def test_a_claim_that_was_lost_is_told_of_and_not_renewed() -> None:
    leases = FakeLeases(lambda: False)
    claim, log = claim_on(leases)
    await until(lambda: leases.calls == ["renew"])
    await asyncio.sleep(0.03)
    await claim.free()
    assert leases.calls == ["renew"]
    assert told(log) == [("lease_lost", "conv_1")]


async def test_a_claim_whose_end_met_a_renewal_was_not_lost() -> None:
    """The turn's write ended the lease, and a renewal came too late for it before the write could tell."""
    leases = FakeLeases(lambda: False)
    claim, log = claim_on(leases)
    await until(lambda: leases.calls == ["renew"])
    claim.use_up()
    assert leases.calls == ["renew"]
    assert log.getvalue() == ""


async def test_a_renewal_that_fails_is_tried_again() -> None:
    leases = FakeLeases(lambda: unavailable() if len(leases.calls) == 1 else True)
    claim, log = claim_on(leases)
    await until(lambda: len(leases.calls) >= 2)
    await claim.free()
    assert told(log) == [("lease_not_renewed", "conv_1")]


async def test_who_has_lost_it_is_told_at_once() -> None:
    leases = FakeLeases(lambda: False)
    claim, _ = claim_on(leases)
    lost: list[bool] = []
    claim.on_lost = lambda: lost.append(claim.is_lost)
    await until(lambda: lost == [True])
    await claim.free()
    assert leases.calls == ["renew"]


async def test_a_release_that_fails_is_tried_again_until_the_lease_has_run_out() -> None:
    """So that who tries a failed turn again soon finds the conversation free."""
    leases = FakeLeases(lambda: unavailable() if len(leases.calls) < 4 else True, lease_s=0.3)
    claim, log = claim_on(leases)
    await claim.free()
    assert leases.calls == ["release"]
    await until(lambda: leases.calls == ["release"] * 4)
    await asyncio.sleep(0.1)
    assert (leases.calls, log.getvalue()) == (["release"] * 4, "")


async def test_a_release_that_never_succeeds_is_left_to_time() -> None:
    leases = FakeLeases(unavailable, lease_s=0.1)
    claim, log = claim_on(leases)
    await claim.free()
    await until(lambda: bool(log.getvalue()))
    assert told(log) == [("lease_left_to_expire", "conv_1")]
    assert len(leases.calls) == 11


class HangingLeases(FakeLeases):
    """A database that takes a statement and says nothing, the first time that it is asked."""

    async def renew(self, lease: Lease) -> bool:
        if not self.calls:
            self.calls.append("hang")
            await asyncio.sleep(60)
        return await super().renew(lease)

    async def release(self, lease: Lease) -> None:
        if not self.calls:
            self.calls.append("hang")
            await asyncio.sleep(60)
        await super().release(lease)


async def test_a_renewal_that_hangs_does_not_cost_the_lease() -> None:
    leases = HangingLeases(lease_s=0.3)
    claim, log = claim_on(leases)
    await until(lambda: leases.calls == ["hang", "renew"], within_s=1)
    claim.use_up()
    assert told(log) == [("lease_not_renewed", "conv_1")]


async def test_a_release_that_hangs_keeps_nobody_waiting() -> None:
    leases = HangingLeases(lease_s=0.3)
    claim, _ = claim_on(leases)
    async with asyncio.timeout(1):
        await claim.free()
    await until(lambda: leases.calls == ["hang", "release"])
