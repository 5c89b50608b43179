"""Row-level security: Postgres itself keeps tenants apart, whatever a statement says.

The role that these tests run as is one that `rejoinder migrate --run-role` makes, also where there is a superuser.
"""

import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import uuid4

import asyncpg
import pytest

from server.cli import main
from server.protocol import keys
from server.store.database import ConstraintViolated, Database
from server.store.keys import ApiKeys
from server.store.responses import Responses
from server.store.roles import make_run_role
from server.store.statement import Statement
from tests.application import Application, both_modes, events_of, message, reasoning, reply, running
from tests.e2e import processes
from tests.integration.test_store import known, turn
from tests.postgres import PostgresServer, add_tenants, connected, url_of_superuser

TENANT = "current_setting('rejoinder.tenant_id', true)"


def rejoinder(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    line = [processes.OURS / "rejoinder", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=processes.START_MAX_S, check=False)


@pytest.fixture
async def run_role(postgres: PostgresServer, database_url: str) -> AsyncIterator[str]:
    """The URL of the database for a role that owns nothing."""
    role = f"run_{uuid4().hex[:8]}"
    owner = url_of_superuser(database_url)
    opened = Database.open(owner)
    assert await make_run_role(opened, role) is True
    await opened.close()
    parts = urlsplit(owner)
    password = f":{parts.password}" if parts.password else ""
    async with connected(database_url) as admin:
        if parts.password:
            await admin.execute(f"alter role {role} password '{parts.password}'")
        try:
            yield owner.replace(f"//{parts.username}{password}@", f"//{role}{password}@")
        finally:
            await admin.execute(f"drop owned by {role}; drop role {role}")


@pytest.fixture
async def held(run_role: str) -> AsyncIterator[Database]:
    opened = Database.open(run_role)
    yield opened
    await opened.close()


@pytest.fixture
async def two_tenants(held: Database, database_url: str) -> Database:
    """With a response of each, of the same name."""
    async with connected(database_url) as admin:
        await add_tenants(admin, two=2)
    for tenant_id in (1, 2):
        await Responses(held).add(turn("same", tenant_id=tenant_id))
    return held


async def count(database: Database, sql: str, **parameters: object) -> int:
    [row] = await database.run(Statement(sql), parameters)
    counted: int = row[0]
    return counted


# --- what Postgres does


async def test_every_table_of_tenants_has_the_policy(database_url: str) -> None:
    """So that one that comes later is not forgotten. Keys are looked up to find out whose they are."""
    async with connected(database_url) as admin:
        tables = await admin.fetch("""
            select relname, relrowsecurity, relforcerowsecurity,
                (select pg_get_expr(polqual, polrelid) from pg_policy where polrelid = pg_class.oid and polcmd = '*')
            from pg_class join pg_attribute on attrelid = pg_class.oid and attname = 'tenant_id'
            where relkind = 'r' and relnamespace = 'public'::regnamespace and relname <> 'api_keys'
        """)
    assert len(tables) == 8
    for name, is_enabled, is_forced, rule in tables:
        assert (is_enabled, is_forced) == (True, True), name
        assert "rejoinder.tenant_id" in rule, name


async def test_a_statement_that_forgets_its_tenant_gets_one_tenants_rows(two_tenants: Database) -> None:
    everything = "select count(*) from responses where cast(:tenant_id as bigint) is not null"
    for tenant_id in (1, 2):
        assert await count(two_tenants, everything, tenant_id=tenant_id) == 1
    # What says no tenant at all is the first one's.
    assert await count(two_tenants, "select count(*) from responses") == 1
    assert await count(two_tenants, "select tenant_id from responses") == 1
    assert await count(two_tenants, "select count(*) from items where tenant_id = 2") == 0


async def test_no_row_of_another_tenant_can_be_written_changed_or_removed(
    two_tenants: Database, database_url: str
) -> None:
    async with connected(database_url) as admin:
        before = await admin.fetch("select * from responses order by id")
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await two_tenants.run(
                Statement("""
                    insert into conversations (tenant_id, public_id, metadata, version, next_position, created_at)
                    values (:tenant_id - 1, 'c', '{}', 1, 0, now())
                """),
                {"tenant_id": 2},
            )
        for change in ("update responses set status = 'failed'", "delete from responses"):
            changed = f"{change} where tenant_id = :tenant_id - 1 returning id"
            assert await two_tenants.run(Statement(changed), {"tenant_id": 2}) == []
        moved = "update response_bodies set tenant_id = :tenant_id - 1 returning response_id"
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await two_tenants.run(Statement(moved), {"tenant_id": 2})
        assert await admin.fetch("select * from responses order by id") == before


async def test_what_was_set_for_one_transaction_is_gone_in_the_next(two_tenants: Database) -> None:
    """On the same connection, also behind a statement that failed."""
    one = Database(two_tenants.engine, pool_size=1, connect_timeout_s=10, may_prepare=True)
    said = f"select coalesce({TENANT}, '') from (select cast(:tenant_id as bigint)) as given"
    for _ in range(2):
        [row] = await one.run(Statement(said), {"tenant_id": 2})
        assert row[0] == "2"
        [row] = await one.run(Statement(said), {"tenant_id": 1})
        assert row[0] == ""
        with pytest.raises(ConstraintViolated):
            await Responses(one).add(turn("same", tenant_id=2))
        assert await count(one, "select count(*) from responses where tenant_id = 1") == 1
    assert one.connections_in_use == 0


async def test_a_turn_that_failed_is_not_stored_for_any_tenant(two_tenants: Database, database_url: str) -> None:
    responses = Responses(two_tenants)
    parent = (await known(responses, "resp_same", tenant_id=1)).parent
    with pytest.raises(Exception, match="is lost"):
        await responses.add(turn("theft", parent, tenant_id=2))
    async with connected(database_url) as admin:
        assert await admin.fetchval("select count(*) from responses") == 2


async def test_a_long_history_is_walked_by_look_ups_for_any_tenant(held: Database, database_url: str) -> None:
    """The condition of the policy is one more on each row, and no reason to read others."""
    responses = Responses(held)
    async with connected(database_url) as admin:
        await add_tenants(admin, two=2)
        await admin.execute("""
            with made as (
                insert into responses (
                    tenant_id, id, public_id, parent_id, root_id, depth, status, model, upstream, created_at
                )
                select tenant, tenant * 1000000 + number, 'resp_' || number,
                    nullif(tenant * 1000000 + number - 1, tenant * 1000000), tenant * 1000000 + 1, number - 1,
                    'completed', 'm', 'u', now()
                from generate_series(1, 2) as tenant, generate_series(1, 5000) as number
                returning tenant_id, id
            )
            insert into items (tenant_id, response_id, position, is_output, public_id, type, body)
            select tenant_id, id, 0, true, 'msg', 'message', '{}' from made
        """)
        await admin.execute("analyze")
    history = await responses.history(2, "resp_300")
    assert history is not None
    assert len(history.turns) == 300
    plan = await held.run(
        Statement(
            "explain (analyze, timing off) select count(*) from items "
            "where tenant_id = :tenant_id and response_id = 2000300"
        ),
        {"tenant_id": 2},
    )
    text = "\n".join(row[0] for row in plan)
    assert "Index" in text
    assert "Seq Scan" not in text


# --- the whole server


@pytest.fixture
async def served(run_role: str, held: Database) -> AsyncIterator[tuple[Application, list[dict[str, str]]]]:
    """A server whose role is held, and the headers of two tenants."""
    headers = []
    for name in ("ada", "bob"):
        key = keys.new_key()
        # The tables of tenants and keys are not of one tenant.
        assert await ApiKeys(held).create(key, name)
        headers.append({"authorization": f"Bearer {key}"})
    async with running(run_role) as application:
        yield application, headers


@both_modes
async def test_turns_of_two_tenants(served: tuple[Application, list[dict[str, str]]], stream: bool) -> None:
    application, tenants = served
    made: list[list[str]] = []
    for number in range(3):
        for which, headers in enumerate(tenants):
            application.mock.replies = [reply(reasoning("Hm."), message(f"Answer {number}"), stream=stream)]
            asked = {"model": "m", "input": f"Question {number}", "stream": stream}
            previous = {"previous_response_id": made[which][-1]} if number else {}
            answer = await application.post(asked | previous, **headers, **{"idempotency-key": f"k{number}"})
            assert answer.status_code == 200, answer.text
            told = events_of(answer.content)[-1]["response"] if stream else answer.json()
            made = [*made, [told["id"]]] if number == 0 else made
            if number:
                made[which].append(told["id"])
            assert len(application.sent()["input"]) == 1 + 3 * number
    for which, headers in enumerate(tenants):
        for response_id in made[which]:
            assert (await application.http.get(f"/v1/responses/{response_id}", headers=headers)).status_code == 200
            others = tenants[1 - which]
            assert (await application.http.get(f"/v1/responses/{response_id}", headers=others)).status_code == 404


@both_modes
async def test_conversations_of_two_tenants(served: tuple[Application, list[dict[str, str]]], stream: bool) -> None:
    application, tenants = served
    for headers in tenants:
        items = [{"type": "message", "id": "msg_same", "role": "user", "content": "c"}]
        answer = await application.http.post("/v1/conversations", json={"items": items}, headers=headers)
        conversation_id = answer.json()["id"]
        for number in range(2):
            application.mock.replies = [reply(message("Hi."), stream=stream)]
            asked = {"model": "m", "input": "q", "conversation": conversation_id, "stream": stream}
            assert (await application.post(asked, **headers)).status_code == 200
            assert len(application.sent()["input"]) == 2 + 2 * number
        url = f"/v1/conversations/{conversation_id}"
        listed = await application.http.get(f"{url}/items", headers=headers)
        assert len(listed.json()["data"]) == 5
        assert (await application.http.delete(f"{url}/items/msg_same", headers=headers)).status_code == 200
        assert (await application.http.delete(url, headers=headers)).status_code == 200


async def test_what_it_costs_is_stored_for_each_tenant(
    served: tuple[Application, list[dict[str, str]]], database_url: str
) -> None:
    application, tenants = served
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    for headers in tenants:
        application.mock.replies = [reply(message("Hi."), stream=False, usage=usage)]
        assert (await application.post({"model": "m", "input": "q"}, **headers)).status_code == 200
    async with connected(database_url) as admin:
        rows = await admin.fetch("select tenant_id, input_tokens from usage order by tenant_id")
    assert [tuple(row) for row in rows] == [(2, 3), (3, 3)]


# --- which roles may serve


def refusal_to_serve(url: str, **variables: str) -> str:
    """The line that a server ends with which does not start."""
    line = [processes.OURS / "rejoinder", "serve", "--port", "0", "--upstream", "http://127.0.0.1:9/v1"]
    environment = {**os.environ, **variables}
    refused = subprocess.run(
        [*line, "--database-url", url], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert refused.returncode == 1
    return refused.stderr.splitlines()[-1]


async def test_a_role_that_is_not_held_serves_one_tenant_only(database_url: str) -> None:
    url = url_of_superuser(database_url)
    async with running(url, [reply(message("Hi."), stream=False)]) as application:
        await application.turn(input="One")
    first = rejoinder("keys", "create", "--tenant", "default", "--database-url", url)
    assert first.returncode == 0
    refused = rejoinder("keys", "create", "--tenant", "ada", "--database-url", url)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "--run-role" in refused.stderr
    async with connected(database_url) as admin:
        assert await admin.fetchval("select count(*) from tenants") == 1
        await add_tenants(admin, ada=2)
    assert "--run-role" in refusal_to_serve(url)
    # Unless an operator wants it so.
    async with running(url, row_level_security="never"):
        pass


async def test_a_role_that_is_not_held_can_be_refused_from_the_first_tenant_on(database_url: str) -> None:
    refusal = refusal_to_serve(url_of_superuser(database_url), REJOINDER_ROW_LEVEL_SECURITY="always")
    assert "row-level security" in refusal


async def test_the_role_that_was_made_may_do_what_a_server_does_and_no_more(run_role: str) -> None:
    async with connected(run_role) as connection:
        role = await connection.fetchrow(
            "select rolsuper, rolbypassrls, rolcreatedb, rolcreaterole from pg_roles where rolname = current_user"
        )
        assert role is not None
        assert set(role) == {False}
        for statement in (
            "create table more (id int)",
            "alter table responses disable row level security",
            "drop policy of_the_tenant on responses",
            "update alembic_version set version_num = '1'",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
        assert await connection.fetchval("select version_num from alembic_version") is not None


async def test_the_role_is_made_once_and_gets_what_later_tables_need(run_role: str, database_url: str) -> None:
    owner = url_of_superuser(database_url)
    role = urlsplit(run_role).username or ""
    again = rejoinder("migrate", "--run-role", role, "--database-url", owner)
    assert (again.returncode, again.stderr) == (0, "")
    assert f"The role {role} was there" in again.stdout
    other = f"{role}_other"
    made = rejoinder("migrate", "--run-role", other, "--database-url", owner)
    assert (made.returncode, made.stderr) == (0, "")
    assert f"The role {other} was made, and has no password yet." in made.stdout
    async with connected(database_url) as admin:
        await admin.execute(f"drop owned by {other}; drop role {other}")
    async with connected(database_url) as admin, connected(run_role) as connection:
        await admin.execute("create table later (id bigint generated by default as identity)")
        await connection.execute("insert into later default values")
        await admin.execute("drop table later")


@pytest.mark.parametrize("name", ["a-b", "A", "", 'a"; drop table items; --', "1a", "a" * 64])
def test_a_role_with_another_name_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["migrate", f"--run-role={name}", "--database-url", "postgresql://127.0.0.1:1/x"])
    assert ended.value.code == 2
    assert "lower-case letters" in capsys.readouterr().err


async def test_a_role_that_bypasses_it_is_refused_as_a_run_role(database_url: str) -> None:
    owner = url_of_superuser(database_url)
    name = urlsplit(owner).username or ""
    refused = rejoinder("migrate", "--run-role", name, "--database-url", owner)
    assert refused.returncode == 1
    assert "bypasses row-level security" in refused.stderr


async def test_a_role_that_owns_the_tables_is_refused_as_a_run_role(database_url: str) -> None:
    """What it could not write any more then is what migrations write."""
    owner, name = url_of_superuser(database_url), f"owner_{uuid4().hex[:8]}"
    async with connected(database_url) as admin:
        await admin.execute(f"create role {name} login")
        before = await admin.fetchval("select tableowner from pg_tables where tablename = 'alembic_version'")
        await admin.execute(f"alter table alembic_version owner to {name}")
        try:
            refused = rejoinder("migrate", "--run-role", name, "--database-url", owner)
        finally:
            await admin.execute(f'alter table alembic_version owner to "{before}"')
            await admin.execute(f"drop owned by {name}; drop role {name}")
    assert refused.returncode == 1
    assert "owns the tables" in refused.stderr


async def test_a_role_is_granted_the_schema_in_which_the_tables_lie(database_url: str) -> None:
    role, schema = f"run_{uuid4().hex[:8]}", f"Other {uuid4().hex[:8]}"
    async with connected(database_url) as admin:
        await admin.execute(f'create schema "{schema}"')
        separator = "&" if "?" in database_url else "?"
        opened = Database.open(f"{url_of_superuser(database_url)}{separator}search_path=%22{quote(schema)}%22")
        try:
            await opened.run(Statement("create table alembic_version (version_num text)"))
            assert await make_run_role(opened, role) is True
            assert await admin.fetchval("select has_schema_privilege($1, $2, 'usage')", role, schema)
            table = f'"{schema}".alembic_version'
            assert await admin.fetchval("select has_table_privilege($1, $2, 'select')", role, table)
            assert not await admin.fetchval("select has_table_privilege($1, $2, 'update')", role, table)
        finally:
            await opened.close()
            await admin.execute(f'drop owned by {role}; drop role {role}; drop schema "{schema}" cascade')


def test_the_embedded_postgres_has_its_own_role(tmp_path: Path) -> None:
    refused = rejoinder("migrate", "--run-role", "run", "--data-dir", tmp_path / "data")
    assert refused.returncode == 1
    assert "--database-url" in refused.stderr


async def test_the_first_tenant_needs_no_transaction_of_more_than_one_statement(
    two_tenants: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What row-level security costs: nothing for the first tenant, two round trips a statement for any other."""
    executed: list[str] = []
    execute = asyncpg.Connection.execute

    async def noted(self: Any, query: str, *arguments: Any, **named: Any) -> Any:
        executed.append(query)
        return await execute(self, query, *arguments, **named)

    monkeypatch.setattr(asyncpg.Connection, "execute", noted)
    await known(Responses(two_tenants), "resp_same", tenant_id=1)
    assert executed == []
    await known(Responses(two_tenants), "resp_same", tenant_id=2)
    assert executed == ["begin; set local rejoinder.tenant_id = '2'", "commit"]


async def test_a_second_tenant_comes_while_the_first_ones_turns_run(run_role: str, held: Database) -> None:
    """A server hears of it within seconds; until then, and from then on, no turn of the first fails."""
    first, second = keys.new_key(), keys.new_key()
    assert await ApiKeys(held).create(first, "default")
    async with running(run_role, [reply(message("Hi."), stream=False)]) as application:
        made: list[str] = []

        async def go_on(turns: int) -> None:
            for _ in range(turns):
                previous = {"previous_response_id": made[-1]} if made else {}
                answer = await application.post(
                    {"model": "m", "input": "q", **previous}, authorization=f"Bearer {first}"
                )
                assert answer.status_code == 200, answer.text
                made.append(answer.json()["id"])

        await go_on(5)
        assert await ApiKeys(held).create(second, "ada")
        statuses = set()
        while 200 not in statuses:
            await go_on(5)
            asked = {"model": "m", "input": "q"}
            statuses.add((await application.post(asked, authorization=f"Bearer {second}")).status_code)
        assert statuses <= {401, 200}
        # Nothing of the other's is before it.
        assert len(application.sent()["input"]) == 1
        await go_on(5)
        theirs = await application.post(
            {"model": "m", "input": "q", "previous_response_id": made[-1]}, authorization=f"Bearer {second}"
        )
        assert theirs.status_code == 400
