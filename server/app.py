"""The composition root: a configuration goes in, an ASGI application comes out. It opens and closes everything."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from litestar import Litestar
from litestar.exceptions import HTTPException

from server.api import conversations as conversations_api
from server.api import responses as responses_api
from server.api import system as system_api
from server.api import wire
from server.config import Config
from server.embedded import EmbeddedPostgres
from server.engine.conversations import ConversationEdits
from server.engine.history import Histories
from server.engine.turn import Limits, Turns
from server.errors import ApiError
from server.protocol import profile
from server.store.conversations import Conversations
from server.store.database import Database, check_schema, migrate
from server.store.leases import Leases
from server.store.responses import Responses
from server.telemetry import Telemetry
from server.upstream.choose import Upstream, Upstreams
from server.upstream.client import UpstreamClient

UPSTREAM_NAME = "default"
"""The name of the one upstream that `--upstream` gives; the issuer of what it makes."""


def create(config: Config, telemetry: Telemetry) -> Litestar:
    """The application. What it needs is opened by its start-up and closed by its shutdown.

    Its start-up raises EmbeddedPostgresError, UnusableDatabase or ApiError 503 where there is no database to use.
    """
    assert config.upstream is not None, "a server without an upstream is refused before it is made"
    return Litestar(
        route_handlers=[*responses_api.ROUTES, *conversations_api.ROUTES, *system_api.ROUTES],
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
            histories = Histories(stored, conversations, Leases(database, config.lease_s), telemetry)
            turns = _turns(config, telemetry, stored, histories, upstreams)
            opened.push_async_callback(turns.close)
            services: dict[str, Any] = {
                "body_bytes_max": config.body_bytes_max,
                "conversations": ConversationEdits(conversations, histories, json_depth_max=config.json_depth_max),
                "database": database,
                "responses": stored,
                "telemetry": telemetry,
                "turns": turns,
                "upstreams": upstreams,
            }
            app.state.update(services)
            yield

    return lifespan


async def _open_database(config: Config, opened: contextlib.AsyncExitStack) -> Database:
    url = config.database_url
    if url is None:
        embedded = EmbeddedPostgres(config.data_dir)
        opened.push_async_callback(embedded.stop)
        url = await embedded.start()
    await (check_schema(url) if config.no_migrate else migrate(url))
    database = Database.open(url, pool_size=config.pool_size, pgbouncer=config.pgbouncer)
    opened.push_async_callback(database.close)
    return database


def _open_upstreams(config: Config) -> Upstreams:
    assert config.upstream is not None
    client = UpstreamClient(
        config.upstream,
        api_key=config.upstream_api_key,
        connect_timeout_s=config.connect_timeout_s,
        reply_timeout_s=config.reply_timeout_s,
        silence_timeout_s=config.silence_timeout_s,
        reply_bytes_max=config.reply_bytes_max,
    )
    vllm = msgspec.structs.replace(profile.VLLM, encrypted_only=config.encrypted_only)
    return Upstreams([Upstream(name=UPSTREAM_NAME, profile=vllm, client=client)])


def _turns(
    config: Config, telemetry: Telemetry, stored: Responses, histories: Histories, upstreams: Upstreams
) -> Turns:
    return Turns(
        stored,
        histories,
        upstreams,
        telemetry,
        on_disconnect=config.on_disconnect,
        limits=Limits(
            json_depth_max=config.json_depth_max,
            event_bytes_max=config.event_bytes_max,
            stream_bytes_max=config.stream_bytes_max,
            first_event_wait_s=config.first_event_wait_s,
            keep_alive_interval_s=config.keep_alive_interval_s,
            detached_run_max_s=config.detached_run_max_s,
        ),
    )
