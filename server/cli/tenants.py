"""`rejoinder tenants erase`: remove all that a tenant has, but for what its turns cost."""

import argparse
import asyncio
import sys

from server.cli import options
from server.cli.stored import opened_database
from server.config import Config
from server.store.erasure import Erasure


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("tenants", help="look after tenants", allow_abbrev=False)
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    erase = actions.add_parser(
        "erase",
        help="remove all that a tenant has",
        description="Remove responses, items, conversations and idempotency keys of a tenant, for good. What its turns "
        "cost stays, without the ids of their responses. Its turns in flight fail.",
        allow_abbrev=False,
    )
    options.add(erase, "data_dir", "database_url", "config")
    erase.add_argument("tenant", type=int, metavar="TENANT", help="the tenant's number")
    erase.add_argument("--yes", action="store_true", help="do it; without this nothing is removed")
    erase.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    counts = asyncio.run(_erase(options.settings(arguments), arguments.tenant, is_meant=arguments.yes))
    told = ", ".join(f"{count} {table}" for table, count in counts.items())
    if not arguments.yes:
        print(f"rejoinder: nothing was removed; with --yes this would be: {told}", file=sys.stderr)
        return 1
    print(f"Removed of tenant {arguments.tenant}: {told}.")
    return 0


async def _erase(config: Config, tenant_id: int, *, is_meant: bool) -> dict[str, int]:
    async with opened_database(config) as database:
        erasure = Erasure(database)
        counts = await erasure.counts(tenant_id)
        if is_meant:
            await erasure.erase(tenant_id)
        return counts
