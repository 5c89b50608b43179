"""One answer to one request, however often it is sent: an idempotency key is claimed before the turn begins.

Whoever sends the same again gets the first one's response: by following its run in this process, by waiting for its end
in another, and afterwards told anew from what was stored. A first request that left nothing behind frees its key.
"""

import asyncio
import contextlib
import hashlib
from typing import NamedTuple

from server import errors
from server.engine.aside import aside
from server.engine.askers import Asker
from server.engine.claim import Claim
from server.engine.run import Run
from server.engine.turn import Turns
from server.errors import ApiError
from server.protocol import ids, raw
from server.protocol.retelling import retold
from server.store.idempotency import IdempotencyKeys, KeyClaim
from server.store.responses import Responses
from server.telemetry import Telemetry

KEY_LENGTH_MAX = 255

_FIRST_WAIT_S, _LAST_WAIT_S = 0.05, 1.0


class _InFlight(NamedTuple):
    """A run of this process that answers a key, and the task that gives the key back if there is no answer."""

    body_hash: str
    run: Run
    ending: "asyncio.Task[None]"


class Idempotency:
    """Turns by their keys. `wait_max_s` is how long a second request may wait for the first."""

    def __init__(
        self, turns: Turns, keys: IdempotencyKeys, responses: Responses, telemetry: Telemetry, *, wait_max_s: float
    ) -> None:
        self._turns = turns
        self._keys = keys
        self._responses = responses
        self._telemetry = telemetry
        self._wait_max_s = wait_max_s
        self._in_flight: dict[tuple[int, str], _InFlight] = {}

    async def close(self) -> None:
        """Wait until the keys of turns that have ended are given back; no turn may be in flight any more."""
        await asyncio.gather(*(each.ending for each in self._in_flight.values()), return_exceptions=True)

    async def begin(self, asker: Asker, body: bytes, key: str, leaving: "asyncio.Task[None]") -> Run:
        """The run that answers this request: a new one, or one that gives what another gives or has given.

        `leaving` is done when the client has left; who leaves while he waits begins no turn. Raises ApiError: 400 for a
        key that can't be one or a turn that is not to be stored, 409 for one that came with another body or is answered
        for too long, and those of `Turns.begin`.
        """
        if not (0 < len(key) <= KEY_LENGTH_MAX and key.isascii() and key.isprintable()):
            raise errors.invalid_idempotency_key(KEY_LENGTH_MAX)
        if not await aside(len(body), _is_to_be_stored, body):
            raise errors.idempotency_needs_store()
        body_hash = await aside(len(body), _hash, body)
        loop = asyncio.get_running_loop()
        deadline_s, wait_s = loop.time() + self._wait_max_s, _FIRST_WAIT_S
        while (run := await self._answering(asker, body, key, body_hash, leaving)) is None:
            await asyncio.wait([leaving], timeout=wait_s)
            if leaving.done() or loop.time() > deadline_s:
                raise errors.idempotency_in_progress()
            wait_s = min(wait_s * 2, _LAST_WAIT_S)
        return run

    async def _answering(
        self, asker: Asker, body: bytes, key: str, body_hash: str, leaving: "asyncio.Task[None]"
    ) -> Run | None:
        """What answers now, be it a turn that begins; None while another server is at work."""
        tenant_id = asker.tenant_id
        in_flight = self._in_flight.get((tenant_id, key))
        if in_flight is not None:
            if in_flight.body_hash != body_hash:
                raise errors.idempotency_conflict()
            return await _follow(in_flight, leaving)
        claim = KeyClaim(tenant_id, key, body_hash, ids.new_response_id())
        if await self._keys.claim(claim):
            return await self._first(asker, body, claim)
        known = await self._keys.find(tenant_id, key)
        if known is not None and known.body_hash != body_hash:
            raise errors.idempotency_conflict()
        if known is None or not known.is_done:
            return None
        return await self._again(tenant_id, body, known.response_public_id)

    async def _first(self, asker: Asker, body: bytes, key: KeyClaim) -> Run:
        claim = Claim(self._keys, key, self._telemetry)
        try:
            run = await self._turns.begin(asker, body, key.response_public_id)
        except BaseException:
            await asyncio.shield(claim.free())
            raise
        # Another server has it by now, and answers: what this one makes would be a second answer.
        claim.on_lost = lambda: run.cancel(errors.key_lost())
        run.keep()
        ending = asyncio.get_running_loop().create_task(self._free_at_end(run, claim))
        self._in_flight[asker.tenant_id, key.key] = _InFlight(key.body_hash, run, ending)
        ending.add_done_callback(lambda _: self._in_flight.pop((asker.tenant_id, key.key)))
        return run

    async def _free_at_end(self, run: Run, claim: Claim[KeyClaim]) -> None:
        error = await run.ended()
        if error is not None and error.is_stored:
            # Its client was told to try again, and must not be told the same failure.
            with contextlib.suppress(ApiError):
                await self._keys.forget(claim.lease)
        # A key whose response is stored keeps it.
        await claim.free()

    async def _again(self, tenant_id: int, body: bytes, response_id: str) -> Run:
        stored = await self._responses.get(tenant_id, response_id)
        if stored is None:
            # It was deleted since, and is not made a second time.
            raise errors.response_not_found(response_id)
        is_stream = raw.Object(body).get("stream") == b"true"
        run = Run(is_stream=is_stream, on_leave=lambda _: None, stream_bytes_max=0)
        run.tell_all(retold(raw.Object(stored.body), stored.output, stream=is_stream))
        return run


async def _follow(in_flight: _InFlight, leaving: "asyncio.Task[None]") -> Run | None:
    """Another run that gives the same, once there is anything to give; None when the turn has ended without it."""
    run = in_flight.run.join()
    if run is not None:
        leaving.add_done_callback(lambda _: run.leave())
        if await run.begins():
            return run
    await asyncio.wait([in_flight.ending, leaving], return_when=asyncio.FIRST_COMPLETED)
    return None


def _hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _is_to_be_stored(body: bytes) -> bool:
    try:
        return raw.Object(body).get("store") != b"false"
    except raw.Malformed:
        # Why it is none is told when the turn is to begin.
        return True
