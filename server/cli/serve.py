"""`rejoinder serve`: the server. Settings, socket, application, until a signal ends it."""

import argparse
import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

import msgspec

from server.app import create, embedded_postgres, prepare_database
from server.cli import options, web
from server.cli.workers import Bond, Workers
from server.config import Config, ConfigError
from server.telemetry import Telemetry

Lifespan = contextlib.AbstractAsyncContextManager[None]

NO_UPSTREAM = (
    "no model server is configured. Give its base URL: --upstream http://host:8000/v1 (or REJOINDER_UPSTREAM, or "
    "[[upstreams]] in the configuration file). "
    "To try without a model, run `rejoinder mock` and give the URL it tells"
)


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("serve", help="run the server", description="Run the server.", allow_abbrev=False)
    options.add(
        parser,
        "upstream",
        "upstream_api_key",
        "host",
        "port",
        "workers",
        "open_to_all",
        "data_dir",
        "database_url",
        "no_migrate",
        "log_level",
        "config",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    config = options.settings(arguments)
    if not config.upstreams:
        raise ConfigError(NO_UPSTREAM)
    telemetry = _telemetry(config)
    take = web.listen if config.workers == 1 else web.reserve
    with take(config.host, config.port) as taken:

        def announce() -> None:
            _announce(config, web.url_of(taken), telemetry)

        if config.workers == 1:
            exit_code = _serve(config, taken, telemetry, announce)
        else:
            exit_code = _serve_by_workers(config, taken, telemetry, announce)
    if exit_code == 0:
        telemetry.info("stopped")
    return exit_code


def _telemetry(config: Config) -> Telemetry:
    """The log of this process; where there are several, each line says whose it is."""
    telemetry = Telemetry(config.log_level, pid=None if config.workers == 1 else os.getpid())
    telemetry.adopt_library_logs()
    return telemetry


def _serve(
    config: Config,
    listener: socket.socket,
    telemetry: Telemetry,
    announce: Callable[[], None],
    around: Callable[[Lifespan], Lifespan] = lambda opened: opened,
) -> int:
    """Serve in this process until a signal; `around` goes around what is opened for that."""
    app = create(config, telemetry)

    async def ended() -> None:
        await app.state.turns.ended()

    async def end() -> None:
        await app.state.turns.close()

    opened = around(web.lifespan(app))
    web.run(app, listener, announce, opened, web.Work(ended, end), drain_max_s=config.drain_max_s)
    return 0


def _serve_by_workers(
    config: Config, reserved: socket.socket, telemetry: Telemetry, announce: Callable[[], None]
) -> int:
    """Serve in several processes. This one prepares the database, and keeps it while any of them is there."""
    postgres = embedded_postgres(config)

    def work(bond: Bond) -> int:
        if postgres is not None:
            postgres.leave_to_parent()
        prepared = msgspec.structs.replace(config, no_migrate=True)
        with web.beside(reserved) as listener:
            return _serve(prepared, listener, _telemetry(config), bond.tell_serving, bond.around)

    try:
        asyncio.run(prepare_database(config, postgres))
        return Workers(config.workers, work, telemetry).run(announce)
    finally:
        if postgres is not None:
            asyncio.run(postgres.stop())


def _announce(config: Config, url: str, telemetry: Telemetry) -> None:
    telemetry.info(
        "serving",
        url=url,
        upstream=", ".join(url for upstream in config.upstreams for url in upstream.urls),
        upstream_authentication=any(upstream.has_credentials for upstream in config.upstreams),
        database="embedded" if config.database_url is None else "external",
        data_dir=str(config.data_dir) if config.database_url is None else None,
    )
