"""`rejoinder fsck`: whether what is stored is whole. It reads, and changes nothing."""

import argparse
import asyncio
from collections import Counter
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
    counts: Counter[str] = Counter()
    leases: list[Finding] = []
    faults: list[Finding] = []
    async with opened_database(config, statement_timeout_s=TIMEOUT_S) as database:
        checks = Checks(database)
        for tenant_id in await checks.tenants():
            counts.update(await checks.counts(tenant_id))
            if expired := await checks.expired_leases(tenant_id):
                leases.append(expired)
            faults += await checks.faults(tenant_id)
    for name, count in counts.items():
        print(f"{count} {name}")
    for finding in (*leases, *faults):
        print(*_told(finding), sep="\n")
    kinds = len({fault.what for fault in faults})
    print(f"{kinds} kinds of faults were found." if faults else "No fault was found.")
    return 1 if faults else 0


def _told(finding: Finding) -> Iterator[str]:
    yield f"{finding.count} {finding.what}:"
    for place in finding.places:
        yield f"  tenant {finding.tenant_id}: {place}"
    if finding.count > len(finding.places):
        yield f"  and {finding.count - len(finding.places)} more"
