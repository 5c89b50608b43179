"""Coroutines that are begun by one and awaited by another."""

import asyncio

import pytest

from server.engine.begun import begun


async def test_what_need_not_wait_is_done_at_once() -> None:
    done: list[str] = []

    async def work() -> None:
        done.append("a")

    assert begun(work()) is None
    assert done == ["a"]


async def test_the_rest_of_what_waits_is_done_by_who_awaits_it() -> None:
    """More than one wait, the first of them over before anybody awaits the rest."""
    done: list[str] = []
    gates = [asyncio.Event(), asyncio.Event()]

    async def work() -> None:
        for gate in gates:
            await gate.wait()
            done.append("a")

    rest = begun(work())
    assert (rest is not None, done) == (True, [])
    gates[0].set()
    await asyncio.sleep(0)
    assert rest is not None

    async def finish() -> None:
        await rest

    finishing = asyncio.create_task(finish())
    await asyncio.sleep(0.01)
    assert (done, finishing.done()) == (["a"], False)
    gates[1].set()
    await asyncio.wait_for(finishing, 5)
    assert done == ["a", "a"]


@pytest.mark.parametrize("waits", [0, 1])
async def test_what_goes_wrong_is_raised_to_who_awaits(waits: int) -> None:
    async def work() -> None:
        for _ in range(waits):
            await asyncio.sleep(0)
        raise KeyError("wrong")

    rest = begun(work())
    assert rest is not None
    with pytest.raises(KeyError, match="wrong"):
        await rest


async def test_who_awaits_may_be_cancelled_and_the_work_is_told() -> None:
    told: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    rest = begun(work())
    assert rest is not None

    async def finish() -> None:
        await rest

    finishing = asyncio.create_task(finish())
    await asyncio.sleep(0)
    finishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finishing
    assert told == ["cancelled"]
