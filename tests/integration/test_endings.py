"""Every way in which an upstream can end a turn, in both dialects and modes: what the client sees, what is stored, what
is charged, and that the turn before it can be gone on from.

The table is by hand: for a whole reply and for a stream, the HTTP status, and the status that is told and stored.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from server.mock import Reply
from tests.application import Application, both_modes, events_of, message, reasoning, reply, running, stored_rows

UPSTREAMS = """
[[upstreams]]
name = "responses"
urls = ["URL"]
profile = "vllm"
models = ["responses"]

[[upstreams]]
name = "chat"
urls = ["URL"]
profile = "chat-vllm"
models = ["chat"]
"""
USAGE = {"input_tokens": 14, "output_tokens": 18, "total_tokens": 32}
CHAT_USAGE = {"prompt_tokens": 14, "completion_tokens": 18, "total_tokens": 32}


class Ending(NamedTuple):
    """What comes of it: HTTP's status; the status that is told in the answer and stored (None: neither); the price."""

    json: tuple[int, str | None, bool]
    stream: tuple[int, str | None, bool]


COMPLETED = Ending((200, "completed", True), (200, "completed", True))
INCOMPLETE = Ending((200, "incomplete", True), (200, "incomplete", True))
BROKEN = Ending((502, None, False), (502, None, False))
# What breaks off is no reply as a whole; as a stream it is told from its beginning.
CUT = Ending((502, None, False), (200, "failed", False))


def refused(status: int) -> Ending:
    return Ending((status, None, False), (status, None, False))


ENDINGS: dict[str, Ending] = {
    "completed": COMPLETED,
    "incomplete": INCOMPLETE,
    "failed": Ending((200, "failed", True), (200, "failed", True)),
    "an error after 200": CUT,
    "cut": CUT,
    "cut before its first event": BROKEN,
    "not JSON": CUT,
    "HTML": BROKEN,
    "400": refused(400),
    "429": refused(429),
    "500": refused(502),
    "503": refused(503),
}


def ended(how: str, dialect: str, stream: bool) -> Reply:
    plain = {
        "HTML": Reply(status=502, text="<html>bad gateway</html>", headers={"content-type": "text/html"}),
        "400": Reply(status=400, json={"error": {"message": "no", "type": "BadRequestError", "code": 400}}),
        "429": Reply(status=429, json={"error": {"message": "slow"}}, headers={"retry-after": "7"}),
        "500": Reply(status=500, json={"error": {"message": "broken"}}),
        "503": Reply(status=503, json={"error": {"message": "later"}}, headers={"retry-after": "30"}),
        "cut before its first event": Reply(text="", close=True, headers={"content-type": "text/event-stream"}),
    }
    if how in plain:
        return plain[how]
    return _of_chat(how, stream) if dialect == "chat" else _of_responses(how, stream)


def _of_responses(how: str, stream: bool) -> Reply:
    output = [reasoning("Hm."), message("Hi.")]
    if how in ("completed", "incomplete", "failed"):
        return reply(*output, stream=stream, status=how, usage=USAGE)
    frames = (reply(*output, stream=True).sse_chunks or [])[:6]
    return _broken(how, stream, frames, b'{"id":"r","status":"completed","output":[')


def _of_chat(how: str, stream: bool) -> Reply:
    head = {"id": "c", "created": 1_700_000_000, "model": "m"}
    said = {"reasoning": "Hm.", "content": "Hi."}
    finish = {"completed": "stop", "incomplete": "length", "failed": "error"}.get(how)
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "usage": CHAT_USAGE}
    chunks = [head | {"choices": [{"index": 0, "delta": said}]}, head | last]
    frames = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    if finish is None:
        return _broken(how, stream, frames[:1], b'{"id":"c","choices":[{"index":0,"mes')
    if stream:
        return Reply(sse_chunks=[*frames, "data: [DONE]\n\n"])
    return Reply(json=head | {"choices": [{"index": 0, "message": said, "finish_reason": finish}], "usage": CHAT_USAGE})


def _broken(how: str, stream: bool, frames: Sequence[str], beginning: bytes) -> Reply:
    if not stream:
        text = {"cut": beginning.decode(), "not JSON": "nope", "an error after 200": '{"error":{"message":"died"}}'}[
            how
        ]
        return Reply(text=text, headers={"content-type": "application/json"}, close=how == "cut")
    last = {
        "cut": [],
        "not JSON": ["data: {nope\n\n"],
        "an error after 200": ['data: {"error":{"message":"died"}}\n\n'],
    }
    return Reply(sse_chunks=[*frames, *last[how]], close=True)


async def asked(application: Application, stream: bool, **members: Any) -> tuple[int, dict[str, Any]]:
    answer = await application.post({"input": "a", "stream": stream, **members})
    if answer.headers["content-type"].startswith("text/event-stream"):
        return answer.status_code, events_of(answer.content)[-1]["response"]
    return answer.status_code, answer.json()


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("dialect", ["responses", "chat"])
@both_modes
async def test_a_turn_that_ends(emptied_database_url: str, stream: bool, dialect: str, how: str) -> None:
    begun = ended("completed", dialect, False)
    replies = [begun, ended(how, dialect, stream), begun]
    async with running(emptied_database_url, replies, upstreams=UPSTREAMS, retries_max=0) as application:
        _, first = await asked(application, False, model=dialect)
        status, told = await asked(application, stream, model=dialect, previous_response_id=first["id"])
        wanted_status, wanted, is_charged = ENDINGS[how].stream if stream else ENDINGS[how].json
        assert (status, told.get("status")) == (wanted_status, wanted), told

        rows = await stored_rows(emptied_database_url)
        stored = [row for row in rows["responses"] if row["public_id"] != first["id"]]
        charged = [row for row in rows["usage"] if row["response_public_id"] != first["id"]]
        assert [row["status"] for row in stored] == ([] if wanted is None else [wanted])
        assert [(row["status"], row["output_tokens"]) for row in charged] == ([(wanted, 18)] if is_charged else [])
        if wanted is None:
            assert set(told["error"]) == {"message", "type", "param", "code"}
        else:
            assert (await application.http.get(f"/v1/responses/{told['id']}")).json() == told
        if wanted == "failed":
            assert told["error"]["code"] == "server_error"

        status, after = await asked(application, False, model=dialect, previous_response_id=first["id"])
        assert (status, after["status"]) == (200, "completed")
        if stored:
            # What failed adds nothing, what was cut counts as it is.
            status, after = await asked(application, False, model=dialect, previous_response_id=told["id"])
            assert (status, after["status"]) == (200, "completed")
            sent = application.sent()
            said = sent["messages"] if dialect == "chat" else sent["input"]
            turns = [one for one in said if one.get("role") == "user"]
            assert len(turns) == (2 if wanted == "failed" else 3)


@pytest.mark.parametrize("dialect", ["responses", "chat"])
async def test_a_context_that_an_upstream_finds_too_long_within_a_stream_is_named(
    emptied_database_url: str, dialect: str
) -> None:
    words = "This model's maximum context length is 2048 tokens. However, you requested 3000 tokens."
    error = json.dumps({"error": {"message": words, "code": 400}})
    begun = _broken("cut", True, (reply(message("Hi."), stream=True).sse_chunks or [])[:2], b"")
    frames = (begun.sse_chunks or []) if dialect == "responses" else []
    named = "event: error\n" if dialect == "responses" else ""
    replies = [Reply(sse_chunks=[*frames, f"{named}data: {error}\n\n"])]
    async with running(emptied_database_url, replies, upstreams=UPSTREAMS) as application:
        status, told = await asked(application, True, model=dialect)
    assert (status, told["status"], told["error"]["code"]) == (200, "failed", "context_length_exceeded")
