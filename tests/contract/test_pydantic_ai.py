"""Pydantic AI against the server, with `openai_previous_response_id="auto"`: the message list stays the client's, and
only what follows the newest response in it is sent.
"""

from collections.abc import AsyncIterable

from pydantic_ai import Agent, AgentRunResult, AgentStreamEvent, ModelMessage, RunContext
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.providers.openai import OpenAIProvider

from tests.application import Application, both_modes
from tests.contract.dialogue import ANSWERS, QUESTIONS, WEATHER, Dialogue, Wire, received


def get_weather(city: str) -> str:
    assert city == "Paris"
    return WEATHER


async def _read_to_the_end(_: RunContext[None], events: AsyncIterable[AgentStreamEvent]) -> None:
    async for _event in events:
        pass


def _agent(application: Application, wire: Wire) -> Agent[None, str]:
    model = OpenAIResponsesModel("m", provider=OpenAIProvider(openai_client=wire.openai(application)))
    settings = OpenAIResponsesModelSettings(openai_previous_response_id="auto")
    return Agent(model, instructions="Be brief.", tools=[get_weather], model_settings=settings)


@both_modes
async def test_a_chain_of_responses(application: Application, wire: Wire, stream: bool) -> None:
    dialogue = Dialogue(stream)
    application.mock.replies = dialogue.replies
    agent = _agent(application, wire)

    async def run(question: str, history: list[ModelMessage]) -> AgentRunResult[str]:
        handler = _read_to_the_end if stream else None
        return await agent.run(question, message_history=history, event_stream_handler=handler)

    first = await run(QUESTIONS[0], [])
    second = await run(QUESTIONS[1], first.all_messages())
    assert (first.output, second.output) == ANSWERS
    assert wire.item_counts() == [1, 1, 1]
    assert received(application) == dialogue.upstream_inputs()
    response_id = second.response.provider_response_id
    assert response_id is not None
    assert await application.listed(response_id) == dialogue.listed()


async def test_a_run_that_is_streamed_as_text(application: Application, wire: Wire) -> None:
    dialogue = Dialogue(stream=True)
    application.mock.replies = dialogue.replies[1:]
    async with _agent(application, wire).run_stream(QUESTIONS[0]) as run:
        texts = [text async for text in run.stream_text(delta=True, debounce_by=None)]
    assert len(texts) > 1
    assert "".join(texts) == ANSWERS[0]


async def test_white_space_before_a_call_ends_a_run_that_is_streamed_as_text(
    application: Application, wire: Wire
) -> None:
    """The client takes the first text for its answer and calls the tool all the same. The next run sends the output."""
    dialogue = Dialogue(stream=True)
    application.mock.replies = [dialogue.replies[0], dialogue.replies[2]]
    agent = _agent(application, wire)
    async with agent.run_stream(QUESTIONS[0]) as first:
        assert await first.get_output() == "\n\n"
    async with agent.run_stream(QUESTIONS[1], message_history=first.all_messages()) as second:
        assert await second.get_output() == ANSWERS[1]
    assert wire.item_counts() == [1, 2]
    asked, answered, whole = dialogue.upstream_inputs()
    assert received(application) == [asked, [*answered, whole[-1]]]
