"""The store on a real Postgres: nothing changes, nothing is lost, nothing crosses tenants, a call is one statement."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from sqlalchemy import event, text

from server import errors
from server.protocol.items import Item
from server.store.conversations import Conversation, Conversations
from server.store.database import ConstraintViolated, Database
from server.store.responses import History, NewResponse, Parent, Responses
from server.store.sql import responses as sql
from server.store.statement import Statement
from tests.harness import until
from tests.postgres import (
    connected,
    database_name,
    recorded_statements,
    rows_visited,
    until_true,
    with_database,
    without_pgbouncer,
)

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
ONE_MINUTE_PAST = datetime(2026, 11, 30, 12, 1, tzinfo=UTC)

OTHER_CONNECTIONS = (
    "from pg_stat_activity"
    " where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()"
)

# Each is what some client or upstream may write, and what a parser, a JSON column or a text protocol would change.
ODD_BODIES = [
    b'{"type":"message","role":"user","content":"hi"}',
    b' \t\r\n{ "type" :\t"message" ,\r\n"a":1\n}  ',
    b'{"zebra":1,"type":"message","apple":2,"a":{"y":1,"x":2}}',
    b'{"a":1,"a":2,"a":1}',
    b'{"huge":1e400,"tiny":-1E-400,"one":1.0,"more":1.50,"zero":-0,"big":123456789012345678901234567890,"e":1e2}',
    rb'{"nul":"\u0000","twice":"\u0000\u0000"}',
    rb'{"high":"\ud83d","low":"\ude00","wrong way round":"\ude00\ud83d"}',
    rb'{"slash":"\/","latin":"\u00e9","pair":"\ud83d\ude00"}',
    '{"raw":"é 你好 😀 \u2028 \x7f \ufeff \ufffd"}'.encode(),
    b'{"a":null,"b":{},"c":[],"d":""}',
    b'{"quotes":"\'\'; drop table items; --","percent":"%s %(a)s","colon":":a ::b","dollar":"$1 $$"}',
    rb'{"copy":"\\N \\.","tab":"\t"}',
    b'{"type":"x-unknown","deep":' + b"[" * 200 + b"]" * 200 + b"}",
    b'{"image":"' + b"QUJD" * 3_000_000 + b'"}',
]


@pytest.fixture
def responses(database: Database) -> Responses:
    return Responses(database)


@pytest.fixture
async def admin(database_url: str) -> AsyncIterator[Any]:
    async with connected(database_url) as connection:
        yield connection


def message(name: str, **changed: Any) -> Item:
    """An input item that says its name."""
    return Item(**{"body": json.dumps({"says": name}).encode(), "public_id": name, "type": "message", **changed})


def turn(name: str, parent: Parent | None = None, *, tenant_id: int = 1, **changed: Any) -> NewResponse:
    """A turn `resp_<name>` of two input items and one of output: `<name>_in_0`, `<name>_in_1`, `<name>_out`."""
    said = [message(f"{name}_in_0"), message(f"{name}_in_1"), message(f"{name}_out", is_output=True)]
    members = {
        "tenant_id": tenant_id,
        "public_id": f"resp_{name}",
        "parent": parent,
        "status": "completed",
        "model": "tiny",
        "upstream": "vllm",
        "created_at": NOON,
        "completed_at": ONE_MINUTE_PAST,
        "ended_at": ONE_MINUTE_PAST,
        "body": json.dumps({"id": f"resp_{name}"}).encode(),
        "items": said,
        **changed,
    }
    return NewResponse(**members)


async def known(responses: Responses, public_id: str, tenant_id: int = 1) -> History:
    history = await responses.history(tenant_id, public_id)
    assert history is not None
    return history


async def add_chain(responses: Responses, *names: str, after: str | None = None, **changed: Any) -> None:
    parent = (await known(responses, f"resp_{after}")).parent if after else None
    for name in names:
        await responses.add(turn(name, parent, **changed))
        if parent is None or name == names[0]:
            parent = (await known(responses, f"resp_{name}", changed.get("tenant_id", 1))).parent
        else:
            # Nobody else draws numbers here.
            parent = msgspec.structs.replace(parent, id=parent.id + 1, depth=parent.depth + 1)


def names(items: Sequence[Item]) -> list[str]:
    return [item.public_id for item in items]


async def said_before(responses: Responses, public_id: str) -> list[list[str]]:
    return [names(items) for items in (await known(responses, public_id)).turns]


# --- Lossless.


@pytest.mark.parametrize("body", ODD_BODIES, ids=lambda body: body[:24].decode(errors="replace"))
async def test_bodies_come_back_byte_for_byte(responses: Responses, body: bytes) -> None:
    items = [
        Item(body=body, public_id="in", type="message", fidelity=body, issuer="vllm"),
        Item(body=body, public_id="out", type="function_call", call_id="call_1", is_output=True),
    ]
    await responses.add(turn("odd", body=body, items=items))
    assert (await known(responses, "resp_odd")).turns == [items]
    assert await responses.input_items(1, "resp_odd") == items[:1]
    stored = await responses.get(1, "resp_odd")
    assert stored is not None
    assert (stored.body, stored.output) == (body, items[1:])


async def test_ids_and_names_come_back_as_they_were(responses: Responses) -> None:
    """Not folded, trimmed or normalised: two spellings of é are two ids."""
    spellings = ["Msg_1", "msg_1", " msg_1", "msg_1 ", "\u00e9", "e\u0301", "😀" * 256, "", "null", "%s", ":a"]
    items = [
        message(spelling, type=spelling, call_id=spelling, issuer=spelling, is_output=index > 5)
        for index, spelling in enumerate(spellings)
    ]
    await responses.add(turn("spelt", items=items))
    assert (await known(responses, "resp_spelt")).turns == [items]


async def test_what_is_absent_stays_absent(responses: Responses) -> None:
    items = [message("absent"), message("empty", call_id="", fidelity=b"", issuer="", is_output=True)]
    await responses.add(turn("bare", items=items))
    [[absent, empty]] = (await known(responses, "resp_bare")).turns
    assert (absent.call_id, absent.fidelity, absent.issuer) == (None, None, None)
    assert (empty.call_id, empty.fidelity, empty.issuer) == ("", b"", "")


async def test_a_turn_is_stored_with_all_its_columns(responses: Responses, admin: Any) -> None:
    await responses.add(turn("first", completed_at=None))
    parent = (await known(responses, "resp_first")).parent
    await responses.add(turn("second", parent, status="incomplete", model="other", upstream="elsewhere"))
    first, second = await admin.fetch("select * from responses order by depth")
    assert dict(first) == {
        "tenant_id": 1, "id": parent.id, "public_id": "resp_first", "parent_id": None, "root_id": parent.id, "depth": 0,
        "status": "completed", "model": "tiny", "upstream": "vllm",
        "created_at": NOON, "completed_at": None, "deleted_at": None,
        "conversation_id": None, "conversation_version": None, "prefix_mark": None,
    }  # fmt: skip
    assert dict(second) == {
        "tenant_id": 1, "id": second["id"], "public_id": "resp_second", "parent_id": parent.id, "root_id": parent.id,
        "depth": 1, "status": "incomplete", "model": "other", "upstream": "elsewhere",
        "created_at": NOON, "completed_at": ONE_MINUTE_PAST, "deleted_at": None,
        "conversation_id": None, "conversation_version": None, "prefix_mark": None,
    }  # fmt: skip
    positions = await admin.fetch("select position, public_id, is_output from items where response_id = $1", parent.id)
    assert sorted(map(tuple, positions)) == [(0, "first_in_0", False), (1, "first_in_1", False), (2, "first_out", True)]


# --- Order, forks, and what counts.


async def test_history_is_oldest_first_each_turn_input_before_output(responses: Responses) -> None:
    await add_chain(responses, "a", "b", "c")
    assert await said_before(responses, "resp_c") == [
        ["a_in_0", "a_in_1", "a_out"],
        ["b_in_0", "b_in_1", "b_out"],
        ["c_in_0", "c_in_1", "c_out"],
    ]
    root = (await known(responses, "resp_a")).parent
    newest = (await known(responses, "resp_c")).parent
    assert (root.depth, root.root_id) == (0, root.id)
    assert (newest.depth, newest.root_id) == (2, root.id)


async def test_many_items_of_a_turn_keep_their_order(responses: Responses) -> None:
    """More than one page of rows, and ids that would sort in another order."""
    items = [message(f"{(index * 7919) % 1000}", is_output=index >= 600) for index in range(1000)]
    await responses.add(turn("long", items=items))
    assert (await known(responses, "resp_long")).turns == [items]
    assert await responses.input_items(1, "resp_long") == items[:600]
    stored = await responses.get(1, "resp_long")
    assert stored is not None
    assert stored.output == items[600:]


async def test_the_same_item_id_may_come_in_every_turn_and_twice_in_one(responses: Responses) -> None:
    items = [message("rs_0"), message("rs_0", body=b'{"other":1}', is_output=True)]
    await responses.add(turn("a", items=items))
    await responses.add(turn("b", (await known(responses, "resp_a")).parent, items=items))
    assert (await known(responses, "resp_b")).turns == [items, items]


async def test_forks_share_what_was_before_them_and_nothing_else(responses: Responses) -> None:
    await add_chain(responses, "a", "b")
    await add_chain(responses, "left", after="b")
    await add_chain(responses, "right", "further", after="b")
    assert [said[0] for said in await said_before(responses, "resp_left")] == ["a_in_0", "b_in_0", "left_in_0"]
    assert [said[0] for said in await said_before(responses, "resp_further")] == [
        "a_in_0", "b_in_0", "right_in_0", "further_in_0",
    ]  # fmt: skip
    roots = {(await known(responses, f"resp_{name}")).parent.root_id for name in ("a", "left", "further")}
    assert len(roots) == 1


async def test_turns_that_continue_one_response_at_once_are_forks(responses: Responses) -> None:
    await add_chain(responses, "a")
    parent = (await known(responses, "resp_a")).parent
    await asyncio.gather(*(responses.add(turn(f"fork_{number}", parent)) for number in range(20)))
    for number in range(20):
        assert [said[0] for said in await said_before(responses, f"resp_fork_{number}")] == [
            "a_in_0", f"fork_{number}_in_0",
        ]  # fmt: skip


@pytest.mark.parametrize("status", ["failed", "cancelled", "in_progress", "queued"])
async def test_a_turn_that_came_to_nothing_adds_nothing(responses: Responses, status: str) -> None:
    await add_chain(responses, "a")
    await add_chain(responses, "bad", after="a", status=status)
    await add_chain(responses, "c", after="bad")
    assert [said[0] for said in await said_before(responses, "resp_bad")] == ["a_in_0"]
    assert [said[0] for said in await said_before(responses, "resp_c")] == ["a_in_0", "c_in_0"]
    assert (await known(responses, "resp_bad")).parent.depth == 1


async def test_a_failed_first_turn_is_a_history_without_turns(responses: Responses) -> None:
    await add_chain(responses, "bad", status="failed")
    history = await known(responses, "resp_bad")
    assert (history.turns, history.parent.depth) == ([], 0)


async def test_an_incomplete_turn_counts(responses: Responses) -> None:
    await add_chain(responses, "cut", status="incomplete")
    assert await said_before(responses, "resp_cut") == [["cut_in_0", "cut_in_1", "cut_out"]]


async def test_a_turn_without_items_is_still_a_parent(responses: Responses) -> None:
    await add_chain(responses, "a")
    await add_chain(responses, "nothing", after="a", items=[])
    await add_chain(responses, "c", after="nothing")
    assert [said[0] for said in await said_before(responses, "resp_c")] == ["a_in_0", "c_in_0"]
    stored = await responses.get(1, "resp_nothing")
    assert stored is not None
    assert (stored.body, stored.output) == (b'{"id": "resp_nothing"}', [])


async def test_input_items_are_the_history_and_the_own_input(responses: Responses) -> None:
    await add_chain(responses, "a", "b")
    items = await responses.input_items(1, "resp_b")
    assert items is not None
    assert names(items) == ["a_in_0", "a_in_1", "a_out", "b_in_0", "b_in_1"]


async def test_a_failed_response_has_its_input_and_what_it_made(responses: Responses) -> None:
    await add_chain(responses, "a")
    await add_chain(responses, "bad", "worse", after="a", status="failed")
    items = await responses.input_items(1, "resp_worse")
    stored = await responses.get(1, "resp_worse")
    assert items is not None
    assert stored is not None
    assert names(items) == ["a_in_0", "a_in_1", "a_out", "worse_in_0", "worse_in_1"]
    assert names(stored.output) == ["worse_out"]


# --- Cost.


async def test_each_method_is_one_statement(database: Database, responses: Responses) -> None:
    await add_chain(responses, "a", "b", "c")
    parent = (await known(responses, "resp_c")).parent
    for call in (
        lambda: responses.history(1, "resp_c"),
        lambda: responses.add(turn("d", parent)),
        lambda: responses.get(1, "resp_c"),
        lambda: responses.input_items(1, "resp_c"),
        lambda: responses.delete(1, "resp_c"),
        lambda: responses.history(1, "resp_unknown"),
        lambda: responses.get(1, "resp_unknown"),
    ):
        with recorded_statements(database) as statements:
            await call()
        assert len(statements) == 1


async def test_the_driver_sends_nothing_beside_the_statements(database_url: str) -> None:
    """No BEGIN and no COMMIT, no question when a connection is taken, and no reset when it comes back."""
    database = Database.open(database_url, pool_size=1)
    responses = Responses(database)
    sent: list[str] = []
    try:
        async with database.engine.connect() as connection:
            driver: Any = (await connection.get_raw_connection()).driver_connection
        # It is told of everything but the prepared statements.
        driver.add_query_logger(lambda query: sent.append(query.query))
        await add_chain(responses, "a", "b")
        await responses.get(1, "resp_b")
        await responses.delete(1, "resp_b")
        assert sent == []
        async with database.engine.execution_options(isolation_level="READ COMMITTED").begin() as connection:
            await connection.execute(text("select 1"))
        assert [statement.split()[0] for statement in sent] == ["BEGIN", "COMMIT;"]
    finally:
        await database.close()


async def test_a_chain_a_thousand_deep_is_walked_by_look_ups(database: Database, responses: Responses) -> None:
    """On tables without statistics, as every young server has them: there a plain join reads a million rows."""
    await add_chain(responses, *map(str, range(1001)))
    # Other rows of the same tenant, which no plan may read.
    await add_chain(responses, *(f"other_{number}" for number in range(50)))
    conversation = Conversation(public_id="conv", metadata=b"{}", created_at=NOON)
    await Conversations(database).add(1, conversation, [message(f"listed_{number}") for number in range(50)])
    with recorded_statements(database) as statements:
        for depth in (300, 1000):
            history = await known(responses, f"resp_{depth}")
            assert history.parent.depth == depth
            assert [names(items)[2] for items in history.turns] == [f"{number}_out" for number in range(depth + 1)]
    assert len(statements) == 2

    visited = await rows_visited(database, sql.HISTORY, public_id="resp_1000", input_only=False, since=None)
    # Postgres rounds what it tells of a thousand loops, hence the margin.
    assert 1001 <= visited["responses"] <= 1010
    assert 3003 <= visited["items"] <= 3010
    # Where there is no conversation, nothing is looked for.
    assert visited["conversation_items"] == 0
    # Ten turns behind the known one, the known one, and none of what it is made of.
    visited = await rows_visited(database, sql.HISTORY, public_id="resp_1000", input_only=False, since="resp_990")
    assert (11 <= visited["responses"] <= 14, visited["items"]) == (True, 30)
    visited = await rows_visited(database, sql.GET, public_id="resp_1000")
    assert visited == {"responses": 1, "response_bodies": 1, "items": 3}


async def test_a_connection_is_free_again_after_each_call(database_url: str) -> None:
    database = Database.open(database_url, pool_size=1, connect_timeout_s=5)
    responses = Responses(database)
    try:
        await asyncio.gather(*(responses.add(turn(str(number))) for number in range(30)))
        found = await asyncio.gather(*(responses.history(1, f"resp_{number}") for number in range(30)))
        assert [history is not None for history in found] == [True] * 30
        assert database.engine.sync_engine.pool.checkedout() == 0
    finally:
        await database.close()


async def test_a_stored_turn_costs_the_same_at_any_depth(responses: Responses, admin: Any) -> None:
    await add_chain(responses, *map(str, range(60)))
    sizes = await admin.fetch("""
        select depth, count(*), sum(octet_length(items.body)) from responses join items on response_id = responses.id
        group by depth order by depth
    """)
    assert {row["count"] for row in sizes} == {3}
    assert {row["sum"] for row in sizes[10:]} == {sizes[10]["sum"]}


@pytest.mark.parametrize(
    ("since", "said"),
    [("c", ["d_in_0"]), ("a", ["b_in_0", "c_in_0", "d_in_0"]), ("fork", None), ("d", None), ("unknown", None)],
)
async def test_what_is_known_of_a_chain_is_not_read(responses: Responses, since: str, said: list[str] | None) -> None:
    """And what is not on the way to the beginning, or is nowhere, is as good as nothing."""
    await add_chain(responses, "a", "b", "c", "d")
    await add_chain(responses, "fork", after="b")
    # It counts although it was deleted, as everything before the named one does.
    await responses.delete(1, "resp_c")
    history = await responses.history(1, "resp_d", since=f"resp_{since}")
    assert history is not None
    assert history.is_rest is (said is not None)
    assert [names(turn)[0] for turn in history.turns] == (said or ["a_in_0", "b_in_0", "c_in_0", "d_in_0"])
    assert history.parent == (await known(responses, "resp_d")).parent


async def test_turns_that_add_nothing_may_be_all_that_is_new(responses: Responses) -> None:
    await add_chain(responses, "a")
    await responses.add(turn("b", (await known(responses, "resp_a")).parent, status="failed"))
    history = await responses.history(1, "resp_b", since="resp_a")
    assert history is not None
    assert (history.turns, history.is_rest, history.parent.depth) == ([], True, 1)


async def test_what_another_tenant_knows_does_not_shorten_a_history(responses: Responses) -> None:
    await add_chain(responses, "a", "b")
    await add_chain(responses, "b", tenant_id=2)
    await add_chain(responses, "c", tenant_id=2)
    history = await responses.history(1, "resp_b", since="resp_c")
    assert history is not None
    assert (len(history.turns), history.is_rest) == (2, False)


# --- Tenants.


async def test_no_method_reaches_another_tenant(responses: Responses) -> None:
    await add_chain(responses, "a", "b")
    assert await responses.history(2, "resp_b") is None
    assert await responses.get(2, "resp_b") is None
    assert await responses.input_items(2, "resp_b") is None
    assert await responses.delete(2, "resp_b") is False
    assert len(await said_before(responses, "resp_b")) == 2


async def test_a_response_cannot_continue_another_tenants(responses: Responses, admin: Any) -> None:
    await add_chain(responses, "a")
    parent = (await known(responses, "resp_a")).parent
    with pytest.raises(errors.ApiError, match="before 'resp_theft' is lost"):
        await responses.add(turn("theft", parent, tenant_id=2))
    assert await admin.fetchval("select count(*) from responses where tenant_id = 2") == 0


async def test_tenants_may_use_the_same_ids(responses: Responses) -> None:
    await add_chain(responses, "a", "b")
    await add_chain(responses, "a", tenant_id=2)
    theirs = await known(responses, "resp_a", tenant_id=2)
    assert [names(items) for items in theirs.turns] == [["a_in_0", "a_in_1", "a_out"]]
    assert await responses.delete(2, "resp_a") is True
    assert await responses.history(2, "resp_a") is None
    assert len(await said_before(responses, "resp_b")) == 2


async def test_a_chain_that_crosses_tenants_by_its_numbers_is_not_followed(responses: Responses, admin: Any) -> None:
    """Ids are numbers of one sequence for all; a pointer at another tenant's row must lead nowhere."""
    await add_chain(responses, "a")
    await add_chain(responses, "b", tenant_id=2)
    await admin.execute("alter table responses drop constraint responses_parent_id_fkey")
    await admin.execute("""
        update responses set depth = 1, parent_id = (select id from responses where public_id = 'resp_a')
        where public_id = 'resp_b'
    """)
    with pytest.raises(errors.ApiError, match="before 'resp_b' is lost"):
        await responses.history(2, "resp_b")


# --- Deletion.


async def test_a_deleted_response_is_unreachable_and_its_descendants_keep_it(responses: Responses) -> None:
    await add_chain(responses, "a", "b", "c")
    assert await responses.delete(1, "resp_b") is True
    assert await responses.history(1, "resp_b") is None
    assert await responses.get(1, "resp_b") is None
    assert await responses.input_items(1, "resp_b") is None
    assert await responses.delete(1, "resp_b") is False
    assert [said[0] for said in await said_before(responses, "resp_c")] == ["a_in_0", "b_in_0", "c_in_0"]
    await add_chain(responses, "d", after="c")
    items = await responses.input_items(1, "resp_d")
    assert items is not None
    assert [name for name in names(items) if name.endswith("in_0")] == ["a_in_0", "b_in_0", "c_in_0", "d_in_0"]


async def test_a_parent_deleted_while_its_turn_is_in_flight_is_still_its_parent(responses: Responses) -> None:
    await add_chain(responses, "a")
    parent = (await known(responses, "resp_a")).parent
    await responses.delete(1, "resp_a")
    await responses.add(turn("b", parent))
    assert [said[0] for said in await said_before(responses, "resp_b")] == ["a_in_0", "b_in_0"]


async def test_unknown_ids_are_nothing(responses: Responses) -> None:
    assert await responses.history(1, "resp_unknown") is None
    assert await responses.get(1, "resp_unknown") is None
    assert await responses.input_items(1, "resp_unknown") is None
    assert await responses.delete(1, "resp_unknown") is False


# --- Broken chains.


@pytest.mark.parametrize("asked", ["history", "input_items"])
async def test_a_lost_ancestor_is_named_and_history_never_shortened(
    responses: Responses, admin: Any, asked: str
) -> None:
    await add_chain(responses, "a", "b", "c", "d")
    await admin.execute("alter table responses drop constraint responses_parent_id_fkey")
    await admin.execute("delete from responses where public_id = 'resp_b'")
    with pytest.raises(errors.ApiError) as raised:
        await getattr(responses, asked)(1, "resp_d")
    assert (raised.value.status, raised.value.param) == (500, "previous_response_id")
    assert "the response before 'resp_c' is lost" in raised.value.message
    # What lies behind the gap can be gone on from by who knows what was said up to there.
    rest = await responses.history(1, "resp_d", since="resp_c")
    assert rest is not None
    assert [names(turn)[0] for turn in rest.turns] == ["d_in_0"]
    assert [said[0] for said in await said_before(responses, "resp_a")] == ["a_in_0"]


@pytest.mark.parametrize(
    "break_it",
    [
        # A beginning that says it has something before it; the chain is then a circle.
        "update responses set parent_id = (select id from responses where public_id = 'resp_c') where depth = 0",
        # The same, with depths that fit as far as they can.
        """update responses set depth = depth + 5, parent_id = coalesce(parent_id,
            (select id from responses where public_id = 'resp_c'))""",
        # A response that is its own parent.
        "update responses set parent_id = id where public_id = 'resp_b'",
        # A beginning too late.
        "update responses set parent_id = null where public_id = 'resp_b'",
        # A step that skips a turn.
        "update responses set parent_id = root_id where public_id = 'resp_c'",
    ],
    ids=["circle", "shifted circle", "own parent", "beheaded", "skipped"],
)
async def test_a_chain_that_is_wrong_ends_and_is_refused(responses: Responses, admin: Any, break_it: str) -> None:
    await add_chain(responses, "a", "b", "c")
    await admin.execute(break_it)
    async with asyncio.timeout(10):
        with pytest.raises(errors.ApiError, match="is lost"):
            await responses.history(1, "resp_c")


async def test_a_turn_whose_parents_row_is_gone_is_not_stored(responses: Responses, admin: Any) -> None:
    await add_chain(responses, "a")
    parent = (await known(responses, "resp_a")).parent
    await admin.execute("delete from responses")
    with pytest.raises(errors.ApiError, match="before 'resp_b' is lost"):
        await responses.add(turn("b", parent))
    assert await stored_rows(admin) == (0, 0, 0)


# --- All or nothing.


async def stored_rows(admin: Any) -> tuple[int, int, int]:
    row = await admin.fetchrow("""
        select (select count(*) from responses), (select count(*) from response_bodies), (select count(*) from items)
    """)
    return tuple(row)


async def test_an_item_that_cannot_be_stored_leaves_no_response(responses: Responses, admin: Any) -> None:
    await admin.execute("alter table items add constraint items_type_check check (type <> 'forbidden')")
    items = [message("fine"), message("bad", type="forbidden", is_output=True)]
    with pytest.raises(ConstraintViolated) as raised:
        await responses.add(turn("half", items=items))
    assert raised.value.name == "items_type_check"
    assert await stored_rows(admin) == (0, 0, 0)


async def test_a_second_response_of_one_id_changes_nothing(responses: Responses, admin: Any) -> None:
    await responses.add(turn("a"))
    with pytest.raises(ConstraintViolated) as raised:
        await responses.add(turn("a", body=b"{}", items=[message("other")]))
    assert raised.value.name == "responses_public_id_key"
    assert await stored_rows(admin) == (1, 1, 3)
    assert await said_before(responses, "resp_a") == [["a_in_0", "a_in_1", "a_out"]]


async def test_a_cancelled_write_is_whole_or_absent(responses: Responses, database: Database, admin: Any) -> None:
    """And the connection that was cut off in the middle is not given to the next one."""
    for delay_s in itertools.chain([0.0] * 5, [0.0005] * 5, [0.002] * 5):
        adding = asyncio.create_task(responses.add(turn("cancelled")))
        await asyncio.sleep(delay_s)
        adding.cancel()
        await asyncio.gather(adding, return_exceptions=True)
        await until_true(admin, f"select not exists (select {OTHER_CONNECTIONS} and state = 'active')")
        assert await stored_rows(admin) in {(0, 0, 0), (1, 1, 3)}
        await admin.execute("delete from responses")
        assert await database.ping() is True
    assert database.engine.sync_engine.pool.checkedout() == 0


# --- Faults.


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://nobody@127.0.0.1:1/nothing",
        "postgresql://nobody@/nothing?host=/nowhere",
        "postgresql://nobody@nowhere.invalid/nothing",
    ],
)
async def test_a_database_out_of_reach_is_a_503(url: str) -> None:
    database = Database.open(url)
    responses = Responses(database)
    try:
        assert await database.ping() is False
        for call in (
            responses.history(1, "resp_a"),
            responses.add(turn("a")),
            responses.get(1, "resp_a"),
            responses.input_items(1, "resp_a"),
            responses.delete(1, "resp_a"),
        ):
            with pytest.raises(errors.ApiError) as raised:
                await call
            assert (raised.value.status, raised.value.type) == (503, "server_error")
    finally:
        await database.close()


async def test_a_database_that_does_not_exist_is_a_503(database_url: str) -> None:
    database = Database.open(with_database(database_url, "missing"))
    try:
        with pytest.raises(errors.ApiError) as raised:
            await Responses(database).history(1, "resp_a")
        assert raised.value.status == 503
    finally:
        await database.close()


@without_pgbouncer
async def test_connections_that_ended_while_idle_are_replaced_unnoticed(
    database: Database, responses: Responses, admin: Any
) -> None:
    opened: list[Any] = []
    event.listen(database.engine.sync_engine, "connect", lambda connection, _: opened.append(connection))
    await asyncio.gather(*(responses.add(turn(str(number))) for number in range(12)))
    assert len(opened) == 8
    await admin.execute(f"select pg_terminate_backend(pid) {OTHER_CONNECTIONS}")
    await until(lambda: all(connection.driver_connection.is_closed() for connection in opened))
    found = await asyncio.gather(*(responses.history(1, f"resp_{number}") for number in range(12)))
    assert [history is not None for history in found] == [True] * 12


async def test_a_connection_that_ends_in_the_middle_is_a_503_and_the_next_call_works(
    responses: Responses, admin: Any
) -> None:
    await responses.add(turn("a"))
    transaction = admin.transaction()
    await transaction.start()
    await admin.execute("lock table responses in access exclusive mode")
    waiting = asyncio.create_task(responses.history(1, "resp_a"))
    await until_true(admin, "select exists (select from pg_locks where not granted)")
    await admin.execute("select pg_terminate_backend(pid) from pg_locks where not granted")
    with pytest.raises(errors.ApiError) as raised:
        await waiting
    assert raised.value.status == 503
    await transaction.rollback()
    assert len(await said_before(responses, "resp_a")) == 1


async def test_a_statement_that_takes_too_long_is_a_503_and_its_connection_is_kept_in_order(
    database_url: str, admin: Any
) -> None:
    database = Database.open(database_url, pool_size=1, statement_timeout_s=1)
    responses = Responses(database)
    try:
        await responses.add(turn("a"))
        async with admin.transaction():
            await admin.execute("lock table responses in access exclusive mode")
            with pytest.raises(errors.ApiError) as raised:
                await responses.history(1, "resp_a")
            assert raised.value.status == 503
        assert len(await said_before(responses, "resp_a")) == 1
    finally:
        await database.close()


async def test_who_finds_no_connection_free_waits_a_bounded_time(database_url: str, admin: Any) -> None:
    database = Database.open(database_url, pool_size=1, connect_timeout_s=1)
    responses = Responses(database)
    try:
        await responses.add(turn("a"))
        async with admin.transaction():
            await admin.execute("lock table responses in access exclusive mode")
            holding = asyncio.create_task(responses.history(1, "resp_a"))
            await until_true(admin, "select exists (select from pg_locks where not granted)")
            with pytest.raises(errors.ApiError) as raised:
                await responses.get(1, "resp_a")
            assert raised.value.status == 503
        assert await holding is not None
    finally:
        await database.close()


async def test_a_mistake_of_ours_does_not_pass_for_a_fault(database: Database) -> None:
    """A 503 would be retried for ever, and nobody would look for the mistake."""
    for statement, parameters in [
        ("select no_such_column from items", {}),
        ("select 1 / :zero", {"zero": 0}),
        ("select cast(:number as bigint)", {"number": "not a number"}),
    ]:
        with pytest.raises(Exception, match=r"no_such_column|division|not a number") as raised:
            await database.run(Statement(statement), parameters)
        assert not isinstance(raised.value, errors.ApiError)


async def test_values_stay_out_of_the_errors_of_statements(database: Database) -> None:
    with pytest.raises(Exception, match="no_such_column") as raised:
        await database.run(Statement("select no_such_column, cast(:secret as text)"), {"secret": "a prompt"})
    assert "a prompt" not in str(raised.value)


# --- Opening.


async def test_a_url_may_say_how_long_to_wait_for_a_connection(database_url: str) -> None:
    """libpq's parameter, which the driver would send on to the server, who knows none of that name."""
    separator = "&" if "?" in database_url else "?"
    database = Database.open(f"{database_url}{separator}connect_timeout=7&application_name=a%20b")
    try:
        [row] = await database.run(Statement("select current_database(), current_setting('application_name')"))
        assert tuple(row) == (database_name(database_url), "a b")
    finally:
        await database.close()


async def test_behind_pgbouncer_nothing_is_prepared(database_url: str) -> None:
    database = Database.open(database_url, pool_size=1, pgbouncer=True)
    responses = Responses(database)
    try:
        for name in ("a", "b"):
            await responses.add(turn(name))
        [row] = await database.run(Statement("select count(*) from pg_prepared_statements where name <> ''"))
        assert row[0] == 0
        assert await said_before(responses, "resp_b") == [["b_in_0", "b_in_1", "b_out"]]
    finally:
        await database.close()


async def test_closing_ends_every_connection(database_url: str, admin: Any) -> None:
    database = Database.open(database_url)
    await asyncio.gather(*(Responses(database).add(turn(str(number))) for number in range(12)))
    await database.close()
    await until_true(admin, f"select not exists (select {OTHER_CONNECTIONS})")
    assert database.engine.sync_engine.pool.checkedin() == 0
