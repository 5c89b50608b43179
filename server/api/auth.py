"""Whose a request is, before anything else of it is read."""

from typing import Any

from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.handlers import BaseRouteHandler
from litestar.types import Scope

from server.api.wire import AnyRequest
from server.engine.askers import Asker, Askers
from server.engine.quotas import Requests

NO_KEY = {"asks_for_key": False}
"""The `opt` of a route that everybody may ask."""


async def admitted(state: State, scope: Scope) -> Asker:
    """Whose request this is; raises ApiError: 401, 429 where he asks too often, 503 where the database can't tell."""
    header = next((value for name, value in scope["headers"] if name == b"authorization"), None)
    askers: Askers = state.askers
    requests: Requests = state.requests
    asker = await askers.of(None if header is None else header.decode("latin-1"))
    state.telemetry.note(tenant_id=asker.tenant_id)
    requests.admit(asker)
    return asker


async def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """For every route of the framework's, which then finds its asker by `asker_of`."""
    if handler.opt.get("asks_for_key", True):
        connection.scope["state"]["asker"] = await admitted(connection.app.state, connection.scope)


def asker_of(scope: Scope) -> Asker:
    asker: Asker = scope["state"]["asker"]
    return asker


def tenant_id(request: AnyRequest) -> int:
    return asker_of(request.scope).tenant_id
