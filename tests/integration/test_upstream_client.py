"""The upstream's client against servers that are none: what speaks no HTTP, and what a request without a body is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from server.errors import ApiError
from server.upstream.client import UpstreamClient


@asynccontextmanager
async def answering(reply: bytes) -> AsyncIterator[tuple[UpstreamClient, list[bytes]]]:
    """A client of a server that answers with these bytes and closes, and what that server received."""
    received: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(65_536))
        writer.write(reply)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    client = UpstreamClient(
        f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1",
        api_key=None,
        connect_timeout_s=5,
        reply_timeout_s=5,
        silence_timeout_s=5,
        first_byte_timeout_s=5,
        reply_bytes_max=1_000,
    )
    try:
        yield client, received
    finally:
        await client.close()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    "reply",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    ],
    ids=["no HTTP", "no chunk", "a header without end"],
)
async def test_what_speaks_no_http_is_a_broken_upstream(reply: bytes) -> None:
    async with answering(reply) as (client, _):
        for call in (client.create("/responses", [b"{}"], "m"), client.models()):
            with pytest.raises(ApiError) as refused:
                await call
            assert (refused.value.status, refused.value.type) == (502, "server_error")


async def test_a_request_without_a_body_has_none() -> None:
    """An empty chunked body is taken for the next request by servers that read none of a GET."""
    body = b'{"object":"list","data":[]}'
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with answering(head + body) as (client, received):
        assert await client.models() == body
    sent_head, _, sent_body = received[0].partition(b"\r\n\r\n")
    assert sent_head.startswith(b"GET /v1/models HTTP/1.1\r\n")
    assert b"transfer-encoding" not in sent_head.lower()
    assert sent_body == b""


async def test_too_long_a_reply_is_not_kept() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\ncontent-length: 1001\r\n\r\n" + b"x" * 1_001) as (client, _):
        with pytest.raises(ApiError) as refused:
            await client.create("/responses", [b"{}"], "m")
    assert refused.value.status == 502
