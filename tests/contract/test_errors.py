"""Each row of the contract's error table that these endpoints can meet (api.md 5), as the official client raises it.

A refused request costs nothing: nothing is sent upstream, nothing is stored, and a stream is refused as plain JSON.
"""

from typing import Any

import openai
import pytest

from tests.application import Application, both_modes, message, reply, stored_rows

# What is wrong -> param, code, and a text in the message.
INVALID: dict[str, tuple[dict[str, Any], str | None, str | None, str]] = {
    "no model": ({"model": ...}, "model", "missing_required_parameter", "Missing required parameter: 'model'."),
    "an empty model": ({"model": ""}, "model", "missing_required_parameter", "Missing required parameter: 'model'."),
    "model null": ({"model": None}, "model", "invalid_type", "expected a string, but got null instead."),
    "model a number": ({"model": 1}, "model", "invalid_type", "expected a string, but got an integer instead."),
    "a model with a line end": ({"model": "a\nb"}, "model", "invalid_value", "'model'"),
    "a long model": ({"model": "m" * 257}, "model", "invalid_value", "256"),
    "no input": ({"input": ...}, "input", "missing_required_parameter", "Missing required parameter: 'input'."),
    "input null": ({"input": None}, "input", "invalid_type", "'input'"),
    "input a number": ({"input": 1.5}, "input", "invalid_type", "but got a number instead."),
    "input an object": ({"input": {}}, "input", "invalid_type", "but got an object instead."),
    "nothing to answer": (
        {"input": ""},
        "input",
        "missing_required_parameter",
        "One of \"input\" or \"previous_response_id\" or 'prompt' or 'conversation' must be provided.",
    ),
    "no items": ({"input": []}, "input", "missing_required_parameter", "must be provided."),
    # --- items
    "an item that is a string": ({"input": ["One"]}, "input[0]", "invalid_type", "expected an object"),
    "an item that is null": ({"input": [None]}, "input[0]", "invalid_type", "but got null instead."),
    "an item without a type": ({"input": [{"x": 1}]}, "input[0].type", "missing_required_parameter", "'input[0].type'"),
    "a type that is a number": ({"input": [{"type": 1}]}, "input[0].type", "invalid_type", "expected a string"),
    "a message without content": (
        {"input": [{"role": "user", "content": "x"}, {"role": "user"}]},
        "input[1].content",
        "missing_required_parameter",
        "Missing required parameter: 'input[1].content'.",
    ),
    "an unknown role": (
        {"input": [{"role": "tool", "content": "x"}]},
        "input[0]",
        "invalid_value",
        "Supported values are: 'user', 'assistant', 'system' and 'developer'.",
    ),
    "a text that is a number": (
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": 1}]}]},
        "input[0].content[0].text",
        "invalid_type",
        "Invalid type for 'input[0].content[0].text': expected a string, but got an integer instead.",
    ),
    "a part without a type": (
        {"input": [{"role": "user", "content": [{"text": "x"}]}]},
        "input[0].content[0].type",
        "missing_required_parameter",
        "'input[0].content[0].type'",
    ),
    "content that is an object": (
        {"input": [{"role": "user", "content": {"type": "input_text", "text": "x"}}]},
        "input[0].content",
        "invalid_type",
        "but got an object instead.",
    ),
    "a call without a name": (
        {"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]},
        "input[0].name",
        "missing_required_parameter",
        "'input[0].name'",
    ),
    "arguments that are an object": (
        {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}]},
        "input[0].arguments",
        "invalid_type",
        "expected a string, but got an object instead.",
    ),
    "an output without output": (
        {"input": [{"type": "function_call_output", "call_id": "c"}]},
        "input[0].output",
        "missing_required_parameter",
        "'input[0].output'",
    ),
    "an id with a NUL": (
        {"input": [{"type": "message", "id": "msg_\0", "role": "user", "content": "x"}]},
        "input[0].id",
        "invalid_value",
        "'input[0].id'",
    ),
    "a long call id": (
        {"input": [{"type": "function_call_output", "call_id": "c" * 257, "output": "x"}]},
        "input[0].call_id",
        "invalid_value",
        "'input[0].call_id'",
    ),
    "a reference without an id": (
        {"input": [{"type": "item_reference"}]},
        "input[0].id",
        "missing_required_parameter",
        "'input[0].id'",
    ),
    "reasoning whose content is a string": (
        {"input": [{"type": "reasoning", "summary": [], "content": "x"}]},
        "input[0].content",
        "invalid_type",
        "expected an array",
    ),
    # --- members
    "store a string": (
        {"store": "yes"},
        "store",
        "invalid_type",
        "Invalid type for 'store': expected a boolean, but got a string instead.",
    ),
    "stream a number": ({"stream": 1}, "stream", "invalid_type", "expected a boolean"),
    "instructions a list": ({"instructions": ["x"]}, "instructions", "invalid_type", "expected a string"),
    "temperature a string": ({"temperature": "1"}, "temperature", "invalid_type", "expected a number"),
    "temperature too high": ({"temperature": 2.5}, "temperature", "decimal_above_max_value", "<= 2, but got 2.5"),
    "temperature too low": ({"temperature": -0.5}, "temperature", "decimal_below_min_value", ">= 0, but got -0.5"),
    "top_p too high": ({"top_p": 1.5}, "top_p", "decimal_above_max_value", "<= 1, but got 1.5"),
    "max_output_tokens zero": (
        {"max_output_tokens": 0},
        "max_output_tokens",
        "integer_below_min_value",
        "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 1, but got 0 instead.",
    ),
    "max_output_tokens a fraction": ({"max_output_tokens": 1.5}, "max_output_tokens", "invalid_type", "an integer"),
    "max_tool_calls zero": ({"max_tool_calls": 0}, "max_tool_calls", "integer_below_min_value", ">= 1"),
    "top_logprobs too high": ({"top_logprobs": 21}, "top_logprobs", "integer_above_max_value", "<= 20, but got 21"),
    "an unknown truncation": (
        {"truncation": "bogus"},
        "truncation",
        "invalid_value",
        "Supported values are: 'auto' and 'disabled'.",
    ),
    "an unknown include": ({"include": ["x"]}, "include[0]", "invalid_value", "'reasoning.encrypted_content'"),
    "an include that is a string": ({"include": "x"}, "include", "invalid_type", "expected an array"),
    "an unknown effort": ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value", "'xhigh'"),
    "an unknown format": ({"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_value", "'json_schema'"),
    "a format without a type": ({"text": {"format": {}}}, "text.format.type", "missing_required_parameter", "format"),
    "tools an object": ({"tools": {}}, "tools", "invalid_type", "expected an array"),
    "a tool without a type": ({"tools": [{"name": "f"}]}, "tools[0].type", "missing_required_parameter", "tools[0]"),
    "a function without a name": (
        {"tools": [{"type": "function"}]},
        "tools[0].name",
        "missing_required_parameter",
        "'tools[0].name'",
    ),
    "an unknown tool_choice": ({"tool_choice": "any"}, "tool_choice", "invalid_value", "'required'"),
    "a tool_choice of a tool that is not there": (
        {"tool_choice": {"type": "function", "name": "f"}},
        "tool_choice",
        "invalid_value",
        "'f'",
    ),
    "too much metadata": (
        {"metadata": {f"key_{number}": "v" for number in range(17)}},
        "metadata",
        "object_above_max_properties",
        "Expected at most 16, but got 17",
    ),
    "a long metadata key": ({"metadata": {"k" * 65: "v"}}, "metadata", "string_above_max_length", "64"),
    "a long metadata value": ({"metadata": {"k": "v" * 513}}, "metadata", "string_above_max_length", "512"),
    "metadata that is a number": ({"metadata": {"k": 1}}, "metadata", "invalid_type", "expected a string"),
    "a previous id that is a number": (
        {"previous_response_id": 1},
        "previous_response_id",
        "invalid_type",
        "expected a string",
    ),
    # --- state
    "an unknown previous response": (
        {"previous_response_id": "resp_x"},
        "previous_response_id",
        "previous_response_not_found",
        "Previous response with id 'resp_x' not found.",
    ),
    "a previous response and a conversation": (
        {"previous_response_id": "resp_x", "conversation": "conv_x"},
        None,
        "mutually_exclusive_parameters",
        "'previous_response_id' and 'conversation'",
    ),
    "in the background": ({"background": True}, "background", None, "not supported"),
}

NOT_FOUND: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "a conversation": ({"conversation": "conv_x"}, None, "Conversation with id 'conv_x' not found."),
    "a conversation, as an object": (
        {"conversation": {"id": "conv_x"}},
        None,
        "Conversation with id 'conv_x' not found.",
    ),
    "a prompt": ({"prompt": {"id": "pmpt_x"}}, "prompt", "Prompt with id 'pmpt_x' not found."),
    "an item": (
        {"input": [{"type": "item_reference", "id": "rs_x"}]},
        "input",
        "Item with id 'rs_x' not found. Items are not persisted when `store` is set to false. Try again with `store`"
        " set to true, or remove this item from your input.",
    ),
    "an item, by its id alone": ({"input": [{"id": "rs_x"}]}, "input", "Item with id 'rs_x' not found."),
}


async def _refused(application: Application, members: dict[str, Any]) -> openai.APIStatusError:
    """The exception for a request that has these members, `...` standing for one that it has not."""
    given = {"model": "m", "input": "One"} | members
    body = {name: value for name, value in given.items() if value is not ...}
    with pytest.raises(openai.APIStatusError) as raised:
        await application.client.post("/responses", body=body, cast_to=object)
    error = raised.value
    assert error.response.headers["content-type"] == "application/json"
    assert isinstance(error.body, dict)
    assert set(error.body) == {"message", "type", "param", "code"}
    assert error.type == "invalid_request_error"
    assert application.mock.received == []
    return error


@pytest.mark.parametrize(("members", "param", "code", "text"), INVALID.values(), ids=INVALID)
async def test_bad_request(
    application: Application,
    emptied_database_url: str,
    members: dict[str, Any],
    param: str | None,
    code: str | None,
    text: str,
) -> None:
    for stream in (False, True):
        error = await _refused(application, {"stream": stream} | members)
        assert type(error) is openai.BadRequestError
        assert (error.param, error.code) == (param, code)
        assert text in error.body["message"]  # type: ignore[index]
    assert await stored_rows(emptied_database_url) == {}


@pytest.mark.parametrize(("members", "param", "text"), NOT_FOUND.values(), ids=NOT_FOUND)
async def test_not_found(
    application: Application,
    emptied_database_url: str,
    members: dict[str, Any],
    param: str | None,
    text: str,
) -> None:
    for stream in (False, True):
        error = await _refused(application, {"stream": stream} | members)
        assert type(error) is openai.NotFoundError
        assert (error.param, error.code) == (param, None)
        assert error.body["message"].startswith(text)  # type: ignore[index]
    assert await stored_rows(emptied_database_url) == {}


UNUSABLE = {
    "model": rb'{"model":"\ud800","input":"One"}',
    "previous_response_id": rb'{"model":"m","input":"One","previous_response_id":"resp_\udfff"}',
    "conversation": rb'{"model":"m","input":"One","conversation":"conv_\u0000"}',
    "input[0].id": rb'{"model":"m","input":[{"role":"user","content":"One","id":"msg_\ud83d"}]}',
    "input[0].call_id": rb'{"model":"m","input":[{"type":"function_call_output","call_id":"\ude00","output":"x"}]}',
    "input[0].type": rb'{"model":"m","input":[{"type":"a\u0007"}]}',
    "metadata": rb'{"model":"m","input":"One","metadata":{"\ud800":"v"}}',
}


@pytest.mark.parametrize(("param", "body"), UNUSABLE.items(), ids=UNUSABLE)
async def test_what_becomes_a_key_must_be_text_that_a_key_can_be(
    application: Application, param: str, body: bytes
) -> None:
    answer = await application.post(body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, "invalid_value")
    assert application.mock.received == []


# Of two things that are wrong the first is told (api.md 5, the order of checks).
ORDER: list[tuple[dict[str, Any], str]] = [
    ({"model": ..., "input": ...}, "model"),
    ({"input": ..., "store": "yes"}, "input"),
    ({"temperature": "x", "input": [{"role": "user"}]}, "temperature"),
    ({"input": [{"role": "user"}], "previous_response_id": "resp_x"}, "input[0].content"),
    ({"input": [{"role": "user"}], "background": True}, "input[0].content"),
    ({"input": "", "previous_response_id": "resp_x"}, "previous_response_id"),
]


@pytest.mark.parametrize(("members", "param"), ORDER, ids=[param for _, param in ORDER])
async def test_the_order_of_checks(application: Application, members: dict[str, Any], param: str) -> None:
    assert (await _refused(application, members)).param == param


async def test_a_refusal_never_quotes_what_was_said(application: Application) -> None:
    secret = "a-secret-of-the-client"
    for members in (
        {"truncation": secret},
        {"temperature": secret},
        {"include": [secret]},
        {"tools": [{"type": "function", "name": {"secret": secret}}]},
        {"input": [{"role": secret, "content": secret}]},
        {"metadata": {"k": [secret]}},
    ):
        error = await _refused(application, members)
        assert secret not in error.response.text


@both_modes
async def test_nulls_count_as_absent(application: Application, stream: bool) -> None:
    """As clients send them that pass each of their options on (clients.md 19)."""
    application.mock.replies = [reply(message("Hi."), stream=stream)]
    members = (
        "instructions", "previous_response_id", "conversation", "store", "background", "stream_options", "include",
        "tools", "tool_choice", "parallel_tool_calls", "max_tool_calls", "max_output_tokens", "temperature", "top_p",
        "top_logprobs", "presence_penalty", "frequency_penalty", "text", "reasoning", "truncation", "metadata",
        "prompt_cache_key", "safety_identifier", "user", "service_tier", "prompt", "context_management", "moderation",
        "background_options", "x_unknown",
    )  # fmt: skip
    response = await application.turn(input="One", stream=stream, **dict.fromkeys(members))
    assert set(application.sent()) == {"model", "input", "request_id", "store", "stream"}
    assert (response["store"], response["tools"], response["temperature"]) == (True, [], 1.0)
    assert "user" not in response
    assert "x_unknown" not in response
