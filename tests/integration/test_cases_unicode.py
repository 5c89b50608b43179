"""Reported failures about characters, each as the behaviour that it asks for."""

from tests.case_player import answered, assistant, playing, user


async def test_nul_is_stored_shown_and_sent_again(emptied_database_url: str) -> None:
    """B100"""
    async with playing("B100", emptied_database_url) as case:
        await case.play()
    assert case.answer(1).status == 200
    said = "got W\0s\0l"
    assert len(said) == 9
    assert case.answer(2).json["output"] == [answered("m1", said)]
    assert case.answer(3).json["data"][2]["output"] == "W\0s\0l\0"
    call = {"type": "function_call", "id": "f1", "call_id": "call_a", "name": "sh", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_a", "output": "W\0s\0l\0"}
    assert case.sent(2)["input"] == [user("run"), call, output, assistant("m1", said), user("b")]


async def test_a_text_about_nul_is_not_taken_for_one(emptied_database_url: str) -> None:
    """B101"""
    async with playing("B101", emptied_database_url) as case:
        await case.play()
    asked = "literal \\u0000 then real \0 then \\\0 end"
    assert case.sent(1)["input"] == [user(asked)]
    assert case.answer(2).json["output"] == [answered("m1", "regex \\u0000 and \\\\u0000")]
    assert [item["content"] for item in case.answer(3).json["data"]] == [[{"type": "input_text", "text": asked}]]


async def test_halves_of_a_character_are_joined_across_deltas(emptied_database_url: str) -> None:
    """B103"""
    async with playing("B103", emptied_database_url) as case:
        await case.play()
    smile = "\U0001f642"
    streamed = case.answer(1)
    # Encoded one by one, since half a character cannot be.
    deltas = [event["delta"].encode() for event in streamed.of_type("response.output_text.delta")]
    assert b"".join(deltas) == b"\xf0\x9f\x99\x82"
    assert case.answer(2).json["output"] == [answered("m1", smile)]
    assert case.answer(2).json == streamed.json
