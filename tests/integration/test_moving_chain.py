"""One chain that moves through six upstreams: each gets what it can read of all that was, and nothing stored changes.

Every request is compared whole; what they must be is worked out by hand from the profiles (DESIGN 6).
"""

import json
from typing import Any

from server.mock import Reply
from tests.application import both_modes, message, reasoning, reply, running, stored_rows
from tests.harness import until

UPSTREAMS = "".join(
    f"""
[[upstreams]]
name = "{name}"
urls = ["URL"]
profile = "{name}"
models = ["on-{name}"]
"""
    for name in ("vllm", "chat-vllm", "openai", "strict-chat", "openrouter")
)

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
CHAT_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}, "strict": False}}
CHAT_CALL = {"id": "call_2", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}}
DETAIL = {"type": "reasoning.text", "text": "Fifth thought.", "index": 0, "signature": "SIGNED"}


def chat(stream: bool, **message: Any) -> Reply:
    """A chat completion, whole or as two chunks."""
    finish = "tool_calls" if "tool_calls" in message else "stop"
    head = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": "m"}
    if not stream:
        return Reply(json=head | {"choices": [{"index": 0, "message": message, "finish_reason": finish}]})
    calls = [{"index": number, **call} for number, call in enumerate(message.get("tool_calls") or [])]
    delta = message | ({"tool_calls": calls} if calls else {})
    chunks = [{"index": 0, "delta": delta}, {"index": 0, "delta": {}, "finish_reason": finish}]
    return Reply(
        sse_chunks=[f"data: {json.dumps(head | {'choices': [one]})}\n\n" for one in chunks] + ["data: [DONE]\n\n"]
    )


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def item(text: str) -> dict[str, str]:
    return {"type": "message", "role": "user", "content": text}


def thought(item_id: str, text: str, **members: Any) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": item_id, "summary": [], "content": content, **members}


def said(item_id: str, text: str, **part: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": [], **part}]
    return {"type": "message", "id": item_id, "role": "assistant", "content": content}


@both_modes
async def test_a_chain_through_six_upstreams(emptied_database_url: str, stream: bool) -> None:
    replies = [
        reply(reasoning("First thought.", id="rs_1"), message("One.", id="msg_1"), stream=stream),
        chat(stream, reasoning_content="Second thought.", content=None, tool_calls=[CHAT_CALL]),
        reply(
            reasoning("Third thought.", id="rs_3", encrypted_content="SEALED", provider="x"),
            message("Three.", id="msg_3"),
            stream=stream,
        ),
        chat(stream, content="Four."),
        chat(stream, reasoning="Fifth thought.", reasoning_details=[DETAIL], content="Five."),
        reply(message("Six.", id="msg_6"), stream=stream),
    ]
    output = {"type": "function_call_output", "call_id": "call_2", "output": "seen"}
    turns: list[tuple[str, Any]] = [
        ("vllm", "1"),
        ("chat-vllm", "2"),
        ("openai", [output]),
        ("strict-chat", "4"),
        ("openrouter", "5"),
        ("vllm", "6"),
    ]
    rows: dict[str, list[dict[str, Any]]] = {}
    async with running(emptied_database_url, replies, upstreams=UPSTREAMS) as application:
        responses: list[dict[str, Any]] = []
        for name, given in turns:
            responses.append(
                await application.turn(
                    model=f"on-{name}",
                    input=given,
                    stream=stream,
                    tools=[TOOL],
                    previous_response_id=responses[-1]["id"] if responses else None,
                )
            )
            earlier, rows = rows, await stored_rows(emptied_database_url)
            assert rows["items"][: len(earlier.get("items", []))] == earlier.get("items", [])
        await until(lambda: len(application.mock.posts) == 6)
        sent = [post.json for post in application.mock.posts]

    chat_thought, chat_call = responses[1]["output"]
    ours = {"thought": chat_thought["id"], "call": chat_call["id"]}
    four, (fifth, five) = responses[3]["output"][0], responses[4]["output"]

    head = {"tools": [TOOL], "store": False, "stream": stream}
    assert sent[0] == head | {"model": "on-vllm", "request_id": responses[0]["id"], "input": [item("1")]}

    chat_head = {"tools": [CHAT_TOOL], "stream": stream} | (
        {"stream_options": {"include_usage": True}} if stream else {}
    )
    first = {"role": "assistant", "content": "One."}
    both_names = {"reasoning": "First thought.", "reasoning_content": "First thought."}
    assert sent[1] == chat_head | {
        "model": "on-chat-vllm",
        "request_id": responses[1]["id"],
        "messages": [user("1"), first | both_names, user("2")],
    }

    call = {"type": "function_call", "id": ours["call"], "call_id": "call_2", "name": "look", "arguments": '{"at":1}'}
    assert sent[2] == head | {
        "model": "on-openai",
        "input": [
            item("1"),
            thought("rs_1", "First thought."),
            said("msg_1", "One."),
            item("2"),
            thought(ours["thought"], "Second thought."),
            call,
            output,
        ],
    }

    called = {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}
    seen = {"role": "tool", "tool_call_id": "call_2", "content": "seen"}
    up_to_three = [user("1"), first, user("2"), called, seen, {"role": "assistant", "content": "Three."}]
    assert sent[3] == chat_head | {"model": "on-strict-chat", "messages": [*up_to_three, user("4")]}

    up_to_four = [*up_to_three, user("4"), {"role": "assistant", "content": "Four."}]
    assert sent[4] == chat_head | {"model": "on-openrouter", "messages": [*up_to_four, user("5")]}

    assert sent[5] == head | {
        "model": "on-vllm",
        "request_id": responses[5]["id"],
        "input": [
            item("1"),
            thought("rs_1", "First thought."),
            said("msg_1", "One."),
            item("2"),
            thought(ours["thought"], "Second thought."),
            call,
            output,
            thought("rs_3", "Third thought."),
            said("msg_3", "Three."),
            item("4"),
            said(four["id"], "Four."),
            item("5"),
            thought(fifth["id"], "Fifth thought."),
            said(five["id"], "Five."),
            item("6"),
        ],
    }

    recorded = [json.loads(row["fidelity"]) for row in rows["items"] if row["fidelity"] is not None]
    assert recorded == [
        {"reasoning_field": "reasoning_content"},
        {"reasoning_field": "reasoning", "reasoning_details": [DETAIL]},
    ]
    issuers = [row["issuer"] for row in rows["items"] if row["is_output"]]
    assert issuers == ["vllm"] * 2 + ["chat-vllm"] * 2 + ["openai"] * 2 + ["strict-chat"] + ["openrouter"] * 2 + [
        "vllm"
    ]


@both_modes
async def test_sealed_state_goes_back_to_its_issuer_only(emptied_database_url: str, stream: bool) -> None:
    replies = [
        reply(reasoning(id="rs_1", encrypted_content="SEALED"), message("One.", id="msg_1"), stream=stream),
        reply(message("Two.", id="msg_2"), stream=stream),
    ]
    async with running(emptied_database_url, replies, upstreams=UPSTREAMS) as application:
        first = await application.turn(model="on-openai", input="1", stream=stream)
        await application.turn(model="on-openai", input="2", stream=stream, previous_response_id=first["id"])
        sealed = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [], "encrypted_content": "SEALED"}
        assert application.sent()["input"][1] == sealed
        for name in ("vllm", "chat-vllm", "strict-chat", "openrouter"):
            answer = await application.post(
                {"model": f"on-{name}", "input": "2", "stream": stream, "previous_response_id": first["id"]}
            )
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "encrypted_reasoning_not_supported")
            assert (error["param"], "rs_1" in error["message"]) == ("previous_response_id", True)
        assert len(application.mock.posts) == 2


async def test_who_accepts_sealed_state_of_unknown_issuer_is_its_issuer(emptied_database_url: str) -> None:
    """As stateless clients send it inline: Codex, LangChain, the AI SDK and Pydantic AI (contract clients.md 16)."""
    sealed = {"type": "reasoning", "id": "rs_theirs", "summary": [], "encrypted_content": "SEALED"}
    given = [item("0"), sealed, {"type": "message", "role": "assistant", "content": "a"}, item("1")]
    replies = [reply(message("One.", id="msg_1"), stream=False)]
    async with running(emptied_database_url, replies, upstreams=UPSTREAMS) as application:
        first = await application.turn(model="on-openai", input=given)
        assert application.sent()["input"][1] == sealed
    [row] = [row for row in (await stored_rows(emptied_database_url))["items"] if row["type"] == "reasoning"]
    assert row["issuer"] == "openai"
    async with running(
        emptied_database_url, replies, upstreams=UPSTREAMS.replace('"openai"', '"second"', 1)
    ) as application:
        answer = await application.post({"model": "on-openai", "input": "2", "previous_response_id": first["id"]})
        assert answer.json()["error"]["code"] == "encrypted_reasoning_not_supported"
