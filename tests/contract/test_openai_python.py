"""The official Python client against the server, with strict validation: what it cannot read into its types fails."""

import base64
import re
from typing import Any

import openai
import pydantic
import pytest
from openai.types.responses import Response, ResponseInputItemParam

from server.mock import Reply
from tests.application import Application, both_modes, function_call, message, reasoning, reply, running
from tests.contract.dialogue import ANSWERS, QUESTIONS, WEATHER, Dialogue, received
from tests.harness import Capture, captures

TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


async def _turn(application: Application, *, stream: bool, **members: Any) -> Response:
    """The client's final response object, in either mode."""
    given = {"model": "m", "input": "One", **members}
    if not stream:
        created: Response = await application.client.responses.create(**given)
        return created
    async with application.client.responses.stream(**given) as events:
        *_, last = [event async for event in events]
    # The client's own `get_final_response` knows no other end than `response.completed`.
    assert last.type in ("response.completed", "response.incomplete", "response.failed")
    final: Response = last.response
    return final


def _as_received(response: Response) -> dict[str, Any]:
    """The response without what the client's parsing streams add to it."""
    received = response.to_dict()
    for item in received["output"]:  # type: ignore[attr-defined]
        for part in (item, *(item.get("content") or [])):
            part.pop("parsed", None)
            part.pop("parsed_arguments", None)
    return received


@both_modes
async def test_a_dialogue_with_a_tool(application: Application, stream: bool) -> None:
    application.mock.replies = [
        reply(reasoning("I must look."), function_call("get_weather", '{"city":"Paris"}'), stream=stream),
        reply(reasoning("Good."), message("Sunny."), stream=stream),
    ]
    first = await _turn(application, stream=stream, tools=[TOOL])
    assert (first.status, first.object, first.error, first.model) == ("completed", "response", None, "m")
    [thought, call] = first.output
    assert thought.type == "reasoning"
    assert thought.content is not None
    assert thought.content[0].text == "I must look."
    assert call.type == "function_call"
    assert (call.call_id, call.arguments) == ("call_1", '{"city":"Paris"}')

    output: ResponseInputItemParam = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    second = await _turn(
        application, stream=stream, input=[output], previous_response_id=first.id, tools=[TOOL], store=True
    )
    assert second.output_text == "Sunny."
    assert second.previous_response_id == first.id
    assert (await application.client.responses.retrieve(second.id)).to_dict() == _as_received(second)


@both_modes
async def test_two_turns_in_a_chain_of_responses(application: Application, stream: bool) -> None:
    dialogue = Dialogue(stream)
    application.mock.replies = dialogue.replies
    output: Any = {"type": "function_call_output", "call_id": dialogue.ids.call_id, "output": WEATHER}
    called = await _turn(application, stream=stream, input=QUESTIONS[0], tools=[TOOL])
    first = await _turn(application, stream=stream, input=[output], previous_response_id=called.id, tools=[TOOL])
    second = await _turn(application, stream=stream, input=QUESTIONS[1], previous_response_id=first.id)
    assert (first.output_text, second.output_text) == ANSWERS
    assert [_as_received(turn)["output"] for turn in (called, first, second)] == dialogue.outputs
    assert received(application) == dialogue.upstream_inputs()
    assert await application.listed(second.id) == dialogue.listed()


@both_modes
@pytest.mark.parametrize("is_object", [False, True], ids=["id", "object"])
async def test_two_turns_in_a_conversation(application: Application, stream: bool, is_object: bool) -> None:
    dialogue = Dialogue(stream)
    application.mock.replies = dialogue.replies
    output: Any = {"type": "function_call_output", "call_id": dialogue.ids.call_id, "output": WEATHER}
    made = await application.client.conversations.create()
    named: Any = {"id": made.id} if is_object else made.id
    await _turn(application, stream=stream, input=QUESTIONS[0], conversation=named, tools=[TOOL])
    first = await _turn(application, stream=stream, input=[output], conversation=named, tools=[TOOL])
    second = await _turn(application, stream=stream, input=QUESTIONS[1], conversation=named)
    assert (first.output_text, second.output_text) == ANSWERS
    assert second.conversation is not None
    assert (second.conversation.id, second.previous_response_id) == (made.id, None)
    assert received(application) == dialogue.upstream_inputs()
    assert await application.conversed(made.id) == [*dialogue.listed(), *dialogue.outputs[2]]
    assert await application.listed(second.id) == dialogue.listed()


@both_modes
async def test_its_own_output_may_be_sent_again_as_it_is(application: Application, stream: bool) -> None:
    """The pattern `input += response.output` of clients that keep the history themselves."""
    application.mock.replies = [
        reply(reasoning("Hm."), message("Hi."), function_call("f"), stream=stream),
        reply(message("Done."), stream=stream),
    ]
    history: list[Any] = [{"role": "user", "content": "One"}]
    first = await _turn(application, stream=stream, input=history, store=False)
    history += [item.to_dict() for item in first.output]
    history.append({"type": "function_call_output", "call_id": "call_1", "output": "x"})
    await _turn(application, stream=stream, input=history, store=False)
    assert [item["type"] for item in application.sent()["input"]] == [
        "message", "reasoning", "message", "function_call", "function_call_output",
    ]  # fmt: skip


async def test_raw_streaming(application: Application) -> None:
    application.mock.replies = [reply(message("Hi."), stream=True)]
    events = await application.client.responses.create(model="m", input="One", stream=True)
    seen = [event async for event in events]
    assert [event.type for event in seen] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in seen] == list(range(9))
    final = seen[-1]
    assert final.type == "response.completed"
    assert final.response.output_text == "Hi."


class City(pydantic.BaseModel):
    name: str
    people: int


@both_modes
async def test_structured_output(application: Application, stream: bool) -> None:
    application.mock.replies = [reply(message('{"name":"Paris","people":2}'), stream=stream)]
    if stream:
        async with application.client.responses.stream(model="m", input="One", text_format=City) as events:
            async for _ in events:
                pass
            parsed = await events.get_final_response()
    else:
        parsed = await application.client.responses.parse(model="m", input="One", text_format=City)
    assert parsed.output_parsed == City(name="Paris", people=2)
    assert parsed.text is not None
    assert parsed.text.format is not None
    assert parsed.text.format.type == "json_schema"
    sent = application.sent()["text"]["format"]
    assert (sent["type"], sent["name"], sent["strict"]) == ("json_schema", "City", True)
    assert set(sent["schema"]["properties"]) == {"name", "people"}


async def test_tools_that_the_client_parses(application: Application) -> None:
    class GetWeather(pydantic.BaseModel):
        city: str

    application.mock.replies = [reply(function_call("GetWeather", '{"city":"Paris"}'), stream=False)]
    parsed = await application.client.responses.parse(
        model="m",
        input="One",
        tools=[openai.pydantic_function_tool(GetWeather)],  # type: ignore[list-item]
    )
    [call] = parsed.output
    assert call.type == "function_call"
    assert call.parsed_arguments == GetWeather(city="Paris")


ALL_TOOLS: list[Any] = [
    TOOL,
    {"type": "file_search", "vector_store_ids": ["vs_1"]},
    {"type": "computer_use_preview", "display_width": 800, "display_height": 600, "environment": "browser"},
    {"type": "computer"},
    {"type": "web_search", "search_context_size": "low"},
    {"type": "web_search_preview"},
    {"type": "mcp", "server_label": "docs", "server_url": "https://mcp.example/sse", "require_approval": "never"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "image_generation"},
    {"type": "local_shell"},
    {"type": "shell"},
    {"type": "custom", "name": "apply", "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}},
    {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [TOOL]},
    {"type": "tool_search"},
    {"type": "apply_patch"},
]


@both_modes
async def test_tools_of_every_kind_are_echoed_and_those_that_can_be_are_sent(
    application: Application, stream: bool
) -> None:
    application.mock.replies = [reply(message("Hi."), stream=stream)]
    response = await _turn(application, stream=stream, tools=ALL_TOOLS, tool_choice="auto")
    echoed = [tool.to_dict() for tool in response.tools]
    assert [tool["type"] for tool in echoed] == [tool["type"] for tool in ALL_TOOLS]
    assert echoed[0] == {**TOOL, "description": None}
    assert echoed[1:] == ALL_TOOLS[1:]
    sent = application.sent()["tools"]
    assert sent == [TOOL, ALL_TOOLS[11] | {"format": {"type": "text"}}, ALL_TOOLS[12]]
    assert application.sent()["tool_choice"] == "auto"


@both_modes
async def test_a_choice_of_tool(application: Application, stream: bool) -> None:
    application.mock.replies = [reply(function_call("get_weather"), stream=stream)]
    choice: Any = {"type": "function", "name": "get_weather"}
    response = await _turn(application, stream=stream, tools=[TOOL], tool_choice=choice)
    assert application.sent()["tool_choice"] == choice
    assert response.tool_choice.to_dict() == choice  # type: ignore[union-attr]
    for wrong in ({"type": "function", "name": "get_time"}, {"type": "web_search_preview"}):
        with pytest.raises(openai.BadRequestError) as refused:
            await _turn(application, stream=stream, tools=[TOOL], tool_choice=wrong)
        assert refused.value.param == "tool_choice"
    assert len(application.mock.posts) == 1


@both_modes
async def test_custom_tools(application: Application, stream: bool) -> None:
    made = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "apply", "input": "a\nb"}
    application.mock.replies = [reply(made, stream=stream), reply(message("Done."), stream=stream)]
    first = await _turn(application, stream=stream, tools=[{"type": "custom", "name": "apply"}])
    [call] = first.output
    assert call.type == "custom_tool_call"
    assert call.input == "a\nb"
    output: Any = {"type": "custom_tool_call_output", "call_id": "call_1", "output": "ok"}
    second = await _turn(application, stream=stream, input=[output], previous_response_id=first.id)
    assert application.sent()["input"][1:] == [made, output]
    listed = await application.client.responses.input_items.list(second.id, order="asc")
    assert [item.type for item in listed.data] == ["message", "custom_tool_call", "custom_tool_call_output"]


@both_modes
async def test_every_member_of_a_request_is_echoed_by_its_type(application: Application, stream: bool) -> None:
    application.mock.replies = [reply(message("Hi."), stream=stream)]
    response = await _turn(
        application,
        stream=stream,
        instructions="Be brief.",
        metadata={"a": "1", "b": "ü"},
        temperature=0.5,
        top_p=0.25,
        top_logprobs=2,
        max_output_tokens=20,
        max_tool_calls=3,
        parallel_tool_calls=False,
        prompt_cache_key="session-1",
        safety_identifier="person-1",
        user="person",
        service_tier="auto",
        truncation="auto",
        reasoning={"effort": "low", "summary": "auto"},
        text={"verbosity": "low"},
        include=["reasoning.encrypted_content", "web_search_call.action.sources"],
        extra_body={"top_k": 5, "chat_template_kwargs": {"enable_thinking": False}},
    )
    assert response.instructions == "Be brief."
    assert response.metadata == {"a": "1", "b": "ü"}
    assert (response.temperature, response.top_p, response.top_logprobs) == (0.5, 0.25, 2)
    assert (response.max_output_tokens, response.max_tool_calls, response.parallel_tool_calls) == (20, 3, False)
    assert (response.prompt_cache_key, response.safety_identifier, response.user) == ("session-1", "person-1", "person")
    assert (response.service_tier, response.truncation) == ("auto", "disabled")
    assert response.reasoning is not None
    assert response.reasoning.to_dict() == {"effort": "low", "summary": "auto", "context": "all_turns"}
    assert response.text is not None
    assert response.text.to_dict() == {"verbosity": "low", "format": {"type": "text"}}
    assert (response.to_dict()["top_k"], response.to_dict()["store"]) == (5, True)

    sent = application.sent()
    assert sent["include"] == ["reasoning.encrypted_content"]
    assert (sent["top_k"], sent["chat_template_kwargs"]) == (5, {"enable_thinking": False})
    unsent = {"truncation", "service_tier", "prompt_cache_key", "safety_identifier"}
    assert set(sent) & unsent == set()
    assert (sent["metadata"], sent["max_output_tokens"]) == ({"a": "1", "b": "ü"}, 20)


async def test_what_is_not_said_has_its_default(application: Application) -> None:
    application.mock.replies = [Reply(json={"object": "response", "status": "completed", "output": []})]
    response = await application.client.responses.create(model="m", input="One")
    assert response.to_dict() == {
        "id": response.id,
        "object": "response",
        "created_at": response.created_at,
        "completed_at": response.completed_at,
        "status": "completed",
        "background": False,
        "conversation": None,
        "error": None,
        "frequency_penalty": 0.0,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "model": "m",
        "output": [],
        "parallel_tool_calls": True,
        "presence_penalty": 0.0,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": None,
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None,
    }
    assert response.id.startswith("resp_")


@both_modes
async def test_usage_has_every_count_that_the_types_want(application: Application, stream: bool) -> None:
    usage = {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 1, "input_tokens_per_turn": [5]},
        "output_tokens": 7,
        "total_tokens": 12,
    }
    application.mock.replies = [reply(message("Hi."), stream=stream, usage=usage)]
    response = await _turn(application, stream=stream)
    assert response.usage is not None
    assert response.usage.to_dict() == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 12,
    }


@both_modes
async def test_images_and_files(application: Application, stream: bool) -> None:
    application.mock.replies = [reply(message("A cat."), stream=stream)]
    data = base64.b64encode(b"cat").decode()
    parts: Any = [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{data}"},
        {"type": "input_file", "filename": "cat.pdf", "file_data": f"data:application/pdf;base64,{data}"},
    ]
    response = await _turn(application, stream=stream, input=[{"role": "user", "content": parts}])
    assert application.sent()["input"][0]["content"] == parts
    [item] = (await application.client.responses.input_items.list(response.id)).data
    assert item.type == "message"
    assert [part.to_dict() for part in item.content] == [parts[0], parts[1] | {"detail": "auto"}, parts[2]]


# --- stored responses


@both_modes
async def test_retrieve_and_delete(application: Application, stream: bool) -> None:
    application.mock.replies = [reply(reasoning("Hm."), message("Hi."), stream=stream)]
    created = await _turn(application, stream=stream)
    retrieved = await application.client.responses.retrieve(created.id, include=["reasoning.encrypted_content"])
    assert retrieved.to_dict() == _as_received(created)
    await application.client.responses.delete(created.id)
    with pytest.raises(openai.NotFoundError) as gone:
        await application.client.responses.retrieve(created.id)
    assert gone.value.body == {
        "message": f"Response with id '{created.id}' not found.",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }
    with pytest.raises(openai.NotFoundError):
        await application.client.responses.delete(created.id)
    with pytest.raises(openai.BadRequestError) as refused:
        await _turn(application, stream=stream, previous_response_id=created.id)
    assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_the_items_of_a_long_history_are_paged_by_themselves(application: Application, order: Any) -> None:
    application.mock.replies = [reply(message("Hi."), stream=False)]
    said: Any = [{"role": "user", "content": f"Text {number}"} for number in range(50)]
    response = await _turn(application, stream=False, input=said)
    first_page = await application.client.responses.input_items.list(response.id, order=order)
    assert len(first_page.data) == 20
    pages = application.client.responses.input_items.list(
        response.id, order=order, include=["message.input_image.image_url", "reasoning.encrypted_content"]
    )
    texts = [item.content[0].text async for item in pages]  # type: ignore[union-attr]
    expected = [f"Text {number}" for number in range(50)]
    assert texts == (expected if order == "asc" else expected[::-1])
    small = application.client.responses.input_items.list(response.id, order=order, limit=7)
    assert len([item async for item in small]) == 50


async def test_items_of_every_kind_that_the_types_know_are_listed(application: Application) -> None:
    """What a client sends with less than the types of its own list demand is shown in full."""
    said: Any = [
        {"role": "user", "content": "One"},
        {"role": "developer", "content": [{"type": "input_text", "text": "x"}]},
        {"role": "assistant", "content": "Two"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Three"}]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "x"},
        {"type": "function_call", "call_id": "call_2", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "x"}]},
        {"type": "custom_tool_call", "call_id": "call_3", "name": "g", "input": "y"},
        {"type": "custom_tool_call_output", "call_id": "call_3", "output": "z"},
    ]
    response = await _turn(application, stream=False, input=said)
    listed = (await application.client.responses.input_items.list(response.id, order="asc")).data
    assert [item.type for item in listed] == [item.get("type", "message") for item in said]
    assert all(item.id for item in listed)  # type: ignore[union-attr]
    statuses = [item.to_dict().get("status") for item in listed]
    assert statuses == ["completed"] * 4 + [None] + ["completed"] * 6


# --- real upstream bytes


async def test_what_vllm_makes_is_read_strictly_in_both_modes(application: Application) -> None:
    every = [capture for version in ("0.32", "0.33", "deepseek-r1") for capture in captures(version)]
    recorded = [capture for capture in every if capture.is_stream or _is_whole(capture)]
    # Of those with the same types of events, items and parts one.
    kinds = {(capture.is_stream, _types(capture.received)): capture for capture in recorded}
    application.mock.replies = [
        Reply(
            sse_chunks_b64=[capture.received],
            headers={"content-type": "text/event-stream" if capture.is_stream else "application/json"},
        )
        for capture in kinds.values()
    ]
    assert len(kinds) >= 15
    for capture in kinds.values():
        response = await _turn(application, stream=capture.is_stream)
        is_cut = capture.is_stream and b"response.completed" not in capture.received[-20_000:]
        assert response.status in (("incomplete", "failed") if is_cut else ("completed", "incomplete")), capture.name
        assert (await application.client.responses.retrieve(response.id)).to_dict() == _as_received(response)
        kept = await application.client.responses.input_items.list(response.id)
        assert len(kept.data) == 1


def _is_whole(capture: Capture) -> bool:
    """Whether it is a reply in JSON that tells of a response which has ended."""
    return b'"object":"response"' in capture.received and b'"status":"queued"' not in capture.received


def _types(received: bytes) -> frozenset[bytes]:
    kinds = rb'"type":"(?:response\.[a-z_.]+|message|reasoning|[a-z_]+_call)"|"status":"incomplete"'
    return frozenset(re.findall(kinds, received))


# --- errors


async def test_a_response_that_fails_in_the_stream_is_an_event(application: Application) -> None:
    frames = reply(message("Hi."), stream=True).sse_chunks or []
    application.mock.replies = [Reply(sse_chunks=frames[:5], close=True)]
    async with application.client.responses.stream(model="m", input="One") as events:
        seen = [event async for event in events]
    assert seen[-1].type == "response.failed"
    assert seen[-1].response.status == "failed"
    assert seen[-1].response.error is not None
    assert seen[-1].response.error.code == "server_error"


def _vllm_error(status: int, param: str | None = None, headers: dict[str, str] | None = None) -> Reply:
    error = {"message": "Not like this.", "type": "x", "param": param, "code": status}
    return Reply(status=status, json={"error": error}, headers=headers or {})


UPSTREAM_ERRORS: list[tuple[Reply, type[openai.APIStatusError], int]] = [
    (_vllm_error(400), openai.BadRequestError, 400),
    (_vllm_error(401), openai.InternalServerError, 502),
    (_vllm_error(404, "model"), openai.BadRequestError, 400),
    (_vllm_error(409), openai.ConflictError, 409),
    (_vllm_error(422), openai.UnprocessableEntityError, 422),
    (_vllm_error(429, headers={"retry-after": "7"}), openai.RateLimitError, 429),
    (_vllm_error(500), openai.InternalServerError, 502),
    (_vllm_error(503, headers={"retry-after": "7"}), openai.InternalServerError, 503),
]


@both_modes
@pytest.mark.parametrize(
    ("refusal", "kind", "status"), UPSTREAM_ERRORS, ids=[str(case[0].status) for case in UPSTREAM_ERRORS]
)
async def test_an_upstreams_refusal_is_the_clients_exception(
    application: Application, stream: bool, refusal: Reply, kind: type[openai.APIStatusError], status: int
) -> None:
    application.mock.replies = [refusal]
    with pytest.raises(kind) as raised:
        await _turn(application, stream=stream)
    error = raised.value
    assert type(error) is kind
    assert error.status_code == status
    assert error.request_id is not None
    assert error.request_id.startswith("req_")
    assert error.response.headers.get("retry-after") == refusal.headers.get("retry-after")
    assert isinstance(error.body, dict)
    assert set(error.body) == {"message", "type", "param", "code"}


async def test_an_upstream_that_is_not_there_is_the_clients_exception(emptied_database_url: str) -> None:
    async with running(emptied_database_url, upstream="http://127.0.0.1:1/v1") as application:
        with pytest.raises(openai.InternalServerError) as raised:
            await _turn(application, stream=False)
        assert raised.value.status_code == 503
