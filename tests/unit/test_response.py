"""Our response object over the upstream's: whose member is whose, what is always there, and what each becomes."""

import json
from typing import Any

import pytest
from openai.types.responses import Response

from server.protocol import raw
from server.protocol.request import parse
from server.protocol.response import ERROR_CODES, ResponseObject, whole
from tests.grammar import ERROR_CODES as CONTRACT_ERROR_CODES
from tests.grammar import assert_response

NOW_S = 1_800_000_000


def response_object(request: str = '{"model":"tiny","input":"hi"}') -> ResponseObject:
    return ResponseObject(parse(request.encode(), depth_max=200), "resp_ours", clock=lambda: NOW_S)


def asking(members: str) -> ResponseObject:
    return response_object('{"model":"tiny","input":"hi",' + members + "}")


def started(members: str = "", upstream: str | None = None) -> dict[str, Any]:
    one = asking(members) if members else response_object()
    told: dict[str, Any] = json.loads(one.started(None if upstream is None else raw.Object(upstream.encode())))
    assert_response(told)
    return told


def ended(
    upstream: str | None, status: str = "completed", error: dict[str, str] | None = None, members: str = ""
) -> dict[str, Any]:
    one = asking(members) if members else response_object()
    body = one.ended(None if upstream is None else raw.Object(upstream.encode()), status, error)
    told: dict[str, Any] = json.loads(body.text)
    assert_response(told)
    return told


EVERY_KEY = {
    "id": "resp_ours",
    "object": "response",
    "created_at": NOW_S,
    "completed_at": None,
    "error": None,
    "incomplete_details": None,
    "usage": None,
    "status": "in_progress",
    "output": [],
    "model": "tiny",
    "background": False,
    "conversation": None,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "prompt_cache_key": None,
    "reasoning": None,
    "safety_identifier": None,
    "service_tier": "default",
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "previous_response_id": None,
    "store": True,
    "truncation": "disabled",
}


def test_every_key_of_the_contract_is_there_in_one_order() -> None:
    told = started()
    assert told == EVERY_KEY
    assert list(told) == list(EVERY_KEY)
    assert list(ended("{}")) == list(EVERY_KEY)


def test_nulls_count_as_unsent() -> None:
    names = [*EVERY_KEY, "user", "x_unknown"]
    nulls = ",".join(f'"{name}":null' for name in names if name != "model")
    assert started(nulls) == EVERY_KEY


def test_members_of_the_request_are_echoed_as_they_were_sent() -> None:
    """Unknown ones too, as text: numbers are not written anew."""
    sent = {
        "temperature": "0.70", "top_p": "1e-1", "max_output_tokens": "16", "instructions": '"Be\\u0020brief"',
        "metadata": '{"b":"1", "a":"2"}', "tool_choice": '{"type":"function","name":"f"}', "user": '"ada"',
        "parallel_tool_calls": "false", "service_tier": '"flex"', "prompt_cache_key": '"k"', "safety_identifier": '"s"',
        "store": "false", "previous_response_id": '"resp_before"', "top_k": "40", "seed": "1.0",
        "chat_template_kwargs": '{"enable_thinking": false , "x":[1.0]}', "client_metadata": '{"a":null}',
        "max_tool_calls": "3", "top_logprobs": "2", "presence_penalty": "-0.5", "frequency_penalty": "0.10",
        "background": "false",
    }  # fmt: skip
    text = asking(",".join(f'"{name}":{value}' for name, value in sent.items())).started(None)
    cut = raw.Object(text)
    assert {name: cut.get(name) for name in sent} == {name: value.encode() for name, value in sent.items()}
    assert_response(json.loads(text))


@pytest.mark.parametrize(
    "member", ['"include":["reasoning.encrypted_content"]', '"stream":true', '"stream_options":{"include_usage":true}']
)
def test_what_steers_the_answer_is_not_echoed(member: str) -> None:
    assert started(member) == EVERY_KEY


@pytest.mark.parametrize("name", ["id", "object", "status", "output", "usage", "error", "incomplete_details"])
def test_a_request_cannot_name_what_becomes_of_it(name: str) -> None:
    assert started(f'"{name}":"mine","created_at":5,"completed_at":6') == EVERY_KEY


def test_the_requests_members_win_over_what_the_upstream_made_of_them() -> None:
    upstream = (
        '{"model":"/models/tiny","max_output_tokens":2031,"service_tier":"auto","tool_choice":"none","text":null,'
        '"previous_response_id":null,"store":false,"truncation":"auto","temperature":0.0,"instructions":"x","tools":[1],'
        '"reasoning":{"effort":"high"},"background":true,"metadata":null,"conversation":{"id":"c"},"id":"resp_up",'
        '"object":"x","parallel_tool_calls":false,"top_p":0.5,"top_logprobs":null}'
    )
    assert started(upstream=upstream) == EVERY_KEY


def test_members_that_neither_side_knows_pass_as_they_came() -> None:
    upstream = raw.Object(b'{"kv_transfer_params":null,"x":{"a":1.0, "b":1e400},"input_messages":[ 1 ]}')
    text = response_object().started(upstream)
    assert text.endswith(b',"kv_transfer_params":null,"x":{"a":1.0, "b":1e400},"input_messages":[ 1 ]}')
    ended_text = response_object().ended(upstream, "completed", None).text
    assert ended_text.endswith(b',"kv_transfer_params":null,"x":{"a":1.0, "b":1e400},"input_messages":[ 1 ]}')


def test_an_unsent_member_that_an_upstream_echoes_by_itself_is_not_shown() -> None:
    """`user` may not be null (contract api.md 3); `output_text` is made by SDKs and is on no wire."""
    upstream = (
        '{"user":null,"prompt":null,"prompt_cache_options":null,"prompt_cache_retention":null,"moderation":null,'
        '"context_management":null,"output_text":"hi"}'
    )
    assert started(upstream=upstream) == EVERY_KEY


@pytest.mark.parametrize("sent", ['"conv_1"', '{"id":"conv_1"}', '{"id":"conv_1","x":1}'])
def test_a_conversation_is_echoed_as_an_object_whichever_form_was_sent(sent: str) -> None:
    assert started(f'"conversation":{sent}')["conversation"] == {"id": "conv_1"}


def test_truncation_is_told_as_what_is_done() -> None:
    """DESIGN 7.9: `auto` is not built."""
    assert started('"truncation":"auto"')["truncation"] == "disabled"


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ("{}", {"format": {"type": "text"}}),
        ('{"format":null,"verbosity":"low"}', {"format": {"type": "text"}, "verbosity": "low"}),
        ('{"verbosity":"high"}', {"verbosity": "high", "format": {"type": "text"}}),
        ('{"format":{"type":"json_object"}}', {"format": {"type": "json_object"}}),
    ],
)
def test_text_always_has_a_format(sent: str, told: Any) -> None:
    assert started(f'"text":{sent}')["text"] == told


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ("{}", {"effort": None, "summary": None, "context": "all_turns"}),
        ('{"effort":"low"}', {"effort": "low", "summary": None, "context": "all_turns"}),
        ('{"context":"current_turn","x":1}', {"context": "all_turns", "x": 1, "effort": None, "summary": None}),
        ('{"summary":"auto","context":null}', {"summary": "auto", "context": "all_turns", "effort": None}),
    ],
)
def test_reasoning_has_its_three_keys_and_the_context_that_is_used(sent: str, told: Any) -> None:
    """DESIGN 7.8: every earlier reasoning item is sent."""
    assert started(f'"reasoning":{sent}')["reasoning"] == told


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (
            '{"type":"function","name":"f"}',
            '{"type":"function","name":"f","description":null,"parameters":null,"strict":true}',
        ),
        (
            '{"type":"function","name":"f","parameters":{ "a":1.0 },"strict":false,"description":"d","x":1}',
            '{"type":"function","name":"f","parameters":{ "a":1.0 },"strict":false,"description":"d","x":1}',
        ),
        (
            '{"strict":null,"type":"function","name":"f","parameters":null}',
            '{"strict":null,"type":"function","name":"f","parameters":null,"description":null}',
        ),
        ('{"type":"web_search"}', '{"type":"web_search"}'),
        ('{"type":"custom","name":"c"}', '{"type":"custom","name":"c"}'),
        ('{"type":"x_new","name":"c","a":[]}', '{"type":"x_new","name":"c","a":[]}'),
    ],
)
def test_a_function_tool_is_echoed_with_its_four_keys_and_others_as_sent(sent: str, told: str) -> None:
    cut = raw.Object(asking(f'"tools":[{sent}]').started(None))
    assert cut.get("tools") == f"[{told}]".encode()


# --- what became of the turn


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ("1700000000", 1_700_000_000),
        ("1700000000.75", 1_700_000_000),
        ("1.7e9", 1_700_000_000),
        ("0", 0),
        ("9007199254740991", 2**53 - 1),
        ("9007199254740992", NOW_S),
        ("null", NOW_S),
        ('"1700000000"', NOW_S),
        ("-5", NOW_S),
        ("1e400", NOW_S),
        ("1e30", NOW_S),
        ("true", NOW_S),
        ("[]", NOW_S),
    ],
)
def test_times_are_whole_seconds(sent: str, told: int) -> None:
    assert started(upstream=f'{{"created_at":{sent}}}')["created_at"] == told
    assert ended(f'{{"completed_at":{sent}}}')["completed_at"] == told


def test_the_first_object_settles_created_at_for_all() -> None:
    ticks = iter([100, 200, 300])
    one = ResponseObject(parse(b'{"model":"m","input":"x"}', 200), "resp_ours", clock=lambda: next(ticks))
    assert json.loads(one.started(None))["created_at"] == 100
    final = json.loads(one.ended(raw.Object(b'{"created_at":5}'), "completed", None).text)
    assert (final["created_at"], final["completed_at"]) == (100, 200)


@pytest.mark.parametrize("status", ["incomplete", "failed", "cancelled"])
def test_only_a_completed_response_has_completed_at(status: str) -> None:
    one = response_object().ended(raw.Object(b'{"completed_at":5}'), status, None)
    assert json.loads(one.text)["completed_at"] is None


@pytest.mark.parametrize(
    ("upstream", "told"),
    [
        ('{"incomplete_details":{"reason":"content_filter"}}', {"reason": "content_filter"}),
        ('{"incomplete_details":null}', {"reason": "max_output_tokens"}),
        ('{"incomplete_details":"length"}', {"reason": "max_output_tokens"}),
        ("{}", {"reason": "max_output_tokens"}),
    ],
)
def test_an_incomplete_response_has_details(upstream: str, told: Any) -> None:
    assert ended(upstream, "incomplete")["incomplete_details"] == told


def test_a_completed_response_has_neither_details_nor_error() -> None:
    told = ended('{"incomplete_details":{"reason":"x"},"error":{"code":"server_error","message":"m"}}')
    assert (told["incomplete_details"], told["error"]) == (None, None)


@pytest.mark.parametrize(
    ("upstream", "code", "message"),
    [
        ('{"error":{"code":"invalid_prompt","message":"m","x":1}}', "invalid_prompt", "m"),
        ('{"error":{"code":"context_length_exceeded","message":"m"}}', "context_length_exceeded", "m"),
        ('{"error":{"code":"overloaded","message":"m"}}', "server_error", "m"),
        ('{"error":{"code":500,"message":"m"}}', "server_error", "m"),
        ('{"error":{"message":"first\\nsecond"}}', "server_error", "first"),
        ('{"error":{"message":5}}', "server_error", "The model server reported an error."),
        ('{"error":"m"}', "server_error", "The model server reported an error."),
        ("{}", "server_error", "The model server reported an error."),
    ],
)
def test_the_upstreams_error_becomes_one_of_the_contract(upstream: str, code: str, message: str) -> None:
    assert ended(upstream, "failed")["error"] == {"code": code, "message": message}


def test_what_we_say_of_a_failure_goes_before_what_the_upstream_says() -> None:
    error = {"code": "server_error", "message": "Ours."}
    assert ended('{"error":{"code":"invalid_prompt","message":"m"}}', "failed", error)["error"] == error


def test_error_codes_are_the_contracts() -> None:
    assert ERROR_CODES == CONTRACT_ERROR_CODES


FULL_USAGE = {
    "input_tokens": 5,
    "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 2},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 12,
}
NO_DETAILS = {
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (FULL_USAGE, FULL_USAGE),
        (FULL_USAGE | {"x_cost": 0.5}, FULL_USAGE | {"x_cost": 0.5}),
        ({"input_tokens": 5, "output_tokens": 7, "total_tokens": 12}, FULL_USAGE | NO_DETAILS),
        ({"input_tokens": 5, "output_tokens": 7}, FULL_USAGE | NO_DETAILS),
        ({"output_tokens": 7}, {"input_tokens": 0, "output_tokens": 7, "total_tokens": 7} | NO_DETAILS),
        ({"input_tokens": None, "total_tokens": None},
         {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0} | NO_DETAILS),
        (FULL_USAGE | {"input_tokens_details": {"x_tokens": 4, "cached_tokens": None}},
         FULL_USAGE | {"input_tokens_details": {"x_tokens": 4, "cached_tokens": 0, "cache_write_tokens": 0}}),
        (FULL_USAGE | {"output_tokens_details": "none", "input_tokens_details": 3}, FULL_USAGE | NO_DETAILS),
        ({"input_tokens": "many", "output_tokens": [], "total_tokens": {}},
         {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0} | NO_DETAILS),
        ({"input_tokens": 5.0, "output_tokens": 7e0, "total_tokens": 12.0}, FULL_USAGE | NO_DETAILS),
        # More digits than Python's JSON reads.
        ({"input_tokens": 5, "output_tokens": -7, "total_tokens": 10**4000},
         {"input_tokens": 5, "output_tokens": 0, "total_tokens": 5} | NO_DETAILS),
        (None, None),
        ([], None),
        (7, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("status", ["completed", "incomplete", "failed"])
def test_usage_is_filled(sent: Any, told: Any, status: str) -> None:
    assert ended(json.dumps({"usage": sent}), status)["usage"] == told


@pytest.mark.parametrize("value", [[], [5], {"n": 5}, "5", True, None])
def test_details_of_usage_are_counts_and_nothing_else(value: Any) -> None:
    sent = {name: details | {"per_turn": value} for name, details in NO_DETAILS.items()}
    assert ended(json.dumps({"usage": FULL_USAGE | sent}))["usage"] == FULL_USAGE | NO_DETAILS


def test_usage_is_null_until_the_end() -> None:
    assert started(upstream=json.dumps({"usage": FULL_USAGE}))["usage"] is None


def test_items_are_put_where_the_output_is() -> None:
    body = response_object().ended(raw.Object(b'{"output":[1,2,3]}'), "completed", None)
    assert json.loads(body.text)["output"] == []
    shown = whole(body, [b'{"n":1.0}', b'{"n":1e400}'])
    assert shown == body.text.replace(b'"output":[]', b'"output":[{"n":1.0},{"n":1e400}]')
    assert whole(body, []) == body.text


def test_the_same_turn_gives_the_same_bytes() -> None:
    members = '"zeta":1,"metadata":{"a":"b"},"alpha":2,"temperature":0.5'
    upstream = raw.Object(b'{"y":1,"b":2,"created_at":3}')
    first, second = (asking(members).ended(upstream, "incomplete", None).text for _ in range(2))
    assert first == second
    extra = {"zeta", "alpha", "y", "b"}
    assert [name for name in json.loads(first) if name in extra] == ["zeta", "alpha", "y", "b"]


def test_openais_strict_types_accept_a_response_with_everything_in_it() -> None:
    request = {
        "model": "tiny",
        "input": "hi",
        "tools": [
            {"type": "function", "name": "f"},
            {"type": "custom", "name": "c", "format": {"type": "text"}},
            {"type": "web_search"},
            {"type": "mcp", "server_label": "s", "server_url": "http://127.0.0.1"},
            {"type": "local_shell"},
            {"type": "namespace", "name": "n", "description": "d", "tools": [{"type": "function", "name": "g"}]},
        ],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "j", "schema": {"type": "object"}}, "verbosity": "low"},
        "reasoning": {"effort": "low"},
        "metadata": {"a": "b"},
        "user": "ada",
        "service_tier": "flex",
        "conversation": "conv_1",
        "max_output_tokens": 16,
        "top_logprobs": 2,
        "prompt_cache_key": "k",
    }
    one = response_object(json.dumps(request))
    Response.model_validate(json.loads(one.started(None)))
    Response.model_validate(json.loads(one.ended(None, "incomplete", None).text))
