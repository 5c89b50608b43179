"""The output on its way: how parts are counted, and which item an upstream means."""

import json
from typing import Any

import pytest

from server.protocol import raw
from server.protocol.dialect import AsItCame
from server.protocol.events import StreamEvent
from server.protocol.output import Output, Parts

ADDED, DONE, DELTA, TEXT_DONE, NOTE = (
    "response.content_part.added",
    "response.content_part.done",
    "response.output_text.delta",
    "response.output_text.done",
    "response.output_text.annotation.added",
)


def placed(*sent: tuple[str, Any]) -> list[int]:
    parts = Parts()
    return [parts.place(StreamEvent(b"", name, name, None, None, None, number))[0] for name, number in sent]


@pytest.mark.parametrize(
    ("sent", "ours"),
    [
        pytest.param([(ADDED, 0), (DELTA, 0), (TEXT_DONE, 0), (DONE, 0)], [0, 0, 0, 0], id="one part"),
        pytest.param(
            [(ADDED, 0), (DELTA, 0), (TEXT_DONE, 0), (DONE, 0), (ADDED, 1), (DELTA, 1), (TEXT_DONE, 1), (DONE, 1)],
            [0, 0, 0, 0, 1, 1, 1, 1],
            id="two parts",
        ),
        pytest.param([(ADDED, 0), (ADDED, 1), (DELTA, 0), (DELTA, 1), (DONE, 0), (DONE, 1)], [0, 1] * 3, id="woven"),
        pytest.param([(ADDED, 0), (TEXT_DONE, 0), (NOTE, 0), (DONE, 0)], [0, 0, 0, 0], id="a note after the text"),
        pytest.param([(DELTA, 0), (DELTA, 1), (DELTA, 2), (TEXT_DONE, 2)], [0, 0, 0, 0], id="rises with each delta"),
        pytest.param([(DELTA, 0), (TEXT_DONE, 1), (DONE, 2)], [0, 0, 0], id="rises with each event"),
        pytest.param([(ADDED, 4), (DELTA, 4), (TEXT_DONE, 4), (DONE, 4)], [0, 0, 0, 0], id="goes on from another item"),
        pytest.param(
            [(ADDED, 3), (DELTA, 4), (DELTA, 5), (DONE, 5), (ADDED, 6)], [0, 0, 0, 0, 1], id="rises, two parts"
        ),
        pytest.param([(DELTA, 0), (TEXT_DONE, 0), (DELTA, 1), (TEXT_DONE, 1)], [0, 0, 1, 1], id="two unannounced"),
        pytest.param([(DELTA, 0), (TEXT_DONE, 0), (TEXT_DONE, 0), (DELTA, 0)], [0, 0, 0, 0], id="says done twice"),
        pytest.param([(DELTA, None), (TEXT_DONE, None), (DONE, None)], [0, 0, 0], id="no numbers"),
        pytest.param([(ADDED, None), (DELTA, None), (ADDED, None), (DELTA, None)], [0, 0, 1, 1], id="no numbers, two"),
        pytest.param([(ADDED, 0), (DELTA, 0), (ADDED, 0), (DELTA, 0)], [0, 0, 1, 1], id="always 0, announced"),
        pytest.param([(DONE, 7), (ADDED, 7)], [0, 1], id="begins with done"),
        pytest.param([(ADDED, -1), (DELTA, -1)], [0, 0], id="negative"),
    ],
)
def test_parts_count_from_0_whatever_the_upstream_counts(sent: list[tuple[str, Any]], ours: list[int]) -> None:
    assert placed(*sent) == ours


def announcements(*sent: tuple[str, Any]) -> list[str | None]:
    """The type of the empty part that each event wants announced before it."""
    parts = Parts()
    empty = [parts.place(StreamEvent(b"", name, name, None, None, None, number))[1] for name, number in sent]
    return [json.loads(part)["type"] if part else None for part in empty]


@pytest.mark.parametrize(
    ("sent", "wanted"),
    [
        pytest.param([(ADDED, 0), (DELTA, 0), (TEXT_DONE, 0)], [None, None, None], id="announced"),
        pytest.param([(DELTA, 0), (DELTA, 0), (TEXT_DONE, 0)], ["output_text", None, None], id="not announced"),
        pytest.param([(TEXT_DONE, 0), (DONE, 0)], ["output_text", None], id="only done"),
        pytest.param([(ADDED, 0), (TEXT_DONE, 0), (DELTA, 1)], [None, None, "output_text"], id="the second is not"),
        pytest.param([(DONE, 0), (NOTE, 0), (DELTA, 0)], [None, None, "output_text"], id="late"),
        pytest.param([("response.refusal.delta", 0)], ["refusal"], id="a refusal"),
        pytest.param([("response.reasoning_text.delta", 0)], [None], id="reasoning needs none"),
    ],
)
def test_text_of_a_message_wants_its_part_announced(sent: list[tuple[str, Any]], wanted: list[str | None]) -> None:
    assert announcements(*sent) == wanted


def announced(output: Output, *items: tuple[str | None, int | None, str]) -> None:
    for sent_id, sent_index, item_type in items:
        output.announce(raw.Object(json.dumps({"id": sent_id, "type": item_type}).encode()), sent_index)


def finish(output: Output, place: int, sent_id: str | None) -> None:
    output.finish(output.items[place], raw.Object(json.dumps({"id": sent_id, "type": "message"}).encode()))


@pytest.mark.parametrize(
    ("sent_id", "sent_index", "place"),
    [
        pytest.param("a", 0, 0, id="both agree"),
        pytest.param("b", None, 1, id="only an id"),
        pytest.param(None, 1, 1, id="only an index"),
        pytest.param("a", 1, 0, id="the id goes before the index"),
        pytest.param("a", 9, 0, id="an index that nobody has"),
        pytest.param("x", 1, 1, id="an id that nobody has"),
        pytest.param("x", 9, None, id="neither is known"),
        pytest.param("x", None, None, id="only an id that nobody has"),
        pytest.param(None, 9, None, id="only an index that nobody has"),
        pytest.param(None, None, None, id="nothing"),
    ],
)
def test_an_item_is_found_by_what_is_said_of_it(sent_id: str | None, sent_index: int | None, place: int | None) -> None:
    output = Output(set(), "up", AsItCame().fidelity)
    announced(output, ("a", 0, "message"), ("b", 1, "message"))
    found = output.find(sent_id, sent_index)
    assert (None if found is None else found.index) == place


def test_of_items_under_one_id_the_index_tells_which_and_else_it_is_the_newest() -> None:
    output = Output(set(), "up", AsItCame().fidelity)
    announced(output, ("a", 0, "message"), ("a", 1, "message"))
    assert [output.find("a", index) for index in (0, 1, None)] == [output.items[0], output.items[1], output.items[1]]


def test_items_under_one_index_are_told_apart_by_their_ids() -> None:
    output = Output(set(), "up", AsItCame().fidelity)
    announced(output, ("a", 0, "message"), ("b", 0, "message"))
    assert [output.find(sent_id, 0) for sent_id in ("a", "b", None)] == [
        output.items[0],
        output.items[1],
        output.items[1],
    ]


def test_an_id_that_nobody_has_is_no_longer_that_of_an_item_that_is_done() -> None:
    output = Output(set(), "up", AsItCame().fidelity)
    announced(output, ("a", 0, "message"))
    finish(output, 0, "a")
    assert output.find("x", 0) is None
    assert output.find("a", 0) is output.items[0]


def test_the_id_that_an_item_is_done_under_is_one_of_its_own() -> None:
    output = Output(set(), "up", AsItCame().fidelity)
    announced(output, ("a", 0, "message"))
    finish(output, 0, "b")
    assert output.find("b", 0) is output.items[0]
    assert output.finished()[0].public_id == "a"


def test_the_latest_item_is_one_that_is_on_its_way() -> None:
    output = Output(set(), "up", AsItCame().fidelity)
    assert output.latest() is None
    announced(output, ("a", 0, "message"), ("b", 1, "message"))
    assert output.latest() is output.items[1]
    finish(output, 1, "b")
    assert output.latest() is None


@pytest.mark.parametrize(
    ("told", "places"),
    [
        pytest.param([("a", "message"), ("r", "reasoning"), ("b", "message")], [0, 1, 2], id="the same"),
        pytest.param([("b", "message"), ("a", "message"), ("r", "reasoning")], [2, 0, 1], id="another order"),
        pytest.param([("x", "message"), ("y", "reasoning"), ("z", "message")], [0, 1, 2], id="other ids"),
        pytest.param([(None, "message"), (None, "reasoning"), (None, "message")], [0, 1, 2], id="no ids"),
        pytest.param([("x", "message"), ("a", "message")], [2, 0], id="an id goes before a type"),
        pytest.param([("b", "message")], [2], id="some are missing"),
        pytest.param([("a", "message"), ("b", "message"), ("c", "message")], [0, 2, None], id="one more of a type"),
        pytest.param([("f", "function_call")], [None], id="another type"),
        pytest.param([("a", "message"), ("a", "message")], [0, 2], id="an id twice"),
        pytest.param([], [], id="nothing"),
    ],
)
def test_each_element_of_a_whole_output_repeats_one_item(
    told: list[tuple[str | None, str]], places: list[int | None]
) -> None:
    output = Output(set(), "up", AsItCame().fidelity)
    announced(output, ("a", 0, "message"), ("r", 1, "reasoning"), ("b", 2, "message"))
    elements = [raw.Object(json.dumps({"id": sent_id, "type": name}).encode()) for sent_id, name in told]
    assert [None if item is None else item.index for item in output.matched(elements)] == places


def test_an_id_of_the_context_or_of_another_item_is_not_given_again() -> None:
    output = Output({"a"}, "up", AsItCame().fidelity)
    announced(output, ("a", 0, "message"), ("b", 1, "reasoning"), ("b", 2, "reasoning"), (None, 3, "x_new"))
    public_ids = [item.public_id for item in output.items]
    assert public_ids[1] == "b"
    assert [public_id.partition("_")[0] for public_id in public_ids] == ["msg", "b", "rs", "item"]
    assert len(set(public_ids)) == 4
