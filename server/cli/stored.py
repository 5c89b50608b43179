"""The database of commands that look after what is stored, beside servers that may be running on it."""

import contextlib
from collections.abc import AsyncIterator

from server.app import embedded_postgres
from server.config import Config
from server.store.database import Database, check_schema


@contextlib.asynccontextmanager
async def opened_database(config: Config, statement_timeout_s: float = 60) -> AsyncIterator[Database]:
    """The database that a server with these settings uses, with the schema as it is.

    Raises EmbeddedPostgresError, UnusableDatabase or ApiError 503 where there is none that this release can use.
    """
    async with contextlib.AsyncExitStack() as opened:
        embedded = embedded_postgres(config)
        if embedded is not None:
            opened.push_async_callback(embedded.stop)
        url = config.database_url if embedded is None else await embedded.start()
        assert url is not None, "without a URL there is the embedded one"
        await check_schema(url)
        database = Database.open(url, pool_size=1, pgbouncer=config.pgbouncer, statement_timeout_s=statement_timeout_s)
        opened.push_async_callback(database.close)
        yield database
