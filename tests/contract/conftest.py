"""The fixtures by which these tests get the running server, and a wire for a client to send by."""

from collections.abc import AsyncIterator

import pytest

from tests.application import application, emptied_database_url, shared_application, shared_database_url
from tests.contract.dialogue import Wire

__all__ = ["application", "emptied_database_url", "shared_application", "shared_database_url"]


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    opened = Wire()
    async with opened.http:
        yield opened
