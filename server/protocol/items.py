"""Items."""

import msgspec


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of history: its JSON text as it came, and beside it what must be known without opening it."""

    body: bytes
    public_id: str
    type: str
    call_id: str | None = None
    is_output: bool = False
    fidelity: bytes | None = None
    issuer: str | None = None
