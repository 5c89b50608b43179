"""`rejoinder migrate`: bring the database's schema up to date, for those who start servers with --no-migrate."""

import argparse
import asyncio

from server.cli import options
from server.config import Config
from server.embedded import EmbeddedPostgres
from server.store import database


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "migrate",
        help="bring the database's schema up to date",
        description="Bring the schema of --database-url, or of the embedded Postgres of --data-dir, up to date.",
        allow_abbrev=False,
    )
    options.add(parser, "data_dir", "database_url", "config")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    asyncio.run(_migrate(options.settings(arguments)))
    print("The schema is up to date.")
    return 0


async def _migrate(config: Config) -> None:
    if config.database_url is not None:
        await database.migrate(config.database_url)
        return
    postgres = EmbeddedPostgres(config.data_dir)
    try:
        await database.migrate(await postgres.start())
    finally:
        await postgres.stop()
