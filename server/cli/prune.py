"""`rejoinder prune`: what the server's sweep does, at once and to its end."""

import argparse
import asyncio

from server.app import retention
from server.cli import options
from server.cli.stored import opened_database
from server.config import Config
from server.engine.sweep import Sweep, Swept
from server.store.retention import LOCK


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "prune",
        help="remove what has expired or was deleted",
        description="Let responses expire after `retention_days`, and remove what was deleted and nobody needs. A "
        "turn in flight that continues one of these fails; the server's own sweep waits for it.",
        allow_abbrev=False,
    )
    options.add(parser, "data_dir", "database_url", "config")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    swept = asyncio.run(_prune(options.settings(arguments), is_dry_run=arguments.dry_run))
    if swept is None:
        print("A server is sweeping at this moment; nothing was done.")
        return 1
    print(_told(swept, is_dry_run=arguments.dry_run))
    return 0


async def _prune(config: Config, *, is_dry_run: bool) -> Swept | None:
    async with opened_database(config) as database, database.alone(LOCK) as is_alone:
        sweep = Sweep(retention(config, database, response_grace_s=0))
        if is_dry_run:
            return await sweep.rehearse()
        return await sweep.run() if is_alone else None


def _told(swept: Swept, *, is_dry_run: bool) -> str:
    if is_dry_run:
        return (
            f"Would let {swept.expired} responses expire, and remove at least {swept.responses} responses with their "
            f"items, {swept.links} links of deleted conversations and {swept.keys} idempotency keys."
        )
    return (
        f"Let {swept.expired} responses expire, and removed {swept.responses} responses, {swept.items} items, "
        f"{swept.bodies} bodies of responses that others continue, {swept.links} links and {swept.conversations} "
        f"deleted conversations, and {swept.keys} idempotency keys."
    )
