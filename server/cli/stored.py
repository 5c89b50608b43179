"""The database of commands that look after what is stored, beside servers that may be running on it."""

import contextlib
from collections.abc import AsyncIterator

from server.app import database_url, embedded_postgres, prepare_database
from server.config import Config
from server.store.database import Database, check_schema


@contextlib.asynccontextmanager
async def opened_database(
    config: Config, *, statement_timeout_s: float = 60, may_migrate: bool = False
) -> AsyncIterator[Database]:
    """The database that a server with these settings uses, with the schema as it is, or with `may_migrate` as that
    server would make it.

    Raises EmbeddedPostgresError, UnusableDatabase or ApiError 503 where there is none that this release can use.
    """
    async with contextlib.AsyncExitStack() as opened:
        embedded = embedded_postgres(config)
        if embedded is not None:
            opened.push_async_callback(embedded.stop)
        if may_migrate:
            url = await prepare_database(config, embedded)
        else:
            url = await database_url(config, embedded)
            await check_schema(url)
        database = Database.open(url, pool_size=1, pgbouncer=config.pgbouncer, statement_timeout_s=statement_timeout_s)
        opened.push_async_callback(database.close)
        yield database
