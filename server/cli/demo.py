"""`rejoinder demo`: two turns through a real server process, and what became of them.

The server is `rejoinder serve` with an embedded Postgres in a temporary folder; the bundled mock is its upstream, in a
process of its own. All of it is gone at the end.
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from server.config import ConfigError

FIRST_INPUT = "My dog is called Rex. What do you think of the name?"
SECOND_INPUT = "What is my dog called?"
START_TIMEOUT_S = 120
END_TIMEOUT_S = 30
TURN_TIMEOUT_S = 60


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "demo",
        help="two turns through a real server process, before a mock",
        description="Run two turns through a real server process, and print what was stored and sent upstream.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)


def run(_arguments: argparse.Namespace) -> int:
    # Postgres may still be at its last files when the folder goes.
    with tempfile.TemporaryDirectory(prefix="rejoinder-demo-", ignore_cleanup_errors=True) as folder:
        record = Path(folder, "upstream.jsonl")
        with _mock(record) as upstream_url, _server(Path(folder), upstream_url) as url:
            print(f"A real server with its own Postgres at {url}, before a MOCK, not a model, at {upstream_url}.")
            _two_turns(_client(url), record)
    return 0


def _two_turns(client: "_Client", record: Path) -> None:
    first = _turn(client, "TURN 1", {"model": "mock", "input": FIRST_INPUT})
    second = _turn(client, "TURN 2", {"model": "mock", "input": SECOND_INPUT, "previous_response_id": first["id"]})
    stored = client.retrieve(second["id"])
    print(f"\nSTORED: GET /v1/responses/{second['id']}")
    _show({name: stored[name] for name in ("id", "status", "previous_response_id")})
    _show(*stored["output"])
    print(f"\nSTORED: GET /v1/responses/{second['id']}/input_items, in order")
    _show(*client.input_items(second["id"]))
    received = [json.loads(line) for line in record.read_text().splitlines()]
    bodies = [json.loads(request["body"]) for request in received if request["method"] == "POST"]
    print("\nWHAT THE UPSTREAM RECEIVED ON TURN 2: the history in order, then the new input")
    _show(*bodies[-1]["input"])


def _turn(client: "_Client", title: str, body: dict[str, Any]) -> dict[str, Any]:
    print(f"\n{title}: the client sends")
    _show(body)
    response = client.create(body)
    print(f"the client gets {response['id']} ({response['status']}) with the output")
    _show(*response["output"])
    return response


def _show(*values: Any) -> None:
    for value in values:
        print(f"  {json.dumps(value, ensure_ascii=False)}")


@contextlib.contextmanager
def _mock(record: Path) -> Iterator[str]:
    """A mock that writes what it receives to `record`, as its base URL."""
    with _process("mock", "--port", "0", "--record", str(record), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        if not url:
            raise ConfigError("the mock of the demo did not start")
        yield url


@contextlib.contextmanager
def _server(folder: Path, upstream_url: str) -> Iterator[str]:
    """A server whose data and log lie in `folder`, as its URL."""
    log = folder / "server.log"
    options = ["--port", "0", "--data-dir", str(folder), "--upstream", upstream_url]
    with log.open("wb") as stderr, _process("serve", *options, stderr=stderr) as process:
        deadline = time.monotonic() + START_TIMEOUT_S
        while (url := _serving_url(log)) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise ConfigError(f"the server of the demo did not start. It said:\n{log.read_text()}")
            time.sleep(0.05)
        yield url


def _serving_url(log: Path) -> str | None:
    for line in log.read_text().splitlines():
        if line.startswith("{") and line.endswith("}") and json.loads(line)["event"] == "serving":
            return str(json.loads(line)["url"])
    return None


@contextlib.contextmanager
def _process(*command: str, **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    """One of our own commands as a process, ended and waited for."""
    # Settings of the user's real server (its database!) are no business of a demo, nor is a `server` in this folder.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REJOINDER_")}
    line = [sys.executable, "-P", "-m", "server", *command]
    with subprocess.Popen(line, env=environment, **streams) as process:  # noqa: S603 - our own program
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


class _Client(Protocol):
    """What the demo asks of a client."""

    def create(self, body: dict[str, Any]) -> dict[str, Any]: ...
    def retrieve(self, response_id: str) -> dict[str, Any]: ...
    def input_items(self, response_id: str) -> list[dict[str, Any]]: ...


def _client(url: str) -> _Client:
    if importlib.util.find_spec("openai") is None:
        print("The official client (openai) is not installed: plain HTTP is used.")
        return _PlainClient(url)
    print(f"The client is the official one, openai {importlib.metadata.version('openai')}.")
    return _OfficialClient(url)


class _OfficialClient:
    """openai-python, which this package does not depend on. A proxy of the environment has no part in this."""

    def __init__(self, url: str) -> None:
        openai = importlib.import_module("openai")
        http_client = openai.DefaultHttpxClient(trust_env=False)
        client = openai.OpenAI(
            base_url=f"{url}/v1", api_key="none", http_client=http_client, timeout=TURN_TIMEOUT_S, max_retries=0
        )
        self._responses = client.responses

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        response: dict[str, Any] = self._responses.create(**body).to_dict()
        return response

    def retrieve(self, response_id: str) -> dict[str, Any]:
        response: dict[str, Any] = self._responses.retrieve(response_id).to_dict()
        return response

    def input_items(self, response_id: str) -> list[dict[str, Any]]:
        return [item.to_dict() for item in self._responses.input_items.list(response_id, order="asc")]


class _PlainClient:
    def __init__(self, url: str) -> None:
        self._url = f"{url}/v1/responses"
        # Whatever proxy the environment names, the server is on this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        return self._json("", json.dumps(body).encode())

    def retrieve(self, response_id: str) -> dict[str, Any]:
        return self._json(f"/{response_id}")

    def input_items(self, response_id: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self._json(f"/{response_id}/input_items?order=asc")["data"]
        return items

    def _json(self, path: str, body: bytes | None = None) -> dict[str, Any]:
        request = urllib.request.Request(self._url + path, body, {"content-type": "application/json"})
        with self._opener.open(request, timeout=TURN_TIMEOUT_S) as reply:
            told: dict[str, Any] = json.load(reply)
            return told
