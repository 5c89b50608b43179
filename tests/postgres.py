"""Where the tests get a Postgres from: TEST_DATABASE_URL, a container where an engine answers, else the embedded one.

Every test that asks for a database gets one of its own (the fixtures are in `conftest.py`), so no test sees another's
rows, and each may do to its database what it likes.
"""

import asyncio
import copy
import functools
import gc
import os
import shutil
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest
from docker.client import DockerClient
from docker.errors import DockerException
from testcontainers.community.postgres import PostgresContainer

from server.embedded import EmbeddedPostgres
from server.embedded.installation import SUPERUSER
from server.embedded.lifecycle import ROLE
from server.store.database import Database
from server.store.keys import STATEMENTS_ASIDE
from server.store.statement import Statement

# The oldest we promise to work with; the embedded one is the newest.
CONTAINER_IMAGE = "postgres:14-alpine"
ENGINE_TIMEOUT_S = 3


@dataclass(frozen=True)
class PostgresServer:
    """A server to make databases on. `url` names the role that owns them, `admin_url` one that may create them."""

    url: str
    admin_url: str

    @asynccontextmanager
    async def new_database(self, *, template: str = "template1", encoding: str = "UTF8") -> AsyncIterator[str]:
        """The URL of a new database, a copy of the `template` of that name. It is dropped afterwards."""
        name = f"test_{uuid4().hex}"
        owner = urlsplit(self.url).username
        await self._administer(
            f"create database {name} template {template} encoding '{encoding}'" + (f' owner "{owner}"' if owner else "")
        )
        try:
            yield with_database(self.url, name)
        finally:
            await self._administer(f"drop database {name} with (force)")

    async def _administer(self, statement: str) -> None:
        async with connected(self.admin_url) as connection:
            await connection.execute(statement)


without_pgbouncer = pytest.mark.skipif(
    "TEST_PGBOUNCER" in os.environ,
    reason="it is about the connection itself, or about what one plan reads",
)


def as_servers_reach_it(url: str) -> dict[str, Any]:
    """The settings by which a server reaches a database: as tests do, or behind the PgBouncer of TEST_PGBOUNCER."""
    place = os.environ.get("TEST_PGBOUNCER")
    if place is None:
        return {"database_url": url}
    credentials = urlsplit(url).netloc.rpartition("@")[0]
    return {"database_url": f"postgresql://{credentials}@{place}/{database_name(url)}", "pgbouncer": True}


def with_database(url: str, name: str) -> str:
    parts = urlsplit(url)
    return f"postgresql://{parts.netloc}/{name}" + (f"?{parts.query}" if parts.query else "")


def database_name(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")


@asynccontextmanager
async def postgres_server() -> AsyncIterator[PostgresServer]:
    if url := os.environ.get("TEST_DATABASE_URL"):
        yield PostgresServer(url=url, admin_url=url)
    elif container_engine_answers():
        container = PostgresContainer(CONTAINER_IMAGE, driver=None)
        await asyncio.to_thread(container.start)
        try:
            url = container.get_connection_url()
            yield PostgresServer(url=url, admin_url=url)
        finally:
            await asyncio.to_thread(container.stop)
    else:
        async with embedded_server() as server:
            yield server


@asynccontextmanager
async def embedded_server() -> AsyncIterator[PostgresServer]:
    # Not pytest's temporary folder: it is closed to the user that Postgres runs as when root runs the tests.
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="rejoinder-tests-"))
    embedded = EmbeddedPostgres(folder)
    try:
        url = await embedded.start()
        query = urlsplit(url).query
        # The server's own role may create no database; the superuser may, over the same socket.
        yield PostgresServer(url=url, admin_url=f"postgresql://{SUPERUSER}@/postgres?{query}")
    finally:
        await embedded.stop()
        await asyncio.to_thread(shutil.rmtree, folder)


@functools.cache
def container_engine_answers() -> bool:
    # The client leaves the socket of a refused connection to the garbage collector, who may find it in any test.
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        try:
            with closing(DockerClient.from_env(timeout=ENGINE_TIMEOUT_S)) as engine:
                return bool(engine.ping())
        except (DockerException, OSError):
            return False
        finally:
            gc.collect()


def described() -> str:
    """For the head of pytest's report: which Postgres this is, and loudly if the one that CI uses is out of reach."""
    if url := os.environ.get("TEST_DATABASE_URL"):
        parts = urlsplit(url)
        return f"postgres: TEST_DATABASE_URL, {parts.hostname or 'a socket'}{parts.path}"
    if container_engine_answers():
        return f"postgres: a container of {CONTAINER_IMAGE}"
    return "postgres: *** NO CONTAINER ENGINE ANSWERS: the tests run on the embedded Postgres instead ***"


def url_of_superuser(url: str) -> str:
    """Of the embedded Postgres, whose own role is held to one tenant; elsewhere the tests are a superuser already."""
    return url.replace(f"//{ROLE}@", f"//{SUPERUSER}@")


async def add_tenants(connection: "asyncpg.Connection[asyncpg.Record]", **ids: int) -> None:
    """Tenants by their names, with these numbers."""
    for name, tenant_id in ids.items():
        await connection.execute(
            "insert into tenants (id, name, created_at, limits, cache_salt) values ($1, $2, now(), '{}', $2)",
            tenant_id,
            name,
        )


@asynccontextmanager
async def connected(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A plain connection, to look at what the store did or to get in its way: it sees the rows of all tenants."""
    connection = await asyncpg.connect(url_of_superuser(url))
    try:
        yield connection
    finally:
        await connection.close()


async def until_true(
    connection: "asyncpg.Connection[asyncpg.Record]", query: str, *arguments: object, within_s: float = 10
) -> None:
    """Waits until the query's one value is true. Raises TimeoutError when that takes too long."""
    async with asyncio.timeout(within_s):
        while not await connection.fetchval(query, *arguments):  # noqa: ASYNC110 (the server has no event for us)
            await asyncio.sleep(0.005)


@contextmanager
def recorded_statements(database: Database) -> Iterator[list[str]]:
    """The statements that `database` sends for requests while this lasts. Transaction control is not among them."""
    statements: list[str] = []

    run = database.run

    async def recorded(statement: Statement, *parameters: Any) -> Any:
        if statement not in STATEMENTS_ASIDE:
            statements.append(statement.text)
        return await run(statement, *parameters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "run", recorded)
        yield statements


async def rows_visited(database: Database, statement: Statement, **parameters: object) -> dict[str, int]:
    """How many rows of each table the plan looked at, whether or not it kept them."""
    explained = copy.copy(statement)
    explained.text = f"explain (analyze, format json) {statement.text}"
    rows = await database.run(explained, {"tenant_id": 1, **parameters})
    visited: dict[str, int] = {}
    nodes = [rows[0][0][0]["Plan"]]
    while nodes:
        node = nodes.pop()
        nodes += node.get("Plans", [])
        if table := node.get("Relation Name"):
            removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
            visited[table] = visited.get(table, 0) + round((node["Actual Rows"] + removed) * node["Actual Loops"])
    return visited
