"""Upstreams that refuse, break off or say nothing: what the client is told, in both modes, and what is stored."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from server.mock import Reply
from tests.application import (
    UPSTREAM_API_KEY,
    Application,
    both_modes,
    events_of,
    function_call,
    message,
    reply,
    running,
    stored_rows,
)
from tests.grammar import assert_grammar
from tests.harness import captures, serving, until


def _vllm_error(status: int, message: str = "Not like this.", param: str | None = None, **headers: str) -> Reply:
    """An error as vLLM renders it: the code is the status (vllm.md 5)."""
    error = {"message": message, "type": "BadRequestError", "param": param, "code": status}
    return Reply(status=status, json={"error": error}, headers=headers)


def _body(stream: bool, **members: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": "One", "stream": stream, **members}


HTML = "<html><body><h1>secret-of-a-proxy</h1></body></html>"
DETAIL = {
    "detail": [{"type": "missing", "loc": ["body", "tools", 0, "name"], "msg": "Field required", "input": "secret"}]
}

# The upstream's answer -> our status, type, param, code.
REFUSALS: dict[str, tuple[Reply, tuple[int, str, str | None, str | None]]] = {
    "400": (
        _vllm_error(400, "temperature must be less than 2.", "temperature"),
        (400, "invalid_request_error", "temperature", None),
    ),
    "400, too long": (
        _vllm_error(400, "This model's maximum context length is 2048 tokens.", "input_tokens"),
        (400, "invalid_request_error", "input", "context_length_exceeded"),
    ),
    "404, model": (
        _vllm_error(404, "The model `tiny` does not exist.", "model"),
        (400, "invalid_request_error", "model", "model_not_found"),
    ),
    "404, path": (
        Reply(status=404, json={"detail": "Not Found"}),
        (502, "server_error", None, "upstream_misconfigured"),
    ),
    "401": (
        Reply(status=401, json={"error": "Unauthorized"}),
        (502, "server_error", None, "upstream_misconfigured"),
    ),
    "403": (_vllm_error(403), (502, "server_error", None, "upstream_misconfigured")),
    "405": (
        Reply(status=405, json={"detail": "Method Not Allowed"}),
        (502, "server_error", None, "upstream_misconfigured"),
    ),
    "408": (_vllm_error(408), (408, "invalid_request_error", None, None)),
    "409": (_vllm_error(409), (409, "invalid_request_error", None, None)),
    "413, HTML": (Reply(status=413, text=HTML), (413, "invalid_request_error", None, None)),
    "422, FastAPI": (Reply(status=422, json=DETAIL), (422, "invalid_request_error", "tools[0].name", None)),
    "429": (_vllm_error(429, **{"retry-after": "7"}), (429, "rate_limit_error", None, "rate_limit_exceeded")),
    "500": (_vllm_error(500, "secret of the engine"), (502, "server_error", None, None)),
    "500, HTML": (Reply(status=500, text=HTML), (502, "server_error", None, None)),
    "502, HTML": (Reply(status=502, text=HTML), (502, "server_error", None, None)),
    "503": (_vllm_error(503, "The queue is full.", **{"retry-after": "3"}), (503, "server_error", None, None)),
    "504": (Reply(status=504, text=HTML), (502, "server_error", None, None)),
    "a redirect": (Reply(status=302, text="", headers={"location": "/elsewhere"}), (502, "server_error", None, None)),
    "cut before the end of a 400": (
        Reply(status=400, text='{"error":{"message":"Half a mess', close=True),
        (400, "invalid_request_error", None, None),
    ),
}


@both_modes
@pytest.mark.parametrize(("refused", "expected"), REFUSALS.values(), ids=REFUSALS)
async def test_a_refusal_of_the_upstream(
    application: Application,
    emptied_database_url: str,
    stream: bool,
    refused: Reply,
    expected: tuple[int, str, str | None, str | None],
) -> None:
    application.mock.replies = [refused]
    answer = await application.post(_body(stream))
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (answer.status_code, error["type"], error["param"], error["code"]) == expected
    assert answer.headers.get("retry-after") == refused.headers.get("retry-after")
    assert "secret" not in answer.text
    assert len(application.mock.posts) == 1
    assert await stored_rows(emptied_database_url) == {}


@both_modes
async def test_the_message_of_a_refusal_is_its_first_line_without_credentials(
    application: Application, stream: bool
) -> None:
    said = f"Wrong key {UPSTREAM_API_KEY} or Bearer abcdef0123456789, {'x' * 600}\nTraceback: /srv/secret.py"
    application.mock.replies = [_vllm_error(400, said)]
    told = (await application.post(_body(stream))).json()["error"]["message"]
    assert told.startswith("Wrong key *** or Bearer ***, xxx")
    assert len(told) == 500
    assert "secret" not in told


def _recorded_refusals() -> dict[str, tuple[int, bytes]]:
    """vLLM's own refusals of requests, of those that begin alike only one."""
    found: dict[bytes, tuple[str, int, bytes]] = {}
    for version in ("0.32", "0.33"):
        for capture in captures(version):
            if capture.status is not None and capture.status >= 400 and capture.received.startswith(b"{"):
                found.setdefault(capture.received[:60], (f"{capture.name} {version}", capture.status, capture.received))
    return {name: (status, body) for name, status, body in found.values()}


async def test_recorded_refusals_become_errors_of_the_contract(application: Application) -> None:
    refusals = _recorded_refusals()
    assert len(refusals) >= 20
    application.mock.replies = [
        Reply(status=status, sse_chunks_b64=[body], headers={"content-type": "application/json"})
        for status, body in refusals.values()
    ]
    for name, (status, body) in refusals.items():
        answer = await application.post(_body(False))
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}, name
        assert answer.status_code == (400 if status == 400 or b'"param":"model"' in body else 502), name
        # A list of pydantic's failures names types of its own code, and quotes the request.
        assert "validation error" not in error["message"], name
        assert len(error["message"]) <= 500, name


@pytest.mark.parametrize(("refused", "status"), [(_vllm_error(401), 502), (_vllm_error(503), 503)])
async def test_a_refusal_of_the_list_of_models(emptied_database_url: str, refused: Reply, status: int) -> None:
    """The scripted upstream lists models by itself, so that one of its own stands in for it here."""

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"".join(refused.writes(0, ""))})

    async with serving(refuse) as url, running(emptied_database_url, upstream=f"{url}/v1") as application:
        answer = await application.http.get("/v1/models")
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert (await application.http.get("/readyz")).json()["upstream"] == "unavailable"


@pytest.mark.parametrize("media_type", ["Application/JSON", "APPLICATION/JSON; charset=utf-8"])
async def test_a_media_type_is_written_in_any_case(application: Application, media_type: str) -> None:
    text = json.dumps({"object": "response", "status": "completed", "output": [message("Hi.")]})
    application.mock.replies = [Reply(text=text, headers={"content-type": media_type})]
    answer = await application.post(_body(True))
    assert answer.status_code == 200
    assert assert_grammar(answer.content)[-1]["response"]["output"][0]["content"][0]["text"] == "Hi."


# --- no answer at all

SILENT = Reply(hang=True, delay_ms=30_000)
BROKEN = {
    "no JSON": Reply(text="Hello", headers={"content-type": "application/json"}),
    "half a JSON": Reply(text='{"id":"resp_1","output":[', headers={"content-type": "application/json"}),
    "HTML": Reply(text=HTML),
    "nothing": Reply(text=""),
    "an error object": Reply(json={"error": {"message": "secret", "code": 500}}),
    "a list": Reply(json=[]),
    "another API's object": Reply(json={"object": "chat.completion", "choices": []}),
    "cut in its middle": Reply(text='{"id":"resp_1","output":[', headers={"content-length": "1000"}, close=True),
    "nested too deeply": Reply(text='{"output":[' + "[" * 3_000 + "]" * 3_000 + "]}"),
    "items that are none": Reply(json={"object": "response", "status": "completed", "output": "secret"}),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
async def test_a_reply_that_is_no_response(application: Application, emptied_database_url: str, broken: Reply) -> None:
    application.mock.replies = [broken]
    answer = await application.post(_body(False))
    assert (answer.status_code, answer.json()["error"]["type"]) == (502, "server_error")
    assert "secret" not in answer.text
    assert await stored_rows(emptied_database_url) == {}


LIMITS: dict[str, tuple[Reply, dict[str, Any], int]] = {
    "larger than we take": (Reply(json={"output": [], "x": "y" * 20_000}), {"reply_bytes_max": 10_000}, 502),
    "silent before its headers": (SILENT, {"reply_timeout_s": 0.3}, 504),
    "silent in its middle": (Reply(text='{"id":', hang=True), {"reply_timeout_s": 0.3}, 504),
}


@pytest.mark.parametrize(("broken", "settings", "status"), LIMITS.values(), ids=LIMITS)
async def test_a_reply_that_goes_beyond_a_limit(
    emptied_database_url: str, broken: Reply, settings: dict[str, Any], status: int
) -> None:
    async with running(emptied_database_url, [broken, reply(message("Hi."), stream=False)], **settings) as application:
        answer = await application.post(_body(False))
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, "server_error")
        assert (await application.turn(input="Two"))["status"] == "completed"
    assert len((await stored_rows(emptied_database_url))["responses"]) == 1


@both_modes
async def test_an_upstream_that_is_not_there(emptied_database_url: str, stream: bool) -> None:
    async with running(emptied_database_url, upstream="http://127.0.0.1:1/v1") as application:
        answer = await application.post(_body(stream))
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "server_error")
        assert (await application.http.get("/v1/models")).status_code == 503
    assert await stored_rows(emptied_database_url) == {}


@both_modes
async def test_an_upstream_that_hangs_up_before_its_headers(emptied_database_url: str, stream: bool) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with running(emptied_database_url, upstream=url) as application:
            answer = await application.post(_body(stream))
            assert (answer.status_code, answer.json()["error"]["type"]) == (502, "server_error")
    assert await stored_rows(emptied_database_url) == {}


# --- streams that break off

WHOLE = reply(message("Hi."), function_call("f"), stream=True)
FRAMES = WHOLE.sse_chunks or []


def _stream(*frames: str, **members: Any) -> Reply:
    return Reply(sse_chunks=list(frames), **members)


def _event(name: str, **members: Any) -> str:
    return f"event: {name}\ndata: {json.dumps({'type': name, **members})}\n\n"


# Of the frames, the message is done with the eighth, and the call is announced by the ninth.
BREAKS: dict[str, tuple[Reply, int, str]] = {
    "cut after created": (_stream(*FRAMES[:1], close=True), 0, "server_error"),
    "cut in a delta": (_stream(*FRAMES[:4], FRAMES[4][:30], close=True), 0, "server_error"),
    "cut after an item": (_stream(*FRAMES[:8], close=True), 1, "server_error"),
    "ended without a terminal event": (_stream(*FRAMES[:9]), 1, "server_error"),
    "done without a terminal event": (_stream(*FRAMES[:9], "data: [DONE]\n\n"), 1, "server_error"),
    "no JSON": (_stream(*FRAMES[:8], "data: secret\n\n"), 1, "server_error"),
    "an error": (_stream(*FRAMES[:8], _event("error", code="x", message="No.", param=None)), 1, "server_error"),
    "a nested error": (
        _stream(*FRAMES[:8], 'data: {"error": {"message": "No.", "code": "rate_limit_exceeded"}}\n\n'),
        1,
        "rate_limit_exceeded",
    ),
    "failed, as the upstream says": (
        _stream(
            *FRAMES[:8],
            _event(
                "response.failed",
                response={"status": "failed", "output": [], "error": {"code": "server_error", "message": "No."}},
            ),
        ),
        1,
        "server_error",
    ),
}


async def _failed(application: Application) -> dict[str, Any]:
    """The response of a stream that must fail after it has begun, checked for what holds of each."""
    answer = await application.post(_body(True))
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
    assert b"secret" not in answer.content
    events = events_of(answer.content)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events].count("response.created") == 1
    assert events[-1]["type"] == "response.failed"
    response: dict[str, Any] = events[-1]["response"]
    assert response["status"] == "failed"
    assert response["error"]["message"]
    assert (response["completed_at"], response["incomplete_details"]) == (None, None)
    assert (await application.http.get(f"/v1/responses/{response['id']}")).json() == response
    return response


@pytest.mark.parametrize(("broken", "done", "code"), BREAKS.values(), ids=BREAKS)
async def test_a_stream_that_breaks_off_ends_as_failed(
    application: Application, broken: Reply, done: int, code: str
) -> None:
    application.mock.replies = [broken, reply(message("Yes."), stream=True)]
    response = await _failed(application)
    assert (len(response["output"]), response["error"]["code"]) == (done, code)
    # What is continued from it begins where it began.
    await application.turn(input="Two", previous_response_id=response["id"], stream=True)
    assert [item["content"] for item in application.sent()["input"]] == ["Two"]


async def test_a_stream_that_falls_silent_ends_as_failed(emptied_database_url: str) -> None:
    silent = _stream(*FRAMES[:8], hang=True)
    async with running(emptied_database_url, [silent], silence_timeout_s=0.3) as application:
        response = await _failed(application)
        assert (len(response["output"]), response["error"]["code"]) == (1, "server_error")
        [broken] = [line for line in map(json.loads, application.log.splitlines()) if line["event"] == "stream_broken"]
        assert (broken["response_id"], broken["status"]) == (response["id"], 504)
        await until(lambda: application.mock.posts[0].left)


async def test_a_stream_with_too_large_an_event_ends_as_failed(emptied_database_url: str) -> None:
    large = _event("response.x", padding="y" * 20_000)
    # The pause lets what is before it arrive by itself: what comes in one piece with too large an event is lost.
    replies = [_stream("".join(FRAMES[:8]), large, chunk_delay_ms=50)]
    async with running(emptied_database_url, replies, event_bytes_max=10_000) as application:
        assert len((await _failed(application))["output"]) == 1


@pytest.mark.parametrize(
    "broken",
    [
        Reply(sse=""),
        Reply(sse=": nothing\n\n"),
        Reply(sse="", close=True),
        Reply(json={"error": {"message": "secret"}}),
        Reply(text=HTML),
    ],
    ids=["empty", "a comment", "cut at once", "JSON", "HTML"],
)
async def test_a_stream_without_any_event_is_an_error_of_its_own(
    application: Application, emptied_database_url: str, broken: Reply
) -> None:
    application.mock.replies = [broken]
    answer = await application.post(_body(True))
    assert (answer.status_code, answer.headers["content-type"]) == (502, "application/json")
    assert answer.json()["error"]["type"] == "server_error"
    assert await stored_rows(emptied_database_url) == {}


async def test_a_whole_reply_to_a_stream_is_streamed(application: Application) -> None:
    """Some upstreams cannot stream, or not for every request, and answer with the finished response."""
    application.mock.replies = [reply(message("Hi."), stream=False)]
    events = events_of((await application.post(_body(True))).content)
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(9))
    response = events[-1]["response"]
    assert response["output"][0]["content"][0]["text"] == "Hi."
    assert (await application.http.get(f"/v1/responses/{response['id']}")).json() == response


async def test_a_stream_that_is_silent_before_its_headers_is_a_time_out(emptied_database_url: str) -> None:
    async with running(emptied_database_url, [SILENT], silence_timeout_s=0.3) as application:
        answer = await application.post(_body(True))
        assert (answer.status_code, answer.headers["content-type"]) == (504, "application/json")
        await until(lambda: application.mock.posts[0].left)
    assert await stored_rows(emptied_database_url) == {}


async def test_a_stream_that_was_opened_early_fails_in_the_stream(emptied_database_url: str) -> None:
    """Once our own first events are out, a stream without events is a failed response."""
    late = msgspec.structs.replace(_stream(": nothing\n\n", close=True), first_byte_delay_ms=400)
    async with running(emptied_database_url, [late], first_event_wait_s=0.1) as application:
        events = events_of((await application.post(_body(True))).content)
        assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.failed"]
        assert [event["sequence_number"] for event in events] == [0, 1, 2]
        response = events[-1]["response"]
        assert (await application.http.get(f"/v1/responses/{response['id']}")).json() == response


async def test_an_upstreams_connection_is_used_again_and_a_stale_one_is_replaced(emptied_database_url: str) -> None:
    """vLLM's server closes an idle connection by itself: the turn that meets it must not fail for that."""
    connections = 0
    body = b'{"id":"resp_1","object":"response","status":"completed","output":[]}'
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()

    async def answer_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for _ in range(2):
            request = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in request.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            writer.write(head + body)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer_twice, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with running(emptied_database_url, upstream=url) as application:
            for _ in range(6):
                assert (await application.turn(input="One"))["status"] == "completed"
                await asyncio.sleep(0.1)
    assert connections == 3
