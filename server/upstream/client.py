"""The upstream as a client sees it: one call a turn, its bytes, and its faults in our words.

What lives here speaks HTTP and reads no item. Whatever goes wrong becomes an ApiError here (DESIGN 8): before the
upstream's 2xx headers with the status that the client gets, afterwards as the reason why the stream failed. The
client's own headers never reach the upstream, but for its Authorization where the operator wants it so.
"""

import asyncio
import contextlib
import copy
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, cast

import httpx

from server import errors
from server.errors import ApiError
from server.protocol import upstream_words
from server.upstream.body import Body
from server.upstream.refusals import REFUSAL_BYTES_MAX, refusal
from server.upstream.transport import lean

_LAST_BYTES_S = 0.05
_HANDED_BACK = ("content-type", "retry-after")


_Header = tuple[bytes, bytes]

_NO_BODY: Final[Sequence[_Header]] = [(b"accept", b"application/json, text/event-stream")]
_JSON: Final[Sequence[_Header]] = [*_NO_BODY, (b"content-type", b"application/json")]


class Passed(NamedTuple):
    """The reply to a request that was handed on unread, with those of its headers that say how to take it."""

    status: int
    headers: dict[str, str]
    chunks: AsyncIterator[bytes]


class Reply:
    """The answer to a streamed request, from its 2xx headers on; raises ApiError where it breaks off, or is too large.

    `is_json` tells of one JSON body, which some servers send all the same.
    """

    def __init__(self, response: httpx.Response, bytes_max: int) -> None:
        # Its name is written in any case (RFC 9110, 8.3.1).
        self.is_json = response.headers.get("content-type", "").lower().startswith("application/json")
        self._body = cast(Body, response.stream)
        self._bytes = 0
        self._bytes_max = bytes_max

    async def pour(self, take: Callable[[bytes], bool]) -> None:
        """Gives `take` what comes as it comes, until it has enough, or all; `Body.pour` tells how it is called."""

        def counted(piece: bytes) -> bool:
            self._bytes += len(piece)
            if self._bytes > self._bytes_max:
                raise _too_large(self._bytes_max)
            return take(piece)

        with _translated():
            await self._body.pour(counted)

    async def whole(self) -> bytes:
        pieces: list[bytes] = []

        def keep(piece: bytes) -> bool:
            pieces.append(piece)
            return False

        await self.pour(keep)
        return b"".join(pieces)


class _Body(httpx.AsyncByteStream):
    """A body that is there already, handed to the transport without a copy."""

    def __init__(self, body: Sequence[bytes]) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._body:
            yield piece


class UpstreamClient:
    """One model server. `base_url` ends in `/v1`, paths come behind it; times are in seconds, sizes in bytes.

    `trace_headers` are asked for at each call.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None,
        connect_timeout_s: float,
        reply_timeout_s: float,
        silence_timeout_s: float,
        first_byte_timeout_s: float,
        reply_bytes_max: int,
        transport: Callable[[], httpx.AsyncBaseTransport] = lean,
        trace_headers: Callable[[], Sequence[_Header]] = tuple,
    ) -> None:
        self.base_url = base_url
        self._api_key = api_key
        self._connect_timeout_s = connect_timeout_s
        self._reply_timeout_s = reply_timeout_s
        self._first_byte_timeout_s = first_byte_timeout_s
        self._reply_bytes_max = reply_bytes_max
        self._transport = transport()
        self._trace_headers = trace_headers
        self._headers: list[_Header] = [(b"accept-encoding", b"identity")]
        if api_key is not None:
            self._headers.append((b"authorization", b"Bearer " + api_key.encode()))
        self._limits = {"connect": connect_timeout_s, "read": None, "write": None, "pool": None}
        self._stream_limits = {**self._limits, "read": silence_timeout_s}

    async def close(self) -> None:
        await self._transport.aclose()

    def with_authorization(self, authorization: str) -> "UpstreamClient":
        """This client over the same connections, with this header in place of its own key."""
        other = copy.copy(self)
        own = [(name, value) for name, value in self._headers if name != b"authorization"]
        other._headers = [*own, (b"authorization", authorization.encode("latin-1"))]
        other._api_key = authorization.rpartition(" ")[2]
        return other

    def fit_to_tell(self, message: object) -> str | None:
        """What a caller may read of this upstream's words: nothing of the key that it knows from us."""
        return upstream_words.fit_to_tell(message, self._api_key)

    async def create(self, path: str, body: Sequence[bytes], model: str) -> bytes:
        """The whole reply to a request that is not streamed; raises ApiError for all but a 2xx."""
        return await self._whole("POST", path, body, model, self._reply_timeout_s)

    @contextlib.asynccontextmanager
    async def stream(self, path: str, body: Sequence[bytes], model: str) -> AsyncIterator[Reply]:
        """A streamed reply, from its 2xx headers on.

        Raises ApiError: on entry for what the upstream refuses, within the iteration for a stream that breaks off.
        """
        response = await self._accepted("POST", path, body, model, is_stream=True)
        try:
            reply = Reply(response, self._reply_bytes_max)
            yield reply
            await _read_last_bytes(reply)
        finally:
            await _close(response)

    async def models(self) -> bytes:
        """The body of the upstream's `GET /models`, as it came."""
        return await self._whole("GET", "/models", (), "", self._connect_timeout_s)

    @contextlib.asynccontextmanager
    async def passed(self, path: str, body: Sequence[bytes], headers: Mapping[str, str]) -> AsyncIterator[Passed]:
        """The reply to a request that is handed on unread, whatever its status; raises ApiError where there is none."""
        given = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        response = await self._answered("POST", path, body, given, is_stream=True)
        try:
            if response.status_code >= 600:
                # None of HTTP's (RFC 9110, 15), which can't be handed on.
                raise errors.upstream_broken(f"it answered {response.status_code}.")
            handed_back = {name: response.headers[name] for name in _HANDED_BACK if name in response.headers}
            async with contextlib.aclosing(self._chunks(response)) as chunks:
                yield Passed(response.status_code, handed_back, chunks)
        finally:
            await _close(response)

    async def _whole(self, method: str, path: str, body: Sequence[bytes], model: str, timeout_s: float) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._accepted(method, path, body, model, is_stream=False)
                try:
                    return b"".join([chunk async for chunk in self._chunks(response)])
                finally:
                    await _close(response)
        except TimeoutError:
            raise errors.upstream_too_slow() from None

    async def _accepted(
        self, method: str, path: str, body: Sequence[bytes], model: str, *, is_stream: bool
    ) -> httpx.Response:
        """A 2xx reply, from its headers on, for whoever closes it; raises ApiError for any other."""
        response = await self._answered(method, path, body, _JSON if body else _NO_BODY, is_stream=is_stream)
        if response.is_success:
            return response
        try:
            beginning = await self._beginning(response)
        finally:
            await _close(response)
        raise refusal(response.status_code, response.headers, beginning, model, self._api_key)

    async def _answered(
        self, method: str, path: str, body: Sequence[bytes], headers: Sequence[_Header], *, is_stream: bool
    ) -> httpx.Response:
        """The reply to one request, from its headers on, for whoever closes it."""
        length = [(b"content-length", b"%d" % sum(map(len, body)))] if body else []
        request = httpx.Request(
            method,
            _url(self.base_url + path),
            headers=httpx.Headers([*headers, *self._headers, *length, *self._trace_headers()]),
            # Without one, a GET has no body at all: some servers take an empty chunked one for the next request.
            stream=_Body(body) if body else None,
            extensions={"timeout": self._stream_limits if is_stream else self._limits},
        )
        with _translated():
            if not is_stream:
                return await self._transport.handle_async_request(request)
            async with asyncio.timeout(self._first_byte_timeout_s):
                return await self._transport.handle_async_request(request)

    async def _beginning(self, response: httpx.Response) -> bytes:
        """As much of a refusal as can hold an error object; a refusal that breaks off is judged by its status alone."""
        pieces, size = [], 0
        with contextlib.suppress(ApiError, TimeoutError):
            async with asyncio.timeout(self._connect_timeout_s):
                async for chunk in self._chunks(response):
                    pieces.append(chunk)
                    size += len(chunk)
                    if size > REFUSAL_BYTES_MAX:
                        break
        return b"".join(pieces)

    async def _chunks(self, response: httpx.Response) -> AsyncGenerator[bytes]:
        """The bytes of a reply as they come; raises ApiError where they break off, or are too many."""
        size = 0
        with _translated():
            async for chunk in response.stream:  # type: ignore[union-attr]
                size += len(chunk)
                if size > self._reply_bytes_max:
                    raise _too_large(self._reply_bytes_max)
                yield chunk


def _too_large(bytes_max: int) -> ApiError:
    return errors.upstream_broken(f"its reply is larger than {bytes_max} bytes.")


async def _close(response: httpx.Response) -> None:
    with contextlib.suppress(httpx.HTTPError):
        await response.aclose()


@functools.lru_cache(maxsize=64)
def _url(text: str) -> httpx.URL:
    """A URL is parsed once: that takes longer than all else of a request, and there are few."""
    return httpx.URL(text)


async def _read_last_bytes(reply: Reply) -> None:
    """Let the upstream end a stream whose last event has come: a connection that is read to its end is used again."""
    with contextlib.suppress(ApiError, TimeoutError):
        async with asyncio.timeout(_LAST_BYTES_S):
            await reply.pour(lambda _: False)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except httpx.ConnectTimeout as error:
        raise errors.upstream_not_connected() from error
    except httpx.ConnectError as error:
        raise errors.upstream_unreachable() from error
    except (httpx.TimeoutException, TimeoutError) as error:
        raise errors.upstream_too_slow() from error
    except httpx.HTTPError as error:
        raise errors.upstream_broken("its reply broke off, or is no HTTP.") from error
