"""Turns and their continuations, over HTTP."""

import pytest

from tests.application import Application, function_call, message, reasoning, reply

both_modes = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])


@both_modes
async def test_second_turn(application: Application, stream: bool) -> None:
    application.mock.replies = [reply(reasoning("Hm."), message("Hi."), function_call("f"), stream=stream)]
    first = await application.turn(input="hello", stream=stream)
    await application.turn(
        input=[{"type": "function_call_output", "call_id": "call_1", "output": "x"}],
        previous_response_id=first["id"],
        stream=stream,
    )
    assert [item["type"] for item in application.sent()["input"]] == [
        "message",
        "reasoning",
        "message",
        "function_call",
        "function_call_output",
    ]
