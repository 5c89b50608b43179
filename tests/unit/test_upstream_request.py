"""The body that goes upstream: whose member is whose, which tools can be sent, and what a tool choice may name."""

import json
from typing import Any

import msgspec
import pytest

from server.errors import ApiError
from server.protocol.items import Item
from server.protocol.profile import VLLM
from server.protocol.replay import Decision
from server.protocol.request import parse
from tests.harness import captures
from tests.written import written


def sent(members: str = "", copies: tuple[bytes, ...] = ()) -> str:
    comma = "," if members else ""
    request = parse(f'{{"model":"m","input":"hi"{comma}{members}}}'.encode(), 200)
    return written(request, "resp_1", list(map(decided, copies)), VLLM).decode()


def decided(copy: bytes) -> Decision:
    item = Item(body=copy, public_id="item_1", type="a")
    return Decision(item=item, action="kept", rule="item", copy=copy, message=0)


def refused(members: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        sent(members)
    assert (caught.value.status, caught.value.type) == (400, "invalid_request_error")
    return caught.value


def member(name: str, members: str) -> Any:
    return json.loads(sent(members)).get(name, "not sent")


# --- members


def test_the_least_that_is_sent() -> None:
    assert sent() == '{"model":"m","request_id":"resp_1","store":false,"stream":false,"input":[]}'


def test_copies_and_members_are_sent_as_they_came() -> None:
    body = sent('"temperature":1.0,"x":{"b" : 1e400,"a":null},"stream":true', (b'{"type":"a"}', b'{ "type":"b"}'))
    assert body == (
        '{"model":"m","temperature":1.0,"x":{"b" : 1e400,"a":null},"request_id":"resp_1","store":false,"stream":true,'
        '"input":[{"type":"a"},{ "type":"b"}]}'
    )


@pytest.mark.parametrize(
    "members",
    [
        '"request_id":"resp_theirs"', '"store":true', '"stream":false', '"previous_response_id":"resp_0"',
        '"conversation":"conv_1"', '"background":false', '"cache_salt":"s"', '"previous_input_messages":[]',
        '"kv_transfer_params":{"a":1}', '"ec_transfer_params":{"a":1}', '"truncation":"auto"',
        '"truncation":"disabled"', '"service_tier":"priority"', '"stream_options":{"include_usage":true}',
        '"background_options":{}', '"context_management":[]', '"moderation":{"model":"x"}',
        '"prompt_cache_options":{}', '"prompt_cache_retention":"24h"', '"prompt_cache_key":"k"',
        '"safety_identifier":"s"', '"include":[]', '"include":["web_search_call.action.sources"]', '"tools":[]',
        '"tools":[{"type":"web_search"}]', '"instructions":null', '"tools":null', '"include":null', '"x":null',
    ],
)  # fmt: skip
def test_what_is_ours_or_nothing_to_the_upstream_is_not_sent(members: str) -> None:
    assert sent(members) == sent()


@pytest.mark.parametrize(
    "members",
    [
        '"instructions":"be brief"', '"max_output_tokens":9', '"max_tool_calls":2', '"temperature":0', '"top_p":0.5',
        '"top_logprobs":3', '"presence_penalty":1', '"frequency_penalty":-1', '"parallel_tool_calls":false',
        '"reasoning":{"effort":"low","summary":null}', '"text":{}', '"text":{"format":{"type":"json_object"}}',
        '"metadata":{"a":"b"}', '"user":"u"', '"tool_choice":"auto"', '"tool_choice":"none"', '"top_k":20',
        '"chat_template_kwargs":{"enable_thinking":false}', '"client_metadata":{"a":"1"}', '"generate":false',
        '"structured_outputs":{"regex":"x"}', '"session_id":"s"', '"seed":7', '"stop":["x"]', '"priority":0',
        '"a_member_of_tomorrow":[null]',
    ],
)  # fmt: skip
def test_what_the_upstream_takes_or_nobody_knows_is_sent(members: str) -> None:
    assert sent(members) == sent().replace('"request_id"', f'{members},"request_id"')


def test_the_response_id_goes_along_once() -> None:
    """vLLM takes it as its own (contract vllm.md 0.8), and it is never the client's."""
    assert sent('"request_id":"resp_theirs"').count("request_id") == 1
    assert member("request_id", '"request_id":"resp_theirs"') == "resp_1"


def test_include_is_filtered_to_what_the_upstream_knows() -> None:
    everything = json.dumps(
        ["file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
         "message.input_image.image_url", "computer_call_output.output.image_url", "code_interpreter_call.outputs",
         "reasoning.encrypted_content", "message.output_text.logprobs"]
    )  # fmt: skip
    assert member("include", f'"include":{everything}') == [
        "file_search_call.results", "message.input_image.image_url", "computer_call_output.output.image_url",
        "code_interpreter_call.outputs", "reasoning.encrypted_content", "message.output_text.logprobs",
    ]  # fmt: skip


def test_another_profile_withholds_other_members() -> None:
    profile = msgspec.structs.replace(VLLM, withheld_members=frozenset({"top_k"}))
    request = parse(b'{"model":"m","input":"hi","top_k":1,"truncation":"auto"}', 200)
    assert json.loads(written(request, "resp_1", [], profile)).keys() == {
        "model", "truncation", "request_id", "store", "stream", "input",
    }  # fmt: skip


def test_members_of_recorded_requests_are_sent_as_the_recorder_sent_them() -> None:
    """The captures 10 to 29, all of which vLLM 0.33 answered with 200."""
    recorded = [json.loads(capture.request or "") for capture in captures("0.33") if "10" <= capture.name[:2] <= "29"]
    assert len(recorded) >= 20
    for request in recorded:
        body = json.loads(written(parse(json.dumps(request).encode(), 200), "resp_1", [], VLLM))
        ours = {"request_id", "store", "stream", "input"}
        wanted = request.keys() - ours - {"cache_salt", "truncation", "prompt_cache_key", "safety_identifier"}
        assert {name: body[name] for name in body.keys() - ours} == {name: request[name] for name in wanted}


# --- tools

FUNCTION = '{"type":"function","name":"f","parameters":{"type":"object"},"strict":true}'
BARE_FUNCTION = '{"type":"function","name":"g","parameters":null,"description":null}'
NAMESPACE = '{"type":"namespace","name":"crm","description":"d","tools":[{"type":"function","name":"find"}]}'
CUSTOM = '{"type":"custom","name":"patch"}'
GRAMMAR = (
    '{"type":"custom","name":"patch","description":"d","format":{"type":"grammar","syntax":"lark","definition":"x"}}'
)
SEARCH = '{"type":"web_search","external_web_access":true}'


@pytest.mark.parametrize("tool", [FUNCTION, BARE_FUNCTION, NAMESPACE, CUSTOM, '{ "type":"custom" , "name":"n" }',
                                  '{"type":"custom","name":"n","format":{"type":"text"}}',
                                  '{"type":"custom","name":"n","format":null}'])  # fmt: skip
def test_tools_that_the_upstream_calls_are_sent_as_they_came(tool: str) -> None:
    assert sent(f'"tools":[{tool}]') == sent().replace('"request_id"', f'"tools":[{tool}],"request_id"')


def test_a_grammar_is_sent_as_free_text() -> None:
    """vLLM refuses a grammar (contract vllm.md 2); Codex's apply_patch has one (contract clients.md 22)."""
    assert sent(f'"tools":[{GRAMMAR}]') == sent().replace(
        '"request_id"',
        '"tools":[{"type":"custom","name":"patch","description":"d","format":{"type":"text"}}],"request_id"',
    )


@pytest.mark.parametrize(
    "tool",
    [
        SEARCH, '{"type":"web_search_preview"}', '{"type":"file_search","vector_store_ids":[]}', '{"type":"computer"}',
        '{"type":"computer_use_preview"}', '{"type":"mcp","server_label":"s"}', '{"type":"code_interpreter"}',
        '{"type":"programmatic_tool_calling"}', '{"type":"image_generation"}', '{"type":"local_shell"}',
        '{"type":"shell"}', '{"type":"tool_search"}', '{"type":"apply_patch"}', '{"type":"a_tool_of_tomorrow"}',
    ],
)  # fmt: skip
def test_tools_that_the_upstream_cannot_call_are_left_out(tool: str) -> None:
    assert member("tools", f'"tools":[{FUNCTION},{tool},{CUSTOM}]') == [json.loads(FUNCTION), json.loads(CUSTOM)]
    assert member("tools", f'"tools":[{tool}]') == "not sent"


# --- tool choice


@pytest.mark.parametrize(
    "choice",
    [
        '"auto"', '"none"', '"required"', '{"type":"function","name":"f"}', '{"type":"custom","name":"patch"}',
        '{"type":"function","name":"find"}', '{"type":"function","name":"crm__find"}',
        '{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"},{"type":"custom","name":"patch"}]}',
        '{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"find"}]}',
        '{"type":"allowed_tools","mode":"auto","tools":[]}',
    ],
)  # fmt: skip
def test_a_choice_among_the_tools_that_are_sent_is_sent(choice: str) -> None:
    members = f'"tools":[{FUNCTION},{NAMESPACE},{GRAMMAR},{SEARCH}],"tool_choice":{choice}'
    assert member("tool_choice", members) == json.loads(choice)


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ('{"type":"function","name":"nope"}', "nope"),
        ('{"type":"function","name":"patch"}', "patch"),
        ('{"type":"custom","name":"f"}', "f"),
        ('{"type":"function","name":"crm"}', "crm"),
        ('{"type":"web_search"}', "web_search"),
        ('{"type":"web_search_preview"}', "web_search_preview"),
        ('{"type":"mcp","server_label":"s","name":"n"}', "n"),
        ('{"type":"mcp","server_label":"s"}', "mcp"),
        ('{"type":"apply_patch"}', "apply_patch"),
        ('{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"},{"type":"web_search"}]}',
         "web_search"),
        ('{"type":"allowed_tools","mode":"auto","tools":[{"type":"allowed_tools","tools":{}}]}', "allowed_tools"),
    ],
)  # fmt: skip
def test_a_choice_of_a_tool_that_is_not_sent_is_refused(choice: str, name: str) -> None:
    error = refused(f'"tools":[{FUNCTION},{NAMESPACE},{GRAMMAR},{SEARCH}],"tool_choice":{choice}')
    assert (error.param, error.code) == ("tool_choice", "invalid_value")
    assert f"'{name}'" in error.message


def test_only_a_namespace_holds_tools_of_its_own() -> None:
    odd = '{"type":"function","name":"f","tools":5}'
    choice = '"tool_choice":{"type":"function","name":"f"}'
    assert member("tools", f'"tools":[{odd}],{choice}') == [json.loads(odd)]


def test_of_a_namespace_the_tools_that_the_upstream_calls_are_sent() -> None:
    function = '{"type":"function","name":"f","parameters":{}}'
    namespace = '{"type":"namespace","name":"n","description":"d","tools":[%s]}'
    given = namespace % f'{function},{{"type":"web_search"}},{GRAMMAR}'
    free = json.loads(GRAMMAR) | {"format": {"type": "text"}}
    assert member("tools", f'"tools":[{given}]') == [
        {"type": "namespace", "name": "n", "description": "d", "tools": [json.loads(function), free]}
    ]


@pytest.mark.parametrize("tools", ["", '"tools":null,', '"tools":[],', f'"tools":[{SEARCH}],'])
def test_a_tool_cannot_be_required_where_none_is_sent(tools: str) -> None:
    """vLLM refuses it too (contract vllm.md 2), but only once it is asked."""
    assert refused(f'{tools}"tool_choice":"required"').param == "tool_choice"
    assert refused(f'{tools}"tool_choice":{{"type":"function","name":"f"}}').param == "tool_choice"
    assert member("tool_choice", f'{tools}"tool_choice":"auto"') == "auto"
    assert member("tool_choice", f'{tools}"tool_choice":"none"') == "none"
