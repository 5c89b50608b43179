"""One turn from top to bottom (DESIGN 3): request, history, replay, upstream, store, client. Both modes.

What lives here is the order of things. All that can be refused is refused before the upstream is called; no database
connection is held while the upstream works; the turn is committed before its body or terminal event leaves.
"""

import asyncio
from collections.abc import Callable, Container
from datetime import UTC, datetime
from typing import Literal

import msgspec

from server import errors
from server.engine.account import Account
from server.engine.askers import Asker
from server.engine.history import Origin
from server.engine.prefixes import Prefixes
from server.engine.prepare import Preparation
from server.engine.quotas import OpenTurns
from server.engine.recent import Reading
from server.engine.rounds import Rounds
from server.engine.run import Heartbeat, Run
from server.errors import ApiError
from server.protocol import raw, sse, usage
from server.protocol.assemble import Assembler, Outcome, assemble_body
from server.protocol.dialect import Reader
from server.protocol.history import KnownIds, Past
from server.protocol.items import Item, accepted_by
from server.protocol.request import Request
from server.protocol.response import ResponseObject
from server.store.responses import NewResponse, Responses
from server.telemetry import Telemetry
from server.upstream.choose import Upstream


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of turns: bytes, seconds, and how many may be open; 0 of them is any number."""

    open_turns_max: int
    event_bytes_max: int
    stream_bytes_max: int
    first_event_wait_s: float
    keep_alive_interval_s: float
    detached_run_max_s: float
    turn_max_s: float


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that may begin: nothing in it can be refused any more but by the upstream."""

    tenant_id: int
    response_id: str
    request: Request
    upstream: Upstream
    issuer: str
    origin: Origin
    past: Past
    input_items: list[Item]
    taken_ids: Container[str]
    response: ResponseObject
    upstream_body: list[bytes]
    rounds: Rounds
    prefix_mark: bytes
    began_at: datetime

    @property
    def chain(self) -> str:
        """What the turns of a chain have in common, and those of a conversation."""
        parent = self.origin.parent
        return self.request.conversation_id or (parent.root_public_id if parent else self.response_id)


class Turns:
    """All turns of this process."""

    def __init__(
        self,
        responses: Responses,
        preparation: Preparation,
        telemetry: Telemetry,
        *,
        limits: Limits,
        on_disconnect: Literal["finish", "cancel"],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._responses = responses
        self._preparation = preparation
        self._telemetry = telemetry
        self._account = Account(telemetry)
        self._limits = limits
        self._on_disconnect = on_disconnect
        self._now = now
        self._runs: dict[asyncio.Task[None], Run] = {}
        self.open_turns = OpenTurns(limits.open_turns_max)
        self.prefixes = Prefixes()
        self._is_stopping = False

    async def begin(self, asker: Asker, body: bytes, response_id: str) -> Run:
        """Start the turn that a body asks for, under this id; raises ApiError where it can't be."""
        asked_at_s = asyncio.get_running_loop().time()
        try:
            with self.open_turns.one_more(asker):
                turn = await self._prepare(asker, body, response_id)
        except ApiError as error:
            self._account.not_begun(error)
            raise
        run = Run(
            is_stream=turn.request.stream,
            on_leave=lambda run: self._client_left(turn, run),
            stream_bytes_max=self._limits.stream_bytes_max,
            asked_at_s=asked_at_s,
        )
        if turn.origin.claim is not None:
            turn.origin.claim.on_lost = run.cancel
        run.limit(self._limits.turn_max_s)
        task = run.start(self._carry_out(turn, run))
        self._runs[task] = run
        task.add_done_callback(self._runs.pop)
        task.add_done_callback(lambda _: self.open_turns.give_back(asker))
        return run

    async def close(self) -> None:
        """End the turns in flight as failed, and wait until that is stored; no other can begin."""
        self._is_stopping = True
        for run in self._runs.values():
            run.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)

    async def ended(self) -> None:
        """Wait until no turn is in flight, also none that goes on without its client."""
        while self._runs:
            await asyncio.wait(self._runs)

    async def _prepare(self, asker: Asker, body: bytes, response_id: str) -> Turn:
        prepared, origin = await self._preparation.begin(asker, body, response_id)
        if self._is_stopping:
            await origin.free()
            raise errors.stopping()
        sent = prepared.sent()
        has_history = prepared.history.item_count > 0
        self._account.began(prepared, self.prefixes.judge(sent, origin.prefix_mark, has_history=has_history))
        request = prepared.request
        return Turn(
            tenant_id=asker.tenant_id,
            response_id=prepared.response_id,
            request=request,
            upstream=prepared.upstream,
            issuer=prepared.issuer,
            origin=origin,
            past=prepared.past,
            input_items=prepared.input_items,
            taken_ids=KnownIds(prepared.history, prepared.input_items),
            response=ResponseObject(request, prepared.response_id, self._clock, prepared.upstream.fit_to_tell),
            upstream_body=prepared.body,
            rounds=Rounds(prepared.upstream, prepared.budget.total_tokens_max, prepared.body_after),
            prefix_mark=sent.mark(),
            began_at=self._now(),
        )

    def _clock(self) -> int:
        return int(self._now().timestamp())

    def _client_left(self, turn: Turn, run: Run) -> None:
        may_finish = turn.request.store and turn.request.conversation_id is None
        if may_finish and self._on_disconnect == "finish":
            run.cancel_after(self._limits.detached_run_max_s)
        else:
            run.cancel()

    async def _carry_out(self, turn: Turn, run: Run) -> None:
        try:
            outcome = await (self._stream(turn, run) if turn.request.stream else self._answer(turn, run))
        except Exception as error:
            refused = self._told(error, turn)
            self._account.refused(turn.response_id, turn.upstream.name, run, refused)
            # There is nothing left to cancel, and who frees the conversation must not be interrupted.
            run.close()
            await turn.origin.free()
            run.end(refused)
        else:
            self._account.ended(turn.response_id, turn.upstream.name, run, outcome)
            run.end()

    async def _answer(self, turn: Turn, run: Run) -> Outcome:
        made: Outcome | None = None
        failure: ApiError | None = None
        try:
            made = await self._answered(turn, turn.upstream_body, None)
            while body := turn.rounds.next_body(made):
                made = await self._answered(turn, body, made)
            if (reason := turn.rounds.reason_to_fail(made)) is not None:
                failure = errors.no_output(reason)
        except asyncio.CancelledError:
            if (failure := self._reason_to_fail(turn, run)) is None:
                body_so_far = turn.response.ended(made.body if made else None, "cancelled", None)
                made = Outcome(status="cancelled", body=body_so_far, items=made.items if made else [])
        except Exception as error:
            failure = self._told(error, turn)
        run.close()
        if failure is not None:
            await self._keep_failed(turn, made, failure)
            raise failure
        assert made is not None
        await self._store(turn, made)
        run.send(made.shown())
        return made

    async def _keep_failed(self, turn: Turn, made: Outcome | None, failure: ApiError) -> None:
        """Store what was made before a turn failed that is not streamed: it was paid for. Of nothing is no row."""
        if made is None:
            return
        told = {"code": failure.code or "server_error", "message": failure.message}
        failed = turn.response.ended(made.body, "failed", told)
        await self._store(turn, Outcome(status="failed", body=failed, items=made.items))
        failure.is_stored = True
        self._account.cost(turn.upstream.name, made)

    async def _answered(self, turn: Turn, body: list[bytes], earlier: Outcome | None) -> Outcome:
        """One round of a turn that is not streamed, with what came before it."""
        with self._telemetry.spans.of("upstream", upstream=turn.upstream.name, response_id=turn.response_id):
            reply = await turn.upstream.create(body, turn.request.model, turn.chain)
        return assemble_body(
            reply,
            turn.response,
            taken_ids=turn.taken_ids,
            issuer=turn.issuer,
            reader=self._reader(turn),
            earlier=earlier,
        )

    async def _stream(self, turn: Turn, run: Run) -> Outcome:
        assembler = Assembler(
            turn.response,
            taken_ids=turn.taken_ids,
            issuer=turn.issuer,
            event_bytes_max=self._limits.event_bytes_max,
            reader=self._reader(turn),
        )
        try:
            await self._read(turn, run, assembler, turn.upstream_body)
            while body := turn.rounds.next_body(assembler.outcome):
                assembler.go_on(self._reader(turn))
                await self._read(turn, run, assembler, body)
        except asyncio.CancelledError:
            if failure := self._reason_to_fail(turn, run):
                if not run.has_begun:
                    raise failure from None
                assembler.end(failure.message, failure.code)
            assembler.cancel()
        except Exception as error:
            failure = self._told(error, turn)
            if not run.has_begun:
                # What caused it is told in the log, by its type.
                raise failure from failure.__cause__
            self._account.broken("stream_broken", turn.response_id, failure)
            assembler.end(failure.message, failure.code)
        run.close()
        if assembler.outcome is not None and (reason := turn.rounds.reason_to_fail(assembler.outcome)) is not None:
            assembler.withdraw(reason)
        await self._store_streamed(turn, assembler)
        run.send(assembler.closing())
        assert assembler.outcome is not None
        return assembler.outcome

    async def _read(self, turn: Turn, run: Run, assembler: Assembler, body: list[bytes]) -> None:
        """Hand on the upstream's stream until the turn has ended, or the stream has."""
        with self._telemetry.spans.of("upstream", upstream=turn.upstream.name, response_id=turn.response_id):
            await self._hand_on(turn, run, assembler, body)

    async def _hand_on(self, turn: Turn, run: Run, assembler: Assembler, body: list[bytes]) -> None:
        heartbeat = Heartbeat(
            run,
            lambda: run.send(sse.COMMENT if run.has_begun else assembler.open()),
            first_wait_s=self._limits.first_event_wait_s,
            interval_s=self._limits.keep_alive_interval_s,
        )

        def hand_on(chunk: bytes) -> bool:
            run.send(assembler.feed(chunk))
            return assembler.outcome is not None

        async with turn.upstream.stream(body, turn.request.model, turn.chain) as reply:
            with heartbeat:
                if reply.is_json:
                    run.send(assembler.take_body(await reply.whole()))
                else:
                    await reply.pour(hand_on)
        if not run.has_begun and assembler.outcome is None:
            raise errors.upstream_broken("its stream ended before it began.")
        assembler.end()

    def _reason_to_fail(self, turn: Turn, run: Run) -> ApiError | None:
        """Why a turn was cancelled, if it was not its client who left."""
        if run.is_out_of_time:
            return errors.turn_too_slow(self._limits.turn_max_s)
        if self._is_stopping:
            return errors.stopping()
        if run.reason_to_fail is not None:
            return run.reason_to_fail
        return errors.lease_lost() if turn.origin.is_lost else None

    def _reader(self, turn: Turn) -> Reader:
        return turn.upstream.read(turn.request, self._limits.event_bytes_max)

    async def _store_streamed(self, turn: Turn, assembler: Assembler) -> None:
        """Store what was assembled; a turn that can't be stored is told to the client as failed, not as what it was."""
        assert assembler.outcome is not None
        try:
            await self._store(turn, assembler.outcome)
        except Exception as error:
            failure = self._told(error, turn)
            self._account.broken("turn_not_stored", turn.response_id, failure)
            assembler.withdraw(failure.message)
            await turn.origin.free()
            if isinstance(error, errors.LeaseLost):
                # Its id was told; what it was can be kept, only not where it was asked for.
                await self._store_streamed(turn, assembler)

    async def _store(self, turn: Turn, outcome: Outcome) -> None:
        """Commit the turn, and free its conversation with it or right after it."""
        ended_at = self._now()
        if turn.request.store:
            claim = turn.origin.claim
            is_accepted = outcome.status in ("completed", "incomplete")
            is_appended = claim is not None and is_accepted
            items = [*turn.input_items, *outcome.items]
            if is_accepted and turn.upstream.profile.reasoning == "opaque":
                items = accepted_by(items, turn.issuer)
            with self._telemetry.spans.of("store", response_id=turn.response_id):
                await self._responses.add(
                    NewResponse(
                        tenant_id=turn.tenant_id,
                        public_id=turn.response_id,
                        parent=turn.origin.parent,
                        lease=claim.lease if claim else None,
                        is_appended=is_appended,
                        status=outcome.status,
                        model=turn.request.model,
                        upstream=turn.upstream.name,
                        created_at=turn.began_at,
                        completed_at=ended_at if outcome.status == "completed" else None,
                        body=outcome.body.text,
                        items=items,
                        ended_at=ended_at,
                        usage=usage.read(outcome.body),
                        # A turn that adds nothing to the history changes nothing of what that was last sent as.
                        prefix_mark=turn.prefix_mark if is_accepted else turn.origin.prefix_mark,
                    )
                )
            if claim is not None and is_appended:
                claim.use_up()
            await turn.origin.free()
            if is_accepted and turn.request.conversation_id is None:
                past = turn.past.followed_by(items)
                reading = Reading(turn.tenant_id, turn.response_id, turn.issuer)
                self._preparation.remember(reading, turn.chain, past)

    def _told(self, error: Exception, turn: Turn) -> ApiError:
        """What a client is told of an exception: an ApiError as it is, of another one only that there was one."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, raw.Malformed):
            return errors.upstream_broken("its reply is not a response.")
        self._telemetry.crash("turn_crashed", error, response_id=turn.response_id)
        return errors.internal()
