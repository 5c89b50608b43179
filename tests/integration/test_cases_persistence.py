"""Reported failures about what is stored, each as the behaviour that it asks for."""

from tests.case_player import answered, assistant, playing, reasoning, user
from tests.postgres import connected


async def everything_in(emptied_database_url: str) -> str:
    """Every row of every table, as text."""
    async with connected(emptied_database_url) as connection:
        tables = await connection.fetch("select quote_ident(tablename) from pg_tables where schemaname = 'public'")
        assert len(tables) > 3
        rows = [await connection.fetch(f"select t::text from {table[0]} t") for table in tables]
    return "\n".join(row[0] for table in rows for row in table)


async def test_a_response_outlives_its_server_and_is_known_to_every_other(emptied_database_url: str) -> None:
    """B072"""
    async with playing("B072", emptied_database_url) as case:
        await case.play()
    assert case.answer(3).status == 200
    assert case.answer(3).body == case.answer(1).body
    assert case.answer(4).status == 200
    assert case.sent(2)["input"] == [user("a"), assistant("m1", "ok"), user("b")]


async def test_a_success_is_committed_and_stored_by_default(emptied_database_url: str) -> None:
    """B073"""
    async with playing("B073", emptied_database_url) as case:
        await case.play(1)
        async with connected(emptied_database_url) as connection:
            responses = await connection.fetch("select public_id, status from responses")
            items = await connection.fetch("select type, is_output from items order by position")
        await case.play(2)
    assert [tuple(row) for row in responses] == [(case.answer(1).json["id"], "completed")]
    assert [tuple(row) for row in items] == [("message", False), ("message", True)]
    assert (case.answer(2).status, case.answer(2).json["store"]) == (200, True)


async def test_a_background_turn_is_refused_as_what_is_not_built(emptied_database_url: str) -> None:
    """B078, which accepts a refusal; its second step has nothing to ask for then"""
    async with playing("B078", emptied_database_url) as case:
        await case.play(1)
    refused = case.answer(1)
    assert (refused.status, refused.content_type) == (400, "application/json")
    assert (refused.json["error"]["type"], refused.json["error"]["param"]) == ("invalid_request_error", "background")
    assert case.calls == 0


async def test_what_is_not_to_be_stored_leaves_no_trace(emptied_database_url: str) -> None:
    """B079"""
    async with playing("B079", emptied_database_url) as case:
        await case.play(1, 2, 3)
        assert case.calls == 1
        await case.play(4)
    response_id = case.answer(1).json["id"]
    assert (case.answer(2).status, case.answer(2).json["error"]["type"]) == (404, "invalid_request_error")
    assert case.answer(3).status == 400
    assert case.answer(3).json["error"] == {
        "message": f"Previous response with id '{response_id}' not found.",
        "type": "invalid_request_error",
        "param": "previous_response_id",
        "code": "previous_response_not_found",
    }
    for step in (1, 4):
        turn = case.answer(step).json
        assert (case.answer(step).status, turn["status"], turn["store"]) == (200, "completed", False)
    stored = await everything_in(emptied_database_url)
    assert "secret-marker" not in stored
    assert response_id not in stored


async def test_ids_that_an_upstream_uses_again_do_not_meet(emptied_database_url: str) -> None:
    """B081"""
    async with playing("B081", emptied_database_url) as case:
        await case.play()
    first, second = case.answer(4).json, case.answer(5).json
    assert first["id"] != second["id"]
    assert [item["content"][0]["text"] for item in first["output"]] == ["t1", "a1"]
    assert [item["content"][0]["text"] for item in second["output"]] == ["t2", "a2"]
    assert [item["id"] for item in first["output"]] == ["rs_0", "msg_1"]
    thought_id, message_id = (item["id"] for item in second["output"])
    assert len({"rs_0", "msg_1", thought_id, message_id}) == 4
    assert case.sent(3)["input"] == [
        user("q1"),
        reasoning("rs_0", "t1"),
        assistant("msg_1", "a1"),
        user("q2"),
        reasoning(thought_id, "t2"),
        assistant(message_id, "a2"),
        user("q3"),
    ]


async def test_a_deleted_response_is_gone_but_not_from_the_history_of_others(emptied_database_url: str) -> None:
    """B082"""
    async with playing("B082", emptied_database_url) as case:
        await case.play(1, 2, 3, 4, 5, 6, 7)
        assert case.calls == 4
        await case.play(8, 9)
        assert case.calls == 4
    deleted = case.answer(2).json["id"]
    assert case.answer(4).status == 200
    assert case.answer(4).json == {"id": deleted, "object": "response", "deleted": True}
    assert [case.answer(step).status for step in (5, 6, 7, 8, 9)] == [404, 200, 200, 400, 404]
    assert case.sent(4)["input"] == [
        user("q1"),
        assistant("m1", "a1"),
        user("q2"),
        assistant("m2", "a2"),
        user("q3"),
        assistant("m3", "a3"),
        user("q4"),
    ]
    assert case.answer(8).json["error"]["code"] == "previous_response_not_found"
    assert case.answer(5).json["error"] == case.answer(9).json["error"]
    assert case.answer(5).json["error"]["message"] == f"Response with id '{deleted}' not found."


async def test_keys_stay_in_the_order_they_came_in(emptied_database_url: str) -> None:
    """B084"""
    async with playing("B084", emptied_database_url) as case:
        await case.play()
    action = b'"action":{"zeta":1,"query":"x","a":{"yy":1,"b":2}}'
    properties = b'"properties": {"zebra": {"type": "string"}, "id": {"type": "integer"}}'
    assert case.answer(2).body.count(action) == 1
    assert case.answer(2).body.count(properties) == 1
    assert case.answer(2).body == case.answer(1).body
    assert case.mock.posts[0].body.count(properties) == 1
    # vLLM takes no item of a hosted tool, nor are the first turn's tools the second's.
    assert case.sent(2)["input"] == [user("a"), assistant("m1", "ok"), user("b")]
    assert "tools" not in case.sent(2)


async def test_numbers_come_back_as_they_were_written(emptied_database_url: str) -> None:
    """B085"""
    async with playing("B085", emptied_database_url) as case:
        await case.play()
    arguments = rb'"arguments":"{\"id\": 9007199254740993, \"p\": 1.0, \"e\": 1e21}"'
    numbers = b'{"type":"x_metrics","id":"x1","ratio":1.0,"big":12345678901234567890123,"tiny":1e-9,"neg":-0.0}'
    for step in (1, 2):
        assert case.answer(step).body.count(arguments) == 1
        assert case.answer(step).body.count(numbers) == 1
    assert case.mock.posts[1].body.count(arguments) == 1
    assert repr(case.answer(2).json["created_at"]) == "1700000000"


async def test_a_reply_of_older_vllm_is_stored(emptied_database_url: str) -> None:
    """B087"""
    async with playing("B087", emptied_database_url) as case:
        await case.play()
    assert (case.answer(1).status, case.answer(2).status) == (200, 200)
    assert case.answer(2).json["output"] == [answered("m1", "x")]
    assert repr(case.answer(2).json["created_at"]) == "1756274867"
    assert case.answer(2).body == case.answer(1).body


async def test_a_turn_that_cannot_be_appended_is_not_stored_either(emptied_database_url: str) -> None:
    """B075"""
    async with playing("B075", emptied_database_url) as case:
        await case.play(1)
        async with connected(emptied_database_url) as connection:
            await connection.execute(
                "create function no_space() returns trigger language plpgsql as "
                "$$ begin raise exception using errcode = 'disk_full'; end $$;"
                "create trigger no_space before insert on items for each row execute function no_space()"
            )
            await case.play(3)
            await connection.execute("drop function no_space cascade")
        await case.play(4, 5)
    assert (case.answer(3).status, case.answer(3).json["error"]["type"]) == (503, "server_error")
    assert case.answer(4).json["data"] == []
    assert case.answer(5).status == 200
    assert case.sent(2)["input"] == [user("again")]


async def test_a_conversation_gets_the_items_of_each_turn_once(emptied_database_url: str) -> None:
    """B076"""
    async with playing("B076", emptied_database_url) as case:
        await case.play()
    conversation_id = case.answer(1).json["id"]
    listed = case.answer(4).json["data"]
    assert [item["content"][0]["text"] for item in listed] == ["zero", "one", "caf\u00e9 \u732b ok", "two?", "two"]
    assert [listed[2], listed[4]] == [*case.answer(2).json["output"], *case.answer(3).json["output"]]
    responses = [event["response"] for event in case.answer(2).events if "response" in event]
    for response in (*responses, case.answer(3).json):
        assert response["conversation"] == {"id": conversation_id}


async def test_a_chat_upstreams_id_is_no_key(emptied_database_url: str) -> None:
    """B088"""
    async with playing("B088", emptied_database_url, chat_profile="strict-chat") as case:
        await case.play()
    assert case.sent(2)["messages"] == [
        {"role": "user", "content": "q1"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "q2"},
    ]
    assert b"chatcmpl" not in case.answer(1).body + case.answer(2).body
