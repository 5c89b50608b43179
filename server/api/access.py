"""What is around every request: its id, its line in the log, and the count of the errors that it was answered with.

What lives here sees no body and no path as it was sent: a line names the route, and ids of the form of ours.
"""

import re
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final

from litestar.types import Message, Receive, Scope, Send

from server.protocol import ids
from server.telemetry import Field, RequestLine, Telemetry

PROBES: Final = ("/healthz", "/health", "/readyz", "/metrics")
"""Routes that machines ask every few seconds: their lines are written at level debug alone."""

# A client's own id is taken where nothing but an id can be said with it.
_USABLE_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")

_Application = Callable[[Scope, Receive, Send], Awaitable[None]]


async def told(application: _Application, telemetry: Telemetry, scope: Scope, receive: Receive, send: Send) -> None:
    """Let the application answer a request, and write its line."""
    began_s = time.perf_counter()
    request_id, traceparent = _ids_of_headers(scope)
    method: str = scope["method"]  # type: ignore[typeddict-item]
    with telemetry.request(request_id) as line, telemetry.spans.request(method, request_id, traceparent) as end_span:
        answer = _Answer(request_id, send)
        try:
            await application(scope, receive, answer.send)
        finally:
            _tell(telemetry, scope, line, answer, time.perf_counter() - began_s)
            end_span(_route(scope), answer.status)


class _Answer:
    """What goes to the client: its id is put in, its status and its bytes are remembered."""

    def __init__(self, request_id: str, send: Send) -> None:
        self._header = (b"x-request-id", request_id.encode())
        self._send = send
        self.status: int | None = None
        self.bytes = 0

    def send(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.body":
            self.bytes += len(message["body"])
        elif message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], self._header]
        return self._send(message)


def _ids_of_headers(scope: Scope) -> tuple[str, str | None]:
    """The id of a request, its client's own where that is one, and its `traceparent`."""
    request_id = traceparent = None
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _USABLE_ID.fullmatch(value):
            request_id = value.decode()
        elif name == b"traceparent":
            traceparent = value.decode("latin-1")
    return request_id or f"req_{secrets.token_hex(16)}", traceparent


def _tell(telemetry: Telemetry, scope: Scope, line: RequestLine, answer: _Answer, duration_s: float) -> None:
    code = line.noted.get("code")
    if answer.status is not None and answer.status >= 400:
        telemetry.metrics.error_told(answer.status, code if isinstance(code, str) else None)
    route = _route(scope)
    fields: dict[str, Field] = {
        "method": scope["method"],  # type: ignore[typeddict-item]
        "route": route,
        "status": answer.status,
        "bytes": answer.bytes,
        "duration_ms": round(duration_s * 1000, 1),
        **_ids(scope),
        **{name: value for name, value in line.noted.items() if value is not None},
    }
    log = telemetry.debug if route in PROBES else telemetry.info
    log("request", **fields)


def _route(scope: Scope) -> str | None:
    """The template of the route that answered, None for a path that led nowhere."""
    template: str | None = scope.get("path_template")
    handler = scope.get("route_handler")
    if template is None or handler is None:
        return template
    # Routes that differ in their method alone share one template, in which only one of them can name its parameter.
    own = [re.sub(r":\w+}", "}", path) for path in handler.paths]
    return template if template in own else own[0]


def _ids(scope: Scope) -> dict[str, Field]:
    """The ids in its path that are ours; any other text there is its client's."""
    given = scope.get("path_params") or {}
    known = {"response_id": ids.is_response_id, "conversation_id": ids.is_conversation_id}
    return {name: given[name] for name, is_ours in known.items() if name in given and is_ours(given[name])}
