"""The shapes of requests that real clients send, by their numbers in a list of captures, as the bytes that they send.

Each is accepted; what the upstream receives, what is echoed and what input_items lists is written out by hand.
"""

import json
from typing import Any

import pytest

from tests.application import Application, Minted, both_modes, function_call, message, reasoning, reply, running

PNG = "data:image/png;base64,iVBORw0KGgo="
PDF = "data:application/pdf;base64,JVBERi0="


MSG, FC, FCO = Minted("msg"), Minted("fc"), Minted("fco")
ASKED = '{"role":"user","content":"hi"}'
ASKED_SENT = {"type": "message", "role": "user", "content": "hi"}
ASKED_LISTED = {
    "id": MSG,
    "type": "message",
    "role": "user",
    "status": "completed",
    "content": [{"type": "input_text", "text": "hi"}],
}


def _said(text: str, **members: Any) -> dict[str, Any]:
    """An assistant's message as the upstream gets it."""
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "content": [part], **members}


CALL = '{"type":"function_call","id":"fc_1","call_id":"call_1","name":"f","arguments":"{}","status":"completed"}'
CALL_SENT = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}"}
CALL_LISTED = CALL_SENT | {"status": "completed"}

# The items, what the upstream gets, what is listed.
Shape = tuple[str, list[dict[str, Any]], list[dict[str, Any]]]
SHAPES: dict[str, Shape] = {
    "1 a message without a type": (f"[{ASKED}]", [ASKED_SENT], [ASKED_LISTED]),
    "2 an assistant's plain string": (
        '[{"role":"assistant","content":"Hello"}]',
        [_said("Hello")],
        [
            {
                "id": MSG,
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}],
            }
        ],
    ),
    "3 an assistant's parts without annotations": (
        '[{"role":"assistant","content":[{"type":"output_text","text":"prev"}]}]',
        [_said("prev")],
        [
            {
                "id": MSG,
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "prev", "annotations": []}],
            }
        ],
    ),
    "4 our own output again": (
        '[{"id":"msg_4","type":"message","role":"assistant","status":"completed","phase":"final_answer",'
        '"content":[{"type":"output_text","text":"ok","annotations":[],"logprobs":[]}]}]',
        [_said("ok", id="msg_4", phase="final_answer")],
        [
            {
                "id": "msg_4",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "phase": "final_answer",
                "content": [{"type": "output_text", "text": "ok", "annotations": [], "logprobs": []}],
            }
        ],
    ),
    "5 our own output without its id": (
        '[{"content":[{"annotations":[],"text":"ok","type":"output_text","logprobs":[]}],"role":"assistant",'
        '"status":"completed","type":"message","phase":"final_answer"}]',
        [_said("ok", phase="final_answer")],
        [
            {
                "id": MSG,
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "phase": "final_answer",
                "content": [{"type": "output_text", "text": "ok", "annotations": [], "logprobs": []}],
            }
        ],
    ),
    "6 a user's message as it was listed": (
        '[{"id":"msg_6","content":[{"text":"weather?","type":"input_text"}],"role":"user","status":"completed",'
        '"type":"message"}]',
        [
            {
                "type": "message",
                "id": "msg_6",
                "role": "user",
                "content": [{"text": "weather?", "type": "input_text"}],
            }
        ],
        [
            {
                "id": "msg_6",
                "type": "message",
                "role": "user",
                "status": "completed",
                "content": [{"text": "weather?", "type": "input_text"}],
            }
        ],
    ),
    "7 developers with ids of their own": (
        '[{"type":"message","id":"msg_0192-a","role":"developer","content":[{"type":"input_text","text":"a"},'
        '{"type":"input_text","text":"b"}]},{"type":"message","id":"msg_0192-b","role":"developer","content":'
        f'[{{"type":"input_text","text":"c"}}]}},{ASKED}]',
        [
            {
                "type": "message",
                "id": "msg_0192-a",
                "role": "developer",
                "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
            },
            {
                "type": "message",
                "id": "msg_0192-b",
                "role": "developer",
                "content": [{"type": "input_text", "text": "c"}],
            },
            ASKED_SENT,
        ],
        [
            {
                "type": "message",
                "id": "msg_0192-a",
                "role": "developer",
                "status": "completed",
                "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
            },
            {
                "type": "message",
                "id": "msg_0192-b",
                "role": "developer",
                "status": "completed",
                "content": [{"type": "input_text", "text": "c"}],
            },
            ASKED_LISTED,
        ],
    ),
    "8 a system message in the middle": (
        f'[{ASKED},{{"role":"system","content":"sys"}},{{"role":"user","content":"go"}}]',
        [
            ASKED_SENT,
            {"type": "message", "role": "system", "content": "sys"},
            {"type": "message", "role": "user", "content": "go"},
        ],
        [
            ASKED_LISTED,
            ASKED_LISTED | {"role": "system", "content": [{"type": "input_text", "text": "sys"}]},
            ASKED_LISTED | {"content": [{"type": "input_text", "text": "go"}]},
        ],
    ),
    "9 a call without id and status": (
        f'[{ASKED},{{"name":"f","arguments":"{{}}","call_id":"call_1","type":"function_call"}},'
        '{"type":"function_call_output","call_id":"call_1","output":"sunny"}]',
        [
            ASKED_SENT,
            {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
        ],
        [
            ASKED_LISTED,
            CALL_LISTED | {"id": FC},
            {"id": FCO, "type": "function_call_output", "call_id": "call_1", "output": "sunny", "status": "completed"},
        ],
    ),
    "10 and 11 a call with id and status, its output with a status": (
        f'[{CALL},{{"type":"function_call_output","call_id":"call_1","output":"sunny","status":"completed"}}]',
        [CALL_SENT, {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}],
        [
            CALL_LISTED,
            {"id": FCO, "type": "function_call_output", "call_id": "call_1", "output": "sunny", "status": "completed"},
        ],
    ),
    "11 an output with an id of the client's": (
        f'[{CALL},{{"type":"function_call_output","id":"fco_0192-c","call_id":"call_1","output":"sunny"}}]',
        [CALL_SENT, {"type": "function_call_output", "id": "fco_0192-c", "call_id": "call_1", "output": "sunny"}],
        [
            CALL_LISTED,
            {
                "id": "fco_0192-c",
                "type": "function_call_output",
                "call_id": "call_1",
                "output": "sunny",
                "status": "completed",
            },
        ],
    ),
    "11 an output with an id of another prefix": (
        f'[{CALL},{{"type":"function_call_output","id":"item_5","call_id":"call_1","output":""}}]',
        [CALL_SENT, {"type": "function_call_output", "id": "item_5", "call_id": "call_1", "output": ""}],
        [
            CALL_LISTED,
            {"id": "item_5", "type": "function_call_output", "call_id": "call_1", "output": "", "status": "completed"},
        ],
    ),
    "12 an output of parts": (
        f'[{CALL},{{"type":"function_call_output","call_id":"call_1","output":[{{"type":"input_text","text":"sunny"}},'
        f'{{"type":"input_image","image_url":"{PNG}"}}]}}]',
        [
            CALL_SENT,
            {
                "type": "function_call_output",
                "call_id": "call_1",
                "output": [
                    {"type": "input_text", "text": "sunny"},
                    {"type": "input_image", "image_url": PNG, "detail": "auto"},
                ],
            },
        ],
        [
            CALL_LISTED,
            {
                "id": FCO,
                "type": "function_call_output",
                "call_id": "call_1",
                "status": "completed",
                "output": [
                    {"type": "input_text", "text": "sunny"},
                    {"type": "input_image", "image_url": PNG, "detail": "auto"},
                ],
            },
        ],
    ),
    "16 reasoning whose encrypted state is null": (
        '[{"id":"rs_16","type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"Hm."}],'
        f'"encrypted_content":null}},{ASKED}]',
        [
            {
                "type": "reasoning",
                "id": "rs_16",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Hm."}],
            },
            ASKED_SENT,
        ],
        [
            {
                "id": "rs_16",
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Hm."}],
                "encrypted_content": None,
            },
            ASKED_LISTED,
        ],
    ),
    "32 an image without detail and a file": (
        f'[{{"role":"user","content":[{{"type":"input_image","image_url":"{PNG}"}},'
        f'{{"type":"input_file","filename":"a.pdf","file_data":"{PDF}"}}]}}]',
        [
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_image", "image_url": PNG},
                    {"type": "input_file", "filename": "a.pdf", "file_data": PDF},
                ],
            }
        ],
        [
            ASKED_LISTED
            | {
                "content": [
                    {"type": "input_image", "image_url": PNG, "detail": "auto"},
                    {"type": "input_file", "filename": "a.pdf", "file_data": PDF},
                ]
            }
        ],
    ),
    "36 thoughts that are text": (
        '[{"role":"assistant","content":"<think>\\nI doubt.\\n</think>\\n\\nYes."}]',
        [_said("<think>\nI doubt.\n</think>\n\nYes.")],
        [
            {
                "id": MSG,
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [
                    {
                        "type": "output_text",
                        "text": "<think>\nI doubt.\n</think>\n\nYes.",
                        "annotations": [],
                        "logprobs": [],
                    }
                ],
            }
        ],
    ),
    "38 members of newer releases": (
        '[{"id":"fc_38","type":"function_call","call_id":"call_1","name":"f","arguments":"{}","status":"completed",'
        '"namespace":"crm","caller":{"type":"direct"},"created_by":"u","parsed_arguments":{"a":1}},'
        '{"type":"function_call_output","call_id":"call_1","output":"x","caller":null,"name":"f"},'
        '{"id":"msg_38","type":"message","role":"assistant","status":"completed","created_by":"u","content":'
        '[{"type":"output_text","text":"ok","annotations":[],"parsed":{"a":1}}]}]',
        [
            {
                "type": "function_call",
                "id": "fc_38",
                "call_id": "call_1",
                "namespace": "crm",
                "name": "f",
                "arguments": "{}",
            },
            {"type": "function_call_output", "call_id": "call_1", "output": "x"},
            _said("ok", id="msg_38"),
        ],
        [
            {
                "id": "fc_38",
                "type": "function_call",
                "call_id": "call_1",
                "name": "f",
                "arguments": "{}",
                "status": "completed",
                "namespace": "crm",
                "caller": {"type": "direct"},
                "created_by": "u",
                "parsed_arguments": {"a": 1},
            },
            {
                "id": FCO,
                "type": "function_call_output",
                "call_id": "call_1",
                "output": "x",
                "caller": None,
                "name": "f",
                "status": "completed",
            },
            {
                "id": "msg_38",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "created_by": "u",
                "content": [{"type": "output_text", "text": "ok", "annotations": [], "parsed": {"a": 1}}],
            },
        ],
    ),
}


async def _accepted(application: Application, body: str) -> dict[str, Any]:
    """The final response object of a request that is sent as these bytes, in the mode that it asks for."""
    answer = await application.post(body.encode())
    assert answer.status_code == 200, answer.text
    response_id = application.sent()["request_id"]
    kept: dict[str, Any] = (await application.http.get(f"/v1/responses/{response_id}")).json()
    return kept


@both_modes
@pytest.mark.parametrize(("items", "sent", "listed"), SHAPES.values(), ids=SHAPES)
async def test_items(
    application: Application, stream: bool, items: str, sent: list[dict[str, Any]], listed: list[dict[str, Any]]
) -> None:
    application.mock.replies = [reply(message("Hi."), stream=stream)]
    response = await _accepted(application, f'{{"model":"m","stream":{json.dumps(stream)},"input":{items}}}')
    assert application.sent()["input"] == sent
    assert await application.listed(response["id"]) == listed
    # The official client's types read it as well.
    paged = await application.client.responses.input_items.list(response["id"], order="asc")
    assert len(paged.data) == len(listed)


@both_modes
async def test_8_instructions_beside_a_system_message(application: Application, stream: bool) -> None:
    application.mock.replies = [reply(message("Hi."), stream=stream)]
    body = (
        f'{{"model":"m","instructions":"Be brief.","input":[{ASKED},{{"role":"system","content":"sys"}}],'
        f'"stream":{json.dumps(stream)}}}'
    )
    response = await _accepted(application, body)
    assert response["instructions"] == application.sent()["instructions"] == "Be brief."
    assert [item["role"] for item in application.sent()["input"]] == ["user", "system"]


@both_modes
async def test_13_an_output_alone(application: Application, stream: bool) -> None:
    tools = '[{"type":"function","name":"f","parameters":{},"strict":false}]'
    application.mock.replies = [
        reply(reasoning("Hm."), function_call("f"), stream=stream),
        reply(message("Sunny."), stream=stream),
    ]
    mode = f'"stream":{json.dumps(stream)}'
    first = await _accepted(application, f'{{"model":"m","input":"hi","tools":{tools},{mode}}}')
    body = (
        f'{{"model":"m","previous_response_id":"{first["id"]}","tools":{tools},{mode},'
        '"input":[{"type":"function_call_output","call_id":"call_1","output":"sunny"}]}'
    )
    second = await _accepted(application, body)
    assert second["previous_response_id"] == first["id"]
    assert [item["type"] for item in application.sent()["input"]] == [
        "message", "reasoning", "function_call", "function_call_output",
    ]  # fmt: skip
    assert application.sent()["tools"] == json.loads(tools)
    assert len(await application.listed(second["id"])) == 4


SEALED: dict[str, str] = {
    "no content": '{"id":"rs_1","type":"reasoning","summary":[],"encrypted_content":"gAAA"}',
    "content null": '{"id":"rs_1","type":"reasoning","summary":[],"content":null,"encrypted_content":"gAAA"}',
    "a summary": (
        '{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"In short."}],'
        '"encrypted_content":"gAAA"}'
    ),
}


@both_modes
@pytest.mark.parametrize("item", SEALED.values(), ids=SEALED)
async def test_16_sealed_reasoning(emptied_database_url: str, stream: bool, item: str) -> None:
    """Of another provider's making: refused with a reason, or left out where the operator chose that."""
    body = f'{{"model":"m","input":[{item},{ASKED}],"stream":{json.dumps(stream)}}}'
    replies = [reply(message("Hi."), stream=stream)]
    async with running(emptied_database_url, replies) as application:
        refused = await application.post(body.encode())
        assert (refused.status_code, refused.headers["content-type"]) == (400, "application/json")
        assert refused.json()["error"]["code"] == "encrypted_reasoning_not_supported"
    async with running(emptied_database_url, replies, encrypted_only="omit") as application:
        response = await _accepted(application, body)
        assert application.sent()["input"] == [ASKED_SENT]
        assert await application.listed(response["id"]) == [json.loads(item), ASKED_LISTED]


@pytest.mark.parametrize(
    ("members", "sent"),
    [
        ('"include":[]', None),
        ('"include":[],"store":false', None),
        ('"include":["reasoning.encrypted_content"]', ["reasoning.encrypted_content"]),
        ('"include":["reasoning.encrypted_content"],"store":false', ["reasoning.encrypted_content"]),
        ('"include":["web_search_call.action.sources","web_search_call.results"]', None),
    ],
)
@both_modes
async def test_17_include(application: Application, stream: bool, members: str, sent: list[str] | None) -> None:
    application.mock.replies = [reply(reasoning("Hm."), message("Hi."), stream=stream)]
    body = f'{{"model":"m","input":"hi","stream":{json.dumps(stream)},{members}}}'
    answer = await application.post(body.encode())
    assert answer.status_code == 200
    assert application.sent().get("include") == sent
    assert b'"include"' not in answer.content


async def test_18_include_in_brackets(application: Application) -> None:
    application.mock.replies = [reply(reasoning("Hm.", encrypted_content="gAAA"), message("Hi."), stream=False)]
    response = await _accepted(application, f'{{"model":"m","input":[{ASKED}]}}')
    query = "?include[]=reasoning.encrypted_content&include[]=message.input_image.image_url"
    assert (await application.http.get(f"/v1/responses/{response['id']}{query}")).json() == response
    assert response["output"][0]["encrypted_content"] == "gAAA"
    listed = await application.http.get(f"/v1/responses/{response['id']}/input_items{query}&limit=100")
    assert listed.json()["data"] == [ASKED_LISTED]


async def test_19_nulls_of_options_that_were_passed_on(application: Application) -> None:
    response = await _accepted(
        application,
        '{"model":"m","input":"hi","instructions":null,"temperature":null,"top_p":null,"tools":null,"store":null,'
        '"stream":null,"previous_response_id":null,"metadata":null,"text":null,"reasoning":null,"tool_choice":null,'
        '"max_output_tokens":null,"truncation":null,"user":null,"include":null,"parallel_tool_calls":null}',
    )
    assert set(application.sent()) == {"model", "input", "request_id", "store", "stream"}
    assert (response["instructions"], response["temperature"], response["tools"]) == (None, 1.0, [])
    assert (response["tool_choice"], response["text"]) == ("auto", {"format": {"type": "text"}})
    assert "user" not in response


FORMAT = (
    '{"type":"json_schema","strict":true,"name":"A","schema":{"$schema":"http://json-schema.org/draft-07/schema#",'
    '"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":false}}'
)
TEXTS = {
    "{}": '{"format":{"type":"text"}}',
    '{"verbosity":"low"}': '{"verbosity":"low","format":{"type":"text"}}',
    f'{{"format":{FORMAT}}}': f'{{"format":{FORMAT}}}',
    f'{{"format":{FORMAT},"verbosity":"high"}}': f'{{"format":{FORMAT},"verbosity":"high"}}',
    '{"format":{"type":"json_object"}}': '{"format":{"type":"json_object"}}',
    '{"format":null,"verbosity":null}': '{"format":{"type":"text"},"verbosity":null}',
}


@pytest.mark.parametrize(("text", "echoed"), TEXTS.items())
async def test_20_text(application: Application, text: str, echoed: str) -> None:
    response = await _accepted(application, f'{{"model":"m","input":"hi","text":{text}}}')
    assert response["text"] == json.loads(echoed)
    assert application.sent()["text"] == json.loads(text)


async def test_21_no_tools_and_no_stream_said_aloud(application: Application) -> None:
    response = await _accepted(application, '{"model":"m","input":"hi","tools":[],"stream":false}')
    assert response["tools"] == []
    assert "tools" not in application.sent()
    assert application.sent()["stream"] is False


# Of a coding agent: which of them are sent, and as what.
AGENT_TOOLS = """[
 {"type":"function","name":"shell","description":"Runs.","strict":true,"parameters":{"type":"object","properties":{}}},
 {"type":"custom","name":"apply_patch","description":"Edits.","format":
  {"type":"grammar","syntax":"lark","definition":"start: \\"*** Begin Patch\\""}},
 {"type":"tool_search","execution":"client"},
 {"type":"web_search","external_web_access":true,"search_content_types":["text","image"]},
 {"type":"local_shell"},
 {"type":"image_generation","output_format":"png"}
]"""


@both_modes
async def test_22_tools_of_a_coding_agent(application: Application, stream: bool) -> None:
    application.mock.replies = [reply(message("Hi."), stream=stream)]
    body = f'{{"model":"m","input":"hi","tools":{AGENT_TOOLS},"tool_choice":"auto","stream":{json.dumps(stream)}}}'
    response = await _accepted(application, body)
    tools = json.loads(AGENT_TOOLS)
    assert response["tools"] == tools
    assert application.sent()["tools"] == [tools[0], tools[1] | {"format": {"type": "text"}}]
    assert application.sent()["tool_choice"] == "auto"


FUNCTIONS = {
    '{"type":"function","name":"f"}': {"description": None, "parameters": None, "strict": True},
    '{"type":"function","name":"f","parameters":null}': {"description": None, "parameters": None, "strict": True},
    '{"type":"function","name":"f","parameters":{"type":"object"},"strict":false}': {
        "description": None,
        "parameters": {"type": "object"},
        "strict": False,
    },
    '{"type":"function","name":"f","description":"d","parameters":{},"strict":null}': {
        "description": "d",
        "parameters": {},
        "strict": None,
    },
}


@pytest.mark.parametrize(("tool", "echoed"), FUNCTIONS.items())
async def test_23_functions_with_less_than_all_their_members(
    application: Application, tool: str, echoed: dict[str, Any]
) -> None:
    response = await _accepted(application, f'{{"model":"m","input":"hi","tools":[{tool}]}}')
    assert response["tools"] == [{"type": "function", "name": "f", **echoed}]
    assert application.sent()["tools"] == [json.loads(tool)]


async def test_24_members_that_nobody_knows(application: Application) -> None:
    unknown = {
        "client_metadata": {"session": "s", "turn": None},
        "generate": False,
        "chat_template_kwargs": {"enable_thinking": False},
        "top_k": 20,
        "guided_choice": ["a", "b"],
    }
    response = await _accepted(application, json.dumps({"model": "m", "input": "hi", **unknown}))
    assert {name: application.sent()[name] for name in unknown} == unknown
    assert {name: response[name] for name in unknown} == unknown


@both_modes
async def test_25_headers_of_a_coding_agent(application: Application, stream: bool) -> None:
    application.mock.replies = [reply(message("Hi."), stream=stream)]
    headers = {
        "x-codex-turn-metadata": json.dumps({"workspace": "w" * 1_000}),
        "x-client-request-id": "0192",
        "accept": "text/event-stream",
        "accept-encoding": "zstd,gzip",
        "x-stainless-lang": "python",
        "x-stainless-retry-count": "1",
        "openai-beta": "responses=v1",
    }
    answer = await application.post({"model": "m", "input": "hi", "stream": stream}, **headers)
    assert answer.status_code == 200
    assert "content-encoding" not in answer.headers
    sent = application.mock.posts[0].headers
    assert set(sent) & (set(headers) - {"accept", "accept-encoding"}) == set()


async def test_31_a_stream_of_a_stored_response(application: Application) -> None:
    """Not there for a foreground response; what the client says beside it changes nothing."""
    response = await _accepted(application, '{"model":"m","input":"hi"}')
    for query in ("stream=true", "stream=true&starting_after=3&include_obfuscation=false"):
        refused = await application.http.get(f"/v1/responses/{response['id']}?{query}")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")
    assert (await application.http.get(f"/v1/responses/{response['id']}?starting_after=3")).json() == response


@both_modes
async def test_35_another_models_response_before(application: Application, stream: bool) -> None:
    application.mock.replies = [reply(message("Hi."), stream=stream)]
    mode = f'"stream":{json.dumps(stream)}'
    first = await _accepted(application, f'{{"model":"large","input":"hi",{mode}}}')
    body = f'{{"model":"small","input":"more","previous_response_id":"{first["id"]}",{mode}}}'
    second = await _accepted(application, body)
    assert (first["model"], second["model"], application.sent()["model"]) == ("large", "small", "small")
    assert len(application.sent()["input"]) == 3


@both_modes
async def test_37_all_that_names_a_session(application: Application, stream: bool) -> None:
    application.mock.replies = [reply(message("Hi."), stream=stream)]
    named = {
        "metadata": {"run": "1"},
        "prompt_cache_key": "0192",
        "safety_identifier": "person-1",
        "user": "person",
    }
    body = json.dumps({"model": "m", "input": "hi", "stream": stream, **named})
    response = await _accepted(application, body)
    assert {name: response[name] for name in named} == named
