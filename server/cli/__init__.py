"""The command line: `rejoinder serve`, `migrate`, `keys`, `prune`, `fsck`, `tenants`, `profiles`, `mock` and `demo`.

Each is a module, and returns its exit code: 0, or 1 behind one line on standard error that says what is wrong and what
to do. Wrong usage is argparse's 2.
"""

import argparse
import importlib.metadata
import signal
from collections.abc import Sequence

from server.cli import demo, fsck, keys, migrate, mock, profiles, prune, serve, tenants
from server.cli.outcome import exit_code_of


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names (by default the process's own arguments) and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="rejoinder",
        description="A stateful server for the Responses API in front of a stateless model server.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rejoinder {importlib.metadata.version('rejoinder')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (serve, migrate, keys, prune, fsck, tenants, profiles, mock, demo):
        command.add_to(commands)
    arguments = parser.parse_args(argv)
    # A supervisor's SIGTERM ends a command as Ctrl-C does: what it opened is closed, what it started is ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return exit_code_of(lambda: arguments.run(arguments))
