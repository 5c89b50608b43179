"""What of an output can be seen: the table of what counts as nothing."""

import json
from typing import Any

import pytest

from server.protocol import raw
from server.protocol.items import from_upstream
from server.protocol.visible import is_empty, is_reasoning_only

THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


def said(*texts: str) -> dict[str, Any]:
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text} for text in texts],
    }


REFUSED = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": ""}]}


@pytest.mark.parametrize(
    ("items", "empty", "reasoning_only"),
    [
        ([], True, False),
        ([said()], True, False),
        ([said(""), said("\n", " ")], True, False),
        ([THOUGHT], False, True),
        ([THOUGHT, said("\n\n")], False, True),
        ([THOUGHT, said("a")], False, False),
        ([THOUGHT, CALL], False, False),
        ([THOUGHT, REFUSED], False, False),
        ([said("a")], False, False),
        ([CALL], False, False),
        ([REFUSED], False, False),
        ([{"type": "web_search_call"}], False, False),
        ([{"type": "message", "content": "a"}], False, False),
        ([{"type": "message", "content": " "}], True, False),
        ([{"type": "message"}], True, False),
    ],
)
def test_what_is_nothing(items: list[dict[str, Any]], empty: bool, reasoning_only: bool) -> None:
    output = [
        from_upstream(raw.Object(json.dumps(item).encode()), f"i{number}", "up") for number, item in enumerate(items)
    ]
    assert (is_empty(output), is_reasoning_only(output)) == (empty, reasoning_only)
