"""The routes that say how the server is, and which models there are."""

import asyncio

from litestar import Response

from server import errors
from server.api import auth, wire
from server.api.wire import AnyRequest
from server.protocol import models, raw
from server.store.database import Database
from server.upstream.choose import Upstreams

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


ROUTES = [check_health, check_readiness, list_models, retrieve_model]
