"""The routes that say how the server is, and which models there are."""

from typing import Any

from litestar import Request, Response, get

from server.api import wire
from server.errors import ApiError
from server.protocol import raw
from server.store.database import Database
from server.upstream.client import UpstreamClient


@get(["/healthz", "/health"])
async def check_health() -> Response[bytes]:
    """The process is alive."""
    return wire.json_response(b'{"status":"ok"}')


@get("/readyz")
async def check_readiness(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Turns can be stored. The upstream is reported and gates nothing: without it reading still works."""
    database: Database = request.app.state.database
    upstream: UpstreamClient = request.app.state.upstream
    is_ready = await database.ping()
    try:
        await upstream.models()
        upstream_state = "ready"
    except ApiError:
        upstream_state = "unavailable"
    members = {
        "status": raw.literal("ready" if is_ready else "unavailable"),
        "database": raw.literal("ready" if is_ready else "unavailable"),
        "upstream": raw.literal(upstream_state),
    }
    return wire.json_response(raw.render(members), 200 if is_ready else 503)


@get("/v1/models")
async def list_models(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The upstream's list, as it came."""
    upstream: UpstreamClient = request.app.state.upstream
    return wire.json_response(await upstream.models())


ROUTES = [check_health, check_readiness, list_models]
