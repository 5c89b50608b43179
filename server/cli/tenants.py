"""`rejoinder tenants`: list them, set their limits, and erase all that one has, but for what its turns cost."""

import argparse
import asyncio
import sys

import msgspec

from server.cli import options
from server.cli.stored import opened_database
from server.config import Config, ConfigError
from server.store.erasure import Erasure
from server.store.keys import ApiKeys, TenantLimits

_LIMITS = {
    "requests_per_minute": "requests in a minute, of each of its keys",
    "open_turns_max": "open turns of each of its keys, in each process",
    "output_tokens": "tokens of output that are asked for where a request says nothing",
    "output_tokens_max": "the most max_output_tokens that a request may ask for",
    "total_tokens_max": "what all rounds of a response may cost in tokens",
    "history_items_max": "items of history and input",
    "history_bytes_max": "bytes of history and input",
}


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("tenants", help="list, limit or erase tenants", allow_abbrev=False)
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list all tenants with their limits", allow_abbrev=False)
    listing.set_defaults(run=_list)
    limit = actions.add_parser(
        "limit",
        help="set limits of a tenant",
        description="Set limits of a tenant, 0 for none; those that are not given stay as they are. Running servers "
        "learn of them within 5 seconds.",
        allow_abbrev=False,
    )
    limit.set_defaults(run=_limit)
    for name, help_text in _LIMITS.items():
        limit.add_argument(f"--{name.replace('_', '-')}", type=_number, metavar="N", help=help_text)
    erase = actions.add_parser(
        "erase",
        help="remove all that a tenant has",
        description="Remove responses, items, conversations and idempotency keys of a tenant, for good, and revoke its "
        "API keys. What its turns cost stays, without the ids of their responses. A turn in flight that continues "
        "nothing is stored when it ends: erase once more then.",
        allow_abbrev=False,
    )
    erase.set_defaults(run=_erase)
    erase.add_argument("--yes", action="store_true", help="do it; without this nothing is removed")
    for action in (listing, limit, erase):
        options.add(action, "data_dir", "database_url", "config")
    for action in (limit, erase):
        action.add_argument("tenant", metavar="NAME", help="the tenant's name")


def _list(arguments: argparse.Namespace) -> int:
    for name, limits in asyncio.run(_listed(options.settings(arguments))):
        told = ", ".join(f"{limit} {value}" for limit, value in msgspec.to_builtins(limits).items())
        print(f"{name}  {told or '-'}")
    return 0


async def _listed(config: Config) -> list[tuple[str, TenantLimits]]:
    async with opened_database(config) as database:
        return [(tenant.name, tenant.limits) for tenant in (await ApiKeys(database).read()).tenants.values()]


def _limit(arguments: argparse.Namespace) -> int:
    limits = TenantLimits(**{name: getattr(arguments, name) for name in _LIMITS})
    asyncio.run(_set(options.settings(arguments), arguments.tenant, limits))
    return 0


async def _set(config: Config, tenant: str, limits: TenantLimits) -> None:
    async with opened_database(config) as database:
        if not await ApiKeys(database).limit(tenant, limits):
            raise ConfigError(_NO_SUCH_TENANT)


def _erase(arguments: argparse.Namespace) -> int:
    counts = asyncio.run(_erased(options.settings(arguments), arguments.tenant, is_meant=arguments.yes))
    told = ", ".join(f"{count} {table}" for table, count in counts.items())
    if not arguments.yes:
        print(f"rejoinder: nothing was removed; with --yes this would be: {told}", file=sys.stderr)
        return 1
    print(f"Removed of the tenant {arguments.tenant}: {told}. Its API keys are revoked.")
    return 0


async def _erased(config: Config, tenant: str, *, is_meant: bool) -> dict[str, int]:
    async with opened_database(config) as database:
        tenants = (await ApiKeys(database).read()).tenants
        tenant_id = next((number for number, known in tenants.items() if known.name == tenant), None)
        if tenant_id is None:
            raise ConfigError(_NO_SUCH_TENANT)
        erasure = Erasure(database)
        counts = await erasure.counts(tenant_id)
        if is_meant:
            await erasure.erase(tenant_id)
        return counts


_NO_SUCH_TENANT = "there is no tenant of this name; `rejoinder tenants list` shows all"


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise argparse.ArgumentTypeError("a limit is a whole number")
    return int(text)
