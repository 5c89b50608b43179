"""What an upstream can read, as data: presets by name. Replay decides by it, and no code names a model server."""

from typing import Literal

import msgspec


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be sent to an upstream.

    `item_members` has the members of each item type that are sent, `type` besides; other types are left out.
    `part_members` has those of each type of content part, other types being left out; None sends parts as they are.

    `reasoning` says what becomes of reasoning: its `plaintext` alone is sent; or `opaque`, its summary and sealed state
    too, the latter to its issuer only; or `none` of it. `families` are prefixes of model names: the models of one share
    sealed state among them and with no other. `encrypted_only` says what becomes of an item of which nothing but sealed
    content could be read: the request is refused, or the item is left out.

    `own_members` of a request are never taken from a client; `withheld_members` are echoed to it and not sent. All
    others are, or those of `request_members` where that is not None.

    In the chat dialect a reasoning text is sent in the field that carried it, if it is one of `reasoning_fields`; if
    not, or where that is not known, in those of `without_record`. `sends_reasoning_details` sends recorded
    `reasoning_details` back. `developer_role` is what a developer's message is called.
    """

    dialect: Literal["responses", "chat"]
    item_members: dict[str, tuple[str, ...]]
    part_members: dict[str, tuple[str, ...]] | None = None
    reasoning: Literal["plaintext", "opaque", "none"]
    families: tuple[str, ...] = ()
    encrypted_only: Literal["refuse", "omit"] = "refuse"
    assistant_parts: Literal["joined", "kept"]
    refusals: Literal["as_text", "kept"]
    blank_beside_call: Literal["left_out", "kept"]
    output_parts: Literal["as_text", "kept"] = "kept"
    custom_tools: Literal["kept", "without_grammar", "as_functions"]
    tool_types: frozenset[str]
    request_members: frozenset[str] | None = None
    own_members: frozenset[str]
    withheld_members: frozenset[str]
    includable: frozenset[str] = frozenset()
    takes_response_id: bool = False
    takes_cache_salt: bool = False
    takes_reasoning_summary: bool = True
    reasoning_fields: tuple[str, ...] = ()
    without_record: tuple[str, ...] = ()
    sends_reasoning_details: bool = False
    developer_role: Literal["developer", "system"] = "developer"

    def issuer(self, upstream_name: str, model: str) -> str:
        """Who can read the sealed state that this model makes there (DESIGN 6): the upstream, or a family of models."""
        family = next((prefix for prefix in self.families if model.startswith(prefix)), None)
        return upstream_name if family is None else f"{upstream_name}/{family}"


_PLAIN_ITEMS = {
    "message": ("id", "role", "content", "phase"),
    "reasoning": ("id", "summary", "content"),
    "function_call": ("id", "call_id", "namespace", "name", "arguments"),
    "function_call_output": ("id", "call_id", "output"),
}

# contract vllm.md 2, 3 and 10: what vLLM's /v1/responses takes for every model but gpt-oss.
VLLM = Profile(
    dialect="responses",
    item_members={
        **_PLAIN_ITEMS,
        "custom_tool_call": ("id", "call_id", "namespace", "name", "input"),
        "custom_tool_call_output": ("id", "call_id", "output"),
    },
    reasoning="plaintext",
    assistant_parts="joined",
    refusals="as_text",
    blank_beside_call="left_out",
    custom_tools="without_grammar",
    tool_types=frozenset({"function", "namespace", "custom"}),
    own_members=frozenset(
        {
            "request_id", "store", "stream", "previous_response_id", "conversation", "background", "cache_salt",
            "previous_input_messages", "kv_transfer_params", "ec_transfer_params",
        }
    ),
    withheld_members=frozenset(
        {
            "background_options", "context_management", "moderation", "prompt_cache_key", "prompt_cache_options",
            "prompt_cache_retention", "safety_identifier", "service_tier", "stream_options", "truncation",
        }
    ),
    includable=frozenset(
        {
            "code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results",
            "message.input_image.image_url", "message.output_text.logprobs", "reasoning.encrypted_content",
        }
    ),
    takes_response_id=True,
    takes_cache_salt=True,
)  # fmt: skip

# contract vllm.md 3, Harmony: gpt-oss reads no custom tools, and an output as a string only.
VLLM_HARMONY = msgspec.structs.replace(
    VLLM,
    item_members=_PLAIN_ITEMS,
    output_parts="as_text",
    tool_types=frozenset({"function", "code_interpreter", "mcp", "web_search_preview"}),
)

# contract api.md 7: the members that each item has as input in the published schema. None has `status` but where it is
# required there, or says what became of a call that the client carried out.
_PUBLISHED_ITEMS: dict[str, tuple[str, ...]] = {
    "message": ("id", "role", "content", "phase"),
    "reasoning": ("id", "summary", "content", "encrypted_content"),
    "function_call": ("id", "call_id", "caller", "namespace", "name", "arguments"),
    "function_call_output": ("id", "call_id", "name", "namespace", "caller", "output"),
    "custom_tool_call": ("id", "call_id", "caller", "namespace", "name", "input"),
    "custom_tool_call_output": ("id", "call_id", "caller", "output"),
    "file_search_call": ("id", "status", "queries", "results"),
    "computer_call": ("id", "call_id", "action", "actions", "pending_safety_checks", "status"),
    "computer_call_output": ("id", "call_id", "output", "acknowledged_safety_checks"),
    "web_search_call": ("id", "status", "action"),
    "tool_search_call": ("id", "call_id", "execution", "arguments"),
    "tool_search_output": ("id", "call_id", "execution", "tools"),
    "additional_tools": ("id", "role", "tools"),
    "compaction": ("id", "encrypted_content"),
    "image_generation_call": ("id", "status", "result"),
    "code_interpreter_call": ("id", "status", "container_id", "code", "outputs"),
    "local_shell_call": ("id", "call_id", "action", "status"),
    "local_shell_call_output": ("id", "output"),
    "shell_call": ("id", "call_id", "caller", "action", "environment"),
    "shell_call_output": ("id", "call_id", "caller", "output", "max_output_length"),
    "apply_patch_call": ("id", "call_id", "caller", "status", "operation"),
    "apply_patch_call_output": ("id", "call_id", "caller", "status", "output"),
    "mcp_list_tools": ("id", "server_label", "tools", "error"),
    "mcp_approval_request": ("id", "server_label", "name", "arguments"),
    "mcp_approval_response": ("id", "approval_request_id", "approve", "reason"),
    "mcp_call": ("id", "server_label", "name", "arguments", "output", "error", "approval_request_id"),
    "program": ("id", "call_id", "code", "fingerprint"),
    "program_output": ("id", "call_id", "result", "status"),
}
_PUBLISHED_PARTS: dict[str, tuple[str, ...]] = {
    "input_text": ("text", "prompt_cache_breakpoint"),
    "input_image": ("image_url", "file_id", "detail", "prompt_cache_breakpoint"),
    "input_file": ("file_id", "file_url", "file_data", "filename", "detail", "prompt_cache_breakpoint"),
    "output_text": ("text", "annotations", "logprobs"),
    "refusal": ("refusal",),
    "summary_text": ("text",),
    "reasoning_text": ("text",),
    "computer_screenshot": ("image_url", "file_id"),
}
_PUBLISHED_TOOLS = frozenset(
    {
        "function", "file_search", "computer", "computer_use_preview", "web_search", "web_search_2025_08_26",
        "web_search_preview", "web_search_preview_2025_03_11", "mcp", "code_interpreter",
        "programmatic_tool_calling", "image_generation", "local_shell", "shell", "custom", "namespace", "tool_search",
        "apply_patch",
    }
)  # fmt: skip

# contract api.md 2, without what is ours to do (history, storage, background, truncation).
_PUBLISHED_REQUEST = frozenset(
    {
        "model", "instructions", "tools", "tool_choice", "parallel_tool_calls", "max_tool_calls",
        "max_output_tokens", "temperature", "top_p", "top_logprobs", "text", "reasoning", "metadata", "include",
        "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "user",
        "service_tier", "stream_options", "moderation",
    }
)  # fmt: skip

OPENAI = Profile(
    dialect="responses",
    item_members=_PUBLISHED_ITEMS,
    part_members=_PUBLISHED_PARTS,
    reasoning="opaque",
    assistant_parts="kept",
    refusals="kept",
    blank_beside_call="kept",
    custom_tools="kept",
    tool_types=_PUBLISHED_TOOLS,
    request_members=_PUBLISHED_REQUEST,
    own_members=VLLM.own_members,
    withheld_members=frozenset({"background_options", "context_management", "truncation"}),
    includable=frozenset(
        {
            "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
            "message.input_image.image_url", "computer_call_output.output.image_url",
            "code_interpreter_call.outputs", "reasoning.encrypted_content", "message.output_text.logprobs",
        }
    ),
)  # fmt: skip

# Nothing but what every server of the published schema must take: no tools that it would have to run by itself.
STRICT = msgspec.structs.replace(
    OPENAI,
    item_members={
        name: _PUBLISHED_ITEMS[name]
        for name in (
            "message", "reasoning", "function_call", "function_call_output", "custom_tool_call",
            "custom_tool_call_output",
        )
    },
    tool_types=frozenset({"function", "custom"}),
    request_members=_PUBLISHED_REQUEST - {"moderation", "prompt_cache_options", "prompt_cache_retention"},
    includable=frozenset({"reasoning.encrypted_content", "message.output_text.logprobs"}),
)  # fmt: skip

# In the chat dialect `request_members` are the Responses request's own, each of which has its counterpart there.
_CHAT_ITEMS = {
    "message": ("role", "content"),
    "reasoning": ("content",),
    "function_call": ("call_id", "namespace", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "namespace", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
}
_CHAT_PARTS = {
    "input_text": ("text",),
    "input_image": ("image_url", "detail"),
    "input_file": ("file_id", "file_data", "filename"),
    "output_text": ("text", "annotations"),
    "refusal": ("refusal",),
    "reasoning_text": ("text",),
}

STRICT_CHAT = Profile(
    dialect="chat",
    item_members=_CHAT_ITEMS,
    part_members=_CHAT_PARTS,
    reasoning="none",
    assistant_parts="joined",
    refusals="kept",
    blank_beside_call="kept",
    output_parts="as_text",
    custom_tools="kept",
    tool_types=frozenset({"function", "namespace", "custom"}),
    request_members=frozenset(
        {
            "model", "instructions", "tools", "tool_choice", "parallel_tool_calls", "max_output_tokens", "temperature",
            "top_p", "top_logprobs", "text", "reasoning", "include", "prompt_cache_key",
            "safety_identifier", "user", "service_tier", "frequency_penalty", "presence_penalty",
        }
    ),
    own_members=VLLM.own_members,
    withheld_members=VLLM.withheld_members - {"prompt_cache_key", "safety_identifier", "service_tier"},
    includable=frozenset({"message.output_text.logprobs"}),
)  # fmt: skip

# contract vllm.md 9: one vLLM names reasoning `reasoning`, an older one `reasoning_content`; each reads its own.
CHAT_VLLM = msgspec.structs.replace(
    STRICT_CHAT,
    reasoning="plaintext",
    refusals="as_text",
    blank_beside_call="left_out",
    output_parts="kept",
    custom_tools="as_functions",
    developer_role="system",
    # Sampling of vLLM's own and whatever else its users send; `request_id` is the id of its log and of its reply.
    request_members=None,
    withheld_members=VLLM.withheld_members,
    takes_response_id=True,
    takes_cache_salt=True,
    reasoning_fields=("reasoning", "reasoning_content"),
    without_record=("reasoning", "reasoning_content"),
)

# OpenRouter takes reasoning back as it gave it, in `reasoning_details`, and judges signatures in them.
OPENROUTER = msgspec.structs.replace(
    STRICT_CHAT,
    reasoning="opaque",
    refusals="as_text",
    output_parts="kept",
    custom_tools="as_functions",
    developer_role="system",
    sends_reasoning_details=True,
)

PRESETS: dict[str, Profile] = {
    "vllm": VLLM,
    "vllm-harmony": VLLM_HARMONY,
    "openai": OPENAI,
    "strict": STRICT,
    "chat-vllm": CHAT_VLLM,
    "openrouter": OPENROUTER,
    "strict-chat": STRICT_CHAT,
}
