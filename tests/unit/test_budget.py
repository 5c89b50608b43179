"""Budgets: what a request may ask for, and how long its history may be."""

import pytest

from server.errors import ApiError
from server.protocol.budget import NO_LIMITS, Budget, kept_within
from server.protocol.context import whole
from server.protocol.history import Past
from server.protocol.items import Item, parse_input
from server.protocol.request import parse


def asked(members: str, budget: Budget) -> bytes | None:
    request = parse(f'{{"model":"m","input":"x"{members}}}'.encode(), 200)
    context = whole(Past(), parse_input(request.input))
    return kept_within(request, context, budget, "previous_response_id").members.get("max_output_tokens")


@pytest.mark.parametrize(
    ("members", "budget", "sent"),
    [
        ("", Budget(), None),
        (',"max_output_tokens":50', Budget(), b"50"),
        ("", Budget(output_tokens=20), b"20"),
        ("", Budget(output_tokens_max=30), b"30"),
        ("", Budget(output_tokens=20, output_tokens_max=30), b"20"),
        ("", Budget(output_tokens=40, output_tokens_max=30), b"30"),
        (',"max_output_tokens":30', Budget(output_tokens=20, output_tokens_max=30), b"30"),
    ],
)
def test_the_output_that_is_asked_for(members: str, budget: Budget, sent: bytes | None) -> None:
    assert asked(members, budget) == sent


# The second has more digits than Python would read as an integer.
@pytest.mark.parametrize("tokens", ["31", "1" * 5_000])
def test_more_than_a_request_may_ask_for_is_refused(tokens: str) -> None:
    with pytest.raises(ApiError) as refused:
        asked(f',"max_output_tokens":{tokens}', Budget(output_tokens_max=30))
    assert (refused.value.status, refused.value.param) == (400, "max_output_tokens")
    assert "30" in refused.value.message


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (Budget(), NO_LIMITS, Budget()),
        (Budget(output_tokens=5, history_items_max=3), NO_LIMITS, Budget(output_tokens=5, history_items_max=3)),
        (Budget(), Budget(total_tokens_max=7), Budget(total_tokens_max=7)),
        (Budget(history_bytes_max=9), Budget(history_bytes_max=7), Budget(history_bytes_max=7)),
        (Budget(history_bytes_max=7), Budget(history_bytes_max=9), Budget(history_bytes_max=7)),
        # What is asked for by default is no limit: the other's counts.
        (Budget(output_tokens=5), Budget(output_tokens=9), Budget(output_tokens=9)),
        (Budget(output_tokens=5), Budget(history_items_max=1), Budget(output_tokens=5, history_items_max=1)),
    ],
)
def test_of_two_budgets_the_tighter_limits_count(one: Budget, other: Budget, expected: Budget) -> None:
    assert one.narrowed(other) == expected


HISTORY = [[Item(body=b"{}" * 10, public_id=f"i{number}", type="x") for number in range(3)]]


@pytest.mark.parametrize(
    ("history", "budget", "param"),
    [
        (HISTORY, Budget(history_items_max=3), "conversation"),
        (HISTORY, Budget(history_bytes_max=60), "conversation"),
        ([], Budget(history_bytes_max=10), "input"),
    ],
)
def test_a_context_that_is_too_long_is_refused(history: list[list[Item]], budget: Budget, param: str) -> None:
    request = parse(b'{"model":"m","input":"x"}', 200)
    context = whole(Past(turns=history), parse_input(request.input))
    with pytest.raises(ApiError) as refused:
        kept_within(request, context, budget, "conversation")
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "context_length_exceeded", param)
    wide = Budget(history_items_max=4, history_bytes_max=1000)
    assert kept_within(request, context, wide, "conversation") is request
