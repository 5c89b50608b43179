"""One answer to one request, however often it is sent: an idempotency key is claimed before the turn begins.

Whoever sends the same again waits for the first one's end, in this process or another, and gets its response; a stream
is told anew from what was stored. A first request that left nothing behind frees its key.
"""

import asyncio
import hashlib

from server import errors
from server.engine.claim import Claim
from server.engine.run import Run
from server.engine.turn import Turns
from server.protocol import ids, raw
from server.protocol.retelling import retold
from server.store.idempotency import IdempotencyKeys, KeyClaim
from server.store.responses import Responses
from server.telemetry import Telemetry

KEY_LENGTH_MAX = 255

_FIRST_WAIT_S, _LAST_WAIT_S = 0.05, 1.0


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
        self._endings: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Wait until the keys of turns that have ended are given back; no turn may be in flight any more."""
        await asyncio.gather(*self._endings, return_exceptions=True)

    async def begin(self, tenant_id: int, body: bytes, key: str) -> Run:
        """The run that answers this request, a new one or one that tells what there is already.

        Raises ApiError: 400 for a key that can't be one or a turn that is not to be stored, 409 for one that came with
        another body, and those of `Turns.begin`.
        """
        if not (0 < len(key) <= KEY_LENGTH_MAX and key.isascii() and key.isprintable()):
            raise errors.invalid_idempotency_key(KEY_LENGTH_MAX)
        if not _is_to_be_stored(body):
            raise errors.idempotency_needs_store()
        body_hash = hashlib.sha256(body).hexdigest()
        loop = asyncio.get_running_loop()
        deadline_s, wait_s = loop.time() + self._wait_max_s, _FIRST_WAIT_S
        while True:
            claim = KeyClaim(tenant_id, key, body_hash, ids.new_response_id())
            if await self._keys.claim(claim):
                return await self._first(tenant_id, body, claim)
            known = await self._keys.find(tenant_id, key)
            if known is not None and known.body_hash != body_hash:
                raise errors.idempotency_conflict()
            if known is not None and known.is_done:
                return await self._again(tenant_id, body, known.response_public_id)
            if loop.time() > deadline_s:
                raise errors.idempotency_in_progress()
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _LAST_WAIT_S)

    async def _first(self, tenant_id: int, body: bytes, key: KeyClaim) -> Run:
        claim = Claim(self._keys, key, self._telemetry)
        try:
            run = await self._turns.begin(tenant_id, body, key.response_public_id)
        except BaseException:
            await asyncio.shield(claim.free())
            raise
        ending = asyncio.get_running_loop().create_task(self._free_at_end(run, claim))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        return run

    async def _free_at_end(self, run: Run, claim: Claim[KeyClaim]) -> None:
        await run.ended()
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


def _is_to_be_stored(body: bytes) -> bool:
    try:
        return raw.Object(body).get("store") != b"false"
    except raw.Malformed:
        # Why it is none is told when the turn is to begin.
        return True
