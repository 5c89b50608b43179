"""Reported failures of drop-in compatibility, each as the behaviour that it asks for."""

import pytest

from tests.case_player import answered, assistant, playing, reasoning, user


async def test_a_phase_is_kept_shown_and_sent_again_and_never_invented(emptied_database_url: str) -> None:
    """B119"""
    async with playing("B119", emptied_database_url) as case:
        await case.play()
    call = {"id": "f1", "type": "function_call", "call_id": "call_a", "name": "lookup", "arguments": "{}"}
    assert case.answer(2).json["output"] == [
        answered("m1", "looking...") | {"phase": "commentary"},
        call | {"status": "completed"},
        answered("m2", "here") | {"phase": "final_answer"},
        answered("m3", "odd") | {"phase": "other_phase"},
    ]
    assert case.sent(2)["input"] == [
        user("q"),
        assistant("m1", "looking...") | {"phase": "commentary"},
        call,
        assistant("m2", "here") | {"phase": "final_answer"},
        assistant("m3", "odd") | {"phase": "other_phase"},
        {"type": "function_call_output", "call_id": "call_a", "output": "1"},
        user("go"),
    ]


async def test_instructions_are_of_their_own_request_and_a_developers_message_stays(emptied_database_url: str) -> None:
    """B120"""
    async with playing("B120", emptied_database_url) as case:
        await case.play()
    assert case.sent(1)["instructions"] == "DROP-ME"
    assert b"DROP-ME" not in case.mock.posts[1].body
    assert case.mock.posts[1].body.count(b"KEEP-ME") == 1
    assert case.sent(2)["input"] == [
        {"type": "message", "role": "developer", "content": "KEEP-ME"},
        user("q1"),
        assistant("m1", "a1"),
        user("q2"),
    ]
    assert case.answer(3).json["instructions"] is None


async def test_a_conversation_and_a_previous_response_cannot_be_continued_at_once(emptied_database_url: str) -> None:
    """B122, of which the conversation need not exist to be refused"""
    async with playing("B122", emptied_database_url) as case:
        case.know(1, {"id": "conv_1"})
        await case.play(2, 3)
    assert case.answer(3).status == 400
    assert case.answer(3).json["error"] == {
        "message": "Mutually exclusive parameters: 'previous_response_id' and 'conversation' can't be used together.",
        "type": "invalid_request_error",
        "param": None,
        "code": "mutually_exclusive_parameters",
    }
    assert case.calls == 1


async def test_the_previous_response_is_echoed_everywhere_and_never_sent(emptied_database_url: str) -> None:
    """B123"""
    async with playing("B123", emptied_database_url) as case:
        await case.play()
    first, second = case.answer(1).json["id"], case.answer(2).json["id"]
    assert case.answer(1).json["previous_response_id"] is None
    assert case.answer(2).json["previous_response_id"] == first
    responses = [event["response"] for event in case.answer(3).events if "response" in event]
    assert [response["previous_response_id"] for response in responses] == [second] * 3
    assert case.answer(4).json["previous_response_id"] == second
    assert [("previous_response_id" in case.sent(call)) for call in (1, 2, 3)] == [False, False, False]


async def test_explicit_nulls_in_items_are_accepted_and_not_sent(emptied_database_url: str) -> None:
    """B125"""
    async with playing("B125", emptied_database_url) as case:
        await case.play()
        listed = await case.server.listed(case.answer(1).json["id"])
    assert case.answer(1).status == 200
    # Of the empty reasoning there is nothing to send.
    assert case.sent(1)["input"] == [
        user("a"),
        assistant("m1", "b"),
        {"type": "function_call", "id": "f1", "call_id": "call_a", "name": "t", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_a", "output": "r"},
        user("c"),
    ]
    assert [item["type"] for item in listed] == [
        "message",
        "reasoning",
        "message",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert [item["id"] for item in listed[1:4]] == ["r1", "m1", "f1"]
    assert listed[4] == {
        "type": "function_call_output",
        "call_id": "call_a",
        "output": "r",
        "id": listed[4]["id"],
        "status": "completed",
    }
    assert listed[4]["id"].startswith("fco_")


async def test_a_null_id_is_none_and_an_error_is_short_and_names_one_member(emptied_database_url: str) -> None:
    """B126"""
    async with playing("B126", emptied_database_url) as case:
        await case.play(1, 2)
        listed = await case.server.listed(case.answer(1).json["id"])
    assert case.answer(1).status == 200
    said = {"type": "message", "role": "assistant", "content": assistant("", "yo")["content"]}
    assert case.sent(1)["input"] == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        said,
        user("again"),
    ]
    assert listed[1] == said | {"id": listed[1]["id"], "status": "completed"}
    assert listed[1]["id"].startswith("msg_")
    refused = case.answer(2)
    assert refused.status == 400
    assert len(refused.body) < 1000
    assert refused.json["error"] == {
        "message": "Missing required parameter: 'input[0].content[0].text'.",
        "type": "invalid_request_error",
        "param": "input[0].content[0].text",
        "code": "missing_required_parameter",
    }
    assert case.calls == 1


async def test_the_model_of_each_request_is_used_and_echoed(emptied_database_url: str) -> None:
    """B128"""
    async with playing("B128", emptied_database_url) as case:
        await case.play()
    assert [case.sent(call)["model"] for call in (1, 2)] == ["thinker", "plain"]
    assert case.answer(2).status == 200
    assert [case.answer(step).json["model"] for step in (1, 2)] == ["thinker", "plain"]
    assert case.sent(2)["input"] == [user("q"), reasoning("r1", "deep"), assistant("m1", "a"), user("q2")]


async def test_a_call_left_open_is_refused_in_both_modes(emptied_database_url: str) -> None:
    """B131"""
    async with playing("B131", emptied_database_url) as case:
        await case.play()
    for step in (2, 3):
        refused = case.answer(step)
        assert (refused.status, refused.content_type) == (400, "application/json")
        assert refused.json["error"] == {
            "message": "No tool output found for function call call_b.",
            "type": "invalid_request_error",
            "param": "input",
            "code": None,
        }
    assert case.calls == 1


async def test_every_input_item_keeps_its_type_and_members(emptied_database_url: str) -> None:
    """B132"""
    async with playing("B132", emptied_database_url) as case:
        await case.play()
        listed = await case.server.listed(case.answer(1).json["id"])
    line = {"type": "input_text", "text": "line"}
    # vLLM refuses an image in an output that does not say its detail.
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
    call = {"type": "function_call", "id": "f1", "call_id": "call_a", "name": "t", "arguments": '{"q": "x"}'}
    output = {"type": "function_call_output", "call_id": "call_a", "output": [line, image]}
    assert case.sent(1)["input"] == [
        {"type": "message", "role": "developer", "content": "d"},
        user("u"),
        call,
        output,
        user("v"),
    ]
    ids = [item.pop("id") for item in listed]
    assert len(set(ids)) == 5
    assert listed == [
        {"type": "message", "role": role, "status": "completed", "content": [{"type": "input_text", "text": text}]}
        if role
        else item | {"status": "completed"}
        for role, text, item in (
            ("developer", "d", {}),
            ("user", "u", {}),
            ("", "", {name: value for name, value in call.items() if name != "id"}),
            ("", "", output),
            ("user", "v", {}),
        )
    ]


async def test_a_member_given_twice_is_refused(emptied_database_url: str) -> None:
    """B135"""
    async with playing("B135", emptied_database_url) as case:
        await case.play()
    assert case.answer(1).status == 400
    assert case.answer(1).json["error"] == {
        "message": "Duplicate parameter: 'input'.",
        "type": "invalid_request_error",
        "param": "input",
        "code": "invalid_value",
    }
    assert case.calls == 0


async def test_a_reference_is_sent_as_the_item_that_it_names(emptied_database_url: str) -> None:
    """B134"""
    async with playing("B134", emptied_database_url) as case:
        await case.play()
    assert case.sent(2)["input"] == [user("x"), assistant("m1", "a"), user("y")]
    assert (case.answer(2).status, case.answer(3).status) == (200, 404)
    assert "'msg_nope'" in case.answer(3).json["error"]["message"]
    assert case.calls == 2
    assert b"item_reference" not in case.sent_bytes


async def test_an_open_call_can_be_deleted_from_its_conversation(emptied_database_url: str) -> None:
    """B138"""
    async with playing("B138", emptied_database_url) as case:
        await case.play()
        response = case.answer(2).json
        stored = await case.server.http.get(f"/v1/responses/{response['id']}")
    assert case.answer(4).json == case.answer(1).json
    before, after = case.answer(3).json["data"], case.answer(5).json["data"]
    assert [item["type"] for item in before] == ["message", "message", "function_call"]
    assert after == before[:2]
    assert case.answer(6).status == 200
    assert case.sent(2)["input"] == [user("a"), assistant("m0", "let me look"), user("forget it")]
    assert stored.json() == response
    assert [item["type"] for item in response["output"]] == ["message", "function_call"]


async def test_parallel_calls_are_one_message_for_a_chat_upstream(emptied_database_url: str) -> None:
    """B116"""
    async with playing("B116", emptied_database_url, chat_profile="chat-vllm") as case:
        await case.play()
    assert case.sent(1)["messages"] == [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": None,
            "reasoning": "need both",
            "reasoning_content": "need both",
            "tool_calls": [chat_call("call_a", "a"), chat_call("call_b", "b")],
        },
        {"role": "tool", "tool_call_id": "call_a", "content": "1"},
        {"role": "tool", "tool_call_id": "call_b", "content": "2"},
    ]


async def test_text_and_call_of_one_turn_are_one_message_for_a_chat_upstream(emptied_database_url: str) -> None:
    """B117"""
    async with playing("B117", emptied_database_url, chat_profile="chat-vllm") as case:
        await case.play()
    assert case.sent(2)["messages"] == [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "I will check",
            "reasoning": "check",
            "tool_calls": [chat_call("call_a", "lookup")],
        },
        {"role": "tool", "tool_call_id": "call_a", "content": "r"},
    ]


@pytest.mark.parametrize(
    ("profile", "fields"),
    [("strict-chat", set()), ("openrouter", set()), ("chat-vllm", {"reasoning", "reasoning_content"})],
)
async def test_a_chat_upstream_gets_others_reasoning_only_where_its_profile_says_so(
    emptied_database_url: str, profile: str, fields: set[str]
) -> None:
    """B129"""
    async with playing("B129", emptied_database_url, chat_profile=profile) as case:
        await case.play()
    asked, said, followed = case.sent(1)["messages"]
    assert (asked, followed) == ({"role": "user", "content": "a"}, {"role": "user", "content": "c"})
    assert said == {"role": "assistant", "content": "x", **dict.fromkeys(fields, "from elsewhere")}


async def test_items_of_a_chat_upstream_have_ids_and_statuses(emptied_database_url: str) -> None:
    """B137"""
    async with playing("B137", emptied_database_url, chat_profile="strict-chat") as case:
        await case.play()
    output = case.answer(1).json["output"]
    ids = [item["id"] for item in output]
    assert [item["type"] for item in output] == ["message", "function_call"]
    assert all(ids)
    assert len({*ids, "call_a"}) == 3
    assert [item["status"] for item in output] == ["completed", "completed"]
    assert case.answer(2).json["output"] == output


def chat_call(call_id: str, name: str) -> dict[str, object]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}
