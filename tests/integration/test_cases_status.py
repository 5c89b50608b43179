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


async def test_a_length_finish_of_a_chat_upstream_is_incomplete(emptied_database_url: str) -> None:
    """B034"""
    async with playing("B034", emptied_database_url, chat_profile="strict-chat") as case:
        await case.play(1, max_output_tokens=16)
        await case.play(2)
    for step in (1, 2):
        response = case.answer(step).json
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert [item["status"] for item in response["output"]] == ["incomplete"]


async def test_a_content_filter_of_a_chat_upstream_is_named(emptied_database_url: str) -> None:
    """B038"""
    async with playing("B038", emptied_database_url, chat_profile="strict-chat") as case:
        await case.play()
    assert case.answer(1).events[-1]["type"] == "response.incomplete"
    for step in (1, 2):
        assert case.answer(step).json["incomplete_details"] == {"reason": "content_filter"}


async def test_a_refusal_of_a_chat_upstream_is_a_refusal(emptied_database_url: str) -> None:
    """B040"""
    async with playing("B040", emptied_database_url, chat_profile="strict-chat") as case:
        await case.play()
    for step in (1, 2, 3):
        [said] = case.answer(step).json["output"]
        assert said["content"] == [{"type": "refusal", "refusal": "No, sorry."}]
        assert case.answer(step).json["status"] == "completed"
    assert [event["delta"] for event in case.answer(2).of_type("response.refusal.delta")] == ["No, ", "sorry."]
    assert len(case.answer(2).of_type("response.refusal.done")) == 1
    assert case.answer(3).json == case.answer(2).json
