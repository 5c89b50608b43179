"""`rejoinder migrate`: bring the database's schema up to date, for those who start servers with --no-migrate."""

import argparse
import asyncio
import re

from server.cli import options
from server.config import Config, ConfigError
from server.embedded import EmbeddedPostgres
from server.store import database
from server.store.roles import make_run_role


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "migrate",
        help="bring the database's schema up to date",
        description="Bring the schema of --database-url, or of the embedded Postgres of --data-dir, up to date.",
        allow_abbrev=False,
    )
    options.add(parser, "data_dir", "database_url", "config")
    parser.add_argument(
        "--run-role",
        type=_role,
        metavar="NAME",
        help="also make this role where it is not there, and grant it what a server needs that runs with --no-migrate",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    config = options.settings(arguments)
    if arguments.run_role is None:
        asyncio.run(_migrate(config))
        print("The schema is up to date.")
        return 0
    if config.database_url is None:
        raise ConfigError("the embedded Postgres has a role for servers; --run-role is for one of --database-url")
    is_made = asyncio.run(_migrate_with_role(config, config.database_url, arguments.run_role))
    made = "was made, and has no password yet" if is_made else "was there"
    print(f"The schema is up to date. The role {arguments.run_role} {made}.")
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


async def _migrate_with_role(config: Config, url: str, role: str) -> bool:
    await database.migrate(url)
    opened = database.Database.open(url, pool_size=1, pgbouncer=config.pgbouncer)
    try:
        return await make_run_role(opened, role)
    finally:
        await opened.close()


def _role(text: str) -> str:
    # It becomes part of a statement.
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", text):
        raise argparse.ArgumentTypeError("a role's name is lower-case letters, digits and underscores")
    return text
