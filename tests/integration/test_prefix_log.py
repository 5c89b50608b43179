"""What the log tells of each turn's prefix, and a process of all of them."""

import json
from typing import Any

import pytest

from tests.application import Application, both_modes, function_call, message, reply, running
from tests.postgres import connected, recorded_statements

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}


def told(application: Application, event: str = "request") -> list[dict[str, Any]]:
    return [line for line in map(json.loads, application.log.splitlines()) if line["event"] == event]


def prefixes(application: Application) -> list[str]:
    return [line["prefix"] for line in told(application) if "prefix" in line]


@both_modes
async def test_a_chain_keeps_it_through_a_turn_that_failed(emptied_database_url: str, stream: bool) -> None:
    failed = reply(message("No."), stream=stream, status="failed")
    said = reply(message("Yes."), stream=stream)
    async with running(emptied_database_url, [said, said, failed, said, said]) as application:
        previous = None
        for number in range(5):
            response = await application.turn(input=f"q{number}", stream=stream, previous_response_id=previous)
            previous = response["id"]
    # The fourth goes on from the second, whose prompt it begins with; the third would be none of it.
    assert prefixes(application) == ["first", "kept", "kept", "kept", "kept"]
    [counted] = told(application, "prefixes_counted")
    assert {name: counted[name] for name in ("first", "kept")} == {"first": 1, "kept": 4}


async def test_each_reason_is_told_and_counted(emptied_database_url: str) -> None:
    async with running(emptied_database_url) as application:
        first = await application.turn(input="q", instructions="Be brief.", tools=[TOOL])
        asked: dict[str, Any] = {
            "input": "r",
            "instructions": "Be brief.",
            "tools": [TOOL],
            "previous_response_id": first["id"],
        }
        for changed in (
            {},
            {"instructions": "Be long."},
            {"tools": []},
            {"model": "n"},
            {"reasoning": {"effort": "low"}},
            {"temperature": 0.1, "store": False, "stream": True},
            {"instructions": None, "tools": None},
        ):
            await application.turn(**(asked | changed))
    assert prefixes(application) == [
        "first", "kept", "instructions", "tools", "model", "settings", "kept", "instructions,tools",
    ]  # fmt: skip
    [counted] = told(application, "prefixes_counted")
    assert [counted[name] for name in ("kept", "instructions", "tools", "model", "settings")] == [2, 2, 2, 1, 1]


UPSTREAMS = """
[[upstreams]]
name = "one"
urls = ["URL"]
profile = "vllm"
models = ["one"]

[[upstreams]]
name = "other"
urls = ["URL"]
profile = "chat-vllm"
models = ["other"]
"""


async def test_a_chain_that_moves(emptied_database_url: str) -> None:
    """To an upstream of the other dialect, where the history is spelled in messages."""
    chat = {"choices": [{"index": 0, "message": {"content": "Yes."}, "finish_reason": "stop"}]}
    replies = [reply(message("Yes."), stream=False), type(reply(stream=False))(json=chat)]
    async with running(emptied_database_url, replies, upstreams=UPSTREAMS) as application:
        first = await application.turn(model="one", input="q")
        await application.turn(model="other", input="r", previous_response_id=first["id"])
    assert prefixes(application) == ["first", "upstream,model,history"]


async def test_a_cut_call_that_is_answered_late(emptied_database_url: str) -> None:
    """Unanswered it is left out; answered it comes back where it was, before what was sent since (DESIGN 6)."""
    cut = function_call("look", '{"n": ', call_id="c", id="fc_1", status="incomplete")
    replies = [reply(cut, stream=False, status="incomplete"), *[reply(message("Yes."), stream=False)] * 2]
    async with running(emptied_database_url, replies) as application:
        first = await application.turn(input="q")
        second = await application.turn(input="Go on.", previous_response_id=first["id"])
        answer = {"type": "function_call_output", "call_id": "c", "output": "seen"}
        await application.turn(input=[answer], previous_response_id=second["id"])
    assert prefixes(application) == ["first", "kept", "history"]


async def test_a_conversation(application: Application) -> None:
    conversation_id = await application.converse({"role": "user", "content": "To begin with."})
    first = await application.turn(input="q", conversation=conversation_id)
    await application.turn(input="r", conversation=conversation_id)
    # What a client adds stands behind what was sent.
    path = f"/v1/conversations/{conversation_id}/items"
    added = await application.http.post(path, json={"items": [{"role": "user", "content": "Besides."}]})
    assert added.status_code == 200
    await application.turn(input="s", conversation=conversation_id)
    removed = await application.http.delete(f"{path}/{first['output'][0]['id']}")
    assert removed.status_code == 200
    await application.turn(input="t", conversation=conversation_id)
    await application.turn(input="u", conversation=conversation_id)
    # A response keeps what it saw.
    await application.turn(input="v", previous_response_id=first["id"])
    await application.turn(input="w", conversation=conversation_id, store=False)
    assert prefixes(application) == ["unknown", "kept", "kept", "history", "kept", "kept", "unknown"]


async def test_a_turn_of_an_earlier_release_left_no_mark(application: Application, emptied_database_url: str) -> None:
    first = await application.turn(input="q")
    async with connected(emptied_database_url) as connection:
        await connection.execute("update responses set prefix_mark = null")
    second = await application.turn(input="r", previous_response_id=first["id"])
    await application.turn(input="s", previous_response_id=second["id"])
    assert prefixes(application) == ["first", "unknown", "kept"]


@pytest.mark.parametrize("depth", [1, 5])
async def test_it_takes_no_statement_of_its_own(application: Application, depth: int) -> None:
    response = await application.turn(input="q")
    for number in range(depth):
        with recorded_statements(application.database) as statements:
            response = await application.turn(input=f"r{number}", previous_response_id=response["id"])
        # The walk and the write.
        assert len(statements) == 2
    assert prefixes(application) == ["first", *["kept"] * depth]
