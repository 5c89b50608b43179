"""Reported failures of running such a server, each as the behaviour that it asks for."""

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import AsyncIterator
from itertools import pairwise

import httpx
import pytest

from server.mock import Mock, Reply
from tests.application import running, stored_rows
from tests.bench.consumption import memory_bytes
from tests.case_player import playing
from tests.e2e import processes
from tests.harness import case_replies, cases, serving
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


@contextlib.asynccontextmanager
async def _serving_process(
    reply: Reply, database_url: str
) -> AsyncIterator[tuple["subprocess.Popen[bytes]", httpx.AsyncClient]]:
    """A server that is a process of its own, before an upstream with this reply, and a client of it."""
    async with contextlib.AsyncExitStack() as opened:
        folder = opened.enter_context(processes.data_folder())
        upstream = await opened.enter_async_context(serving(Mock([reply])))
        line = [processes.OURS / "rejoinder", "serve", "--port", "0", "--upstream", f"{upstream}/v1"]
        process = opened.enter_context(processes.running([*line, "--database-url", database_url], folder, "serve"))
        log = folder / "serve.log"
        url = (await asyncio.to_thread(processes.awaited, process, lambda: processes.serving(log), log))["url"]
        http = await opened.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
        yield process, http


async def test_a_turn_whose_process_was_killed_is_in_nobodys_way(database_url: str) -> None:
    """B142: nothing of a turn is stored before its end, so that there is no row that would have to be mended"""
    [stream] = case_replies(cases()["B142"])
    first, *_, other = cases()["B142"]["client_steps"]
    async with contextlib.AsyncExitStack() as opened:
        process, http = await opened.enter_async_context(_serving_process(stream, database_url))
        async with http.stream("POST", "/v1/responses", json=first["json"]) as answer:
            lines = answer.aiter_lines()
            in_progress = await anext(told async for told in lines if '"response.in_progress"' in told)
            process.kill()
            with pytest.raises(httpx.RemoteProtocolError):
                await anext(told async for told in lines if "output_text.done" in told)
        response_id = json.loads(in_progress.removeprefix("data: "))["response"]["id"]
        async with running(database_url) as restarted:
            assert (await restarted.http.get(f"/v1/responses/{response_id}")).status_code == 404
            body = {**other["json"], "previous_response_id": response_id}
            continued = await restarted.post(body)
            assert (continued.status_code, continued.json()["error"]["code"]) == (400, "previous_response_not_found")
    assert await stored_rows(database_url) == {}


async def test_memory_does_not_grow_with_what_is_stored(database_url: str) -> None:
    """B143"""
    [reply] = case_replies(cases()["B143"])
    [step] = cases()["B143"]["client_steps"]
    async with contextlib.AsyncExitStack() as opened:
        process, http = await opened.enter_async_context(_serving_process(reply, database_url))

        async def ask(times: int) -> int:
            """Ask so often, four at a time; the bytes of memory that the server then takes."""
            for _ in range(times // 4):
                answers = await asyncio.gather(*(http.post(step["path"], json=step["json"]) for _ in range(4)))
                assert [answer.status_code for answer in answers] == [200] * 4
            return memory_bytes(process.pid)

        early = await ask(500)
        late = await ask(step["repeat"] - 500)
    assert late - early < 30_000_000
