"""Counts of tokens in a response object, and what is no count."""

import pytest

from server.protocol import raw, usage
from server.protocol.usage import Usage


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (
            b'{"usage":{"input_tokens":14,"input_tokens_details":{"cached_tokens":3},"output_tokens":18,'
            b'"output_tokens_details":{"reasoning_tokens":8},"total_tokens":32}}',
            Usage(input_tokens=14, cached_tokens=3, output_tokens=18, reasoning_tokens=8),
        ),
        (b'{"usage":null}', None),
        (b"{}", None),
        (b'{"usage":[]}', None),
        (
            b'{"usage":{"input_tokens":-1,"output_tokens":2.5,"input_tokens_details":7,"output_tokens_details":null}}',
            Usage(input_tokens=0, cached_tokens=0, output_tokens=0, reasoning_tokens=0),
        ),
        (
            b'{"usage":{"input_tokens":99999999999999999999,"output_tokens":"3"}}',
            Usage(input_tokens=0, cached_tokens=0, output_tokens=0, reasoning_tokens=0),
        ),
    ],
)
def test_counts_are_read_and_all_else_is_none(text: bytes, read: Usage | None) -> None:
    assert usage.read(raw.Object(text)) == read


def test_rounds_add_up() -> None:
    rounds = [
        b'{"usage":{"input_tokens":1,"input_tokens_details":{"cached_tokens":1,"x":2},"odd":null}}',
        b'{"usage":null}',
        b'{"usage":{"input_tokens":2,"output_tokens":3,"input_tokens_details":{"cached_tokens":4}}}',
    ]
    assert usage.total(*map(raw.Object, rounds)) == (
        b'{"input_tokens":3,"input_tokens_details":{"cached_tokens":5,"x":2},"odd":0,"output_tokens":3}'
    )
    assert usage.total(raw.Object(b"{}")) is None
