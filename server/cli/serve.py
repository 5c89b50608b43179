"""`rejoinder serve`: the server. Settings, socket, application, until a signal ends it."""

import argparse
import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from server import tracing
from server.api.system import METRICS_PATH
from server.app import create, embedded_postgres, prepare_database
from server.cli import options, web
from server.cli.figures import Figures, meeting_places
from server.cli.workers import Bond, Workers
from server.config import Config, ConfigError
from server.telemetry import Telemetry

Lifespan = contextlib.AbstractAsyncContextManager[None]

NO_OPENTELEMETRY = "traces need OpenTelemetry, which is not installed: pip install 'rejoinder[otel]'"

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
    if config.traces and not tracing.is_available():
        raise ConfigError(NO_OPENTELEMETRY)
    # What sends spans has a thread, and a parent that forks must have none.
    telemetry = _telemetry(config, has_spans=config.traces and config.workers == 1)
    take = web.listen if config.workers == 1 else web.reserve
    with contextlib.ExitStack() as opened:
        taken = [opened.enter_context(take(host, port)) for host, port in _addresses(config)]

        def announce() -> None:
            _announce(config, [web.url_of(each) for each in taken], telemetry)

        if config.workers == 1:
            exit_code = _serve(config, taken, telemetry, announce)
        else:
            exit_code = _serve_by_workers(config, taken, telemetry, announce)
    if exit_code == 0:
        telemetry.info("stopped")
    return exit_code


def _addresses(config: Config) -> list[tuple[str, int]]:
    """The server's own address, and that of its metrics where it is another."""
    own = (config.host, config.port)
    return [own] if config.metrics_port == 0 else [own, (config.metrics_host, config.metrics_port)]


def _telemetry(config: Config, *, has_spans: bool) -> Telemetry:
    """The log of this process; where there are several, each line says whose it is."""
    pid = None if config.workers == 1 else os.getpid()
    spans = tracing.OpenTelemetrySpans() if has_spans else tracing.NO_SPANS
    telemetry = Telemetry(config.log_level, pid=pid, spans=spans)
    telemetry.adopt_library_logs()
    return telemetry


def _serve(
    config: Config,
    listeners: Sequence[socket.socket],
    telemetry: Telemetry,
    announce: Callable[[], None],
    *,
    around: Callable[[Lifespan], Lifespan] = lambda opened: opened,
    metrics: Callable[[], Awaitable[bytes]] | None = None,
) -> int:
    """Serve in this process until a signal; `around` goes around what is opened for that."""
    app = create(config, telemetry, metrics)

    async def ended() -> None:
        await app.state.turns.ended()

    async def end() -> None:
        await app.state.turns.close()

    opened = around(web.lifespan(app))
    web.run(app, listeners, announce, opened, web.Work(ended, end), drain_max_s=config.drain_max_s)
    return 0


def _serve_by_workers(
    config: Config, reserved: Sequence[socket.socket], telemetry: Telemetry, announce: Callable[[], None]
) -> int:
    """Serve in several processes. This one prepares the database, and keeps it while any of them is there."""
    postgres = embedded_postgres(config)
    places = meeting_places(config.workers)

    def work(bond: Bond) -> int:
        if postgres is not None:
            postgres.leave_to_parent()
        prepared = msgspec.structs.replace(config, no_migrate=True)
        telemetry = _telemetry(config, has_spans=config.traces)
        figures = Figures(places, bond.number, telemetry.metrics)

        def around(opened: Lifespan) -> Lifespan:
            return bond.around(figures.told_within(opened))

        with contextlib.ExitStack() as opened:
            listeners = [opened.enter_context(web.beside(each)) for each in reserved]
            return _serve(prepared, listeners, telemetry, bond.tell_serving, around=around, metrics=figures.text)

    try:
        asyncio.run(prepare_database(config, postgres))
        return Workers(config.workers, work, telemetry).run(announce)
    finally:
        for place in places:
            place.close()
        if postgres is not None:
            asyncio.run(postgres.stop())


def _announce(config: Config, urls: list[str], telemetry: Telemetry) -> None:
    telemetry.info(
        "serving",
        url=urls[0],
        metrics_url=urls[-1] + METRICS_PATH,
        upstream=", ".join(url for upstream in config.upstreams for url in upstream.urls),
        upstream_authentication=any(upstream.has_credentials for upstream in config.upstreams),
        database="embedded" if config.database_url is None else "external",
        data_dir=str(config.data_dir) if config.database_url is None else None,
    )
