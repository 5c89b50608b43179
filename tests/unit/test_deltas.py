"""Deltas: how many go on with the text of one that passed as it came, and the halves of characters between two."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from server.protocol import events, raw, sse
from server.protocol.assemble import Assembler
from server.protocol.deltas import Flow, joined_halves
from server.protocol.dialect import AsItCame
from server.protocol.events import StreamEvent
from server.protocol.output import OutputItem
from server.protocol.request import parse
from server.protocol.response import ResponseObject

DELTA = {
    "type": "response.output_text.delta", "item_id": "m", "output_index": 0, "content_index": 0, "delta": "a",
}  # fmt: skip
ITEM = {"id": "m", "type": "message", "role": "assistant", "status": "in_progress", "content": []}


def event(**members: Any) -> StreamEvent:
    return events.read(sse.Event(b"", json.dumps({**DELTA, **members}).encode()))


def block(number: int, **members: Any) -> bytes:
    data = json.dumps({**DELTA, "sequence_number": number, **members})
    return b"event: response.output_text.delta\ndata: " + data.encode()


def test_deltas_of_the_same_text_go_on_whatever_their_words() -> None:
    blocks = [block(4), block(5, delta="b\n", logprobs=[]), block(6, delta="")]
    assert Flow(event()).length(blocks, 0, 4) == 3
    assert Flow(event()).length(blocks, 1, 5) == 2
    assert Flow(event()).length(blocks, 0, 5) == 0


@pytest.mark.parametrize(
    "other",
    [
        {"type": "response.reasoning_text.delta"}, {"type": "response.output_text.done"}, {"item_id": "n"},
        {"output_index": 1}, {"content_index": 1}, {"content_index": None}, {"content_index": "0"},
        {"sequence_number": 4}, {"sequence_number": 6}, {"sequence_number": None},
        {"delta": "\ud83d"},
    ],
)  # fmt: skip
def test_a_delta_of_another_text_or_number_or_with_half_a_character_is_looked_at(other: dict[str, Any]) -> None:
    assert Flow(event()).length([block(4), block(5, **other), block(6)], 0, 4) == 1


# What may come in place of a delta, or is one that is spelled in another way.
ODD: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "an empty line": lambda block: b"\n" + block,
    "a comment": lambda block: b": hello\n\n" + block,
    "a comment within": lambda block: b": hello\n" + block,
    "another field": lambda block: block + b"\nid: 7",
    "another name": lambda block: block.replace(b"event: response.output_text.delta", b"event: x"),
    "no name": lambda block: block.partition(b"\n")[2],
    "the name behind": lambda block: block.partition(b"\n")[2] + b"\n" + block.partition(b"\n")[0],
    "no space": lambda block: block.replace(b"data: ", b"data:"),
    "more space": lambda block: block.replace(b"data: ", b"data:   ") + b"  ",
    "two lines of data": lambda block: block.replace(b', "delta"', b'\ndata: , "delta"'),
    "a line that is none of the data": lambda block: block.replace(b', "delta"', b'\n, "delta"'),
    "another type": lambda block: block.replace(b'"response.output_text', b'"response.refusal'),
    "another item": lambda block: block.replace(b'"m"', b'"n"'),
    "another part": lambda block: block.replace(b'"content_index": 0', b'"content_index": 1'),
    "a number that is a text": lambda block: block.replace(b'"output_index": 0', b'"output_index": "0"'),
    "a number of its own": lambda block: block.replace(b'"sequence_number": ', b'"sequence_number": 1'),
    "two numbers": lambda block: block[:-1] + b', "sequence_number": 0}',
    "characters of several bytes": lambda block: block.replace(b'"a"', '"\u732b"'.encode()),
    "half a character": lambda block: block.replace(b'"a"', rb'"\ud83d"'),
    "the other half": lambda block: block.replace(b'"a"', rb'"\ude42"'),
    "an escaped character": lambda block: block.replace(b'"a"', rb'"\u0061"'),
    "no UTF-8": lambda block: block.replace(b'"a"', b'"\xff"'),
    "no UTF-8 in its name": lambda block: block.replace(b"event: ", b"event: \xff"),
    "no JSON": lambda block: block[:-1],
    "more than JSON": lambda block: block + b" {}",
    "too deep": lambda block: block.replace(b'"a"', b'"a", "deep": ' + b"[" * 2000 + b"]" * 2000),
    "too deep in other letters": lambda block: block.replace(
        b'"a"', '"\u732b", "deep": '.encode() + b"[" * 600 + b"]" * 600
    ),
    "an end": lambda block: block + b"\n\ndata: [DONE]",
    "null": lambda _: b"data: null",
    "an error": lambda _: b'data: {"error": {"message": "no"}}',
    "too large": lambda block: block.replace(b'"a"', b'"' + b"a" * 9000 + b'"'),
}


def told(stream: bytes, chunk_bytes: int) -> tuple[bytes, bytes]:
    """What the client of such an upstream gets, and the response that is stored."""
    response = ResponseObject(parse(b'{"model":"m","input":"x"}', depth_max=200), "resp_1", clock=lambda: 1)
    assembler = Assembler(response, taken_ids=set(), issuer="up", event_bytes_max=8000, reader=AsItCame())
    chunks = [stream[at : at + chunk_bytes] for at in range(0, len(stream), chunk_bytes)]
    sent = b"".join([assembler.feed(chunk) for chunk in chunks])
    assembler.end()
    assert assembler.outcome is not None
    return sent + assembler.closing(), assembler.outcome.shown()


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_deltas_that_pass_together_are_told_as_each_by_itself_would_be(
    odd: Callable[[bytes], bytes], place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [
        b'data: {"type": "response.output_item.added", "output_index": 0, "item": %b}' % json.dumps(ITEM).encode(),
        b'data: {"type": "response.content_part.added", "output_index": 0, "item_id": "m", "content_index": 0}',
        # The first two are our own opening.
        *map(block, range(4, 10)),
        b'data: {"type": "response.completed", "response": {"status": "completed", "output": [%b]}}'
        % json.dumps(ITEM).encode(),
    ]
    frames[2 + place] = odd(frames[2 + place])
    stream = sse.joined(frames)
    together = [told(stream, chunk_bytes) for chunk_bytes in (len(stream), 300, 7)]
    lengths: list[int] = []
    monkeypatch.setattr(Flow, "length", lambda *_: lengths.append(0) or 0)
    assert together == [told(stream, len(stream))] * 3
    # A flow was there to be asked, but where an odd one may have ended the turn before.
    assert lengths or place < 2


def test_two_halves_of_a_character_become_one_in_the_second_delta() -> None:
    item = OutputItem(0, "m", raw.Object(b"{}"), 0)
    assert joined_halves(event(delta="a\ud83d"), item) == {"delta": b'"a"'}
    assert joined_halves(event(delta="\ude42b"), item) == {"delta": rb'"\ud83d\ude42b"'}
    assert joined_halves(event(delta="c"), item) == {}
    assert item.half_characters == {}
