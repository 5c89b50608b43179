"""The oracle by both dialects of one real vLLM, and across them: the other must get the reasoning of what one made."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.e2e.vllm.test_oracle import GET_WEATHER, outputs, reasoning, text

DIALECTS = ("responses", "chat")


@pytest.fixture
def clients(both_dialects: dict[str, str]) -> Iterator[dict[str, OpenAI]]:
    """A client for each dialect that the server behind it speaks to vLLM."""
    with ExitStack() as opened:
        yield {
            dialect: opened.enter_context(OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=120))
            for dialect, url in both_dialects.items()
        }


def turn(client: OpenAI, stream: bool, new_input: Any, previous: str | None, **members: Any) -> Response:
    request = {"model": "tiny", "input": new_input, "previous_response_id": previous, **members}
    if not stream:
        response: Response = client.responses.create(**request)
    else:
        with client.responses.create(**request, stream=True) as events:
            *_, last = events
        assert last.type == "response.completed"
        response = last.response
    assert response.status == "completed"
    return response


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("first", DIALECTS)
@pytest.mark.parametrize("second", DIALECTS)
def test_the_secret_word_crosses(clients: dict[str, OpenAI], first: str, second: str, stream: bool) -> None:
    made = turn(clients[first], stream, "Think of a secret word.", None)
    assert (reasoning(made), text(made)) == ("The secret word is ZEBRA.", "I have one.")
    asked = turn(clients[second], stream, "Which word?", made.id)
    assert text(asked) == "It was ZEBRA."
    print(f"\nZEBRA ({first}, then {second}, {'stream' if stream else 'json'}): {text(asked)!r}")


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("first", DIALECTS)
@pytest.mark.parametrize("second", DIALECTS)
def test_a_call_is_answered_by_the_other_dialect(
    clients: dict[str, OpenAI], first: str, second: str, stream: bool
) -> None:
    made = turn(clients[first], stream, "Weather in Paris?", None, tools=[GET_WEATHER])
    assert reasoning(made) == "I need the weather tool."
    answers = outputs(made, {"get_weather": "rain"})
    told = turn(clients[second], stream, answers, made.id, tools=[GET_WEATHER])
    assert text(told) == "It is raining in Paris."
    print(f"\nweather ({first}, then {second}, {'stream' if stream else 'json'}): {text(told)!r}")
