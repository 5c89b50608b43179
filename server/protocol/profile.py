"""What an upstream can read, as data. Replay decides by it, and no code names a model server."""

from typing import Literal

import msgspec


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What may be sent to an upstream.

    `item_members` has the members of each item type that are sent, `type` besides; other types are left out.
    `encrypted_only` says what becomes of an item whose only content is sealed: the request is refused, or the item is
    left out. `own_members` are never taken from a client; `withheld_members` are echoed to it and not sent.
    """

    item_members: dict[str, tuple[str, ...]]
    tool_types: frozenset[str]
    includable: frozenset[str]
    own_members: frozenset[str]
    withheld_members: frozenset[str]
    encrypted_only: Literal["refuse", "omit"] = "refuse"


# contract vllm.md 2, 3 and 10: what vLLM's /v1/responses takes for every model but gpt-oss.
VLLM = Profile(
    item_members={
        "message": ("id", "role", "content", "phase"),
        "reasoning": ("id", "summary", "content"),
        "function_call": ("id", "call_id", "namespace", "name", "arguments"),
        "function_call_output": ("id", "call_id", "output"),
        "custom_tool_call": ("id", "call_id", "namespace", "name", "input"),
        "custom_tool_call_output": ("id", "call_id", "output"),
    },
    tool_types=frozenset({"function", "namespace", "custom"}),
    includable=frozenset(
        {
            "code_interpreter_call.outputs",
            "computer_call_output.output.image_url",
            "file_search_call.results",
            "message.input_image.image_url",
            "message.output_text.logprobs",
            "reasoning.encrypted_content",
        }
    ),
    own_members=frozenset(
        {
            "request_id",
            "store",
            "stream",
            "previous_response_id",
            "conversation",
            "background",
            "cache_salt",
            "previous_input_messages",
            "kv_transfer_params",
            "ec_transfer_params",
        }
    ),
    withheld_members=frozenset(
        {
            "background_options",
            "context_management",
            "moderation",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "stream_options",
            "truncation",
        }
    ),
)
