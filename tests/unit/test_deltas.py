"""Deltas: which one goes on with the text of the last, and the halves of characters between two."""

import json
from typing import Any

import pytest

from server.protocol import events, raw, sse
from server.protocol.deltas import goes_on, joined_halves
from server.protocol.events import StreamEvent
from server.protocol.output import OutputItem

DELTA = {
    "type": "response.output_text.delta", "item_id": "m", "output_index": 0, "content_index": 0, "delta": "a",
}  # fmt: skip


def event(**members: Any) -> StreamEvent:
    return events.read(sse.Event(b"", json.dumps({**DELTA, **members}).encode()))


def test_a_delta_of_the_same_text_goes_on_whatever_its_number_and_its_words() -> None:
    assert goes_on(event(sequence_number=4), event(sequence_number=9, delta="b", logprobs=[]))


@pytest.mark.parametrize(
    "other",
    [
        {"type": "response.reasoning_text.delta"}, {"type": "response.output_text.done"}, {"item_id": "n"},
        {"output_index": 1}, {"content_index": 1}, {"content_index": None}, {"delta": "\ud83d"},
    ],
)  # fmt: skip
def test_a_delta_of_another_text_or_with_an_escape_is_looked_at(other: dict[str, Any]) -> None:
    assert not goes_on(event(), event(**other))


def test_two_halves_of_a_character_become_one_in_the_second_delta() -> None:
    item = OutputItem(0, "m", raw.Object(b"{}"), 0)
    assert joined_halves(event(delta="a\ud83d"), item) == {"delta": b'"a"'}
    assert joined_halves(event(delta="\ude42b"), item) == {"delta": rb'"\ud83d\ude42b"'}
    assert joined_halves(event(delta="c"), item) == {}
    assert item.half_characters == {}
