"""The wheel alone is enough: installed where nothing else is, it serves, migrates and continues."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest

from tests.e2e import processes

ROOT = Path(__file__).resolve().parents[2]
STEP_MAX_S = 300


def uv(*arguments: str | Path, **environment: str) -> None:
    """Run uv in the repository. It takes what it needs from its cache, which `make setup` has filled."""
    line = [processes.OURS / "uv", "--quiet", *arguments]
    inherited = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    subprocess.run(line, cwd=ROOT, env={**inherited, **environment}, check=True, timeout=STEP_MAX_S)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    uv("build", "--wheel", "--out-dir", folder)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment that holds the wheel, what it requires at the locked versions, and no more."""
    environment = tmp_path_factory.mktemp("installed") / "venv"
    uv("sync", "--frozen", "--no-default-groups", "--no-install-project", UV_PROJECT_ENVIRONMENT=str(environment))
    # Offline, so that it fails when the wheel requires something that the lock does not hold for it.
    uv("pip", "install", "--offline", "--python", environment / "bin" / "python", wheel)
    return environment / "bin"


def test_the_wheel_carries_the_migrations(wheel: Path) -> None:
    carried = set(zipfile.ZipFile(wheel).namelist())
    migrations = {path.relative_to(ROOT).as_posix() for path in (ROOT / "migrations").rglob("*.py")}
    assert {"migrations/env.py"} < migrations
    assert {f"server/{name}" for name in migrations} <= carried


def test_the_wheel_carries_nothing_of_the_tests(wheel: Path) -> None:
    folders = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert folders == {"server", f"{wheel.name.removesuffix('-py3-none-any.whl')}.dist-info"}


def test_a_wheel_in_an_empty_environment_serves_two_turns(installed: Path) -> None:
    with (
        processes.data_folder() as folder,
        processes.mock(folder, "--record", "received.jsonl", commands=installed) as upstream,
        processes.server(folder, upstream, commands=installed) as url,
    ):
        source = subprocess.run(
            [installed / "python", "-c", "import server; print(server.__file__)"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=STEP_MAX_S,
        )
        assert Path(source.stdout.strip()).is_relative_to(installed.parent), "it is not the wheel that was tested"
        with httpx.Client(base_url=f"{url}/v1", timeout=60, trust_env=False) as client:
            first = client.post("/responses", json={"model": "m", "input": "Which is the first colour?"})
            assert first.status_code == 200, first.text
            request = {"model": "m", "input": "And the next?", "previous_response_id": first.json()["id"]}
            second = client.post("/responses", json=request)
            assert second.status_code == 200, second.text
            kept = client.get(f"/responses/{second.json()['id']}")
        assert kept.content == second.content
        bodies = [json.loads(json.loads(line)["body"]) for line in (folder / "received.jsonl").read_text().splitlines()]
    said = [item for item in bodies[-1]["input"] if item["type"] == "message"]
    assert [item["role"] for item in said] == ["user", "assistant", "user"]
    assert "Which is the first colour?" in json.dumps(said[0])
    assert "And the next?" in json.dumps(said[2])


def test_the_environment_of_the_wheel_is_not_this_one(installed: Path) -> None:
    found = subprocess.run(
        [installed / "python", "-c", "import importlib.util as u; print(u.find_spec('pytest'), u.find_spec('tests'))"],
        cwd=installed.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=STEP_MAX_S,
    )
    assert found.stdout.split() == ["None", "None"]
    assert installed != Path(sys.executable).parent
