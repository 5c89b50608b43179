"""What a client's stream must be, whatever the upstream's was: the contract's grammar (api.md 3 and 6), written anew.

What lives here shares nothing with the code it judges but the standard library's JSON. Each function asserts, and gives
back what it read.
"""

import json
import re
from typing import Any, get_args

from openai._models import construct_type_unchecked
from openai._types import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent

TERMINAL = {"response.completed", "response.incomplete", "response.failed"}
PART_EVENTS = {
    "response.content_part.added", "response.content_part.done", "response.output_text.delta",
    "response.output_text.done", "response.output_text.annotation.added", "response.refusal.delta",
    "response.refusal.done", "response.reasoning_text.delta", "response.reasoning_text.done",
}  # fmt: skip
MESSAGE_TEXT = {
    "response.output_text.delta", "response.output_text.done", "response.refusal.delta", "response.refusal.done"
}  # fmt: skip
NEVER_NULL = {
    "id", "object", "created_at", "status", "background", "model", "output", "tools", "tool_choice",
    "parallel_tool_calls", "temperature", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs", "text",
    "truncation", "store", "service_tier", "metadata",
}  # fmt: skip
NULLABLE = {
    "completed_at", "error", "incomplete_details", "instructions", "previous_response_id", "conversation",
    "max_output_tokens", "max_tool_calls", "reasoning", "safety_identifier", "prompt_cache_key", "usage",
}  # fmt: skip
ERROR_CODES = {
    "server_error", "rate_limit_exceeded", "invalid_prompt", "data_residency_mismatch", "bio_policy",
    "vector_store_timeout", "invalid_image", "invalid_image_format", "invalid_base64_image", "invalid_image_url",
    "image_too_large", "image_too_small", "image_parse_error", "image_content_policy_violation", "invalid_image_mode",
    "image_file_too_large", "unsupported_image_media_type", "empty_image_file", "failed_to_download_image",
    "image_file_not_found", "context_length_exceeded",
}  # fmt: skip

_FRAME = re.compile(rb"event: ([^\r\n]+)\ndata: ([^\r\n]+)")
_EVENT_CLASSES = {
    name: event_class
    for event_class in get_args(get_args(ResponseStreamEvent)[0])
    for name in get_args(event_class.model_fields["type"].annotation)
}


def frames_of(stream: bytes) -> list[bytes]:
    """The frames of a stream that vLLM or we wrote: each ends in one empty line, none is empty."""
    frames = stream.split(b"\n\n")
    assert frames.pop() == b"", "the last frame is not ended"
    return frames


def events_in(stream: bytes) -> list[dict[str, Any]]:
    """The events of a whole client's stream; its frames are of the one form that every client reads."""
    frames = frames_of(stream)
    assert frames.pop() == b"data: [DONE]"
    return [_event(frame) for frame in frames]


def assert_grammar(stream: bytes) -> list[dict[str, Any]]:
    """The events of a whole client's stream, which follow the grammar."""
    events = events_in(stream)
    types = [event["type"] for event in events]
    assert types[:2] == ["response.created", "response.in_progress"]
    assert not {"response.created", "response.in_progress", "response.queued"} & set(types[2:])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events if event["type"] in TERMINAL] == [types[-1]]
    assert types[-1] == f"response.{events[-1]['response']['status']}"
    of_no_item = [event for event in events if "output_index" not in event]
    _assert_responses([event["response"] for event in of_no_item if isinstance(event.get("response"), dict)])
    _assert_items(events)
    _assert_parts(events)
    return events


def assert_response(response: dict[str, Any]) -> None:
    """A response object as the contract has it (api.md 3), at any time of a turn."""
    assert not (NEVER_NULL | NULLABLE) - set(response)
    assert [name for name in NEVER_NULL if response[name] is None] == []
    assert "output_text" not in response
    assert response.get("user", "") is not None
    assert response["object"] == "response"
    assert type(response["created_at"]) is int
    assert response["truncation"] == "disabled"
    assert {"type"} <= set(response["text"]["format"])
    if response["reasoning"] is not None:
        assert {"effort", "summary", "context"} <= set(response["reasoning"])
    for tool in response["tools"]:
        assert tool["type"] != "function" or {"name", "description", "parameters", "strict"} <= set(tool)
    status = response["status"]
    assert (type(response["completed_at"]) is int) == (status == "completed")
    assert (response["error"] is not None) == (status == "failed")
    assert (response["incomplete_details"] is not None) == (status == "incomplete")
    if status == "failed":
        assert set(response["error"]) == {"code", "message"}
        assert response["error"]["code"] in ERROR_CODES
        assert response["error"]["message"]
    if status == "in_progress":
        assert (response["output"], response["usage"]) == ([], None)
    if response["usage"] is not None:
        _assert_usage(response["usage"])


def assert_openai_accepts(events: list[dict[str, Any]]) -> None:
    """openai-python's strict types take every event, and its `responses.stream()` accumulates them."""
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in events:
        if event["type"] in _EVENT_CLASSES:
            _EVENT_CLASSES[event["type"]].model_validate(event)
        state.handle_event(construct_type_unchecked(type_=ResponseStreamEvent, value=event))


def _event(frame: bytes) -> dict[str, Any]:
    match = _FRAME.fullmatch(frame)
    assert match, frame
    event: dict[str, Any] = json.loads(match[2].decode())
    assert event["type"] == match[1].decode()
    return event


def _assert_responses(responses: list[dict[str, Any]]) -> None:
    for response in responses:
        assert_response(response)
        assert (response["id"], response["created_at"]) == (responses[0]["id"], responses[0]["created_at"])
    assert all(response["status"] == "in_progress" for response in responses[:-1])


def _assert_usage(usage: dict[str, Any]) -> None:
    numbers = [usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]]
    numbers += [usage["input_tokens_details"][name] for name in ("cached_tokens", "cache_write_tokens")]
    numbers += [usage["output_tokens_details"]["reasoning_tokens"]]
    assert all(type(number) is int for number in numbers)


def _assert_items(events: list[dict[str, Any]]) -> None:
    """Items are announced in order and done once, and whatever names one names it alike."""
    announced: list[str] = []
    done: dict[int, dict[str, Any]] = {}
    for event in events:
        index = event.get("output_index")
        if event["type"] == "response.output_item.added":
            assert index == len(announced)
            announced.append(event["item"]["id"])
        elif event["type"] == "response.output_item.done":
            assert event["item"]["id"] == announced[index]
            assert index not in done
            done[index] = event["item"]
        elif isinstance(event.get("item_id"), str) and "response" not in event:
            assert event["item_id"] == announced[index]
        assert event["type"] not in PART_EVENTS or index not in done
    assert all(announced)
    assert len(set(announced)) == len(announced)
    assert events[-1]["response"]["output"] == [done[index] for index in sorted(done)]
    assert events[-1]["type"] == "response.failed" or len(done) == len(announced)


def _assert_parts(events: list[dict[str, Any]]) -> None:
    """Parts count from 0 in each item, and text of a message goes into a part that was announced."""
    begun: dict[int, int] = {}
    announced: set[tuple[int, int]] = set()
    for event in events:
        if event["type"] not in PART_EVENTS:
            continue
        index, part = event["output_index"], event["content_index"]
        assert 0 <= part <= begun.get(index, 0), "a part was skipped"
        begun[index] = max(begun.get(index, 0), part + 1)
        if event["type"] == "response.content_part.added":
            announced.add((index, part))
        assert event["type"] not in MESSAGE_TEXT or (index, part) in announced
