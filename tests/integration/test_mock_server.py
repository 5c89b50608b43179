"""The scripted upstream and the harness over real sockets: what a client sees of delays, cuts and silence."""

import asyncio
import signal
import time
from collections.abc import AsyncIterable
from typing import Any

import aiohttp
import httpx
import pytest

from server.mock import Mock, Reply
from tests.harness import serving, until

BODY = {"input": "Hello."}


@pytest.mark.parametrize(
    "reply",
    [
        Reply(sse="data: 1\n\ndata: 2\n\n", close=True),
        Reply(sse_chunks=["data: 1\n\n", "data: 2\n\n"], close=True),
        Reply(json={"a": 1}, close=True),
        Reply(text="half", close=True),
    ],
    ids=["sse", "sse_chunks", "json", "text"],
)
async def test_clients_see_a_cut(reply: Reply) -> None:
    whole = b"".join(reply.writes(0, ""))
    async with serving(Mock([reply])) as url:
        read = bytearray()
        async with httpx.AsyncClient() as client, client.stream("POST", f"{url}/v1/responses", json=BODY) as response:
            with pytest.raises(httpx.RemoteProtocolError):
                await read_all(response.aiter_bytes(), read)
        assert (response.status_code, read) == (200, whole)
        read = bytearray()
        async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/responses", json=BODY) as answer:
            with pytest.raises(aiohttp.ClientPayloadError):
                await read_all(answer.content.iter_any(), read)
        assert (answer.status, read) == (200, whole)


async def read_all(chunks: AsyncIterable[bytes], read: bytearray) -> None:
    async for chunk in chunks:
        read += chunk


@pytest.mark.parametrize("reply", [Reply(sse="data: 1\n\n"), Reply(json={"a": 1}), Reply(text="", status=503)])
async def test_a_reply_without_a_cut_ends_properly_and_the_connection_lives_on(reply: Reply) -> None:
    async with serving(Mock([reply])) as url, httpx.AsyncClient() as client:
        ports = set()
        for _ in range(2):
            async with client.stream("POST", f"{url}/v1/responses", json=BODY) as response:
                ports.add(response.extensions["network_stream"].get_extra_info("client_addr"))
                assert await response.aread() == b"".join(reply.writes(0, ""))
                assert response.status_code == reply.status
        assert len(ports) == 1


async def test_a_hanging_reply_is_silent_until_the_client_leaves() -> None:
    mock = Mock([Reply(sse="data: 1\n\n", hang=True)])
    async with serving(mock) as url, httpx.AsyncClient(timeout=0.2) as client:
        async with client.stream("POST", f"{url}/v1/responses", json=BODY) as response:
            chunks = response.aiter_bytes()
            assert await anext(chunks) == b"data: 1\n\n"
            with pytest.raises(httpx.ReadTimeout):
                await anext(chunks)
            assert not mock.posts[0].left
        await until(lambda: mock.posts[0].left)


async def test_a_client_that_leaves_before_the_headers_is_noticed() -> None:
    mock = Mock([Reply(json={}, delay_ms=30_000)])
    async with serving(mock) as url, httpx.AsyncClient(timeout=0.2) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(f"{url}/v1/responses", json=BODY)
        await until(lambda: mock.posts[0].left)


async def test_delays_come_where_they_are_asked_for() -> None:
    """Only that nothing comes too early is certain: a slow machine may be late with anything."""
    reply = Reply(sse="data: 1\n\ndata: 2\n\n", delay_ms=60, first_byte_delay_ms=50, chunk_delay_ms=40)
    async with serving(Mock([reply])) as url, httpx.AsyncClient() as client:
        begun = time.monotonic()
        async with client.stream("POST", f"{url}/v1/responses", json=BODY) as response:
            headers_s = time.monotonic() - begun
            chunks = response.aiter_bytes()
            body, first_byte_s = bytearray(await anext(chunks)), time.monotonic() - begun
            await read_all(chunks, body)
            end_s = time.monotonic() - begun
    assert body == b"data: 1\n\ndata: 2\n\n"
    assert headers_s >= 0.059
    assert first_byte_s >= 0.109
    assert end_s >= 0.189


async def test_the_recorder_holds_what_was_sent() -> None:
    mock = Mock()
    async with serving(mock) as url, httpx.AsyncClient(headers={"authorization": "Bearer key"}) as client:
        large = b'{"input": "' + b"x" * 3_000_000 + b'"}'
        response = await client.post(f"{url}/v1/responses", content=large)
        assert (await client.get(f"{url}/v1/models")).status_code == 200
    assert response.json()["output"][1]["content"][0]["text"].startswith("This is the rejoinder mock, not a model.")
    assert [(received.method, received.path) for received in mock.received] == [
        ("POST", "/v1/responses"),
        ("GET", "/v1/models"),
    ]
    assert mock.received[0].body == large
    assert mock.received[0].headers["authorization"] == "Bearer key"
    assert not mock.received[0].left


async def test_each_of_many_clients_gets_its_own_answer() -> None:
    mock = Mock([Reply(text="{{request_id}}", delay_ms=50)])
    async with serving(mock) as url, httpx.AsyncClient() as client:
        bodies = [{"input": "a", "request_id": f"resp_{number}"} for number in range(20)]
        replies = await asyncio.gather(*(client.post(f"{url}/v1/responses", json=body) for body in bodies))
    assert [reply.text for reply in replies] == [body["request_id"] for body in bodies]
    assert len(mock.posts) == 20


class Recorded:
    """An application that has a start-up and notes what it was asked."""

    def __init__(self, started: str = "lifespan.startup.complete") -> None:
        self.started = started
        self.seen: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for reply in (self.started, "lifespan.shutdown.complete"):
                self.seen.append((await receive())["type"])
                await send({"type": reply})
            return
        self.seen.append(scope["path"])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})


async def test_the_harness_runs_start_up_and_shutdown_and_leaves_the_signals_alone() -> None:
    app, handlers = Recorded(), [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with serving(app) as url, httpx.AsyncClient() as client:
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
        assert (await client.get(f"{url}/here")).status_code == 204
    assert app.seen == ["lifespan.startup", "/here", "lifespan.shutdown"]
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(url)


async def test_the_harness_reports_a_start_up_that_fails() -> None:
    with pytest.raises(RuntimeError, match="did not start"):
        async with serving(Recorded(started="lifespan.startup.failed")):
            pytest.fail("it was served")


async def test_the_harness_ends_requests_that_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.harness.STOP_MAX_S", 0.1)
    mock = Mock([Reply(sse="data: 1\n\n", hang=True)])
    async with httpx.AsyncClient() as client:
        async with serving(mock) as url:
            request = client.build_request("POST", f"{url}/v1/responses", json=BODY)
            response = await client.send(request, stream=True)
        with pytest.raises(httpx.RemoteProtocolError):
            await response.aread()
