"""The oracle dialogues through a real server in front of a real vLLM, with the official client.

The tiny model answers by what reached its prompt, and vLLM tells the prompt that it rendered: both must show that the
reasoning, the calls and their outputs of the turns before were replayed. The prompts are worked out by hand from
`tiny/chat_template.jinja`.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI
from openai.types.responses import Response

# vLLM caches whole blocks of so many tokens (`serve.sh`).
BLOCK_TOKENS = 32
USER = "<|im_start|>user\n"
ASSISTANT = "<|im_start|>assistant\n"
END = "<|im_end|>\n"
PARIS_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
UTC_CALL = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n</tool_call>'


def function_tool(name: str, argument: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"type": "function", "name": name, "parameters": schema}


GET_WEATHER = function_tool("get_weather", "city")
GET_TIME = function_tool("get_time", "zone")


@pytest.fixture(params=["json", "stream"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Dialogue:
    """Turns of one chain, each continued from the one before by its id.

    What a turn's prompt was is the beginning of the next one's, so vLLM must have all whole blocks of it in its cache.
    """

    def __init__(self, client: OpenAI, mode: str, tools: list[dict[str, Any]]) -> None:
        self._client = client
        self._mode = mode
        self._tools = tools
        self._previous: str | None = None
        self._prompt_tokens = 0

    def turn(self, new_input: Any) -> Response:
        request: dict[str, Any] = {
            "model": "tiny",
            "input": new_input,
            "tools": self._tools,
            "previous_response_id": self._previous,
            "extra_body": {"enable_response_messages": True},
        }
        response = self._streamed(request) if self._mode == "stream" else self._client.responses.create(**request)
        assert response.status == "completed"
        assert response.previous_response_id == self._previous
        self._previous = response.id
        self._judge_cache(response)
        return response

    def _judge_cache(self, response: Response) -> None:
        assert response.usage is not None
        prompt_tokens, cached_tokens = response.usage.input_tokens, response.usage.input_tokens_details.cached_tokens
        print(f"\n{prompt_tokens} tokens of prompt, {cached_tokens} of them cached ({self._mode})", end="")
        assert prompt_tokens > self._prompt_tokens
        assert cached_tokens >= self._prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS
        self._prompt_tokens = prompt_tokens

    def _streamed(self, request: dict[str, Any]) -> Response:
        with self._client.responses.create(**request, stream=True) as events:
            *_, last = events
        assert last.type == "response.completed"
        return last.response


@pytest.fixture
def client(rejoinder: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=rejoinder, api_key="unused", max_retries=0, timeout=120) as client:
        yield client


def prompt(response: Response) -> str:
    """What vLLM says it fed the model."""
    extra = response.model_extra or {}
    return str(extra["input_messages"][0]["message"])


def text(response: Response) -> str:
    return response.output_text.strip()


def reasoning(response: Response) -> str:
    [item] = [item for item in response.output if item.type == "reasoning"]
    [part] = item.content or []
    return part.text.strip()


def outputs(response: Response, answers: dict[str, str]) -> list[dict[str, str]]:
    """An output for each call of the response, by the name of its function."""
    calls = [item for item in response.output if item.type == "function_call"]
    assert {call.name for call in calls} == set(answers)
    return [{"type": "function_call_output", "call_id": call.call_id, "output": answers[call.name]} for call in calls]


def thought(reasoning_text: str) -> str:
    return f"<think>\n{reasoning_text}\n</think>\n\n"


def report(name: str, mode: str, response: Response) -> None:
    print(f"\n{name} ({mode}): {text(response)!r}; the prompt held the reasoning of every turn before")


def test_the_secret_word_is_remembered(client: OpenAI, mode: str) -> None:
    dialogue = Dialogue(client, mode, [])
    first = dialogue.turn("Think of a secret word.")
    assert (reasoning(first), text(first)) == ("The secret word is ZEBRA.", "I have one.")
    second = dialogue.turn("Which word?")
    assert text(second) == "It was ZEBRA."
    assert prompt(second) == (
        f"{USER}Think of a secret word.{END}"
        f"{ASSISTANT}{thought('The secret word is ZEBRA.')}I have one.{END}"
        f"{USER}Which word?{END}{ASSISTANT}"
    )
    report("ZEBRA", mode, second)


def test_a_number_is_doubled_twice(client: OpenAI, mode: str) -> None:
    dialogue = Dialogue(client, mode, [])
    assert text(dialogue.turn("What is 2+2?")) == "The answer is 4."
    assert text(dialogue.turn("Double it.")) == "The answer is 8."
    third = dialogue.turn("Double it.")
    assert text(third) == "The answer is 16."
    assert prompt(third) == (
        f"{USER}What is 2+2?{END}"
        f"{ASSISTANT}{thought('Two plus two is four.')}The answer is 4.{END}"
        f"{USER}Double it.{END}"
        f"{ASSISTANT}{thought('Four times two is eight.')}The answer is 8.{END}"
        f"{USER}Double it.{END}{ASSISTANT}"
    )
    report("double", mode, third)


@pytest.mark.parametrize(
    ("output", "answer"), [("sunny", "It is sunny in Paris."), ("rain", "It is raining in Paris.")]
)
def test_the_output_of_a_tool_joins_its_call(client: OpenAI, mode: str, output: str, answer: str) -> None:
    dialogue = Dialogue(client, mode, [GET_WEATHER])
    first = dialogue.turn("Weather in Paris?")
    second = dialogue.turn(outputs(first, {"get_weather": output}))
    assert text(second) == answer
    assert prompt(second) == (
        f"<|im_start|>system\ntools: get_weather{END}"
        f"{USER}Weather in Paris?{END}"
        f"{ASSISTANT}{thought('I need the weather tool.')}{PARIS_CALL}{END}"
        f"{USER}<tool_response>\n{output}\n</tool_response>{END}{ASSISTANT}"
    )
    report(f"weather {output}", mode, second)


def test_the_cache_grows_with_the_chain(client: OpenAI, mode: str) -> None:
    dialogue = Dialogue(client, mode, [GET_WEATHER])
    first = dialogue.turn("Weather in Paris?")
    dialogue.turn(outputs(first, {"get_weather": "sunny"}))
    third = dialogue.turn("Thanks.")
    # Whatever it says to that. Two blocks of the second turn's prompt, which has 75 tokens, at least.
    assert third.usage is not None
    assert third.usage.input_tokens_details.cached_tokens >= 2 * BLOCK_TOKENS


def test_two_calls_get_their_outputs(client: OpenAI, mode: str) -> None:
    dialogue = Dialogue(client, mode, [GET_WEATHER, GET_TIME])
    first = dialogue.turn("Weather and time?")
    second = dialogue.turn(outputs(first, {"get_weather": "sunny", "get_time": "12:00"}))
    assert text(second) == "Sunny, and it is 12:00."
    # vLLM leaves the line end before the first call in the text, and the template adds its own.
    assert prompt(second) == (
        f"<|im_start|>system\ntools: get_weather get_time{END}"
        f"{USER}Weather and time?{END}"
        f"{ASSISTANT}{thought('I need both tools.')}Let me check.\n\n{PARIS_CALL}\n{UTC_CALL}{END}"
        f"{USER}<tool_response>\nsunny\n</tool_response>\n<tool_response>\n12:00\n</tool_response>{END}{ASSISTANT}"
    )
    report("weather and time", mode, second)
