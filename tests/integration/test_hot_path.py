"""What a turn costs, counted in calls, statements and bytes: a guard that no busy machine can trip.

Calls are those of Python functions in `server/`, each resumption of a coroutine being one. Their bounds are what was
counted on Python 3.11 when they were written, and a tenth more; newer versions, which inline comprehensions, count
less. Whoever makes the server do less lowers the bound, whoever has to raise it says why. Times are `make bench`'s.
"""

import contextlib
import json
import random
import re
import string
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import server
from server.mock import Reply
from tests.application import Application, message, reply, running
from tests.postgres import connected, recorded_statements

CALLS_OF_A_JSON_TURN_MAX = 590
CALLS_OF_A_LARGER_BURST_MAX = 50
CALLS_OF_A_DELTA_OF_ITS_OWN_MAX = 26.4
CALLS_OF_A_REPLAYED_ITEM_MAX = 47.9
CALLS_OF_MORE_PARTS_MAX = 10

USAGE = {
    "input_tokens": 5,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 12,
}

SERVER = str(Path(server.__file__).parent)
MOCK = str(Path(server.__file__).parent / "mock.py")


class Calls:
    count = 0


@contextlib.contextmanager
def counted_calls() -> Iterator[Calls]:
    """Counts while it lasts, in this thread, in which the server runs as well."""
    calls = Calls()

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(SERVER) and file != MOCK:
            calls.count += 1

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


async def calls_of_a_turn(application: Application, answer: Reply, **members: Any) -> int:
    """The calls of one such turn. One before it is not counted: what is done once is none of a turn's cost."""
    application.mock.replies = [answer, answer]
    await application.turn(**members)
    await application.read_keys()
    with counted_calls() as calls:
        await application.turn(**members)
    return calls.count


def streamed(deltas: int, *, is_burst: bool) -> Reply:
    """A message of so many deltas: in one write, or each in a write of its own that nothing joins to the next."""
    frames = reply(message("Hi."), stream=True).sse_chunks
    assert frames is not None
    [at] = [number for number, frame in enumerate(frames) if "output_text.delta" in frame]
    frames = [*frames[:at], *[frames[at]] * deltas, *frames[at + 1 :]]
    numbered = [re.sub(r'"sequence_number": \d+', f'"sequence_number": {n}', frame) for n, frame in enumerate(frames)]
    return Reply(sse_chunks=["".join(numbered)]) if is_burst else Reply(sse_chunks=numbered, chunk_delay_ms=2)


async def chain(application: Application, turns: int) -> list[str]:
    """The response ids of a chain in which every turn brings an item and makes one."""
    ids: list[str] = []
    for _ in range(turns):
        application.mock.replies = [reply(message("Hi."), stream=False)]
        previous = {"previous_response_id": ids[-1]} if ids else {}
        ids.append((await application.turn(input="One", **previous))["id"])
    return ids


async def test_a_json_turn_makes_few_calls(application: Application) -> None:
    answer = reply(message("Hi."), stream=False)
    assert 100 < await calls_of_a_turn(application, answer, input="One") <= CALLS_OF_A_JSON_TURN_MAX


async def test_a_delta_of_its_own_makes_few_calls(application: Application) -> None:
    few, many = await calls_of_streams(application, is_burst=False)
    assert 1 < (many - few) / 100 <= CALLS_OF_A_DELTA_OF_ITS_OWN_MAX


async def test_the_deltas_of_a_burst_are_taken_together(application: Application) -> None:
    """But for those at the borders of what the upstream's socket gives at once."""
    few, many = await calls_of_streams(application, is_burst=True)
    assert abs(many - few) <= CALLS_OF_A_LARGER_BURST_MAX


async def calls_of_streams(application: Application, *, is_burst: bool) -> list[int]:
    """The calls of a stream of twenty deltas, and of one of a hundred more."""
    return [
        await calls_of_a_turn(application, streamed(deltas, is_burst=is_burst), input="One", stream=True)
        for deltas in (20, 120)
    ]


async def test_a_replayed_item_makes_few_calls(emptied_database_url: str) -> None:
    async with running(emptied_database_url, history_cache_bytes=0) as application:
        few, many = await calls_of_continuations(application)
    # Twenty turns of two items each.
    assert 1 < (many - few) / 40 <= CALLS_OF_A_REPLAYED_ITEM_MAX


async def test_an_item_that_is_remembered_makes_none(application: Application) -> None:
    """But for a look into each of the few parts that a history is in."""
    few, many = await calls_of_continuations(application)
    assert abs(many - few) <= CALLS_OF_MORE_PARTS_MAX


async def calls_of_continuations(application: Application) -> list[int]:
    """The calls of a turn behind twenty others, and of one behind forty."""
    ids = await chain(application, 40)
    answer = reply(message("Hi."), stream=False)
    return [
        await calls_of_a_turn(application, answer, input="One", previous_response_id=ids[depth - 1])
        for depth in (20, 40)
    ]


async def test_of_a_chain_that_servers_share_each_reads_what_the_others_made(
    application: Application, emptied_database_url: str
) -> None:
    answer = reply(message("Hi."), stream=False)
    counted = []
    async with running(emptied_database_url) as other:
        for turns in (20, 40):
            *_, ours = await chain(application, turns)
            other.mock.replies = [answer]
            theirs = (await other.turn(input="Two", previous_response_id=ours))["id"]
            application.mock.replies = [answer]
            with counted_calls() as calls:
                await application.turn(input="Three", previous_response_id=theirs)
            counted.append(calls.count)
            sent = application.mock.posts[-1].json["input"]
            assert [one["role"] for one in sent] == ["user", "assistant"] * (turns + 1) + ["user"]
            assert [sent[-3]["content"], sent[-1]["content"]] == ["Two", "Three"]
    # Two turns are new, and so are looked for in each part.
    assert abs(counted[1] - counted[0]) <= 2 * CALLS_OF_MORE_PARTS_MAX


async def test_a_turn_asks_the_same_of_the_database_at_any_depth(application: Application) -> None:
    ids = await chain(application, 30)
    application.mock.replies = [reply(message("Hi."), stream=False)] * 2
    counted = []
    for depth in (1, 30):
        with recorded_statements(application.database) as statements:
            await application.turn(input="One", previous_response_id=ids[depth - 1])
        counted.append(len(statements))
    assert counted == [2, 2]


async def test_a_turn_takes_as_many_bytes_at_any_depth(application: Application, emptied_database_url: str) -> None:
    application.mock.replies = []
    stored = await bytes_of_turns(emptied_database_url, await chain(application, 40))
    # The first names no parent, and its output could keep the upstream's own short id.
    assert stored[0] < stored[1]
    assert len(set(stored[1:])) == 1


async def test_a_turn_takes_little_more_than_its_own_text(application: Application, emptied_database_url: str) -> None:
    """The budget of DESIGN 9: what is stored is 1.3 times the turn's JSON at most."""
    letters = random.Random(6)
    said, answered = ("".join(letters.choices(string.ascii_letters, k=4000)) for _ in range(2))
    application.mock.replies = [reply(message(answered), stream=False, usage=USAGE)]
    asked = {"model": "m", "input": [{"type": "message", "role": "user", "content": said}]}
    answer = await application.post(asked)
    turn_bytes = len(json.dumps(asked["input"][0])) + len(answer.content)
    [stored] = await bytes_of_turns(emptied_database_url, [answer.json()["id"]])
    assert len(said) + len(answered) < stored <= 1.3 * turn_bytes


async def bytes_of_turns(database_url: str, ids: Sequence[str]) -> list[int]:
    """What the rows of each of these responses take, without indexes and padding of pages."""
    query = """
        select pg_column_size(responses) + pg_column_size(response_bodies)
            + (select sum(pg_column_size(items)) from items where response_id = responses.id)
            + coalesce((select pg_column_size(usage) from usage where response_public_id = public_id), 0)
        from responses join response_bodies on response_id = id where public_id = $1
    """
    async with connected(database_url) as connection:
        return [int(await connection.fetchval(query, public_id)) for public_id in ids]
