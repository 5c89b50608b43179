"""The composition root: a configuration goes in, an ASGI application comes out. It opens and closes everything."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from litestar import Litestar
from litestar.exceptions import HTTPException

from server.api import conversations as conversations_api
from server.api import pass_through as pass_through_api
from server.api import responses as responses_api
from server.api import system as system_api
from server.api import wire
from server.config import Config, UpstreamSettings
from server.embedded import EmbeddedPostgres
from server.engine.conversations import ConversationEdits
from server.engine.history import Histories
from server.engine.idempotency import Idempotency
from server.engine.prepare import Preparation
from server.engine.recent import RecentHistories
from server.engine.sweep import Sweeper
from server.engine.turn import Limits, Turns
from server.errors import ApiError
from server.store.conversations import Conversations
from server.store.database import Database, check_schema, migrate
from server.store.idempotency import IdempotencyKeys
from server.store.leases import Leases
from server.store.responses import Responses
from server.store.retention import Retention
from server.store.trees import Trees
from server.telemetry import Telemetry
from server.upstream.choose import Upstream, Upstreams
from server.upstream.client import UpstreamClient
from server.upstream.transport import TRANSPORTS

# What a turn may need beside its own time, to read what it builds on and to be stored.
_TURN_MARGIN_S: Final = 120


class _Application(Litestar):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        wire.route_by_raw_path(scope)
        if scope["type"] == "http" and scope["path"].rstrip("/") == responses_api.CREATE_PATH:
            # What the framework does for a request takes a fifth of a turn's time (DESIGN 9).
            await responses_api.create_response(self.state, scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create(config: Config, telemetry: Telemetry) -> Litestar:
    """The application. What it needs is opened by its start-up and closed by its shutdown.

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
        lifespan=[_lifespan(config, telemetry)],
        before_send=[wire.add_request_id],
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


def _lifespan(
    config: Config, telemetry: Telemetry
) -> Callable[[Litestar], contextlib.AbstractAsyncContextManager[None]]:
    @contextlib.asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as opened:
            database = await _open_database(config, opened)
            upstreams = _open_upstreams(config)
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
            _sweep_along(config, telemetry, database, opened)
            services: dict[str, Any] = {
                "body_bytes_max": config.body_bytes_max,
                "conversations": ConversationEdits(conversations, histories, json_depth_max=config.json_depth_max),
                "database": database,
                "idempotency": idempotency,
                "json_depth_max": config.json_depth_max,
                "preparation": preparation,
                "responses": stored,
                "telemetry": telemetry,
                "trees": Trees(database),
                "turns": turns,
                "upstreams": upstreams,
            }
            app.state.update(services)
            yield

    return lifespan


def embedded_postgres(config: Config) -> EmbeddedPostgres | None:
    """The Postgres that is the server's own, not started yet; None where there is another."""
    return EmbeddedPostgres(config.data_dir) if config.database_url is None else None


async def prepare_database(config: Config, embedded: EmbeddedPostgres | None) -> str:
    """The URL of a database that is ready for use: the embedded Postgres runs, and the schema is this release's.

    Raises EmbeddedPostgresError, UnusableDatabase or ApiError 503 where there is none.
    """
    url = config.database_url if embedded is None else await embedded.start()
    assert url is not None, "without a URL there is the embedded one"
    await (check_schema(url) if config.no_migrate else migrate(url))
    return url


async def _open_database(config: Config, opened: contextlib.AsyncExitStack) -> Database:
    embedded = embedded_postgres(config)
    if embedded is not None:
        opened.push_async_callback(embedded.stop)
    url = await prepare_database(config, embedded)
    database = Database.open(url, pool_size=config.pool_size, pgbouncer=config.pgbouncer)
    opened.push_async_callback(database.close)
    return database


def _open_upstreams(config: Config) -> Upstreams:
    return Upstreams([_open_upstream(config, settings) for settings in config.upstreams])


def _open_upstream(config: Config, settings: UpstreamSettings) -> Upstream:
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
