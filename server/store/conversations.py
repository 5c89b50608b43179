"""Conversations: lists of items, edited by their clients and gone on from by turns, one at a time.

Every method is one statement, repeated where another change came between, and followed by a look where the answer to a
write was lost. It raises `errors.store_unavailable` when the database cannot be asked. A conversation that is unknown,
deleted or another tenant's looks the same: None, or False to who asks whether there was one.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Literal

from asyncpg import Record
from msgspec import Struct

from server import errors
from server.protocol.items import Item
from server.store.database import Database
from server.store.rows import item_columns, items_of
from server.store.sql import conversations as sql
from server.store.statement import Statement

# Each try that fails means that somebody else's change was carried out; so many in a row, that the list is overrun.
_TRIES_MAX = 100


class Conversation(Struct, frozen=True, kw_only=True):
    """What a conversation is besides its items; `metadata` is the JSON object as it came."""

    public_id: str
    metadata: bytes
    created_at: datetime


class ConversationHistory(Struct, frozen=True):
    """A conversation's items at one version of its list, each turn's together, and those added by a client as one."""

    conversation_id: int
    version: int
    turns: list[list[Item]]
    prefix_mark: bytes | None


class ListedItems(Struct, frozen=True):
    items: list[Item]
    has_more: bool


class Conversations:
    """The conversations of all tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, tenant_id: int, conversation: Conversation, items: Sequence[Item]) -> None:
        """Store it with its first items. Where the answer to the write was lost, it is looked for."""
        named = {"tenant_id": tenant_id, "public_id": conversation.public_id}
        made = {"metadata": conversation.metadata.decode(), "created_at": conversation.created_at}
        try:
            await self._database.run(sql.ADD_CONVERSATION, named | made | item_columns(items))
        except errors.StoreUnavailable:
            if not await self._database.holds(sql.CONVERSATION, named):
                raise

    async def get(self, tenant_id: int, public_id: str) -> Conversation | None:
        rows = await self._database.run(sql.CONVERSATION, {"tenant_id": tenant_id, "public_id": public_id})
        return _conversation(rows[0]) if rows else None

    async def set_metadata(self, tenant_id: int, public_id: str, metadata: bytes) -> Conversation | None:
        parameters = {"tenant_id": tenant_id, "public_id": public_id, "metadata": metadata.decode()}
        rows = await self._database.run(sql.SET_METADATA, parameters)
        return _conversation(rows[0]) if rows else None

    async def delete(self, tenant_id: int, public_id: str) -> bool:
        """Whether there was one to delete. Raises `errors.conversation_locked`."""
        row = await self._change(sql.DELETE_CONVERSATION, {"tenant_id": tenant_id, "public_id": public_id})
        return row is not None

    async def add_items(self, tenant_id: int, public_id: str, items: Sequence[Item]) -> bool:
        """Whether there is such a conversation, with these items at its end.

        Where the answer to the write was lost, they are looked for: who tries again would add them once more, under
        other ids. Raises `errors.conversation_locked`, and `errors.repeated_item_id` for an id that it already lists.
        """
        named = {"tenant_id": tenant_id, "public_id": public_id}
        columns = item_columns(items)
        try:
            row = await self._change(sql.ADD_ITEMS, named | columns)
        except errors.StoreUnavailable:
            given = {name: columns[name] for name in ("public_ids", "bodies")}
            if not await self._database.holds(sql.ARE_LISTED, named | given):
                raise
            return True
        return row is not None

    async def remove_item(self, tenant_id: int, public_id: str, item_id: str) -> Conversation | None:
        """Take the item off the list; what responses saw of it stays.

        Raises `errors.conversation_locked`, and `errors.listed_item_not_found` where it is not on the list.
        """
        parameters = {"tenant_id": tenant_id, "public_id": public_id, "item_id": item_id}
        row = await self._change(sql.REMOVE_ITEM, parameters)
        return _conversation(row) if row is not None else None

    async def item(self, tenant_id: int, public_id: str, item_id: str) -> Item | None:
        """The listed item of this id; raises `errors.listed_item_not_found`."""
        parameters = {"tenant_id": tenant_id, "public_id": public_id, "item_id": item_id}
        rows = await self._database.run(sql.FIND_ITEM, parameters)
        items = items_of(rows)
        if rows and not items:
            raise errors.listed_item_not_found(item_id)
        return items[0] if items else None

    async def items(
        self, tenant_id: int, public_id: str, *, limit: int, order: Literal["asc", "desc"], after: str | None
    ) -> ListedItems | None:
        """At most `limit` items behind the one whose id is `after`, which may have been removed meanwhile.

        An id that came and went more than once has the first of its places in this order, so that no item is left out.
        Raises `errors.cursor_not_found` for one that was never there.
        """
        parameters = {"tenant_id": tenant_id, "public_id": public_id, "after": after, "limit": limit + 1}
        rows = await self._database.run(sql.LIST_ITEMS[order], parameters)
        if not rows:
            return None
        if after is not None and rows[0]["cursor_place"] is None:
            raise errors.cursor_not_found(after)
        items = items_of(rows)
        return ListedItems(items[:limit], has_more=len(items) > limit)

    async def history(self, tenant_id: int, public_id: str) -> ConversationHistory | None:
        """The conversation as it is now, without a claim on it."""
        rows = await self._database.run(sql.CONVERSATION_HISTORY, {"tenant_id": tenant_id, "public_id": public_id})
        return history_of(rows) if rows else None

    async def _change(self, statement: Statement, parameters: Mapping[str, object]) -> Record | None:
        for _ in range(_TRIES_MAX):
            rows = await self._database.run(statement, parameters)
            if not rows:
                return None
            row = rows[0]
            if row["is_changed"]:
                return row
            if row["is_locked"]:
                raise errors.conversation_locked()
            if row.get("repeated_id") is not None:
                raise errors.repeated_item_id(row["repeated_id"], "items")
            if not row.get("is_listed", True):
                raise errors.listed_item_not_found(str(parameters["item_id"]))
        raise errors.conversation_locked()


def history_of(rows: Sequence[Record]) -> ConversationHistory:
    """The history in the rows of a conversation and its items; a run of items without a response is one turn."""
    turns = [items_of(turn) for _, turn in groupby(rows, key=itemgetter(0))]
    return ConversationHistory(
        conversation_id=rows[0]["conversation_id"],
        version=rows[0]["version"],
        turns=[turn for turn in turns if turn],
        prefix_mark=rows[0]["prefix_mark"],
    )


def _conversation(row: Record) -> Conversation:
    return Conversation(public_id=row["public_id"], metadata=row["metadata"], created_at=row["created_at"])
