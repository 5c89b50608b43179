"""`make run` and `make help`, as somebody types them who has just cloned the repository."""

import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests.e2e import processes

ROOT = Path(__file__).resolve().parents[2]


def make(*arguments: str) -> list[str | Path]:
    """The command line. What is installed already is taken as it is."""
    return ["make", "--directory", ROOT, "--old-file=.venv/.synced", f"BIN={processes.OURS}", *arguments]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_make_alone_lists_what_there_is_to_do() -> None:
    told = subprocess.run(make("--no-print-directory"), capture_output=True, text=True, check=True, timeout=60).stdout
    listed = [line.split()[0] for line in told.splitlines()]
    assert {"setup", "run", "demo", "test", "lint", "fix", "clean"} <= set(listed)


def test_make_run_without_an_upstream_says_that_a_mock_answers() -> None:
    port = free_port()
    with processes.data_folder() as folder:
        line = make("run", "UPSTREAM=", f"PORT={port}", f"DATA_DIR={folder / 'data'}")
        with processes.running(line, folder, "make") as process:
            log = folder / "make.log"
            told = processes.awaited(process, lambda: processes.serving(log), log)
            assert told["url"] == f"http://127.0.0.1:{port}"
            assert "NO UPSTREAM: a MOCK answers, not a model" in log.read_text()
            request = {"model": "m", "input": "Hello."}
            reply = httpx.post(f"{told['url']}/v1/responses", json=request, timeout=60, trust_env=False)
            assert reply.status_code == 200, reply.text
            [message] = [item for item in reply.json()["output"] if item["type"] == "message"]
            assert "mock, not a model" in message["content"][0]["text"]
        # Whoever ends make ends both.
        assert not listens(told["url"])
        assert not listens(told["upstream"])


def listens(url: str) -> bool:
    address = urlsplit(url)
    with socket.socket() as probe:
        return probe.connect_ex((address.hostname, address.port)) == 0
