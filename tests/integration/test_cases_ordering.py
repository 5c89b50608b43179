"""Reported failures about the order and the completeness of history, each as the behaviour that it asks for."""

import pytest

from tests.case_player import assistant, playing, reasoning, texts, user
from tests.postgres import connected


async def test_a_conversation_is_in_the_order_of_its_turns_though_they_are_made_within_a_second(
    emptied_database_url: str,
) -> None:
    """B001, but for the clock: test_conversation_store sets it back"""
    async with playing("B001", emptied_database_url) as case:
        await case.play()
        newest_first = await case.server.http.get(f"/v1/conversations/{case.answer(1).json['id']}/items?limit=100")
    listed = case.answer(6).json["data"]
    said = [f"{word} {number}" for number in range(1, 5) for word in ("ping", "pong")]
    assert texts(listed) == said
    assert newest_first.json()["data"] == listed[::-1]
    assert texts(case.sent(4)["input"]) == [*said[:6], "ping 4"]


async def test_each_turn_sends_every_earlier_item_once_and_stores_only_its_own(emptied_database_url: str) -> None:
    """B002"""
    async with playing("B002", emptied_database_url) as case:
        await case.play()
    assert [len(case.sent(call)["input"]) for call in range(1, 6)] == [1, 3, 5, 7, 9]
    assert texts(case.sent(5)["input"]) == ["q1", "a1", "q2", "a2", "q3", "a3", "q4", "a4", "q5"]
    for call in range(1, 6):
        sent = texts(case.sent(call)["input"])
        assert len(set(sent)) == len(sent)
    async with connected(emptied_database_url) as connection:
        owned = await connection.fetch(
            "select count(*) filter (where not is_output) as inputs, count(*) filter (where is_output) as outputs"
            " from responses left join items on items.response_id = responses.id group by responses.id"
        )
    assert [tuple(row) for row in owned] == [(1, 1)] * 5


async def test_input_equal_to_an_earlier_one_is_sent_again_and_last(emptied_database_url: str) -> None:
    """B004"""
    async with playing("B004", emptied_database_url) as case:
        await case.play()
    assert case.sent(2)["input"] == [user("Name a colour."), assistant("m1", "Red."), user("Name a colour.")]
    assert [case.sent(1)["instructions"], case.sent(2)["instructions"]] == ["be short", "roll your r"]


async def test_a_call_is_sent_between_its_reasoning_and_its_output(emptied_database_url: str) -> None:
    """B005"""
    async with playing("B005", emptied_database_url) as case:
        await case.play()
    assert case.sent(2)["input"] == [
        user("Weather in Oslo?"),
        reasoning("r1", "need the weather"),
        {
            "type": "function_call",
            "id": "f1",
            "call_id": "call_a",
            "name": "weather",
            "arguments": '{"city":"Oslo"}',
        },
        {"type": "function_call_output", "call_id": "call_a", "output": "-3 C"},
    ]


async def test_every_input_item_is_sent_again_with_all_its_parts(emptied_database_url: str) -> None:
    """B007"""
    async with playing("B007", emptied_database_url) as case:
        await case.play()
        listed = (await case.server.http.get(f"/v1/responses/{case.answer(1).json['id']}/input_items")).json()["data"]
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    assert case.sent(2)["input"] == [
        {"type": "message", "role": "developer", "content": "terse"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "what is it"}, image]},
        assistant("m1", "a cat"),
        user("colour?"),
    ]
    # The newest comes first where no order is asked for.
    assert [(item["role"], item["content"]) for item in listed] == [
        ("user", [{"type": "input_text", "text": "what is it"}, image | {"detail": "auto"}]),
        ("developer", [{"type": "input_text", "text": "terse"}]),
    ]


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_an_item_that_the_history_has_is_not_taken_again(emptied_database_url: str, stream: bool) -> None:
    """B008"""
    async with playing("B008", emptied_database_url) as case:
        await case.play(1)
        await case.play(2, stream=stream)
    refused = case.answer(2)
    assert (refused.status, refused.content_type) == (400, "application/json")
    assert refused.json["error"] == {
        "message": "Duplicate item found with id 'm1'. Remove it from your input: the history or the input has it.",
        "type": "invalid_request_error",
        "param": "input",
        "code": "invalid_value",
    }
    assert case.calls == 1


async def test_a_long_chain_is_sent_whole(emptied_database_url: str) -> None:
    """B010"""
    async with playing("B010", emptied_database_url) as case:
        await case.play()
    sent = texts(case.sent(40)["input"])
    assert len(sent) == 79
    assert sent[0] == "turn-0001"
    assert sent[-1] == "turn-0040"
    assert sent[::2] == [f"turn-{number:04}" for number in range(1, 41)]
    assert sent[1::2] == ["ok"] * 39
