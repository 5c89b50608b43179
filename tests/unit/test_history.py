"""Histories that were replayed before: they say the same as the whole, share what they can, and are forgotten."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.recent import Reading, RecentHistories
from server.protocol import raw
from server.protocol.context import Context, whole
from server.protocol.dialect import DIALECTS
from server.protocol.history import KnownIds, OpenCall, Past, Replayed
from server.protocol.items import Input, Item, from_upstream, parse_input
from server.protocol.profile import CHAT_VLLM, VLLM, Profile
from server.protocol.replay import replay

NOTHING = Input([], set())


def item(name: str, size: int = 10) -> Item:
    return Item(body=b"x" * size, public_id=name, type="message")


def long(turns: int) -> Replayed:
    """So many turns of one item of ten bytes, each behind those before."""
    replayed = Replayed()
    for number in range(turns):
        replayed = replayed.followed_by([item(f"msg_{number}")], [b"%010d" % number], 0, [])
    return replayed


def text_of(replayed: Replayed) -> bytes:
    return b",".join(replayed.texts())


# --- replayed


def test_a_history_is_its_elements_in_order_between_commas() -> None:
    assert text_of(long(3)) == b"0000000000,0000000001,0000000002"
    assert (long(3).item_count, long(3).body_bytes, long(0).texts()) == (3, 30, [])


def test_a_history_of_a_thousand_turns_is_in_a_few_parts() -> None:
    replayed = long(1000)
    assert text_of(replayed) == b",".join(b"%010d" % number for number in range(1000))
    assert len(replayed.parts) <= 10
    assert [replayed.holds(f"msg_{number}") for number in (0, 999, 1000)] == [True, True, False]


def test_a_longer_history_leaves_the_shorter_as_it_was_and_shares_its_parts() -> None:
    shorter = long(64)
    longer = shorter.followed_by([item("new")], [b"new"], 0, [])
    assert text_of(shorter) == text_of(long(64))
    assert (shorter.holds("new"), longer.holds("new")) == (False, True)
    assert longer.parts[0] is shorter.parts[0]


def test_items_that_are_not_sent_are_counted_and_known() -> None:
    replayed = long(1).followed_by([item("unsent", 5)], [], 1, []).followed_by([item("sent")], [b"s"], 0, [])
    assert text_of(replayed) == b"0000000000,s"
    assert (replayed.item_count, replayed.left_out_count, replayed.body_bytes) == (3, 1, 25)
    assert replayed.holds("unsent")
    assert replayed.followed_by([], [], 0, [OpenCall(item("x"), is_followed=False)]) is replayed


def test_known_ids_are_those_of_the_history_and_those_behind_it() -> None:
    known = KnownIds(long(2), [item("behind")])
    assert [name in known for name in ("msg_1", "behind", "msg_2")] == [True, True, False]


# --- warm is cold

USER: dict[str, Any] = {"role": "user", "content": "go"}
SAID: dict[str, Any] = {
    "type": "message",
    "id": "m",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "a"}],
}
THOUGHT: dict[str, Any] = {"type": "reasoning", "id": "r", "content": [{"type": "reasoning_text", "text": "t"}]}
CALL: dict[str, Any] = {"type": "function_call", "id": "f", "call_id": "c", "name": "f", "arguments": "{}"}
CUT: dict[str, Any] = {**CALL, "call_id": "cut", "arguments": '{"a'}
OUTPUTS = st.sampled_from([[SAID], [THOUGHT, SAID], [THOUGHT, CALL], [CUT], [SAID, CUT, CALL], []])


def answers_to(output: list[dict[str, Any]], is_cut_answered: bool) -> list[dict[str, Any]]:
    called = [one["call_id"] for one in output if one["type"] == "function_call"]
    return [
        {"type": "function_call_output", "call_id": call_id, "output": "o"}
        for call_id in called
        if call_id == "c" or is_cut_answered
    ]


def body(past: Past, given_input: Input, profile: Profile) -> tuple[bytes, Past]:
    """What is sent after the past, and the past as far as it was replayed now: what `engine.prepare` does."""
    context: Context = whole(past, given_input)
    decisions = replay(context, profile, "previous_response_id", "up")
    count = len(decisions) - len(given_input.items)
    elements = DIALECTS[profile.dialect].elements
    replayed = past.replayed.followed_by(
        [decision.item for decision in decisions[:count]],
        elements(decisions[:count], profile),
        sum(decision.copy is None for decision in decisions[:count]),
        context.open_calls,
    )
    sent = b",".join([*replayed.texts(), *elements(decisions[count:], profile)])
    return sent, Past(replayed) if context.is_settled else past


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(OUTPUTS, st.booleans()), min_size=1, max_size=8), st.sampled_from([VLLM, CHAT_VLLM]))
def test_a_chain_that_is_remembered_says_what_one_that_is_read_says(
    outputs: list[tuple[list[dict[str, Any]], bool]], profile: Profile
) -> None:
    remembered = Past()
    turns: list[list[Item]] = []
    request = [USER]
    for number, (output, is_cut_answered) in enumerate(outputs):
        parsed = parse_input(json.dumps(request).encode())
        warm, remembered = body(remembered, parsed, profile)
        cold, _ = body(Past(turns=turns), parsed, profile)
        assert warm == cold
        made = [from_upstream(raw.Object(json.dumps(one).encode()), f"{one['id']}_{number}", "up") for one in output]
        turn = [*parsed.items, *made]
        turns.append(turn)
        remembered = remembered.followed_by(turn)
        request = [*answers_to(output, is_cut_answered), USER]


def test_a_cut_call_that_waits_keeps_its_history_from_being_settled() -> None:
    turn = [from_upstream(raw.Object(json.dumps(CUT).encode()), "f", "up")]
    assert not whole(Past(turns=[turn]), parse_input(b'"hm"')).is_settled
    answered = parse_input(b'[{"type":"function_call_output","call_id":"cut","output":"o"}]')
    assert not whole(Past(turns=[turn]), answered).is_settled
    assert whole(Past(turns=[[*turn, *answered.items]]), parse_input(b'"hm"')).is_settled


# --- recent


def reading(name: str, issuer: str = "up") -> Reading:
    return Reading(1, name, issuer)


def past(*names: str) -> Past:
    return Past(turns=[[item(name, 1000)] for name in names])


def test_what_was_used_last_is_kept_longest() -> None:
    # Each takes 2266: a thousand of text, 50 for its id and 16 for having none of a call, and 300 and 900 for the rest.
    recent = RecentHistories(5000)
    recent.put(reading("a"), "root", past("a"))
    recent.put(reading("b"), "root", past("b"))
    assert (recent.bytes, recent.get(reading("a"))) == (4532, past("a"))
    recent.put(reading("c"), "root", past("c"))
    assert recent.bytes == 4532
    assert [recent.get(reading(name)) is not None for name in "abc"] == [True, False, True]


def test_another_reader_or_tenant_knows_nothing_of_it() -> None:
    recent = RecentHistories(100_000)
    recent.put(reading("a"), "root", past("a"))
    assert recent.get(reading("a", "other")) is None
    assert recent.get(Reading(2, "a", "up")) is None


def test_what_several_have_in_common_counts_once() -> None:
    recent = RecentHistories(10**9)
    shared = [item("shared", 10_000)]
    recent.put(reading("a"), "root", Past(turns=[shared]))
    alone = recent.bytes
    recent.put(reading("b"), "root", Past(turns=[shared, [item("own", 100)]]))
    assert 100 < recent.bytes - alone < 2_000


def test_all_memory_is_given_back_when_all_is_forgotten() -> None:
    recent = RecentHistories(100_000)
    chain = Replayed()
    for number in range(50):
        chain = chain.followed_by([item(f"i{number}")], [b"t" * 100], 0, [])
        recent.put(reading(str(number)), "root", Past(chain))
        recent.put(reading("replaced"), "root", Past(chain))
    assert 50 * 500 < recent.bytes <= 100_000
    # What takes nearly all of it forces all else out, and goes in turn.
    recent.put(reading("large"), "root", Past(turns=[[item("l", 98_000)]]))
    assert (recent.get(reading("49")), recent.get(reading("large"))) == (None, Past(turns=[[item("l", 98_000)]]))
    recent.put(reading("small"), "root", Past(turns=[[item("s", 1000)]]))
    assert (recent.bytes, recent.get(reading("large"))) == (2266, None)


def test_what_is_larger_than_all_memory_is_not_kept_and_forces_nothing_out() -> None:
    recent = RecentHistories(10_000)
    recent.put(reading("a"), "root", past("a"))
    recent.put(reading("huge"), "root", Past(turns=[[item("h", 10_001)]]))
    recent.put(reading("a"), "root", Past(turns=[[item("h", 10_001)]]))
    assert (recent.bytes, recent.get(reading("huge")), recent.get(reading("a"))) == (2266, None, past("a"))
    assert recent.last_of_chain(reading("root")) == ("a", past("a"))


def made_of(kind: str, number: int) -> Past:
    name = ("\U0001f600" if kind == "wide ids" else "i") * 200 + str(number)
    one = Item(body=b"%0500d" % number, public_id=name, type="function_call", call_id=name[::-1], fidelity=bytes(100))
    if kind == "turns":
        return Past(turns=[[one]])
    open_calls = [OpenCall(one, is_followed=False)] if kind == "open calls" else []
    return Past(Replayed().followed_by([one], [b"%0100d" % number], 0, open_calls))


@pytest.mark.parametrize("kind", ["turns", "ids", "wide ids", "open calls"])
def test_what_is_counted_is_what_it_takes(kind: str) -> None:
    recent = RecentHistories(10**9)
    recent.put(reading("warm"), "warm", made_of(kind, 0))
    tracemalloc.start()
    before = recent.bytes
    for number in range(2000):
        recent.put(reading(str(number)), str(number), made_of(kind, number))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.7 < (recent.bytes - before) / taken < 1.6


def test_of_each_chain_it_is_known_what_was_put_last() -> None:
    recent = RecentHistories(5000)
    assert not recent
    recent.put(reading("a"), "a", past("a"))
    recent.put(reading("b"), "a", past("b"))
    assert recent
    assert recent.last_of_chain(reading("a")) == ("b", past("b"))
    assert recent.last_of_chain(reading("b")) is None
    assert recent.last_of_chain(reading("a", "other")) is None
    assert recent.last_of_chain(Reading(2, "a", "up")) is None
    # Each takes 2266, so that "a" goes; the chain is still known by "b", until that goes too.
    recent.put(reading("c"), "c", past("c"))
    assert recent.last_of_chain(reading("a")) == ("b", past("b"))
    recent.put(reading("d"), "d", past("d"))
    assert recent.last_of_chain(reading("a")) is None
    assert recent.last_of_chain(reading("c")) == ("c", past("c"))
