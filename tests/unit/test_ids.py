"""Ids: which prefix they have, and which texts may serve as one."""

import re

import pytest

from server.protocol import ids

# contract api.md 3; the output of a local shell is ours to name, since the contract gives it none.
PREFIXES = [
    ("message", "msg"), ("reasoning", "rs"), ("function_call", "fc"), ("function_call_output", "fco"),
    ("custom_tool_call", "ctc"), ("custom_tool_call_output", "ctco"), ("file_search_call", "fs"),
    ("web_search_call", "ws"), ("code_interpreter_call", "ci"), ("image_generation_call", "ig"), ("mcp_call", "mcp"),
    ("mcp_list_tools", "mcpl"), ("mcp_approval_request", "mcpr"), ("mcp_approval_response", "mcpa"),
    ("computer_call", "cu"), ("computer_call_output", "cuo"), ("local_shell_call", "lsh"), ("shell_call", "sh"),
    ("apply_patch_call", "apc"), ("compaction", "cmp"), ("program", "prog"),
    ("local_shell_call_output", "lsho"), ("x_thing", "item"), ("", "item"),
]  # fmt: skip


@pytest.mark.parametrize(("item_type", "prefix"), PREFIXES)
def test_an_item_gets_an_id_with_the_prefix_of_its_type(item_type: str, prefix: str) -> None:
    assert re.fullmatch(rf"{prefix}_[0-9a-f]{{48}}", ids.new_item_id(item_type))


def test_a_response_gets_an_id_with_its_prefix() -> None:
    assert re.fullmatch(r"resp_[0-9a-f]{48}", ids.new_response_id())


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("conv_" + "0123456789abcdef" * 3, True),
        ("conv_" + "0123456789ABCDEF" * 3, False),
        ("conv_" + "0" * 47, False),
        ("conv_" + "0" * 49, False),
        ("resp_" + "0" * 48, False),
        ("conv_" + "0" * 48 + "\n", False),
        ("conv_secret", False),
        ("", False),
    ],
)
def test_which_ids_can_be_those_of_conversations(text: str, is_one: bool) -> None:
    assert ids.is_conversation_id(text) is is_one
    assert ids.is_conversation_id(ids.new_conversation_id())


def test_no_two_ids_are_the_same() -> None:
    assert len({ids.new_item_id("message") for _ in range(1000)} | {ids.new_response_id() for _ in range(1000)}) == 2000


@pytest.mark.parametrize(
    "text", ["x", "msg_1", "Grüße 🦓", "a b", " ", "\u2028", "\xa0", "\ufffe", "\U0010ffff", "x" * 256, "'\"\\;--"]
)
def test_a_text_can_be_a_key(text: str) -> None:
    assert ids.is_usable(text)


@pytest.mark.parametrize(
    "text", ["", "x" * 257, "\0", "a\nb", "a\x1f", "\x7f", "\x80", "\x9f", "\ud800", "a\udfff", "\ud83d\ude42"]
)
def test_a_text_cannot_be_a_key(text: str) -> None:
    assert not ids.is_usable(text)
