"""The process that owns the embedded Postgres: starts it, restarts it when it dies, stops it after its last user.

`server.embedded` runs this file as a program of its own, `python -I -S <file> <orders>`, so it may import nothing but
the standard library. It outlives the server that started it: every server holds a shared lock on `users.lock`, and the
kernel drops that lock however a server ends, so waiting for the exclusive lock is waiting for the last one to be gone.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

POLL_INTERVAL_S = 0.25
RESTART_WINDOW_S = 60.0
# One pause for each restart that a window allows. They grow because the backends of a killed postmaster may need a
# moment to notice, and Postgres does not start beside them.
RESTART_PAUSES_S = (0.25, 0.5, 1.5)
# Fast shutdown, then immediate shutdown (which recovers at the next start), then whatever the kernel can do.
STOP_SIGNALS = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))


class Orders(NamedTuple):
    """What a server tells its watchdog, as one JSON argument.

    Paths are absolute. `user` and `group` are the account to run Postgres as, None for our own.
    """

    command: list[str]
    pgdata: str
    socket_dir: str
    users_lock: str
    user: int | None
    group: int | None

    def encode(self) -> str:
        return json.dumps(self)


def main() -> None:
    """Become a daemon and watch. The lock that says that we live was inherited, open, and closes with our end."""
    orders = Orders(*json.loads(sys.argv[1]))
    users_lock = os.open(orders.users_lock, os.O_RDWR | os.O_CLOEXEC)
    # Forked so that init reaps us: a server that never exits would keep us as a zombie.
    if os.fork():
        os._exit(0)
    os.setsid()
    # A supervisor may signal every process it knows. Handlers, unlike SIG_IGN, are not inherited by Postgres.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    released = threading.Event()
    threading.Thread(target=wait_for_last_user, args=(users_lock, released), daemon=True).start()
    watch_over(orders, released)


def wait_for_last_user(users_lock: int, released: threading.Event) -> None:
    fcntl.flock(users_lock, fcntl.LOCK_EX)
    released.set()


def watch_over(orders: Orders, released: threading.Event) -> None:
    """Keep Postgres running until `released`, then stop it.

    Gives up when Postgres was never ready and its restarts are used up, so that the waiting server learns of it. Both
    locks are held to our end: a server that comes during a shutdown waits, and then starts afresh.
    """
    postmaster = Postmaster.adopt(orders) or Postmaster.launch(orders)
    restarts: list[float] = []
    was_ready = False
    while not released.wait(POLL_INTERVAL_S):
        was_ready = was_ready or is_ready(orders.pgdata)
        if postmaster and postmaster.is_running():
            continue
        restarts = [moment for moment in restarts if time.monotonic() - moment < RESTART_WINDOW_S]
        if len(restarts) == len(RESTART_PAUSES_S):
            if not was_ready:
                return
            continue
        if released.wait(RESTART_PAUSES_S[len(restarts)]):
            break
        log("Postgres ended and is started again")
        restarts.append(time.monotonic())
        postmaster = Postmaster.launch(orders)
    if postmaster:
        postmaster.stop()
    # In a temporary directory nothing of ours should be left behind.
    with contextlib.suppress(OSError):
        os.rmdir(orders.socket_dir)


class Postmaster:
    """A Postgres: our child, or one whose watchdog was killed and that we adopted."""

    def __init__(self, orders: Orders, pid: int, child: subprocess.Popen[bytes] | None) -> None:
        self.pgdata = orders.pgdata
        self.pid = pid
        self.child = child

    @classmethod
    def adopt(cls, orders: Orders) -> "Postmaster | None":
        pid = recorded_pid(orders.pgdata)
        return cls(orders, pid, None) if pid and is_postgres(pid, orders.pgdata) else None

    @classmethod
    def launch(cls, orders: Orders) -> "Postmaster | None":
        """Start Postgres. None where that is impossible, as while its package is being upgraded."""
        account: dict[str, Any] = {}
        if orders.user is not None:
            account = {"user": orders.user, "group": orders.group, "extra_groups": []}
        try:
            remove_misleading_lock_files(orders)
            child = subprocess.Popen(  # noqa: S603 - the command of our own server
                orders.command, stdin=subprocess.DEVNULL, stdout=sys.stderr, cwd="/", start_new_session=True, **account
            )
        except OSError as error:
            log(f"Postgres cannot be started: {error}")
            return None
        return cls(orders, child.pid, child)

    def is_running(self) -> bool:
        return self.child.poll() is None if self.child else is_postgres(self.pid, self.pgdata)

    def stop(self) -> None:
        for number, patience_s in STOP_SIGNALS:
            deadline = time.monotonic() + patience_s
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
            while time.monotonic() < deadline:
                if not self.is_running():
                    return
                time.sleep(0.02)


def pid_file_lines(pgdata: str) -> list[str]:
    try:
        return Path(pgdata, "postmaster.pid").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []


def recorded_pid(pgdata: str) -> int | None:
    """The process that `postmaster.pid` names, whatever that process is by now."""
    first = next(iter(pid_file_lines(pgdata)), "")
    return int(first) if first.strip().isdigit() else None


def is_ready(pgdata: str) -> bool:
    """Whether `postmaster.pid` says so; its eighth line is the status that `pg_ctl` waits for."""
    lines = pid_file_lines(pgdata)
    return len(lines) >= 8 and lines[7].strip() == "ready"


def is_postgres(pid: int, pgdata: str) -> bool:
    """Whether the process is a Postgres that may own `pgdata`; a zombie is not."""
    argv = command_line(pid)
    if not argv or os.path.basename(argv[0]) != "postgres":
        return False
    try:
        return os.path.samefile(argv[argv.index("-D") + 1], pgdata)
    except (ValueError, IndexError, OSError):
        # One that does not say where it works, or whose directory was moved: better not to start a second beside it.
        return True


def command_line(pid: int) -> list[str]:
    """The arguments of a process, from /proc; where there is none (macOS), only its program. Empty once it is dead."""
    if os.path.isdir("/proc/self"):
        try:
            content = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return []
        return [os.fsdecode(argument) for argument in content.split(b"\0")[:-1]]
    listing = subprocess.run(  # noqa: S603 - a fixed program
        ["/bin/ps", "-p", str(pid), "-o", "comm="], capture_output=True, text=True, check=False
    )
    return listing.stdout.splitlines()


def remove_misleading_lock_files(orders: Orders) -> None:
    """Remove an earlier Postgres's lock files where its number is taken, by a zombie or by what is no Postgres.

    Postgres itself refuses to start then. It happens when a container restarts and numbers its processes anew, or when
    its init reaps nobody. A number that is not taken is left for Postgres to judge, which also looks at shared memory.
    The socket has such a file beside it; no Postgres of ours runs, so both can go.
    """
    pid = recorded_pid(orders.pgdata)
    if pid and is_taken(pid) and not is_postgres(pid, orders.pgdata):
        os.unlink(os.path.join(orders.pgdata, "postmaster.pid"))
    for leftover in Path(orders.socket_dir).glob(".s.PGSQL.*"):
        leftover.unlink()


def is_taken(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def log(message: str) -> None:
    sys.stderr.write(f"watchdog: {message}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
