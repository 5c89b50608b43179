"""What an upstream gets of a chain only grows: each request begins, byte for byte, with the one before.

So its prefix cache goes on hitting, over thirty turns of reasoning, text, calls and their outputs.
"""

import json
from typing import Any

import pytest

from server.mock import Reply
from server.protocol import raw
from tests.application import both_modes, function_call, message, reasoning, reply, running

TURNS = 30
CHAT = '[[upstreams]]\nname = "chat"\nurls = ["URL"]\nprofile = "chat-vllm"\ndefault = true\n'


def output_of(number: int) -> list[dict[str, Any]]:
    """Text at the end of every third turn, a call at that of the others."""
    thought = reasoning(f"\nThought {number}.\n", id=f"rs_{number}")
    if number % 3 == 2:
        return [thought, message(f"\n\nAnswer {number}: 1.0 é \N{GRINNING FACE}", id=f"msg_{number}")]
    call = function_call("look", f'{{"n": {number}}}', call_id=f"call_{number}", id=f"fc_{number}")
    return [thought, message("\n\n", id=f"msg_{number}"), call]


def input_of(number: int) -> Any:
    if number % 3 == 0:
        return f"Question {number}"
    return [{"type": "function_call_output", "call_id": f"call_{number - 1}", "output": f"seen {number}"}]


def chat_reply(number: int, *, stream: bool) -> Reply:
    thought, said, *calls = output_of(number)
    delta: dict[str, Any] = {"reasoning": thought["content"][0]["text"], "content": said["content"][0]["text"]}
    if calls:
        function = {"name": calls[0]["name"], "arguments": calls[0]["arguments"]}
        delta["tool_calls"] = [{"index": 0, "id": calls[0]["call_id"], "type": "function", "function": function}]
    finish = "tool_calls" if calls else "stop"
    if not stream:
        return Reply(json={"choices": [{"index": 0, "message": delta, "finish_reason": finish}]})
    chunks = [{"choices": [{"index": 0, "delta": delta}]}, {"choices": [{"delta": {}, "finish_reason": finish}]}]
    return Reply(sse_chunks=[f"data: {json.dumps(chunk)}\n\n" for chunk in chunks])


@pytest.mark.parametrize("dialect", ["responses", "chat"])
@both_modes
async def test_each_request_begins_with_the_one_before(emptied_database_url: str, stream: bool, dialect: str) -> None:
    if dialect == "chat":
        replies = [chat_reply(number, stream=stream) for number in range(TURNS)]
    else:
        replies = [reply(*output_of(number), stream=stream) for number in range(TURNS)]
    upstreams = CHAT if dialect == "chat" else None
    async with running(emptied_database_url, replies, upstreams=upstreams) as application:
        previous = None
        for number in range(TURNS):
            response = await application.turn(
                input=input_of(number), stream=stream, previous_response_id=previous, instructions="Be brief."
            )
            previous = response["id"]
        member = "messages" if dialect == "chat" else "input"
        sent = [raw.elements(raw.Object(post.body).get(member) or b"") for post in application.mock.posts]
    assert len(sent) == TURNS
    for number in range(1, TURNS):
        earlier, later = sent[number - 1], sent[number]
        assert later[: len(earlier)] == earlier
        # Behind it: what the model put out, without the white space before a call, and what it was told then.
        made = 1 if dialect == "chat" else 2
        assert len(later) == len(earlier) + made + 1
    assert json.loads(sent[-1][-1]).get("role") in ("tool", None)
