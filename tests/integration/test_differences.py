"""Where the server differs from OpenAI's on purpose, and what it answers for what is not built yet.

`docs/compatibility.md` names a test for each difference; those that no other test shows are here.
"""

from typing import Any

import httpx
import pytest

from server.mock import Reply
from tests.application import Application, both_modes, function_call, message, reasoning, reply


def error_of(answer: httpx.Response) -> tuple[int, Any, Any]:
    """Status, param and code; the four members of every error are all there."""
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return answer.status_code, error["param"], error["code"]


# --- not built yet


async def test_background_turns_are_refused(application: Application) -> None:
    answer = await application.post({"model": "m", "input": "a", "background": True})
    assert error_of(answer) == (400, "background", None)
    assert application.mock.posts == []


async def test_a_stored_prompt_is_not_found(application: Application) -> None:
    answer = await application.post({"model": "m", "prompt": {"id": "pmpt_1"}, "input": "a"})
    assert error_of(answer) == (404, "prompt", None)
    assert application.mock.posts == []


async def test_a_websocket_is_not_found(application: Application) -> None:
    handshake = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    assert error_of(await application.http.get("/v1/responses", headers=handshake)) == (404, None, None)


# --- requests


@both_modes
async def test_an_answer_may_be_one_token_long(application: Application, stream: bool) -> None:
    response = await application.turn(input="a", max_output_tokens=1, stream=stream)
    assert response["max_output_tokens"] == 1
    assert application.sent()["max_output_tokens"] == 1
    refused = await application.post({"model": "m", "input": "a", "max_output_tokens": 0, "stream": stream})
    assert error_of(refused) == (400, "max_output_tokens", "integer_below_min_value")


@both_modes
async def test_members_that_nobody_knows_are_sent_and_echoed(application: Application, stream: bool) -> None:
    members = {"top_k": 5, "chat_template_kwargs": {"enable_thinking": False}, "client_metadata": {"a": None}}
    response = await application.turn(input="a", stream=stream, **members)
    assert {name: application.sent()[name] for name in members} == members
    assert {name: response[name] for name in members} == members


@both_modes
async def test_nothing_is_ever_cut_from_a_history(application: Application, stream: bool) -> None:
    response = await application.turn(input="a", truncation="auto", stream=stream)
    assert response["truncation"] == "disabled"
    assert "truncation" not in application.sent()


@both_modes
async def test_what_has_no_effect_is_echoed_and_not_sent(application: Application, stream: bool) -> None:
    members = {
        "context_management": [{"type": "compaction", "compact_threshold": 1000}],
        "moderation": {"model": "omni"},
        "background_options": {"completion_window": "soonest"},
    }
    options = {"stream_options": {"include_obfuscation": True}}
    response = await application.turn(input="a", stream=stream, **members, **options)
    assert {name: response[name] for name in members} == members
    assert "stream_options" not in response
    assert not {*members, *options} & set(application.sent())


@pytest.mark.parametrize(("members", "echoed"), [({}, "default"), ({"service_tier": "flex"}, "flex")])
async def test_a_service_tier_is_echoed_and_means_nothing(
    application: Application, members: dict[str, str], echoed: str
) -> None:
    response = await application.turn(input="a", **members)
    assert response["service_tier"] == echoed
    assert "service_tier" not in application.sent()


async def test_tools_that_the_upstream_cannot_call_are_echoed_and_not_sent(application: Application) -> None:
    search = {"type": "web_search", "external_web_access": False}
    called = {"type": "function", "name": "f", "parameters": {}}
    response = await application.turn(input="a", tools=[search, called])
    assert response["tools"] == [search, called | {"description": None, "strict": True}]
    assert application.sent()["tools"] == [called]
    refused = await application.post(
        {"model": "m", "input": "a", "tools": [search, called], "tool_choice": {"type": "web_search"}}
    )
    assert error_of(refused) == (400, "tool_choice", "invalid_value")
    assert len(application.mock.posts) == 1


async def test_an_id_of_any_form_is_taken_as_it_is(application: Application) -> None:
    brought = "Ids of clients: äöü / ? # " + "x" * 200
    said = {"type": "message", "id": brought, "role": "user", "content": "a"}
    response = await application.turn(input=[said])
    assert application.sent()["input"] == [said]
    assert [item["id"] for item in await application.listed(response["id"])] == [brought]


# --- reasoning


@both_modes
async def test_reasoning_is_shown_in_plaintext_and_include_hides_nothing(
    application: Application, stream: bool
) -> None:
    thought = reasoning("I think.", encrypted_content="sealed")
    application.mock.replies = [reply(thought, message("Hi."), stream=stream)]
    shown = []
    for include in ([], ["reasoning.encrypted_content"]):
        response = await application.turn(input="a", include=include, stream=stream)
        stored = (await application.http.get(f"/v1/responses/{response['id']}")).json()
        child = await application.turn(input="b", previous_response_id=response["id"], stream=stream)
        listed = await application.listed(child["id"])
        shown += [response["output"][0], stored["output"][0], listed[1]]
    assert shown == [thought] * 6


@both_modes
async def test_reasoning_of_all_turns_is_sent_whatever_context_was_asked_for(
    application: Application, stream: bool
) -> None:
    application.mock.replies = [reply(reasoning("Old thought."), message("Hi."), stream=stream)]
    asked = {"effort": "low", "context": "current_turn"}
    first = await application.turn(input="a", reasoning=asked, stream=stream)
    await application.turn(input="b", reasoning=asked, previous_response_id=first["id"], stream=stream)
    assert first["reasoning"] == {"effort": "low", "context": "all_turns", "summary": None}
    assert [item["type"] for item in application.sent()["input"]] == ["message", "reasoning", "message", "message"]


async def test_reasoning_needs_no_item_behind_it(application: Application) -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    await application.turn(input=[thought, {"role": "user", "content": "a"}])
    assert application.sent()["input"][0] == thought


# --- state


@both_modes
async def test_tool_outputs_of_a_failed_turn_are_to_be_sent_again(application: Application, stream: bool) -> None:
    broken = Reply(sse='data: {"type":"response.created","response":{}}\n\ndata: {"type":"error","message":"no"}\n\n')
    failed_reply = broken if stream else reply(stream=False, status="failed")
    application.mock.replies = [
        reply(function_call("f"), stream=stream),
        failed_reply,
        reply(message("b"), stream=stream),
    ]
    output = {"type": "function_call_output", "call_id": "call_1", "output": "x"}
    first = await application.turn(input="a", stream=stream)
    failed = await application.turn(input=[output], previous_response_id=first["id"], stream=stream)
    assert failed["status"] == "failed"
    said = {"role": "user", "content": "go on"}
    refused = await application.post(
        {"model": "m", "input": [said], "previous_response_id": failed["id"], "stream": stream}
    )
    assert error_of(refused) == (400, "input", None)
    assert refused.json()["error"]["message"] == "No tool output found for function call call_1."
    await application.turn(input=[output, said], previous_response_id=failed["id"], stream=stream)
    assert [item["type"] for item in application.sent()["input"]] == [
        "message",
        "function_call",
        "function_call_output",
        "message",
    ]
