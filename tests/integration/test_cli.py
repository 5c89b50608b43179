"""The commands as processes: how they start, what they say, how they end."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e import processes

REJOINDER = processes.OURS / "rejoinder"
# Nobody listens on port 1, so a connection is refused at once.
NOBODY = "127.0.0.1:1"
SECRET = "hunter2"


def rejoinder(*arguments: str | Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """A command run to its end, with these settings only."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REJOINDER_")}
    return subprocess.run(
        [REJOINDER, *arguments],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def complaint(finished: "subprocess.CompletedProcess[str]") -> str:
    """The one line that a command says before it gives up."""
    assert finished.returncode == 1, finished
    assert finished.stdout == ""
    [line] = finished.stderr.splitlines()
    assert line.startswith("rejoinder: ")
    return line


def logged(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture
def folder() -> Iterator[Path]:
    with processes.data_folder() as path:
        yield path


@pytest.fixture(scope="module")
def migrated() -> Iterator[Path]:
    """A folder with a database in `data`, for servers to find it, and take no time to make it."""
    with processes.data_folder() as path:
        done = rejoinder("migrate", "--data-dir", path / "data")
        assert (done.returncode, done.stdout) == (0, "The schema is up to date.\n"), done.stderr
        yield path


def test_the_version_is_that_of_the_package() -> None:
    assert rejoinder("--version").stdout == "rejoinder 0.1.0\n"


@pytest.mark.parametrize("arguments", [[], ["sevre"], ["serve", "--up", "http://h/v1"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    finished = rejoinder(*arguments)

    assert finished.returncode == 2
    assert finished.stderr.startswith("usage: rejoinder")


def test_without_an_upstream_the_server_says_what_to_do() -> None:
    line = complaint(rejoinder("serve"))

    assert "--upstream http://host:8000/v1" in line
    assert "rejoinder mock" in line


def test_a_misspelt_variable_stops_the_start() -> None:
    line = complaint(rejoinder("serve", REJOINDER_UPSTREM=f"http://{NOBODY}/v1"))

    assert "REJOINDER_UPSTREM" in line
    assert line.endswith("REJOINDER_UPSTREAM")


def test_a_port_that_is_taken_is_told_before_a_database_is_made(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        line = complaint(
            rejoinder("serve", "--port", port, "--upstream", f"http://{NOBODY}/v1", "--data-dir", folder / "data")
        )

    assert f"port {port} of 127.0.0.1 is taken" in line
    assert not (folder / "data").exists()


@pytest.mark.parametrize("command", [["serve", "--port", "0", "--upstream", f"http://{NOBODY}/v1"], ["migrate"]])
def test_a_database_that_cannot_be_reached_is_told_without_its_password(command: list[str]) -> None:
    line = complaint(rejoinder(*command, REJOINDER_DATABASE_URL=f"postgresql://ada:{SECRET}@{NOBODY}/db"))

    assert "--database-url" in line
    assert "stored" not in line
    assert SECRET not in line


@pytest.mark.parametrize("command", [["serve", "--port", "0", "--upstream", f"http://{NOBODY}/v1"], ["migrate"]])
def test_a_data_directory_that_cannot_be_one_is_told(command: list[str], folder: Path) -> None:
    (folder / "file").touch()

    assert str(folder / "file") in complaint(rejoinder(*command, "--data-dir", folder / "file"))


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_server_tells_where_it_serves_and_ends_cleanly_by_a_signal(migrated: Path, ending: signal.Signals) -> None:
    upstream = f"http://ada:{SECRET}@{NOBODY}/v1"
    options = ["--port", "0", "--upstream", upstream, "--data-dir", migrated / "data"]
    log = migrated / "serve.log"
    with processes.running([REJOINDER, "serve", *options], migrated, "serve") as process:
        url = processes.awaited(process, lambda: processes.serving(log), log)["url"]
        assert httpx.get(f"{url}/healthz", trust_env=False).status_code == 200
        process.send_signal(ending)
        assert process.wait(processes.END_MAX_S) == 0

    warning, first, last = *logged(log)[:2], logged(log)[-1]
    assert (warning["level"], warning["event"], warning["host"]) == ("warning", "open_to_all", "127.0.0.1")
    assert first["event"] == "serving"
    assert url.startswith("http://127.0.0.1:")
    assert first["upstream"] == f"http://{NOBODY}/v1"
    assert (first["upstream_authentication"], first["database"]) == (True, "embedded")
    assert last["event"] == "stopped"
    assert SECRET not in log.read_text()
    # Postgres ended with its last user.
    assert not (migrated / "data" / "pgdata" / "postmaster.pid").exists()


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_without_its_client_has_the_time_to_end_that_others_have(folder: Path, stream: bool) -> None:
    slow = {"delay_ms": 2000, "json": {"object": "response", "status": "completed", "output": []}}
    (folder / "replies").write_text(json.dumps(slow))
    log = folder / "serve.log"
    with processes.mock(folder, "--script", str(folder / "replies"), "--record", str(folder / "record")) as upstream:
        options = ["--port", "0", "--upstream", upstream, "--data-dir", folder / "data"]
        with processes.running([REJOINDER, "serve", *options], folder, "serve") as process:
            url = processes.awaited(process, lambda: processes.serving(log), log)["url"]
            body = {"model": "m", "input": "a", "stream": stream}
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{url}/v1/responses", json=body, timeout=0.5, trust_env=False)
            process.send_signal(signal.SIGTERM)
            assert process.wait(processes.END_MAX_S) == 0

    assert [(line["event"], line.get("turn")) for line in logged(log)][2:] == [
        ("request", None),
        ("turn_ended", "completed"),
        ("prefixes_counted", None),
        ("stopped", None),
    ]


def test_the_log_of_a_server_is_json_and_holds_no_input_at_any_level(migrated: Path) -> None:
    with processes.server(migrated, f"http://{NOBODY}/v1", "--log-level", "debug") as url:
        refused = httpx.post(f"{url}/v1/responses", json={"model": "m", "input": SECRET}, trust_env=False)
        assert refused.is_server_error

    assert len(logged(migrated / "serve.log")) > 2
    assert SECRET not in (migrated / "serve.log").read_text()


def test_a_schema_can_be_left_to_migrate(migrated: Path) -> None:
    with processes.mock(migrated) as upstream, processes.server(migrated, upstream, "--no-migrate") as url:
        answered = httpx.post(f"{url}/v1/responses", json={"model": "m", "input": "Hello"}, trust_env=False)
        assert answered.status_code == 200

    again = rejoinder("migrate", "--data-dir", migrated / "data")
    assert again.returncode == 0, again.stderr


def test_a_mock_plays_its_script_and_records_what_it_got(folder: Path) -> None:
    (folder / "script.jsonl").write_text('{"status": 418, "text": "first"}\n{"json": {"second": 2}}\n')
    with processes.mock(folder, "--script", "script.jsonl", "--record", "record.jsonl") as url:
        assert "NOT A MODEL" in (folder / "mock.log").read_text()
        sent = '{"input": "\\ud800 é"}'.encode()
        first = httpx.post(f"{url}/responses", content=sent, trust_env=False)
        # What was received can be read while the mock runs.
        [line] = (folder / "record.jsonl").read_text().splitlines()
        second = httpx.post(f"{url}/responses", content=sent, trust_env=False)

    assert (first.status_code, first.text) == (418, "first")
    assert second.json() == {"second": 2}
    assert json.loads(line) == {"method": "POST", "path": "/v1/responses", "body": sent.decode()}


def test_files_that_a_mock_cannot_use_are_told(folder: Path) -> None:
    (folder / "script.jsonl").write_text('{"stauts": 200}\n')

    assert "stauts" in complaint(rejoinder("mock", "--port", "0", "--script", folder / "script.jsonl"))
    assert str(folder / "none") in complaint(rejoinder("mock", "--port", "0", "--script", folder / "none"))
    assert str(folder) in complaint(rejoinder("mock", "--port", "0", "--record", folder))
    assert "65536" in complaint(rejoinder("mock", "--port", "65536"))


def test_the_demo_shows_two_turns_and_leaves_nothing_running(folder: Path) -> None:
    # A setting of the user's real server must not reach the demo's.
    shown = rejoinder("demo", TMPDIR=str(folder), REJOINDER_DATABASE_URL=f"postgresql://{NOBODY}/db")

    assert shown.returncode == 0, shown
    _, _, sent_upstream = shown.stdout.partition("WHAT THE UPSTREAM RECEIVED ON TURN 2")
    question, thought, answer, second_question = [json.loads(line) for line in sent_upstream.splitlines()[1:]]
    assert question["content"] == "My dog is called Rex. What do you think of the name?"
    assert thought["content"][0]["text"] == "I am a mock and cannot think. I count 1 input item."
    assert (thought["type"], answer["type"], answer["role"]) == ("reasoning", "message", "assistant")
    assert second_question["content"] == "What is my dog called?"
    assert "NOT A MODEL" in shown.stderr
    assert processes_naming(folder) == []
    assert list(folder.iterdir()) == []


def test_the_demo_can_be_interrupted(folder: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(folder)}
    process = subprocess.Popen(
        [REJOINDER, "demo"], env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + processes.START_MAX_S
    while not list(folder.glob("*/pgdata*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    # As a terminal does for Ctrl-C: to the whole group.
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)

    assert process.returncode == 130, said
    assert b"Traceback" not in said
    assert processes_naming(folder) == []


def processes_naming(folder: Path) -> list[str]:
    """The command lines of this machine that name the folder: the demo's server, mock and Postgres all do."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_text(errors="replace"))
    return [line for line in lines if str(folder) in line]


def test_the_profiles_are_listed_and_printed() -> None:
    listed = rejoinder("profiles")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert [line.split() for line in listed.stdout.splitlines()][:3] == [
        ["vllm", "responses"],
        ["vllm-harmony", "responses"],
        ["openai", "responses"],
    ]
    printed = rejoinder("profiles", "openai")
    assert json.loads(printed.stdout)["item_members"]["reasoning"] == [
        "id", "summary", "content", "encrypted_content",
    ]  # fmt: skip
    assert rejoinder("profiles", "vlm").returncode == 2
