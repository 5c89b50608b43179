"""Clients that leave before their turn has ended, and clients that do not read."""

import asyncio
import contextlib
import json
import socket
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from server.mock import Reply
from tests.application import Application, both_modes, events_of, message, reasoning, reply, running, stored_rows
from tests.harness import until
from tests.postgres import connected, until_true

REST_MS = 400


def _in_two_parts(*, stream: bool, rest_ms: float = REST_MS) -> Reply:
    """An upstream that has thought, and says something only later: a JSON reply comes later as a whole."""
    whole = reply(reasoning("Hm."), message("Hi."), stream=stream)
    if not stream:
        return msgspec.structs.replace(whole, delay_ms=rest_ms)
    frames = whole.sse_chunks or []
    thought = next(at for at, frame in enumerate(frames) if "output_item.done" in frame) + 1
    # Each write is followed by the pause; the second one is the end, after which it does no harm.
    return Reply(sse_chunks=["".join(frames[:thought]), "".join(frames[thought:])], chunk_delay_ms=rest_ms)


async def _leave_early(application: Application, **members: Any) -> None:
    """Ask for a turn and hang up while it runs: after the first bytes of a stream, in JSON mode before any."""
    body = {"model": "m", "input": "One", **members}
    known = len(application.mock.posts)

    async def ask() -> None:
        async with application.http.stream("POST", "/v1/responses", json=body) as answer:
            async for _ in answer.aiter_raw():
                asking.cancel()

    asking = asyncio.create_task(ask())
    await until(lambda: len(application.mock.posts) > known)
    if not members.get("stream"):
        asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking


async def _until_stored(database_url: str, status: str) -> None:
    async with connected(database_url) as connection:
        await until_true(connection, "select exists (select from responses where status = $1)", status)


@both_modes
async def test_a_stored_turn_is_finished_without_its_client(emptied_database_url: str, stream: bool) -> None:
    async with running(emptied_database_url, [_in_two_parts(stream=stream), reply(stream=stream)]) as application:
        await _leave_early(application, stream=stream)
        await _until_stored(emptied_database_url, "completed")
        response_id = application.sent()["request_id"]
        kept = (await application.http.get(f"/v1/responses/{response_id}")).json()
        assert (kept["id"], kept["status"]) == (response_id, "completed")
        assert [item["type"] for item in kept["output"]] == ["reasoning", "message"]
        # The retry of a client that lost its answer is a turn of its own, and this one can be continued.
        await application.turn(input="Two", previous_response_id=response_id, stream=stream)
        assert len(application.sent()["input"]) == 4


@both_modes
async def test_where_the_operator_says_so_a_turn_is_cancelled_with_its_client(
    emptied_database_url: str, stream: bool
) -> None:
    replies = [_in_two_parts(stream=stream, rest_ms=20_000), reply(stream=stream)]
    async with running(emptied_database_url, replies, on_disconnect="cancel") as application:
        await _leave_early(application, stream=stream)
        await until(lambda: application.mock.posts[0].left)
        await _until_stored(emptied_database_url, "cancelled")
        response_id = application.sent()["request_id"]
        kept = (await application.http.get(f"/v1/responses/{response_id}")).json()
        assert (kept["status"], kept["error"], kept["usage"], kept["completed_at"]) == ("cancelled", None, None, None)
        assert [item["type"] for item in kept["output"]] == (["reasoning"] if stream else [])
        assert (await application.client.responses.retrieve(response_id)).status == "cancelled"
        await application.turn(input="Two", previous_response_id=response_id, stream=stream)
        assert [item["content"] for item in application.sent()["input"]] == ["Two"]


async def test_a_client_of_a_stream_may_leave_before_the_upstream_has_begun(emptied_database_url: str) -> None:
    silent = Reply(sse="", delay_ms=20_000)
    async with running(emptied_database_url, [silent], on_disconnect="cancel") as application:
        body = {"model": "m", "input": "One", "stream": True}
        asking = asyncio.create_task(application.post(body))
        await until(lambda: len(application.mock.posts) == 1)
        asking.cancel()
        await until(lambda: application.mock.posts[0].left)
        await _until_stored(emptied_database_url, "cancelled")


@both_modes
async def test_an_unstored_turn_is_cancelled_with_its_client(emptied_database_url: str, stream: bool) -> None:
    async with running(emptied_database_url, [_in_two_parts(stream=stream, rest_ms=20_000)]) as application:
        await _leave_early(application, stream=stream, store=False)
        await until(lambda: application.mock.posts[0].left)
    assert await stored_rows(emptied_database_url) == {}


@both_modes
async def test_a_turn_without_its_client_has_its_time(emptied_database_url: str, stream: bool) -> None:
    replies = [_in_two_parts(stream=stream, rest_ms=20_000)]
    async with running(emptied_database_url, replies, detached_run_max_s=0.2) as application:
        await _leave_early(application, stream=stream)
        await until(lambda: application.mock.posts[0].left)
        await _until_stored(emptied_database_url, "cancelled")


async def test_a_turn_in_flight_is_stored_as_failed_when_the_server_stops(emptied_database_url: str) -> None:
    async with running(emptied_database_url, [_in_two_parts(stream=True, rest_ms=20_000)]) as application:
        await _leave_early(application, stream=True)
        mock = application.mock
        assert mock.posts[0].left is False
    assert mock.posts[0].left is True
    [row] = (await stored_rows(emptied_database_url))["responses"]
    assert row["status"] == "failed"


@both_modes
async def test_a_client_that_waits_is_told_that_the_server_stops(emptied_database_url: str, stream: bool) -> None:
    """The stream ends by its terminal event, the JSON reply is one that the SDKs send again."""
    async with running(emptied_database_url, [_in_two_parts(stream=stream, rest_ms=20_000)]) as application:
        body = {"model": "m", "input": "One", "stream": stream}
        waiting = asyncio.ensure_future(application.http.post("/v1/responses", json=body))
        await until(lambda: bool(application.mock.posts))
        await asyncio.sleep(0.1)
        await application.end_turns()
        reply = await waiting
        refused = await application.http.post("/v1/responses", json=body)
    assert refused.status_code == 503
    if stream:
        terminal, done = reply.text.strip().split("\n\n")[-2:]
        assert terminal.startswith("event: response.failed\n")
        assert "The server is stopping." in terminal
        assert done == "data: [DONE]"
    else:
        assert (reply.status_code, reply.json()["error"]["message"]) == (503, "The server is stopping.")


async def test_half_a_request_is_no_turn(application: Application, emptied_database_url: str) -> None:
    """The client promises more bytes than it sends, and leaves."""
    half = json.dumps({"model": "m", "input": "One"}).encode()[:-5]
    _, writer = await asyncio.open_connection("127.0.0.1", application.port)
    head = b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
    writer.write(head + half)
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    await asyncio.sleep(0.1)
    assert application.mock.received == []
    assert await stored_rows(emptied_database_url) == {}
    assert "crash" not in application.log


# --- slow readers

PIECE = b"x" * 100_000
PIECES = 200


def _flood() -> Reply:
    """Twenty megabytes in two hundred deltas."""
    whole = reply(message("Hi."), stream=True)
    frames = [frame.encode() for frame in whole.sse_chunks or []]
    at = next(place for place, frame in enumerate(frames) if b"output_text.delta" in frame)
    delta = frames[at].replace(b"Hi.", PIECE)
    return Reply(sse_chunks_b64=[*frames[:at], *[delta] * PIECES, *frames[at + 1 :]])


@contextlib.asynccontextmanager
async def _asking_without_reading(application: Application) -> AsyncIterator[asyncio.StreamReader]:
    connection = socket.socket()
    # A small window, so that it is not the system that takes what the client does not.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", application.port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=4096)
    body = json.dumps({"model": "m", "input": "One", "stream": True}).encode()
    head = (
        f"POST /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    )
    writer.write(head + body)
    try:
        await writer.drain()
        yield reader
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_client_that_does_not_read_is_let_go_and_its_turn_finished(emptied_database_url: str) -> None:
    async with running(emptied_database_url, [_flood()], stream_bytes_max=1_000_000) as application:
        tracemalloc.start()
        try:
            async with _asking_without_reading(application) as reader:
                await _until_stored(emptied_database_url, "completed")
                _, peak_bytes = tracemalloc.get_traced_memory()
                rest = await _rest(reader)
        finally:
            tracemalloc.stop()
        # What may be unread is held twice while it is handed to the connection, and the terminal event comes on top.
        assert peak_bytes < 8_000_000
        # What it can still read breaks off: there is neither the terminal event nor the end of the body.
        assert b"response.completed" not in rest
        assert not rest.endswith(b"0\r\n\r\n")


async def test_a_client_that_reads_slowly_gets_all(emptied_database_url: str) -> None:
    async with running(emptied_database_url, [_flood()]) as application, _asking_without_reading(application) as reader:
        await _until_stored(emptied_database_url, "completed")
        received = await _rest(reader)
        assert received.count(PIECE) == PIECES
        assert received.count(b"event: response.completed\n") == 1
        assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_a_slow_reader_holds_nobody_else_up(emptied_database_url: str) -> None:
    replies = [_flood(), reply(message("Hi."), stream=True)]
    async with running(emptied_database_url, replies) as application, _asking_without_reading(application):
        await until(lambda: len(application.mock.posts) == 1)
        answer = await application.post({"model": "m", "input": "Two", "stream": True})
        assert events_of(answer.content)[-1]["type"] == "response.completed"
        await _until_stored(emptied_database_url, "completed")


async def _rest(reader: asyncio.StreamReader) -> bytes:
    """All that can still be read, until the connection ends or breaks."""
    received = bytearray()
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(20):
            while piece := await reader.read(1_000_000):
                received += piece
    return bytes(received)
