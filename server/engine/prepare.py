"""From a request's body to what would be sent upstream, for a turn that begins and for one that is only tried.

What lives here refuses all that can be refused before any network I/O: it reads, and calls nobody.
"""

from collections.abc import Sequence
from itertools import islice

import msgspec
from msgspec import Struct

from server import errors
from server.engine.aside import aside
from server.engine.askers import Asker
from server.engine.history import Histories, Origin
from server.engine.recent import Reading
from server.protocol import ids, raw
from server.protocol.budget import Budget, kept_within
from server.protocol.context import Context, whole
from server.protocol.history import Past, Replayed
from server.protocol.items import Input, Item, parse_input
from server.protocol.prefix import Sent
from server.protocol.replay import Decision, replay
from server.protocol.request import Request, parse
from server.protocol.response import request_of
from server.store.responses import Responses
from server.upstream.choose import Upstream, Upstreams


class Prepared(Struct, frozen=True, kw_only=True):
    """What a request comes to: whom it goes to, what is decided of each item, and the body that says so, in pieces.

    `history` is what was replayed up to the input; `past` is the same as far as no later turn can change it. `elements`
    are what is sent of both, with commas within.
    """

    request: Request
    response_id: str
    upstream: Upstream
    issuer: str
    context: Context
    history: Replayed
    past: Past
    decisions: list[Decision]
    elements: list[bytes]
    asker: Asker
    body: list[bytes]

    @property
    def budget(self) -> Budget:
        return self.upstream.budget.narrowed(self.asker.budget)

    @property
    def input_items(self) -> list[Item]:
        return self.context.input_items

    @property
    def left_out_count(self) -> int:
        """How many items, of history and input, are not sent."""
        of_input = self.decisions[len(self.decisions) - len(self.input_items) :]
        return self.history.left_out_count + sum(decision.copy is None for decision in of_input)

    def sent(self) -> Sent:
        return Sent(self.upstream.name, self.request, self.elements)

    def body_after(self, made: Sequence[Item]) -> list[bytes] | None:
        """The request that goes on from what was made so far; None where nothing of that can be sent."""
        past = Past(self.history, [self.input_items, list(made)])
        after = _prepared(_Basis(self.request, self.response_id, self.upstream, past, Input([], set()), self.asker))
        is_sent = any(decision.copy is not None for decision in after.decisions[len(self.input_items) :])
        return after.body if is_sent else None


class _Basis(Struct, frozen=True):
    """All that a request comes to is made from."""

    request: Request
    response_id: str
    upstream: Upstream
    past: Past
    given: Input
    asker: Asker


class Preparation:
    """Each method raises ApiError where a turn can't begin: 400, 404, or 503 without a database."""

    def __init__(self, responses: Responses, histories: Histories, upstreams: Upstreams, json_depth_max: int) -> None:
        self._responses = responses
        self._histories = histories
        self._upstreams = upstreams
        self._json_depth_max = json_depth_max

    async def begin(self, asker: Asker, body: bytes, response_id: str) -> tuple[Prepared, Origin]:
        """For a turn that begins now, under this id. Whoever gets the origin must free it or use it up."""
        tenant_id = asker.tenant_id
        request, given = await aside(len(body), _parsed, body, self._json_depth_max)
        upstream = self._upstreams.of(request.model).on_behalf_of(asker.authorization)
        given = await self._histories.resolved(tenant_id, given)
        issuer = upstream.issuer(request.model)
        origin, past = await self._histories.of(tenant_id, request, issuer)
        try:
            prepared = await _prepared_aside(_Basis(request, response_id, upstream, past, given, asker))
            if past.turns and origin.parent is not None and request.previous_response_id is not None:
                reading = Reading(tenant_id, request.previous_response_id, issuer)
                self.remember(reading, origin.parent.root_public_id, prepared.past)
            return prepared, origin
        except BaseException:
            await origin.free()
            raise

    def remember(self, reading: Reading, root_id: str, past: Past) -> None:
        """What a turn that continues this response goes on from, so that it need not be read and replayed again."""
        self._histories.remember(reading, root_id, past)

    async def rehearse(self, asker: Asker, body: bytes) -> Prepared:
        """For a turn that is only tried: nothing is claimed. The body may name a response that was made, instead.

        What is shown of it has no secret in it: it is without the tenant's cache salt.
        """
        asker = msgspec.structs.replace(asker, cache_salt=None)
        response_id = await aside(len(body), _named_response, body, self._json_depth_max)
        if response_id is not None:
            return await self._again(asker, response_id)
        request, given = await aside(len(body), _parsed, body, self._json_depth_max)
        upstream = self._upstreams.of(request.model)
        given = await self._histories.resolved(asker.tenant_id, given)
        past = await self._histories.read(asker.tenant_id, request)
        return await _prepared_aside(_Basis(request, ids.new_response_id(), upstream, past, given, asker))

    async def _again(self, asker: Asker, response_id: str) -> Prepared:
        """The request that made a response, as it would be sent now."""
        stored = await self._responses.get(asker.tenant_id, response_id)
        turns = await self._responses.made_from(asker.tenant_id, response_id)
        if stored is None or turns is None:
            raise errors.response_not_found(response_id)
        request = parse(request_of(raw.Object(stored.body)), self._json_depth_max)
        upstream = self._upstreams.of(request.model)
        *history, own = turns
        return await _prepared_aside(
            _Basis(request, response_id, upstream, Past(turns=history), Input(own, set()), asker)
        )


async def _prepared_aside(basis: _Basis) -> Prepared:
    size = len(basis.request.input) + sum(len(item.body) for turn in basis.past.turns for item in turn)
    return await aside(size, _prepared, basis)


def _prepared(basis: _Basis) -> Prepared:
    request, upstream, profile = basis.request, basis.upstream, basis.upstream.profile
    history_param = "previous_response_id" if request.conversation_id is None else "conversation"
    context = whole(basis.past, basis.given, history_param)
    sent = kept_within(request, context, upstream.budget.narrowed(basis.asker.budget), history_param)
    issuer = upstream.issuer(request.model)
    decisions = replay(context, profile, history_param, issuer)
    history = _replayed(context, decisions[: len(decisions) - len(context.input_items)], upstream)
    of_input = decisions[len(decisions) - len(context.input_items) :]
    elements = [*history.texts(), *upstream.dialect.elements(of_input, profile)]
    if not elements:
        raise errors.nothing_to_answer()
    before, behind = upstream.dialect.around(sent, basis.response_id, profile, basis.asker.cache_salt)
    return Prepared(
        request=request,
        response_id=basis.response_id,
        upstream=upstream,
        issuer=issuer,
        context=context,
        history=history,
        past=Past(history) if context.is_settled else basis.past,
        decisions=decisions,
        elements=elements,
        asker=basis.asker,
        body=[before, *_between_commas(elements), behind],
    )


def _replayed(context: Context, decisions: Sequence[Decision], upstream: Upstream) -> Replayed:
    elements: list[bytes] = []
    of_turns = iter(decisions)
    for turn in context.turns[:-1]:
        elements += upstream.dialect.elements(list(islice(of_turns, len(turn))), upstream.profile)
    return context.replayed.followed_by(
        [decision.item for decision in decisions],
        elements,
        sum(decision.copy is None for decision in decisions),
        context.open_calls,
    )


def _between_commas(elements: Sequence[bytes]) -> list[bytes]:
    """The elements of an array, with what stands between them. A history is not copied for it."""
    return [piece for element in elements for piece in (b",", element)][1:]


def _parsed(body: bytes, depth_max: int) -> tuple[Request, Input]:
    request = parse(body, depth_max)
    return request, parse_input(request.input)


def _named_response(body: bytes, depth_max: int) -> str | None:
    """The response that a body names in place of asking for one; raises ApiError 400."""
    try:
        raw.check(body, depth_max)
        cut = raw.Object(body)
    except raw.Malformed:
        # It is judged as a create request.
        return None
    value = cut.get("response_id")
    if value is None or "model" in cut or "input" in cut:
        return None
    name = cut.string("response_id")
    if name is None:
        raise errors.invalid_type("response_id", "a string", raw.kind(value))
    if not ids.is_usable(name):
        raise errors.unusable_text("response_id", ids.KEY_LENGTH_MAX)
    return name
