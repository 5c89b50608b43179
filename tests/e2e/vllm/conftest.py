"""The real vLLM that these tests talk to: one that runs already, or one that is started for them."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e import processes

READY_MAX_S = 400


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of a vLLM that serves the tiny model: E2E_UPSTREAM, or one served from the environment VLLM_VENV."""
    running, environment = os.environ.get("E2E_UPSTREAM"), os.environ.get("VLLM_VENV")
    if running:
        yield running
        return
    if not environment:
        pytest.skip("NO REAL vLLM: name one with E2E_UPSTREAM or VLLM_VENV, or run `make e2e-vllm`")
    folder = tmp_path_factory.mktemp("vllm")
    port = free_port()
    line = [Path(__file__).parent / "serve.sh", Path(environment).absolute(), str(port)]
    with processes.running(line, folder, "vllm") as process:
        processes.awaited(process, lambda: healthy(port), folder / "vllm.log", READY_MAX_S)
        yield f"http://127.0.0.1:{port}/v1"


@pytest.fixture(scope="session")
def rejoinder(vllm: str) -> Iterator[str]:
    """Base URL of a server process with an embedded Postgres in front of that vLLM."""
    with processes.data_folder() as folder, processes.server(folder, vllm) as url:
        yield f"{url}/v1"


CHAT = """
[[upstreams]]
name = "chat"
urls = ["{vllm}"]
dialect = "chat"
profile = "chat-vllm"
models = ["*"]
"""


@pytest.fixture(scope="session")
def both_dialects(vllm: str) -> Iterator[dict[str, str]]:
    """Base URLs of two servers on one database before that vLLM, by the dialect that they speak to it."""
    with processes.data_folder() as folder:
        (folder / "chat.toml").write_text(CHAT.format(vllm=vllm))
        with (
            processes.server(folder, vllm, name="responses") as responses_url,
            processes.server(folder, None, "--config", str(folder / "chat.toml"), name="chat") as chat_url,
        ):
            yield {"responses": f"{responses_url}/v1", "chat": f"{chat_url}/v1"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def healthy(port: int) -> str | None:
    try:
        reply = httpx.get(f"http://127.0.0.1:{port}/health", timeout=5, trust_env=False)
    except httpx.TransportError:
        return None
    return "yes" if reply.is_success else None
