"""aiohttp in the place of the lean transport, with its faults under the names that httpx has for them.

What lives here stands beside `transport.py` and passes the same tests (ADR 9). httpx-aiohttp reports most connections
that fail or break as time-outs, and of what is no HTTP it translates nothing.
"""

import contextlib
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import cast

import aiohttp
import httpx
from aiohttp.http_exceptions import HttpProcessingError
from httpx_aiohttp import AiohttpTransport

from server.upstream.body import Body

_CONNECTIONS_MAX = 100_000

# Of an aiohttp exception the first that fits is what really happened.
_MEANINGS: tuple[tuple[type[Exception], type[httpx.TransportError]], ...] = (
    (aiohttp.ConnectionTimeoutError, httpx.ConnectTimeout),
    (aiohttp.ClientConnectorError, httpx.ConnectError),
    (TimeoutError, httpx.ReadTimeout),
    (aiohttp.ServerDisconnectedError, httpx.RemoteProtocolError),
    (aiohttp.ClientConnectionError, httpx.ReadError),
    (aiohttp.ClientError, httpx.RemoteProtocolError),
    (HttpProcessingError, httpx.RemoteProtocolError),
)


class NamedFaults(httpx.AsyncBaseTransport):
    """httpx-aiohttp's transport, raising what `transport.LeanTransport` raises."""

    def __init__(self, tls: ssl.SSLContext, idle_max_s: float) -> None:
        limits = httpx.Limits(max_connections=_CONNECTIONS_MAX, keepalive_expiry=idle_max_s)
        self._transport = AiohttpTransport(verify=tls, limits=limits, trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        with _named():
            response = await self._transport.handle_async_request(request)
        response.stream = _Body(cast(httpx.AsyncByteStream, response.stream))
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()


class _Body(Body):
    def __init__(self, body: httpx.AsyncByteStream) -> None:
        self._body = body
        self._pieces = self._iterated()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def _iterated(self) -> AsyncGenerator[bytes]:
        with _named():
            async for piece in self._body:
                yield piece

    async def aclose(self) -> None:
        await self._pieces.aclose()
        with _named():
            await self._body.aclose()


@contextlib.contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except (httpx.TransportError, aiohttp.ClientError, HttpProcessingError) as error:
        cause = error.__cause__ if isinstance(error, httpx.TransportError) else error
        for kind, meaning in _MEANINGS:
            if isinstance(cause, kind):
                raise meaning("The connection failed or broke.") from cause
        raise
