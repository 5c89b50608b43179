"""Which upstream a request goes to: its model names it.

What lives here decides by the configuration alone; what an upstream says of its own models is never used to refuse.
"""

import contextlib
from collections.abc import Sequence

import msgspec

from server import errors
from server.protocol.dialect import DIALECTS, Dialect
from server.protocol.profile import Profile
from server.upstream.client import Reply, UpstreamClient


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """A model server. `models` are the names that it serves, each exact or what comes before a `*`."""

    name: str
    profile: Profile
    client: UpstreamClient
    models: Sequence[str] = ("*",)
    is_default: bool = False

    @property
    def dialect(self) -> Dialect:
        return DIALECTS[self.profile.dialect]

    def issuer(self, model: str) -> str:
        """Who can open the sealed state that this model makes here."""
        return self.profile.issuer(self.name, model)

    def fit_to_tell(self, message: object) -> str | None:
        return self.client.fit_to_tell(message)

    async def create(self, body: bytes, model: str) -> bytes:
        """The whole reply to a request that is not streamed; raises ApiError for all but a 2xx."""
        return await self.client.create(self.dialect.path, body, model)

    def stream(self, body: bytes, model: str) -> contextlib.AbstractAsyncContextManager[Reply]:
        """A streamed reply, from its 2xx headers on; raises ApiError."""
        return self.client.stream(self.dialect.path, body, model)


class Upstreams:
    """All upstreams of this server."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self._upstreams = upstreams

    def of(self, model: str) -> Upstream:
        """The upstream that serves this model by its name, else by the longest beginning of it, else the default one.

        Raises ApiError 400 `model_not_found` where there is none.
        """
        patterns = {pattern: upstream for upstream in self._upstreams for pattern in upstream.models}
        exact = patterns.get(model)
        if exact is not None and not model.endswith("*"):
            return exact
        beginnings = [one for one in patterns if one.endswith("*") and model.startswith(one[:-1])]
        if beginnings:
            return patterns[max(beginnings, key=len)]
        for upstream in self._upstreams:
            if upstream.is_default:
                return upstream
        raise errors.model_not_found(model)

    async def models(self) -> bytes:
        return await self._upstreams[0].client.models()

    async def close(self) -> None:
        for upstream in self._upstreams:
            await upstream.client.close()
