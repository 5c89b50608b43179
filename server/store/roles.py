"""The role that servers run as: it owns nothing, and Postgres holds it to the tenant that each transaction sets."""

from typing import Final

import asyncpg

from server.store.database import Database, UnusableDatabase
from server.store.statement import Statement

_FIND: Final = Statement("""
select rolsuper or rolbypassrls as bypasses,
    exists (select from pg_class where oid = to_regclass('alembic_version') and relowner = pg_roles.oid) as owns
from pg_roles where rolname = :role
""")
_SCHEMA: Final = Statement("select quote_ident(current_schema()) as name")


def _grants(role: str, schema: str) -> list[Statement]:
    """What a server needs, also of the tables that later migrations by the same owner will make."""
    rows = "select, insert, update, delete"
    return [
        Statement(sql)
        for sql in (
            f'grant usage on schema {schema} to "{role}"',
            f'grant {rows} on all tables in schema {schema} to "{role}"',
            f'revoke insert, update, delete on alembic_version from "{role}"',
            f'grant usage on all sequences in schema {schema} to "{role}"',
            f'alter default privileges in schema {schema} grant {rows} on tables to "{role}"',
            f'alter default privileges in schema {schema} grant usage on sequences to "{role}"',
        )
    ]


async def make_run_role(database: Database, role: str) -> bool:
    """Make the role where it is not there, and grant it what a server needs; whether it was made.

    It can log in as the server's own authentication says: it has no password. `role` is letters, digits and
    underscores. Raises UnusableDatabase where it would not be held to its tenant, owns the tables, or may not be made.
    """
    found = await database.run(_FIND, {"role": role})
    if found and found[0]["bypasses"]:
        raise UnusableDatabase(f"The role {role} bypasses row-level security; name another one, which is made.")
    if found and found[0]["owns"]:
        # What a server must not have of the schema's version, migrations need.
        raise UnusableDatabase(f"The role {role} owns the tables, to migrate them; name another one, which is made.")
    [schema] = await database.run(_SCHEMA)
    try:
        if not found:
            await database.run(Statement(f'create role "{role}" login'))
        for grant in _grants(role, schema["name"]):
            await database.run(grant)
    except asyncpg.InsufficientPrivilegeError:
        raise UnusableDatabase(
            f"The role of --database-url may not make the role {role}, or not grant it what it needs; let one with "
            "CREATEROLE that owns the tables do it."
        ) from None
    return not found
