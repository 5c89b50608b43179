"""What is measured, and how much of it: the workloads, and one function for each table of the report.

Servers take turns within a round, so that a noisy machine hits them alike; a figure is the median of the rounds.
"""

import contextlib
import random
import statistics
import string
from collections.abc import Mapping, Sequence

import msgspec

from tests.bench import load
from tests.bench.consumption import memory_bytes
from tests.bench.gateways import OURS, Bench, Gateway, stored_bytes
from tests.bench.load import Body, Cost
from tests.bench.wiretap import wiretapped

COLD = f"{OURS}, cold"

# Requests a round and how many clients send them; `live200` is one stream of each client.
WORKS: dict[str, tuple[Body, int, int]] = {
    "json": ({"model": "bench", "input": "hi"}, 600, 4),
    "burst200": ({"model": "burst-200", "input": "hi", "stream": True}, 200, 4),
    "live200": ({"model": "live-200-5", "input": "hi", "stream": True}, 64, 32),
}
# Requests a round by the number of turns before each. Without any it is what the others are compared with.
REQUESTS_AT_DEPTH = {0: 200, 1: 200, 10: 200, 20: 200, 100: 100, 300: 50, 1000: 20}
STREAMS_OF_FIRST_BYTE = (1, 32, 256)
STREAMS_HELD = 1000
WORKERS = (1, 2)
REQUESTS_OF_WORKERS = 1500
CLIENTS_OF_WORKERS = 16
WARM_UP_REQUESTS = 50
STATEMENT_TURNS = 20
STATEMENT_DEPTH = 20
INPUT_CHARACTERS = 2000


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on disk that a turn of a chain takes, by the number of the last of 100 turns; `turn_bytes` is its JSON."""

    turn_bytes: int
    by_last_turn: dict[int, float]


def chain_body(turn: int) -> Body:
    """A turn's request with 2 kB of text that does not compress well, as 2 kB of a person's would not."""
    letters = random.Random(turn).choices(string.ascii_letters + " ", k=INPUT_CHARACTERS)
    return {"model": "bench", "input": "".join(letters)}


async def works(gateways: Sequence[Gateway], upstream: Gateway, rounds: int) -> dict[str, dict[str, Cost]]:
    """Each workload's cost, by server; the upstream alone shows what of a wait is not the server's."""
    measured: dict[str, dict[str, Cost]] = {}
    for work, (body, requests, clients) in WORKS.items():
        asked = {gateway: [[body] * requests] * rounds for gateway in (*gateways, upstream)}
        costs = await _interleaved(asked, clients)
        measured[work] = {gateway.name: cost for gateway, cost in costs.items()}
    return measured


async def chains(gateway: Gateway, database_url: str) -> tuple[list[str], Stored]:
    """The response ids of one long chain, and what its turns took on disk while it was made."""
    made: list[str] = []
    by_last_turn: dict[int, float] = {}
    deepest = max(REQUESTS_AT_DEPTH)
    before = await stored_bytes(database_url)
    for first in range(0, deepest, 100):
        bodies = map(chain_body, range(first, first + 100))
        made += await load.chain(gateway.url, bodies, made[-1] if made else None)
        now = await stored_bytes(database_url)
        by_last_turn[first + 100] = (now - before) / 100
        before = now
    async with load.client() as session:
        answer = await load.post(session, gateway.url, chain_body(0))
    return made, Stored(turn_bytes=INPUT_CHARACTERS + len(answer), by_last_turn=by_last_turn)


async def depths(made: Mapping[Gateway, list[str]], other_of_ours: Gateway, rounds: int) -> dict[int, dict[str, Cost]]:
    """The cost of a continuation by the number of turns before it, by server.

    Warm, each server has made the chain itself. Cold, each request continues a response of its own, made by another
    process on the same database, so that nothing that the measured one keeps can help.
    """
    measured: dict[int, dict[str, Cost]] = {}
    for depth, requests in REQUESTS_AT_DEPTH.items():
        asked = {
            gateway: [[load.continuing(ids[depth - 1] if depth else None, chain_body(depth))] * requests] * rounds
            for gateway, ids in made.items()
        }
        measured[depth] = {gateway.name: cost for gateway, cost in (await _interleaved(asked, 1)).items()}
        if depth:
            measured[depth][COLD] = await _cold(made, other_of_ours, depth, rounds)
    return measured


async def _cold(made: Mapping[Gateway, list[str]], other_of_ours: Gateway, depth: int, rounds: int) -> Cost:
    [(ours, ids)] = [(gateway, ids) for gateway, ids in made.items() if gateway.name == OURS]
    requests = REQUESTS_AT_DEPTH[depth]
    last_turn = load.continuing(ids[depth - 2] if depth > 1 else None, chain_body(depth - 1))
    unseen = iter(await load.turns(other_of_ours.url, [last_turn] * requests * rounds))
    bodies = [[load.continuing(next(unseen), chain_body(depth)) for _ in range(requests)] for _ in range(rounds)]
    return load.middle([await load.cost(ours, of_a_round, 1) for of_a_round in bodies])


async def first_bytes(gateways: Sequence[Gateway], upstream: Gateway, rounds: int) -> dict[int, dict[str, float]]:
    """Milliseconds to the first byte of a stream, by the number of streams that begin at once and by server."""
    body: Body = {"model": "live-4-5", "input": "hi", "stream": True}
    measured: dict[int, dict[str, float]] = {}
    for streams in STREAMS_OF_FIRST_BYTE:
        # One stream alone is one sample a time.
        samples = rounds * max(1, 32 // streams)
        waits: dict[str, list[float]] = {gateway.name: [] for gateway in (*gateways, upstream)}
        for _ in range(samples):
            for gateway in (*gateways, upstream):
                waits[gateway.name].append(await load.first_byte_ms(gateway.url, body, streams))
        measured[streams] = {name: statistics.median(times) for name, times in waits.items()}
    return measured


async def first_bytes_among_others(
    gateways: Sequence[Gateway], upstream: Gateway, rounds: int
) -> dict[int, dict[str, float]]:
    """The same while so many streams of a second are open, which begin one by one."""
    body: Body = {"model": "live-20-50", "input": "hi", "stream": True}
    measured: dict[int, dict[str, float]] = {}
    for streams in STREAMS_OF_FIRST_BYTE:
        waits: dict[str, list[float]] = {gateway.name: [] for gateway in (*gateways, upstream)}
        for _ in range(rounds):
            for gateway in (*gateways, upstream):
                waits[gateway.name].append(await load.first_byte_among_others_ms(gateway.url, body, streams, 3))
        measured[streams] = {name: statistics.median(times) for name, times in waits.items()}
    return measured


async def statements(bench: Bench, name: str) -> dict[str, float]:
    """How many statements a fresh server sends a turn: one without history, and one that continues a chain."""
    async with (
        bench.new_database() as database_url,
        wiretapped(database_url) as wiretap,
        bench.started(name, wiretap.url) as gateway,
    ):
        ids = await load.chain(gateway.url, map(chain_body, range(STATEMENT_DEPTH)))
        kinds = {"without history": None, f"at depth {STATEMENT_DEPTH}": ids[-1]}
        counted: dict[str, float] = {}
        for kind, previous in kinds.items():
            before = wiretap.statements
            await load.turns(gateway.url, [load.continuing(previous, chain_body(0))] * STATEMENT_TURNS)
            counted[kind] = (wiretap.statements - before) / STATEMENT_TURNS
        return counted


async def stream_bytes(bench: Bench, name: str) -> float:
    """Resident memory of a fresh server per stream that is open, its first bytes having come."""
    body: Body = {"model": "live-100-1000", "input": "hi", "stream": True}
    async with bench.new_database() as database_url, bench.started(name, database_url) as gateway:
        await load.cost(gateway, [WORKS["burst200"][0]] * WARM_UP_REQUESTS, 4)
        before = memory_bytes(gateway.pid)
        async with load.open_streams(gateway.url, body, STREAMS_HELD):
            return (memory_bytes(gateway.pid) - before) / STREAMS_HELD


async def turns_per_s(bench: Bench, rounds: int) -> dict[int, Cost]:
    """What so many workers do of JSON turns, asked by enough clients to keep all of them at work."""
    body = WORKS["json"][0]
    async with contextlib.AsyncExitStack() as opened:
        gateways = {
            workers: await opened.enter_async_context(
                bench.started(OURS, await opened.enter_async_context(bench.new_database()), workers=workers)
            )
            for workers in WORKERS
        }
        asked = {gateway: [[body] * REQUESTS_OF_WORKERS] * rounds for gateway in gateways.values()}
        costs = await _interleaved(asked, CLIENTS_OF_WORKERS)
        return {workers: costs[gateway] for workers, gateway in gateways.items()}


async def _interleaved(asked: Mapping[Gateway, Sequence[Sequence[Body]]], clients: int) -> dict[Gateway, Cost]:
    """The median cost of the rounds of each server, which take turns, after a warm-up that is not counted."""
    for gateway, rounds in asked.items():
        await load.cost(gateway, rounds[0][:WARM_UP_REQUESTS], clients)
    costs: dict[Gateway, list[Cost]] = {gateway: [] for gateway in asked}
    for number in range(max(map(len, asked.values()))):
        for gateway, rounds in asked.items():
            costs[gateway].append(await load.cost(gateway, rounds[number], clients))
    return {gateway: load.middle(measured) for gateway, measured in costs.items()}
