"""Ids: their prefixes, new ones, and what a text must be to serve as a key.

Any id that a client or an upstream brings is taken as it is (contract api.md 3); ours are a prefix and 48 hex digits.
"""

import re
import secrets

KEY_LENGTH_MAX = 256

_UNUSABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_RESPONSE_ID = re.compile("resp_[0-9a-f]{48}")
_CONVERSATION_ID = re.compile("conv_[0-9a-f]{48}")
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "file_search_call": "fs",
    "web_search_call": "ws",
    "code_interpreter_call": "ci",
    "image_generation_call": "ig",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
    "computer_call": "cu",
    "computer_call_output": "cuo",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
    "shell_call": "sh",
    "apply_patch_call": "apc",
    "compaction": "cmp",
    "program": "prog",
}


def new_response_id() -> str:
    return f"resp_{secrets.token_hex(24)}"


def new_conversation_id() -> str:
    return f"conv_{secrets.token_hex(24)}"


def is_response_id(text: str) -> bool:
    """Whether a text is of the form that all responses' ids have, which no client chooses."""
    return _RESPONSE_ID.fullmatch(text) is not None


def is_conversation_id(text: str) -> bool:
    """Whether a text is of the form that all conversations' ids have, which no client chooses."""
    return _CONVERSATION_ID.fullmatch(text) is not None


def new_item_id(item_type: str) -> str:
    """A fresh id with the prefix of the item's type; `item_` for a type that the contract does not name."""
    return f"{_PREFIXES.get(item_type, 'item')}_{secrets.token_hex(24)}"


def is_usable(text: str) -> bool:
    """Whether a text can be a column or a key: no control characters, no surrogates, at most KEY_LENGTH_MAX long."""
    return 0 < len(text) <= KEY_LENGTH_MAX and not _UNUSABLE.search(text)
