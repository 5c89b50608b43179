"""What vLLM reads, as data: each entry is held against the contract, and the items against recorded requests."""

import json
from typing import Any

import msgspec
import pytest

from server.protocol.profile import VLLM
from tests.harness import captures


def test_an_item_that_holds_only_sealed_content_is_refused_unless_a_setting_says_otherwise() -> None:
    assert VLLM.encrypted_only == "refuse"
    assert msgspec.structs.replace(VLLM, encrypted_only="omit").encrypted_only == "omit"


def test_a_profile_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        VLLM.encrypted_only = "omit"  # type: ignore[misc]


def test_only_the_types_that_vllm_reads_are_sent() -> None:
    """contract vllm.md 3: every other type is a 400 there."""
    assert set(VLLM.item_members) == {
        "message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
    }  # fmt: skip


@pytest.mark.parametrize("member", ["status", "encrypted_content", "logprobs", "caller", "async", "created_by"])
def test_members_that_vllm_stumbles_over_or_ignores_are_never_sent(member: str) -> None:
    assert not [item_type for item_type, members in VLLM.item_members.items() if member in members]


def test_include_is_filtered_to_the_six_that_vllm_knows() -> None:
    """contract vllm.md 2: any other literal is a 400 there."""
    assert VLLM.includable == {
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "message.output_text.logprobs",
        "reasoning.encrypted_content",
    }


@pytest.mark.parametrize(
    "member",
    ["request_id", "store", "stream", "previous_response_id", "conversation", "background", "cache_salt",
     "previous_input_messages", "kv_transfer_params", "ec_transfer_params"],
)  # fmt: skip
def test_what_is_ours_alone_is_never_taken_from_a_client(member: str) -> None:
    """DESIGN 6, request members."""
    assert member in VLLM.own_members


def test_truncation_is_never_sent() -> None:
    """vLLM would cut the prompt silently (contract vllm.md 2)."""
    assert "truncation" in VLLM.withheld_members
    assert not VLLM.withheld_members & VLLM.own_members


@pytest.mark.parametrize("item_type", ["message", "reasoning", "function_call", "function_call_output",
                                       "custom_tool_call", "custom_tool_call_output"])  # fmt: skip
def test_vllm_accepted_items_of_the_types_that_are_sent(item_type: str) -> None:
    assert any(item["type"] == item_type for item in accepted_items())


@pytest.mark.parametrize("item_type", ["mcp_call", "web_search_call", "compaction", "x_thing", "item_reference"])
def test_vllm_refused_items_of_types_that_are_left_out(item_type: str) -> None:
    assert item_type not in VLLM.item_members
    assert any(item_type in (capture.request or "") for capture in captures("0.33") if capture.status == 400)
    assert not any(item["type"] == item_type for item in accepted_items())


def accepted_items() -> list[dict[str, Any]]:
    """The typed input items of every recorded request that vLLM 0.33 answered with 200."""
    accepted = [json.loads(capture.request or "{}") for capture in captures("0.33") if capture.status == 200]
    lists = [request["input"] for request in accepted if isinstance(request.get("input"), list)]
    return [item for items in lists for item in items if "type" in item]
