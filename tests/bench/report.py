"""The figures of one run, and the tables of Markdown that show them."""

import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from tests.bench.gateways import MOCK, OURS, PEER
from tests.bench.load import Cost
from tests.bench.measures import COLD, STREAMS_HELD, Stored

# Of the peer's CPU time, by workload; continuations are warm.
BUDGETS = {"json": 1.0, "burst200": 0.4, "live200": 1.0}
BUDGETS_AT_DEPTH = {1: 0.8, 20: 0.6, 100: 0.25, 300: 0.15}
REHYDRATED = (1, 10, 100, 1000)
NONE = "-"


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Everything is by server in the end; depths are numbers of turns before, first bytes by streams at once.

    `first_bytes` are milliseconds, of streams that begin at once, and beside them of such as begin one by one.
    `statements` are those a turn, `stream_bytes` the memory of one open stream, `turns_per_s` JSON turns of our server
    by its workers.
    """

    date: str
    machine: str
    postgres: str
    rounds: int
    works: dict[str, dict[str, Cost]]
    depths: dict[int, dict[str, Cost]]
    first_bytes: dict[int, dict[str, float]]
    first_bytes_among_others: dict[int, dict[str, float]]
    statements: dict[str, dict[str, float]]
    stored: dict[str, Stored]
    stream_bytes: dict[str, float]
    turns_per_s: dict[int, Cost]


def machine() -> str:
    """The kind of machine, by which nobody can tell which one it was."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{platform.system()}, {os.cpu_count()} x {models[0] if models else platform.machine()}"


def tables(results: Results) -> str:
    """All of it, as Markdown."""
    title = (
        f"{results.date} · {results.machine} · Python {platform.python_version()} · PostgreSQL {results.postgres} · "
        f"medians of {results.rounds} rounds"
    )
    parts = [
        title, _costs(results), _rehydration(results), _first_bytes(results, results.first_bytes, "streams at once"),
        _first_bytes(results, results.first_bytes_among_others, "streams open"), _per_turn(results), _workers(results),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _costs(results: Results) -> str:
    head = ["work", f"{OURS}, CPU ms", f"{PEER}, CPU ms", "ratio", "budget", f"{OURS}, wait ms", f"{PEER}, wait ms"]
    rows = [
        [work, *_compared(costs, OURS, BUDGETS.get(work)), _ms(costs.get(MOCK))]
        for work, costs in results.works.items()
    ]
    for depth, costs in results.depths.items():
        if depth in BUDGETS_AT_DEPTH:
            rows.append([f"depth{depth}", *_compared(costs, OURS, BUDGETS_AT_DEPTH[depth]), NONE])
            rows.append([f"depth{depth}, cold", *_compared(costs, COLD, None), NONE])
    return _table([*head, f"{MOCK}, wait ms"], rows)


def _compared(costs: Mapping[str, Cost], ours: str, budget: float | None) -> list[str]:
    one, peer = costs[ours], costs.get(PEER)
    return [
        f"{one.cpu_ms:.2f}",
        f"{peer.cpu_ms:.2f}" if peer else NONE,
        f"{one.cpu_ms / peer.cpu_ms:.2f}" if peer else NONE,
        NONE if budget is None else f"{budget:.2f}",
        _ms(one),
        _ms(peer),
    ]


def _rehydration(results: Results) -> str:
    """What the turns before a continuation add to it: its cost without that of a turn that has none before it."""
    names = [name for name in (OURS, COLD, PEER) if name in results.depths[REHYDRATED[0]]]
    head = ["turns before", *(f"{name}, CPU ms" for name in names), *(f"{name}, wait ms" for name in names)]
    rows = []
    for depth in REHYDRATED:
        costs = [results.depths[depth][name] for name in names]
        bases = [results.depths[0][OURS if name == COLD else name] for name in names]
        pairs = list(zip(costs, bases, strict=True))
        cpus = [f"+{max(cost.cpu_ms - base.cpu_ms, 0):.2f}" for cost, base in pairs]
        rows.append([str(depth), *cpus, *(f"+{max(cost.wait_ms - base.wait_ms, 0):.1f}" for cost, base in pairs)])
    return _table(head, rows)


def _first_bytes(results: Results, by_streams: Mapping[int, Mapping[str, float]], streams_are: str) -> str:
    """Added to what a client waits without a server in between."""
    names = _servers(results)
    rows = [
        [str(streams), *(f"+{waits[name] - waits[MOCK]:.1f}" for name in names), f"{waits[MOCK]:.1f}"]
        for streams, waits in by_streams.items()
    ]
    return _table([streams_are, *(f"{name}, ms to the first byte" for name in names), MOCK], rows)


def _per_turn(results: Results) -> str:
    names = _servers(results)
    first = results.stored[names[0]]
    rows = [
        [f"statements a turn, {kind}", *(f"{results.statements[name][kind]:.2f}" for name in names)]
        for kind in results.statements[names[0]]
    ]
    rows += [
        [
            f"bytes on disk a turn, up to turn {last}",
            *(f"{results.stored[name].by_last_turn[last]:.0f}" for name in names),
        ]
        for last in first.by_last_turn
        if last in (100, 300, 1000)
    ]
    rows.append(["bytes of such a turn's JSON", *(f"{results.stored[name].turn_bytes}" for name in names)])
    memory = [f"{results.stream_bytes[name] / 1000:.1f}" for name in names]
    rows.append([f"kB of memory an open stream, {STREAMS_HELD} open", *memory])
    return _table(["", *names], rows)


def _workers(results: Results) -> str:
    rows = [
        [str(workers), f"{cost.per_s:.0f}", f"{cost.cpu_ms:.2f}", f"{cost.wait_ms:.1f}"]
        for workers, cost in results.turns_per_s.items()
    ]
    return _table(["workers", "JSON turns per second", "CPU ms a turn", "wait ms"], rows)


def _servers(results: Results) -> list[str]:
    return [name for name in (OURS, PEER) if name in results.stored]


def _ms(cost: Cost | None) -> str:
    return NONE if cost is None else f"{cost.wait_ms:.1f}"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = list(head)
    lines = [columns, ["---", *("---:" for _ in columns[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
