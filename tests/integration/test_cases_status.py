"""Reported failures about what became of a turn, each as the behaviour that it asks for."""

from tests.case_player import playing, reasoning, user


async def test_items_of_a_cut_turn_keep_the_status_they_came_with(emptied_database_url: str) -> None:
    """B035"""
    async with playing("B035", emptied_database_url) as case:
        await case.play()
    for step in (1, 2):
        response = case.answer(step).json
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert [item["status"] for item in response["output"]] == ["incomplete", "completed"]
    assert case.answer(2).body == case.answer(1).body


async def test_a_call_cut_in_its_arguments_does_not_stop_the_chain(emptied_database_url: str) -> None:
    """B037"""
    async with playing("B037", emptied_database_url) as case:
        await case.play()
    assert case.answer(2).status == 200
    # Nobody answered the call, so there is nothing of it to send.
    assert case.sent(2)["input"] == [user("save it"), user("try again")]
    assert case.answer(3).json["output"] == [
        {
            "id": "f1",
            "type": "function_call",
            "call_id": "call_a",
            "name": "save",
            "arguments": '{"text": "abc',
            "status": "incomplete",
        }
    ]


async def test_a_turn_cut_in_its_reasoning_is_incomplete_and_goes_on_with_it(emptied_database_url: str) -> None:
    """B041"""
    async with playing("B041", emptied_database_url) as case:
        await case.play()
    assert case.answer(1).json["status"] == "incomplete"
    assert [item["type"] for item in case.answer(1).json["output"]] == ["reasoning"]
    assert case.sent(2)["input"] == [user("hard"), reasoning("r1", "long thought that was cu"), user("continue")]
    assert case.answer(2).json["status"] == "completed"
