"""What each profile sends of every item type, by hand from the contract (api.md 7, vllm.md 3) and DESIGN 6."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.errors import ApiError
from server.protocol import raw
from server.protocol.context import whole
from server.protocol.history import Past
from server.protocol.items import Item, from_upstream, parse_input
from server.protocol.profile import OPENAI, PRESETS, Profile
from server.protocol.replay import Decision, replay

RESPONSES = ("vllm", "vllm-harmony", "openai", "strict")
CHAT = ("chat-vllm", "openrouter", "strict-chat")
NOISE = {"status": "completed", "created_by": "x", "provider_member": 1, "absent": None}

# One item of each type, with all that its profile may send and more; and what `openai` gets of it.
HOSTED: dict[str, dict[str, Any]] = {
    "file_search_call": {"id": "i", "status": "completed", "queries": ["q"], "results": [{"text": "t"}]},
    "web_search_call": {"id": "i", "status": "completed", "action": {"type": "search", "query": "q"}},
    "tool_search_call": {"id": "i", "call_id": "c", "execution": "client", "arguments": {}},
    "tool_search_output": {"id": "i", "call_id": "c", "execution": "client", "tools": []},
    "additional_tools": {"id": "i", "role": "developer", "tools": []},
    "image_generation_call": {"id": "i", "status": "completed", "result": "r"},
    "code_interpreter_call": {"id": "i", "status": "completed", "container_id": "k", "code": "x", "outputs": []},
    "mcp_list_tools": {"id": "i", "server_label": "l", "tools": [], "error": "e"},
    "mcp_approval_request": {"id": "i", "server_label": "l", "name": "n", "arguments": "{}"},
    "mcp_approval_response": {"id": "i", "approval_request_id": "r", "approve": True, "reason": "y"},
    "mcp_call": {"id": "i", "server_label": "l", "name": "n", "arguments": "{}", "output": "o"},
    "program": {"id": "i", "call_id": "c", "code": "x", "fingerprint": "f"},
    "program_output": {"id": "i", "call_id": "c", "result": "r", "status": "completed"},
}
ASKED = {"type": "message", "role": "user", "content": "q"}


def made(item: dict[str, Any], issuer: str = "up", fidelity: bytes | None = None) -> Item:
    return from_upstream(raw.Object(json.dumps(item).encode()), item.get("id", "i"), issuer, fidelity)


def decided(profile: Profile, *output: Item, given_input: Sequence[dict[str, Any]] = (ASKED,)) -> list[Decision]:
    """What becomes of a turn's output in front of the next question, and of that."""
    parsed = parse_input(json.dumps(list(given_input)).encode())
    return replay(whole(Past(turns=[list(output)] if output else []), parsed), profile, "previous_response_id", "up")


def sent(profile: str, item: dict[str, Any], **members: Any) -> dict[str, Any] | str:
    """The copy of one item of an upstream, or the rule by which there is none."""
    decision = decided(PRESETS[profile], made(item, **members))[0]
    return decision.rule if decision.copy is None else json.loads(decision.copy)


@pytest.mark.parametrize("item_type", HOSTED)
def test_items_of_hosted_tools(item_type: str) -> None:
    item = {"type": item_type, **HOSTED[item_type]}
    for profile in PRESETS:
        wanted: Any = item if profile == "openai" else "type_not_readable"
        assert sent(profile, NOISE | item) == wanted, profile


@pytest.mark.parametrize(
    ("call", "output"),
    [
        (
            {"type": "computer_call", "id": "i", "call_id": "c", "action": {"type": "click"}, "status": "completed"},
            {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}},
        ),
        (
            {"type": "shell_call", "id": "i", "call_id": "c", "action": {"commands": ["ls"]}},
            {"type": "shell_call_output", "call_id": "c", "output": [], "max_output_length": 3},
        ),
        (
            {"type": "apply_patch_call", "id": "i", "call_id": "c", "status": "completed", "operation": {"type": "x"}},
            {"type": "apply_patch_call_output", "call_id": "c", "status": "completed", "output": "o"},
        ),
        (
            {"type": "local_shell_call", "id": "i", "call_id": "c", "action": {"type": "exec"}, "status": "completed"},
            {"type": "local_shell_call_output", "id": "c", "output": "o"},
        ),
    ],
    ids=lambda item: item["type"],
)
def test_calls_that_a_client_carries_out(call: dict[str, Any], output: dict[str, Any]) -> None:
    for profile in PRESETS:
        decisions = decided(PRESETS[profile], made(call | {"provider_member": 1}), given_input=[output | {"x": 1}])
        copies = [json.loads(decision.copy) for decision in decisions if decision.copy is not None]
        assert copies == ([call, output] if profile == "openai" else []), profile


@pytest.mark.parametrize("profile", PRESETS)
def test_a_type_that_nobody_knows_is_left_out(profile: str) -> None:
    assert sent(profile, {"type": "x_thing", "id": "i", "content": "t"}) == "type_not_readable"


# --- the types that models make


def test_a_function_call_and_its_output() -> None:
    call = {"type": "function_call", "id": "i", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "o"}
    without_id = {name: value for name, value in call.items() if name != "id"}
    for profile in PRESETS:
        decisions = decided(PRESETS[profile], made(NOISE | call), given_input=[output | {"status": "completed"}])
        copies = [json.loads(decision.copy or b"") for decision in decisions]
        assert copies == [call if profile in RESPONSES else without_id, output], profile
        assert [decision.rule for decision in decisions] == ["call", "output"]


def test_an_output_in_parts_is_its_text_where_parts_are_not_read() -> None:
    call = {"type": "function_call", "id": "i", "call_id": "c", "name": "f", "arguments": "{}"}
    parts = [{"type": "input_text", "text": "a", "x": 1}, {"type": "input_image", "image_url": "u"},
             {"type": "input_text", "text": "b"}]  # fmt: skip
    output = {"type": "function_call_output", "call_id": "c", "output": parts}
    for profile in PRESETS:
        decision = decided(PRESETS[profile], made(call), given_input=[output])[1]
        found = json.loads(decision.copy or b"")["output"]
        if profile in ("vllm-harmony", "strict-chat"):
            assert (found, decision.rule) == ("a\nb", "output_as_text")
        else:
            first = parts[0] if profile == "vllm" else {"type": "input_text", "text": "a"}
            assert found == [first, {"type": "input_image", "image_url": "u", "detail": "auto"}, parts[2]], profile


def test_a_custom_tools_call() -> None:
    call = {"type": "custom_tool_call", "id": "i", "call_id": "c", "name": "f", "input": "x"}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "o"}
    for profile in PRESETS:
        decisions = decided(PRESETS[profile], made(NOISE | call), given_input=[output])
        rules = [decision.rule for decision in decisions]
        assert rules == (["type_not_readable"] * 2 if profile == "vllm-harmony" else ["call", "output"]), profile


@pytest.mark.parametrize("profile", PRESETS)
def test_a_call_that_was_cut_is_sent_with_its_output_and_left_out_without(profile: str) -> None:
    call = {"type": "function_call", "id": "i", "call_id": "c", "name": "f", "arguments": '{"a', "status": "incomplete"}
    assert sent(profile, call) == "cut_call"
    output = {"type": "function_call_output", "call_id": "c", "output": "o"}
    decisions = decided(PRESETS[profile], made(call), given_input=[output])
    assert [(decision.action, decision.rule) for decision in decisions] == [("changed", "cut_call"), ("kept", "output")]
    assert json.loads(decisions[0].copy or b"")["arguments"] == "{}"


def test_a_message_of_several_parts() -> None:
    content = [
        {"type": "output_text", "text": "a", "annotations": [], "logprobs": [], "x": 1},
        {"type": "refusal", "refusal": "no", "x": 1},
        {"type": "output_text", "text": "b", "annotations": []},
    ]
    item = {"type": "message", "id": "i", "role": "assistant", "status": "completed", "phase": "p", "content": content}
    one = {"type": "output_text", "annotations": []}
    whole_text = [one | {"text": "anob"}]
    as_they_are = [one | {"text": "a", "logprobs": []}, {"type": "refusal", "refusal": "no"}, one | {"text": "b"}]
    wanted = {
        "vllm": whole_text,
        "vllm-harmony": whole_text,
        "chat-vllm": whole_text,
        "openrouter": whole_text,
        "openai": as_they_are,
        "strict": as_they_are,
        "strict-chat": [one | {"text": "ab"}, {"type": "refusal", "refusal": "no"}],
    }
    for profile in PRESETS:
        head = {"type": "message", "role": "assistant"} | ({"id": "i", "phase": "p"} if profile in RESPONSES else {})
        assert sent(profile, item) == head | {"content": wanted[profile]}, profile


@pytest.mark.parametrize("profile", PRESETS)
def test_an_empty_message_is_left_out(profile: str) -> None:
    assert sent(profile, {"type": "message", "id": "i", "role": "assistant", "content": []}) == "empty"


def test_white_space_beside_a_call() -> None:
    blank = made(
        {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "\n"}]}
    )
    call = made({"type": "function_call", "id": "i", "call_id": "c", "name": "f", "arguments": "{}"})
    output = {"type": "function_call_output", "call_id": "c", "output": "o"}
    for profile in PRESETS:
        decision = decided(PRESETS[profile], blank, call, given_input=[output])[0]
        is_left_out = profile in ("vllm", "vllm-harmony", "chat-vllm")
        assert decision.rule == ("blank_beside_call" if is_left_out else "message"), profile


# --- reasoning


def reasoning(**members: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": "i", "summary": [], **members}


TEXT = [{"type": "reasoning_text", "text": "t", "x": 1}]
SENT_TEXT = [{"type": "reasoning_text", "text": "t"}]
SUMMARY = [{"type": "summary_text", "text": "s"}]


def test_plaintext() -> None:
    wanted: dict[str, Any] = {
        **dict.fromkeys(RESPONSES, reasoning(content=SENT_TEXT)),
        "chat-vllm": {"type": "reasoning", "content": SENT_TEXT},
        "openrouter": "no_field_for_reasoning",
        "strict-chat": "reasoning_not_taken",
    }
    for profile in PRESETS:
        assert sent(profile, NOISE | reasoning(content=TEXT, encrypted_content=None)) == wanted[profile], profile


def test_an_item_crosses_to_openai_with_exactly_the_five() -> None:
    item = reasoning(content=TEXT, encrypted_content="E")
    item["summary"] = SUMMARY
    assert sent("openai", NOISE | item) == {
        "type": "reasoning",
        "id": "i",
        "summary": SUMMARY,
        "content": SENT_TEXT,
        "encrypted_content": "E",
    }


@pytest.mark.parametrize("issuer", ["other", "up/gpt-5"])
def test_sealed_state_of_others_is_left_out_beside_plaintext_and_refused_alone(issuer: str) -> None:
    both = made(reasoning(content=TEXT, encrypted_content="E"), issuer)
    sealed = made(reasoning(encrypted_content="E"), issuer)
    for profile in PRESETS:
        copy = decided(PRESETS[profile], both)[0].copy
        assert copy is None or "encrypted_content" not in json.loads(copy)
        with pytest.raises(ApiError) as refused:
            decided(PRESETS[profile], sealed)
        assert (refused.value.status, refused.value.code) == (400, "encrypted_reasoning_not_supported")


def test_sealed_state_goes_to_its_issuer_as_it_came() -> None:
    item = reasoning(encrypted_content="E")
    item["summary"] = SUMMARY
    for profile in ("openai", "strict"):
        assert sent(profile, item) == item
    for profile in ("vllm", "vllm-harmony", *CHAT):
        with pytest.raises(ApiError):
            sent(profile, item)


def test_what_nobody_knows_the_issuer_of_is_judged_by_the_upstream() -> None:
    """The inline items of stateless clients: Codex, LangChain, the AI SDK and Pydantic AI send them (clients.md 16)."""
    item = {"type": "reasoning", "id": "rs_theirs", "summary": [], "encrypted_content": "E"}
    decisions = decided(OPENAI, given_input=[ASKED, item, {"role": "assistant", "content": "a"}, ASKED])
    assert json.loads(decisions[1].copy or b"") == item


def test_a_summary_is_sent_where_it_is_taken_and_is_never_reasoning() -> None:
    item = reasoning() | {"summary": SUMMARY}
    for profile in PRESETS:
        wanted = item if profile in ("openai", "strict") else "reasoning_not_taken"
        if profile in ("vllm", "vllm-harmony", "chat-vllm"):
            wanted = "summary_is_not_reasoning"
        if profile == "openrouter":
            wanted = "no_field_for_reasoning"
        assert sent(profile, item) == wanted, profile


def test_details_that_only_their_issuer_can_read_are_sealed_state() -> None:
    details = b'{"reasoning_details":[{"type":"reasoning.encrypted","data":"E"}]}'
    ours, others = (made(reasoning(content=[]), issuer, details) for issuer in ("up", "other"))
    decision = decided(PRESETS["openrouter"], ours)[0]
    assert (decision.rule, decision.details) == ("reasoning_details", b'[{"type":"reasoning.encrypted","data":"E"}]')
    for profile, item in [("openrouter", others), *((name, ours) for name in PRESETS if name != "openrouter")]:
        with pytest.raises(ApiError):
            decided(PRESETS[profile], item)


@pytest.mark.parametrize("detail", [b'{"type":"reasoning.summary","summary":"S"}', b'{"type":"x","data":""}'])
def test_details_without_a_payload_are_no_sealed_state(detail: bytes) -> None:
    item = made(reasoning(content=[]), "other", b'{"reasoning_details":[' + detail + b"]}")
    for profile in PRESETS:
        assert decided(PRESETS[profile], item)[0].copy is None, profile


@pytest.mark.parametrize(("model", "issuer"), [("gpt-5.1", "up/gpt-5"), ("o3", "up/o"), ("tiny", "up")])
def test_families_divide_an_upstream(model: str, issuer: str) -> None:
    assert msgspec.structs.replace(OPENAI, families=("gpt-5", "o")).issuer("up", model) == issuer
    assert OPENAI.issuer("up", model) == "up"


# --- any items


def texts() -> st.SearchStrategy[Any]:
    return st.text(max_size=5)


def any_items() -> st.SearchStrategy[list[dict[str, Any]]]:
    parts = st.lists(
        st.fixed_dictionaries(
            {"type": st.sampled_from(["output_text", "input_text", "refusal", "reasoning_text", "z"]), "text": texts()},
            optional={"refusal": texts(), "x": st.none() | st.integers()},
        ),
        max_size=3,
    )
    types = st.sampled_from(["message", "reasoning", "function_call", "custom_tool_call", "compaction", *HOSTED, "x"])
    return st.lists(
        st.fixed_dictionaries(
            {"type": types, "id": st.uuids().map(str)},
            optional={
                "role": st.sampled_from(["user", "assistant"]),
                "content": parts | texts() | st.none(),
                "summary": parts,
                "encrypted_content": st.sampled_from([None, "", "E"]),
                "status": st.sampled_from(["completed", "incomplete"]),
                "call_id": texts(),
                "name": texts(),
                "arguments": st.sampled_from(["{}", "{", '{"a":1}']),
                "provider": st.integers(),
            },
        ),
        min_size=1,
        max_size=6,
        unique_by=lambda item: item["id"],
    )


@settings(deadline=None)
@given(st.sampled_from(list(PRESETS)), any_items(), any_items(), st.sampled_from(["up", "other"]))
def test_any_items_are_refused_by_name_or_sent_by_the_lists(
    name: str, first: list[dict[str, Any]], second: list[dict[str, Any]], issuer: str
) -> None:
    profile = PRESETS[name]
    history = [[made(item, issuer) for item in turn] for turn in (first, second)]
    ids = [item.public_id for turn in history for item in turn]
    context = whole(Past(turns=history), parse_input(b"[]"))
    refused, decisions = None, list[Decision]()
    try:
        decisions = replay(context, profile, "previous_response_id", "up")
    except ApiError as error:
        refused = error
    if refused is not None:
        assert (refused.status, refused.code) == (400, "encrypted_reasoning_not_supported")
        assert any(item_id in refused.message for item_id in ids)
        return
    assert [decision.item.public_id for decision in decisions] == ids
    for decision in decisions:
        if decision.copy is not None:
            copy = json.loads(decision.copy)
            assert set(copy) <= {"type", *profile.item_members[copy["type"]]}
            assert_parts(profile, copy)
    assert replay(context, profile, "previous_response_id", "up") == decisions
    # What comes later changes nothing of what was sent before, so that a prefix cache goes on hitting.
    earlier = replay(whole(Past(turns=history[:1]), parse_input(b"[]")), profile, "previous_response_id", "up")
    assert [decision.copy for decision in decisions[: len(earlier)]] == [decision.copy for decision in earlier]


def assert_parts(profile: Profile, copy: dict[str, Any]) -> None:
    for name in ("content", "summary", "output"):
        parts = copy.get(name)
        if profile.part_members is None or not isinstance(parts, list):
            continue
        for part in parts:
            assert set(part) <= {"type", *profile.part_members[part["type"]]}
            assert None not in part.values()
