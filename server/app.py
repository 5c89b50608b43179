"""The composition root: a configuration goes in, an ASGI application comes out. It opens and closes everything."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from litestar import Litestar
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.types import Guard

from server.api import access, auth, wire
from server.api import conversations as conversations_api
from server.api import pass_through as pass_through_api
from server.api import responses as responses_api
from server.api import system as system_api
from server.config import Config, ConfigError, UpstreamSettings
from server.embedded import EmbeddedPostgres
from server.engine.askers import Askers
from server.engine.conversations import ConversationEdits
from server.engine.history import Histories
from server.engine.idempotency import Idempotency
from server.engine.prepare import Preparation
from server.engine.quotas import Requests
from server.engine.recent import RecentHistories
from server.engine.sweep import Sweeper
from server.engine.turn import Limits, Turns
from server.errors import ApiError
from server.metrics import Sources
from server.store.conversations import Conversations
from server.store.database import Database, check_schema, migrate
from server.store.idempotency import IdempotencyKeys
from server.store.keys import ApiKeys, TenantLimits
from server.store.leases import Leases
from server.store.responses import Responses
from server.store.retention import Retention
from server.store.trees import Trees
from server.telemetry import Telemetry
from server.upstream.choose import Upstream, Upstreams
from server.upstream.client import UpstreamClient
from server.upstream.transport import TRANSPORTS

NO_KEY = (
    "there is no API key, and others than this machine's users reach this address. Make one by `rejoinder keys create "
    "--tenant default` on the same database, or say --open-to-all (REJOINDER_OPEN_TO_ALL) to serve everybody"
)

UNHELD_ROLE = (
    "the role of the database URL is a superuser or has BYPASSRLS, so that row-level security does not set the tenants "
    "apart. Make another one by `rejoinder migrate --run-role NAME`, and use that; or set row_level_security to never"
)

# What a turn may need beside its own time, to read what it builds on and to be stored.
_TURN_MARGIN_S: Final = 120


class _Application(Litestar):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await access.told(self._answer, self.state.telemetry, scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        wire.route_by_raw_path(scope)
        is_create = scope["path"].rstrip("/") == responses_api.CREATE_PATH
        if is_create and not wire.is_on_port(scope, self.state.metrics_port):
            # What the framework does for a request takes a fifth of a turn's time (DESIGN 9).
            await responses_api.create_response(self.state, scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create(
    config: Config, telemetry: Telemetry, metrics_text: Callable[[], Awaitable[bytes]] | None = None
) -> Litestar:
    """The application. What it needs is opened by its start-up and closed by its shutdown.

    `metrics_text` is what `/metrics` answers, where that is not what this application alone has counted.

    Its start-up raises EmbeddedPostgresError, UnusableDatabase or ApiError 503 where there is no database to use.
    """
    assert config.upstreams, "a server without an upstream is refused before it is made"
    return _Application(
        route_handlers=[
            *responses_api.ROUTES,
            *conversations_api.ROUTES,
            *system_api.ROUTES,
            *pass_through_api.routes(config.pass_through),
        ],
        guards=_guards(config),
        lifespan=[_lifespan(config, telemetry)],
        state=State(
            {
                "metrics_port": config.metrics_port,
                "metrics_text": metrics_text or _own_metrics(telemetry),
                "telemetry": telemetry,
            }
        ),
        exception_handlers={
            ApiError: wire.render_api_error,
            wire.ClientLeft: wire.render_client_left,
            HTTPException: wire.render_http_exception,
            Exception: wire.render_crash,
        },
        openapi_config=None,
        logging_config=None,
        request_max_body_size=config.body_bytes_max,
    )


def _guards(config: Config) -> list[Guard]:
    """What every route but the one that creates responses asks first."""
    return [system_api.on_their_ports(config.metrics_port), auth.guard] if config.metrics_port else [auth.guard]


def _own_metrics(telemetry: Telemetry) -> Callable[[], Awaitable[bytes]]:
    async def text() -> bytes:
        return telemetry.metrics.text()

    return text


def _lifespan(
    config: Config, telemetry: Telemetry
) -> Callable[[Litestar], contextlib.AbstractAsyncContextManager[None]]:
    @contextlib.asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as opened:
            # Behind all that may still have something to tell.
            opened.push_async_callback(telemetry.spans.close)
            database = await _open_database(config, opened)
            keys = ApiKeys(database)
            askers = await _open_askers(config, telemetry, keys)
            await refuse_unheld_role(config, database, askers.tenant_count)
            opened.push_async_callback(askers.close)
            requests = Requests(keys)
            opened.push_async_callback(requests.close)
            upstreams = _open_upstreams(config, telemetry)
            opened.push_async_callback(upstreams.close)
            stored, conversations = Responses(database), Conversations(database)
            recent = RecentHistories(config.history_cache_bytes)
            histories = Histories(stored, conversations, Leases(database, config.lease_s), recent, telemetry)
            preparation = Preparation(stored, histories, upstreams, config.json_depth_max)
            turns = _turns(config, telemetry, stored, preparation)
            idempotency = _idempotency(config, telemetry, turns, database)
            # Behind the turns, whose ends it waits for.
            opened.push_async_callback(idempotency.close)
            opened.callback(lambda: telemetry.info("prefixes_counted", **turns.prefixes.counts))
            opened.push_async_callback(turns.close)
            opened.enter_context(telemetry.metrics.asking(_sources(config, turns, database)))
            _sweep_along(config, telemetry, database, opened)
            services: dict[str, Any] = {
                "askers": askers,
                "body_bytes_max": config.body_bytes_max,
                "conversations": ConversationEdits(conversations, histories, json_depth_max=config.json_depth_max),
                "database": database,
                "idempotency": idempotency,
                "json_depth_max": config.json_depth_max,
                "preparation": preparation,
                "requests": requests,
                "responses": stored,
                "trees": Trees(database),
                "turns": turns,
                "upstreams": upstreams,
            }
            app.state.update(services)
            yield

    return lifespan


def _sources(config: Config, turns: Turns, database: Database) -> Sources:
    return Sources(
        open_turns=lambda: turns.open_turns.count,
        connections_in_use=lambda: database.connections_in_use,
        connections_max=config.pool_size,
        prefixes=turns.prefixes.counts,
    )


def embedded_postgres(config: Config) -> EmbeddedPostgres | None:
    """The Postgres that is the server's own, not started yet; None where there is another."""
    return EmbeddedPostgres(config.data_dir) if config.database_url is None else None


async def prepare_database(config: Config, embedded: EmbeddedPostgres | None) -> str:
    """The URL of a database that is ready for use: the embedded Postgres runs, and the schema is this release's.

    Raises EmbeddedPostgresError, UnusableDatabase or ApiError 503 where there is none.
    """
    url = await database_url(config, embedded)
    await (check_schema(url) if config.no_migrate else migrate(url))
    return url


async def database_url(config: Config, embedded: EmbeddedPostgres | None) -> str:
    """Where the database is; the embedded Postgres is started for it. Raises EmbeddedPostgresError."""
    url = config.database_url if embedded is None else await embedded.start()
    assert url is not None, "without a URL there is the embedded one"
    return url


async def _open_database(config: Config, opened: contextlib.AsyncExitStack) -> Database:
    embedded = embedded_postgres(config)
    if embedded is not None:
        opened.push_async_callback(embedded.stop)
    url = await prepare_database(config, embedded)
    database = Database.open(url, pool_size=config.pool_size, pgbouncer=config.pgbouncer)
    opened.push_async_callback(database.close)
    return database


async def refuse_unheld_role(config: Config, database: Database, tenant_count: int) -> None:
    """Raises ConfigError where Postgres would not hold the role of this database to one tenant, and has to."""
    is_demanded = config.row_level_security == "always" or (config.row_level_security == "auto" and tenant_count > 1)
    if is_demanded and await database.bypasses_row_level_security():
        raise ConfigError(UNHELD_ROLE)


async def _open_askers(config: Config, telemetry: Telemetry, keys: ApiKeys) -> Askers:
    """Raises ConfigError where nobody could say who asks, and others than this machine's users can."""
    askers = Askers(
        keys,
        telemetry,
        may_be_open=config.may_be_open,
        cache_salts=config.cache_salts,
        limits=TenantLimits(
            requests_per_minute=config.requests_per_minute, open_turns_max=config.open_turns_per_key_max
        ),
    )
    await askers.read()
    if not askers.has_keys:
        if not config.may_be_open:
            raise ConfigError(NO_KEY)
        telemetry.warning("open_to_all", host=config.host, reason="there is no API key: everybody reads everything")
    return askers


def _open_upstreams(config: Config, telemetry: Telemetry) -> Upstreams:
    return Upstreams([_open_upstream(config, settings, telemetry) for settings in config.upstreams])


def _open_upstream(config: Config, settings: UpstreamSettings, telemetry: Telemetry) -> Upstream:
    replicas = [
        UpstreamClient(
            url,
            api_key=settings.api_key,
            connect_timeout_s=config.connect_timeout_s,
            reply_timeout_s=config.reply_timeout_s,
            silence_timeout_s=config.silence_timeout_s,
            first_byte_timeout_s=config.first_byte_timeout_s,
            reply_bytes_max=config.reply_bytes_max,
            transport=TRANSPORTS[config.upstream_transport],
            trace_headers=telemetry.spans.headers,
        )
        for url in settings.urls
    ]
    return Upstream(
        name=settings.name,
        profile=settings.profile,
        replicas=replicas,
        models=settings.models,
        is_default=settings.is_default,
        think_tags=settings.think_tags,
        empty_output=settings.empty_output,
        continue_reasoning_only=settings.continue_reasoning_only,
        retries_max=config.retries_max,
        budget=settings.budget,
        forward_authorization=settings.forward_authorization,
    )


def _sweep_along(config: Config, telemetry: Telemetry, database: Database, opened: contextlib.AsyncExitStack) -> None:
    """Sweep in the background, until the rest is closed; what a sweep was at then is left to the next one."""
    if config.sweep_interval_s:
        sweeper = Sweeper(database, retention(config, database), telemetry, config.sweep_interval_s)
        opened.push_async_callback(_cancelled, asyncio.create_task(sweeper.run()))


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])


def retention(config: Config, database: Database, *, response_grace_s: float | None = None) -> Retention:
    """What a sweep may do here: it leaves alone all that a turn in flight, even the longest, can still build on."""
    grace_s = config.turn_max_s + _TURN_MARGIN_S
    return Retention(
        database,
        retention_days=config.retention_days,
        response_grace_s=grace_s if response_grace_s is None else response_grace_s,
        conversation_grace_s=grace_s,
    )


def _idempotency(config: Config, telemetry: Telemetry, turns: Turns, database: Database) -> Idempotency:
    keys = IdempotencyKeys(database, config.lease_s)
    # A stream may take longer than a whole reply may, but not its first without a client.
    wait_max_s = max(config.reply_timeout_s, config.detached_run_max_s)
    return Idempotency(turns, keys, Responses(database), telemetry, wait_max_s=wait_max_s)


def _turns(config: Config, telemetry: Telemetry, stored: Responses, preparation: Preparation) -> Turns:
    return Turns(
        stored,
        preparation,
        telemetry,
        on_disconnect=config.on_disconnect,
        limits=Limits(
            open_turns_max=config.open_turns_max,
            event_bytes_max=config.event_bytes_max,
            stream_bytes_max=config.stream_bytes_max,
            first_event_wait_s=config.first_event_wait_s,
            keep_alive_interval_s=config.keep_alive_interval_s,
            detached_run_max_s=config.detached_run_max_s,
            turn_max_s=config.turn_max_s,
        ),
    )
