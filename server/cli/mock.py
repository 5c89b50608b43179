"""`rejoinder mock`: the scripted upstream as a process of its own, for a try-out and for the tests of others."""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import msgspec

from server.cli import web
from server.config import ConfigError
from server.mock import Mock, Received, Reply, load_script


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "mock",
        help="serve a scripted stand-in for a model server",
        description="Serve a scripted stand-in for a model server. Its base URL is the only line on standard output.",
        allow_abbrev=False,
    )
    parser.add_argument("--script", type=Path, metavar="FILE", help="the replies, one JSON object a line")
    parser.add_argument("--record", type=Path, metavar="FILE", help="append every request, one JSON object a line")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, metavar="PORT", help="port, 0 for any free one (8000)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    replies = _script(arguments.script) if arguments.script else []
    with contextlib.ExitStack() as open_files, web.listen(arguments.host, arguments.port) as listener:
        record = _recorder(open_files.enter_context(_opened(arguments.record))) if arguments.record else None
        url = f"{web.url_of(listener)}/v1"

        def announce() -> None:
            print(f"*** MOCK: a scripted stand-in, NOT A MODEL, answers at {url} ***", file=sys.stderr, flush=True)
            print(url, flush=True)

        web.run(Mock(replies, record=record), [listener], announce)
    return 0


def _script(path: Path) -> list[Reply]:
    try:
        return load_script(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"the script {path} cannot be read: {error.strerror}") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError(f"the script {path} cannot be played: {error}") from None


def _opened(path: Path) -> TextIO:
    try:
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the record {path} cannot be written: {error.strerror}") from None


def _recorder(file: TextIO) -> Callable[[Received], None]:
    def record(received: Received) -> None:
        # A body that is no UTF-8 is what a test may be after: it is told, byte for byte, by escapes.
        body = received.body.decode("utf-8", "backslashreplace")
        line: dict[str, Any] = {"method": received.method, "path": received.path, "body": body}
        print(json.dumps(line), file=file, flush=True)

    return record
