"""Reported failures of running such a server, each as the behaviour that it asks for."""

import json
import time
from itertools import pairwise

import pytest

from server.mock import Reply
from tests.case_player import playing
from tests.harness import case_replies, cases
from tests.postgres import connected

MARKS = ("PROMPT-MARK", "REASON-MARK", "OUT-MARK", "sk-mark", "KEY-MARK")


async def test_logs_and_errors_hold_no_text_and_no_key(
    database_url: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """B139"""
    # Without a cache, so that the history is read.
    async with playing("B139", database_url, history_cache_bytes=0) as case:
        await case.play()
        async with connected(database_url) as connection:
            await connection.execute("alter table items rename column body to gone")
        crashed = await case.server.post(
            {"model": "m", "input": "PROMPT-MARK", "previous_response_id": case.answer(1).json["id"]},
            authorization="Bearer KEY-MARK",
        )
        log = case.server.log
    assert [case.answer(step).status for step in (1, 2, 3, 4)] == [200, 400, 502, 200]
    assert crashed.status_code == 500
    written = capfd.readouterr()
    events = [json.loads(line)["event"] for line in log.splitlines()]
    assert {"request", "turn_refused", "request_crashed"} <= set(events)
    for mark in MARKS:
        assert mark not in log
        assert mark not in written.out + written.err + caplog.text
        assert mark not in case.answer(2).body.decode() + case.answer(3).body.decode() + crashed.text
    assert b"KEY-MARK" not in case.answer(4).body
    assert b"KEY-MARK" not in case.sent_bytes


async def test_a_silent_upstreams_stream_is_begun_and_kept_alive(database_url: str) -> None:
    """B140, twenty times as fast"""
    [reply] = case_replies(cases()["B140"])
    quick = Reply(sse=reply.sse, first_byte_delay_ms=reply.first_byte_delay_ms / 20)
    body = {"model": "tiny-think", "input": "a", "stream": True}
    async with playing(
        "B140", database_url, replies=[quick], first_event_wait_s=0.05, keep_alive_interval_s=0.05
    ) as case:
        began_s = time.monotonic()
        async with case.server.http.stream("POST", "/v1/responses", json=body) as answer:
            arrivals = [(time.monotonic() - began_s, chunk) async for chunk in answer.aiter_raw()]
        await case.play(1)
    stream = b"".join(chunk for _, chunk in arrivals)
    before_first_delta = stream.partition(b"event: response.output_text.delta")[0]
    assert before_first_delta.startswith(b"event: response.created\n")
    assert before_first_delta.index(b"event: response.in_progress") < before_first_delta.index(b"\n\n: ")
    assert before_first_delta.count(b"\n\n: ") >= 3
    # The upstream is silent for a second: half of that may be a slow machine, all of it would be silence of ours.
    times_s = [0.0, *(at_s for at_s, _ in arrivals)]
    assert max(later - earlier for earlier, later in pairwise(times_s)) < 0.5
    assert len(case.answer(1).events) == 9
    assert case.answer(1).body.count(b"\n\n: ") >= 3
