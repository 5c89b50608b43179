"""The routes under /v1/responses."""

import asyncio
import contextlib
from collections.abc import Awaitable

from litestar import Response, delete, post
from litestar.datastructures import State
from litestar.types import Message, Receive, Scope, Send

from server import errors
from server.api import auth, wire
from server.api.wire import AnyRequest
from server.engine.askers import Asker
from server.engine.begun import begun
from server.engine.idempotency import Idempotency
from server.engine.prepare import Prepared
from server.engine.run import Run
from server.engine.turn import Turns
from server.errors import ApiError
from server.protocol import ids, pages, raw, response
from server.protocol.explained import explained
from server.protocol.shown import shown
from server.store.responses import Responses
from server.store.trees import Trees

CREATE_PATH = "/v1/responses"

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_JSON_HEADERS = [(b"content-type", b"application/json")]


async def create_response(state: State, scope: Scope, receive: Receive, send: Send) -> None:
    """POST: a turn, as JSON or as a stream. Outside of the framework, since this is the route whose cost counts."""
    reply = _Reply(send)
    scope["path_template"] = CREATE_PATH
    try:
        if scope["method"] != "POST":  # type: ignore[typeddict-item]
            raise errors.route_not_found() if _is_websocket(scope) else errors.method_not_allowed(["POST"])
        try:
            asker = await auth.admitted(state, scope)
            body = await wire.read_body(scope, receive, state.body_bytes_max)
        except ApiError as error:
            state.telemetry.note(code=error.code)
            await reply.refuse_unread(error, receive)
            return
        leaving = asyncio.create_task(_leave(receive))
        try:
            run = await _begin(state, asker, scope, body, leaving)
            leaving.add_done_callback(lambda _: run.leave())
            await reply.follow(run)
        finally:
            leaving.cancel()
    except wire.ClientLeft:
        return
    except ApiError as error:
        state.telemetry.note(code=error.code)
        await reply.refuse(error)
    except Exception as error:
        state.telemetry.crash("request_crashed", error)
        await reply.refuse(errors.internal())


@wire.get("/v1/responses/{response_id:str}")
async def retrieve_response(request: AnyRequest) -> Response[bytes]:
    response_id = _response_id(request)
    stored = await _responses(request).get(auth.tenant_id(request), response_id)
    if stored is None:
        raise errors.response_not_found(response_id)
    if request.query_params.get("stream") == "true":
        raise errors.not_supported("stream", "This response was not created in the background: it has no stream.")
    return wire.json_response(response.whole(raw.Object(stored.body), [shown(item) for item in stored.output]))


@delete("/v1/responses/{response_id:str}", status_code=200)
async def delete_response(request: AnyRequest) -> Response[bytes]:
    """One response, or with `cascade=true` all that continues it too; with `dry_run=true` only what that would be."""
    tenant_id, response_id = auth.tenant_id(request), _response_id(request)
    is_cascade, is_dry_run = wire.flag(request, "cascade"), wire.flag(request, "dry_run")
    members = {"id": raw.literal(response_id), "object": b'"response"', "deleted": raw.literal(not is_dry_run)}
    if is_cascade or is_dry_run:
        trees: Trees = request.app.state.trees
        count = await trees.delete(tenant_id, response_id, with_descendants=is_cascade, is_dry_run=is_dry_run)
        members["deleted_count"] = b"%d" % count
    elif not await _responses(request).delete(tenant_id, response_id):
        raise errors.response_not_found(response_id)
    return wire.json_response(raw.render(members))


@wire.get("/v1/responses/{response_id:str}/input_items")
async def list_input_items(request: AnyRequest) -> Response[bytes]:
    query = request.query_params
    page = pages.parse_page_request(query.get("limit"), query.get("order"), query.get("after"))
    response_id = _response_id(request)
    items = await _responses(request).input_items(auth.tenant_id(request), response_id)
    if items is None:
        raise errors.response_not_found(response_id)
    return wire.json_response(pages.item_page(items, page))


@post("/v1/responses/{response_id:str}/cancel")
async def cancel_response(request: AnyRequest) -> Response[bytes]:
    response_id = _response_id(request)
    if await _responses(request).get(auth.tenant_id(request), response_id) is None:
        raise errors.response_not_found(response_id)
    raise errors.cannot_cancel()


@post("/v1/responses/replay", status_code=200)
async def rehearse_response(request: AnyRequest) -> Response[bytes]:
    """What a create request would send upstream, and why; or the one that made a response. Nothing is sent, or kept."""
    state = request.app.state
    body = await wire.read_body(request.scope, request.receive, state.body_bytes_max)
    prepared: Prepared = await state.preparation.rehearse(auth.asker_of(request.scope), body)
    return wire.json_response(
        explained(
            upstream=prepared.upstream.name,
            dialect=prepared.upstream.profile.dialect,
            body=b"".join(prepared.body),
            decisions=prepared.decisions,
            input_count=len(prepared.input_items),
        )
    )


@post(["/v1/responses/{operation:str}"])
async def refuse_operation() -> Response[bytes]:
    """Compact and input_tokens are not there yet (DESIGN 7.9): their path is unknown, not their method wrong."""
    raise errors.route_not_found()


ROUTES = [
    retrieve_response,
    delete_response,
    list_input_items,
    cancel_response,
    rehearse_response,
    refuse_operation,
]


class _Reply:
    """The answer to one create request; its headers leave with the first bytes, so that an error keeps its status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._has_started = False

    async def follow(self, run: Run) -> None:
        """Reply with what the run gives."""
        if run.is_stream:
            await self._follow_stream(run)
        elif answer := await run.read():
            await self._start(200, [*_JSON_HEADERS, _length(answer)])
            await self._send({"type": "http.response.body", "body": answer, "more_body": False})

    async def _follow_stream(self, run: Run) -> None:
        """A client that is let go of must see that its reply has no end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as patience:
                # A reader that is let go of may hold up the sending for as long as it likes.
                run.on_let_go = lambda: patience.reschedule(0)
                await self._send_all(run)

    async def _send_all(self, run: Run) -> None:
        while chunk := await run.read():
            if not self._has_started:
                await self._start(200, _STREAM_HEADERS)
                run.send_by = self._send_at_once
            await self._send(_piece(chunk))
        if self._has_started and run.is_followed:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _send_at_once(self, chunk: bytes) -> Awaitable[None] | None:
        return begun(self._send(_piece(chunk)))

    async def refuse(self, error: ApiError) -> None:
        """Answer with an error; where the answer has begun, leave it unfinished, so that it is seen to be cut."""
        if not self._has_started:
            await self._start_error(error, [])
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def refuse_unread(self, error: ApiError, receive: Receive) -> None:
        """Answer with an error before the request's body has come; the connection ends behind it."""
        await self._start_error(error, [(b"connection", b"close")])
        await wire.discard_body(receive)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start_error(self, error: ApiError, extra: list[tuple[bytes, bytes]]) -> None:
        body = wire.error_body(error)
        headers = [(name.encode(), value.encode()) for name, value in wire.error_headers(error).items()]
        await self._start(error.status, [*_JSON_HEADERS, _length(body), *headers, *extra])
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._has_started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


def _piece(chunk: bytes) -> Message:
    return {"type": "http.response.body", "body": chunk, "more_body": True}


def _length(body: bytes) -> tuple[bytes, bytes]:
    return b"content-length", b"%d" % len(body)


async def _begin(state: State, asker: Asker, scope: Scope, body: bytes, leaving: "asyncio.Task[None]") -> Run:
    key = dict(scope["headers"]).get(b"idempotency-key")
    if key is not None:
        idempotency: Idempotency = state.idempotency
        return await idempotency.begin(asker, body, key.decode("latin-1"), leaving)
    turns: Turns = state.turns
    return await turns.begin(asker, body, ids.new_response_id())


def _is_websocket(scope: Scope) -> bool:
    """Whether a client asks for a WebSocket here, which it can't have yet (DESIGN 7.9)."""
    return dict(scope["headers"]).get(b"upgrade", b"").lower() == b"websocket"


async def _leave(receive: Receive) -> None:
    """Ends when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _response_id(request: AnyRequest) -> str:
    """The id in the path; one that can't be any response's is unknown like any other."""
    response_id = wire.path_text(request, "response_id")
    if not ids.is_usable(response_id):
        raise errors.response_not_found("(unprintable)")
    return response_id


def _responses(request: AnyRequest) -> Responses:
    responses: Responses = request.app.state.responses
    return responses
