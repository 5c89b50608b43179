"""Responses and their items: stored whole at a turn's end, read again as history, as a response, or as its input.

Bodies are bytes outside and text inside; the border is here. Nothing is ever read into them. Every method is one
statement, but for a second that names what is lost of a history, and for looks where the answer to a write was lost. It
raises `errors.store_unavailable` when the database cannot be asked.
"""

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter

from asyncpg import Record
from msgspec import Struct

from server import errors
from server.protocol.items import Item
from server.protocol.usage import Usage
from server.store.database import ConstraintViolated, Database
from server.store.leases import Lease
from server.store.rows import item_columns, items_of
from server.store.sql import responses as sql


class Parent(Struct, frozen=True):
    """The response that a turn continues: its key, the root of its tree, and how many responses are before it.

    `root_public_id` is the same text for all turns of a chain: what goes by it stays together. `prefix_mark` is that of
    the last turn up to here which counts.
    """

    id: int
    root_id: int
    depth: int
    root_public_id: str
    prefix_mark: bytes | None = None


class History(Struct, frozen=True):
    """What was said up to and with `parent`, oldest turn first, a turn being its input items and then its output.

    A turn that failed or was cancelled adds nothing, so it is not in `turns`. With `is_rest` they begin behind the
    response since which the history was asked for, else at the very beginning.
    """

    parent: Parent
    turns: list[list[Item]]
    is_rest: bool


class NewResponse(Struct, frozen=True, kw_only=True):
    """A finished turn. `body` is the response object without its output; `items` are its input, then its output.

    `usage` is what it cost, where that was told. `lease` is the one on the conversation that the turn was made in; with
    `is_appended` its items go to the end of it.
    """

    tenant_id: int
    public_id: str
    parent: Parent | None
    status: str
    model: str
    upstream: str
    created_at: datetime
    completed_at: datetime | None
    body: bytes
    items: Sequence[Item]
    ended_at: datetime
    usage: Usage | None = None
    prefix_mark: bytes | None = None
    lease: Lease | None = None
    is_appended: bool = False


class StoredResponse(Struct, frozen=True):
    """A response as it was stored: the response object without its output, and the output."""

    body: bytes
    output: list[Item]


class Responses:
    """The responses of all tenants. What is unknown, deleted or another tenant's looks the same: None."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def history(self, tenant_id: int, public_id: str, since: str | None = None) -> History | None:
        """What a turn that continues `public_id` builds on, in one round trip at any depth.

        Where the response `since` is one of its ancestors, what was said up to it is not read. A deleted ancestor still
        counts, only the named response must not be deleted. Raises `errors.lost_ancestor` rather than shorten a history
        that has no beginning.
        """
        rows = await self._walk(tenant_id, public_id, since=since)
        if rows is None:
            return None
        named = rows[-1]
        turns = [items_of(turn) for _, turn in groupby(rows, key=itemgetter(0))]
        parent = Parent(
            named["turn_id"], named["root_id"], named["depth"], named["root_public_id"], named["prefix_mark"]
        )
        return History(parent, [turn for turn in turns if turn], is_rest=rows[0]["is_behind_known"])

    async def parent(self, tenant_id: int, public_id: str) -> Parent | None:
        """The same without what was said, for who knows that already."""
        rows = await self._database.run(sql.PARENT, {"tenant_id": tenant_id, "public_id": public_id})
        return Parent(*rows[0]) if rows else None

    async def input_items(self, tenant_id: int, public_id: str) -> list[Item] | None:
        """All that `public_id` was made from, oldest first: its parent's history and its own input.

        A failed response has its input too. Raises `errors.lost_ancestor`.
        """
        rows = await self._walk(tenant_id, public_id, input_only=True)
        return None if rows is None else items_of(rows)

    async def made_from(self, tenant_id: int, public_id: str) -> list[list[Item]] | None:
        """The same by turns, the last being its own input, which may be empty. Raises `errors.lost_ancestor`."""
        rows = await self._walk(tenant_id, public_id, input_only=True)
        if rows is None:
            return None
        own = rows[-1]["turn_id"]
        earlier = [items_of(turn) for _, turn in groupby((row for row in rows if row[0] != own), key=itemgetter(0))]
        return [*(turn for turn in earlier if turn), items_of(row for row in rows if row[0] == own)]

    async def get(self, tenant_id: int, public_id: str) -> StoredResponse | None:
        """The response, whatever its status."""
        rows = await self._database.run(sql.GET, {"tenant_id": tenant_id, "public_id": public_id})
        if not rows:
            return None
        return StoredResponse(body=rows[0]["body"], output=items_of(rows))

    async def add(self, response: NewResponse) -> None:
        """Store a turn, whole or not at all; it is committed when this returns.

        Where the answer to the write was lost, it is found out whether the turn was stored. What is appended to a
        conversation frees it in the same statement. A parent that was deleted meanwhile is still a parent. Raises
        `errors.lost_ancestor` if its row is gone, `errors.lease_lost` if the lease holds no longer.
        """
        statement = sql.ADD_IN_CONVERSATION if response.is_appended else sql.ADD
        try:
            rows = await self._database.run(statement, _columns(response))
        except ConstraintViolated as violation:
            if violation.name == "responses_parent_id_fkey":
                raise errors.lost_ancestor(response.public_id) from violation
            raise
        except errors.StoreUnavailable:
            named = {"tenant_id": response.tenant_id, "public_id": response.public_id}
            if await self._database.holds(sql.IS_STORED, named):
                return
            raise
        if not rows:
            raise errors.lease_lost()

    async def referenced(self, tenant_id: int, item_ids: Sequence[str]) -> dict[str, Item]:
        """The items that these ids mean, by id: of several the newest that a client can still reach."""
        rows = await self._database.run(sql.REFERENCED, {"tenant_id": tenant_id, "public_ids": list(item_ids)})
        return {item.public_id: item for item in items_of(rows)}

    async def delete(self, tenant_id: int, public_id: str) -> bool:
        """Make a response unreachable, and say whether there was one. Its descendants keep their history."""
        return bool(await self._database.run(sql.DELETE, {"tenant_id": tenant_id, "public_id": public_id}))

    async def _walk(
        self, tenant_id: int, public_id: str, *, input_only: bool = False, since: str | None = None
    ) -> Sequence[Record] | None:
        parameters = {"tenant_id": tenant_id, "public_id": public_id, "input_only": input_only, "since": since}
        rows = await self._database.run(sql.HISTORY, parameters)
        if not rows:
            return None
        oldest = rows[0]
        is_first = oldest["depth"] == 0 and oldest["parent_id"] is None
        if not is_first and not oldest["is_behind_known"]:
            [reached] = await self._database.run(sql.PUBLIC_ID, {"tenant_id": tenant_id, "id": oldest["turn_id"]})
            raise errors.lost_ancestor(reached["public_id"])
        return rows


def _columns(response: NewResponse) -> dict[str, object]:
    parent, usage = response.parent, response.usage
    return {
        "tenant_id": response.tenant_id,
        "public_id": response.public_id,
        "parent_id": parent.id if parent else None,
        "root_id": parent.root_id if parent else None,
        "depth": parent.depth + 1 if parent else 0,
        "status": response.status,
        "model": response.model,
        "upstream": response.upstream,
        "created_at": response.created_at,
        "completed_at": response.completed_at,
        "body": response.body.decode(),
        "ended_at": response.ended_at,
        "input_tokens": usage.input_tokens if usage else None,
        "cached_tokens": usage.cached_tokens if usage else None,
        "output_tokens": usage.output_tokens if usage else None,
        "reasoning_tokens": usage.reasoning_tokens if usage else None,
        "prefix_mark": response.prefix_mark,
        "conversation_id": response.lease.conversation_id if response.lease else None,
        "conversation_version": response.lease.version if response.lease else None,
        **({"lease_token": response.lease.token} if response.lease and response.is_appended else {}),
        **item_columns(response.items),
    }
