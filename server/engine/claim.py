"""A turn's claim on its conversation, kept for as long as the turn is in flight and given up as soon as it is not."""

import asyncio

from server.errors import ApiError
from server.store.leases import Lease, Leases
from server.telemetry import Telemetry


class Claim:
    """A lease that renews itself, three times in the time it lasts, until it is used up or freed."""

    def __init__(self, leases: Leases, lease: Lease, telemetry: Telemetry) -> None:
        self.lease = lease
        self._leases = leases
        self._telemetry = telemetry
        self._is_held = True
        self._is_lost = False
        self._renewing = asyncio.get_running_loop().create_task(self._renew())

    async def free(self, *, is_used_up: bool = False) -> None:
        """Give the conversation back, unless the turn's own write has. Once is enough.

        Where the database can't be asked, the lease ends by time.
        """
        if not self._is_held:
            return
        self._is_held = False
        self._renewing.cancel()
        if is_used_up:
            return
        if self._is_lost:
            self._tell("lease_lost")
            return
        try:
            await self._leases.release(self.lease)
        except ApiError:
            self._tell("lease_left_to_expire")

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._leases.lease_s / 3)
            try:
                if not await self._leases.renew(self.lease):
                    # Or the turn's write has ended it this moment, which is known only when that returns.
                    self._is_lost = True
                    return
            except ApiError:
                self._tell("lease_not_renewed")

    def _tell(self, event: str) -> None:
        self._telemetry.warning(event, conversation_id=self.lease.public_id)
