"""A turn in flight: what its client gets, and what becomes of it when the client leaves."""

import asyncio
import itertools

import pytest

from server import errors
from server.engine.run import Heartbeat, Run
from server.errors import ApiError


def new_run(*, is_stream: bool = True, stream_bytes_max: int = 100) -> tuple[Run, list[Run]]:
    left: list[Run] = []
    return Run(is_stream=is_stream, on_leave=left.append, stream_bytes_max=stream_bytes_max), left


async def test_what_has_come_is_read_in_one_piece() -> None:
    run, _ = new_run()
    run.send(b"a")
    run.send(b"")
    run.send(b"b")
    assert await run.read() == b"ab"
    reading = asyncio.ensure_future(run.read())
    await asyncio.sleep(0)
    assert not reading.done()
    run.send(b"c")
    assert await reading == b"c"
    run.end()
    assert await run.read() == b""


async def test_an_error_is_the_whole_answer() -> None:
    run, left = new_run()
    run.end(errors.upstream_unreachable())
    with pytest.raises(ApiError):
        await run.read()
    run.leave()
    assert left == []


async def test_a_client_that_leaves_is_told_of_once_and_sent_nothing() -> None:
    run, left = new_run()
    run.send(b"a")
    run.leave()
    run.leave()
    run.send(b"b")
    assert left == [run]
    assert await run.read() == b""


async def test_a_slow_reader_is_let_go_of() -> None:
    run, left = new_run(stream_bytes_max=4)
    run.send(b"1234")
    assert left == []
    run.send(b"5")
    assert left == [run]
    assert await run.read() == b""


async def test_a_whole_answer_is_never_too_large_for_its_reader() -> None:
    run, left = new_run(is_stream=False, stream_bytes_max=4)
    run.send(b"12345678")
    assert left == []
    assert await run.read() == b"12345678"


async def test_reading_again_makes_room() -> None:
    run, left = new_run(stream_bytes_max=4)
    for _ in range(5):
        run.send(b"123")
        assert await run.read() == b"123"
    assert left == []


async def test_who_joins_gets_all_that_was_sent_and_then_what_comes() -> None:
    run, _ = new_run()
    run.keep()
    run.send(b"a")
    assert await run.read() == b"a"
    run.send(b"b")
    other = run.join()
    assert other is not None
    assert other.is_stream
    assert await other.read() == b"ab"
    reading = asyncio.ensure_future(other.read())
    await asyncio.sleep(0)
    assert not reading.done()
    run.send(b"c")
    assert await reading == b"c"
    run.end()
    assert await other.read() == b""
    assert await run.read() == b"bc"
    assert run.join() is None


async def test_who_joins_gets_the_same_error() -> None:
    run, _ = new_run()
    run.keep()
    other = run.join()
    assert other is not None
    error = errors.upstream_unreachable()
    run.end(error)
    assert not await other.begins()
    assert await run.ended() is error
    with pytest.raises(ApiError) as refusal:
        await other.read()
    assert refusal.value is error


async def test_nobody_joins_a_run_whose_beginning_is_not_kept_or_that_is_cancelled() -> None:
    unkept, _ = new_run()
    assert unkept.join() is None
    long, _ = new_run(stream_bytes_max=4)
    long.keep()
    long.send(b"1234")
    assert long.join() is not None
    assert await long.read() == b"1234"
    long.send(b"5")
    assert long.join() is None
    cancelled, _ = new_run()
    cancelled.keep()
    cancelled.cancel()
    assert cancelled.join() is None


async def test_a_turn_is_alone_when_the_last_who_followed_it_has_left() -> None:
    run, left = new_run()
    run.keep()
    others = [run.join(), run.join()]
    run.leave()
    for other in others:
        assert left == []
        assert other is not None
        other.leave()
        other.leave()
    assert left == [run]


async def test_who_joins_a_turn_that_was_left_keeps_it_from_being_cancelled() -> None:
    run, left = new_run()
    run.keep()
    task = run.start(asyncio.sleep(0.1))
    run.leave()
    run.cancel_after(0.01)
    other = run.join()
    await task
    assert other is not None
    other.leave()
    assert left == [run, run]


async def test_a_slow_reader_who_joined_is_let_go_of_alone() -> None:
    run, left = new_run(stream_bytes_max=4)
    run.keep()
    run.send(b"1234")
    assert await run.read() == b"1234"
    other = run.join()
    assert other is not None
    let_go = []
    other.on_let_go = lambda: let_go.append(other)
    for chunk in (b"5", b"678", b"9"):
        assert let_go == []
        run.send(chunk)
        assert await run.read() == chunk
    assert let_go == [other]
    assert await other.read() == b""
    assert left == []


async def test_a_run_can_be_cancelled_until_it_is_closed() -> None:
    ends = []

    async def work(run: Run, *, closes: bool) -> None:
        try:
            if closes:
                run.close()
            await asyncio.sleep(0.05)
            ends.append("done")
        except asyncio.CancelledError:
            ends.append("cancelled")

    for closes in (False, True):
        run, _ = new_run()
        task = run.start(work(run, closes=closes))
        await asyncio.sleep(0)
        run.cancel()
        await task
    assert ends == ["cancelled", "done"]


async def test_a_run_that_is_cancelled_at_once_still_takes_its_first_step() -> None:
    """Only there can it see that it was cancelled, and give up what it holds."""
    seen = []

    async def work() -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            seen.append("cancelled")

    run, _ = new_run()
    task = run.start(work())
    run.cancel()
    await task
    assert seen == ["cancelled"]


async def test_a_detached_run_is_cancelled_after_its_time_unless_it_has_ended() -> None:
    run, _ = new_run()
    task = run.start(asyncio.sleep(5))
    run.cancel_after(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    ended, _ = new_run()
    waiting = ended.start(asyncio.sleep(0.05))
    ended.cancel_after(0.01)
    ended.end()
    await waiting


async def test_a_silent_run_beats_first_after_the_wait_and_then_at_the_interval() -> None:
    run, _ = new_run()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    beats: list[float] = []

    def beat() -> None:
        beats.append(loop.time() - begun)
        run.send(b".")

    with Heartbeat(run, beat, first_wait_s=0.1, interval_s=0.05):
        await asyncio.sleep(0.22)
    assert beats[0] >= 0.1
    assert 2 <= len(beats) <= 3
    assert all(later - earlier >= 0.05 for earlier, later in itertools.pairwise(beats))
    count = len(beats)
    await asyncio.sleep(0.1)
    assert len(beats) == count


async def test_a_run_that_speaks_does_not_beat() -> None:
    run, _ = new_run()
    beats: list[None] = []
    with Heartbeat(run, lambda: beats.append(None), first_wait_s=0.5, interval_s=0.5):
        for _ in range(5):
            run.send(b"x")
            await asyncio.sleep(0.01)
    assert beats == []
