"""POST /v1/responses/replay: the request that would be sent, held against the one that is, and nothing left behind."""

import asyncio
from typing import Any

import pytest

from tests.application import Application, function_call, message, reasoning, reply, running, stored_rows
from tests.harness import until

CHAT = """
[[upstreams]]
name = "chat"
urls = ["URL"]
profile = "chat-vllm"
default = true
"""
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}


async def replayed(application: Application, **body: Any) -> dict[str, Any]:
    answer = await application.http.post("/v1/responses/replay", json=body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def without_id(request: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in request.items() if name != "request_id"}


async def test_what_is_told_is_what_is_sent_and_nothing_is_left_behind(
    application: Application, emptied_database_url: str
) -> None:
    application.mock.replies = [
        reply(
            reasoning("Hm.", encrypted_content=None), message("\n\n"), function_call("look", '{"a":1}'), stream=False
        ),
        reply(message("Done."), stream=False),
    ]
    first = await application.turn(input="go", tools=[TOOL], instructions="Be brief.")
    rows = await stored_rows(emptied_database_url)
    output = {"type": "function_call_output", "call_id": "call_1", "output": "seen"}
    given = {"model": "m", "input": [output], "previous_response_id": first["id"], "tools": [TOOL], "top_k": 3}
    told = await replayed(application, **given)
    assert await stored_rows(emptied_database_url) == rows
    assert len(application.mock.posts) == 1
    await application.post(given)
    assert without_id(told["request"]) == without_id(application.sent())
    assert (told["object"], told["upstream"], told["dialect"]) == ("response.replay", "default", "responses")
    ids = [item["id"] for item in told["items"]]
    assert ids[1:4] == [item["id"] for item in first["output"]]
    assert [(item["index"], item["source"], item["type"], item["action"], item["rule"]) for item in told["items"]] == [
        (0, "history", "message", "kept", "message"),
        (1, "history", "reasoning", "kept", "plaintext"),
        (2, "history", "message", "left_out", "blank_beside_call"),
        (3, "history", "function_call", "kept", "call"),
        (4, "input", "function_call_output", "kept", "output"),
    ]


async def test_the_request_that_made_a_response_is_told_again(application: Application) -> None:
    application.mock.replies = [
        reply(reasoning("Hm."), message("One."), stream=False),
        reply(message("Two.", id="msg_2"), stream=False),
    ]
    members = {"tools": [TOOL], "instructions": "Be brief.", "temperature": 0.5, "reasoning": {"effort": "low"}}
    first = await application.turn(input="1", **members)
    second = await application.turn(input="2", previous_response_id=first["id"])
    for number, response in enumerate((first, second)):
        told = await replayed(application, response_id=response["id"])
        assert told["request"] == application.mock.posts[number].json
        assert [item["source"] for item in told["items"]] == ["history"] * (3 * number) + ["input"]


async def test_a_response_in_a_conversation_is_told_as_it_saw_it(application: Application) -> None:
    application.mock.replies = [reply(message("One."), stream=False)]
    conversation_id = await application.converse({"role": "user", "content": "0"})
    response = await application.turn(input="1", conversation=conversation_id)
    await application.turn(input="2", conversation=conversation_id)
    told = await replayed(application, response_id=response["id"])
    assert told["request"]["input"] == application.mock.posts[0].json["input"]
    assert [item["source"] for item in told["items"]] == ["history", "input"]


async def test_a_conversation_in_use_is_read_and_not_claimed(application: Application) -> None:
    conversation_id = await application.converse({"role": "user", "content": "0"})
    await replayed(application, model="m", input="1", conversation=conversation_id)
    items = {"items": [{"role": "user", "content": "1"}]}
    # Who holds a conversation would refuse this.
    assert (await application.http.post(f"/v1/conversations/{conversation_id}/items", json=items)).status_code == 200
    with application.upstream_held():
        turn = asyncio.create_task(application.turn(input="2", conversation=conversation_id))
        await until(lambda: len(application.mock.posts) == 1)
        told = await replayed(application, model="m", input="3", conversation=conversation_id)
        assert [item["source"] for item in told["items"]] == ["history", "history", "input"]
    assert (await turn)["status"] == "completed"


async def test_the_chat_dialect_is_told_too(emptied_database_url: str) -> None:
    async with running(emptied_database_url, upstreams=CHAT) as application:
        told = await replayed(application, model="m", input="hi", instructions="Be brief.")
    assert (told["upstream"], told["dialect"]) == ("chat", "chat")
    assert told["request"]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]
    assert [item["rule"] for item in told["items"]] == ["message"]


SEALED = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "E"}


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "input": "x", "previous_response_id": "resp_none"},
        {"model": "m", "input": "x", "conversation": "conv_none"},
        {"model": "m", "input": [SEALED]},
        {"model": "m", "input": [{"type": "item_reference", "id": "none"}]},
        {"model": "m", "input": [{"type": "function_call_output", "call_id": "c", "output": "o"}]},
        {"model": "m"},
        {"input": "x"},
        [],
        {"model": "m", "input": "x", "tool_choice": {"type": "function", "name": "f"}},
    ],
)
async def test_it_refuses_what_create_refuses(application: Application, body: Any) -> None:
    refused = await application.http.post("/v1/responses", json=body)
    told = await application.http.post("/v1/responses/replay", json=body)
    assert refused.status_code in (400, 404)
    assert (told.status_code, told.json()) == (refused.status_code, refused.json())


@pytest.mark.parametrize(("name", "status"), [("resp_none", 404), (7, 400), ("", 400), ("\u0000", 400)])
async def test_a_response_that_can_not_be_told(application: Application, name: Any, status: int) -> None:
    answer = await application.http.post("/v1/responses/replay", json={"response_id": name})
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"
