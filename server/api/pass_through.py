"""Routes that are not ours: handed to the upstream of their model unread, where an operator has asked for that."""

import asyncio
from collections.abc import Sequence

from litestar import asgi
from litestar.handlers import ASGIRouteHandler
from litestar.types import Receive, Scope, Send

from server import errors
from server.api import auth, wire
from server.errors import ApiError
from server.protocol.request import parse_object
from server.telemetry import Telemetry
from server.upstream.choose import Upstream, Upstreams

_HANDED_ON = ("content-type", "accept")


def routes(paths: Sequence[str]) -> list[ASGIRouteHandler]:
    """A handler for these paths, such as `/v1/embeddings`."""
    return [asgi(list(paths), copy_scope=False)(_pass_on)] if paths else []


async def _pass_on(scope: Scope, receive: Receive, send: Send) -> None:
    """POST: the upstream's reply as it comes. What the client calls itself by stays here.

    When the client leaves the upstream is left, also before it has begun to reply: nobody pays for what nobody reads.
    """
    if scope["method"] != "POST":  # type: ignore[typeddict-item]
        raise errors.method_not_allowed(["POST"])
    state = scope["litestar_app"].state
    body = await wire.read_body(scope, receive, state.body_bytes_max)
    asker = auth.asker_of(scope)
    model = parse_object(body, state.json_depth_max).string("model")
    if model is None:
        raise errors.missing_parameter("model")
    upstreams: Upstreams = state.upstreams
    passing = asyncio.create_task(_pass(upstreams.of(model).on_behalf_of(asker.authorization), scope, body, send))
    leaving = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait([passing, leaving], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (passing, leaving):
            task.cancel()
        await asyncio.wait([passing, leaving])
    if not passing.cancelled():
        passing.result()


async def _pass(upstream: Upstream, scope: Scope, body: bytes, send: Send) -> None:
    names = [(name, name.encode()) for name in _HANDED_ON]
    given = dict(scope["headers"])
    headers = {name: given[key].decode("latin-1") for name, key in names if key in given}
    async with upstream.passed(scope["path"].removeprefix("/v1"), body, headers) as reply:
        told = [(name.encode(), value.encode("latin-1")) for name, value in reply.headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": told})
        try:
            async for chunk in reply.chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except ApiError as error:
            # It is left unfinished, so that its client sees it to be cut.
            telemetry: Telemetry = scope["litestar_app"].state.telemetry
            telemetry.warning(
                "passed_reply_broken", upstream=upstream.name, cause=type(error.__cause__ or error).__name__
            )
            return
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    """Ends when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
