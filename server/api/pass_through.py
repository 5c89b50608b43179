"""Routes that are not ours: handed to the upstream of their model unread, where an operator has asked for that."""

import contextlib
from collections.abc import AsyncIterator, Sequence

from litestar import post
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream

from server import errors
from server.api import wire
from server.api.wire import AnyRequest
from server.protocol.request import parse_object
from server.upstream.choose import Upstreams

_HANDED_ON = ("content-type", "accept")


def routes(paths: Sequence[str]) -> list[HTTPRouteHandler]:
    """A handler for these paths, such as `/v1/embeddings`."""
    return [post(list(paths))(_pass_on)] if paths else []


async def _pass_on(request: AnyRequest) -> Stream:
    """The upstream's reply as it comes: status, content type, bytes. What the client calls itself by stays here."""
    state = request.app.state
    body = await wire.read_body(request.scope, request.receive, state.body_bytes_max)
    model = parse_object(body, state.json_depth_max).string("model")
    if model is None:
        raise errors.missing_parameter("model")
    upstreams: Upstreams = state.upstreams
    headers = {name: value for name in _HANDED_ON if (value := request.headers.get(name)) is not None}
    async with contextlib.AsyncExitStack() as opened:
        path = request.scope["path"].removeprefix("/v1")
        reply = await opened.enter_async_context(upstreams.of(model).passed(path, body, headers))
        # From here on the stream closes what was opened: when it has ended, or its client has left.
        return Stream(
            _until_end(reply.chunks, opened.pop_all()),
            status_code=reply.status,
            media_type=reply.content_type or wire.JSON,
        )


async def _until_end(chunks: AsyncIterator[bytes], opened: contextlib.AsyncExitStack) -> AsyncIterator[bytes]:
    async with opened:
        async for chunk in chunks:
            yield chunk
