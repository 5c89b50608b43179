"""What every route shares: errors, bodies and ids of requests on the wire. The one place that renders errors."""

import asyncio
import contextlib
from typing import Any
from urllib.parse import unquote

import msgspec
from litestar import HttpMethod, Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException
from litestar.handlers import HTTPRouteHandler
from litestar.types import Receive, Scope

from server import errors
from server.errors import ApiError
from server.telemetry import Telemetry

JSON = "application/json"

AnyRequest = Request[Any, Any, Any]

_LENGTH_DIGITS_MAX = 18

_DISCARD_MAX_S = 5


class ClientLeft(Exception):
    """The client went before its request was whole."""


def get(path: str | list[str], opt: dict[str, Any] | None = None) -> HTTPRouteHandler:
    """A route that is read, also by HEAD: that is its answer without the body (RFC 9110, 9.3.2)."""
    return HTTPRouteHandler(path, http_method=[HttpMethod.GET, HttpMethod.HEAD], opt=opt)


def path_text(request: AnyRequest, name: str) -> str:
    """A parameter of the path as its client meant it: a slash in it does not end it (`route_by_raw_path`)."""
    return unquote(request.path_params[name])


def flag(request: AnyRequest, name: str) -> bool:
    """A parameter of the query, `true` or by default `false`; raises ApiError 400 for anything else."""
    value = request.query_params.get(name, "false")
    if value not in ("true", "false"):
        raise errors.invalid_value(name, ("true", "false"))
    return bool(value == "true")


def route_by_raw_path(scope: Scope) -> None:
    """Let a route be found by the path as it was sent, so that an escaped slash is one in an id."""
    if scope.get("raw_path"):
        scope["path"] = scope["raw_path"].decode("latin-1")


def is_on_port(scope: Scope, port: int) -> bool:
    """Whether a request came by this one of the server's ports; by 0 comes none."""
    server = scope["server"]
    return server is not None and port != 0 and server[1] == port


def json_response(body: bytes, status: int = 200) -> Response[bytes]:
    return Response(body, status_code=status, media_type=JSON)


def error_body(error: ApiError) -> bytes:
    members = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return msgspec.json.encode({"error": {name: _encodable(value) for name, value in members.items()}})


def error_headers(error: ApiError) -> dict[str, str]:
    headers = {
        "retry-after": error.retry_after,
        "allow": error.allow,
        "www-authenticate": error.challenge,
        "x-should-retry": None if error.should_retry else "false",
    }
    return {name: value for name, value in headers.items() if value is not None}


def render_api_error(request: AnyRequest, error: ApiError) -> Response[bytes]:
    request.app.state.telemetry.note(code=error.code)
    if error.status >= 500:
        request.app.state.telemetry.warning("request_failed", status=error.status, code=error.code, cause=error.cause)
    return Response(error_body(error), status_code=error.status, media_type=JSON, headers=error_headers(error))


def render_http_exception(request: AnyRequest, exception: HTTPException) -> Response[bytes]:
    """The framework's own refusals: of a path, a method, a request that it can't read."""
    if isinstance(exception, MethodNotAllowedException):
        allowed = (exception.headers or {}).get("allow", "")
        return render_api_error(request, errors.method_not_allowed(allowed.split(", ")))
    if exception.status_code == 404:
        return render_api_error(request, errors.route_not_found())
    if exception.status_code < 500:
        return render_api_error(request, errors.bad_request(exception.status_code))
    return render_crash(request, exception)


def render_crash(request: AnyRequest, exception: Exception) -> Response[bytes]:
    telemetry: Telemetry = request.app.state.telemetry
    telemetry.crash("request_crashed", exception)
    return render_api_error(request, errors.internal())


def render_client_left(request: AnyRequest, _: ClientLeft) -> Response[bytes]:
    """Nobody reads it, but the framework wants an answer."""
    return render_api_error(request, errors.bad_request(400))


async def read_body(scope: Scope, receive: Receive, bytes_max: int) -> bytes:
    """The request's body. Raises ApiError 413 as soon as it is known to be too large, ClientLeft if it ends early."""
    declared = dict(scope["headers"]).get(b"content-length", b"")
    if declared.isdigit() and (
        len(declared.lstrip(b"0")) > _LENGTH_DIGITS_MAX or int(declared[-_LENGTH_DIGITS_MAX:]) > bytes_max
    ):
        raise errors.body_too_large(bytes_max)
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        piece: bytes = message.get("body", b"")  # type: ignore[assignment]
        size += len(piece)
        if size > bytes_max:
            raise errors.body_too_large(bytes_max)
        pieces.append(piece)
        if not message.get("more_body"):
            return b"".join(pieces)


async def discard_body(receive: Receive) -> None:
    """Read on for a while behind a refusal: a connection closed with bytes unread loses the answer as well."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_MAX_S):
            while (await receive()).get("more_body"):
                pass


def _encodable(value: str | None) -> str | None:
    return None if value is None else value.encode("utf-8", "replace").decode()
