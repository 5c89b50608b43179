"""From a request's body to what would be sent upstream, for a turn that begins and for one that is only tried.

What lives here refuses all that can be refused before any network I/O: it reads, and calls nobody.
"""

from collections.abc import Sequence

from msgspec import Struct

from server import errors
from server.engine.aside import aside
from server.engine.history import Histories, Origin
from server.protocol import ids, raw
from server.protocol.budget import kept_within
from server.protocol.context import Context, whole
from server.protocol.items import Input, Item, parse_input
from server.protocol.prefix import Sent
from server.protocol.replay import Decision, replay
from server.protocol.request import Request, parse
from server.protocol.response import request_of
from server.store.responses import Responses
from server.upstream.choose import Upstream, Upstreams


class Prepared(Struct, frozen=True, kw_only=True):
    """What a request comes to: whom it goes to, what is decided of each item, and the body that says so."""

    request: Request
    response_id: str
    upstream: Upstream
    context: Context
    decisions: list[Decision]
    body: bytes

    @property
    def input_items(self) -> list[Item]:
        return self.context.turns[-1]

    def sent(self) -> Sent:
        copies = [decision.copy for decision in self.decisions if decision.copy is not None]
        return Sent(self.upstream.name, self.request, copies)

    def body_after(self, made: Sequence[Item]) -> bytes:
        """The request that goes on from what was made so far."""
        history = [*self.context.turns, list(made)]
        return _prepared(_Basis(self.request, self.response_id, self.upstream, history, Input([], set()))).body


class _Basis(Struct, frozen=True):
    """All that a request comes to is made from."""

    request: Request
    response_id: str
    upstream: Upstream
    history: list[list[Item]]
    given: Input


class Preparation:
    """Each method raises ApiError where a turn can't begin: 400, 404, or 503 without a database."""

    def __init__(self, responses: Responses, histories: Histories, upstreams: Upstreams, json_depth_max: int) -> None:
        self._responses = responses
        self._histories = histories
        self._upstreams = upstreams
        self._json_depth_max = json_depth_max

    async def begin(self, tenant_id: int, body: bytes, response_id: str) -> tuple[Prepared, Origin]:
        """For a turn that begins now, under this id. Whoever gets the origin must free it or use it up."""
        request, given = await aside(len(body), _parsed, body, self._json_depth_max)
        upstream = self._upstreams.of(request.model)
        given = await self._histories.resolved(tenant_id, given)
        origin, history = await self._histories.of(tenant_id, request)
        try:
            basis = _Basis(request, response_id, upstream, history, given)
            return await _prepared_aside(basis), origin
        except BaseException:
            await origin.free()
            raise

    async def rehearse(self, tenant_id: int, body: bytes) -> Prepared:
        """For a turn that is only tried: nothing is claimed. The body may name a response that was made, instead."""
        response_id = await aside(len(body), _named_response, body, self._json_depth_max)
        if response_id is not None:
            return await self._again(tenant_id, response_id)
        request, given = await aside(len(body), _parsed, body, self._json_depth_max)
        upstream = self._upstreams.of(request.model)
        given = await self._histories.resolved(tenant_id, given)
        history = await self._histories.read(tenant_id, request)
        return await _prepared_aside(_Basis(request, ids.new_response_id(), upstream, history, given))

    async def _again(self, tenant_id: int, response_id: str) -> Prepared:
        """The request that made a response, as it would be sent now."""
        stored = await self._responses.get(tenant_id, response_id)
        turns = await self._responses.made_from(tenant_id, response_id)
        if stored is None or turns is None:
            raise errors.response_not_found(response_id)
        request = parse(request_of(raw.Object(stored.body)), self._json_depth_max)
        upstream = self._upstreams.of(request.model)
        *history, own = turns
        return await _prepared_aside(_Basis(request, response_id, upstream, history, Input(own, set())))


async def _prepared_aside(basis: _Basis) -> Prepared:
    size = len(basis.request.input) + sum(len(item.body) for turn in basis.history for item in turn)
    return await aside(size, _prepared, basis)


def _prepared(basis: _Basis) -> Prepared:
    request, upstream = basis.request, basis.upstream
    history_param = "previous_response_id" if request.conversation_id is None else "conversation"
    context = whole(basis.history, basis.given, history_param)
    sent = kept_within(request, context, upstream.budget, history_param)
    decisions = replay(context, upstream.profile, history_param, upstream.issuer(request.model))
    if all(decision.copy is None for decision in decisions):
        raise errors.nothing_to_answer()
    return Prepared(
        request=request,
        response_id=basis.response_id,
        upstream=upstream,
        context=context,
        decisions=decisions,
        body=upstream.dialect.render(sent, basis.response_id, decisions, upstream.profile),
    )


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
