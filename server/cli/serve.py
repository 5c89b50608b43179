"""`rejoinder serve`: the server. Settings, socket, application, until a signal ends it."""

import argparse

from server.app import create
from server.cli import options, web
from server.config import Config, ConfigError
from server.telemetry import Telemetry

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
    telemetry = Telemetry(config.log_level)
    telemetry.adopt_library_logs()
    with web.listen(config.host, config.port) as listener:
        app = create(config, telemetry)

        async def ended() -> None:
            await app.state.turns.ended()

        async def end() -> None:
            await app.state.turns.close()

        web.run(
            app,
            listener,
            lambda: _announce(config, web.url_of(listener), telemetry),
            web.lifespan(app),
            web.Work(ended, end),
            drain_max_s=config.drain_max_s,
        )
    telemetry.info("stopped")
    return 0


def _announce(config: Config, url: str, telemetry: Telemetry) -> None:
    telemetry.info(
        "serving",
        url=url,
        upstream=", ".join(url for upstream in config.upstreams for url in upstream.urls),
        upstream_authentication=any(upstream.has_credentials for upstream in config.upstreams),
        database="embedded" if config.database_url is None else "external",
        data_dir=str(config.data_dir) if config.database_url is None else None,
    )
