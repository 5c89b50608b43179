"""From what a request names to what it builds on: a parent or a conversation, and the items that it refers to."""

from msgspec import Struct

from server import errors
from server.engine.claim import Claim
from server.engine.recent import Known, Reading, RecentHistories
from server.protocol.history import Past
from server.protocol.items import Input
from server.protocol.request import Request
from server.store.conversations import Conversations
from server.store.leases import Lease, Leases
from server.store.responses import History, Parent, Responses
from server.telemetry import Telemetry


class Origin(Struct, frozen=True):
    """What a turn goes on from and is stored behind: its parent, or the conversation that it claims, or nothing."""

    parent: Parent | None = None
    claim: Claim[Lease] | None = None

    @property
    def is_lost(self) -> bool:
        """Whether another turn may have the conversation by now, or whoever edits it."""
        return self.claim is not None and self.claim.is_lost

    @property
    def prefix_mark(self) -> bytes | None:
        """What the last turn up to here left of what it sent (`protocol.prefix`)."""
        if self.claim is not None:
            return self.claim.lease.prefix_mark
        return self.parent.prefix_mark if self.parent is not None else None

    async def free(self) -> None:
        """Give up the claim, if there is one; it may have been given up before."""
        if self.claim is not None:
            await self.claim.free()


class Histories:
    """Where histories come from: responses, conversations, and the leases on these; `recent` spares the reading."""

    def __init__(
        self,
        responses: Responses,
        conversations: Conversations,
        leases: Leases,
        recent: RecentHistories,
        telemetry: Telemetry,
    ) -> None:
        self._responses = responses
        self._conversations = conversations
        self._leases = leases
        self._recent = recent
        self._telemetry = telemetry

    async def of(self, tenant_id: int, request: Request, issuer: str) -> tuple[Origin, Past]:
        """What the request goes on from, as far as `issuer` has replayed it, and the turns behind that, oldest first.

        One statement at most, which claims a conversation with it; a second where another turn's end was waited for, or
        where it is to be found out how much of a chain is remembered.
        Whoever gets an origin must free it or use it up. Raises ApiError: 400 for an unknown previous response or a
        locked conversation, 404 for an unknown one.
        """
        if request.conversation_id is not None and request.store:
            return await self._claimed(tenant_id, request.conversation_id)
        if request.conversation_id is not None or request.previous_response_id is None:
            return Origin(), await self.read(tenant_id, request)
        reading = Reading(tenant_id, request.previous_response_id, issuer)
        past = self._recent.get(reading)
        if past is None:
            return await self._read_on(reading)
        parent = await self._responses.parent(tenant_id, request.previous_response_id)
        if parent is None:
            raise errors.previous_response_not_found(request.previous_response_id)
        return Origin(parent=parent), past

    def remember(self, reading: Reading, root_id: str, past: Past) -> None:
        """What a turn that continues this response goes on from, until it is forgotten."""
        self._recent.put(reading, root_id, past)

    async def read(self, tenant_id: int, request: Request) -> Past:
        """The turns up to there, for a turn that leaves nothing behind: nobody need wait for it. Raises like `of`."""
        if request.conversation_id is not None:
            history = await self._conversations.history(tenant_id, request.conversation_id)
            if history is None:
                raise errors.conversation_not_found(request.conversation_id)
            return Past(turns=history.turns)
        if request.previous_response_id is None:
            return Past()
        return Past(turns=(await self._history(tenant_id, request.previous_response_id)).turns)

    async def _read_on(self, reading: Reading) -> tuple[Origin, Past]:
        """A history from the store, but for what is remembered of it: who shares his chains with other processes knows
        the turns that he made himself, and reads those that they made since."""
        known = await self._known_of_chain(reading) if self._recent else None
        history = await self._history(reading.tenant_id, reading.response_id, known.response_id if known else None)
        past = known.past if known is not None and history.is_rest else Past()
        return Origin(parent=history.parent), Past(past.replayed, [*past.turns, *history.turns])

    async def _known_of_chain(self, reading: Reading) -> Known | None:
        parent = await self._responses.parent(reading.tenant_id, reading.response_id)
        if parent is None:
            raise errors.previous_response_not_found(reading.response_id)
        return self._recent.last_of_chain(reading._replace(response_id=parent.root_public_id))

    async def _history(self, tenant_id: int, response_id: str, since: str | None = None) -> History:
        history = await self._responses.history(tenant_id, response_id, since)
        if history is None:
            raise errors.previous_response_not_found(response_id)
        return history

    async def _claimed(self, tenant_id: int, conversation_id: str) -> tuple[Origin, Past]:
        taken = await self._leases.take(tenant_id, conversation_id)
        if taken is None:
            raise errors.conversation_not_found(conversation_id)
        lease, history = taken
        return Origin(claim=Claim(self._leases, lease, self._telemetry)), Past(turns=history.turns)

    async def resolved(self, tenant_id: int, parsed: Input, param: str = "input") -> Input:
        """The input with each reference replaced by the stored item that it means.

        Raises ApiError 404 that names `param`, the member of the request that holds the references.
        """
        references = parsed.references()
        if not references:
            return parsed
        found = await self._responses.referenced(tenant_id, references)
        for item_id in references:
            if item_id not in found:
                raise errors.item_not_found(item_id, param)
        return parsed.resolved(found)
