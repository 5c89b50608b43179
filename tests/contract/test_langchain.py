"""LangChain's ChatOpenAI against the server. The message list stays the client's; with `use_previous_response_id` only
what follows the newest response in it is sent, else all of it.
"""

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langsmith import tracing_context

from tests.application import CLIENT_API_KEY, Application, both_modes
from tests.contract.dialogue import ANSWERS, QUESTIONS, WEATHER, Dialogue, Wire, received


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    assert city == "Paris"
    return WEATHER


def _chat(application: Application, wire: Wire, **options: bool) -> Runnable[list[AnyMessage], AIMessage]:
    chat = ChatOpenAI(
        model="m",
        base_url=f"{application.url}/v1",
        api_key=CLIENT_API_KEY,
        max_retries=0,
        http_async_client=wire.http,
        **options,
    )
    return chat.bind_tools([get_weather])


async def _answer(
    chat: Runnable[list[AnyMessage], AIMessage], messages: list[AnyMessage], *, stream: bool
) -> AIMessage:
    if not stream:
        return await chat.ainvoke(messages)
    first, *rest = [chunk async for chunk in chat.astream(messages)]
    return sum(rest, first)


async def _two_turns(
    chat: Runnable[list[AnyMessage], AIMessage], dialogue: Dialogue, *, stream: bool
) -> tuple[AIMessage, AIMessage]:
    """What both turns of the dialogue ended with, the call in the first being answered."""
    messages: list[AnyMessage] = [HumanMessage(QUESTIONS[0])]
    # Where somebody's environment asks for traces, they would be sent to LangSmith.
    with tracing_context(enabled=False):
        called = await _answer(chat, messages, stream=stream)
        [call] = called.tool_calls
        assert (call["name"], call["args"], call["id"]) == ("get_weather", {"city": "Paris"}, dialogue.ids.call_id)
        messages += [called, await get_weather.ainvoke(call)]
        first = await _answer(chat, messages, stream=stream)
        messages += [first, HumanMessage(QUESTIONS[1])]
        return first, await _answer(chat, messages, stream=stream)


@both_modes
async def test_a_chain_of_responses(application: Application, wire: Wire, stream: bool) -> None:
    dialogue = Dialogue(stream)
    application.mock.replies = dialogue.replies
    chat = _chat(application, wire, use_previous_response_id=True)
    first, second = await _two_turns(chat, dialogue, stream=stream)
    assert (first.text, second.text) == ANSWERS
    assert wire.item_counts() == [1, 1, 1]
    assert received(application) == dialogue.upstream_inputs()
    assert await application.listed(second.response_metadata["id"]) == dialogue.listed()


@both_modes
async def test_a_history_of_its_own(application: Application, wire: Wire, stream: bool) -> None:
    """Of an answer that it streamed the client itself keeps no text of the reasoning, and sends an empty item."""
    dialogue = Dialogue(stream)
    application.mock.replies = dialogue.replies
    first, second = await _two_turns(_chat(application, wire, use_responses_api=True), dialogue, stream=stream)
    assert (first.text, second.text) == ANSWERS
    # Streamed, the message of white space is one more.
    assert wire.item_counts() == ([1, 5, 8] if stream else [1, 4, 7])
    whole = dialogue.upstream_inputs()
    kept = [[item for item in items if item["type"] != "reasoning"] for items in whole] if stream else whole
    assert received(application) == kept
