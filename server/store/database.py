"""The connection to Postgres: a pool that runs one statement at a time, and the schema brought up to date at start.

Rule of this file: what a driver raises ends here. A fault of the connection or of the server is
`errors.store_unavailable`, a violated constraint is told by its name, and only a mistake of ours leaves as it came.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from asyncpg.prepared_stmt import PreparedStatement
from sqlalchemy import Connection, NullPool, PoolProxiedConnection, QueuePool, event, text
from sqlalchemy.exc import DBAPIError, DisconnectionError, MissingGreenlet
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import greenlet_spawn

import server
from server import errors
from server.store.statement import Statement

DOUBT_MAX_S: Final = 5
"""How long who made a write that was not answered may wait to learn what became of it."""

# The classes of SQLSTATE that say the statement or its values are wrong. Whatever else a server reports (it starts,
# stops, is full, is read-only, knows no such user) may be over at the next attempt.
_MISTAKES: Final = ("22", "42")

_NO_PARAMETERS: Final[Mapping[str, object]] = MappingProxyType({})

# Of migrations, where there are two caches, the driver's and SQLAlchemy's.
_UNPREPARED: Final = {"statement_cache_size": 0, "prepared_statement_cache_size": 0}

_PING: Final = Statement("select 1")

_BYPASSES: Final = Statement("select rolsuper or rolbypassrls as bypasses from pg_roles where rolname = current_user")

UNSAID_TENANT_ID: Final = 1
"""Whose rows a transaction is held to that sets no tenant (migration 0010)."""

# Any number will do, as long as every release that may meet another one at the same database uses it.
_MIGRATION_LOCK: Final = 0x7265_6A6F_696E_6465


class ConstraintViolated(Exception):
    """A statement broke the constraint called `name`, and did nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(f"constraint {name} was violated")
        self.name = name


class UnusableDatabase(Exception):
    """This release cannot work with this database. The text tells an operator why, and what to do."""


class SchemaTooNew(UnusableDatabase):
    """A newer release has migrated this database."""


class Database:
    """A pool of connections to one Postgres. Every statement is a transaction of its own.

    A statement with a parameter `tenant_id` runs for that tenant alone: row-level security shows it no other's rows,
    and lets it write none, unless the role bypasses that (ADR 15). Without one it runs for the first tenant.

    The pool is SQLAlchemy's; statements go to the driver itself, since a `Connection` between them costs as much CPU
    time as all else of a turn (ADR 11).
    """

    def __init__(self, engine: AsyncEngine, *, pool_size: int, connect_timeout_s: float, may_prepare: bool) -> None:
        self.engine = engine
        self._pool = engine.sync_engine.pool
        self._free = asyncio.Semaphore(pool_size)
        self._connect_timeout_s = connect_timeout_s
        self._may_prepare = may_prepare
        self._is_closed = False

    @classmethod
    def open(
        cls,
        url: str,
        *,
        pool_size: int = 8,
        pgbouncer: bool = False,
        connect_timeout_s: float = 10,
        statement_timeout_s: float = 60,
    ) -> "Database":
        """A database at `url`, in any form that libpq reads (`postgresql://...`); nothing connects before it is used.

        At most `pool_size` connections are open; who finds none free, or cannot get a new one, waits at most
        `connect_timeout_s`. Behind PgBouncer in transaction mode no statement may be prepared.
        """
        arguments = _connect_arguments(url, connect_timeout_s) | {"command_timeout": statement_timeout_s}
        if pgbouncer:
            arguments["statement_cache_size"] = 0
        engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=lambda: _Opening(arguments),
            pool_size=pool_size,
            # Who waits for a connection waits here: the pool's own queue can't be asked without its greenlets.
            max_overflow=-1,
            # Without transactions there is nothing to roll back.
            pool_reset_on_return=None,
        )
        event.listen(engine.sync_engine, "checkout", _refuse_closed)
        return cls(engine, pool_size=pool_size, connect_timeout_s=connect_timeout_s, may_prepare=not pgbouncer)

    async def run(
        self, statement: Statement, parameters: Mapping[str, object] = _NO_PARAMETERS
    ) -> Sequence[asyncpg.Record]:
        """The rows of one statement; its connection is free again when this returns.

        Raises `errors.store_unavailable` and ConstraintViolated.
        """
        with _faults():
            if self._free.locked():
                async with asyncio.timeout(self._connect_timeout_s):
                    await self._free.acquire()
            else:
                await self._free.acquire()
            try:
                connection = await self._connection()
                try:
                    rows = await self._fetch_for_tenant(connection, statement, parameters)
                except asyncpg.PostgresError:
                    connection.close()
                    raise
                except BaseException:
                    # Nobody can say what it would answer next.
                    connection.invalidate()
                    raise
                connection.close()
                return rows
            finally:
                self._free.release()

    @property
    def connections_in_use(self) -> int:
        """How many of the pool's connections run a statement."""
        return cast(QueuePool, self._pool).checkedout()

    async def _connection(self) -> PoolProxiedConnection:
        if self._is_closed:
            # The pool would open one anew, which nobody closes.
            raise errors.store_unavailable()
        try:
            return self._pool.connect()
        except MissingGreenlet:
            # None lies there that is open: to open one is to wait, which the pool can do in a greenlet only.
            pass
        try:
            return await greenlet_spawn(self._pool.connect)
        except Exception as error:
            # Whatever it is, nothing was asked yet.
            raise errors.store_unavailable() from (error.__cause__ or error)

    async def _fetch_for_tenant(
        self, connection: PoolProxiedConnection, statement: Statement, parameters: Mapping[str, object]
    ) -> Sequence[asyncpg.Record]:
        tenant_id = parameters.get("tenant_id", UNSAID_TENANT_ID)
        if tenant_id == UNSAID_TENANT_ID:
            return await self._fetch(connection, statement, parameters)
        driver: asyncpg.Connection[asyncpg.Record] = cast(Any, connection.driver_connection)
        # Both in one round trip. What is set so ends with the transaction, whoever gets the session then.
        await driver.execute(f"begin; set local rejoinder.tenant_id = '{tenant_id:d}'")
        try:
            rows = await self._fetch(connection, statement, parameters)
        except asyncpg.PostgresError:
            await driver.execute("rollback")
            raise
        await driver.execute("commit")
        return rows

    async def _fetch(
        self, connection: PoolProxiedConnection, statement: Statement, parameters: Mapping[str, object]
    ) -> Sequence[asyncpg.Record]:
        driver: asyncpg.Connection[asyncpg.Record] = cast(Any, connection.driver_connection)
        values = statement.values(parameters)
        if not self._may_prepare:
            return await driver.fetch(statement.text, *values)
        prepared: PreparedStatement[asyncpg.Record] | None = connection.info.get(statement)
        if prepared is None:
            # They go with the connection they were prepared on.
            prepared = connection.info[statement] = await driver.prepare(statement.text)
        return await prepared.fetch(*values)

    @asynccontextmanager
    async def alone(self, lock: int) -> AsyncIterator[bool]:
        """Whether, while this lasts, the advisory lock of this number is had, which one session at a time can have.

        It is a transaction's, so that it is one behind PgBouncer too, on a connection that no statement waits for.
        Raises `errors.store_unavailable`.
        """
        with _faults():
            connection = await self._connection()
        driver: asyncpg.Connection[asyncpg.Record] = cast(Any, connection.driver_connection)
        try:
            with _faults():
                transaction = driver.transaction()
                await transaction.start()
                is_had = await driver.fetchval("select pg_try_advisory_xact_lock($1)", lock)
            yield bool(is_had)
            with _faults():
                await transaction.rollback()
                await driver.close()
        finally:
            # The lock ends with the connection. It can't go back to a pool that may be full: to close it is to wait.
            connection.invalidate()

    async def holds(self, statement: Statement, parameters: Mapping[str, object]) -> bool:
        """Whether the statement finds a row: of a write whose answer was lost, with its connection.

        A commit may come a moment after that, so it is asked more than once, within DOUBT_MAX_S. False where the
        database can't be asked.
        """
        with suppress(errors.ApiError, TimeoutError):
            async with asyncio.timeout(DOUBT_MAX_S):
                for delay_s in (0, 0.2, 0.5):
                    await asyncio.sleep(delay_s)
                    if await self.run(statement, parameters):
                        return True
        return False

    async def ping(self) -> bool:
        """Whether the database answers."""
        try:
            await self.run(_PING)
        except errors.ApiError:
            return False
        return True

    async def bypasses_row_level_security(self) -> bool:
        """Whether Postgres holds this role to no tenant; raises `errors.store_unavailable`."""
        [row] = await self.run(_BYPASSES)
        return bool(row["bypasses"])

    async def close(self) -> None:
        """Close all connections, and take no statement any more. One that still runs keeps its own until it ends."""
        self._is_closed = True
        await self.engine.dispose()


class _Opening:
    """A connection that is opened once it is awaited: outside of its greenlets the pool asks for one in vain."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = arguments

    def __await__(self) -> Generator[Any, None, "asyncpg.Connection[asyncpg.Record]"]:
        return asyncpg.connect(**self._arguments).__await__()


async def migrate(url: str) -> None:
    """Bring the schema at `url` up to this release, in one transaction. Who comes second waits, and finds it done.

    A process may do this to one database at a time, for Alembic's context is global. Raises UnusableDatabase,
    SchemaTooNew and `errors.store_unavailable`.
    """
    await _with_schema(url, _upgrade)


async def check_schema(url: str) -> None:
    """Raises UnusableDatabase where the schema at `url` is not this release's, and `errors.store_unavailable`."""
    await _with_schema(url, _check)


async def _with_schema(url: str, work: Callable[[Connection], None]) -> None:
    # Nothing is prepared: there is nothing to gain, and PgBouncer may be in between.
    arguments = _connect_arguments(url, timeout_s=10) | _UNPREPARED
    engine = create_async_engine("postgresql+asyncpg://", connect_args=arguments, poolclass=NullPool)
    try:
        with _faults():
            async with engine.begin() as connection:
                await connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
                await connection.run_sync(work)
    finally:
        await engine.dispose()


def migrations(connection: Connection) -> Config:
    """Alembic's view of our migrations, to be run on `connection`."""
    package = Path(server.__file__).parent
    # A wheel carries them inside the package, a checkout has them beside it.
    folders = (package / "migrations", package.parent / "migrations")
    folder = next(folder for folder in folders if (folder / "env.py").is_file())
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return config


def _upgrade(connection: Connection) -> None:
    encoding = connection.scalar(text("show server_encoding"))
    # SQL_ASCII keeps bytes as they are; every other encoding has no room for some character of some client.
    if encoding not in ("UTF8", "SQL_ASCII"):
        raise UnusableDatabase(
            f"The database's encoding is {encoding}, which cannot hold every text. Create one with: "
            "create database rejoinder encoding 'UTF8' template template0"
        )
    _refuse_newer(connection)
    command.upgrade(migrations(connection), "head")


def _check(connection: Connection) -> None:
    _refuse_newer(connection)
    newest = ScriptDirectory.from_config(migrations(connection)).get_current_head()
    if MigrationContext.configure(connection).get_current_heads() != (newest,):
        raise UnusableDatabase(
            "The database's schema is missing or older than this release's. Run `rejoinder migrate`, or start without "
            "--no-migrate."
        )


def _refuse_newer(connection: Connection) -> None:
    scripts = ScriptDirectory.from_config(migrations(connection))
    known = {script.revision for script in scripts.walk_revisions()}
    unknown = set(MigrationContext.configure(connection).get_current_heads()) - known
    if unknown:
        raise SchemaTooNew(
            f"The database's schema is at revision {', '.join(sorted(unknown))}, which this release does not know: a "
            "newer one has migrated it. Start that release, or restore a backup from before."
        )


def _connect_arguments(url: str, timeout_s: float) -> dict[str, Any]:
    """What asyncpg gets: it reads libpq's URLs itself, but would send `connect_timeout` on to the server."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    timeout = _seconds(query.pop("connect_timeout", timeout_s))
    return {"dsn": parts._replace(query=urlencode(query)).geturl(), "timeout": timeout}


def _seconds(value: str | float) -> float:
    try:
        return float(value)
    except ValueError:
        raise UnusableDatabase("connect_timeout in the database URL is not a number of seconds.") from None


def _refuse_closed(connection: Any, _record: object, _proxy: object) -> None:
    """Let the pool replace a connection that ended while it lay there, without asking the server each time."""
    if connection.driver_connection.is_closed():
        raise DisconnectionError


@contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except asyncpg.IntegrityConstraintViolationError as error:
        raise ConstraintViolated(str(error.constraint_name)) from error
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, DBAPIError, OSError) as error:
        # The driver calls it its own error where a connection ends just as a statement begins.
        if _is_mistake(_driver_error(error)):
            raise
        raise errors.store_unavailable() from error


def _driver_error(error: Exception) -> BaseException | None:
    """What the driver raised: SQLAlchemy wraps it where it opens a connection, and in a migration."""
    if not isinstance(error, DBAPIError):
        return error
    return error.orig.__cause__ if error.orig else None


def _is_mistake(error: BaseException | None) -> bool:
    sqlstate = getattr(error, "sqlstate", None)
    # What the driver itself refuses to send has no SQLSTATE, but is a ValueError.
    return isinstance(error, ValueError) or (sqlstate is not None and sqlstate[:2] in _MISTAKES)
