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
        self._renewing = asyncio.get_running_loop().create_task(self._renew())

    def use_up(self) -> None:
        """The turn was appended, and the conversation is free with it."""
        self._renewing.cancel()

    async def free(self) -> None:
        """Give the conversation back. Where the database can't be asked, the lease ends by time."""
        if self._renewing.cancelling():
            return
        self._renewing.cancel()
        try:
            await self._leases.release(self.lease)
        except ApiError:
            self._telemetry.warning("lease_left_to_expire")

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._leases.lease_s / 3)
            try:
                if not await self._leases.renew(self.lease):
                    self._telemetry.warning("lease_lost")
                    return
            except ApiError:
                self._telemetry.warning("lease_not_renewed")
