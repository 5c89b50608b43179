"""Reported failures about the events of a stream, each as the behaviour that it asks for."""

from tests.case_player import answered, assistant, playing, user


async def test_an_item_keeps_the_id_that_it_was_announced_with(emptied_database_url: str) -> None:
    """B044"""
    async with playing("B044", emptied_database_url) as case:
        await case.play()
        await case.server.turn(input="more", previous_response_id=case.answer(1).json["id"], stream=True)
    seen = {event["item_id"] for event in case.answer(1).events if "item_id" in event}
    seen |= {event["item"]["id"] for event in case.answer(1).events if "item" in event}
    assert seen == {"m1"}
    assert case.answer(1).json["output"] == [answered("m1", "hello")]
    assert case.answer(2).json == case.answer(1).json
    assert case.sent(2)["input"] == [user("hi"), assistant("m1", "hello"), user("more")]


async def test_a_finished_item_without_an_id_keeps_the_announced_one(emptied_database_url: str) -> None:
    """B045"""
    async with playing("B045", emptied_database_url) as case:
        await case.play()
    called = {
        "id": "fc_1",
        "type": "function_call",
        "call_id": "call_a",
        "name": "t",
        "arguments": '{"a":1}',
        "status": "completed",
    }
    [added] = case.answer(1).of_type("response.output_item.added")
    [done] = case.answer(1).of_type("response.output_item.done")
    assert (added["item"]["id"], done["item"]) == ("fc_1", called)
    assert {event["item_id"] for event in case.answer(1).events if "item_id" in event} == {"fc_1"}
    assert case.answer(1).json["output"] == [called]
    assert case.answer(2).json == case.answer(1).json


async def test_content_indexes_count_parts_and_not_deltas(emptied_database_url: str) -> None:
    """B047"""
    thought = {
        "id": "r1",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "The user says hi"}],
        "status": "completed",
    }
    async with playing("B047", emptied_database_url) as case:
        await case.play()
        # The official client's accumulator raises where an index has no part.
        async with case.server.client.responses.stream(model="tiny-think", input="hi") as stream:
            final = await stream.get_final_response()
    assert case.answer(2).json["output"] == [thought, answered("m1", "ok")]
    assert case.answer(2).json == case.answer(1).json
    indexes = [
        (event["output_index"], event["content_index"]) for event in case.answer(1).events if "content_index" in event
    ]
    assert indexes == [(0, 0)] * 5 + [(1, 0)] * 4
    assert final.output_text == "ok"


async def test_finished_items_are_the_output_where_the_terminal_event_has_none(emptied_database_url: str) -> None:
    """B048"""
    async with playing("B048", emptied_database_url) as case:
        await case.play()
    thought = {
        "id": "r1",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "why"}],
        "status": "completed",
    }
    assert case.answer(1).json["output"] == [thought, answered("m1", "because")]
    assert case.answer(2).json == case.answer(1).json
    assert case.answer(3).json["output"] == [answered("m2", "x")]


async def test_response_done_is_told_as_what_its_response_became(emptied_database_url: str) -> None:
    """B050"""
    async with playing("B050", emptied_database_url) as case:
        await case.play()
    assert case.answer(1).events[-1]["type"] == "response.completed"
    assert case.answer(2).json["status"] == "completed"
    assert case.answer(2).json["output"] == [answered("m1", "fin")]


async def test_events_are_numbered_anew_whatever_the_upstream_counts(emptied_database_url: str) -> None:
    """B051"""
    async with playing("B051", emptied_database_url) as case:
        await case.play()
    assert [(event["sequence_number"], event["type"]) for event in case.answer(1).events] == [
        (0, "response.created"),
        (1, "response.in_progress"),
        (2, "response.output_item.added"),
        (3, "response.content_part.added"),
        (4, "response.output_text.delta"),
        (5, "response.output_text.done"),
        (6, "response.content_part.done"),
        (7, "response.output_item.done"),
        (8, "response.completed"),
    ]


async def test_nothing_counts_after_the_first_terminal_event(emptied_database_url: str) -> None:
    """B059"""
    async with playing("B059", emptied_database_url) as case:
        await case.play()
    assert len(case.answer(1).events) == 9
    assert b"late failure" not in case.answer(1).body
    assert (case.answer(1).json["status"], case.answer(1).json["error"]) == ("completed", None)
    assert case.answer(2).json == case.answer(1).json


async def test_calls_that_an_upstream_counts_from_one_leave_no_hole(emptied_database_url: str) -> None:
    """B053"""
    async with playing("B053", emptied_database_url, chat_profile="strict-chat") as case:
        await case.play()
    added = [
        (event["output_index"], event["item"]["id"]) for event in case.answer(1).of_type("response.output_item.added")
    ]
    assert added == list(enumerate(item["id"] for item in case.answer(1).json["output"]))
    named = [item.get("call_id") for item in case.answer(1).json["output"]]
    assert named == [None, "call_a", "call_b"]


async def test_a_call_whose_pieces_have_no_index_is_whole(emptied_database_url: str) -> None:
    """B054"""
    async with playing("B054", emptied_database_url, chat_profile="strict-chat") as case:
        await case.play()
    [call] = case.answer(2).json["output"]
    assert (call["call_id"], call["arguments"]) == ("call_a", '{"k":1}')


async def test_empty_pieces_are_harmless(emptied_database_url: str) -> None:
    """B056"""
    async with playing("B056", emptied_database_url, chat_profile="chat-vllm") as case:
        await case.play()
    assert case.answer(1).json["status"] == "completed"
    [call] = case.answer(1).json["output"]
    assert call["arguments"] == '{"x":2}'


async def test_a_call_before_a_text_is_numbered_before_it(emptied_database_url: str) -> None:
    """B057"""
    async with playing("B057", emptied_database_url, chat_profile="strict-chat") as case:
        await case.play()
    added = [
        (event["output_index"], event["item"]["type"]) for event in case.answer(1).of_type("response.output_item.added")
    ]
    assert added == [(0, "function_call"), (1, "message")]
    assert [item["type"] for item in case.answer(2).json["output"]] == ["function_call", "message"]
