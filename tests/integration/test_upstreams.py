"""One server before several upstreams: who serves a model, what is listed, and what is handed on unread."""

import asyncio
import json
import socket
from typing import Any

import httpx
import openai
import pytest

from server.mock import Mock, Reply
from tests.application import CLIENT_API_KEY, Application, both_modes, message, reply, running, stored_rows
from tests.harness import serving, until

TWO = """
[[upstreams]]
name = "gpu"
urls = ["URL"]
profile = "vllm"
models = ["tiny", "qwen*"]
api_key = "key-of-the-gpu"

[[upstreams]]
name = "other"
urls = ["OTHER/v1"]
profile = "chat-vllm"
models = ["chatty"]
"""

CHAT_REPLY = Reply(
    json={"id": "c", "created": 1, "choices": [{"index": 0, "message": {"content": "Hi."}, "finish_reason": "stop"}]}
)


@both_modes
async def test_the_model_chooses_the_upstream_and_the_row_says_which(emptied_database_url: str, stream: bool) -> None:
    other = Mock([CHAT_REPLY])
    async with serving(other) as url, running(emptied_database_url, upstreams=TWO.replace("OTHER", url)) as application:
        application.mock.replies = [reply(message("Hello."), stream=stream)]
        first = await application.turn(model="qwen-7b", input="a", stream=stream)
        second = await application.turn(model="chatty", input="b", previous_response_id=first["id"])
    assert (first["output"][0]["content"][0]["text"], second["output"][0]["content"][0]["text"]) == ("Hello.", "Hi.")
    assert [post.path for post in application.mock.posts] == ["/v1/responses"]
    assert [post.path for post in other.posts] == ["/v1/chat/completions"]
    assert application.mock.posts[0].headers["authorization"] == "Bearer key-of-the-gpu"
    assert "authorization" not in other.posts[0].headers
    rows = (await stored_rows(emptied_database_url))["responses"]
    assert [(row["upstream"], row["model"]) for row in rows] == [("gpu", "qwen-7b"), ("other", "chatty")]
    assert "key-of-the-gpu" not in application.log


async def test_a_model_that_nobody_serves_is_refused_before_anything_is_sent(emptied_database_url: str) -> None:
    async with running(emptied_database_url, upstreams=TWO.replace("OTHER", "http://127.0.0.1:1")) as application:
        answer = await application.post({"model": "gpt", "input": "a"})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "model_not_found", "model")
        assert application.mock.posts == []


async def test_all_models_are_listed_under_their_upstreams(emptied_database_url: str) -> None:
    listing = Mock()
    async with (
        serving(listing) as url,
        running(emptied_database_url, upstreams=TWO.replace("OTHER", url)) as application,
    ):
        listed = (await application.http.get("/v1/models")).json()
        assert listed["object"] == "list"
        assert [(model["id"], model["owned_by"]) for model in listed["data"]] == [
            ("mock", "gpu"),
            ("tiny", "gpu"),
            ("chatty", "other"),
        ]
        assert (await application.client.models.retrieve("chatty")).owned_by == "other"
        with pytest.raises(openai.NotFoundError):
            await application.client.models.retrieve("none/such")
        assert (await application.http.get("/readyz")).json()["upstream"] == "ready"


async def test_what_a_silent_upstream_would_list_is_left_out(emptied_database_url: str) -> None:
    async with running(emptied_database_url, upstreams=TWO.replace("OTHER", "http://127.0.0.1:1")) as application:
        listed = (await application.http.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["mock", "tiny", "chatty"]
        assert (await application.http.get("/readyz")).json()["upstream"] == "unavailable"


def nobodys_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


@both_modes
async def test_a_dead_replica_is_passed_over(emptied_database_url: str, stream: bool) -> None:
    tables = f'[[upstreams]]\nname = "gpu"\nurls = ["{nobodys_url()}", "URL"]\nprofile = "vllm"\ndefault = true\n'
    async with running(emptied_database_url, upstreams=tables) as application:
        application.mock.replies = [reply(message("Hi."), stream=stream)]
        previous = None
        for _ in range(6):
            response = await application.turn(input="a", stream=stream, previous_response_id=previous)
            assert response["status"] == "completed"
            previous = response["id"]
        assert len(application.mock.posts) == 6


async def test_a_chain_keeps_to_one_replica(emptied_database_url: str) -> None:
    others = [Mock(), Mock()]
    async with serving(others[0]) as first, serving(others[1]) as second:
        urls = json.dumps(["URL", f"{first}/v1", f"{second}/v1"])
        tables = f'[[upstreams]]\nname = "gpu"\nurls = {urls}\nprofile = "vllm"\ndefault = true\n'
        async with running(emptied_database_url, upstreams=tables) as application:
            mocks = [application.mock, *others]
            for _ in range(6):
                seen = [len(mock.posts) for mock in mocks]
                previous = None
                for _ in range(3):
                    previous = (await application.turn(input="a", previous_response_id=previous))["id"]
                assert sorted(len(mock.posts) - count for mock, count in zip(mocks, seen, strict=True)) == [0, 0, 3]
            conversation_id = await application.converse()
            seen = [len(mock.posts) for mock in mocks]
            for _ in range(3):
                await application.turn(input="a", conversation=conversation_id)
            assert sorted(len(mock.posts) - count for mock, count in zip(mocks, seen, strict=True)) == [0, 0, 3]


@pytest.mark.parametrize("tags", ["keep", "split"])
@both_modes
async def test_thinking_that_leaks_into_text_is_taken_apart_where_that_is_asked_for(
    emptied_database_url: str, stream: bool, tags: str
) -> None:
    tables = f'[[upstreams]]\nname = "r1"\nurls = ["URL"]\nprofile = "vllm"\ndefault = true\nthink_tags = "{tags}"\n'
    leaked = "<think>\nHm.\n</think>\n\nHi."
    async with running(emptied_database_url, [reply(message(leaked), stream=stream)], upstreams=tables) as application:
        first = await application.turn(input="a", stream=stream)
        said = [(item["type"], item["content"][0]["text"]) for item in first["output"]]
        split = [("reasoning", "\nHm.\n"), ("message", "\n\nHi.")]
        assert said == (split if tags == "split" else [("message", leaked)])
        assert (await application.http.get(f"/v1/responses/{first['id']}")).json() == first
        await application.turn(input="b", stream=stream, previous_response_id=first["id"])
        sent = [(item["type"], item["content"][0]["text"]) for item in application.sent()["input"][1:-1]]
        assert sent == said


# --- pass-through

PASSING = 'pass_through = ["/v1/embeddings", "/v1/chat/completions"]\n' + TWO


async def test_a_route_is_handed_on_unread(emptied_database_url: str) -> None:
    answered = Reply(status=418, text='{"x" : 1}', headers={"content-type": "application/x-odd"})
    async with running(
        emptied_database_url, [answered], upstreams=PASSING.replace("OTHER", "http://127.0.0.1:1")
    ) as application:
        body = b'{"model":"tiny" , "input":["a"]}'
        headers = {"authorization": f"Bearer {CLIENT_API_KEY}", "content-type": "application/json"}
        answer = await application.http.post("/v1/embeddings", content=body, headers=headers)
        assert (answer.status_code, answer.content) == (418, b'{"x" : 1}')
        assert answer.headers["content-type"] == "application/x-odd"
        [post] = application.mock.posts
        assert (post.path, post.body) == ("/v1/embeddings", body)
        assert post.headers["authorization"] == "Bearer key-of-the-gpu"


async def test_a_stream_is_handed_on_as_it_comes(emptied_database_url: str) -> None:
    chunks = ['data: {"choices":[]}\n\n', "data: [DONE]\n\n"]
    async with running(
        emptied_database_url,
        [Reply(sse_chunks=chunks)],
        upstreams=PASSING.replace("OTHER", "http://127.0.0.1:1"),
    ) as application:
        answer = await application.http.post("/v1/chat/completions", json={"model": "tiny", "stream": True})
        assert (answer.status_code, answer.text) == (200, "".join(chunks))
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"


async def test_who_is_to_come_back_later_is_told_when(emptied_database_url: str) -> None:
    busy = Reply(status=429, json={"error": {"message": "Slow."}}, headers={"retry-after": "7"})
    upstreams = PASSING.replace("OTHER", "http://127.0.0.1:1")
    async with running(emptied_database_url, [busy], upstreams=upstreams) as application:
        answer = await application.http.post("/v1/embeddings", json={"model": "tiny"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "silent",
    [Reply(hang=True, delay_ms=60_000), Reply(sse_chunks=["data: 1\n\n"], hang=True)],
    ids=["before its head", "midway"],
)
async def test_a_client_that_leaves_takes_its_request_along(emptied_database_url: str, silent: Reply) -> None:
    upstreams = PASSING.replace("OTHER", "http://127.0.0.1:1")
    async with running(emptied_database_url, [silent], upstreams=upstreams) as application:
        asking = asyncio.create_task(application.http.post("/v1/chat/completions", json={"model": "tiny"}))
        await until(lambda: len(application.mock.posts) == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: application.mock.posts[0].left)


async def test_a_reply_that_is_cut_is_seen_to_be_cut(emptied_database_url: str) -> None:
    cut = Reply(sse_chunks=["data: 1\n\n"], close=True)
    upstreams = PASSING.replace("OTHER", "http://127.0.0.1:1")
    async with running(emptied_database_url, [cut], upstreams=upstreams) as application:
        with pytest.raises(httpx.RemoteProtocolError):
            await application.http.post("/v1/chat/completions", json={"model": "tiny"})
        assert "passed_reply_broken" in application.log


async def test_only_what_is_posted_is_handed_on(emptied_database_url: str) -> None:
    upstreams = PASSING.replace("OTHER", "http://127.0.0.1:1")
    async with running(emptied_database_url, upstreams=upstreams) as application:
        answer = await application.http.get("/v1/embeddings")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(("body", "param"), [({"input": "a"}, "model"), ({"model": "gpt"}, "model"), ([], None)])
async def test_what_has_no_model_to_go_to_is_refused(emptied_database_url: str, body: Any, param: str | None) -> None:
    async with running(emptied_database_url, upstreams=PASSING.replace("OTHER", "http://127.0.0.1:1")) as application:
        answer = await application.http.post("/v1/embeddings", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert application.mock.posts == []


async def test_an_absent_upstream_is_told(emptied_database_url: str) -> None:
    async with running(
        emptied_database_url, upstreams=PASSING.replace("OTHER", nobodys_url().removesuffix("/v1"))
    ) as application:
        answer = await application.http.post("/v1/embeddings", json={"model": "chatty"})
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "server_error")


async def test_a_status_that_is_none_of_http_is_told(emptied_database_url: str) -> None:
    async def answer_oddly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 999 Odd\r\ncontent-length: 1\r\n\r\nx")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer_oddly, "127.0.0.1", 0) as odd:
        url = f"http://127.0.0.1:{odd.sockets[0].getsockname()[1]}"
        async with running(emptied_database_url, upstreams=PASSING.replace("OTHER", url)) as application:
            answer = await application.http.post("/v1/embeddings", json={"model": "chatty"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (502, "server_error")


async def test_nothing_is_handed_on_unasked(application: Application) -> None:
    answer = await application.http.post("/v1/embeddings", json={"model": "m"})
    assert answer.status_code == 404
