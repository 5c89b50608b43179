"""What a mark tells of a prefix. Inputs are cut into copies by hand."""

import pytest

from server.protocol.prefix import TAIL_BYTES, Sent
from server.protocol.request import parse

LONG = b'{"role":"user","content":"' + b"x" * 3 * TAIL_BYTES + b'"}'


def sent(*copies: bytes, upstream: str = "gpu", model: str = "m", more: str = "") -> Sent:
    return Sent(upstream, parse(f'{{"model":"{model}","input":"q"{more}}}'.encode(), 20), copies)


def broken(before: Sent, after: Sent) -> list[str]:
    return after.broken_by(before.mark())


def test_a_mark_has_32_bytes() -> None:
    assert [len(one.mark()) for one in (sent(b"{}"), sent(LONG, LONG))] == [32, 32]


@pytest.mark.parametrize("before", [[b"1"], [LONG], [LONG, b"2"], [b"1", LONG], [b"1", b"2", LONG, b"3"]])
@pytest.mark.parametrize("more", [[], [b"4"], [LONG], [b"4", LONG, b"5"]])
def test_what_is_longer_begins_with_what_was_there(before: list[bytes], more: list[bytes]) -> None:
    assert broken(sent(*before), sent(*before, *more)) == []


def test_pieces_of_several_copies_are_as_good_as_the_copies() -> None:
    assert broken(sent(b"1", LONG, b"2"), sent(b"1," + LONG, b"2", b"3")) == []
    assert broken(sent(b"1," + LONG, b"2"), sent(b"1", LONG, b"2,3")) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([b"1", b"2"], [b"1", b"3"]),
        ([b"1", b"2"], [b"2", b"4"]),
        ([b"1", b"2"], [b"1"]),
        # A copy that only begins alike is another.
        ([b"1", b"2"], [b"1", b"22"]),
        ([b"11", LONG], [b"1", LONG, b"2"]),
        ([LONG, b"1"], [LONG[:-3] + b'y"}', b"1"]),
        # One that came into the middle, long before the tail.
        ([b"1", LONG], [b"1", b"2", LONG, b"3"]),
        ([b"1", b"2", LONG], [b"1", LONG, b"3"]),
    ],
)
def test_copies_that_are_others(before: list[bytes], after: list[bytes]) -> None:
    assert broken(sent(*before), sent(*after)) == ["history"]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (',"instructions":"Be brief."', "instructions"),
        (',"tools":[{"type":"function","name":"look"}]', "tools"),
        (',"tool_choice":"none"', "settings"),
        (',"reasoning":{"effort":"low"}', "settings"),
        (',"text":{"verbosity":"low"}', "settings"),
        (',"chat_template":"x"', "settings"),
        (',"chat_template_kwargs":{"enable_thinking":false}', "settings"),
    ],
)
def test_what_a_prompt_begins_with(more: str, reason: str) -> None:
    plain, other = sent(b"1"), sent(b"1", b"2", more=more)
    assert broken(plain, other) == broken(other, sent(b"1", b"2", b"3")) == [reason]
    assert broken(other, sent(b"1", b"2", b"3", more=more)) == []


@pytest.mark.parametrize(
    "more",
    [
        ',"temperature":0.5', ',"stream":true', ',"store":false', ',"metadata":{"a":"b"}', ',"max_output_tokens":9',
        ',"previous_response_id":"resp_1"', ',"instructions":null',
    ],
)  # fmt: skip
def test_what_is_no_part_of_a_prompt(more: str) -> None:
    assert broken(sent(b"1"), sent(b"1", b"2", more=more)) == []


def test_all_that_is_another_is_told() -> None:
    other = sent(b"2", upstream="cpu", model="n", more=',"instructions":"i","tools":[],"tool_choice":"none"')
    assert broken(sent(b"1"), other) == ["upstream", "model", "settings", "instructions", "tools", "history"]
