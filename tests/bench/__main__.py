"""`make bench`: measure our server, the upstream alone and, where there is one, the peer, and report it.

The tables go to standard output, what is being measured to standard error, and the folder `--output` gets the tables,
the figures as JSON and the plot.
"""

import argparse
import asyncio
import contextlib
import os
import resource
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tests.bench import measures, plot, report
from tests.bench.gateways import OURS, Bench, upstream_process
from tests.bench.report import Results
from tests.e2e import processes
from tests.postgres import connected, embedded_server, postgres_server


async def measured(rounds: int, peer: Path | None, folder: Path) -> Results:
    async with contextlib.AsyncExitStack() as opened:
        source = postgres_server if os.environ.get("TEST_DATABASE_URL") else embedded_server
        postgres = await opened.enter_async_context(source())
        upstream = opened.enter_context(upstream_process(folder))
        bench = Bench(postgres, folder, upstream.url, peer)
        async with connected(postgres.url) as connection:
            version = str(await connection.fetchval("show server_version"))
        async with contextlib.AsyncExitStack() as serving:
            databases = {name: await serving.enter_async_context(bench.new_database()) for name in bench.names}
            gateways = [await serving.enter_async_context(bench.started(name, url)) for name, url in databases.items()]
            other_of_ours = await serving.enter_async_context(bench.started(OURS, databases[OURS]))
            tell("the workloads")
            works = await measures.works(gateways, upstream, rounds)
            tell("the wait for first bytes")
            first_bytes = await measures.first_bytes(gateways, upstream, rounds)
            among_others = await measures.first_bytes_among_others(gateways, upstream, rounds)
            chains, stored = {}, {}
            for gateway in gateways:
                tell(f"a chain of {gateway.name}")
                chains[gateway], stored[gateway.name] = await measures.chains(gateway, databases[gateway.name])
            tell("continuations")
            depths = await measures.depths(chains, other_of_ours, rounds)
        tell("statements")
        statements = {name: await measures.statements(bench, name) for name in bench.names}
        tell("workers")
        turns_per_s = await measures.turns_per_s(bench, rounds)
        tell("open streams")
        stream_bytes = {name: await measures.stream_bytes(bench, name) for name in bench.names}
    return Results(
        date=datetime.now(UTC).date().isoformat(),
        machine=report.machine(),
        postgres=version,
        rounds=rounds,
        works=works,
        depths=depths,
        first_bytes=first_bytes,
        first_bytes_among_others=among_others,
        statements=statements,
        stored=stored,
        stream_bytes=stream_bytes,
        turns_per_s=turns_per_s,
    )


def tell(what: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} measuring {what}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", type=Path, help="the executable agentic-server, to measure it too")
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    arguments = parser.parse_args()
    # A stream is an open file of the client, two of the server and one of the upstream.
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    peer = arguments.peer and arguments.peer.absolute()
    with processes.data_folder() as folder:
        results = asyncio.run(measured(arguments.rounds, peer, folder))
    tables = report.tables(results)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "tables.md").write_text(tables)
    (arguments.output / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    (arguments.output / "cost.svg").write_text(plot.cost_by_depth(results.depths))
    print(tables)


if __name__ == "__main__":
    main()
