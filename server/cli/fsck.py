"""`rejoinder fsck`: whether what is stored is whole. It reads, and changes nothing."""

import argparse
import asyncio
from collections.abc import Iterator

from server.cli import options
from server.cli.stored import opened_database
from server.config import Config
from server.store.checks import TIMEOUT_S, Checks, Finding


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "fsck",
        help="check what is stored",
        description="Check chains, positions, links and leases, and say what is wrong: then the exit code is 1. "
        "Nothing is changed; servers may go on.",
        allow_abbrev=False,
    )
    options.add(parser, "data_dir", "database_url", "config")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_check(options.settings(arguments)))


async def _check(config: Config) -> int:
    async with opened_database(config, TIMEOUT_S) as database:
        checks = Checks(database)
        for name, count in (await checks.counts()).items():
            print(f"{count} {name}")
        leases = await checks.expired_leases()
        if leases is not None:
            print(*_told(leases), sep="\n")
        faults = await checks.faults()
    for fault in faults:
        print(*_told(fault), sep="\n")
    print(f"{len(faults)} kinds of faults were found." if faults else "No fault was found.")
    return 1 if faults else 0


def _told(finding: Finding) -> Iterator[str]:
    yield f"{finding.count} {finding.what}:"
    for tenant_id, place in finding.places:
        yield f"  tenant {tenant_id}: {place}"
    if finding.count > len(finding.places):
        yield f"  and {finding.count - len(finding.places)} more"
