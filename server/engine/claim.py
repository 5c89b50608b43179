"""A turn's claim on what only one may have, kept while the turn is in flight and given up as soon as it is not."""

import asyncio
from collections.abc import Callable
from typing import ClassVar, Generic, Protocol, TypeVar

from server.errors import ApiError
from server.telemetry import Telemetry


class Named(Protocol):
    """What a claim is on, as the log names it."""

    @property
    def names(self) -> dict[str, str]: ...


Leased = TypeVar("Leased", bound=Named)
Renewed_contra = TypeVar("Renewed_contra", bound=Named, contravariant=True)


class Renewable(Protocol[Renewed_contra]):
    """Where claims are kept: conversations' leases, or idempotency keys."""

    lease_s: float

    async def renew(self, lease: Renewed_contra, /) -> bool: ...
    async def release(self, lease: Renewed_contra, /) -> None: ...


class Claim(Generic[Leased]):
    """A lease that renews itself, three times in the time it lasts, until it is used up or freed.

    `on_lost` is called when it is found to be another's, or to have run out.
    """

    # Whoever waits for nobody must be held by somebody.
    _late_releases: ClassVar[set["asyncio.Task[None]"]] = set()

    def __init__(self, leases: Renewable[Leased], lease: Leased, telemetry: Telemetry) -> None:
        self.lease = lease
        self.is_lost = False
        self.on_lost: Callable[[], None] = lambda: None
        self._leases = leases
        self._telemetry = telemetry
        self._is_held = True
        self._patience_s = leases.lease_s / 3
        self._renewing = asyncio.get_running_loop().create_task(self._renew())

    def use_up(self) -> None:
        """The turn's own write has given it back."""
        self._let_go()

    async def free(self) -> None:
        """Give it back. Once is enough, and nothing is left to do for a claim that was used up.

        Where the database can't be asked, it is asked again until the lease ends by time.
        """
        if not self._let_go():
            return
        if self.is_lost:
            self._tell("lease_lost")
        elif not await self._release():
            late = asyncio.get_running_loop().create_task(self._release_late())
            self._late_releases.add(late)
            late.add_done_callback(self._late_releases.discard)

    def _let_go(self) -> bool:
        was_held, self._is_held = self._is_held, False
        self._renewing.cancel()
        return was_held

    async def _release(self) -> bool:
        try:
            async with asyncio.timeout(self._patience_s):
                await self._leases.release(self.lease)
        except (ApiError, TimeoutError):
            return False
        return True

    async def _release_late(self) -> None:
        for _ in range(10):
            await asyncio.sleep(self._leases.lease_s / 10)
            if await self._release():
                return
        self._tell("lease_left_to_expire")

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._patience_s)
            try:
                async with asyncio.timeout(self._patience_s):
                    still_holds = await self._leases.renew(self.lease)
            except (ApiError, TimeoutError):
                self._tell("lease_not_renewed")
                continue
            if not still_holds:
                # Or the turn's write has ended it this moment, which is known only when that returns.
                self.is_lost = True
                self.on_lost()
                return

    def _tell(self, event: str) -> None:
        self._telemetry.warning(event, **self.lease.names)
