"""How much one key may ask for: requests in a minute, and turns at once. Time stands still unless a test moves it."""

import asyncio
from typing import cast

import pytest

from server import errors
from server.engine.askers import Asker
from server.engine.quotas import OpenTurns, Requests
from server.errors import ApiError
from server.store.keys import ApiKeys

ADA = Asker(tenant_id=1, key="rjk_adas", requests_per_minute=3, open_turns_max=2)
BOB = Asker(tenant_id=2, key="rjk_bobs", requests_per_minute=3, open_turns_max=2)
UNLIMITED = Asker(tenant_id=3, key="rjk_free")

# The beginning of a minute since the epoch: 28,000,000 of them.
MINUTE_S = 1_680_000_000.0


class Counts:
    """The counts of all processes, as the table of the database has them."""

    def __init__(self) -> None:
        self.requests: dict[tuple[int, str, int], int] = {}
        self.is_down = False

    async def count(self, tenant_id: int, prefix: str, minute: int, requests: int) -> int:
        if self.is_down:
            raise errors.store_unavailable()
        key = (tenant_id, prefix, minute)
        self.requests[key] = self.requests.get(key, 0) + requests
        return self.requests[key]


class Clock:
    now_s = MINUTE_S


def requests_of(counts: Counts, clock: Clock) -> Requests:
    return Requests(cast(ApiKeys, counts), lambda: clock.now_s)


def retry_after(requests: Requests, asker: Asker) -> str | None:
    with pytest.raises(ApiError) as raised:
        requests.admit(asker)
    error = raised.value
    assert (error.status, error.type, error.code) == (429, "rate_limit_error", "rate_limit_exceeded")
    return error.retry_after


async def test_a_request_too_many_may_come_again_in_the_next_minute() -> None:
    clock = Clock()
    requests = requests_of(Counts(), clock)
    for _ in range(3):
        requests.admit(ADA)
    clock.now_s += 18.5
    assert retry_after(requests, ADA) == "42"
    clock.now_s = MINUTE_S + 59.9
    assert retry_after(requests, ADA) == "1"
    clock.now_s = MINUTE_S + 60
    requests.admit(ADA)
    await requests.close()


async def test_each_key_has_its_own_count() -> None:
    requests = requests_of(Counts(), Clock())
    other_key = Asker(tenant_id=1, key="rjk_adas_second", requests_per_minute=3)
    for asker in (ADA, BOB, other_key):
        for _ in range(3):
            requests.admit(asker)
        retry_after(requests, asker)
    await requests.close()


async def test_without_a_limit_nothing_is_counted() -> None:
    counts = Counts()
    requests = requests_of(counts, Clock())
    for _ in range(1000):
        requests.admit(UNLIMITED)
    await requests.close()
    assert counts.requests == {}


async def test_what_others_let_through_counts_once_it_was_told() -> None:
    counts, clock = Counts(), Clock()
    here, there = requests_of(counts, clock), requests_of(counts, clock)
    here.admit(ADA)
    here.admit(ADA)
    there.admit(ADA)
    there.admit(ADA)
    # Four in the minute by now: one too many was let through before they told each other.
    await here.tell()
    await there.tell()
    retry_after(there, ADA)
    here.admit(ADA)
    await here.tell()
    retry_after(here, ADA)
    assert sum(counts.requests.values()) == 5
    await here.close()
    await there.close()


async def test_a_refused_request_is_not_counted() -> None:
    counts = Counts()
    requests = requests_of(counts, Clock())
    for _ in range(3):
        requests.admit(ADA)
    for _ in range(10):
        retry_after(requests, ADA)
    await requests.close()
    assert counts.requests == {(1, "rjk_adas", 28_000_000): 3}


async def test_what_could_not_be_told_is_told_later() -> None:
    counts = Counts()
    requests = requests_of(counts, Clock())
    requests.admit(ADA)
    counts.is_down = True
    await requests.tell()
    assert counts.requests == {}
    counts.is_down = False
    requests.admit(ADA)
    await requests.tell()
    await requests.tell()
    assert counts.requests == {(1, "rjk_adas", 28_000_000): 2}
    await requests.close()


async def test_the_end_tells_what_is_left() -> None:
    counts = Counts()
    requests = requests_of(counts, Clock())
    requests.admit(ADA)
    await asyncio.sleep(0)
    await requests.close()
    assert counts.requests == {(1, "rjk_adas", 28_000_000): 1}


# --- open turns


def test_turns_of_a_key_are_counted_while_they_are_open() -> None:
    turns = OpenTurns(0)
    for _ in range(2):
        with turns.one_more(ADA):
            pass
    with pytest.raises(ApiError) as raised, turns.one_more(ADA):
        pass
    assert (raised.value.status, raised.value.code, raised.value.retry_after) == (429, "rate_limit_exceeded", "1")
    with turns.one_more(BOB):
        pass
    assert turns.count == 3
    turns.give_back(ADA)
    with turns.one_more(ADA):
        pass
    assert turns.count == 3


def test_a_turn_that_does_not_begin_is_given_back() -> None:
    turns = OpenTurns(1)
    for _ in range(3):
        with pytest.raises(ValueError, match="no"), turns.one_more(ADA):
            raise ValueError("no")
    assert turns.count == 0


def test_all_together_are_bounded_too() -> None:
    turns = OpenTurns(2)
    for asker in (UNLIMITED, BOB):
        with turns.one_more(asker):
            pass
    with pytest.raises(ApiError) as raised, turns.one_more(ADA):
        pass
    assert (raised.value.status, raised.value.code) == (503, "server_is_overloaded")
