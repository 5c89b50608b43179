"""A Responses request in the chat dialect: each member under its name there, each turn of a model as one message."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from server.errors import ApiError
from server.protocol import raw
from server.protocol.context import whole
from server.protocol.history import Past
from server.protocol.items import Item, from_upstream, parse_input
from server.protocol.profile import CHAT_VLLM, OPENROUTER, STRICT_CHAT, Profile
from server.protocol.replay import replay
from server.protocol.request import parse
from tests.written import written

CUSTOM = {"type": "custom", "name": "patch", "description": "d"}
FUNCTION = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
NAMESPACE = {"type": "namespace", "name": "crm", "description": "d", "tools": [{"type": "function", "name": "find"}]}
CHAT_FUNCTION = {"type": "function", "function": {key: value for key, value in FUNCTION.items() if key != "type"}}


def made(*items: dict[str, Any], fidelity: bytes | None = None) -> list[Item]:
    """What an upstream put out in one turn."""
    return [
        from_upstream(raw.Object(json.dumps(item).encode()), item.get("id", f"id_{number}"), "up", fidelity)
        for number, item in enumerate(items)
    ]


def sent(
    given: Any, profile: Profile = CHAT_VLLM, history: Sequence[list[Item]] = (), **members: Any
) -> dict[str, Any]:
    request = parse(json.dumps({"model": "m", "input": given, **members}).encode(), 200)
    decisions = replay(whole(Past(turns=history), parse_input(request.input)), profile, "previous_response_id", "up")
    body: dict[str, Any] = json.loads(written(request, "resp_1", decisions, profile))
    return body


def messages(given: Any, profile: Profile = CHAT_VLLM, history: Sequence[list[Item]] = ()) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sent(given, profile, history)["messages"]
    return found


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def thought(text: str, **members: Any) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}], **members}


def said(text: str, **members: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "content": [part], **members}


def called(call_id: str, name: str = "f", **members: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}", **members}


def answered(call_id: str, output: Any = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def chat_call(call_id: str, name: str = "f", arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


# --- members


def test_the_least_that_is_sent() -> None:
    assert sent("hi") == {"model": "m", "messages": [user("hi")], "stream": False, "request_id": "resp_1"}
    assert sent("hi", STRICT_CHAT) == {"model": "m", "messages": [user("hi")], "stream": False}


def test_a_stream_asks_for_its_usage() -> None:
    body = sent("hi", STRICT_CHAT, stream=True)
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


def test_instructions_come_first() -> None:
    assert sent("hi", instructions="Be brief.")["messages"] == [{"role": "system", "content": "Be brief."}, user("hi")]


@pytest.mark.parametrize(
    ("members", "spelled"),
    [
        ({"max_output_tokens": 20}, {"max_completion_tokens": 20}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"text": {"verbosity": "low"}}, {"verbosity": "low"}),
        ({"text": {"format": {"type": "text"}}}, {}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "A", "schema": {"x": 1.0}, "strict": True}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "A", "schema": {"x": 1.0}, "strict": True},
                }
            },
        ),
        (
            {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
            {"logprobs": True, "top_logprobs": 2},
        ),
        ({"top_logprobs": 2}, {}),
        ({"n": 2}, {}),
        ({"include": ["reasoning.encrypted_content"]}, {}),
        ({"temperature": 0.5, "top_p": 0.1, "user": "u"}, {"temperature": 0.5, "top_p": 0.1, "user": "u"}),
        ({"metadata": {"a": "b"}, "store": False, "max_tool_calls": 2, "truncation": "auto"}, {}),
        ({"parallel_tool_calls": False}, {}),
        ({"tool_choice": "none"}, {}),
    ],
)
def test_members_by_their_names_there(members: dict[str, Any], spelled: dict[str, Any]) -> None:
    assert sent("hi", STRICT_CHAT, **members) == {"model": "m", "messages": [user("hi")], "stream": False} | spelled


def test_what_nobody_knows_passes_where_the_profile_lets_it() -> None:
    assert sent("hi", CHAT_VLLM, top_k=4)["top_k"] == 4
    assert "top_k" not in sent("hi", STRICT_CHAT, top_k=4)
    # Only the first of several choices would be read.
    assert "n" not in sent("hi", CHAT_VLLM, n=2)


# --- tools


def test_tools() -> None:
    body = sent("hi", CHAT_VLLM, tools=[FUNCTION, CUSTOM, NAMESPACE], parallel_tool_calls=False, tool_choice="required")
    schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    assert body["tools"] == [
        CHAT_FUNCTION,
        {"type": "function", "function": {"name": "patch", "description": "d", "parameters": schema}},
        {"type": "function", "function": {"name": "crm__find"}},
    ]
    assert (body["parallel_tool_calls"], body["tool_choice"]) == (False, "required")


def test_custom_tools_where_the_upstream_knows_them() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "x"}
    [tool] = sent("hi", STRICT_CHAT, tools=[CUSTOM | {"format": grammar}])["tools"]
    inner = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "x"}}
    assert tool == {"type": "custom", "custom": {"name": "patch", "description": "d", "format": inner}}


@pytest.mark.parametrize(
    ("profile", "choice", "spelled"),
    [
        (CHAT_VLLM, {"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
        (CHAT_VLLM, {"type": "custom", "name": "patch"}, {"type": "function", "function": {"name": "patch"}}),
        (STRICT_CHAT, {"type": "custom", "name": "patch"}, {"type": "custom", "custom": {"name": "patch"}}),
        (CHAT_VLLM, {"type": "function", "name": "find"}, {"type": "function", "function": {"name": "crm__find"}}),
    ],
)
def test_a_choice_of_one_tool(profile: Profile, choice: dict[str, Any], spelled: dict[str, Any]) -> None:
    assert sent("hi", profile, tools=[FUNCTION, CUSTOM, NAMESPACE], tool_choice=choice)["tool_choice"] == spelled


def test_of_a_list_of_allowed_tools_no_others_are_offered() -> None:
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}
    body = sent("hi", tools=[CUSTOM, FUNCTION], tool_choice=allowed)
    assert (body["tools"], body["tool_choice"]) == ([CHAT_FUNCTION], "required")


def test_a_namespace_that_is_chosen_is_its_functions() -> None:
    of_crm = [{"type": "function", "function": {"name": "crm__find"}}]
    listed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "namespace", "name": "crm"}]}
    for choice, spelled in ((listed, "auto"), ({"type": "namespace", "name": "crm"}, "required")):
        body = sent("hi", tools=[FUNCTION, NAMESPACE], tool_choice=choice)
        assert (body["tools"], body["tool_choice"]) == (of_crm, spelled)


def test_a_choice_of_a_tool_that_is_not_there_is_refused() -> None:
    with pytest.raises(ApiError) as refused:
        sent("hi", tools=[FUNCTION], tool_choice={"type": "function", "name": "g"})
    assert (refused.value.status, refused.value.param) == (400, "tool_choice")


# --- messages


def test_a_models_turn_is_one_message_and_calls_come_before_their_outputs() -> None:
    """Cases B116 and B117."""
    history = [[*made(user_item("q")[0]), *made(thought("r"), said("I will"), called("a"), called("b"))]]
    assert messages([answered("a", "1"), answered("b", "2")], history=[turn_of(history[0])]) == [
        user("q"),
        {
            "role": "assistant",
            "content": "I will",
            "reasoning": "r",
            "reasoning_content": "r",
            "tool_calls": [chat_call("a"), chat_call("b")],
        },
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
    ]


def user_item(text: str) -> list[dict[str, Any]]:
    return [{"type": "message", "role": "user", "content": text}]


def turn_of(items: list[Item]) -> list[Item]:
    """The same turn with its first item as the client's."""
    first, *rest = items
    return [Item(body=first.body, public_id=first.public_id, type=first.type), *rest]


def test_inline_items_of_a_model_are_one_message_too() -> None:
    given = [user("go"), thought("need both"), called("a"), called("b"), answered("a", "1"), answered("b", "2")]
    assert [message["role"] for message in messages(given)] == ["user", "assistant", "tool", "tool"]
    assert messages(given, STRICT_CHAT)[1] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [chat_call("a"), chat_call("b")],
    }


def test_turns_never_merge() -> None:
    history = [made(said("one")), made(said("two"))]
    assert messages("hi", history=history) == [
        {"role": "assistant", "content": "one"},
        {"role": "assistant", "content": "two"},
        user("hi"),
    ]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_goes_back_in_the_field_that_carried_it(field: str) -> None:
    history = [made(thought("r"), fidelity=f'{{"reasoning_field":"{field}"}}'.encode())]
    assert messages("hi", history=history)[0] == {"role": "assistant", "content": "", field: "r"}
    assert messages("hi", STRICT_CHAT, history) == [user("hi")]
    assert messages("hi", OPENROUTER, history) == [user("hi")]


def test_reasoning_of_a_field_that_the_upstream_does_not_read_goes_where_it_reads() -> None:
    older = msgspec.structs.replace(
        CHAT_VLLM, reasoning_fields=("reasoning_content",), without_record=("reasoning_content",)
    )
    history = [made(thought("r"), fidelity=b'{"reasoning_field":"reasoning"}')]
    assert messages("b", older, history)[0] == {"role": "assistant", "content": "", "reasoning_content": "r"}


def test_items_of_one_message_that_differ_go_as_if_nothing_was_recorded() -> None:
    first = made(thought("a"), fidelity=b'{"reasoning_field":"reasoning"}')
    second = made(thought("b", id="rs_2"), fidelity=b'{"reasoning_field":"reasoning_content"}')
    assert messages("hi", history=[[*first, *second]])[0] == {
        "role": "assistant",
        "content": "",
        "reasoning": "a\nb",
        "reasoning_content": "a\nb",
    }


def test_reasoning_details_go_back_to_their_issuer() -> None:
    details = b'{"reasoning_field":"reasoning","reasoning_details":[{"type":"reasoning.text","text":"r","index":0}]}'
    history = [made(thought("r"), said("a"), fidelity=details)]
    assert messages("hi", OPENROUTER, history)[0] == {
        "role": "assistant",
        "content": "a",
        "reasoning_details": [{"type": "reasoning.text", "text": "r", "index": 0}],
    }


def test_a_call_without_a_call_id_and_its_output_name_each_other() -> None:
    history = [made({"type": "function_call", "id": "fc_1", "name": "f", "arguments": "{}"})]
    asked, told = messages([{"type": "function_call_output", "output": "ok"}], history=history)
    assert (asked["tool_calls"], told["tool_call_id"]) == ([chat_call("fc_1")], "fc_1")


def test_refusals() -> None:
    history = [made({"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]})]
    assert messages("hi", STRICT_CHAT, history)[0] == {"role": "assistant", "content": None, "refusal": "No."}
    assert messages("hi", CHAT_VLLM, history)[0] == {"role": "assistant", "content": "No."}


def test_a_developer_is_the_system_where_no_other_is_known() -> None:
    given = [{"role": "developer", "content": "d"}, user("hi")]
    assert messages(given)[0]["role"] == "system"
    assert messages(given, STRICT_CHAT)[0]["role"] == "developer"


def test_custom_calls() -> None:
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": '*"a\n'}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"}
    given = [user("go"), custom, output]
    assert messages(given)[1]["tool_calls"] == [chat_call("c", "patch", '{"input":"*\\"a\\n"}')]
    native = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": '*"a\n'}}
    assert messages(given, STRICT_CHAT)[1]["tool_calls"] == [native]
    assert messages(given)[2] == {"role": "tool", "tool_call_id": "c", "content": "ok"}


def test_calls_of_a_namespace() -> None:
    given = [user("go"), called("c", "find", namespace="crm"), answered("c")]
    assert messages(given)[1]["tool_calls"] == [chat_call("c", "crm__find")]


def test_parts_of_a_users_message() -> None:
    content = [
        {"type": "input_text", "text": "see"},
        {"type": "input_image", "image_url": "data:x", "detail": "low"},
        {"type": "input_image", "file_id": "file_1"},
        {"type": "input_file", "file_url": "https://example.com/a.pdf"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:y"},
    ]
    assert messages([{"role": "user", "content": content}])[0]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}},
        {"type": "file", "file": {"file_data": "data:y", "filename": "a.pdf"}},
    ]
    assert messages([{"role": "user", "content": content[:1]}]) == [user("see")]


def test_outputs_in_parts() -> None:
    output = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    given = [user("go"), called("c"), answered("c", output)]
    assert messages(given)[2]["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert messages(given, STRICT_CHAT)[2]["content"] == "a\nb"


def test_texts_are_never_decoded() -> None:
    request = parse(rb'{"model":"m","input":[{"role":"user","content":"\ud800 \u0000 \u00e9"}]}', 200)
    decisions = replay(whole(Past(), parse_input(request.input)), CHAT_VLLM, "x", "up")
    assert rb'{"role":"user","content":"\ud800 \u0000 \u00e9"}' in written(request, "r", decisions, CHAT_VLLM)


# --- the order of messages


def output(call_id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": f"{call_id} is done"}


def told_roles(given: Any, history: Sequence[list[Item]] = ()) -> list[str]:
    """Who speaks, in order, a tool by the id of the call that it answers."""
    return [message.get("tool_call_id", message["role"]) for message in messages(given, STRICT_CHAT, history)]


def test_an_output_stands_directly_behind_its_call_where_strict_servers_want_it() -> None:
    calls = [{"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"} for call_id in ("a", "b")]
    given = [user("go"), *calls, user("And hurry."), output("b"), user("Well?"), output("a")]
    assert told_roles(given) == ["user", "assistant", "b", "a", "user", "user"]


def test_an_output_for_the_turn_before_comes_first_in_its_own() -> None:
    asked = parse_input(json.dumps([user("go")]).encode()).items
    calling = made({"type": "function_call", "id": "fc", "call_id": "a", "name": "f", "arguments": "{}"})
    assert told_roles([user("And hurry."), output("a")], [[*asked, *calling]]) == [
        "user", "assistant", "a", "user",
    ]  # fmt: skip


def test_an_id_that_calls_twice_is_answered_where_it_called_last() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    given = [user("go"), call, output("a"), user("again"), call, user("Well?"), output("a")]
    assert told_roles(given) == ["user", "assistant", "a", "user", "assistant", "a", "user"]
