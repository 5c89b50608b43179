"""Conversations and leases on a real Postgres: order, versions, one turn at a time, and who overtakes whom."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest

from server import errors
from server.protocol.items import Item
from server.store.conversations import Conversation, ConversationHistory, Conversations
from server.store.database import Database
from server.store.leases import Lease, Leases
from server.store.responses import NewResponse, Parent, Responses
from server.store.rows import item_columns
from server.store.sql import conversations as sql
from server.store.sql import responses as response_sql
from tests.postgres import connected, recorded_statements, rows_visited, until_true, without_pgbouncer

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
Result = TypeVar("Result")


class Store:
    """The store's three parts on one database, and short words for what the tests do with them."""

    def __init__(self, database: Database, lease_s: float = 30) -> None:
        self.database = database
        self.responses = Responses(database)
        self.conversations = Conversations(database)
        self.leases = Leases(database, lease_s)

    async def converse(self, *items: str, name: str = "conv", tenant_id: int = 1) -> None:
        made = Conversation(public_id=name, metadata=b'{"a":"b"}', created_at=NOON)
        await self.conversations.add(tenant_id, made, [item(one) for one in items])

    async def add(self, *items: str, name: str = "conv") -> bool:
        return await self.conversations.add_items(1, name, [item(one) for one in items])

    async def take(self, name: str = "conv") -> tuple[Lease, ConversationHistory]:
        taken = await self.leases.take(1, name)
        assert taken is not None
        return taken

    async def turn(self, name: str, lease: Lease | None = None, **changed: Any) -> None:
        """Stores a turn `resp_<name>` of the items `<name>_in` and `<name>_out`, by default in `conv`."""
        if lease is None:
            lease, _ = await self.take()
        await self.responses.add(turn(name, lease=lease, **changed))

    async def listed(self, name: str = "conv") -> list[str]:
        return names(await self.page(name=name))

    async def page(self, name: str = "conv", **changed: Any) -> list[Item]:
        asked: dict[str, Any] = {"limit": 1000, "order": "asc", "after": None, **changed}
        listed = await self.conversations.items(1, name, **asked)
        assert listed is not None
        return listed.items

    async def history(self, name: str = "conv") -> list[list[str]]:
        history = await self.conversations.history(1, name)
        assert history is not None
        return [names(said) for said in history.turns]

    async def said_before(self, response: str) -> list[list[str]]:
        history = await self.responses.history(1, f"resp_{response}")
        assert history is not None
        return [names(said) for said in history.turns]


@pytest.fixture
def store(database: Database) -> Store:
    return Store(database)


@pytest.fixture
async def admin(database_url: str) -> AsyncIterator[Any]:
    async with connected(database_url) as connection:
        yield connection


def item(name: str, **changed: Any) -> Item:
    return Item(**{"body": json.dumps({"says": name}).encode(), "public_id": name, "type": "message", **changed})


def turn(name: str, *, is_appended: bool = True, **changed: Any) -> NewResponse:
    members: dict[str, Any] = {
        "tenant_id": 1,
        "public_id": f"resp_{name}",
        "parent": None,
        "status": "completed",
        "model": "tiny",
        "upstream": "vllm",
        "created_at": NOON,
        "completed_at": NOON,
        "ended_at": NOON,
        "body": b"{}",
        "items": [item(f"{name}_in"), item(f"{name}_out", is_output=True)],
        "is_appended": is_appended,
        **changed,
    }
    return NewResponse(**members)


def names(items: Sequence[Item]) -> list[str]:
    return [one.public_id for one in items]


async def refusal(call: Awaitable[object]) -> tuple[int, str | None, str]:
    with pytest.raises(errors.ApiError) as raised:
        await call
    return raised.value.status, raised.value.code, raised.value.message


def locked(refused: tuple[int, str | None, str]) -> bool:
    return refused[:2] == (400, "conversation_locked")


@contextlib.asynccontextmanager
async def held(admin: Any, change: str = "update conversations set metadata = metadata") -> AsyncIterator[None]:
    """The conversation's row belongs to another transaction, which commits `change` at the end of this."""
    async with admin.transaction():
        await admin.execute(change)
        yield


async def until_waiting(admin: Any, count: int = 1) -> None:
    """Until so many statements wait for a row that `admin` holds."""
    await until_true(admin, "select count(*) = $1 from pg_locks where not granted", count)


@contextlib.asynccontextmanager
async def unfinished(admin: Any) -> AsyncIterator[None]:
    """Who changes a list has changed its conversation but not its links, and commits only at the end of this."""
    await admin.execute("""
        create function wait() returns trigger language plpgsql
            as 'begin perform pg_advisory_xact_lock_shared(1); return new; end';
        create trigger wait before insert or update on conversation_items for each row execute function wait()
    """)
    await admin.execute("select pg_advisory_lock(1)")
    try:
        yield
    finally:
        await admin.execute("select pg_advisory_unlock(1)")


# --- order and bytes


async def test_items_come_back_as_they_were_in_the_order_they_came(store: Store) -> None:
    odd = [
        item("b", body=rb' { "nul":"\u0000", "half":"\ud83d", "huge":1e400, "a":null } ', call_id="c", fidelity=b"[1]"),
        item("a", body='{"raw":"é 你好 😀"}'.encode(), issuer="vllm", type="reasoning"),
    ]
    made = Conversation(public_id="conv", metadata=rb'{ "k":"\u0000\ud83d" , "a":"b" }', created_at=NOON)
    await store.conversations.add(1, made, odd)
    assert await store.conversations.get(1, "conv") == made
    assert await store.page() == odd
    assert await store.page(order="desc") == odd[::-1]
    assert await store.conversations.item(1, "conv", "a") == odd[1]
    history = await store.conversations.history(1, "conv")
    assert history is not None
    assert history.turns == [odd]


async def test_order_is_that_of_insertion_whatever_the_clock_says(store: Store) -> None:
    await store.converse("z", "a")
    for name, year in (("one", 2030), ("two", 2026), ("three", 1999)):
        await store.turn(name, created_at=NOON.replace(year=year), completed_at=NOON.replace(year=year))
        await store.add(f"behind_{name}")
    expected = ["z", "a", "one_in", "one_out", "behind_one", "two_in", "two_out", "behind_two"]
    assert await store.listed() == [*expected, "three_in", "three_out", "behind_three"]
    # Each turn is one of the history's, and so is what clients added between two.
    assert await store.history() == [
        ["z", "a"],
        ["one_in", "one_out"],
        ["behind_one"],
        ["two_in", "two_out"],
        ["behind_two"],
        ["three_in", "three_out"],
        ["behind_three"],
    ]


async def test_a_long_turn_keeps_its_order(store: Store) -> None:
    await store.converse()
    items = [item(f"{(number * 7919) % 1000}", is_output=number >= 600) for number in range(1000)]
    await store.turn("long", items=items)
    assert await store.page() == items
    lease, history = await store.take()
    assert history.turns == [items]
    await store.turn("next", lease)
    assert (await store.said_before("next"))[0] == names(items)


async def test_an_empty_conversation_is_one(store: Store) -> None:
    await store.converse()
    assert await store.listed() == []
    lease, history = await store.take()
    assert history.turns == []
    # A turn may bring nothing and make nothing, and still is one.
    await store.turn("nothing", lease, items=[])
    assert await store.listed() == []
    assert await store.said_before("nothing") == []


# --- versions


async def test_an_edit_reaches_the_next_turn_and_never_the_past(store: Store) -> None:
    await store.converse("a", "b")
    await store.turn("one")
    await store.conversations.remove_item(1, "conv", "b")
    await store.add("c")
    await store.turn("two")
    for gone in ("one_out", "two_in", "a"):
        await store.conversations.remove_item(1, "conv", gone)
    await store.turn("three")
    assert await store.listed() == ["one_in", "c", "two_out", "three_in", "three_out"]
    assert await store.said_before("one") == [["a", "b"], ["one_in", "one_out"]]
    assert await store.said_before("two") == [["a"], ["one_in", "one_out"], ["c"], ["two_in", "two_out"]]
    assert await store.said_before("three") == [["one_in"], ["c"], ["two_out"], ["three_in", "three_out"]]
    seen = await store.responses.input_items(1, "resp_two")
    assert seen is not None
    assert names(seen) == ["a", "one_in", "one_out", "c", "two_in"]


async def test_a_chain_goes_on_from_what_its_first_response_saw(store: Store) -> None:
    await store.converse("a")
    await store.turn("one")
    parent = (await store.responses.history(1, "resp_one")).parent  # type: ignore[union-attr]
    await store.responses.add(turn("left", parent=parent, is_appended=False))
    await store.conversations.remove_item(1, "conv", "a")
    await store.turn("two")
    for expected in (["a"], ["one_in", "one_out"], ["left_in", "left_out"]):
        assert expected in await store.said_before("left")
    assert len(await store.said_before("left")) == 3
    assert await store.listed() == ["one_in", "one_out", "two_in", "two_out"]
    assert parent == Parent(id=parent.id, root_id=parent.id, depth=0, root_public_id="resp_one")


@pytest.mark.parametrize("status", ["failed", "cancelled"])
async def test_a_turn_that_came_to_nothing_is_kept_and_adds_nothing(store: Store, status: str) -> None:
    await store.converse("a")
    lease, _ = await store.take()
    await store.turn("bad", lease, status=status, is_appended=False)
    await store.leases.release(lease)
    assert await store.listed() == ["a"]
    assert await store.said_before("bad") == [["a"]]
    seen = await store.responses.input_items(1, "resp_bad")
    assert seen is not None
    assert names(seen) == ["a", "bad_in"]
    await store.turn("good")
    assert await store.said_before("good") == [["a"], ["good_in", "good_out"]]


async def test_a_removed_item_can_come_again_and_has_its_new_place(store: Store) -> None:
    await store.converse("a", "b", "c")
    await store.turn("one")
    await store.conversations.remove_item(1, "conv", "a")
    await store.add("a")
    assert await store.listed() == ["b", "c", "one_in", "one_out", "a"]
    await store.turn("two")
    assert await store.said_before("one") == [["a", "b", "c"], ["one_in", "one_out"]]
    assert (await store.said_before("two"))[0] == ["b", "c"]
    await store.conversations.remove_item(1, "conv", "a")
    assert await store.listed() == ["b", "c", "one_in", "one_out", "two_in", "two_out"]


async def test_a_cursor_that_came_and_went_twice_leaves_nothing_out(store: Store) -> None:
    await store.converse("a", "b", "c")
    await store.conversations.remove_item(1, "conv", "b")
    await store.add("d", "b")
    # Where it is listed again, its place is the one that it has in the list: a, c, d, b.
    assert names(await store.page(after="b")) == []
    assert names(await store.page(after="b", order="desc")) == ["d", "c", "a"]
    await store.conversations.remove_item(1, "conv", "b")
    await store.add("e")
    # Whichever of its places a client had got to: it was behind a, or between d and e.
    assert names(await store.page(after="b")) == ["c", "d", "e"]
    assert names(await store.page(after="b", order="desc")) == ["d", "c", "a"]


# --- what is unknown, listed twice, deleted


async def test_what_is_unknown_is_nothing(store: Store) -> None:
    await store.converse("a", name="other")
    for name in ("conv", ""):
        assert await store.conversations.get(1, name) is None
        assert await store.conversations.set_metadata(1, name, b"{}") is None
        assert await store.conversations.delete(1, name) is False
        assert await store.conversations.add_items(1, name, [item("x")]) is False
        assert await store.conversations.remove_item(1, name, "a") is None
        assert await store.conversations.item(1, name, "a") is None
        assert await store.conversations.items(1, name, limit=1, order="asc", after="a") is None
        assert await store.conversations.history(1, name) is None
        assert await store.leases.take(1, name) is None
    assert await store.listed("other") == ["a"]


async def test_an_item_of_another_list_is_not_listed_here(store: Store) -> None:
    await store.converse("a", name="other")
    await store.converse("b")
    for call in (
        store.conversations.item(1, "conv", "a"),
        store.conversations.remove_item(1, "conv", "a"),
    ):
        status, _, message = await refusal(call)
        assert (status, message) == (404, "Item with id 'a' not found.")
    status, code, message = await refusal(store.page(after="a"))
    assert (status, code, message) == (400, "invalid_value", "Item with id 'a' not found in this list.")
    # Another list may have an item of the same id.
    assert await store.add("a") is True
    assert await store.conversations.remove_item(1, "conv", "a") is not None
    assert (await store.listed(), await store.listed("other")) == (["b"], ["a"])


async def test_no_method_reaches_another_tenant(store: Store) -> None:
    await store.converse("a")
    await store.turn("one")
    conversations = store.conversations
    assert await conversations.get(2, "conv") is None
    assert await conversations.set_metadata(2, "conv", b"{}") is None
    assert await conversations.add_items(2, "conv", [item("x")]) is False
    assert await conversations.remove_item(2, "conv", "a") is None
    assert await conversations.item(2, "conv", "a") is None
    assert await conversations.items(2, "conv", limit=1, order="asc", after=None) is None
    assert await conversations.history(2, "conv") is None
    assert await conversations.delete(2, "conv") is False
    assert await store.leases.take(2, "conv") is None
    assert await store.responses.referenced(2, ["a", "one_out"]) == {}
    assert await store.listed() == ["a", "one_in", "one_out"]


async def test_a_turn_cannot_be_stored_in_another_tenants_conversation(store: Store, admin: Any) -> None:
    await store.converse("a")
    lease, _ = await store.take()
    status, _, _ = await refusal(store.responses.add(turn("theft", lease=lease, tenant_id=2)))
    assert status == 503
    assert await admin.fetchval("select count(*) from responses") == 0
    assert await store.listed() == ["a"]


async def test_tenants_may_have_conversations_of_the_same_id(store: Store) -> None:
    await store.converse("mine")
    await store.converse("theirs", tenant_id=2)
    assert await store.leases.take(2, "conv") is not None
    # A lock on theirs is none on mine, nor is its end.
    await store.turn("one")
    assert await store.conversations.delete(1, "conv") is True
    history = await store.conversations.history(2, "conv")
    assert history is not None
    assert [names(said) for said in history.turns] == [["theirs"]]


async def test_an_id_that_is_listed_is_not_added_again(store: Store) -> None:
    await store.converse("a", "b")
    await store.turn("one")
    for repeated in ("a", "one_in", "one_out"):
        status, code, message = await refusal(store.add("new", repeated))
        assert (status, code) == (400, "invalid_value")
        assert f"'{repeated}'" in message
    assert await store.listed() == ["a", "b", "one_in", "one_out"]


async def test_a_deleted_conversation_is_gone_but_not_from_what_its_responses_saw(store: Store) -> None:
    await store.converse("a")
    await store.turn("one")
    assert await store.conversations.delete(1, "conv") is True
    assert await store.conversations.delete(1, "conv") is False
    assert await store.conversations.get(1, "conv") is None
    assert await store.leases.take(1, "conv") is None
    assert await store.add("x") is False
    assert await store.said_before("one") == [["a"], ["one_in", "one_out"]]
    # What a response saw that is still there can be named, and nothing else.
    assert set(await store.responses.referenced(1, ["a", "one_in", "one_out"])) == {"a", "one_in", "one_out"}
    await store.responses.delete(1, "resp_one")
    assert await store.responses.referenced(1, ["a", "one_in", "one_out"]) == {}


# --- references


async def test_a_reference_is_the_newest_item_that_can_be_reached(store: Store) -> None:
    await store.converse("x", name="conv")
    await store.responses.add(turn("old", is_appended=False, items=[item("x", body=b'{"n":1}'), item("y")]))
    await store.responses.add(turn("new", is_appended=False, items=[item("x", body=b'{"n":2}', is_output=True)]))
    assert (await store.responses.referenced(1, ["x"]))["x"].body == b'{"n":2}'
    await store.responses.delete(1, "resp_new")
    assert (await store.responses.referenced(1, ["x"]))["x"].body == b'{"n":1}'
    await store.responses.delete(1, "resp_old")
    assert (await store.responses.referenced(1, ["x", "y", "z"]))["x"].body == b'{"says": "x"}'
    await store.conversations.remove_item(1, "conv", "x")
    assert await store.responses.referenced(1, ["x", "y", "z"]) == {}


async def test_an_item_of_a_deleted_response_can_be_reached_by_its_conversation(store: Store) -> None:
    await store.converse()
    await store.turn("one")
    await store.responses.delete(1, "resp_one")
    assert set(await store.responses.referenced(1, ["one_in", "one_out"])) == {"one_in", "one_out"}
    await store.conversations.remove_item(1, "conv", "one_in")
    assert set(await store.responses.referenced(1, ["one_in", "one_out"])) == {"one_out"}
    await store.conversations.delete(1, "conv")
    assert await store.responses.referenced(1, ["one_in", "one_out"]) == {}


async def test_an_item_of_a_deleted_conversation_can_be_reached_by_its_response(store: Store) -> None:
    await store.converse("a")
    await store.turn("one")
    await store.conversations.remove_item(1, "conv", "one_out")
    await store.conversations.delete(1, "conv")
    assert set(await store.responses.referenced(1, ["one_in", "one_out"])) == {"one_in", "one_out"}


async def test_what_a_response_saw_can_be_named_as_long_as_that_is_there(store: Store) -> None:
    await store.converse("a", "unseen")
    await store.conversations.remove_item(1, "conv", "unseen")
    await store.turn("one")
    await store.add("b", "later")
    await store.conversations.remove_item(1, "conv", "a")
    await store.turn("two")
    for gone in ("b", "later", "one_out"):
        await store.conversations.remove_item(1, "conv", gone)
    await store.add("never")
    await store.conversations.remove_item(1, "conv", "never")

    async def named() -> set[str]:
        return set(await store.responses.referenced(1, ["a", "unseen", "b", "later", "never", "one_out"]))

    # The first saw a; the second b, later, and what the first had said.
    assert await named() == {"a", "b", "later", "one_out"}
    await store.responses.delete(1, "resp_one")
    assert await named() == {"b", "later", "one_out"}
    await store.responses.delete(1, "resp_two")
    assert await named() == set()


# --- one turn at a time


async def test_a_second_turn_is_refused_until_the_first_is_stored(store: Store) -> None:
    await store.converse("a")
    lease, history = await store.take()
    assert [names(said) for said in history.turns] == [["a"]]
    assert locked(await refusal(store.take()))
    assert await store.history() == [["a"]]
    await store.turn("one", lease)
    _, history = await store.take()
    assert [names(said) for said in history.turns] == [["a"], ["one_in", "one_out"]]


async def test_only_one_of_many_takes_it(store: Store) -> None:
    await store.converse("a")
    for _ in range(5):
        taken = await asyncio.gather(*(store.leases.take(1, "conv") for _ in range(24)), return_exceptions=True)
        leases = [got[0] for got in taken if isinstance(got, tuple)]
        refused = [got for got in taken if isinstance(got, errors.ApiError)]
        assert (len(leases), len(refused)) == (1, 23)
        assert {error.code for error in refused} == {"conversation_locked"}
        await store.leases.release(leases[0])


async def test_a_locked_conversation_is_not_edited(store: Store) -> None:
    await store.converse("a")
    lease, _ = await store.take()
    for call in (
        store.add("x"),
        # Even what would be refused for another reason: what the list will be, nobody knows yet.
        store.add("a"),
        store.conversations.remove_item(1, "conv", "a"),
        store.conversations.delete(1, "conv"),
    ):
        assert locked(await refusal(call))
    # What the metadata say is no turn's concern.
    changed = await store.conversations.set_metadata(1, "conv", b'{"c":"d"}')
    assert changed == Conversation(public_id="conv", metadata=b'{"c":"d"}', created_at=NOON)
    assert await store.listed() == ["a"]
    await store.turn("one", lease)
    assert await store.add("x") is True
    assert await store.listed() == ["a", "one_in", "one_out", "x"]


async def test_a_lease_that_was_released_or_used_holds_no_more(store: Store) -> None:
    await store.converse("a")
    released, _ = await store.take()
    await store.leases.release(released)
    await store.leases.release(released)
    used, _ = await store.take()
    await store.turn("one", used)
    for lease in (released, used):
        assert await store.leases.renew(lease) is False
        status, _, message = await refusal(store.turn("late", lease))
        assert status == 503
        assert "Nothing was added" in message
    assert await store.listed() == ["a", "one_in", "one_out"]
    assert await store.responses.get(1, "resp_late") is None


async def test_who_held_it_before_cannot_end_the_lease_of_another(store: Store) -> None:
    await store.converse("a")
    before, _ = await store.take()
    await store.leases.release(before)
    now, _ = await store.take()
    await store.leases.release(before)
    assert await store.leases.renew(before) is False
    assert locked(await refusal(store.take()))
    await refusal(store.turn("thief", before))
    await store.turn("one", now)
    assert await store.listed() == ["a", "one_in", "one_out"]


async def test_a_lease_ends_by_time_and_its_turn_with_it(database: Database) -> None:
    store = Store(database, lease_s=0.1)
    await store.converse("a")
    expired, _ = await store.take()
    await asyncio.sleep(0.15)
    # Nobody took it meanwhile, and still it is over: an edit may have gone by unseen.
    assert await store.leases.renew(expired) is False
    status, _, _ = await refusal(store.turn("late", expired))
    assert status == 503
    assert await store.add("b") is True
    await store.turn("one")
    assert await store.listed() == ["a", "b", "one_in", "one_out"]
    status, _, _ = await refusal(store.turn("later", expired))
    assert status == 503


async def test_a_list_that_was_edited_is_not_appended_to_though_the_lease_holds_by_the_clock(
    store: Store, admin: Any
) -> None:
    """The clock was set back: the lease had run out when the edit was made, and is good again."""
    await store.converse("a")
    lease, _ = await store.take()
    await admin.execute("update conversations set locked_until = now() - interval '1 second'")
    assert await store.add("b") is True
    await admin.execute("update conversations set locked_until = now() + interval '1 minute'")
    status, _, _ = await refusal(store.turn("late", lease))
    assert status == 503
    assert await store.responses.get(1, "resp_late") is None
    assert await store.listed() == ["a", "b"]


async def test_a_renewed_lease_holds_on(database: Database) -> None:
    store = Store(database, lease_s=0.5)
    await store.converse("a")
    lease, _ = await store.take()
    for _ in range(8):
        await asyncio.sleep(0.1)
        assert await store.leases.renew(lease) is True
        assert locked(await refusal(store.take()))
    await store.turn("one", lease)
    assert await store.listed() == ["a", "one_in", "one_out"]


async def test_a_failed_turn_is_stored_though_its_lease_is_lost(database: Database) -> None:
    store = Store(database, lease_s=0.05)
    await store.converse("a")
    lease, _ = await store.take()
    await asyncio.sleep(0.1)
    await store.turn("bad", lease, status="failed", is_appended=False)
    assert await store.said_before("bad") == [["a"]]
    assert await store.listed() == ["a"]


# --- who overtakes whom

# What a turn does from its lease to its end, as one transaction.
A_WHOLE_TURN = """
with response as (
    insert into responses (tenant_id, public_id, root_id, depth, status, model, upstream, created_at)
    values (1, 'resp_one', 1, 0, 'completed', 'm', 'u', now())
    returning tenant_id, id
), said as (
    insert into items (tenant_id, response_id, position, is_output, public_id, type, body)
    select tenant_id, id, 0, false, 'one_in', 'message', '{}' from response
    returning tenant_id, id, public_id
), conversation as (
    update conversations set version = version + 1, next_position = next_position + 1
    returning id, version, next_position
)
insert into conversation_items (tenant_id, conversation_id, position, item_id, public_id, added_version)
select said.tenant_id, conversation.id, conversation.next_position - 1, said.id, said.public_id, conversation.version
from said cross join conversation
"""


async def test_a_turn_that_waited_for_another_ones_end_sees_what_it_added(store: Store, admin: Any) -> None:
    """The statement began before the other turn was there to be seen: what it read is too old, and is read again."""
    await store.converse("a")
    with recorded_statements(store.database) as statements:
        async with held(admin, A_WHOLE_TURN):
            waiting = asyncio.create_task(store.take())
            await until_waiting(admin)
            assert not waiting.done()
        lease, history = await waiting
    assert len(statements) == 2
    assert [names(said) for said in history.turns] == [["a"], ["one_in"]]
    assert history.version == lease.version == 2
    await store.turn("two", lease)
    assert await store.listed() == ["a", "one_in", "two_in", "two_out"]
    assert await store.said_before("two") == [["a"], ["one_in"], ["two_in", "two_out"]]


class Interrupted:
    """A database whose answers come late, or not at all, where `fails_at` or `hangs_at` is asked for."""

    def __init__(self, database: Database, *, fails_at: Any = None, hangs_at: Any = None) -> None:
        self._database = database
        self._fails_at = fails_at
        self._hangs_at = hangs_at
        self.has_hung = asyncio.Event()

    async def run(self, statement: Any, parameters: Any = None) -> Any:
        if statement is self._fails_at:
            raise errors.store_unavailable()
        rows = await self._database.run(statement, parameters)
        if statement is self._hangs_at:
            self.has_hung.set()
            await asyncio.sleep(60)
        return rows


async def test_a_lease_whose_history_cannot_be_read_is_given_back(store: Store, admin: Any) -> None:
    await store.converse("a")
    broken: Any = Interrupted(store.database, fails_at=sql.CONVERSATION_HISTORY)
    async with held(admin, A_WHOLE_TURN):
        waiting = asyncio.create_task(refusal(Leases(broken, 60).take(1, "conv")))
        await until_waiting(admin)
    status, _, _ = await waiting
    assert status == 503
    _, history = await store.take()
    assert [names(said) for said in history.turns] == [["a"], ["one_in"]]


async def test_a_lease_is_given_back_by_who_is_cancelled_before_knowing_of_it(store: Store) -> None:
    await store.converse("a")
    slow: Any = Interrupted(store.database, hangs_at=sql.LOCK)
    taking = asyncio.create_task(Leases(slow, 60).take(1, "conv"))
    await slow.has_hung.wait()
    assert locked(await refusal(store.take()))
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    await store.take()


async def test_a_turn_that_waited_for_an_edit_sees_it(store: Store, admin: Any) -> None:
    await store.converse("a", "b")
    async with unfinished(admin):
        removing = asyncio.create_task(store.conversations.remove_item(1, "conv", "a"))
        await until_waiting(admin)
        waiting = asyncio.create_task(store.take())
        await until_waiting(admin, 2)
    assert await removing is not None
    _, history = await waiting
    assert [names(said) for said in history.turns] == [["b"]]


async def test_a_turn_that_waited_for_a_lease_is_refused(store: Store, admin: Any) -> None:
    await store.converse("a")
    taken_elsewhere = "update conversations set locked_by = 'other', locked_until = now() + interval '1 minute'"
    async with held(admin, taken_elsewhere):
        waiting = asyncio.create_task(refusal(store.take()))
        await until_waiting(admin)
    assert locked(await waiting)


async def test_a_turn_that_waited_for_the_deletion_gets_nothing(store: Store, admin: Any) -> None:
    await store.converse("a")
    async with held(admin, "update conversations set deleted_at = now()"):
        waiting = asyncio.create_task(refusal(store.take()))
        await until_waiting(admin)
    assert locked(await waiting)
    assert await store.leases.take(1, "conv") is None


async def test_a_turn_that_waited_for_nothing_that_matters_reads_once(store: Store, admin: Any) -> None:
    await store.converse("a")
    with recorded_statements(store.database) as statements:
        async with held(admin):
            waiting = asyncio.create_task(store.take())
            await until_waiting(admin)
        await waiting
    assert len(statements) == 1


async def test_an_edit_that_waited_for_a_lease_is_refused(store: Store, admin: Any) -> None:
    await store.converse("a")
    taken_elsewhere = "update conversations set locked_by = 'other', locked_until = now() + interval '1 minute'"
    async with held(admin, taken_elsewhere):
        edits = [
            asyncio.create_task(refusal(edit))
            for edit in (
                store.add("x"),
                store.conversations.remove_item(1, "conv", "a"),
                store.conversations.delete(1, "conv"),
            )
        ]
        await until_waiting(admin, 3)
    assert all(locked(refused) for refused in await asyncio.gather(*edits))
    assert await store.listed() == ["a"]


async def test_an_edit_beside_a_turn_that_is_being_stored_is_refused(store: Store, admin: Any) -> None:
    await store.converse("a")
    lease, _ = await store.take()
    async with unfinished(admin):
        ending = asyncio.create_task(store.turn("one", lease))
        await until_waiting(admin)
        assert locked(await refusal(store.add("x")))
    await ending
    assert await store.add("x") is True
    assert await store.listed() == ["a", "one_in", "one_out", "x"]


async def test_of_two_edits_the_second_sees_the_first(store: Store, admin: Any) -> None:
    """Both began when the item was not listed, or was still; the one that waited is not to repeat what was done."""
    await store.converse("a")
    async with held(admin):
        adding = [asyncio.create_task(store.add("x")) for _ in range(2)]
        await until_waiting(admin, 2)
    results = await asyncio.gather(*adding, return_exceptions=True)
    assert sorted(map(str, map(type, results))) == ["<class 'bool'>", "<class 'server.errors.ApiError'>"]
    assert await store.listed() == ["a", "x"]
    async with held(admin):
        removing = [asyncio.create_task(store.conversations.remove_item(1, "conv", "a")) for _ in range(2)]
        await until_waiting(admin, 2)
    results = await asyncio.gather(*removing, return_exceptions=True)
    [refused] = [error for error in results if isinstance(error, errors.ApiError)]
    assert (refused.status, refused.message) == (404, "Item with id 'a' not found.")
    assert await store.listed() == ["x"]


async def test_a_hundred_edits_at_once_all_happen_once(store: Store, database_url: str) -> None:
    """By two pools, as of two servers, so that sixteen statements overtake each other all the time."""
    await store.converse(*(f"old_{number}" for number in range(20)))
    second = Database.open(database_url)
    stores = [store, Store(second)]
    added = [stores[number % 2].add(f"new_{number}_a", f"new_{number}_b") for number in range(80)]
    removed = [stores[number % 2].conversations.remove_item(1, "conv", f"old_{number}") for number in range(20)]
    try:
        await asyncio.gather(*added, *removed)
    finally:
        await second.close()
    listed = await store.listed()
    assert sorted(listed) == sorted(f"new_{number}_{side}" for number in range(80) for side in "ab")
    # What was added together stands together.
    assert all(first[:-1] == second[:-1] for first, second in zip(listed[::2], listed[1::2], strict=True))


async def test_a_deletion_and_an_edit_at_once_leave_nothing_half_done(store: Store, admin: Any) -> None:
    await store.converse("a")
    async with held(admin):
        deleting = asyncio.create_task(store.conversations.delete(1, "conv"))
        await until_waiting(admin)
        adding = asyncio.create_task(store.add("x"))
        await until_waiting(admin, 2)
    assert await deleting is True
    # Whether it came before or behind the deletion, it is told the truth.
    was_added = await adding
    assert await admin.fetchval("select count(*) from conversation_items") == (2 if was_added else 1)
    assert await store.conversations.get(1, "conv") is None


# --- all or nothing


async def test_a_turn_that_cannot_be_stored_appends_nothing_and_keeps_its_lease(store: Store, admin: Any) -> None:
    await store.converse("a")
    await admin.execute("alter table items add constraint items_type_check check (type <> 'forbidden')")
    lease, _ = await store.take()
    with pytest.raises(Exception, match="items_type_check"):
        await store.turn("half", lease, items=[item("fine"), item("bad", type="forbidden", is_output=True)])
    assert await store.listed() == ["a"]
    assert await store.responses.get(1, "resp_half") is None
    assert locked(await refusal(store.take()))
    await store.turn("whole", lease)
    assert await store.listed() == ["a", "whole_in", "whole_out"]


async def test_a_cancelled_write_is_whole_or_absent(store: Store, admin: Any) -> None:
    await store.converse()
    for number, delay_s in enumerate([0.0, 0.0005, 0.001, 0.002] * 5):
        lease, _ = await store.take()
        adding = asyncio.create_task(store.turn(str(number), lease))
        await asyncio.sleep(delay_s)
        adding.cancel()
        await asyncio.gather(adding, return_exceptions=True)
        await until_true(
            admin,
            "select not exists (select from pg_stat_activity where datname = current_database()"
            " and pid <> pg_backend_pid() and state = 'active' and backend_type = 'client backend')",
        )
        is_stored = await store.responses.get(1, f"resp_{number}") is not None
        assert (f"{number}_in" in await store.listed()) is is_stored
        assert (f"{number}_out" in await store.listed()) is is_stored
        await store.leases.release(lease)


# --- cost


async def test_each_method_is_one_statement(store: Store) -> None:
    await store.converse("a", "b", "c")
    lease, _ = await store.take()
    for call in (
        lambda: store.leases.renew(lease),
        lambda: store.leases.release(lease),
        lambda: store.conversations.get(1, "conv"),
        lambda: store.conversations.set_metadata(1, "conv", b"{}"),
        lambda: store.conversations.add_items(1, "conv", [item("d"), item("e")]),
        lambda: store.conversations.remove_item(1, "conv", "a"),
        lambda: store.conversations.item(1, "conv", "b"),
        lambda: store.conversations.items(1, "conv", limit=1, order="desc", after="c"),
        lambda: store.conversations.history(1, "conv"),
        lambda: store.responses.referenced(1, ["b", "c", "unknown"]),
        lambda: store.conversations.delete(1, "conv"),
        lambda: store.converse("a", name="another"),
    ):
        with recorded_statements(store.database) as statements:
            await call()
        assert len(statements) == 1
    with recorded_statements(store.database) as statements:
        lease, _ = await store.take("another")
        await store.turn("one", lease)
    assert len(statements) == 2


async def test_a_long_conversation_is_read_by_look_ups(store: Store) -> None:
    """On tables without statistics, as every young server has them, beside other rows that no plan may read."""
    await store.converse()
    for number in range(100):
        await store.turn(str(number))
        await store.converse(f"{number}_in", *(f"other_{number}_{one}" for one in range(5)), name=f"other_{number}")
    lease, _ = await store.take()
    await store.leases.release(lease)

    async def visited(statement: Any, **parameters: object) -> tuple[int, int]:
        rows = await rows_visited(store.database, statement, **{"public_id": "conv", **parameters})
        return rows["conversation_items"], rows.get("items", 0)

    assert await visited(sql.CONVERSATION_HISTORY) == (200, 200)
    assert await visited(sql.LOCK, lease_token="t", lease_s=1e-3) == (200, 200)
    # What response 99 saw, and its own two items.
    assert await visited(response_sql.HISTORY, public_id="resp_99", input_only=False, since=None) == (200, 200)
    for order in ("asc", "desc"):
        links, items = await visited(sql.LIST_ITEMS[order], after="50_in", limit=11)
        # The cursor's id is also another list's item.
        assert (links <= 13, items <= 13) == (True, True)
        links, items = await visited(sql.LIST_ITEMS[order], after=None, limit=11)
        assert (links, items) == (11, 11)
    assert max(await visited(sql.FIND_ITEM, item_id="50_in")) <= 2
    assert max(await visited(sql.REMOVE_ITEM, item_id="50_in")) <= 4
    assert max(await visited(response_sql.REFERENCED, public_ids=["50_in", "50_out"])) <= 2


async def test_an_id_that_every_conversation_has_is_looked_for_in_one(store: Store) -> None:
    """Clients count their items from zero in each of their conversations."""
    for number in range(100):
        await store.converse("msg_0", name=f"other_{number}")
    await store.converse("msg_0", "b")
    for statement, parameters in (
        (sql.FIND_ITEM, {"item_id": "msg_0"}),
        (sql.LIST_ITEMS["asc"], {"after": "msg_0", "limit": 2}),
        (sql.LIST_ITEMS["desc"], {"after": "msg_0", "limit": 2}),
        # A link is looked for, and updated.
        (sql.REMOVE_ITEM, {"item_id": "msg_0"}),
    ):
        rows = await rows_visited(store.database, statement, public_id="conv", **parameters)
        assert (rows["conversation_items"] <= 3, rows.get("items", 0) <= 1) == (True, True), rows
    again = item_columns([item("b"), item("msg_0")])
    rows = await rows_visited(store.database, sql.ADD_ITEMS, public_id="conv", **again)
    assert (rows["conversation_items"] <= 2, rows["items"]) == (True, 0), rows


async def test_a_reference_to_an_id_that_is_used_again_and_again_reads_one_item(store: Store) -> None:
    for number in range(200):
        await store.responses.add(turn(str(number), is_appended=False, items=[item("msg_0")]))
    rows = await rows_visited(store.database, response_sql.REFERENCED, public_ids=["msg_0"])
    assert rows["items"] == 1


@without_pgbouncer
async def test_a_reference_to_a_removed_item_reads_one_response_that_saw_it(store: Store) -> None:
    await store.converse("a", "unseen")
    await store.conversations.remove_item(1, "conv", "unseen")
    for number in range(100):
        await store.turn(str(number))
        await store.converse("a", name=f"other_{number}")
        await store.conversations.remove_item(1, f"other_{number}", "a")
    await store.conversations.remove_item(1, "conv", "a")
    for name, responses in (("unseen", 0), ("a", 1)):
        rows = await rows_visited(store.database, response_sql.REFERENCED, public_ids=[name])
        assert rows["responses"] == responses, rows


async def test_what_a_turn_stores_does_not_grow_with_its_conversation(store: Store, admin: Any) -> None:
    await store.converse()
    for number in range(30):
        await store.turn(f"{number:02}")
    counts = await admin.fetch("select count(*) from conversation_items group by added_version")
    assert {row["count"] for row in counts} == {2}
    assert await admin.fetchval("select count(*) from items") == 60
