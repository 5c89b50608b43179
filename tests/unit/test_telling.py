"""A whole item told in pieces: which events, with what in them, by hand from the contract's legal order."""

import json
from typing import Any

import pytest

from server.protocol.telling import told


def telling(item: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (name, {key: json.loads(value) for key, value in members.items()})
        for name, members in told(json.dumps(item).encode())
    ]


def test_a_message_of_text_and_refusal() -> None:
    note = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
    text = {"type": "output_text", "text": "Hi", "annotations": [note], "logprobs": [{"token": "Hi"}]}
    refusal = {"type": "refusal", "refusal": "No."}
    item = {"id": "m", "type": "message", "role": "assistant", "status": "incomplete", "content": [text, refusal]}
    assert telling(item) == [
        ("response.output_item.added", {"item": item | {"status": "in_progress", "content": []}}),
        (
            "response.content_part.added",
            {"content_index": 0, "part": {"type": "output_text", "text": "", "annotations": [], "logprobs": []}},
        ),
        ("response.output_text.delta", {"content_index": 0, "delta": "Hi", "logprobs": [{"token": "Hi"}]}),
        (
            "response.output_text.annotation.added",
            {"content_index": 0, "annotation_index": 0, "annotation": note},
        ),
        ("response.output_text.done", {"content_index": 0, "text": "Hi", "logprobs": [{"token": "Hi"}]}),
        ("response.content_part.done", {"content_index": 0, "part": text}),
        ("response.content_part.added", {"content_index": 1, "part": {"type": "refusal", "refusal": ""}}),
        ("response.refusal.delta", {"content_index": 1, "delta": "No."}),
        ("response.refusal.done", {"content_index": 1, "refusal": "No."}),
        ("response.content_part.done", {"content_index": 1, "part": refusal}),
        ("response.output_item.done", {"item": item}),
    ]


def test_reasoning_with_a_summary() -> None:
    summary, content = {"type": "summary_text", "text": "S"}, {"type": "reasoning_text", "text": "Hm"}
    item = {"id": "r", "type": "reasoning", "summary": [summary], "content": [content]}
    assert telling(item) == [
        ("response.output_item.added", {"item": item | {"summary": [], "content": []}}),
        ("response.reasoning_summary_part.added", {"summary_index": 0, "part": {"type": "summary_text", "text": ""}}),
        ("response.reasoning_summary_text.delta", {"summary_index": 0, "delta": "S"}),
        ("response.reasoning_summary_text.done", {"summary_index": 0, "text": "S"}),
        ("response.reasoning_summary_part.done", {"summary_index": 0, "part": summary}),
        ("response.content_part.added", {"content_index": 0, "part": {"type": "reasoning_text", "text": ""}}),
        ("response.reasoning_text.delta", {"content_index": 0, "delta": "Hm"}),
        ("response.reasoning_text.done", {"content_index": 0, "text": "Hm"}),
        ("response.content_part.done", {"content_index": 0, "part": content}),
        ("response.output_item.done", {"item": item}),
    ]


@pytest.mark.parametrize(
    ("item_type", "member", "prefix", "named"),
    [
        ("function_call", "arguments", "response.function_call_arguments", {"name": "f"}),
        ("custom_tool_call", "input", "response.custom_tool_call_input", {}),
    ],
)
def test_calls(item_type: str, member: str, prefix: str, named: dict[str, str]) -> None:
    item = {"id": "c", "type": item_type, "call_id": "k", "name": "f", member: "{}", "status": "completed"}
    assert telling(item) == [
        ("response.output_item.added", {"item": item | {"status": "in_progress", member: ""}}),
        (f"{prefix}.delta", {"delta": "{}"}),
        (f"{prefix}.done", {member: "{}", **named}),
        ("response.output_item.done", {"item": item}),
    ]


def test_an_item_of_a_type_that_nobody_knows_is_only_announced_and_done() -> None:
    item = {"id": "x", "type": "x_thing", "status": "failed", "content": [{"type": "y"}]}
    assert telling(item) == [
        ("response.output_item.added", {"item": item}),
        ("response.output_item.done", {"item": item}),
    ]


def test_what_is_empty_has_no_delta() -> None:
    part = {"type": "output_text", "text": "", "annotations": []}
    item = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [part, {"type": "z"}]}
    assert [name for name, _ in telling(item)] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.content_part.added",
        "response.content_part.done",
        "response.output_item.done",
    ]


def test_annotations_that_are_no_list_are_none() -> None:
    part = {"type": "output_text", "text": "Hi", "annotations": {}}
    names = [name for name, _ in telling({"id": "m", "type": "message", "role": "assistant", "content": [part]})]
    assert "response.output_text.delta" in names
    assert "response.output_text.annotation.added" not in names
