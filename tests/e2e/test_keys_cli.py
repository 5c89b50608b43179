"""`rejoinder keys` and the servers that it tells of: real processes on one database."""

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from server.cli import main
from tests.e2e import processes

KEY = re.compile(r"rjk_[A-Za-z0-9_-]{43}\n")

CHANGE_MAX_S = 5
"""Within which every server knows of a change (docs/operations.md)."""


@pytest.fixture
def folder() -> Iterator[Path]:
    with processes.data_folder() as made:
        yield made


def keys(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    line = [processes.OURS / "rejoinder", "keys", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=processes.START_MAX_S, check=False)


def tenants(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    line = [processes.OURS / "rejoinder", "tenants", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=processes.START_MAX_S, check=False)


def limited(place: list[str | Path], tenant: str, *limits: str) -> None:
    done = tenants("limit", tenant, *place, *limits)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def created(place: list[str | Path], *options: str) -> str:
    """A new key, which is all that the command writes to its standard output."""
    made = keys("create", *place, *options)
    assert made.returncode == 0, made.stderr
    assert KEY.fullmatch(made.stdout), made.stdout
    assert "not shown again" in made.stderr
    assert made.stdout.strip() not in made.stderr
    return made.stdout.strip()


def status(url: str, key: str | None = None) -> int:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.get(f"{url}/v1/responses/resp_unknown", headers=headers).status_code


def until_status(expected: int, url: str, key: str | None = None) -> None:
    """What the server answers within the time that a change may take."""
    deadline = time.monotonic() + CHANGE_MAX_S
    while (got := status(url, key)) != expected:
        assert time.monotonic() < deadline, f"it still answers {got}"
        time.sleep(0.1)


def test_keys_of_an_embedded_database_come_and_go_beside_running_servers(folder: Path) -> None:
    place: list[str | Path] = ["--data-dir", folder / "data"]
    with (
        processes.mock(folder) as upstream,
        processes.server(folder, f"{upstream}/v1", name="one") as one,
        processes.server(folder, f"{upstream}/v1", name="two") as two,
    ):
        for url in (one, two):
            assert status(url) == status(url, "sk-anything") == 404
        first = created(place, "--tenant", "default")
        for url in (one, two):
            until_status(401, url)
            assert status(url, first) == 404

        # A second key of the tenant, that is not there from one moment to the next.
        second = created(place, "--tenant", "default")
        for url in (one, two):
            until_status(404, url, second)
        assert keys("revoke", *place, first[:12]).returncode == 0
        for url in (one, two):
            until_status(401, url, first)
            assert status(url, second) == 404

        rotated = keys("rotate", *place, second)
        assert rotated.returncode == 0
        third = rotated.stdout.strip()
        assert KEY.fullmatch(rotated.stdout)
        for url in (one, two):
            until_status(401, url, second)
            assert status(url, third) == 404

        listed = keys("list", *place)
        assert listed.returncode == 0
        head, *rows = listed.stdout.splitlines()
        assert head.split() == ["KEY", "TENANT", "CREATED", "LAST", "USED", "REVOKED"]
        assert [row.split()[:2] for row in rows] == [[key[:12], "default"] for key in (first, second, third)]
        assert [row.split()[-1] == "-" for row in rows] == [False, False, True]
        assert not any(key in listed.stdout for key in (first, second, third))

        # Who takes the last one away closes his server to all.
        assert keys("revoke", *place, third).returncode == 0
        for url in (one, two):
            until_status(401, url, third)
            assert status(url) == 401
    logs = "".join((folder / f"{name}.log").read_text() for name in ("one", "two"))
    assert not any(key in logs for key in (first, second, third))


def test_keys_of_a_database_of_ones_own(folder: Path, database_url: str) -> None:
    place: list[str | Path] = ["--database-url", database_url]
    key = created(place, "--tenant", "ada")
    limited(place, "ada", "--requests-per-minute", "2")
    assert tenants("list", *place).stdout.splitlines() == ["default  -", "ada  requests_per_minute 2"]
    with (
        processes.mock(folder) as upstream,
        processes.server(folder, f"{upstream}/v1", "--database-url", database_url) as url,
    ):
        assert status(url) == 401
        statuses = [status(url, key) for _ in range(6)]
        assert 429 in statuses
        limited(place, "ada", "--requests-per-minute", "0", "--open-turns-max", "3")
        until_status(404, url, key)
        assert {status(url, key) for _ in range(6)} == {404}
    assert tenants("list", *place).stdout.splitlines()[1] == "ada  requests_per_minute 0, open_turns_max 3"
    assert not (folder / "data").exists()


def test_servers_count_the_requests_of_a_minute_together(folder: Path, database_url: str) -> None:
    """Each tells the others within a second or so: what is let through too much are the requests of that time."""
    place: list[str | Path] = ["--database-url", database_url]
    key = created(place, "--tenant", "ada")
    limited(place, "ada", "--requests-per-minute", "10")
    with (
        processes.server(folder, "http://127.0.0.1:9/v1", *map(str, place), name="one") as one,
        processes.server(folder, "http://127.0.0.1:9/v1", *map(str, place), name="two") as two,
    ):
        # All of it has to be in one minute.
        if time.time() % 60 > 48:
            time.sleep(61 - time.time() % 60)
        let_through = 0
        for _ in range(60):
            let_through += sum(status(url, key) == 404 for url in (one, two))
            time.sleep(0.05)
        assert {status(url, key) for url in (one, two)} == {429}
    # Ten, and at the very most what both let through in two seconds: twenty a second each.
    assert 10 <= let_through <= 10 + 2 * 2 * 20


def test_the_first_key_can_be_asked_for_every_time(database_url: str) -> None:
    place: list[str | Path] = ["--database-url", database_url, "--if-first"]
    created(place, "--tenant", "default")
    again = keys("create", *place, "--tenant", "default")
    assert (again.returncode, again.stdout) == (0, "")
    assert "already" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["revoke", "rjk_unknown1"], "no such key"),
        (["rotate", "rjk_unknown1"], "no such key"),
        (["create", "--tenant", ""], "the name of a tenant"),
        (["create", "--tenant", "a\nb"], "the name of a tenant"),
        (["create", "--tenant", " "], "the name of a tenant"),
        (["create", "--tenant", "a "], "the name of a tenant"),
        (["create", "--tenant", "a" * 257], "the name of a tenant"),
    ],
)
def test_what_can_not_be_done_is_told(database_url: str, arguments: list[str], complaint: str) -> None:
    finished = keys(*arguments, "--database-url", database_url)
    assert (finished.returncode, finished.stdout) == (1, "")
    assert complaint in finished.stderr
    assert len(finished.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [[], ["create"], ["create", "--tenant"], ["revoke"]])
def test_wrong_usage_of_keys_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["keys", *arguments])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: rejoinder keys")


@pytest.mark.parametrize("action", [["limit"], ["erase", "--yes"]])
def test_a_tenant_that_is_not_there_is_told(database_url: str, action: list[str]) -> None:
    finished = tenants(*action, "nobody", "--database-url", database_url)
    assert (finished.returncode, finished.stdout) == (1, "")
    assert "there is no tenant of this name" in finished.stderr


@pytest.mark.parametrize("limit", ["-1", "many", "1.5", "9" * 19])
def test_a_limit_is_a_whole_number(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tenants", "limit", "ada", f"--open-turns-max={limit}"])
    assert ended.value.code == 2
    assert "whole number" in capsys.readouterr().err


def test_an_address_that_others_reach_needs_a_key(folder: Path, database_url: str) -> None:
    line = ["serve", "--host", "0.0.0.0", "--port", "0", "--upstream", "http://127.0.0.1:9/v1"]
    command = [processes.OURS / "rejoinder", *line, "--database-url", database_url]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=processes.START_MAX_S, check=False)
    assert refused.returncode == 1
    assert "rejoinder keys create" in refused.stderr.splitlines()[-1]
    assert "--open-to-all" in refused.stderr.splitlines()[-1]
    options = ("--host", "0.0.0.0", "--database-url", database_url)
    with processes.server(folder, "http://127.0.0.1:9/v1", *options, "--open-to-all") as url:
        assert status(url.replace("0.0.0.0", "127.0.0.1")) == 404
        assert '"open_to_all"' in (folder / "serve.log").read_text()
    key = created(["--database-url", database_url], "--tenant", "default")
    with processes.server(folder, "http://127.0.0.1:9/v1", *options) as url:
        here = url.replace("0.0.0.0", "127.0.0.1")
        assert (status(here), status(here, key)) == (401, 404)
