"""The routes that say how the server is, and which models there are."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from litestar import Response
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from server import errors
from server.api import auth, wire
from server.api.wire import AnyRequest
from server.metrics import CONTENT_TYPE
from server.protocol import models, raw
from server.store.database import Database
from server.upstream.choose import Upstreams

METRICS_PATH = "/metrics"

_DOCUMENT = Path(__file__).with_name("openapi.json").read_bytes()

DATABASE_PROBE_S = 2.0
UPSTREAM_PROBE_S = 0.5
MODELS_MAX_S = 5.0
"""Probes wait a second or so: a model server that hangs must not make this one look as if it did."""


@wire.get(["/healthz", "/health"], auth.NO_KEY)
async def check_health() -> Response[bytes]:
    """The process is alive."""
    return wire.json_response(b'{"status":"ok"}')


@wire.get("/readyz", auth.NO_KEY)
async def check_readiness(request: AnyRequest) -> Response[bytes]:
    """Turns can be stored. The upstream is reported and gates nothing: without it reading still works."""
    database: Database = request.app.state.database
    database_is_ready, upstream_is_ready = await asyncio.gather(
        _pings(database), request.app.state.upstreams.are_reached(UPSTREAM_PROBE_S)
    )
    members = {
        "status": _readiness(database_is_ready),
        "database": _readiness(database_is_ready),
        "upstream": _readiness(upstream_is_ready),
    }
    return wire.json_response(raw.render(members), 200 if database_is_ready else 503)


@wire.get(METRICS_PATH, auth.NO_KEY)
async def read_metrics(request: AnyRequest) -> Response[bytes]:
    """What Prometheus reads. It asks nobody but the other workers, so that it answers when nothing else does."""
    text: bytes = await request.app.state.metrics_text()
    return Response(text, media_type=CONTENT_TYPE)


@wire.get("/openapi.json", auth.NO_KEY)
async def describe() -> Response[bytes]:
    """What is served here, as OpenAPI 3.1: written by hand, and held against the routes by tests."""
    return wire.json_response(_DOCUMENT)


@wire.get("/v1/models")
async def list_models(request: AnyRequest) -> Response[bytes]:
    """What all upstreams list."""
    return wire.json_response(models.model_list(await _models(request)))


@wire.get("/v1/models/{model:path}")
async def retrieve_model(request: AnyRequest) -> Response[bytes]:
    name = wire.path_text(request, "model").removeprefix("/")
    for model in await _models(request):
        if models.id_of(model) == name:
            return wire.json_response(model)
    raise errors.unknown_model(name)


def on_their_ports(metrics_port: int) -> Callable[[ASGIConnection[Any, Any, Any, Any], BaseRouteHandler], None]:
    """A guard by which metrics are read on this port alone, and nothing else there. Raises ApiError 404."""

    def refuse(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        if wire.is_on_port(connection.scope, metrics_port) != (METRICS_PATH in handler.paths):
            raise errors.route_not_found()

    return refuse


async def _pings(database: Database) -> bool:
    try:
        async with asyncio.timeout(DATABASE_PROBE_S):
            return await database.ping()
    except TimeoutError:
        return False


async def _models(request: AnyRequest) -> list[bytes]:
    upstreams: Upstreams = request.app.state.upstreams
    return await upstreams.models(MODELS_MAX_S)


def _readiness(is_ready: bool) -> bytes:
    return raw.literal("ready" if is_ready else "unavailable")


ROUTES = [check_health, check_readiness, read_metrics, describe, list_models, retrieve_model]
