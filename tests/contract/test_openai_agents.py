"""The OpenAI Agents SDK against the server: its three ways of leaving the history to the server."""

from typing import Any

import agents
from openai import AsyncOpenAI

from tests.application import Application, Minted, both_modes
from tests.contract.dialogue import ANSWERS, QUESTIONS, WEATHER, Dialogue, Wire, received, shown

# Traces would be sent to OpenAI.
UNTRACED = agents.RunConfig(tracing_disabled=True)


@agents.function_tool
def get_weather(city: str) -> str:
    assert city == "Paris"
    return WEATHER


def _agent(client: AsyncOpenAI) -> agents.Agent[None]:
    model = agents.OpenAIResponsesModel(model="m", openai_client=client)
    return agents.Agent(name="Forecaster", instructions="Be brief.", tools=[get_weather], model=model)


async def _run(agent: agents.Agent[None], question: str, *, stream: bool, **state: Any) -> agents.result.RunResultBase:
    if not stream:
        return await agents.Runner.run(agent, question, run_config=UNTRACED, **state)
    result = agents.Runner.run_streamed(agent, question, run_config=UNTRACED, **state)
    async for _ in result.stream_events():
        pass
    return result


@both_modes
async def test_a_conversation_by_its_id(application: Application, wire: Wire, stream: bool) -> None:
    dialogue = Dialogue(stream)
    application.mock.replies = dialogue.replies
    client = wire.openai(application)
    agent, conversation = _agent(client), await client.conversations.create()
    results = [await _run(agent, question, stream=stream, conversation_id=conversation.id) for question in QUESTIONS]
    assert [result.final_output for result in results] == list(ANSWERS)
    assert wire.item_counts() == [1, 1, 1]
    assert received(application) == dialogue.upstream_inputs()
    assert await application.conversed(conversation.id) == [*dialogue.listed(), *dialogue.outputs[2]]


@both_modes
async def test_a_chain_of_responses(application: Application, wire: Wire, stream: bool) -> None:
    """The first run chains its own two requests, the second goes on from the response it is given."""
    dialogue = Dialogue(stream)
    application.mock.replies = dialogue.replies
    agent = _agent(wire.openai(application))
    first = await _run(agent, QUESTIONS[0], stream=stream, auto_previous_response_id=True)
    second = await _run(agent, QUESTIONS[1], stream=stream, previous_response_id=first.last_response_id)
    assert (first.final_output, second.final_output) == ANSWERS
    assert wire.item_counts() == [1, 1, 1]
    assert received(application) == dialogue.upstream_inputs()
    assert second.last_response_id is not None
    assert await application.listed(second.last_response_id) == dialogue.listed()


@both_modes
async def test_a_session_in_a_conversation(application: Application, wire: Wire, stream: bool) -> None:
    """The session adds its own items to a conversation and lists them for each run, whose requests hold them all."""
    dialogue = Dialogue(stream)
    application.mock.replies = dialogue.replies
    client = wire.openai(application)
    agent, session = _agent(client), agents.OpenAIConversationsSession(openai_client=client)
    results = [await _run(agent, question, stream=stream, session=session) for question in QUESTIONS]
    assert [result.final_output for result in results] == list(ANSWERS)

    kept = await application.conversed(session.session_id)
    assert kept == [*map(_as_added, dialogue.listed()), *map(_as_added, dialogue.outputs[2])]
    assert len({item["id"] for item in kept}) == len(kept)
    # In the second run the session sends what it has listed, without the ids of the assistant's messages.
    by_type = {(item["type"], item.get("role")): item["id"] for item in reversed(kept)}
    thought, call, output = dialogue.call_and_output()
    second_thought, answer = dialogue.answer()
    del answer["id"]
    first, second, third = dialogue.upstream_inputs()
    third = [
        {
            "type": "message",
            "id": by_type["message", "user"],
            "role": "user",
            "content": shown(QUESTIONS[0])["content"],
        },
        thought,
        call | {"id": by_type["function_call", None]},
        output | {"id": by_type["function_call_output", None]},
        second_thought,
        answer,
        third[-1],
    ]
    assert received(application) == [first, second, third]


def _as_added(item: dict[str, Any]) -> dict[str, Any]:
    """An item as the session adds it: calls and messages without their ids, and by the client's own names."""
    match item["type"]:
        case "message":
            return item | {"id": Minted("msg")}
        case "function_call":
            added = item | {"id": Minted("fc"), "async_": item["async"]}
            del added["async"]
            return added
        case "reasoning" if item["status"] is None:
            return {name: value for name, value in item.items() if name != "status"}
    return item


async def test_a_session_of_more_than_one_page(application: Application, wire: Wire) -> None:
    session = agents.OpenAIConversationsSession(openai_client=wire.openai(application))
    await session.add_items([{"role": "user", "content": str(number)} for number in range(25)])
    texts = [item["content"][0]["text"] for item in await session.get_items()]  # type: ignore[index]
    assert texts == [str(number) for number in range(25)]
    assert [item["content"][0]["text"] for item in await session.get_items(limit=2)] == texts[-2:]  # type: ignore[index]
    newest = await session.pop_item()
    assert newest is not None
    assert newest["content"][0]["text"] == texts[-1]  # type: ignore[index]
    assert len(await session.get_items()) == 24
    conversation_id = session.session_id
    await session.clear_session()
    assert (await application.http.get(f"/v1/conversations/{conversation_id}")).status_code == 404
