"""What expires, what a sweep removes and what it leaves: never a row that something still needs."""

import asyncio
import io
from collections.abc import AsyncIterator
from typing import Any

import pytest

from server.engine.sweep import Sweep, Sweeper, Swept
from server.store.conversations import Conversation, Conversations
from server.store.database import Database
from server.store.leases import Leases
from server.store.responses import Parent, Responses
from server.store.retention import RESPONSES_MAX, Retention
from server.telemetry import Telemetry
from tests.application import Application, running
from tests.harness import until
from tests.integration.test_store import NOON, OTHER_CONNECTIONS, message, turn
from tests.postgres import add_tenants, connected, recorded_statements, until_true

NEVER, MONTH = 0, 30


@pytest.fixture
async def admin(database_url: str) -> AsyncIterator[Any]:
    async with connected(database_url) as connection:
        yield connection


@pytest.fixture
def responses(database: Database) -> Responses:
    return Responses(database)


def rules(database: Database, days: int = MONTH, *, grace_s: float = 0) -> Retention:
    return Retention(database, retention_days=days, response_grace_s=grace_s, conversation_grace_s=grace_s)


async def swept(database: Database, days: int = MONTH, *, grace_s: float = 0) -> Swept:
    return await Sweep(rules(database, days, grace_s=grace_s)).run()


async def chain(responses: Responses, *names: str, parent: Parent | None = None) -> Parent:
    """Stores these turns, each behind the one before it, and gives the last as a parent."""
    for name in names:
        await responses.add(turn(name, parent))
        parent = await responses.parent(1, f"resp_{name}")
    assert parent is not None
    return parent


async def aged(admin: Any, *names: str, days: float = 31) -> None:
    """Lets these turns have been made so many days ago, and all others just now."""
    await admin.execute("update responses set created_at = now() where created_at = $1", NOON)
    await admin.execute(
        "update responses set created_at = now() - cast($1 as float8) * interval '1 day' where public_id = any($2)",
        float(days),
        [f"resp_{name}" for name in names],
    )


async def names(admin: Any, table: str = "responses") -> set[str]:
    return {row[0].removeprefix("resp_") for row in await admin.fetch(f"select public_id from {table}")}


async def converse(database: Database, name: str, *turns: str) -> None:
    """A conversation with one item that a client added, and these turns made in it."""
    conversation = Conversation(public_id=name, metadata=b"{}", created_at=NOON)
    await Conversations(database).add(1, conversation, [message(f"{name}_added")])
    for made in turns:
        taken = await Leases(database, 30).take(1, name)
        assert taken is not None
        await Responses(database).add(turn(made, lease=taken[0], is_appended=True))


async def test_a_response_expires_so_many_days_after_it_was_made(
    database: Database, responses: Responses, admin: Any
) -> None:
    await chain(responses, "old")
    await chain(responses, "young")
    await aged(admin, "old", days=30.01)
    await admin.execute(
        "update responses set created_at = now() - interval '29.99 days' where public_id = 'resp_young'"
    )

    assert await swept(database) == Swept(expired=1, responses=1, items=3)
    assert await names(admin) == {"young"}
    assert await responses.get(1, "resp_old") is None
    assert await names(admin, "items") == {"young_in_0", "young_in_1", "young_out"}
    assert await admin.fetchval("select count(*) from response_bodies") == 1


async def test_a_changed_setting_holds_for_what_is_there(database: Database, responses: Responses, admin: Any) -> None:
    await chain(responses, "old")
    await aged(admin, "old", days=8)
    assert await swept(database, 30) == Swept()
    assert await swept(database, 7) == Swept(expired=1, responses=1, items=3)


async def test_nothing_expires_where_retention_is_off(database: Database, responses: Responses, admin: Any) -> None:
    await chain(responses, "old")
    await aged(admin, "old", days=30_000)
    assert await swept(database, NEVER) == Swept()
    assert await names(admin) == {"old"}


async def test_an_ancestor_that_a_live_response_needs_stays_with_its_items_and_without_its_body(
    database: Database, responses: Responses, admin: Any
) -> None:
    first = await chain(responses, "root", "second")
    await chain(responses, "young", parent=first)
    await chain(responses, "fork", "leaf", parent=first)
    await aged(admin, "root", "second", "fork", "leaf")
    before = await responses.history(1, "resp_young")

    # Root and second are kept for the young one; the fork, which nobody needs, goes.
    assert await swept(database) == Swept(expired=4, responses=2, bodies=2, items=6)
    assert await names(admin) == {"root", "second", "young"}
    assert await responses.history(1, "resp_young") == before
    assert await responses.get(1, "resp_second") is None
    assert await responses.history(1, "resp_second") is None

    assert await responses.delete(1, "resp_young")
    assert await swept(database) == Swept(responses=3, items=9)
    assert await names(admin) == set()


async def test_a_response_that_failed_needs_what_it_was_made_from(
    database: Database, responses: Responses, admin: Any
) -> None:
    parent = await chain(responses, "root")
    await responses.add(turn("failed", parent, status="failed"))
    await aged(admin, "root")
    assert await swept(database) == Swept(expired=1, bodies=1)
    listed = await responses.input_items(1, "resp_failed")
    assert listed is not None
    assert [item.public_id for item in listed] == ["root_in_0", "root_in_1", "root_out", "failed_in_0", "failed_in_1"]


async def test_what_was_deleted_a_moment_ago_is_left_for_turns_in_flight(
    database: Database, responses: Responses, admin: Any
) -> None:
    await chain(responses, "one")
    await responses.delete(1, "resp_one")
    assert await swept(database, grace_s=3720) == Swept()
    await admin.execute("update responses set deleted_at = now() - interval '3721 seconds'")
    assert await swept(database, grace_s=3720) == Swept(responses=1, items=3)


async def test_conversations_and_what_belongs_to_them_do_not_expire(database: Database, admin: Any) -> None:
    await converse(database, "conv", "one", "two")
    await admin.execute("update conversations set created_at = now() - interval '99 days'")
    await aged(admin, "one", "two", days=99)
    assert await swept(database) == Swept()
    assert await names(admin) == {"one", "two"}


async def test_a_response_deleted_from_a_conversation_leaves_its_items_there(
    database: Database, responses: Responses, admin: Any
) -> None:
    await converse(database, "conv", "one")
    before = await Conversations(database).history(1, "conv")
    await responses.delete(1, "resp_one")
    assert await swept(database) == Swept(bodies=1)
    assert await Conversations(database).history(1, "conv") == before


async def test_a_deleted_conversation_goes_with_all_that_nobody_saw(
    database: Database, responses: Responses, admin: Any
) -> None:
    await converse(database, "conv", "one", "two")
    await converse(database, "other", "three")
    seen = await responses.history(1, "resp_one")
    await Conversations(database).delete(1, "conv")
    await responses.delete(1, "resp_two")
    await aged(admin)

    # `one` is live and saw the item that was added first; what `one` and `two` appended, nobody saw that is left.
    assert await swept(database) == Swept(links=6, bodies=1, responses=1, items=3)
    assert await responses.history(1, "resp_one") == seen
    assert await names(admin) == {"one", "three"}

    await responses.delete(1, "resp_one")
    assert await swept(database) == Swept(links=1, items=4, responses=1, conversations=1)
    assert await names(admin, "conversations") == {"other"}
    assert await names(admin, "items") == {"other_added", "three_in_0", "three_in_1", "three_out"}


async def test_what_was_made_in_a_deleted_conversation_expires(database: Database, admin: Any) -> None:
    await converse(database, "conv", "old", "young")
    await Conversations(database).delete(1, "conv")
    await aged(admin, "old")
    assert (await swept(database)).expired == 1
    assert await admin.fetchval("select public_id from responses where deleted_at is null") == "resp_young"


async def test_a_chain_that_left_a_conversation_keeps_what_its_beginning_saw(
    database: Database, responses: Responses, admin: Any
) -> None:
    await converse(database, "conv", "one", "two")
    await chain(responses, "on", parent=await responses.parent(1, "resp_two"))
    seen = await responses.history(1, "resp_on")
    await Conversations(database).delete(1, "conv")
    for name in ("one", "two"):
        await responses.delete(1, f"resp_{name}")
    await aged(admin)
    await swept(database)
    assert await responses.history(1, "resp_on") == seen
    assert seen is not None
    assert len(seen.turns) == 4

    await responses.delete(1, "resp_on")
    await swept(database)
    for table in ("responses", "response_bodies", "items", "conversations", "conversation_items"):
        assert await admin.fetchval(f"select count(*) from {table}") == 0, table


async def test_old_idempotency_keys_go_and_what_turns_cost_stays(database: Database, admin: Any) -> None:
    await admin.execute("""
        insert into idempotency_keys values
            (1, 'old', 'h', 'r', now() - interval '25 hours', now() - interval '25 hours'),
            (1, 'young', 'h', 'r', now() - interval '23 hours', now() - interval '23 hours'),
            (1, 'claimed', 'h', 'r', now() - interval '25 hours', now() + interval '10 seconds');
        insert into usage (tenant_id, response_public_id, upstream, model, status, input_tokens, cached_tokens,
            output_tokens, reasoning_tokens, created_at, ended_at)
        values (1, 'r', 'u', 'm', 'completed', 1, 0, 1, 0, now() - interval '999 days', now() - interval '999 days')
    """)
    assert await swept(database) == Swept(keys=1)
    kept = await admin.fetch("select key from idempotency_keys order by key")
    assert [row[0] for row in kept] == ["claimed", "young"]
    assert await admin.fetchval("select count(*) from usage") == 1


async def test_every_tenant_is_swept_and_none_for_another(database: Database, responses: Responses, admin: Any) -> None:
    await add_tenants(admin, seven=7, large=2**40)
    for tenant_id in (1, 7, 2**40):
        await responses.add(turn("old", tenant_id=tenant_id))
        await responses.add(turn("young", tenant_id=tenant_id))
    await aged(admin, "old")
    assert await rules(database).tenants() == [1, 7, 2**40]
    assert await swept(database) == Swept(expired=3, responses=3, items=9)
    assert await names(admin) == {"young"}


async def test_a_rehearsal_tells_what_would_go_and_changes_nothing(
    database: Database, responses: Responses, admin: Any
) -> None:
    parent = await chain(responses, "root", "second")
    await chain(responses, "young", parent=parent)
    await chain(responses, "a", "b", "c")
    await converse(database, "conv", "in")
    await Conversations(database).delete(1, "conv")
    await aged(admin, "root", "second", "a", "b", "c")
    before = await admin.fetch("select * from responses order by id")

    told = await Sweep(rules(database)).rehearse()
    # The two that `young` needs stay; what `in` appended to its conversation, nobody saw.
    assert told == Swept(expired=5, responses=3, links=3)
    assert await admin.fetch("select * from responses order by id") == before
    assert await admin.fetchval("select count(*) from conversation_items") == 4


LONG_CHAIN = """
with turn as (
    insert into responses (tenant_id, id, public_id, parent_id, root_id, depth, status, model, upstream, created_at)
    overriding system value
    select 1, number, 'resp_' || number, nullif(number - 1, 0), 1, number - 1, 'completed', 'm', 'u',
        now() - interval '31 days'
    from generate_series(1, 10000) as number
    returning tenant_id, id
)
insert into items (tenant_id, response_id, position, is_output, public_id, type, body)
select tenant_id, id, 0, true, 'msg', 'message', '{}' from turn
"""


async def test_a_chain_of_ten_thousand_turns_goes_in_small_statements_that_are_not_many(
    database: Database, responses: Responses, admin: Any
) -> None:
    await admin.execute(LONG_CHAIN)
    with recorded_statements(database) as statements:
        async with asyncio.timeout(30):
            assert await swept(database) == Swept(expired=10_000, responses=10_000, items=10_000)
    # A look and a removal for each hundred, and what there is to mark and to look for besides.
    assert len(statements) < 2 * 10_000 / RESPONSES_MAX + 60
    assert await names(admin) == set()


async def test_a_long_chain_with_a_live_end_stays_whole(database: Database, responses: Responses, admin: Any) -> None:
    await admin.execute(LONG_CHAIN)
    await admin.execute("update responses set created_at = now() where id = 10000")
    async with asyncio.timeout(30):
        assert await swept(database) == Swept(expired=9_999)
    history = await responses.history(1, "resp_10000")
    assert history is not None
    assert len(history.turns) == 10_000


async def test_many_forks_of_one_response(database: Database, responses: Responses, admin: Any) -> None:
    root = await chain(responses, "root")
    await admin.execute(
        """
        insert into responses (tenant_id, public_id, parent_id, root_id, depth, status, model, upstream, created_at)
        select 1, 'fork_' || number, $1, $1, 1, 'completed', 'm', 'u', now() - interval '31 days'
        from generate_series(1, 3000) as number
        """,
        root.id,
    )
    await admin.execute("update responses set created_at = now() where public_id = 'fork_1500'")
    await aged(admin, "root")
    assert await swept(database) == Swept(expired=3000, responses=2999, bodies=1)
    assert await names(admin) == {"root", "fork_1500"}


async def test_a_turn_that_goes_on_from_what_is_being_removed_is_whole_or_fails(
    database: Database, responses: Responses, admin: Any
) -> None:
    parent = await chain(responses, "root")
    await responses.delete(1, "resp_root")
    retention = rules(database)
    [judged_root] = await retention.deleted(1, None, with_expired=False)
    await responses.add(turn("late", parent))
    assert await retention.remove_responses(1, [judged_root.id]) == (0, 0)
    history = await responses.history(1, "resp_late")
    assert history is not None
    assert len(history.turns) == 2


async def test_one_process_of_many_sweeps(database_url: str, database: Database) -> None:
    other = Database.open(database_url, pool_size=1)
    try:
        async with database.alone(5) as first, other.alone(5) as second, other.alone(6) as third:
            assert (first, second, third) == (True, False, True)
        async with other.alone(5) as again:
            assert again
    finally:
        await other.close()


async def test_the_lock_ends_with_who_fails(database_url: str, database: Database) -> None:
    async def fail_alone() -> None:
        async with database.alone(5) as is_alone:
            assert is_alone
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        await fail_alone()
    async with connected(database_url) as connection:
        await until_true(connection, "select not exists (select from pg_locks where locktype = 'advisory')")


@pytest.fixture
async def sweeping(database_url: str) -> AsyncIterator[Application]:
    """A server that sweeps all the time, and spares nothing for turns in flight but what the rows themselves do."""
    async with running(database_url, sweep_interval_s=0.02, turn_max_s=60) as started:
        yield started


async def test_a_server_sweeps_in_the_background_and_tells_what_it_did(sweeping: Application, admin: Any) -> None:
    response_id = (await sweeping.turn(input="Hi"))["id"]
    await admin.execute("update responses set created_at = now() - interval '31 days'")
    await until_true(admin, "select deleted_at is not null from responses")
    assert (await sweeping.http.get(f"/v1/responses/{response_id}")).status_code == 404
    answer = await sweeping.post({"model": "m", "input": "And?", "previous_response_id": response_id})
    assert answer.json()["error"]["code"] == "previous_response_not_found"
    await until(lambda: '"expired": 1' in sweeping.log or '"expired":1' in sweeping.log)

    await admin.execute("update responses set deleted_at = now() - interval '1 hour'")
    await until_true(admin, "select count(*) = 0 from responses")
    await until_true(admin, "select count(*) = 0 from items")


async def test_a_turn_in_flight_goes_on_from_what_expires_under_it(sweeping: Application, admin: Any) -> None:
    first = (await sweeping.turn(input="First"))["id"]
    with sweeping.upstream_held():
        second = asyncio.create_task(sweeping.turn(input="Second", previous_response_id=first))
        await until(lambda: len(sweeping.mock.posts) == 2)
        await admin.execute("update responses set created_at = now() - interval '31 days'")
        await until_true(admin, "select deleted_at is not null from responses")
    response_id = (await second)["id"]
    listed = await sweeping.listed(response_id)
    said = [item["content"][0]["text"] for item in listed if item.get("role") == "user"]
    assert said == ["First", "Second"]


async def test_a_sweep_outlives_a_database_that_is_away(sweeping: Application, admin: Any) -> None:
    await sweeping.turn(input="Hi")
    await admin.execute("alter table idempotency_keys rename to hidden")
    await until(lambda: "sweep_crashed" in sweeping.log)
    await admin.execute("alter table hidden rename to idempotency_keys")
    others = f"select pg_terminate_backend(pid) {OTHER_CONNECTIONS}"
    for _ in range(5):
        await admin.execute(others)
        await asyncio.sleep(0.01)
    sweeping.forget()
    await until(lambda: "swept" in sweeping.log)


async def test_a_database_that_is_away_is_told_and_asked_again() -> None:
    log = io.StringIO()
    away = Database.open("postgresql://nobody@127.0.0.1:1/none")
    sweeping = asyncio.create_task(Sweeper(away, rules(away), Telemetry("info", log), 0.01).run())
    await until(lambda: log.getvalue().count("sweep_failed") >= 2)
    sweeping.cancel()
    await asyncio.wait([sweeping])
    await away.close()
    assert "sweep_crashed" not in log.getvalue()


async def test_a_server_ends_at_once_in_the_middle_of_a_sweep(database_url: str, admin: Any) -> None:
    async with running(database_url, sweep_interval_s=0.02) as started:
        await started.turn(input="Hi")
        await admin.execute("update responses set created_at = now() - interval '31 days'")
        blocking = admin.transaction()
        await blocking.start()
        await admin.execute("select from responses for update")
        async with connected(database_url) as looking:
            await until_true(looking, "select exists (select from pg_stat_activity where wait_event_type = 'Lock')")
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 3
    await blocking.rollback()


async def test_without_an_interval_nothing_is_swept(database_url: str) -> None:
    async with running(database_url, sweep_interval_s=0):
        assert not [task for task in asyncio.all_tasks() if "Sweeper" in repr(task)]
