"""The create request by itself: what is taken, what is refused, by which words and in which order."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.errors import ApiError
from server.protocol import items, raw, request
from tests.harness import cases

DEPTH_MAX = 200


def body(members: str = "") -> bytes:
    """A request that is right, with these members besides, as JSON text."""
    return f'{{"model":"m","input":"hi"{"," if members else ""}{members}}}'.encode()


def parsed(members: str = "") -> request.Request:
    return request.parse(body(members), DEPTH_MAX)


def refused(text: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        request.parse(text, DEPTH_MAX)
    assert caught.value.type == "invalid_request_error"
    return caught.value


# --- what is taken


def test_the_least_that_is_a_request() -> None:
    assert parsed() == request.Request(
        members={"model": b'"m"'},
        input=b'"hi"',
        model="m",
        previous_response_id=None,
        conversation_id=None,
        store=True,
        stream=False,
    )


def test_members_are_kept_as_they_were_sent() -> None:
    sent = b'{ "temperature" : 1.0 , "input" : [ ] , "x" : {"b":1e400, "a":[ 1 ]},\n"model" : "\\u006d","top_p":1 }'
    taken = request.parse(sent, DEPTH_MAX)
    assert taken.input == b"[ ]"
    assert taken.model == "m"
    assert list(taken.members.items()) == [
        ("temperature", b"1.0"),
        ("x", b'{"b":1e400, "a":[ 1 ]}'),
        ("model", b'"\\u006d"'),
        ("top_p", b"1"),
    ]


@pytest.mark.parametrize(
    ("members", "attribute", "value"),
    [
        ('"previous_response_id":"resp_1"', "previous_response_id", "resp_1"),
        ('"previous_response_id":""', "previous_response_id", None),
        ('"previous_response_id":null', "previous_response_id", None),
        ('"conversation":"conv_1"', "conversation_id", "conv_1"),
        ('"conversation":{"id":"conv_1"}', "conversation_id", "conv_1"),
        ('"conversation":{"id":"conv_1","x":null}', "conversation_id", "conv_1"),
        ('"conversation":""', "conversation_id", None),
        ('"conversation":null', "conversation_id", None),
        ('"store":true', "store", True),
        ('"store":false', "store", False),
        ('"store":null', "store", True),
        ('"stream":true', "stream", True),
        ('"stream":false', "stream", False),
        ('"stream":null', "stream", False),
    ],
)
def test_what_we_act_on_is_read(members: str, attribute: str, value: Any) -> None:
    assert getattr(parsed(members), attribute) == value


def test_an_empty_id_of_what_to_continue_counts_as_absent_everywhere() -> None:
    assert parsed('"previous_response_id":"","conversation":"c"').members == {"model": b'"m"', "conversation": b'"c"'}
    assert parsed('"previous_response_id":"p","conversation":""').previous_response_id == "p"


EVERY_MEMBER = (
    "instructions", "previous_response_id", "conversation", "store", "background", "background_options", "stream",
    "stream_options", "include", "tools", "tool_choice", "parallel_tool_calls", "max_tool_calls", "max_output_tokens",
    "temperature", "top_p", "top_logprobs", "presence_penalty", "frequency_penalty", "text", "reasoning",
    "truncation", "context_management", "metadata", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "safety_identifier", "user", "service_tier", "prompt", "moderation", "top_k", "x",
)  # fmt: skip


@pytest.mark.parametrize("name", EVERY_MEMBER)
def test_null_counts_as_absent(name: str) -> None:
    """contract api.md 2: every member may arrive as null."""
    assert parsed(f'"{name}":null') == parsed()


@pytest.mark.parametrize(
    "members",
    [
        # The numbers are those of contract clients.md.
        pytest.param('"previous_response_id":"resp_1","tools":[{"type":"function","name":"f"}]', id="13"),
        pytest.param('"include":[]', id="17-empty"),
        pytest.param('"include":["reasoning.encrypted_content"],"store":false', id="17"),
        pytest.param('"instructions":null,"temperature":null,"top_p":null,"metadata":null,"user":null', id="19"),
        pytest.param('"text":{}', id="20-empty"),
        pytest.param('"text":{"verbosity":"low"}', id="20-verbosity"),
        pytest.param('"text":{"format":null,"verbosity":null}', id="20-nulls"),
        pytest.param(
            '"text":{"format":{"type":"json_schema","strict":true,"name":"A","schema":{"$schema":"http://x"}}}',
            id="20-schema",
        ),
        pytest.param('"text":{"format":{"type":"json_object"}}', id="20-json"),
        pytest.param('"text":{"format":{"type":"text"}}', id="20-text"),
        pytest.param('"tools":[],"stream":false', id="21"),
        pytest.param(
            '"tools":[{"type":"function","name":"shell","strict":true,"parameters":{}},'
            '{"type":"custom","name":"apply_patch","format":{"type":"grammar","syntax":"lark","definition":"x"}},'
            '{"type":"tool_search","execution":"client"},'
            '{"type":"web_search","external_web_access":true,"search_content_types":["text"]}]',
            id="22",
        ),
        pytest.param('"tools":[{"type":"function","name":"f","parameters":null,"description":null}]', id="23"),
        pytest.param(
            '"client_metadata":{"a":1},"generate":false,"top_k":20,"chat_template_kwargs":{"a":true}', id="24"
        ),
        pytest.param('"conversation":"conv_1"', id="29-string"),
        pytest.param('"conversation":{"id":"conv_1"}', id="29-object"),
        pytest.param('"metadata":{"a":"b"},"prompt_cache_key":"k","safety_identifier":"s","user":"u"', id="37"),
        pytest.param('"truncation":"auto"', id="truncation"),
        pytest.param('"service_tier":"auto"', id="service-tier"),
        pytest.param('"stream":true,"stream_options":{"include_obfuscation":false}', id="stream-options"),
        pytest.param('"background":false,"background_options":{"completion_window":"soonest"}', id="background"),
        pytest.param(
            '"reasoning":{"effort":"high","summary":"auto","context":"all_turns","mode":"pro"}', id="reasoning"
        ),
        pytest.param('"reasoning":{"effort":null,"summary":null,"generate_summary":null}', id="reasoning-nulls"),
        pytest.param('"reasoning":{}', id="reasoning-empty"),
        pytest.param('"context_management":[{"type":"compaction","compact_threshold":1000}]', id="context-management"),
        pytest.param(
            '"max_output_tokens":1,"max_tool_calls":1,"top_logprobs":20,"temperature":2,"top_p":0', id="bounds"
        ),
        pytest.param('"temperature":0.7,"top_p":1.0,"presence_penalty":-2,"frequency_penalty":2e0', id="numbers"),
    ],
)
def test_what_real_clients_send_is_taken_as_it_came(members: str) -> None:
    sent = json.loads(f"{{{members}}}")
    taken = {name: json.loads(value) for name, value in parsed(members).members.items()}
    assert taken == {"model": "m"} | {name: value for name, value in sent.items() if value is not None}


HOSTED = (
    '{"type":"file_search","vector_store_ids":["v"]}', '{"type":"computer"}', '{"type":"computer_use_preview"}',
    '{"type":"web_search"}', '{"type":"web_search_2025_08_26"}', '{"type":"web_search_preview"}',
    '{"type":"web_search_preview_2025_03_11"}', '{"type":"mcp","server_label":"s","server_url":"http://x"}',
    '{"type":"code_interpreter","container":{"type":"auto"}}', '{"type":"programmatic_tool_calling"}',
    '{"type":"image_generation"}', '{"type":"local_shell"}', '{"type":"shell"}', '{"type":"tool_search"}',
    '{"type":"apply_patch"}', '{"type":"a_tool_of_tomorrow","x":null}',
)  # fmt: skip
NAMED = (
    '{"type":"function","name":"f"}', '{"type":"custom","name":"c"}', '{"type":"custom","name":"c","format":null}',
    '{"type":"custom","name":"c","format":{"type":"text"}}',
    '{"type":"namespace","name":"n","description":"d","tools":[{"type":"function","name":"f"},{"type":"custom","name":"c"}]}',
    '{"type":"namespace","name":"n","tools":[]}',
)  # fmt: skip


@pytest.mark.parametrize("tool", HOSTED + NAMED)
def test_tools_of_every_kind_are_taken(tool: str) -> None:
    """contract api.md 2: sixteen types, and those that are still to come."""
    assert parsed(f'"tools":[{tool}]').members["tools"] == f"[{tool}]".encode()


@pytest.mark.parametrize(
    "choice",
    [
        '"none"', '"auto"', '"required"', '{"type":"function","name":"f"}', '{"type":"custom","name":"c"}',
        '{"type":"mcp","server_label":"s"}', '{"type":"mcp","server_label":"s","name":null}', '{"type":"apply_patch"}',
        '{"type":"shell"}', '{"type":"web_search_preview"}', '{"type":"programmatic_tool_calling"}',
        '{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"},{"type":"mcp"}]}',
        '{"type":"allowed_tools","mode":"required","tools":[]}',
    ],
)  # fmt: skip
def test_every_form_of_tool_choice_is_taken(choice: str) -> None:
    assert parsed(f'"tool_choice":{choice}').members["tool_choice"] == choice.encode()


@pytest.mark.parametrize(
    "name",
    ["file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
     "message.input_image.image_url", "computer_call_output.output.image_url", "code_interpreter_call.outputs",
     "reasoning.encrypted_content", "message.output_text.logprobs"],
)  # fmt: skip
def test_everything_that_can_be_included_is_taken(name: str) -> None:
    assert parsed(f'"include":["{name}"]').members["include"] == f'["{name}"]'.encode()


# --- what is no JSON


@pytest.mark.parametrize(
    "text",
    [
        b"", b" ", b"hello", b"[]", b'"x"', b"null", b"5", b"{", b'{"model":"m","input":"hi"', b'{"model":"m",}',
        b"{'model':'m'}", b'{"model":"m","input":"hi"} x', b'{"model":"m","input":NaN}',
        b'{"model":"m","input":"hi","temperature":Infinity}', b'{"model":"m","input":"\x01"}',
        b'\xef\xbb\xbf{"model":"m","input":"hi"}', b'{"model":"m","input":"\xff"}',
        b'{"model":"m","input":"\xed\xa0\x80"}',
        b'{"model":"m","input":"\\x"}', b'{"model":"m","input":[1,,2]}', b'{"model":"m","input":"hi","x":01}',
        '{"model":"m","input":"hi"}'.encode("utf-16"),
    ],
)  # fmt: skip
def test_what_is_not_a_json_object_is_refused(text: bytes) -> None:
    error = refused(text)
    assert (error.status, error.param, error.code) == (400, None, None)
    assert error.message.startswith("We could not parse the JSON body of your request")


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_a_body_that_is_too_deep_is_refused(opening: str) -> None:
    closing = {"[": "]", '{"a":': "}"}[opening]
    deepest = 199  # and the request itself
    assert parsed(f'"x":{opening * deepest}1{closing * deepest}').model == "m"
    for depth in (200, 1000, 200_000):
        error = refused(body(f'"x":{opening * depth}1{closing * depth}'))
        assert (error.status, error.param) == (400, None)
        assert "nested more than 200 levels deep" in error.message


def test_brackets_within_a_string_are_no_depth() -> None:
    assert parsed(f'"x":"{"[" * 1000}"').members["x"] == b'"' + b"[" * 1000 + b'"'


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ('"model":"m"', "model"),
        ('"input":"other"', "input"),
        ('"store":false,"store":true', "store"),
        ('"x":1,"x":1', "x"),
        ('"x":null,"x":null', "x"),
        ('"a":1,"\\u0061":2', "a"),
        ('"\\ud83d":1,"\\ud83d":2', "(unprintable)"),
        (f'"{"k" * 300}":1,"{"k" * 300}":2', "(unprintable)"),
    ],
)
def test_a_member_that_comes_twice_is_refused(members: str, param: str) -> None:
    error = refused(body(members))
    assert (error.status, error.param, error.message) == (400, param, f"Duplicate parameter: '{param}'.")


def test_a_member_that_comes_twice_is_not_read_by_two_rules() -> None:
    """B135."""
    raw_body = cases()["B135"]["client_steps"][0]["raw"].encode()
    assert refused(raw_body).param == "input"


# --- what is missing or of a wrong type


@pytest.mark.parametrize(
    ("text", "param", "code", "message"),
    [
        (b"{}", "model", "missing_required_parameter", "Missing required parameter: 'model'."),
        (b'{"input":"hi"}', "model", "missing_required_parameter", "Missing required parameter: 'model'."),
        (b'{"model":"m"}', "input", "missing_required_parameter", "Missing required parameter: 'input'."),
        (b'{"model":"","input":"hi"}', "model", "missing_required_parameter", "Missing required parameter: 'model'."),
        (
            b'{"model":null,"input":"hi"}', "model", "invalid_type",
            "Invalid type for 'model': expected a string, but got null instead.",
        ),
        (
            b'{"model":"m","input":null}', "input", "invalid_type",
            "Invalid type for 'input': expected a string or an array, but got null instead.",
        ),
        (
            b'{"model":"m","input":{"role":"user"}}', "input", "invalid_type",
            "Invalid type for 'input': expected a string or an array, but got an object instead.",
        ),
    ],
)  # fmt: skip
def test_model_and_input_must_be_there(text: bytes, param: str, code: str, message: str) -> None:
    error = refused(text)
    assert (error.status, error.param, error.code, error.message) == (400, param, code, message)


@pytest.mark.parametrize(
    ("members", "param", "expected", "got"),
    [
        ('"store":"true"', "store", "a boolean", "a string"),
        ('"store":1', "store", "a boolean", "an integer"),
        ('"background":0', "background", "a boolean", "an integer"),
        ('"stream":"false"', "stream", "a boolean", "a string"),
        ('"parallel_tool_calls":[]', "parallel_tool_calls", "a boolean", "an array"),
        ('"instructions":["x"]', "instructions", "a string", "an array"),
        ('"instructions":{}', "instructions", "a string", "an object"),
        ('"previous_response_id":5', "previous_response_id", "a string", "an integer"),
        ('"conversation":5', "conversation", "a string or an object", "an integer"),
        ('"conversation":["c"]', "conversation", "a string or an object", "an array"),
        ('"conversation":{"id":5}', "conversation.id", "a string", "an integer"),
        ('"stream_options":true', "stream_options", "an object", "a boolean"),
        ('"include":"reasoning.encrypted_content"', "include", "an array", "a string"),
        ('"include":[null]', "include[0]", "a string", "null"),
        ('"tools":{}', "tools", "an array", "an object"),
        ('"tools":["web_search"]', "tools[0]", "an object", "a string"),
        ('"tools":[{"type":"web_search"},null]', "tools[1]", "an object", "null"),
        ('"tools":[{"type":5}]', "tools[0].type", "a string", "an integer"),
        ('"tools":[{"type":"function","name":{}}]', "tools[0].name", "a string", "an object"),
        ('"tools":[{"type":"custom","name":"c","format":"text"}]', "tools[0].format", "an object", "a string"),
        ('"tools":[{"type":"namespace","name":"n","tools":{}}]', "tools[0].tools", "an array", "an object"),
        ('"tools":[{"type":"namespace","name":"n","tools":[1]}]', "tools[0].tools[0]", "an object", "an integer"),
        ('"tool_choice":true', "tool_choice", "a string or an object", "a boolean"),
        ('"tool_choice":{"type":[]}', "tool_choice.type", "a string", "an array"),
        ('"tool_choice":{"type":"function","name":1}', "tool_choice.name", "a string", "an integer"),
        ('"tool_choice":{"type":"allowed_tools","tools":{}}', "tool_choice.tools", "an array", "an object"),
        ('"tool_choice":{"type":"allowed_tools","tools":["f"]}', "tool_choice.tools[0]", "an object", "a string"),
        ('"tool_choice":{"type":"allowed_tools","tools":[{"type":"function","name":1}]}', "tool_choice.tools[0].name",
         "a string", "an integer"),
        ('"max_tool_calls":"1"', "max_tool_calls", "an integer", "a string"),
        ('"max_output_tokens":true', "max_output_tokens", "an integer", "a boolean"),
        ('"max_output_tokens":100.0', "max_output_tokens", "an integer", "a number"),
        ('"max_output_tokens":1e2', "max_output_tokens", "an integer", "a number"),
        ('"top_logprobs":1.5', "top_logprobs", "an integer", "a number"),
        ('"temperature":"0"', "temperature", "a number", "a string"),
        ('"temperature":true', "temperature", "a number", "a boolean"),
        ('"top_p":[]', "top_p", "a number", "an array"),
        ('"presence_penalty":{}', "presence_penalty", "a number", "an object"),
        ('"frequency_penalty":false', "frequency_penalty", "a number", "a boolean"),
        ('"text":"text"', "text", "an object", "a string"),
        ('"text":{"format":"text"}', "text.format", "an object", "a string"),
        ('"text":{"verbosity":1}', "text.verbosity", "a string", "an integer"),
        ('"text":{"format":{"type":"json_schema","name":1,"schema":{}}}', "text.format.name", "a string", "an integer"),
        ('"text":{"format":{"type":"json_schema","name":"A","schema":"{}"}}', "text.format.schema", "an object",
         "a string"),
        ('"reasoning":"high"', "reasoning", "an object", "a string"),
        ('"reasoning":{"effort":3}', "reasoning.effort", "a string", "an integer"),
        ('"truncation":false', "truncation", "a string", "a boolean"),
        ('"metadata":[]', "metadata", "an object", "an array"),
        ('"prompt_cache_key":1', "prompt_cache_key", "a string", "an integer"),
        ('"safety_identifier":1', "safety_identifier", "a string", "an integer"),
        ('"user":{}', "user", "a string", "an object"),
        ('"service_tier":1', "service_tier", "a string", "an integer"),
        ('"prompt":"pmpt_1"', "prompt", "an object", "a string"),
        ('"prompt":{"id":1}', "prompt.id", "a string", "an integer"),
    ],
)  # fmt: skip
def test_a_wrong_type_is_named(members: str, param: str, expected: str, got: str) -> None:
    error = refused(body(members))
    assert (error.status, error.param, error.code) == (400, param, "invalid_type")
    assert error.message == f"Invalid type for '{param}': expected {expected}, but got {got} instead."


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ('"conversation":{}', "conversation.id"),
        ('"conversation":{"id":null}', "conversation.id"),
        ('"conversation":{"id":""}', "conversation.id"),
        ('"tools":[{}]', "tools[0].type"),
        ('"tools":[{"type":null}]', "tools[0].type"),
        ('"tools":[{"type":"function","function":{"name":"chat style"}}]', "tools[0].name"),
        ('"tools":[{"type":"function","name":null}]', "tools[0].name"),
        ('"tools":[{"type":"function","name":""}]', "tools[0].name"),
        ('"tools":[{"type":"custom"}]', "tools[0].name"),
        ('"tools":[{"type":"namespace","tools":[]}]', "tools[0].name"),
        ('"tools":[{"type":"namespace","name":"n"}]', "tools[0].tools"),
        ('"tools":[{"type":"namespace","name":"n","tools":[{"type":"function"}]}]', "tools[0].tools[0].name"),
        ('"tool_choice":{}', "tool_choice.type"),
        ('"tool_choice":{"type":"function","function":{"name":"chat style"}}', "tool_choice.name"),
        ('"tool_choice":{"type":"custom","name":null}', "tool_choice.name"),
        ('"tool_choice":{"type":"allowed_tools","mode":"auto"}', "tool_choice.tools"),
        ('"tool_choice":{"type":"allowed_tools","tools":[{"name":"f"}]}', "tool_choice.tools[0].type"),
        ('"text":{"format":{}}', "text.format.type"),
        ('"text":{"format":{"type":"json_schema","schema":{}}}', "text.format.name"),
        ('"text":{"format":{"type":"json_schema","name":"A","schema":null}}', "text.format.schema"),
        ('"prompt":{}', "prompt.id"),
    ],
)  # fmt: skip
def test_what_is_missing_within_a_member_is_named(members: str, param: str) -> None:
    error = refused(body(members))
    assert (error.status, error.param, error.code) == (400, param, "missing_required_parameter")
    assert error.message == f"Missing required parameter: '{param}'."


@pytest.mark.parametrize(
    ("members", "param", "supported"),
    [
        ('"truncation":"bogus"', "truncation", "'auto' and 'disabled'"),
        ('"truncation":""', "truncation", "'auto' and 'disabled'"),
        ('"tool_choice":"any"', "tool_choice", "'none', 'auto' and 'required'"),
        ('"text":{"verbosity":"loud"}', "text.verbosity", "'low', 'medium' and 'high'"),
        ('"text":{"format":{"type":"xml"}}', "text.format.type", "'text', 'json_schema' and 'json_object'"),
        ('"reasoning":{"effort":"ultra"}', "reasoning.effort",
         "'none', 'minimal', 'low', 'medium', 'high', 'xhigh' and 'max'"),
        ('"reasoning":{"summary":"long"}', "reasoning.summary", "'auto', 'concise' and 'detailed'"),
        ('"include":["reasoning.encrypted_content","x"]', "include[1]",
         "'file_search_call.results', 'web_search_call.results', 'web_search_call.action.sources', "
         "'message.input_image.image_url', 'computer_call_output.output.image_url', 'code_interpreter_call.outputs', "
         "'reasoning.encrypted_content' and 'message.output_text.logprobs'"),
    ],
)  # fmt: skip
def test_a_value_that_is_not_supported_is_answered_with_those_that_are(
    members: str, param: str, supported: str
) -> None:
    error = refused(body(members))
    assert (error.status, error.param, error.code) == (400, param, "invalid_value")
    assert error.message.endswith(f"Supported values are: {supported}.")


# --- numbers


@pytest.mark.parametrize(
    ("members", "param", "code", "message"),
    [
        ('"max_output_tokens":0', "max_output_tokens", "integer_below_min_value",
         "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 1, but got 0 instead."),
        ('"max_output_tokens":-0', "max_output_tokens", "integer_below_min_value",
         "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 1, but got 0 instead."),
        ('"max_output_tokens":-5', "max_output_tokens", "integer_below_min_value",
         "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 1, but got -5 instead."),
        ('"max_tool_calls":0', "max_tool_calls", "integer_below_min_value",
         "Invalid 'max_tool_calls': integer below minimum value. Expected a value >= 1, but got 0 instead."),
        ('"top_logprobs":-1', "top_logprobs", "integer_below_min_value",
         "Invalid 'top_logprobs': integer below minimum value. Expected a value >= 0, but got -1 instead."),
        ('"top_logprobs":21', "top_logprobs", "integer_above_max_value",
         "Invalid 'top_logprobs': integer above maximum value. Expected a value <= 20, but got 21 instead."),
        ('"temperature":-0.1', "temperature", "decimal_below_min_value",
         "Invalid 'temperature': decimal below minimum value. Expected a value >= 0, but got -0.1 instead."),
        ('"temperature":2.5', "temperature", "decimal_above_max_value",
         "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 2.5 instead."),
        ('"top_p":1.1', "top_p", "decimal_above_max_value",
         "Invalid 'top_p': decimal above maximum value. Expected a value <= 1, but got 1.1 instead."),
        ('"presence_penalty":-3', "presence_penalty", "decimal_below_min_value",
         "Invalid 'presence_penalty': decimal below minimum value. Expected a value >= -2, but got -3 instead."),
        ('"frequency_penalty":3', "frequency_penalty", "decimal_above_max_value",
         "Invalid 'frequency_penalty': decimal above maximum value. Expected a value <= 2, but got 3 instead."),
        ('"temperature":1e400', "temperature", "decimal_above_max_value",
         "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got inf instead."),
        ('"temperature":-1e400', "temperature", "decimal_below_min_value",
         "Invalid 'temperature': decimal below minimum value. Expected a value >= 0, but got -inf instead."),
    ],
)  # fmt: skip
def test_a_number_out_of_bounds_is_named(members: str, param: str, code: str, message: str) -> None:
    error = refused(body(members))
    assert (error.status, error.param, error.code, error.message) == (400, param, code, message)


@pytest.mark.parametrize("digits", [19, 20, 21, 400, 5000, 100_000])
def test_an_integer_of_any_length_is_compared_and_kept(digits: int) -> None:
    """Python refuses to read an integer of more than 4,300 digits; JSON does not."""
    assert parsed(f'"max_output_tokens":{"9" * digits}').members["max_output_tokens"] == b"9" * digits
    assert refused(body(f'"max_output_tokens":-{"9" * digits}')).code == "integer_below_min_value"
    too_large = refused(body(f'"top_logprobs":{"9" * digits}'))
    assert too_large.code == "integer_above_max_value"
    assert len(too_large.message) < 200


@pytest.mark.parametrize("number", ["0", "2", "-0.0", "1.0", "2e0", "0." + "1" * 5000, "1e-400"])
def test_a_number_within_bounds_is_kept_as_it_came(number: str) -> None:
    assert parsed(f'"temperature":{number}').members["temperature"] == number.encode()


# --- metadata


def metadata(pairs: dict[str, Any]) -> str:
    return '"metadata":' + json.dumps(pairs)


@pytest.mark.parametrize(
    ("pairs", "code"),
    [
        ({f"k{number}": "v" for number in range(17)}, "object_above_max_properties"),
        ({"k" * 65: "v"}, "string_above_max_length"),
        ({"k": "v" * 513}, "string_above_max_length"),
        ({"k": "\u00e9" * 513}, "string_above_max_length"),
        ({"k": 5}, "invalid_type"),
        ({"k": True}, "invalid_type"),
        ({"k": None}, "invalid_type"),
        ({"k": {"deep": "x"}}, "invalid_type"),
        ({"a\0b": "v"}, "invalid_value"),
        ({"\ud83d": "v"}, "invalid_value"),
        ({"": "v"}, "invalid_value"),
    ],
)
def test_metadata_out_of_its_limits_is_a_fault_of_metadata_itself(pairs: dict[str, Any], code: str) -> None:
    error = refused(body(metadata(pairs)))
    assert (error.status, error.param, error.code) == (400, "metadata", code)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ('{"a":"b","k":5}', "Invalid type for 'metadata.k': expected a string, but got an integer instead."),
        (
            f'{{"k":"{"v" * 513}"}}',
            "Invalid 'metadata.k': string too long. Expected at most 512 characters, but got 513 instead.",
        ),
        ('{"k":"a","k":"b"}', "Duplicate parameter: 'metadata.k'."),
        ('{"k":"a","\\u006b":"b"}', "Duplicate parameter: 'metadata.k'."),
        # The last one counts, so that the others could be of any length.
        (f'{{"k":"{"v" * 513}","k":"b"}}', "Duplicate parameter: 'metadata.k'."),
    ],
)
def test_what_is_wrong_with_metadata_is_told_by_the_key(pairs: str, message: str) -> None:
    error = refused(body(f'"metadata":{pairs}'))
    assert (error.status, error.param, error.message) == (400, "metadata", message)


@pytest.mark.parametrize(
    "pairs",
    [
        {},
        {f"k{number}": "v" for number in range(16)},
        {"k" * 64: "v" * 512},
        {"\u00e9" * 64: "\u00e9" * 512},
        {"🦓" * 64: "🦓" * 512},
        {"k": ""},
        {"k": "a\0b\nc"},
    ],
)
def test_metadata_within_its_limits_is_kept(pairs: dict[str, str]) -> None:
    assert json.loads(parsed(metadata(pairs)).members["metadata"]) == pairs


def test_metadata_limits_are_counted_in_characters() -> None:
    """B095, but for its step at the conversations endpoint."""
    texts = [json.dumps(step["json"]).encode() for step in cases()["B095"]["client_steps"][:6]]
    taken = {number: request.parse(texts[number - 1], DEPTH_MAX).members["metadata"] for number in (1, 4)}
    assert json.loads(taken[1]) == {f"k{number}": "v" for number in range(16)}
    assert json.loads(taken[4]) == {"k": "\u00e9" * 512}
    assert [(refused(texts[number - 1]).status, refused(texts[number - 1]).param) for number in (2, 3, 5, 6)] == [
        (400, "metadata")
    ] * 4


# --- texts that become keys


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ('"previous_response_id":"{}"', "previous_response_id"),
        ('"conversation":"{}"', "conversation"),
        ('"conversation":{{"id":"{}"}}', "conversation.id"),
        ('"prompt":{{"id":"{}"}}', "prompt.id"),
        ('"tool_choice":{{"type":"function","name":"{}"}}', "tool_choice.name"),
        ('"tools":[{{"type":"function","name":"{}"}}]', "tools[0].name"),
    ],
)
@pytest.mark.parametrize("text", ["a\\u0000b", "\\n", "\\ud83d", "x\\udfff", "x" * 257, "\x7f"])
def test_a_key_that_no_database_takes_is_refused(members: str, param: str, text: str) -> None:
    error = refused(body(members.format(text)))
    assert (error.status, error.param, error.code) == (400, param, "invalid_value")
    assert "256" in error.message


def test_a_model_that_is_no_key_is_refused() -> None:
    assert refused(b'{"model":"a\\u0000b","input":"hi"}').param == "model"
    assert request.parse(b'{"model":"org/Model-7B:latest \xc3\xa9","input":"hi"}', DEPTH_MAX).model.endswith("é")


def test_lone_surrogates_and_nul_in_texts_are_kept() -> None:
    taken = request.parse(b'{"model":"m","input":"a\\ud83d\\u0000b","instructions":"\\udfff","x":"\\ud800"}', DEPTH_MAX)
    assert taken.input == b'"a\\ud83d\\u0000b"'
    assert taken.members["instructions"] == b'"\\udfff"'
    assert taken.members["x"] == b'"\\ud800"'


# --- what can't be meant, what is not built, and the order of it all


def test_two_pasts_at_once_are_refused() -> None:
    """B122."""
    error = refused(body('"previous_response_id":"resp_1","conversation":"conv_1"'))
    assert (error.status, error.param, error.code) == (400, None, "mutually_exclusive_parameters")
    assert error.message == (
        "Mutually exclusive parameters: 'previous_response_id' and 'conversation' can't be used together."
    )


def test_a_prompt_is_never_found() -> None:
    error = refused(body('"prompt":{"id":"pmpt_1","version":"2","variables":{"x":"secret"}}'))
    assert (error.status, error.message) == (404, "Prompt with id 'pmpt_1' not found.")


def test_background_is_refused_by_name() -> None:
    error = refused(body('"background":true'))
    assert (error.status, error.param, error.code) == (400, "background", None)
    assert refused(body('"background":true,"store":false')).param == "background"


@pytest.mark.parametrize(
    ("text", "param"),
    [
        # contract api.md 5: model, input, the members in a fixed order, the items, state, and abilities at last.
        (b'{"store":"x"}', "model"),
        (b'{"input":null,"store":"x"}', "model"),
        (b'{"model":"m","store":"x"}', "input"),
        (b'{"model":5,"input":5,"store":5}', "model"),
        (b'{"temperature":9,"model":"m","store":"x","input":5}', "input"),
        (b'{"temperature":9,"model":"m","store":"x","input":[5]}', "store"),
        (b'{"metadata":5,"temperature":9,"model":"m","input":[5]}', "temperature"),
        (b'{"model":"m","input":[5],"previous_response_id":"p","conversation":"c"}', "input[0]"),
        (b'{"model":"m","input":[5],"prompt":{"id":"p"}}', "input[0]"),
        (b'{"model":"m","input":[{"role":"tool","content":"x"}],"background":true}', "input[0]"),
        (b'{"model":"m","input":"hi","background":true,"prompt":{"id":"p"}}', "prompt"),
        (b'{"model":"m","input":"hi","background":true,"metadata":5}', "metadata"),
        (b'{"model":"m","input":"hi","input":"ho","store":5}', "input"),
    ],
)
def test_the_first_fault_in_the_order_of_the_contract_is_named(text: bytes, param: str) -> None:
    assert refused(text).param == param


# --- whatever comes

SECRET = "the zebra sleeps"
WHOLE_REQUEST: dict[str, Any] = {
    "model": "m",
    "input": [
        {"role": "user", "content": SECRET},
        {"type": "reasoning", "summary": [], "encrypted_content": SECRET, "content": [{"type": "x", "text": SECRET}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": SECRET},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": SECRET}]},
    ],
    "instructions": SECRET,
    "tools": [
        {"type": "custom", "name": "c", "description": SECRET, "format": {"type": "grammar", "definition": SECRET}},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f", "parameters": {"x": SECRET}}]},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "c"}]},
    "text": {"format": {"type": "json_schema", "name": "A", "schema": {"description": SECRET}}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "metadata": {"k": SECRET},
    "include": ["reasoning.encrypted_content"],
    "conversation": {"id": "conv_1"},
    "temperature": 0.5,
    "max_output_tokens": 16,
    "stream_options": {"include_obfuscation": False},
}
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "id", "name"]), inner),
    max_leaves=5,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, one in inner for place in places(one, (*at, key)))]


@settings(deadline=None)
@given(st.sampled_from(places(WHOLE_REQUEST)[1:]), JSON_VALUES)
def test_whatever_stands_wherever_the_answer_is_ours_and_quotes_no_text(place: tuple[Any, ...], value: Any) -> None:
    mutant = copy.deepcopy(WHOLE_REQUEST)
    owner = mutant
    for key in place[:-1]:
        owner = owner[key]
    owner[place[-1]] = value
    taken = outcome(json.dumps(mutant).encode())
    if isinstance(taken, ApiError):
        assert taken.status in (400, 404)
        assert SECRET not in taken.message
        assert len(taken.message) < 600
    else:
        assert taken.model == mutant["model"]
        assert json.loads(taken.input) == mutant["input"]


@settings(deadline=None)
@given(st.data())
def test_a_body_that_was_damaged_is_answered(data: st.DataObject) -> None:
    text = bytearray(json.dumps(WHOLE_REQUEST).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 3)))
        text[start:end] = data.draw(
            st.sampled_from([b"", b"{", b"}", b"]", b'"', b",", b"\\", b"\xff", b"null", b"\0"])
        )
    taken = outcome(bytes(text))
    if isinstance(taken, ApiError):
        assert taken.status in (400, 404)
    else:
        assert raw.decode(taken.input) == json.loads(text)["input"]


def outcome(text: bytes) -> request.Request | ApiError:
    """The request, once its items have been walked too, or how it was refused."""
    try:
        taken = request.parse(text, DEPTH_MAX)
        items.parse_input(taken.input)
    except ApiError as error:
        return error
    return taken
