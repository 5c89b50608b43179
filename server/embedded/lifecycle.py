"""The Postgres that needs no set-up: one server's hold on it, shared with every other server on the data directory.

A data directory holds `pgdata`, `pgbin` (a copy of the binaries, where one is needed), `socket`, `postgres.log` and the
locks: `users.lock` is shared by all servers, each for its life; `start.lock` lets one start at a time; `watchdog.lock`
is held by the process that owns Postgres (`watchdog`). What must be there before it starts is
`installation`'s. No SQLAlchemy here. Why it is so: docs/adr/0003-embedded-postgres.md.
"""

import asyncio
import fcntl
import io
import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import asyncpg

from server.embedded import installation, watchdog
from server.embedded.installation import Account, EmbeddedPostgresError

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError"]

ROLE = "rejoinder"
# Recovery after a crash is part of a start.
READY_TIMEOUT_S = 120.0
CONNECT_TIMEOUT_S = 10.0
# Longer than a start, or a stop, that another process is in the middle of.
LOCK_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
WATCHDOG_WAKES_WITHIN_S = 1.0
POLL_INTERVAL_S = 0.02
LOG_BYTES_MAX = 16 * 1024 * 1024


class EmbeddedPostgres:
    """A hold on the Postgres of one data directory, from `start` to `stop` or the end of the object. POSIX only."""

    def __init__(self, data_dir: Path, *, binaries: Path | None = None) -> None:
        """`binaries` is the `bin` directory of a Postgres; by default the wheel's, else the system's."""
        self._data_dir = data_dir.resolve()
        self._pgdata = self._data_dir / "pgdata"
        self._log = self._data_dir / "postgres.log"
        self._users_lock_path = self._data_dir / "users.lock"
        self._watchdog_lock_path = self._data_dir / "watchdog.lock"
        self._binaries = binaries
        self._users_lock: io.FileIO | None = None

    async def start(self) -> str:
        """Return the URL of the running Postgres, on its socket: `postgresql://rejoinder@/rejoinder?host=...&port=5432`.

        Starts it unless another server has. Its role owns the database and is no superuser. Raises
        EmbeddedPostgresError. When cancelled it keeps no hold.
        """
        assert self._users_lock is None, "already started"
        starting = asyncio.ensure_future(asyncio.to_thread(self._start))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # A thread cannot be cancelled; what it gets in the end must be given back.
            starting.add_done_callback(self._abandon)
            raise

    async def stop(self) -> None:
        """Let go. The last one to do so waits until Postgres is down, so that no supervisor cuts the shutdown short."""
        await asyncio.to_thread(self._stop)

    def leave_to_parent(self) -> None:
        """For a forked process: close what it has of its parent's hold, which stays the parent's."""
        self._release()

    def _start(self) -> str:
        try:
            self._data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._users_lock = _lock(self._users_lock_path, fcntl.LOCK_SH)
            with _lock(self._data_dir / "start.lock", fcntl.LOCK_EX) as start_lock:
                account = installation.choose_account(self._pgdata)
                installation.make_passable(self._data_dir, account)
                socket_dir = installation.make_socket_dir(self._data_dir, account)
                asyncio.run(self._ensure_ready(account, socket_dir, start_lock))
        except (OSError, subprocess.SubprocessError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            self._release()
            raise EmbeddedPostgresError(
                f"The embedded Postgres cannot start in {self._data_dir}: {error}. Check that this user may write "
                "there, or choose another data directory."
            ) from error
        except BaseException:
            self._release()
            raise
        # The port is said although it is the usual one: a driver would take a missing one from PGPORT.
        return f"postgresql://{ROLE}@/{ROLE}?host={quote(str(socket_dir), safe='')}&port={installation.PORT}"

    async def _ensure_ready(self, account: Account, socket_dir: Path, start_lock: io.FileIO) -> None:
        """Launch a watchdog where none lives, and wait until the database answers."""
        launched = False
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            watchdog_lock = _try_lock(self._watchdog_lock_path, fcntl.LOCK_EX)
            if watchdog_lock:
                with watchdog_lock:
                    if launched:
                        break
                    self._launch_watchdog(account, socket_dir, start_lock, watchdog_lock)
                    launched = True
            # Asked first, because a connection that comes too early is a line in the log.
            if watchdog.is_ready(str(self._pgdata)) and await _ensure_database(socket_dir):
                return
            await asyncio.sleep(POLL_INTERVAL_S)
        raise EmbeddedPostgresError(
            f"Postgres did not become ready in {self._data_dir}. The end of its log, {self._log}:\n{_tail(self._log)}"
        )

    def _launch_watchdog(
        self, account: Account, socket_dir: Path, start_lock: io.FileIO, watchdog_lock: io.FileIO
    ) -> None:
        """Start the process that owns Postgres. It inherits `watchdog_lock`, and so holds it from its first moment."""
        directory = installation.choose_binaries(self._binaries, self._pgdata, self._data_dir, account)
        if not (self._pgdata / "PG_VERSION").exists():
            installation.initialise(directory, self._pgdata, account, start_lock.fileno())
        orders = watchdog.Orders(
            command=installation.postgres_command(directory, self._pgdata, socket_dir),
            pgdata=str(self._pgdata),
            socket_dir=str(socket_dir),
            users_lock=str(self._users_lock_path),
            user=account.uid if account.is_other else None,
            group=account.gid if account.is_other else None,
        )
        too_long = self._log.exists() and self._log.stat().st_size > LOG_BYTES_MAX
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if too_long else 0)
        with io.FileIO(os.open(self._log, flags, 0o600), "w") as log:
            subprocess.run(  # noqa: S603 - our own program
                [sys.executable, "-I", "-S", watchdog.__file__, orders.encode()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[watchdog_lock.fileno()],
                cwd="/",
                env=installation.ENVIRONMENT,
                timeout=installation.COMMAND_TIMEOUT_S,
                check=True,
            )

    def _stop(self) -> None:
        users_lock, self._users_lock = self._users_lock, None
        if users_lock is None:
            return
        now = time.monotonic()
        deadline, wakes_by = now + STOP_TIMEOUT_S, now
        with users_lock:
            try:
                # Converting gives up the shared lock first, so either way it is a release. The last user succeeds.
                fcntl.flock(users_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                wakes_by += WATCHDOG_WAKES_WITHIN_S
            except BlockingIOError:
                pass
        while not _is_free(self._watchdog_lock_path) and time.monotonic() < deadline:
            # The watchdog keeps its exclusive lock while it stops Postgres. One that never takes it has other users.
            if time.monotonic() >= wakes_by and _is_free(self._users_lock_path):
                return
            time.sleep(POLL_INTERVAL_S)

    def _release(self) -> None:
        if self._users_lock:
            self._users_lock.close()
            self._users_lock = None

    def _abandon(self, starting: "asyncio.Future[str]") -> None:
        if not starting.cancelled():
            starting.exception()
        self._release()


async def _ensure_database(socket_dir: Path) -> bool:
    """Make the server's role and database where they are missing. False while Postgres is not ready.

    The role is no superuser: whatever a superuser bypasses shall hold for the server.
    """
    try:
        connection = await asyncpg.connect(
            host=str(socket_dir),
            port=installation.PORT,
            user=installation.SUPERUSER,
            password="",
            database="postgres",
            ssl=False,
            timeout=CONNECT_TIMEOUT_S,
        )
        try:
            if not await connection.fetchval("SELECT true FROM pg_roles WHERE rolname = $1", ROLE):
                await connection.execute(f"CREATE ROLE {ROLE} LOGIN")
            if not await connection.fetchval("SELECT true FROM pg_database WHERE datname = $1", ROLE):
                await connection.execute(f"CREATE DATABASE {ROLE} OWNER {ROLE}")
        finally:
            await connection.close()
    except (OSError, TimeoutError, asyncpg.OperatorInterventionError, asyncpg.PostgresConnectionError):
        return False
    return True


def _lock(path: Path, operation: int) -> io.FileIO:
    """Take the lock, waiting for whoever has it. Closing the file releases it."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while time.monotonic() < deadline:
        file = _try_lock(path, operation)
        if file:
            return file
        time.sleep(POLL_INTERVAL_S)
    raise EmbeddedPostgresError(f"Another process has held {path} for {LOCK_TIMEOUT_S:.0f} s. Find it and end it.")


def _try_lock(path: Path, operation: int) -> io.FileIO | None:
    file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")
    try:
        fcntl.flock(file, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _is_free(path: Path) -> bool:
    """Whether nobody holds the lock exclusively. Nobody does where the data directory itself is gone."""
    try:
        file = _try_lock(path, fcntl.LOCK_SH)
    except FileNotFoundError:
        return True
    if file:
        file.close()
    return file is not None


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-5:])
