"""What is measured, as real processes: the upstream, our server, and the peer where there is one.

Each server gets a database of its own on one Postgres. Its settings are the defaults.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.bench import upstream
from tests.e2e import processes
from tests.postgres import PostgresServer, connected

OURS, PEER, MOCK = "rejoinder", "peer", "mock alone"


class Gateway(NamedTuple):
    """A server under test and its process; `url` without a path."""

    name: str
    url: str
    pid: int


class Bench:
    """What starts gateways, all before one upstream and on one Postgres, in `folder`. `peer` is its executable."""

    def __init__(self, postgres: PostgresServer, folder: Path, upstream_url: str, peer: Path | None) -> None:
        self._postgres = postgres
        self._folder = folder
        self._upstream_url = upstream_url
        self._peer = peer
        self.names = [OURS] if peer is None else [OURS, PEER]

    def new_database(self) -> contextlib.AbstractAsyncContextManager[str]:
        return self._postgres.new_database()

    @contextlib.asynccontextmanager
    async def started(self, name: str, database_url: str, *, workers: int = 1) -> AsyncIterator[Gateway]:
        """A fresh process of the server with this name; several may share one database. Ours may have workers."""
        process = self._ours(database_url, workers) if name == OURS else self._peers(database_url)
        # Its way to the database may lead through this very loop, which therefore must not wait for it.
        gateway = await asyncio.to_thread(process.__enter__)
        try:
            yield gateway
        finally:
            await asyncio.to_thread(process.__exit__, None, None, None)

    @contextlib.contextmanager
    def _ours(self, database_url: str, workers: int) -> Iterator[Gateway]:
        label = f"rejoinder-{free_port()}"
        line = [processes.OURS / "rejoinder", "serve", "--port", "0", "--database-url", database_url]
        line += ["--upstream", f"{self._upstream_url}/v1", "--workers", str(workers)]
        with processes.running(line, self._folder, label) as process:
            log = self._folder / f"{label}.log"
            url = processes.awaited(process, lambda: processes.serving(log), log)["url"]
            yield Gateway(OURS, url, process.pid)

    @contextlib.contextmanager
    def _peers(self, database_url: str) -> Iterator[Gateway]:
        assert self._peer is not None
        port = free_port()
        label = f"peer-{port}"
        home = self._folder / label
        line = ["env", f"AGENTIC_API_HOME={home}", "RUST_LOG=warn", self._peer, "--llm-api-base", self._upstream_url]
        line += ["--gateway-host", "127.0.0.1", "--gateway-port", str(port), "--db-url", _with_a_host(database_url)]
        with processes.running(line, self._folder, label) as process:
            log = self._folder / f"{label}.log"
            processes.awaited(process, lambda: listens(port), log)
            # `env` becomes what it starts, so that this is the server's own id.
            yield Gateway(PEER, f"http://127.0.0.1:{port}", process.pid)


@contextlib.contextmanager
def upstream_process(folder: Path) -> Iterator[Gateway]:
    """The upstream in a process of its own, as if it were a gateway before itself."""
    with processes.running([processes.OURS / "python", Path(upstream.__file__)], folder, "upstream") as process:
        out, log = folder / "upstream.out", folder / "upstream.log"
        yield Gateway(MOCK, processes.awaited(process, lambda: out.read_text().strip(), log), process.pid)


async def stored_bytes(database_url: str) -> int:
    """What all tables hold on disk, with their indexes and what was stored out of line."""
    async with connected(database_url) as connection:
        size: int = await connection.fetchval(
            "select sum(pg_total_relation_size(relid))::bigint from pg_catalog.pg_statio_user_tables"
        )
        return size


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _with_a_host(database_url: str) -> str:
    """The same URL with a host in it: the peer's driver demands one, though a socket's folder comes before it."""
    parts = urlsplit(database_url)
    if parts.hostname is not None:
        return database_url
    return parts._replace(netloc=f"{parts.netloc}localhost").geturl()
