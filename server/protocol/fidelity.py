"""Fidelity: what a dialect needs to write an item again just as its upstream made it (DESIGN 4).

What lives here reads and writes the column of that name. It is never shown, and never sent as such.
"""

from collections.abc import Mapping

import msgspec

from server.protocol import raw


class Fidelity(msgspec.Struct, frozen=True):
    """Wire-level data of one item: the field that carried its text, and the array of `reasoning_details` as it came."""

    reasoning_field: str | None = None
    reasoning_details: bytes | None = None


def holds_payload(detail: raw.Object | Mapping[str, bytes]) -> bool:
    """Whether one of `reasoning_details` has in it what only its issuer can read."""
    values = (detail.get(name) for name in ("signature", "data"))
    return any(value is not None and value.startswith(b'"') and value != b'""' for value in values)


def write(fidelity: Fidelity) -> bytes | None:
    """The column's text; None where there is nothing to record."""
    members: dict[str, bytes] = {}
    if fidelity.reasoning_field is not None:
        members["reasoning_field"] = raw.literal(fidelity.reasoning_field)
    if fidelity.reasoning_details is not None:
        members["reasoning_details"] = fidelity.reasoning_details
    return raw.render(members) if members else None


def read(text: bytes | None) -> Fidelity:
    """What was recorded; of a record that a later release wrote, what this one knows."""
    if text is None:
        return Fidelity()
    cut = raw.Object(text)
    return Fidelity(cut.string("reasoning_field"), cut.get("reasoning_details"))
