"""The routes around a turn: bodies that are none, lists, what is not built yet, and what no route is."""

import asyncio
import contextlib
import json
import re
from typing import Any

import httpx
import pytest

from server.mock import Reply
from tests.application import (
    CLIENT_API_KEY,
    UPSTREAM_API_KEY,
    Application,
    both_modes,
    message,
    reply,
    running,
    stored_rows,
)
from tests.harness import until

REQUEST_ID = re.compile(r"req_[0-9a-f]{32}")


def _error(answer: httpx.Response) -> dict[str, Any]:
    """The error of an answer, which has the shape that every error has."""
    assert answer.headers["content-type"] == "application/json"
    body: dict[str, Any] = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return dict(body["error"])


# --- bodies

DEEP = b'{"model":"m","input":' + b"[" * 201 + b"]" * 201 + b"}"
BODIES: dict[str, tuple[bytes, str | None, str]] = {
    "empty": (b"", None, "parse"),
    "white space": (b" \n", None, "parse"),
    "no JSON": (b"hello", None, "parse"),
    "a list": (b"[]", None, "parse"),
    "a string": (b'"model"', None, "parse"),
    "half": (b'{"model":"m","input":"On', None, "parse"),
    "something behind it": (b'{"model":"m","input":"One"} x', None, "parse"),
    "a comma too many": (b'{"model":"m","input":"One",}', None, "parse"),
    "NaN": (b'{"model":"m","input":"One","temperature":NaN}', None, "parse"),
    "Latin-1": '{"model":"m","input":"caf\xe9"}'.encode("latin-1"),
    "a surrogate in bytes": b'{"model":"m","input":"\xed\xa0\x80"}',
    "UTF-16": '{"model":"m","input":"One"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"model":"m","input":"One"}',
    "too deep": (DEEP, None, "deep"),
    "far too deep": (b'{"model":"m","input":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None, "deep"),
    "a member twice": (b'{"model":"m","input":"One","input":"Two"}', "input", "input"),
    "a member twice, escaped": (rb'{"model":"m","input":"One","mod\u0065l":"n"}', "model", "model"),
    "a member twice that nobody knows": (b'{"model":"m","input":"One","x":1,"x":1}', "x", "x"),
}


@pytest.mark.parametrize("case", BODIES.values(), ids=BODIES)
async def test_a_body_that_cannot_be_read(
    application: Application, emptied_database_url: str, case: bytes | tuple[bytes, str | None, str]
) -> None:
    body, param, word = case if isinstance(case, tuple) else (case, None, "parse")
    answer = await application.post(body)
    assert answer.status_code == 400
    error = _error(answer)
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert word in error["message"]
    assert application.mock.received == []
    assert await stored_rows(emptied_database_url) == {}


async def test_the_content_type_of_a_request_does_not_matter(application: Application) -> None:
    body = json.dumps({"model": "m", "input": "One"}).encode()
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-8"):
        assert (await application.post(body, **{"content-type": content_type})).status_code == 200


async def test_a_body_as_deep_as_it_may_be(application: Application) -> None:
    # The body, the input, and the item are three levels.
    deep = b'{"model":"m","input":[{"role":"user","content":"One","x":' + b"[" * 197 + b"]" * 197 + b"}]}"
    assert (await application.post(deep)).status_code == 200


async def test_a_body_larger_than_it_may_be(emptied_database_url: str) -> None:
    async with running(emptied_database_url, body_bytes_max=1_000) as application:

        def padded(size: int) -> bytes:
            body = b'{"model":"m","input":"' + b"x" * size
            return body[: size - 2] + b'"}'

        assert (await application.post(padded(1_000))).status_code == 200
        large = await application.post(padded(1_001))
        assert large.status_code == 413
        assert _error(large)["code"] == "request_too_large"

        # Chunked, a body has no length to be told by.
        async def chunks() -> Any:
            for _ in range(100):
                yield b" " * 100

        counted = await application.http.post("/v1/responses", content=chunks())
        assert counted.status_code == 413
        assert _error(counted) == _error(large)
        assert len(application.mock.posts) == 1


async def test_a_body_too_large_is_refused_before_it_is_sent(emptied_database_url: str) -> None:
    """A client that promises more than may come gets its answer at once, and may send the rest before it reads it."""
    async with running(emptied_database_url, body_bytes_max=1_000) as application:
        reader, writer = await asyncio.open_connection("127.0.0.1", application.port)
        try:
            writer.write(b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n{")
            async with asyncio.timeout(2):
                head = await reader.readuntil(b"\r\n\r\n")
                error = await reader.readuntil(b"}}")
            assert head.startswith(b"HTTP/1.1 413 ")
            assert b"\r\nconnection: close\r\n" in head.lower()
            assert json.loads(error)["error"]["code"] == "request_too_large"
            writer.write(b" " * 999_999)
            async with asyncio.timeout(2):
                assert await reader.read() == b""
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def test_a_body_in_many_pieces(application: Application) -> None:
    text = json.dumps({"model": "m", "input": "é" * 1_000}, ensure_ascii=False).encode()

    async def pieces() -> Any:
        for at in range(0, len(text), 7):
            yield text[at : at + 7]

    answer = await application.http.post("/v1/responses", content=pieces())
    assert answer.status_code == 200
    assert application.sent()["input"][0]["content"] == "é" * 1_000


# --- input_items


async def _dialogue(application: Application) -> tuple[str, list[str]]:
    """A response with five items before it, and their ids, oldest first."""
    application.mock.replies = [reply(message("Hi.", id="msg_2"), stream=False), reply(message("x"), stream=False)]
    said = [{"type": "message", "role": "user", "content": "One", "id": f"msg_{number}"} for number in (0, 1)]
    first = await application.turn(input=said)
    said = [{"type": "message", "role": "user", "content": "Two", "id": f"msg_{number}"} for number in (3, 4)]
    second = await application.turn(input=said, previous_response_id=first["id"])
    return f"/v1/responses/{second['id']}/input_items", [f"msg_{number}" for number in range(5)]


async def test_input_items_are_the_history_and_the_input_newest_first(application: Application) -> None:
    path, ids = await _dialogue(application)
    page = (await application.http.get(path)).json()
    assert [item["id"] for item in page["data"]] == ids[::-1]
    assert {name: value for name, value in page.items() if name != "data"} == {
        "object": "list",
        "first_id": "msg_4",
        "last_id": "msg_0",
        "has_more": False,
    }


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_pages_follow_one_another_without_gap_or_overlap(
    application: Application, order: str, limit: int
) -> None:
    path, ids = await _dialogue(application)
    seen: list[str] = []
    query: dict[str, Any] = {"order": order, "limit": limit}
    while True:
        page = (await application.http.get(path, params=query)).json()
        data = [item["id"] for item in page["data"]]
        assert 1 <= len(data) <= limit
        assert (page["first_id"], page["last_id"]) == (data[0], data[-1])
        seen += data
        if not page["has_more"]:
            break
        query["after"] = page["last_id"]
    assert seen == (ids if order == "asc" else ids[::-1])


async def test_a_page_behind_the_last_item_is_empty(application: Application) -> None:
    path, ids = await _dialogue(application)
    page = (await application.http.get(path, params={"order": "asc", "after": ids[-1]})).json()
    assert page == {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}


BAD_QUERIES: dict[str, tuple[str, str, str]] = {
    "limit=0": ("limit", "integer_below_min_value", "1"),
    "limit=-3": ("limit", "integer_below_min_value", "1"),
    "limit=101": ("limit", "integer_above_max_value", "100"),
    "limit=ten": ("limit", "invalid_type", "integer"),
    "limit=": ("limit", "invalid_type", "integer"),
    "limit=1.5": ("limit", "invalid_type", "integer"),
    "limit=%D9%A3": ("limit", "invalid_type", "integer"),
    "limit=" + "9" * 5_000: ("limit", "invalid_type", "integer"),
    "order=up": ("order", "invalid_value", "'asc' and 'desc'"),
    "order=ASC": ("order", "invalid_value", "'asc' and 'desc'"),
    "after=msg_9": ("after", "invalid_value", "msg_9"),
    "after=%00": ("after", "invalid_value", "not found"),
    "after=%ff": ("after", "invalid_value", "not found"),
}


@pytest.mark.parametrize(
    ("query", "expected"), BAD_QUERIES.items(), ids=[query[:20].replace("%", "x") for query in BAD_QUERIES]
)
async def test_a_query_that_cannot_be_meant(
    application: Application, query: str, expected: tuple[str, str, str]
) -> None:
    path, _ = await _dialogue(application)
    answer = await application.http.get(f"{path}?{query}")
    assert answer.status_code == 400
    error = _error(answer)
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", *expected[:2])
    assert expected[2] in error["message"]


async def test_includes_of_both_spellings_hide_nothing_and_are_no_error(application: Application) -> None:
    path, _ = await _dialogue(application)
    plain = (await application.http.get(path)).content
    for query in (
        "include[]=reasoning.encrypted_content&include[]=message.input_image.image_url",
        "include=reasoning.encrypted_content",
        "include%5B%5D=web_search_call.results",
    ):
        assert (await application.http.get(f"{path}?{query}")).content == plain
        retrieved = await application.http.get(f"{path.removesuffix('/input_items')}?{query}")
        assert retrieved.status_code == 200


# --- ids in paths

UNKNOWN_IDS = {
    "unknown": "resp_000",
    "of an item": "msg_0",
    "too long": "r" * 5_000,
    "a NUL": "resp_%00",
    "a line end": "resp_%0A",
    "no UTF-8": "resp_%ff",
    "a surrogate": "resp_%ed%a0%80",
    "quotes": "resp_'%22--",
    "a space": "%20",
}


@pytest.mark.parametrize("response_id", UNKNOWN_IDS.values(), ids=UNKNOWN_IDS)
async def test_an_id_that_no_response_has(application: Application, response_id: str) -> None:
    path = f"/v1/responses/{response_id}"
    for method, url in (("GET", path), ("DELETE", path), ("GET", f"{path}/input_items"), ("POST", f"{path}/cancel")):
        answer = await application.http.request(method, url)
        assert answer.status_code == 404, url
        error = _error(answer)
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, None)
        assert "not found" in error["message"]


# --- what is not built yet (DESIGN 7.9), and what no route is


async def test_what_a_foreground_response_cannot_do(application: Application) -> None:
    turn = await application.turn(input="One")
    path = f"/v1/responses/{turn['id']}"
    streamed = await application.http.get(f"{path}?stream=true&starting_after=3&include_obfuscation=false")
    assert (streamed.status_code, _error(streamed)["param"]) == (400, "stream")
    assert (await application.http.get(f"{path}?stream=false")).json() == turn
    cancelled = await application.http.post(f"{path}/cancel")
    assert cancelled.status_code == 400
    assert _error(cancelled)["message"] == "Cannot cancel a synchronous response."


NO_ROUTES = [
    ("GET", "/"),
    ("GET", "/v1"),
    ("GET", "/v1/nothing"),
    ("GET", "/docs"),
    ("GET", "/schema"),
    ("POST", "/v1/responses/compact"),
    ("POST", "/v1/responses/input_tokens"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/conversations/conv_1"),
    ("GET", "/v1/responses/resp_1/nothing"),
    ("GET", "/responses"),
]
NO_METHODS = [
    ("GET", "/v1/responses"),
    ("PUT", "/v1/responses"),
    ("PATCH", "/v1/responses"),
    ("DELETE", "/v1/responses"),
    ("PUT", "/v1/responses/resp_1"),
    ("DELETE", "/v1/responses/resp_1/input_items"),
    ("POST", "/v1/responses/resp_1/input_items"),
    ("GET", "/v1/responses/resp_1/cancel"),
    ("POST", "/healthz"),
    ("DELETE", "/v1/models"),
]


@pytest.mark.parametrize(("method", "path"), NO_ROUTES)
async def test_a_path_that_is_none(application: Application, method: str, path: str) -> None:
    answer = await application.http.request(method, path, content=b'{"model":"m","input":"One"}')
    assert answer.status_code == 404
    assert _error(answer)["type"] == "invalid_request_error"
    assert application.mock.received == []


@pytest.mark.parametrize(("method", "path"), NO_METHODS)
async def test_a_method_that_a_path_has_not(application: Application, method: str, path: str) -> None:
    answer = await application.http.request(method, path, content=b'{"model":"m","input":"One"}')
    assert answer.status_code == 405
    assert _error(answer)["type"] == "invalid_request_error"
    assert application.mock.received == []


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/responses", "POST"),
        ("/v1/responses/resp_1/input_items", "GET, HEAD, OPTIONS"),
        ("/v1/responses/resp_1/cancel", "OPTIONS, POST"),
        ("/v1/conversations/conv_1", "DELETE, GET, HEAD, OPTIONS, POST"),
        ("/healthz", "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(application: Application, path: str, allowed: str) -> None:
    """RFC 9110, 15.5.6: a 405 must list them."""
    answer = await application.http.put(path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


async def test_what_can_be_read_has_a_head(application: Application) -> None:
    turn = await application.turn(input=[{"role": "user", "content": "One", "id": "msg_1"}])
    conversation_id = await application.converse({"role": "user", "content": "One", "id": "msg_1"})
    readable = [
        f"/v1/responses/{turn['id']}",
        f"/v1/responses/{turn['id']}/input_items",
        f"/v1/conversations/{conversation_id}",
        f"/v1/conversations/{conversation_id}/items",
        f"/v1/conversations/{conversation_id}/items/msg_1",
        "/healthz",
        "/v1/responses/resp_1",
        "/v1/conversations/conv_1/items/msg_1",
    ]
    for path in readable:
        head, whole = await application.http.head(path), await application.http.get(path)
        assert (head.status_code, head.content) == (whole.status_code, b"")
        for name in ("content-type", "content-length"):
            assert head.headers[name] == whole.headers[name]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/resp_1", "/healthz", "/nothing"])
async def test_head_and_options_start_no_turn(application: Application, path: str) -> None:
    head = await application.http.head(path)
    assert head.content == b""
    expected = {"/v1/responses": 405, "/healthz": 200}
    assert head.status_code == expected.get(path, 404)
    options = await application.http.options(path)
    assert options.status_code in (204, 404, 405)
    assert application.mock.received == []


async def test_every_answer_has_a_request_id_of_its_own(application: Application) -> None:
    turn = await application.turn(input="One")
    body = json.dumps({"model": "m", "input": "One", "stream": True})
    requests = [
        ("POST", "/v1/responses", '{"model":"m","input":"One"}'),
        ("POST", "/v1/responses", body),
        ("POST", "/v1/responses", "x"),
        ("PUT", "/v1/responses", ""),
        ("GET", f"/v1/responses/{turn['id']}", ""),
        ("GET", f"/v1/responses/{turn['id']}/input_items", ""),
        ("GET", "/v1/responses/resp_0", ""),
        ("DELETE", f"/v1/responses/{turn['id']}", ""),
        ("GET", "/v1/models", ""),
        ("GET", "/healthz", ""),
        ("GET", "/nothing", ""),
    ]
    seen = []
    for method, path, content in requests:
        answer = await application.http.request(method, path, content=content, headers={"x-request-id": "the client's"})
        seen.append(answer.headers["x-request-id"])
    assert all(REQUEST_ID.fullmatch(request_id) for request_id in seen)
    assert len(set(seen)) == len(requests)


# --- the upstream's side


@both_modes
async def test_the_clients_credentials_and_headers_stay_here(application: Application, stream: bool) -> None:
    headers = {
        "authorization": f"Bearer {CLIENT_API_KEY}",
        "cookie": "session=secret-cookie",
        "openai-organization": "org-secret",
        "x-codex-turn-metadata": '{"secret":1}',
        "x-client-request-id": "secret-id",
        "user-agent": "secret-agent",
        "x-forwarded-for": "10.0.0.7",
    }
    answer = await application.post({"model": "m", "input": "One", "stream": stream}, **headers)
    assert answer.status_code == 200
    await application.http.get("/v1/models", headers=headers)
    for received in application.mock.received:
        assert received.headers["authorization"] == f"Bearer {UPSTREAM_API_KEY}"
        told = json.dumps(received.headers)
        assert "secret" not in told
        assert CLIENT_API_KEY not in told
        assert "10.0.0.7" not in told
        assert received.headers["accept-encoding"] == "identity"


async def test_without_a_key_of_its_own_the_server_sends_none(emptied_database_url: str) -> None:
    async with running(emptied_database_url, upstream_api_key=None) as application:
        await application.client.responses.create(model="m", input="One")
        assert "authorization" not in application.mock.posts[0].headers


async def test_the_models_are_the_upstreams(application: Application) -> None:
    answer = await application.http.get("/v1/models")
    assert answer.status_code == 200
    assert [model["id"] for model in answer.json()["data"]] == ["mock"]
    assert [model.id async for model in application.client.models.list()] == ["mock"]


async def test_health_needs_nobody(application: Application) -> None:
    for path in ("/healthz", "/health"):
        answer = await application.http.get(path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert application.mock.received == []


async def test_a_turn_in_flight_is_not_found_yet(application: Application, emptied_database_url: str) -> None:
    """A response has no row before its turn has ended (DESIGN 3, Rows)."""
    application.mock.replies = [Reply(json={"status": "completed", "output": []}, delay_ms=300)]
    asking = asyncio.create_task(application.turn(input="One"))
    await until(lambda: len(application.mock.posts) == 1)
    response_id = application.sent()["request_id"]
    assert (await application.http.get(f"/v1/responses/{response_id}")).status_code == 404
    early = await application.post({"model": "m", "input": "Two", "previous_response_id": response_id})
    assert _error(early)["code"] == "previous_response_not_found"
    assert await stored_rows(emptied_database_url) == {}
    assert (await asking)["id"] == response_id
    assert (await application.http.get(f"/v1/responses/{response_id}")).status_code == 200
