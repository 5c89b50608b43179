"""Servers of several processes: one port, one database, and any of them may get the next request, or be killed."""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.application import both_modes, events_of
from tests.e2e import processes
from tests.e2e.echo import Echo, Server, started
from tests.harness import serving, until
from tests.postgres import connected

# A connection of its own for each request, so that any worker may get it.
ANEW = {"connection": "close"}
NOBODY = "127.0.0.1:1"


@pytest.fixture
def upstream() -> Echo:
    return Echo()


@contextlib.asynccontextmanager
async def running(folder: Path, upstream: Echo, name: str = "serve", **settings: Any) -> AsyncIterator[Server]:
    async with (
        serving(upstream) as address,
        started(folder, name, upstream=f"{address}/v1", **{"workers": 2} | settings) as server,
    ):
        yield server


def logged(folder: Path, name: str = "serve") -> list[dict[str, Any]]:
    """The whole lines of a server's log."""
    lines = (folder / f"{name}.log").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def of_event(folder: Path, event: str, name: str = "serve") -> list[dict[str, Any]]:
    return [line for line in logged(folder, name) if line["event"] == event]


def workers_told(folder: Path, name: str = "serve") -> list[int]:
    return [line["worker"] for line in of_event(folder, "worker_serving", name)]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


async def turn(server: Server, text: str, **members: Any) -> dict[str, Any]:
    answer = await server.http.post("/v1/responses", json={"model": "m", "input": text, **members}, headers=ANEW)
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = events_of(answer.content)[-1]["response"] if members.get("stream") else answer.json()
    return whole


# --- state, whoever has it


async def test_a_chain_goes_through_all_workers(tmp_path: Path, upstream: Echo, database_url: str) -> None:
    async with running(tmp_path, upstream, database_url=database_url) as server:
        said: list[str] = []
        previous: str | None = None
        for number in range(24):
            response = await turn(server, f"q{number}", previous_response_id=previous, stream=number % 2 == 0)
            previous = response["id"]
            said.append(f"q{number}")
            assert upstream.inputs[-1] == said
            said.append(f"re: q{number}")
        began = of_event(tmp_path, "request")
    assert {line["pid"] for line in began} == set(workers_told(tmp_path))
    assert len(workers_told(tmp_path)) == 2


@pytest.mark.parametrize("server_count", [1, 2], ids=["one server", "two servers"])
async def test_turns_at_once_in_one_conversation_are_in_one_order(
    tmp_path: Path, upstream: Echo, database_url: str, server_count: int
) -> None:
    choose = random.Random(server_count)
    refused: Counter[str] = Counter()
    async with contextlib.AsyncExitStack() as opened:
        servers = [
            await opened.enter_async_context(running(tmp_path, upstream, name, database_url=database_url))
            for name in ("first", "second")[:server_count]
        ]
        conversation_id = await servers[0].converse()

        async def take_turn(number: int) -> None:
            while True:
                server = choose.choice(servers)
                body = {"model": "m", "input": f"q{number}", "conversation": conversation_id}
                answer = await server.http.post("/v1/responses", json=body, headers=ANEW)
                if answer.status_code == 200:
                    return
                refused[answer.json()["error"]["code"]] += 1
                await asyncio.sleep(choose.uniform(0.005, 0.05))

        async with asyncio.timeout(120):
            await asyncio.gather(*(take_turn(number) for number in range(30)))
        listed = await servers[-1].listed(conversation_id)
        names = ("first", "second")[:server_count]
        pids = [{line["pid"] for line in of_event(tmp_path, "request", name)} for name in names]
    assert sorted(listed[::2]) == sorted(f"q{number}" for number in range(30))
    assert listed[1::2] == [f"re: {text}" for text in listed[::2]]
    # Each turn knew all that were before it, and those that were refused cost no inference.
    assert upstream.inputs == [listed[: 2 * number + 1] for number in range(30)]
    assert set(refused) == {"conversation_locked"}
    assert [len(of_one) for of_one in pids] == [2] * server_count


@both_modes
async def test_one_key_is_answered_once_by_all_workers(
    tmp_path: Path, upstream: Echo, database_url: str, stream: bool
) -> None:
    async with running(tmp_path, upstream, database_url=database_url, workers=3) as server:
        upstream.may_answer.clear()
        body, headers = {"model": "m", "input": "q", "stream": stream}, {"idempotency-key": "k", **ANEW}
        asking = [asyncio.create_task(server.http.post("/v1/responses", json=body, headers=headers)) for _ in range(16)]
        await until(lambda: len(upstream.inputs) == 1)
        upstream.may_answer.set()
        answers = await asyncio.gather(*asking)
    assert [answer.status_code for answer in answers] == [200] * 16
    wholes = [events_of(answer.content)[-1]["response"] if stream else answer.json() for answer in answers]
    assert all(whole == wholes[0] for whole in wholes)
    assert upstream.inputs == [["q"]]


# --- the processes


async def test_every_worker_is_ready_and_every_line_says_whose_it_is(
    tmp_path: Path, upstream: Echo, database_url: str
) -> None:
    async with running(tmp_path, upstream, database_url=database_url, workers=3, log_level="debug") as server:
        told = of_event(tmp_path, "serving")
        assert [line["url"] for line in told] == [str(server.http.base_url).rstrip("/")]
        # It is told when the last of them serves.
        assert len(workers_told(tmp_path)) == 3
        for _ in range(12):
            ready = await server.http.get("/readyz", headers=ANEW)
            assert (ready.status_code, ready.json()["status"]) == (200, "ready")
        await asyncio.gather(*(turn(server, f"q{number}") for number in range(12)))
    lines = logged(tmp_path)
    assert {line["pid"] for line in lines} == {server.process.pid, *workers_told(tmp_path)}
    assert {line["pid"] for line in lines if line["event"] in ("turn_began", "request")} <= set(workers_told(tmp_path))
    assert (lines[-1]["event"], lines[-1]["pid"]) == ("stopped", server.process.pid)
    assert server.process.returncode == 0


async def test_one_worker_is_the_process_itself(tmp_path: Path, upstream: Echo, database_url: str) -> None:
    async with running(tmp_path, upstream, database_url=database_url, workers=1) as server:
        await turn(server, "q")
        assert children(server.process.pid) == []
    assert [line["event"] for line in logged(tmp_path)] == [
        "open_to_all", "serving", "request", "prefixes_counted", "stopped",
    ]  # fmt: skip
    assert all("pid" not in line for line in logged(tmp_path))


async def test_a_worker_that_is_killed_loses_nothing_that_was_acknowledged_and_is_replaced(
    tmp_path: Path, upstream: Echo, database_url: str
) -> None:
    async with running(tmp_path, upstream, database_url=database_url, lease_s=2) as server:
        acknowledged: list[str] = []
        has_been_killed = asyncio.Event()

        async def go_on() -> None:
            previous: str | None = None
            for number in range(200):
                try:
                    response = await turn(server, f"q{number}", previous_response_id=previous, stream=number % 2 == 0)
                except (httpx.HTTPError, ValueError):
                    # Its worker is dead: nothing was acknowledged, and the chain goes on from what was.
                    continue
                acknowledged.append(previous := response["id"])
                if has_been_killed.is_set() and number > 20:
                    return

        chains = [asyncio.create_task(go_on()) for _ in range(8)]
        await until(lambda: len(acknowledged) > 40, within_s=30)
        killed = workers_told(tmp_path)[0]
        os.kill(killed, signal.SIGKILL)
        has_been_killed.set()
        await asyncio.gather(*chains)
        await until(lambda: len(workers_told(tmp_path)) == 3, within_s=30)
        for response_id in acknowledged:
            kept = await server.http.get(f"/v1/responses/{response_id}")
            assert kept.json()["status"] == "completed"
        # All that serve now have their share.
        await asyncio.gather(*(turn(server, f"q{number}") for number in range(40)))
        ended = of_event(tmp_path, "worker_ended")
        assert [(line["worker"], line["exit_code"]) for line in ended] == [(killed, -9)]
        assert len(of_event(tmp_path, "serving")) == 1
        lately = {line["pid"] for line in of_event(tmp_path, "request")[-40:]}
        assert lately == set(workers_told(tmp_path)) - {killed}
    async with connected(database_url) as connection:
        stored = {
            row[0] for row in await connection.fetch("select public_id from responses where status = 'completed'")
        }
    assert set(acknowledged) <= stored


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_open_turns_end(
    tmp_path: Path, upstream: Echo, database_url: str, ending: signal.Signals
) -> None:
    async with running(tmp_path, upstream, database_url=database_url, drain_max_s=20) as server:
        upstream.may_answer.clear()
        asking = [asyncio.create_task(turn(server, f"q{number}", stream=number % 2 == 0)) for number in range(8)]
        await until(lambda: len(upstream.inputs) == 8)
        # Ctrl-C goes to a whole group. It must reach a worker once: a second one means not to wait for turns.
        for pid in workers_told(tmp_path):
            assert os.getpgid(pid) != os.getpgid(server.process.pid)
        server.process.send_signal(ending)
        host, port = server.http.base_url.host, server.http.base_url.port
        await until(lambda: not accepts(host, port or 0), within_s=10)
        upstream.may_answer.set()
        assert [whole["status"] for whole in await asyncio.gather(*asking)] == ["completed"] * 8
        assert await asyncio.to_thread(server.process.wait, processes.END_MAX_S) == 0
    assert not any(map(is_alive, workers_told(tmp_path)))
    assert [line["exit_code"] for line in of_event(tmp_path, "worker_ended")] == [0, 0]


def accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except ConnectionRefusedError:
        return False
    return True


async def test_a_turn_that_outlasts_the_drain_is_told_as_failed(
    tmp_path: Path, upstream: Echo, database_url: str
) -> None:
    async with running(tmp_path, upstream, database_url=database_url, drain_max_s=0.2) as server:
        upstream.may_answer.clear()
        body = {"model": "m", "input": "q"}
        asking = [asyncio.create_task(server.http.post("/v1/responses", json=body, headers=ANEW)) for _ in range(6)]
        await until(lambda: len(upstream.inputs) == 6)
        server.process.terminate()
        answers = await asyncio.gather(*asking)
        assert await asyncio.to_thread(server.process.wait, processes.END_MAX_S) == 0
        upstream.may_answer.set()
    assert [answer.status_code for answer in answers] == [503] * 6
    assert {answer.json()["error"]["message"] for answer in answers} == {"The server is stopping."}


async def test_a_second_interrupt_does_not_wait(tmp_path: Path, upstream: Echo, database_url: str) -> None:
    async with running(tmp_path, upstream, database_url=database_url, drain_max_s=600) as server:
        upstream.may_answer.clear()
        body = {"model": "m", "input": "q"}
        asking = asyncio.create_task(server.http.post("/v1/responses", json=body))
        await until(lambda: len(upstream.inputs) == 1)
        server.process.send_signal(signal.SIGINT)
        host, port = server.http.base_url.host, server.http.base_url.port
        await until(lambda: not accepts(host, port or 0), within_s=10)
        server.process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(server.process.wait, processes.END_MAX_S) == 0
        with contextlib.suppress(httpx.HTTPError):
            await asking
        upstream.may_answer.set()
    assert not any(map(is_alive, workers_told(tmp_path)))


async def test_the_workers_end_with_their_parent(tmp_path: Path, upstream: Echo, database_url: str) -> None:
    async with running(tmp_path, upstream, database_url=database_url) as server:
        await turn(server, "q")
        server.kill()
        await until(lambda: not any(map(is_alive, workers_told(tmp_path))), within_s=processes.END_MAX_S)
        host, port = server.http.base_url.host, server.http.base_url.port
        assert not accepts(host, port or 0)


def test_the_embedded_postgres_is_there_for_all_of_them_and_ends_with_the_last() -> None:
    with processes.data_folder() as folder:
        with processes.mock(folder) as upstream, processes.server(folder, upstream, "--workers", "3") as url:
            for number in range(6):
                body = {"model": "m", "input": f"q{number}"}
                answer = httpx.post(f"{url}/v1/responses", json=body, trust_env=False)
                assert answer.status_code == 200
            # None of them is the last user.
            os.kill(workers_told(folder)[0], signal.SIGKILL)
            kept = httpx.get(f"{url}/v1/responses/{answer.json()['id']}", trust_env=False)
            assert kept.status_code == 200
            assert (folder / "data" / "pgdata" / "postmaster.pid").exists()
        assert not (folder / "data" / "pgdata" / "postmaster.pid").exists()
        assert of_event(folder, "serving")[0]["database"] == "embedded"


# --- what they have counted


async def figures_of(url: str) -> dict[str, dict[str, float]]:
    """The value of each metric that has no other label, by worker."""
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.get(f"{url}/metrics", headers=ANEW)
    assert answer.status_code == 200
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            if sample.labels.keys() == {"worker"}:
                found.setdefault(sample.name, {})[sample.labels["worker"]] = sample.value
    return found


async def test_whoever_is_asked_tells_the_figures_of_all(tmp_path: Path, upstream: Echo, database_url: str) -> None:
    async with running(tmp_path, upstream, database_url=database_url, workers=3) as server:
        url = str(server.http.base_url)
        for number in range(12):
            await turn(server, f"q{number}")
        for _ in range(8):
            figures = await figures_of(url)
            counted = figures["rejoinder_history_items_count"]
            assert set(counted) == {"1", "2", "3"}
            assert sum(counted.values()) == 12
        killed = workers_told(tmp_path)[1]
        os.kill(killed, signal.SIGKILL)
        await until(lambda: len(workers_told(tmp_path)) == 4, within_s=30)
        counted = (await figures_of(url))["rejoinder_history_items_count"]
        # Who took its place has its number, and has counted nothing yet.
        assert set(counted) == {"1", "2", "3"}
        assert 0.0 in counted.values()


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_port_of_their_own_serves_metrics_alone(
    tmp_path: Path, upstream: Echo, database_url: str, workers: int
) -> None:
    port = free_port()
    settings = {"database_url": database_url, "workers": workers, "metrics_port": port}
    async with running(tmp_path, upstream, **settings) as server:
        await turn(server, "q")
        [told] = of_event(tmp_path, "serving")
        assert told["metrics_url"] == f"http://127.0.0.1:{port}/metrics"
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as metrics:
            answer = await metrics.get("/metrics", headers=ANEW)
            assert answer.status_code == 200
            assert "rejoinder_turns_total" in answer.text
            assert (await metrics.get("/healthz")).status_code == 404
            assert (await metrics.get("/v1/models")).status_code == 404
            assert (await metrics.post("/v1/responses", json={"model": "m", "input": "q"})).status_code == 404
        assert (await server.http.get("/metrics")).status_code == 404
        assert (await server.http.get("/healthz")).status_code == 200
    assert upstream.inputs == [["q"]]


@pytest.mark.parametrize("workers", [1, 2])
async def test_each_worker_sends_its_spans(
    tmp_path: Path, upstream: Echo, database_url: str, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    collected: list[tuple[str, bytes]] = []

    async def collector(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        collected.append((scope["path"], body + message["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with serving(collector) as address:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        settings = {"database_url": database_url, "workers": workers, "traces": True}
        async with running(tmp_path, upstream, **settings) as server:
            ids = {(await turn(server, f"q{number}"))["id"] for number in range(8)}
            await server.http.get("/healthz")
        # What was not sent when they were told to stop is sent before they end.
        sent = b"".join(body for _, body in collected)
    assert {path for path, _ in collected} == {"/v1/traces"}
    assert len(collected) >= workers
    for response_id in ids:
        assert response_id.encode() in sent
    for name in (b"POST /v1/responses", b"upstream", b"store", b"rejoinder"):
        assert name in sent


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


# --- starts that fail


def serve(*arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REJOINDER_")}
    line = [processes.OURS / "rejoinder", "serve", "--upstream", f"http://{NOBODY}/v1", "--workers", "3", *arguments]
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_database_that_cannot_be_reached_is_told_once() -> None:
    finished = serve("--port", "0", "--database-url", f"postgresql://ada@{NOBODY}/db")
    assert finished.returncode == 1
    [line] = finished.stderr.splitlines()
    assert line.startswith("rejoinder: ")
    assert "--database-url" in line


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_port_that_another_server_has_is_told(
    tmp_path: Path, upstream: Echo, database_url: str, workers: int
) -> None:
    async with running(tmp_path, upstream, database_url=database_url, workers=workers) as server:
        port = str(server.http.base_url.port)
        finished = await asyncio.to_thread(serve, "--port", port, "--database-url", database_url)
    assert (finished.returncode, finished.stderr) == (
        1,
        f"rejoinder: port {port} of 127.0.0.1 is taken; choose another with --port\n",
    )


WORKERS = """
import os, sys
from server.cli.workers import Workers
from server.config import ConfigError
from server.telemetry import Telemetry

def serve(bond):
    {what}

sys.exit(Workers(3, serve, Telemetry()).run(lambda: print("all serve", flush=True)))
"""


def supervised(folder: Path, what: str) -> "contextlib.AbstractContextManager[subprocess.Popen[bytes]]":
    """Three workers that do `what` and nothing else."""
    line: list[str | Path] = [sys.executable, "-P", "-c", WORKERS.format(what=what.replace("\n", "\n    "))]
    return processes.running(line, folder, "serve")


def test_what_keeps_every_worker_from_starting_is_told_once_and_ends_all(tmp_path: Path) -> None:
    with supervised(tmp_path, "raise ConfigError('no luck')") as process:
        assert process.wait(60) == 1
    told = (tmp_path / "serve.log").read_text().splitlines()
    assert [line for line in told if not line.startswith("{")] == ["rejoinder: no luck"]
    assert (tmp_path / "serve.out").read_text() == ""


def test_a_worker_that_dies_as_it_starts_ends_all(tmp_path: Path) -> None:
    with supervised(tmp_path, "os.kill(os.getpid(), 9)") as process:
        assert process.wait(60) == 1
    assert [line["exit_code"] for line in of_event(tmp_path, "worker_ended")] == [-9]


def test_workers_that_die_again_and_again_are_replaced_at_a_bounded_rate(tmp_path: Path) -> None:
    began_s = time.monotonic()
    with supervised(tmp_path, "bond.tell_serving()\nos._exit(3)") as process:
        processes.awaited(process, lambda: len(workers_told(tmp_path)) >= 5, tmp_path / "serve.log")
        process.terminate()
        assert process.wait(60) == 0
    # The first three, then one at once, and no more than one in each second.
    assert len(workers_told(tmp_path)) <= 4 + (time.monotonic() - began_s)
    assert (tmp_path / "serve.out").read_text() == "all serve\n"
