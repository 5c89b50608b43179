"""What a command comes to: its exit code, and behind 1 the one line on standard error that says why."""

import signal
import sys
from collections.abc import Callable

from server.config import ConfigError
from server.embedded import EmbeddedPostgresError
from server.errors import ApiError
from server.store.database import UnusableDatabase
from server.telemetry import Telemetry


def exit_code_of(command: Callable[[], int]) -> int:
    """The exit code of a command that is run here, whatever it raises."""
    try:
        return command()
    except (ConfigError, EmbeddedPostgresError, UnusableDatabase) as fault:
        print(f"rejoinder: {fault}", file=sys.stderr)
    except ApiError:
        # The store's one error that can come before a client: its own text tells a client what became of a turn.
        said = "the database cannot be reached. Is --database-url right, and its Postgres running?"
        print(f"rejoinder: {said}", file=sys.stderr)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:
        # A traceback would end in a message, and so perhaps in a password or a prompt.
        Telemetry().crash("command_failed", error)
    return 1
