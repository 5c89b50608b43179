"""API keys: how they are made, named, compared, and found in a header. Hashes were worked out with sha256sum."""

import pytest

from server.protocol import ids, keys

KEY = "rjk_abcdefgh-0123456789_ABCDEFGHIJKLMNOPQRSTUVW"
# printf %s 'rjk_abcdefgh-0123456789_ABCDEFGHIJKLMNOPQRSTUVW' | sha256sum
HASH = bytes.fromhex("c75c688fd4c331e7cb4e14caf75e3aa508959bb557891c9742bd8183966614ea")


def test_a_new_key_is_random_and_usable_everywhere() -> None:
    made = {keys.new_key() for _ in range(100)}
    assert len(made) == 100
    assert {len(key) for key in made} == {47}
    assert all(key.startswith("rjk_") and ids.is_usable(key) and key.isascii() for key in made)


def test_a_new_cache_salt_is_no_other() -> None:
    assert len({keys.new_cache_salt() for _ in range(100)}) == 100


def test_the_beginning_names_a_key_and_leaves_most_of_it_unsaid() -> None:
    assert keys.prefix_of(KEY) == "rjk_abcdefgh"
    assert keys.prefix_of("short") == "short"


def test_a_key_is_known_by_its_sha256() -> None:
    assert keys.hash_of(KEY) == HASH
    assert keys.is_key_of(KEY, HASH)
    assert not keys.is_key_of(KEY[:-1] + "X", HASH)
    assert not keys.is_key_of(KEY, HASH[:-1])


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("BEARER\tabc", None),
        ("Basic abc", None),
        ("Bearer", None),
        ("Bearer ", None),
        ("abc", None),
        ("", None),
        (None, None),
        # What is no key is compared as it came, and is nobody's.
        ("Bearer a b", "a b"),
        ("Bearer \xff", "\xff"),
    ],
)
def test_the_key_of_a_header(header: str | None, expected: str | None) -> None:
    assert keys.presented(header) == expected


@pytest.mark.parametrize("odd", ["\xff", "\0", ""])
def test_what_is_no_key_can_be_hashed_too(odd: str) -> None:
    assert not keys.is_key_of(odd, HASH)
