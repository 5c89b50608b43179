"""What a turn cost, as its model server told it: counts of tokens, read from a response object.

What lives here never refuses a turn for an odd number: what is no count is 0, and without any there is no usage.
"""

from collections.abc import Sequence

import msgspec

from server.protocol import raw

_COUNT_DIGITS_MAX = 15


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of tokens; `cached_tokens` are among those of the input, `reasoning_tokens` among those of the output."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int


def read(response: raw.Object) -> Usage | None:
    """The usage in a response object, None where it tells none."""
    usage = response.object("usage")
    if usage is None:
        return None
    of_input, of_output = usage.object("input_tokens_details"), usage.object("output_tokens_details")
    return Usage(
        input_tokens=_count(usage, "input_tokens"),
        cached_tokens=_count(of_input, "cached_tokens"),
        output_tokens=_count(usage, "output_tokens"),
        reasoning_tokens=_count(of_output, "reasoning_tokens"),
    )


def total(*responses: raw.Object) -> bytes | None:
    """The usage of several rounds as one, every count added up; None where none of them tells any."""
    told = [usage for response in responses if (usage := response.object("usage")) is not None]
    return _sum(told) if told else None


def _sum(usages: Sequence[raw.Object]) -> bytes:
    members: dict[str, bytes] = {}
    for name in dict.fromkeys(name for usage in usages for name, _ in usage.members()):
        details = [found for usage in usages if (found := usage.object(name)) is not None]
        members[name] = _sum(details) if details else raw.literal(sum(_count(usage, name) for usage in usages))
    return raw.render(members)


def _count(cut: raw.Object | None, name: str) -> int:
    value = cut.get(name) if cut is not None else None
    is_count = value is not None and value.isdigit() and len(value) <= _COUNT_DIGITS_MAX
    return int(value) if value is not None and is_count else 0
