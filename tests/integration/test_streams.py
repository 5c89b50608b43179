"""What a client of a stream receives: headers, order and numbers, and what keeps a silent stream alive."""

import asyncio
import re

import msgspec
import pytest

from server.mock import Reply
from tests.application import Application, events_of, function_call, message, reasoning, reply, running
from tests.harness import captures

HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


async def test_a_stream_has_the_headers_that_keep_proxies_from_holding_it(application: Application) -> None:
    answer = await application.post({"model": "m", "input": "One", "stream": True}, **{"accept-encoding": "zstd, gzip"})
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert "content-encoding" not in answer.headers
    assert "content-length" not in answer.headers
    assert answer.content.startswith(b"event: response.created\ndata: {")


async def test_the_order_of_a_stream(application: Application) -> None:
    application.mock.replies = [reply(reasoning("Hm."), message("Hi."), function_call("f"), stream=True)]
    events = events_of((await application.post({"model": "m", "input": "One", "stream": True})).content)
    assert [(event["type"].removeprefix("response."), event.get("output_index")) for event in events] == [
        ("created", None),
        ("in_progress", None),
        ("output_item.added", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("content_part.added", 1),
        ("output_text.delta", 1),
        ("output_text.done", 1),
        ("content_part.done", 1),
        ("output_item.done", 1),
        ("output_item.added", 2),
        ("output_item.done", 2),
        ("completed", None),
    ]
    assert [event["sequence_number"] for event in events] == list(range(13))
    started, final = events[0]["response"], events[-1]["response"]
    assert (started["status"], started["output"], started["usage"]) == ("in_progress", [], None)
    assert started["id"] == final["id"] == application.sent()["request_id"]
    assert started["created_at"] == final["created_at"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert final["output"] == done
    assert (await application.http.get(f"/v1/responses/{final['id']}")).json() == final


@pytest.mark.parametrize("version", ["0.32", "0.33", "deepseek-r1"])
async def test_recorded_streams_keep_to_the_grammar_and_read_back_as_they_ended(
    application: Application, version: str
) -> None:
    streams = [capture for capture in captures(version) if capture.is_stream and capture.status == 200]
    # One for each order of events; how often one repeats makes none.
    recorded = list({tuple(dict.fromkeys(_event_lines(capture.received))): capture for capture in streams}.values())
    application.mock.replies = [
        Reply(sse_chunks_b64=[capture.received], headers={"content-type": "text/event-stream"}) for capture in recorded
    ]
    assert len(recorded) >= 3
    for capture in recorded:
        answer = await application.post({"model": "m", "input": "One", "stream": True})
        events = events_of(answer.content)
        names = [event["type"] for event in events]
        assert names[:2] == ["response.created", "response.in_progress"], capture.name
        assert [event["sequence_number"] for event in events] == list(range(len(events))), capture.name
        added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
        assert added == list(range(len(added))), capture.name
        final = events[-1]["response"]
        assert names[-1] == f"response.{final['status']}", capture.name
        assert sum(name in ("response.completed", "response.incomplete", "response.failed") for name in names) == 1
        assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == final["output"]
        kept = await application.http.get(f"/v1/responses/{final['id']}")
        assert kept.content in answer.content
        # The upstream gave it a name of its own, which nobody may learn.
        [own_id] = set(re.findall(rb'"id":"(resp_[^"]+)"', capture.received))
        assert own_id not in answer.content


def _event_lines(stream: bytes) -> list[bytes]:
    return [line for line in stream.split(b"\n") if line.startswith(b"event:")]


# --- silence


def _silent_after_headers(silence_ms: float) -> Reply:
    return msgspec.structs.replace(reply(message("Hi."), stream=True), first_byte_delay_ms=silence_ms)


async def test_a_stream_begins_before_an_upstream_that_is_long_silent_does(emptied_database_url: str) -> None:
    replies = [_silent_after_headers(1_000)]
    settings = {"first_event_wait_s": 0.1, "keep_alive_interval_s": 0.1}
    async with running(emptied_database_url, replies, **settings) as application:
        answer = await application.post({"model": "m", "input": "One", "stream": True})
    before, _, _ = answer.content.partition(b"event: response.output_item.added\n")
    assert before.startswith(b"event: response.created\n")
    assert b"\n\nevent: response.in_progress\n" in before
    assert before.count(b": keep-alive\n\n") >= 2
    events = events_of(answer.content)
    assert [event["sequence_number"] for event in events] == list(range(9))
    # The upstream's own first events came later and are not repeated.
    assert [event["type"] for event in events[:3]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
    ]
    assert [event["type"] for event in events].count("response.created") == 1
    started, final = events[0]["response"], events[-1]["response"]
    assert started["id"] == final["id"]
    assert started["created_at"] == final["created_at"]
    assert final["status"] == "completed"


async def test_comments_keep_a_stream_alive_between_events(emptied_database_url: str) -> None:
    slow = Reply(sse="".join(reply(message("Hi."), stream=True).sse_chunks or []), chunk_delay_ms=150)
    async with running(emptied_database_url, [slow], keep_alive_interval_s=0.05) as application:
        answer = await application.post({"model": "m", "input": "One", "stream": True})
    assert answer.content.count(b": keep-alive\n\n") >= 5
    assert [event["sequence_number"] for event in events_of(answer.content)] == list(range(9))


async def test_a_refusal_before_the_headers_keeps_its_status_however_late_it_comes(emptied_database_url: str) -> None:
    error = {"error": {"message": "Too much at once.", "type": "x", "param": None, "code": 429}}
    late = Reply(status=429, json=error, delay_ms=400)
    async with running(emptied_database_url, [late], first_event_wait_s=0.1, keep_alive_interval_s=0.1) as application:
        answer = await application.post({"model": "m", "input": "One", "stream": True})
        assert (answer.status_code, answer.headers["content-type"]) == (429, "application/json")


async def test_events_pass_as_soon_as_they_come(application: Application) -> None:
    frames = "".join(reply(message("Hi."), stream=True).sse_chunks or [])
    application.mock.replies = [Reply(sse=frames, chunk_delay_ms=150)]
    loop = asyncio.get_running_loop()
    arrivals: list[float] = []
    body = {"model": "m", "input": "One", "stream": True}
    async with application.http.stream("POST", "/v1/responses", json=body) as answer:
        async for _ in answer.aiter_raw():
            arrivals.append(loop.time())  # noqa: PERF401 (the time is that of the arrival)
    # Nine events take more than a second: had they been held, they would all have come together.
    assert arrivals[-1] - arrivals[0] > 0.8
    assert len(arrivals) >= 4
