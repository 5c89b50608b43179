"""What callers may read of an upstream's own words."""

import pytest

from server.protocol.upstream_words import fit_to_tell


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("It broke.", "It broke."),
        ("  It broke.\r\nTraceback (most recent call last)", "It broke."),
        ("x" * 501, "x" * 500),
        ("found sk-abcdefghijkl", "found sk-***"),
        ("Authorization: Bearer eyJhbGciOi.x-y_z refused", "Authorization: Bearer *** refused"),
        ("token hf_abcdefgh123", "token hf_***"),
        ("the key word_embedding is unknown", "the key word_embedding is unknown"),
        ("api_key=abcdef123456 is wrong", "api_key=*** is wrong"),
        ('api_key="abcd1234efgh" is wrong', 'api_key="***" is wrong'),
        ("Authorization: Token abcd1234efgh", "Authorization: Token ***"),
        ("password=hunter2hunter2 refused", "password=*** refused"),
        ("postgres://u:hunter2hunter2@h/db is down", "postgres://***@h/db is down"),
        ("maximum context length is 2048 tokens. However, ...", "maximum context length is 2048 tokens. However, ..."),
        ("1 validation error: {'loc': 'body.input', 'input': 'a prompt'}", None),
        ("", None),
        ("\n", None),
        (None, None),
        (7, None),
    ],
)
def test_of_an_upstreams_message_one_bounded_line_without_credentials_is_told(said: object, told: str | None) -> None:
    assert fit_to_tell(said) == told


def test_our_own_key_is_blotted_out_whatever_it_looks_like() -> None:
    assert fit_to_tell("Invalid upkey-123456, sorry.", "upkey-123456") == "Invalid ***, sorry."
