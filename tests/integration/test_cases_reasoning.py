"""Reported failures about reasoning, each as the behaviour that it asks for."""

import json

from server.mock import Reply
from tests.case_player import answered, assistant, playing, reasoning, user
from tests.harness import case_replies, cases
from tests.postgres import connected

_STORED_OUTPUT = (
    "select items.body from items join responses on responses.id = items.response_id"
    " where responses.public_id = $1 and items.is_output order by items.position"
)


async def test_streamed_reasoning_is_stored_as_whole_as_that_of_a_json_reply(emptied_database_url: str) -> None:
    """B011"""
    two_parts = {
        "id": "r1",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "adds"}],
        "content": [
            {"type": "reasoning_text", "text": "first I count "},
            {"type": "reasoning_text", "text": "then I add"},
        ],
        "status": "completed",
    }
    async with playing("B011", emptied_database_url) as case:
        await case.play()
        streamed = case.answer(1).json
    assert case.answer(2).json == streamed
    assert streamed["output"] == [two_parts, answered("m1", "4")]
    # One part, so that an upstream which reads only the first reads all.
    assert case.sent(2)["input"] == [
        user("2+2"),
        reasoning("r1", "first I count \nthen I add"),
        assistant("m1", "4"),
        user("double"),
    ]

    [_, second] = case_replies(cases()["B011"])
    equal_body = Reply(json=second.json | {"id": "u1", "output": [two_parts, answered("m1", "4")]})
    async with playing("B011", emptied_database_url, replies=[equal_body, second]) as plain:
        await plain.play(1, stream=False)
        await plain.play(2, 3)
    assert plain.answer(2).json["output"] == streamed["output"]
    assert plain.sent(2)["input"] == case.sent(2)["input"]
    async with connected(emptied_database_url) as connection:
        bodies = [
            await connection.fetch(_STORED_OUTPUT, case_id) for case_id in (streamed["id"], plain.answer(1).json["id"])
        ]
    assert bodies[0] == bodies[1]
    assert len(bodies[0]) == 2


async def test_all_parts_of_reasoning_are_sent_and_its_summary_is_not(emptied_database_url: str) -> None:
    """B012"""
    async with playing("B012", emptied_database_url) as case:
        await case.play()
    assert case.sent(2)["input"] == [
        user("go"),
        reasoning("r1", "alpha\nbeta\ngamma"),
        assistant("m1", "x"),
        user("next"),
    ]
    assert b"SUMMARY-ONLY" not in case.sent_bytes
    assert case.answer(3).json["output"][0] == {
        "id": "r1",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "SUMMARY-ONLY"}],
        "content": [
            {"type": "reasoning_text", "text": "alpha"},
            {"type": "reasoning_text", "text": "beta"},
            {"type": "reasoning_text", "text": "gamma"},
        ],
        "status": "completed",
    }


async def test_reasoning_without_a_summary_is_sent_with_an_empty_one(emptied_database_url: str) -> None:
    """B014"""
    async with playing("B014", emptied_database_url) as case:
        await case.play()
        first = await case.server.http.get(f"/v1/responses/{case.answer(1).json['id']}")
    assert case.sent(2)["input"] == [user("one"), reasoning("r1", "hmm"), assistant("m1", "a"), user("two")]
    shown = {"type": "reasoning", "id": "r1", "content": [{"type": "reasoning_text", "text": "hmm"}], "summary": []}
    assert first.json()["output"][0] == shown
    async with connected(emptied_database_url) as connection:
        stored = await connection.fetchval("select body from items where public_id = 'r1'")
    assert stored == '{"type":"reasoning","id":"r1","content":[{"type":"reasoning_text","text":"hmm"}]}'


async def test_a_clients_reasoning_needs_neither_id_nor_summary(emptied_database_url: str) -> None:
    """B015"""
    async with playing("B015", emptied_database_url) as case:
        await case.play()
        listed = await case.server.listed(case.answer(1).json["id"])
    assert case.answer(1).status == 200
    because = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "because"}], "summary": []}
    assert case.sent(1)["input"] == [
        user("a"),
        because,
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "b", "annotations": []}],
        },
        user("c"),
    ]
    assert listed[1] == because | {"id": listed[1]["id"]}
    assert listed[1]["id"].startswith("rs_")


async def test_two_reasoning_items_in_a_row_stay_two(emptied_database_url: str) -> None:
    """B017"""
    async with playing("B017", emptied_database_url) as case:
        await case.play()
    thoughts = [
        {
            "id": item_id,
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": text}],
            "status": "completed",
        }
        for item_id, text in (("r1", "step one"), ("r2", "step two"))
    ]
    assert case.answer(2).json["output"] == [*thoughts, answered("m1", "z")]
    assert case.answer(2).json == case.answer(1).json
    assert case.sent(2)["input"] == [
        user("go"),
        reasoning("r1", "step one"),
        reasoning("r2", "step two"),
        assistant("m1", "z"),
        user("more"),
    ]


async def test_a_conversation_takes_reasoning_with_an_id_and_without(emptied_database_url: str) -> None:
    """B024"""
    async with playing("B024", emptied_database_url) as case:
        await case.play()
    added = case.answer(2)
    assert added.status == 200
    ids = [item["id"] for item in added.json["data"]]
    assert ids[1] == "rs_keep"
    assert [item_id.partition("_")[0] for item_id in ids] == ["msg", "rs", "rs", "msg"]
    assert len(set(ids)) == 4
    assert case.answer(3).json["data"] == added.json["data"]
    thought = {"type": "reasoning", "summary": []}
    said = {"type": "message", "role": "assistant"}
    assert case.sent(1)["input"] == [
        user("a"),
        thought | {"id": "rs_keep", "content": [{"type": "reasoning_text", "text": "t1"}]},
        thought | {"content": [{"type": "reasoning_text", "text": "t2"}]},
        said | {"content": [{"type": "output_text", "text": "b", "annotations": []}]},
        user("go"),
    ]


async def test_reasoning_goes_back_to_a_chat_upstream_in_the_field_it_came_in(emptied_database_url: str) -> None:
    """B018"""
    async with playing("B018", emptied_database_url, chat_profile="chat-vllm") as case:
        await case.play()
        async with connected(emptied_database_url) as connection:
            recorded = await connection.fetchval("select fidelity from items where type = 'reasoning'")
    assert [item["type"] for item in case.answer(1).json["output"]] == ["reasoning", "message"]
    assert case.sent(2)["messages"] == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi", "reasoning": "I should say hi"},
        {"role": "user", "content": "leave"},
    ]
    assert json.loads(recorded) == {"reasoning_field": "reasoning"}


async def test_reasoning_that_comes_under_both_names_counts_once(emptied_database_url: str) -> None:
    """B020"""
    async with playing("B020", emptied_database_url, chat_profile="chat-vllm") as case:
        await case.play()
    deltas = [event["delta"] for event in case.answer(1).of_type("response.reasoning_text.delta")]
    assert deltas == ["one ", "two"]
    for step in (1, 2):
        [thought, _] = case.answer(step).json["output"]
        assert thought["content"] == [{"type": "reasoning_text", "text": "one two"}]


async def test_every_earlier_turns_reasoning_is_sent_also_of_one_that_said_nothing(emptied_database_url: str) -> None:
    """B021"""
    async with playing("B021", emptied_database_url, chat_profile="chat-vllm") as case:
        await case.play()
    assert case.sent(3)["messages"] == [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "", "reasoning_content": "only thoughts"},
        {"role": "user", "content": "2"},
        {"role": "assistant", "content": "b", "reasoning_content": "more"},
        {"role": "user", "content": "3"},
    ]


async def test_an_answer_that_came_as_reasoning_is_not_moved(emptied_database_url: str) -> None:
    """B023"""
    async with playing("B023", emptied_database_url, chat_profile="chat-vllm") as case:
        await case.play()
    [thought] = case.answer(1).json["output"]
    assert (thought["type"], thought["content"][0]["text"]) == ("reasoning", "the answer is 7")
    assert case.answer(1).json["status"] == "completed"
    assert case.answer(2).status == 200
    assert case.sent(2)["messages"][1] == {"role": "assistant", "content": "", "reasoning": "the answer is 7"}
