"""Reported failures about turns at the same time, each as the behaviour that it asks for."""

import asyncio

from tests.application import message, reply, running
from tests.case_player import assistant, playing, texts, user


async def test_branches_of_one_response_know_nothing_of_each_other(emptied_database_url: str) -> None:
    """B112"""
    async with playing("B112", emptied_database_url) as case:
        await case.play()
    assert [case.answer(step).status for step in (1, 2, 3, 4)] == [200, 200, 200, 200]
    root = [user("r"), assistant("m1", "root")]
    assert case.sent(2)["input"] == [*root, user("L")]
    assert case.sent(3)["input"] == [*root, user("R")]
    assert case.sent(4)["input"] == [*root, user("L"), assistant("m2", "left"), user("L2")]


async def test_turns_at_once_in_one_conversation_are_whole_and_in_one_order(emptied_database_url: str) -> None:
    """B111"""
    async with playing("B111", emptied_database_url) as case:
        await case.play()
        # The one that came second was told so, at no cost and without a trace.
        assert case.answer(2).status == 200
        assert (case.answer(3).status, case.answer(3).json["error"]["code"]) == (400, "conversation_locked")
        assert texts(case.answer(4).json["data"]) == ["Q1", "A1"]
        assert case.calls == 1
        await case.play(3)
        assert texts(case.sent(2)["input"]) == ["Q1", "A1", "Q2"]
        await case.play(4)
        assert texts(case.answer(4).json["data"]) == ["Q1", "A1", "Q2", "A2"]


async def test_eight_writers_lose_and_double_nothing(emptied_database_url: str) -> None:
    """B111, its hundred repeats by eight writers"""
    async with running(emptied_database_url, [reply(message("A"), stream=False)]) as server:
        conversation_id = await server.converse()

        async def write(writer: int) -> None:
            for number in range(13):
                body = {"model": "m", "input": f"Q{writer}.{number}", "conversation": conversation_id}
                async with asyncio.timeout(60):
                    while (answer := await server.post(body)).status_code != 200:
                        assert answer.json()["error"]["code"] == "conversation_locked"
                        await asyncio.sleep(0.002 * (writer + 1))

        await asyncio.gather(*(write(writer) for writer in range(8)))
        listed = texts(await server.conversed(conversation_id))
        assert listed[1::2] == ["A"] * 104
        asked = listed[::2]
        assert sorted(asked) == sorted(f"Q{writer}.{number}" for writer in range(8) for number in range(13))
        # Each writer's own are in the order in which it wrote them.
        for writer in range(8):
            own = [text for text in asked if text.startswith(f"Q{writer}.")]
            assert own == [f"Q{writer}.{number}" for number in range(13)]
        assert len(server.mock.posts) == 104
        assert [texts(post.json["input"]) for post in server.mock.posts] == [listed[: 2 * n + 1] for n in range(104)]


async def test_a_conversation_is_free_at_its_streams_end_and_after_a_failure(emptied_database_url: str) -> None:
    """B115, but for the two hundred repeats, which are in test_turns_in_conversations"""
    async with playing("B115", emptied_database_url) as case:
        await case.play()
    assert [case.answer(step).status for step in (2, 3, 4, 5)] == [200, 200, 502, 200]
    call = {"type": "function_call", "id": "f1", "call_id": "call_a", "name": "t", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_a", "output": "r"}
    assert case.sent(2)["input"] == [user("a"), call, output]
    assert case.sent(4)["input"] == [user("a"), call, output, assistant("m2", "b"), user("c")]
