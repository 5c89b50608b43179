"""LangChain's ChatOpenAI against the server, with `use_previous_response_id`: the message list stays the client's, and
only what follows the newest response in it is sent.
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


def _chat(application: Application, wire: Wire) -> Runnable[list[AnyMessage], AIMessage]:
    chat = ChatOpenAI(
        model="m",
        base_url=f"{application.url}/v1",
        api_key=CLIENT_API_KEY,
        max_retries=0,
        http_async_client=wire.http,
        use_previous_response_id=True,
    )
    return chat.bind_tools([get_weather])


async def _answer(
    chat: Runnable[list[AnyMessage], AIMessage], messages: list[AnyMessage], *, stream: bool
) -> AIMessage:
    if not stream:
        return await chat.ainvoke(messages)
    first, *rest = [chunk async for chunk in chat.astream(messages)]
    return sum(rest, first)


@both_modes
async def test_a_chain_of_responses(application: Application, wire: Wire, stream: bool) -> None:
    dialogue = Dialogue(stream)
    application.mock.replies = dialogue.replies
    chat = _chat(application, wire)
    messages: list[AnyMessage] = [HumanMessage(QUESTIONS[0])]
    # Where somebody's environment asks for traces, they would be sent to LangSmith.
    with tracing_context(enabled=False):
        called = await _answer(chat, messages, stream=stream)
        [call] = called.tool_calls
        messages += [called, await get_weather.ainvoke(call)]
        first = await _answer(chat, messages, stream=stream)
        messages += [first, HumanMessage(QUESTIONS[1])]
        second = await _answer(chat, messages, stream=stream)
    assert (call["name"], call["args"], call["id"]) == ("get_weather", {"city": "Paris"}, dialogue.ids.call_id)
    assert (first.text, second.text) == ANSWERS
    assert wire.item_counts() == [1, 1, 1]
    assert received(application) == dialogue.upstream_inputs()
    assert await application.listed(second.response_metadata["id"]) == dialogue.listed()
