"""`rejoinder keys`: make, list, revoke and replace the API keys of tenants. Running servers learn of it in seconds."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime

from server.app import refuse_unheld_role
from server.cli import options
from server.cli.stored import opened_database
from server.config import Config, ConfigError
from server.protocol import ids, keys
from server.store.database import Database
from server.store.keys import ApiKeys

Work = Callable[[ApiKeys, argparse.Namespace], Awaitable[None]]

_KEPT_NOWHERE = "Keep it: it is not shown again."


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "keys",
        help="make, list, revoke or replace API keys",
        description="API keys, each of a tenant, who sees nothing of any other. The first one closes a server that was "
        "open to all. Running servers learn of every change within 5 seconds.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    create = _add_action(actions, "create", _create, "make a key, and print it, which happens once")
    create.add_argument("--tenant", required=True, metavar="NAME", help="whose it is; made where it is not there")
    create.add_argument("--if-first", action="store_true", help="do nothing where there is any key")
    _add_action(actions, "list", _list, "list all keys by their beginnings")
    for name, work, help_text in (
        ("revoke", _revoke, "end a key"),
        ("rotate", _rotate, "end a key, and print another one in its place"),
    ):
        _add_action(actions, name, work, help_text).add_argument(
            "key", metavar="KEY", help="its beginning, as `list` shows it"
        )


def _add_action(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, work: Work, help_text: str
) -> argparse.ArgumentParser:
    action = actions.add_parser(name, help=help_text, description=f"{help_text.capitalize()}.", allow_abbrev=False)
    options.add(action, "data_dir", "database_url", "config")
    action.set_defaults(run=run, work=work)
    return action


def run(arguments: argparse.Namespace) -> int:
    asyncio.run(_run(options.settings(arguments), arguments))
    return 0


async def _run(config: Config, arguments: argparse.Namespace) -> None:
    async with opened_database(config, may_migrate=True) as database:
        if arguments.work is _create:
            await _refuse_unheld_role(config, database, arguments.tenant)
        work: Work = arguments.work
        await work(ApiKeys(database), arguments)


async def _refuse_unheld_role(config: Config, database: Database, tenant: str) -> None:
    """Before there are two tenants, whom Postgres would not set apart; raises ConfigError."""
    names = {known.name for known in (await ApiKeys(database).read()).tenants.values()}
    await refuse_unheld_role(config, database, len(names | {tenant}))


async def _create(api_keys: ApiKeys, arguments: argparse.Namespace) -> None:
    tenant: str = arguments.tenant
    if tenant != tenant.strip() or not ids.is_usable(tenant):
        raise ConfigError("the name of a tenant is 1 to 256 characters, no control characters and no space at its ends")
    key = keys.new_key()
    if await api_keys.create(key, tenant, is_first_only=arguments.if_first):
        _show(key, f"A key of the tenant {tenant}. {_KEPT_NOWHERE}")
    else:
        print("There is a key already; none was made.", file=sys.stderr)


async def _list(api_keys: ApiKeys, _: argparse.Namespace) -> None:
    rows = [("KEY", "TENANT", "CREATED", "LAST USED", "REVOKED")]
    for key in await api_keys.listed():
        times = (_time(key.created_at), _time(key.last_used_at), _time(key.revoked_at))
        rows.append((key.prefix, key.tenant, *times))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


async def _revoke(api_keys: ApiKeys, arguments: argparse.Namespace) -> None:
    if not await api_keys.revoke(keys.prefix_of(arguments.key)):
        raise ConfigError(_NO_SUCH_KEY)
    print("It is revoked, and no server takes it any more within 5 seconds.", file=sys.stderr)


async def _rotate(api_keys: ApiKeys, arguments: argparse.Namespace) -> None:
    key = keys.new_key()
    if not await api_keys.rotate(keys.prefix_of(arguments.key), key):
        raise ConfigError(_NO_SUCH_KEY)
    _show(key, f"A key in place of the other, which no server takes any more within 5 seconds. {_KEPT_NOWHERE}")


_NO_SUCH_KEY = "there is no such key that is not revoked yet; `rejoinder keys list` shows all"


def _show(key: str, remark: str) -> None:
    """The key alone on standard output, for scripts."""
    print(remark, file=sys.stderr)
    print(key)


def _time(moment: datetime | None) -> str:
    return "-" if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")
