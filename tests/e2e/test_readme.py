"""The examples of the README do what it says, word for word but for the address."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e import processes

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
EXAMPLE_MAX_S = 120


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with (
        processes.data_folder() as folder,
        processes.mock(folder) as upstream,
        processes.server(folder, upstream) as address,
    ):
        yield address


def example(language: str, url: str) -> str:
    [text] = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert "http://127.0.0.1:8080" in text
    return text.replace("http://127.0.0.1:8080", url)


def answer(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=EXAMPLE_MAX_S).stdout


def history_of(response_id: str, url: str) -> list[str]:
    """Who said what before that response, as the server tells it."""
    reply = httpx.get(f"{url}/v1/responses/{response_id}/input_items?order=asc", timeout=60, trust_env=False)
    return [item["role"] for item in reply.json()["data"] if item["type"] == "message"]


def test_two_turns_with_curl(url: str) -> None:
    second = answer("bash", "-euc", example("sh", url))
    response_id = re.findall(r'"id": ?"(resp_\w+)"', second)[0]
    assert history_of(response_id, url) == ["user", "assistant", "user"]


def test_two_turns_with_the_official_client(url: str) -> None:
    told = answer(sys.executable, "-c", example("python", url))
    assert len(re.findall("mock", told, re.IGNORECASE)) >= 2, "both turns should say who answered them"
