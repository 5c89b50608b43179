"""Which upstream a request goes to: its model names one, and its chain one of that one's equal replicas.

What lives here decides by the configuration and by who could be reached; what an upstream says of its own models never
refuses one.
"""

import asyncio
import contextlib
import copy
import hashlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Literal, TypeVar

from server import errors
from server.errors import ApiError, UpstreamUnreachable
from server.protocol import models, raw
from server.protocol.budget import NO_LIMITS, Budget
from server.protocol.dialect import DIALECTS, Dialect, Reader
from server.protocol.profile import Profile
from server.protocol.request import Request
from server.protocol.tags import ThinkTags
from server.upstream.client import Passed, Reply, UpstreamClient

DEAD_S = 5
"""How long a replica that could not be reached comes last: others need not wait for it as well."""


RETRY_S = 0.2
RETRY_AFTER_MAX_S = 2
"""A retry waits about RETRY_S, the next twice as long. Who asks for more than RETRY_AFTER_MAX_S is not asked again."""

Reached = TypeVar("Reached")


class Upstream:
    """One model server, or several equal ones. `models` are names that it serves, exact or what comes before a `*`."""

    def __init__(
        self,
        *,
        name: str,
        profile: Profile,
        replicas: Sequence[UpstreamClient],
        models: Sequence[str] = ("*",),
        is_default: bool = False,
        think_tags: Literal["keep", "split"] = "keep",
        empty_output: Literal["keep", "fail"] = "keep",
        continue_reasoning_only: int = 0,
        retries_max: int = 0,
        budget: Budget = NO_LIMITS,
        forward_authorization: bool = False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.profile = profile
        self.models = models
        self.is_default = is_default
        self.think_tags = think_tags
        self.empty_output = empty_output
        self.continue_reasoning_only = continue_reasoning_only
        self.budget = budget
        self._forward_authorization = forward_authorization
        self._retries_max = retries_max
        self._replicas = replicas
        self._dead_until_s: dict[str, float] = {}
        self._now_s = now_s

    @property
    def dialect(self) -> Dialect:
        return DIALECTS[self.profile.dialect]

    def on_behalf_of(self, authorization: str | None) -> "Upstream":
        """This upstream, asked with the client's own Authorization where the operator wants it so."""
        if authorization is None or not self._forward_authorization:
            return self
        asked = copy.copy(self)
        asked._replicas = [client.with_authorization(authorization) for client in self._replicas]
        return asked

    def issuer(self, model: str) -> str:
        """Who can open the sealed state that this model makes here."""
        return self.profile.issuer(self.name, model)

    def read(self, request: Request, event_bytes_max: int) -> Reader:
        """What reads one reply to this request."""
        reader = self.dialect.read(request, self.profile, event_bytes_max)
        return ThinkTags(reader, event_bytes_max) if self.think_tags == "split" else reader

    def fit_to_tell(self, message: object) -> str | None:
        """What a caller may read of this upstream's words: nothing of the key that it knows from us."""
        return self._replicas[0].fit_to_tell(message)

    async def create(self, body: Sequence[bytes], model: str, chain: str) -> bytes:
        """The whole reply to a request that is not streamed; raises ApiError for all but a 2xx.

        `chain` is any text that the turns of a chain share: they go to one replica, whose prefix cache knows them.
        """
        return await self._reached(chain, lambda client: client.create(self.dialect.path, body, model))

    @contextlib.asynccontextmanager
    async def stream(self, body: Sequence[bytes], model: str, chain: str) -> AsyncIterator[Reply]:
        """A streamed reply, from its 2xx headers on; raises ApiError."""
        async with contextlib.AsyncExitStack() as opened:
            yield await self._reached(
                chain, lambda client: opened.enter_async_context(client.stream(self.dialect.path, body, model))
            )

    @contextlib.asynccontextmanager
    async def passed(self, path: str, body: bytes, headers: Mapping[str, str]) -> AsyncIterator[Passed]:
        """The reply to a request that is handed on unread, whatever its status."""
        # Of no chain that anybody knows: such requests spread over the replicas.
        chain = str(random.random())  # noqa: S311
        async with contextlib.AsyncExitStack() as opened:
            yield await self._reached(
                chain, lambda client: opened.enter_async_context(client.passed(path, [body], headers))
            )

    async def listed(self) -> list[bytes]:
        """The models that the upstream lists; raises ApiError."""
        body = await self._reached("", lambda client: client.models(), retries_max=0)
        try:
            return models.listed(body, self.name)
        except raw.Malformed:
            raise errors.upstream_broken("what it lists are no models.") from None

    async def close(self) -> None:
        for client in self._replicas:
            await client.close()

    async def _reached(
        self,
        chain: str,
        attempt: Callable[[UpstreamClient], Awaitable[Reached]],
        retries_max: int | None = None,
    ) -> Reached:
        """What the first replica says that takes the request, each asked once and then a few times again.

        Only where none can have begun to generate: it was not reached, or said itself to come back in a moment.
        """
        retries_max = self._retries_max if retries_max is None else retries_max
        for retry in range(retries_max + 1):
            refused: ApiError | None = None
            for client in self._in_order(chain):
                try:
                    return await attempt(client)
                except UpstreamUnreachable as error:
                    self._dead_until_s[client.base_url] = self._now_s() + DEAD_S
                    # Who is busy knows when to come back.
                    refused = refused or error
                except ApiError as error:
                    if _wait_s(error) is None:
                        raise
                    refused = error
            assert refused is not None, "an upstream has at least one replica"
            if retry == retries_max:
                raise refused
            # Not all at the same moment, who were refused at the same one.
            await asyncio.sleep((_wait_s(refused) or 0) + RETRY_S * 2**retry * random.uniform(0.5, 1.5))  # noqa: S311
        raise AssertionError("unreachable: the last retry returns or raises")

    def _in_order(self, chain: str) -> Sequence[UpstreamClient]:
        """The replicas as this chain tries them, those thought dead last. A chain keeps its order when others leave."""
        if len(self._replicas) == 1:
            return self._replicas

        def weight(client: UpstreamClient) -> tuple[bool, bytes]:
            is_dead = self._dead_until_s.get(client.base_url, 0) > self._now_s()
            return is_dead, hashlib.sha256(f"{chain} {client.base_url}".encode()).digest()

        return sorted(self._replicas, key=weight)


def _wait_s(error: ApiError) -> int | None:
    """How long an upstream that is busy asks to wait, None where it does not, or too long."""
    after = error.retry_after
    # A digit of another script, or a raised one, is no number to HTTP.
    if error.status != 503 or after is None or not (after.isascii() and after.isdigit()):
        return None
    return int(after) if int(after) <= RETRY_AFTER_MAX_S else None


class Upstreams:
    """All upstreams of this server."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self._upstreams = upstreams
        self._by_model = {model: upstream for upstream in upstreams for model in upstream.models}
        self._default = next((upstream for upstream in upstreams if upstream.is_default), None)

    def of(self, model: str) -> Upstream:
        """The upstream that serves this model by its name, else by the longest beginning of it, else the default one.

        Raises ApiError 400 `model_not_found` where there is none.
        """
        beginnings = [name for name in self._by_model if name.endswith("*") and model.startswith(name[:-1])]
        best = model if model in self._by_model else max(beginnings, key=len, default="")
        upstream = self._by_model.get(best, self._default)
        if upstream is None:
            raise errors.model_not_found(model)
        return upstream

    async def models(self, timeout_s: float) -> list[bytes]:
        """Every model that an upstream lists in time or is configured to serve by its whole name, each once.

        Raises the ApiError of the first upstream where nobody answered and nothing is known.
        """
        answers = await self._answers(timeout_s)
        found: dict[str, bytes] = {}
        for upstream, answer in zip(self._upstreams, answers, strict=True):
            known = [models.named(name, upstream.name) for name in upstream.models if not name.endswith("*")]
            for model in [*(answer if isinstance(answer, list) else ()), *known]:
                found.setdefault(models.id_of(model), model)
        if not found:
            for answer in answers:
                if isinstance(answer, ApiError):
                    raise answer
        return list(found.values())

    async def are_reached(self, timeout_s: float) -> bool:
        """Whether every upstream lists its models in time."""
        return all(isinstance(answer, list) for answer in await self._answers(timeout_s))

    async def close(self) -> None:
        for upstream in self._upstreams:
            await upstream.close()

    async def _answers(self, timeout_s: float) -> list[list[bytes] | ApiError]:
        return await asyncio.gather(*(self._listed(upstream, timeout_s) for upstream in self._upstreams))

    async def _listed(self, upstream: Upstream, timeout_s: float) -> list[bytes] | ApiError:
        try:
            async with asyncio.timeout(timeout_s):
                return await upstream.listed()
        except TimeoutError:
            return errors.upstream_too_slow()
        except ApiError as error:
            return error
