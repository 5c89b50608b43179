"""Fixtures for every tier: a Postgres for the session, and for each test a database of its own on it."""

from collections.abc import AsyncIterator

import pytest

from server.store.database import Database, migrate
from tests import postgres as source
from tests.postgres import PostgresServer, as_servers_reach_it


def pytest_report_header() -> str:
    return source.described()


@pytest.fixture(scope="session")
async def postgres() -> AsyncIterator[PostgresServer]:
    async with source.postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
async def migrated_template(postgres: PostgresServer) -> AsyncIterator[str]:
    """The name of a database that is migrated once, for the others to be copies of it."""
    async with postgres.new_database() as url:
        await migrate(url)
        yield source.database_name(url)


@pytest.fixture
async def empty_database_url(postgres: PostgresServer) -> AsyncIterator[str]:
    async with postgres.new_database() as url:
        yield url


@pytest.fixture
async def database_url(postgres: PostgresServer, migrated_template: str) -> AsyncIterator[str]:
    """A fresh, migrated database."""
    async with postgres.new_database(template=migrated_template) as url:
        yield url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    place = as_servers_reach_it(database_url)
    opened = Database.open(place.pop("database_url"), **place)
    yield opened
    await opened.close()
