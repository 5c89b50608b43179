"""The upstream as a client sees it: one call a turn, its bytes, and its faults in our words.

What lives here speaks HTTP and reads no item. Whatever goes wrong becomes an ApiError here (DESIGN 8): before the
upstream's 2xx headers with the status that the client gets, afterwards as the reason why the stream failed. The
client's own headers never reach the upstream.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import httpx

from server import errors
from server.errors import ApiError
from server.upstream.refusals import REFUSAL_BYTES_MAX, refusal
from server.upstream.transport import lean

_LAST_BYTES_S = 0.05
_HANDED_BACK = ("content-type", "retry-after")


class Reply(NamedTuple):
    """The answer to a streamed request: its bytes, which some servers send as one JSON body all the same."""

    is_json: bool
    chunks: AsyncIterator[bytes]


class Passed(NamedTuple):
    """The reply to a request that was handed on unread, with those of its headers that say how to take it."""

    status: int
    headers: dict[str, str]
    chunks: AsyncIterator[bytes]


class _Body(httpx.AsyncByteStream):
    """A body that is there already, handed to the transport without a copy."""

    def __init__(self, body: Sequence[bytes]) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._body:
            yield piece


class UpstreamClient:
    """One model server. `base_url` ends in `/v1`, paths come behind it; times are in seconds, sizes in bytes."""

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
    ) -> None:
        self.base_url = base_url
        self._api_key = api_key
        self._connect_timeout_s = connect_timeout_s
        self._reply_timeout_s = reply_timeout_s
        self._silence_timeout_s = silence_timeout_s
        self._first_byte_timeout_s = first_byte_timeout_s
        self._reply_bytes_max = reply_bytes_max
        self._transport = transport()

    async def close(self) -> None:
        await self._transport.aclose()

    def fit_to_tell(self, message: object) -> str | None:
        """What a caller may read of this upstream's words: nothing of the key that it knows from us."""
        return errors.fit_to_tell(message, self._api_key)

    async def create(self, path: str, body: Sequence[bytes], model: str) -> bytes:
        """The whole reply to a request that is not streamed; raises ApiError for all but a 2xx."""
        async with self._in_time(self._reply_timeout_s), self._send("POST", path, body, model) as response:
            return await self._whole(response)

    @contextlib.asynccontextmanager
    async def stream(self, path: str, body: Sequence[bytes], model: str) -> AsyncIterator[Reply]:
        """A streamed reply, from its 2xx headers on.

        Raises ApiError: on entry for what the upstream refuses, within the iteration for a stream that breaks off.
        """
        async with (
            self._send("POST", path, body, model, self._silence_timeout_s) as response,
            contextlib.aclosing(self._chunks(response)) as chunks,
        ):
            # Its name is written in any case (RFC 9110, 8.3.1).
            media_type = response.headers.get("content-type", "").lower()
            yield Reply(media_type.startswith("application/json"), chunks)
            await _read_last_bytes(chunks)

    async def models(self) -> bytes:
        """The body of the upstream's `GET /models`, as it came."""
        async with self._in_time(self._connect_timeout_s), self._send("GET", "/models") as response:
            return await self._whole(response)

    @contextlib.asynccontextmanager
    async def passed(self, path: str, body: Sequence[bytes], headers: Mapping[str, str]) -> AsyncIterator[Passed]:
        """The reply to a request that is handed on unread, whatever its status; raises ApiError where there is none."""
        async with (
            self._exchange("POST", path, body, headers, self._silence_timeout_s) as response,
            contextlib.aclosing(self._chunks(response)) as chunks,
        ):
            if response.status_code >= 600:
                # None of HTTP's (RFC 9110, 15), which can't be handed on.
                raise errors.upstream_broken(f"it answered {response.status_code}.")
            headers = {name: response.headers[name] for name in _HANDED_BACK if name in response.headers}
            yield Passed(response.status_code, headers, chunks)

    @contextlib.asynccontextmanager
    async def _in_time(self, timeout_s: float | None) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError:
            raise errors.upstream_too_slow() from None

    @contextlib.asynccontextmanager
    async def _send(
        self,
        method: str,
        path: str,
        body: Sequence[bytes] = (),
        model: str = "",
        silence_timeout_s: float | None = None,
    ) -> AsyncIterator[httpx.Response]:
        headers = {"accept": "application/json, text/event-stream"}
        if body:
            headers["content-type"] = "application/json"
        async with self._exchange(method, path, body, headers, silence_timeout_s) as response:
            if not response.is_success:
                beginning = await self._beginning(response)
                raise refusal(response.status_code, response.headers, beginning, model, self._api_key)
            yield response

    @contextlib.asynccontextmanager
    async def _exchange(
        self, method: str, path: str, body: Sequence[bytes], headers: Mapping[str, str], silence_timeout_s: float | None
    ) -> AsyncIterator[httpx.Response]:
        """One request and the reply to it, from its headers on."""
        headers = {**headers, "accept-encoding": "identity"}
        if body:
            headers["content-length"] = str(sum(map(len, body)))
        if self._api_key is not None:
            headers["authorization"] = f"Bearer {self._api_key}"
        timeout = httpx.Timeout(None, connect=self._connect_timeout_s, read=silence_timeout_s)
        request = httpx.Request(
            method,
            _url(self.base_url + path),
            headers=headers,
            # Without one, a GET has no body at all: some servers take an empty chunked one for the next request.
            stream=_Body(body) if body else None,
            extensions={"timeout": timeout.as_dict()},
        )
        is_stream = silence_timeout_s is not None
        async with self._in_time(self._first_byte_timeout_s if is_stream else None):
            with _translated():
                response = await self._transport.handle_async_request(request)
        try:
            yield response
        finally:
            with contextlib.suppress(httpx.HTTPError):
                await response.aclose()

    async def _whole(self, response: httpx.Response) -> bytes:
        return b"".join([chunk async for chunk in self._chunks(response)])

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
                    raise errors.upstream_broken(f"its reply is larger than {self._reply_bytes_max} bytes.")
                yield chunk


@functools.lru_cache(maxsize=64)
def _url(text: str) -> httpx.URL:
    """A URL is parsed once: that takes longer than all else of a request, and there are few."""
    return httpx.URL(text)


async def _read_last_bytes(chunks: AsyncIterator[bytes]) -> None:
    """Let the upstream end a stream whose last event has come: a connection that is read to its end is used again."""
    with contextlib.suppress(ApiError, TimeoutError):
        async with asyncio.timeout(_LAST_BYTES_S):
            async for _ in chunks:
                pass


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except httpx.ConnectTimeout as error:
        raise errors.upstream_not_connected() from error
    except httpx.ConnectError as error:
        raise errors.upstream_unreachable() from error
    except httpx.TimeoutException as error:
        raise errors.upstream_too_slow() from error
    except httpx.HTTPError as error:
        raise errors.upstream_broken("its reply broke off, or is no HTTP.") from error
