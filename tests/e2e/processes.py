"""The package's commands as real processes: started, waited for, and ended by their own process id.

`commands` is the `bin` folder of the environment whose `rejoinder` is run, so that a test can choose which one.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

Answer = TypeVar("Answer")

START_MAX_S = 120
END_MAX_S = 30
OURS = Path(sys.executable).parent


@contextlib.contextmanager
def data_folder() -> Iterator[Path]:
    """An empty folder for a server and its database.

    A Postgres started by root runs as another user, who must be able to pass: through pytest's `tmp_path` he cannot.
    """
    with tempfile.TemporaryDirectory(prefix="rejoinder-test-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@contextlib.contextmanager
def mock(folder: Path, *options: str, commands: Path = OURS) -> Iterator[str]:
    """`rejoinder mock` on a free port, run in `folder`, as the base URL it tells on its standard output."""
    line = [commands / "rejoinder", "mock", "--port", "0", *options]
    with running(line, folder, "mock") as process:
        yield awaited(process, lambda: (folder / "mock.out").read_text().strip(), folder / "mock.log")


@contextlib.contextmanager
def server(
    folder: Path, upstream: str | None, *options: str, commands: Path = OURS, name: str = "serve"
) -> Iterator[str]:
    """`rejoinder serve` on a free port, run in `folder` with its data there, as its URL without a path.

    Without `upstream` the options must say where a configuration is. `name` is that of its log in the folder.
    """
    line = [commands / "rejoinder", "serve", "--port", "0", "--data-dir", folder / "data"]
    upstream_option = [] if upstream is None else ["--upstream", upstream]
    with running([*line, *upstream_option, *options], folder, name) as process:
        log = folder / f"{name}.log"
        yield awaited(process, lambda: serving(log), log)["url"]


@contextlib.contextmanager
def running(line: list[str | Path], folder: Path, name: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process in `folder`, its output in `NAME.out` and `NAME.log` there, without the settings of this shell."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("REJOINDER_", "PYTHON"))}
    with (folder / f"{name}.out").open("wb") as out, (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(line, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_MAX_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def awaited(
    process: "subprocess.Popen[bytes]", answer: Callable[[], Answer], log: Path, start_max_s: float = START_MAX_S
) -> Answer:
    """The first answer that is not empty. AssertionError with the log when the process ends first, or is too slow."""
    deadline = time.monotonic() + start_max_s
    while not (answered := answer()):
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"it did not start and said:\n{log.read_text()}")
        time.sleep(0.05)
    return answered


def serving(log: Path) -> dict[str, str]:
    """What a server told its log when it began to answer: `url` and `upstream` among it. Empty until then."""
    for line in log.read_text().splitlines(keepends=True):
        if line.startswith("{") and line.endswith("}\n") and json.loads(line)["event"] == "serving":
            return json.loads(line)
    return {}
