"""A sweep: what has expired becomes unreachable, and of what can't be reached goes all that nobody needs.

What lives here is the order of it, and what needs what. Everything else is a bounded batch of the store's, behind each
of which others may have their turn: what is half done at any moment is right, and the next sweep goes on.
"""

import asyncio
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict

from server.errors import ApiError
from server.store.database import Database
from server.store.retention import LOCK, Deleted, Link, Retention
from server.telemetry import Telemetry

FIRST_SWEEP_S: Final = 60
"""How long after its start a server sweeps for the first time, unless it does so more often."""


class Swept(Struct):
    """How many rows a sweep marked as expired, and removed."""

    expired: int = 0
    responses: int = 0
    bodies: int = 0
    items: int = 0
    links: int = 0
    conversations: int = 0
    keys: int = 0

    @property
    def counts(self) -> dict[str, int]:
        return asdict(self)

    @property
    def _removed(self) -> int:
        return self.responses + self.links + self.conversations


class Sweep:
    """One sweep over all tenants. With `is_gentle` it rests after each batch for as long as that took."""

    def __init__(self, retention: Retention, *, is_gentle: bool = False) -> None:
        self._retention = retention
        self._is_gentle = is_gentle
        self.swept = Swept()

    async def run(self) -> Swept:
        """Sweep until nothing is left that may go. Raises `errors.store_unavailable`."""
        for tenant_id in await self._retention.tenants():
            await self._expire(tenant_id)
            await self._forget_keys(tenant_id)
            before = -1
            # What a response needed may be free when that has gone, and the other way round.
            while before != self.swept._removed:
                before = self.swept._removed
                await self._remove_responses(tenant_id)
                await self._remove_conversations(tenant_id)
        return self.swept

    async def rehearse(self) -> Swept:
        """What `run` would do, at the least: what becomes free only by what goes before it is not counted."""
        for tenant_id in await self._retention.tenants():
            self.swept.expired += await self._retention.expired_count(tenant_id)
            self.swept.keys += await self._retention.old_key_count(tenant_id)
            async for removable, _ in self._judged(tenant_id, with_expired=True):
                self.swept.responses += len(removable)
            async for _, free in self._free_links(tenant_id):
                self.swept.links += len(free)
        return self.swept

    async def _expire(self, tenant_id: int) -> None:
        began = time.monotonic()
        while marked := await self._retention.expire(tenant_id):
            self.swept.expired += marked
            began = await self._rest(began)

    async def _forget_keys(self, tenant_id: int) -> None:
        began = time.monotonic()
        while forgotten := await self._retention.remove_keys(tenant_id):
            self.swept.keys += forgotten
            began = await self._rest(began)

    async def _remove_responses(self, tenant_id: int) -> None:
        began = time.monotonic()
        async for removable, kept in self._judged(tenant_id, with_expired=False):
            if kept:
                self.swept.bodies += await self._retention.remove_bodies(tenant_id, kept)
            if removable:
                responses, items = await self._retention.remove_responses(tenant_id, removable)
                self.swept.responses += responses
                self.swept.items += items
            began = await self._rest(began)

    async def _judged(self, tenant_id: int, *, with_expired: bool) -> AsyncIterator[tuple[list[int], list[int]]]:
        """Deleted responses by batches: those that nothing needs, and those that must stay."""
        needed: set[int] = set()
        before: int | None = None
        while batch := await self._retention.deleted(tenant_id, before, with_expired=with_expired):
            yield judged(batch, needed)
            before = batch[-1].id

    async def _remove_conversations(self, tenant_id: int) -> None:
        began = time.monotonic()
        async for conversation_id, free in self._free_links(tenant_id):
            if free:
                links, items = await self._retention.remove_links(tenant_id, conversation_id, free)
                self.swept.links += links
                self.swept.items += items
            else:
                self.swept.conversations += await self._retention.remove_conversation(tenant_id, conversation_id)
            began = await self._rest(began)

    async def _free_links(self, tenant_id: int) -> AsyncIterator[tuple[int, list[int]]]:
        """The deleted conversations, each with places that no history has; none when all of them were told."""
        last = 0
        while conversations := await self._retention.deleted_conversations(tenant_id, last):
            for conversation_id in conversations:
                versions = await self._retention.needed_versions(tenant_id, conversation_id)
                after = -1
                while links := await self._retention.links(tenant_id, conversation_id, after):
                    if free := [link.position for link in links if not is_seen(link, versions)]:
                        yield conversation_id, free
                    after = links[-1].position
                yield conversation_id, []
            last = conversations[-1]

    async def _rest(self, began: float) -> float:
        if self._is_gentle:
            await asyncio.sleep(time.monotonic() - began)
        return time.monotonic()


def judged(batch: Sequence[Deleted], needed: set[int]) -> tuple[list[int], list[int]]:
    """Which of these can go, and which must stay; a batch is newest first, and so are the batches.

    `needed` carries the parents of those that must stay from one batch to the next: a parent is older than what
    continues it.
    """
    removable: list[int] = []
    kept: list[int] = []
    for response in batch:
        if response.is_needed or response.id in needed:
            kept.append(response.id)
            if response.parent_id is not None:
                needed.add(response.parent_id)
        else:
            removable.append(response.id)
        needed.discard(response.id)
    return removable, kept


def is_seen(link: Link, versions: Sequence[int]) -> bool:
    """Whether the link is valid at one of these versions, which ascend."""
    first = bisect_left(versions, link.added_version)
    return first < len(versions) and (link.removed_version is None or versions[first] < link.removed_version)


class Sweeper:
    """Sweeps every `interval_s` while the server runs, unless another process is at it."""

    def __init__(self, database: Database, retention: Retention, telemetry: Telemetry, interval_s: float) -> None:
        self._database = database
        self._retention = retention
        self._telemetry = telemetry
        self._interval_s = interval_s

    async def run(self) -> None:
        """Goes on until it is cancelled. A sweep that fails is told in the log, and the next one is tried."""
        await asyncio.sleep(min(self._interval_s, FIRST_SWEEP_S))
        while True:
            sweep = Sweep(self._retention, is_gentle=True)
            try:
                await self._sweep(sweep)
            except ApiError as error:
                cause = type(error.__cause__).__name__ if error.__cause__ else None
                self._telemetry.warning("sweep_failed", cause=cause, **sweep.swept.counts)
            except Exception as error:
                self._telemetry.crash("sweep_crashed", error, **sweep.swept.counts)
            await asyncio.sleep(self._interval_s)

    async def _sweep(self, sweep: Sweep) -> None:
        async with self._database.alone(LOCK) as is_alone:
            if is_alone:
                began = time.monotonic()
                await sweep.run()
                duration_ms = round((time.monotonic() - began) * 1000)
                self._telemetry.info("swept", **sweep.swept.counts, duration_ms=duration_ms)
