"""What a sweep may remove, worked out from rows alone."""

import pytest

from server.engine.sweep import is_seen, judged
from server.store.retention import Deleted, Link


def test_what_must_stay_keeps_its_ancestors_over_batches() -> None:
    needed: set[int] = set()
    newest = [Deleted(9, 8, True), Deleted(8, 4, False), Deleted(7, 3, False)]
    assert judged(newest, needed) == ([7], [9, 8])
    assert needed == {4}
    assert judged([Deleted(4, None, False), Deleted(3, None, False)], needed) == ([3], [4])
    assert needed == set()


@pytest.mark.parametrize(
    ("link", "is_needed"),
    [
        (Link(0, 1, None), True),
        (Link(0, 5, None), True),
        (Link(0, 6, None), False),
        (Link(0, 3, 5), False),
        (Link(0, 3, 6), True),
        (Link(0, 1, 2), False),
    ],
)
def test_a_link_is_seen_from_the_version_that_added_it_up_to_the_one_that_removed_it(
    link: Link, is_needed: bool
) -> None:
    assert is_seen(link, [2, 5]) is is_needed
    assert not is_seen(link, [])
