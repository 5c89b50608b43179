"""Items that a request names instead of sending them: what is meant, what goes up, and what is stored or unknown."""

import json
from typing import Any

import httpx
import pytest

from tests.application import (
    Application,
    both_modes,
    function_call,
    message,
    reasoning,
    reply,
    running,
    stored_rows,
)
from tests.postgres import connected, recorded_statements

OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
forms = pytest.mark.parametrize("form", [{"type": "item_reference"}, {"type": None}, {}], ids=["typed", "null", "bare"])


def user(text: str, **members: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text, **members}


def meant(item_id: str, form: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"id": item_id, **({"type": "item_reference"} if form is None else form)}


def error_of(answer: httpx.Response) -> tuple[int, Any, Any, str]:
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["code"], error["message"]


def not_found(item_id: str, param: str = "input") -> tuple[int, Any, Any, str]:
    """contract api.md 4.2, in its words."""
    return (
        404,
        param,
        None,
        f"Item with id '{item_id}' not found. Items are not persisted when `store` is set to false. Try again with "
        f"`store` set to true, or remove this item from your {param}.",
    )


def input_of(application: Application, number: int = -1) -> bytes:
    """The input that the upstream received, as bytes."""
    body = application.mock.posts[number].body
    return body[body.index(b'"input":[') : body.rindex(b"]") + 1]


# --- what is meant


@forms
@both_modes
async def test_an_item_is_sent_whole_where_it_is_named(
    application: Application, stream: bool, form: dict[str, Any]
) -> None:
    application.mock.replies = [
        reply(reasoning("I must look."), function_call("f", '{"a":1}'), stream=stream),
        reply(message("b"), stream=stream),
    ]
    first = await application.turn(input=[user("Weather?", id="msg_q")], stream=stream)
    conversation_id = await application.converse(user("kept", id="msg_kept"))
    given = [
        meant("msg_kept", form),
        user("x"),
        meant("msg_q", form),
        meant("rs_up", form),
        meant("fc_up", form),
        OUTPUT,
    ]
    second = await application.turn(input=[*given, user("y")], stream=stream)
    expected = [
        user("kept", id="msg_kept"),
        user("x"),
        user("Weather?", id="msg_q"),
        {"type": "reasoning", "id": "rs_up", "summary": []}
        | {"content": [{"type": "reasoning_text", "text": "I must look."}]},
        {"type": "function_call", "id": "fc_up", "call_id": "call_1", "name": "f", "arguments": '{"a":1}'},
        OUTPUT,
        user("y"),
    ]
    assert application.sent()["input"] == expected
    # What is named was made elsewhere: it is input here, in its place, and no output.
    assert [item["type"] for item in second["output"]] == ["message"]
    assert (await application.http.get(f"/v1/responses/{second['id']}")).json() == second
    listed = await application.listed(second["id"])
    assert [item["id"] for item in listed[2:5]] == ["msg_q", "rs_up", "fc_up"]
    assert listed[3:5] == first["output"]
    await application.turn(input="z", previous_response_id=second["id"], stream=stream)
    assert application.sent()["input"][:7] == expected
    assert await application.conversed(conversation_id) == [listed[0]]


@both_modes
async def test_the_ai_sdk_names_what_it_was_told_and_sends_the_rest(application: Application, stream: bool) -> None:
    """contract clients.md 15: without a previous response, its reasoning named and its call without an id."""
    application.mock.replies = [
        reply(reasoning("I must look."), function_call("f"), stream=stream),
        reply(message("Sunny."), stream=stream),
    ]
    first = await application.turn(input="Weather?", stream=stream)
    call = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
    given = [{"role": "user", "content": "Weather?"}, meant(first["output"][0]["id"]), call, OUTPUT]
    second = await application.turn(input=given, stream=stream)
    assert [item["type"] for item in application.sent()["input"]] == [
        "message", "reasoning", "function_call", "function_call_output",
    ]  # fmt: skip
    await application.turn(input=[*given, meant(second["output"][0]["id"]), user("And now?")], stream=stream)
    assert application.sent()["input"][4]["content"][0]["text"] == "Sunny."


@both_modes
async def test_what_is_named_goes_up_in_the_bytes_of_a_chain(application: Application, stream: bool) -> None:
    """Also what an upstream cannot read as it came: joined reasoning, a blank message beside a call, cut arguments."""
    application.mock.replies = [
        reply(
            reasoning("a", "b", encrypted_content="sealed"), message("\n\n"), function_call("f", '{"x"'), stream=stream
        ),
        reply(message("c", phase="final_answer"), stream=stream),
    ]
    first = await application.turn(input=[user("One", id="msg_one")], stream=stream)
    second = await application.turn(input=[{**OUTPUT, "id": "fco_1"}], previous_response_id=first["id"], stream=stream)
    await application.turn(
        input=[{"role": "user", "content": "Three"}], previous_response_id=second["id"], stream=stream
    )
    chained = input_of(application)
    made = [item["id"] for item in first["output"]]
    names = ["msg_one", *made, "fco_1", *(item["id"] for item in second["output"])]
    await application.turn(input=[*map(meant, names), {"role": "user", "content": "Three"}], stream=stream)
    assert input_of(application) == chained
    assert len(names) == 6
    assert application.sent()["input"][1]["content"] == [{"type": "reasoning_text", "text": "a\nb"}]


async def test_the_newest_of_several_is_meant(application: Application) -> None:
    await application.turn(input=[user("old", id="msg_x")])
    await application.turn(input=[user("new", id="msg_x")])
    await application.turn(input=[meant("msg_x")])
    assert application.sent()["input"] == [user("new", id="msg_x")]
    conversation_id = await application.converse(user("newest", id="msg_x"))
    await application.turn(input=[meant("msg_x")])
    assert application.sent()["input"] == [user("newest", id="msg_x")]
    # What is named is stored again, so it is the newest now; what it says does not change.
    await application.http.delete(f"/v1/conversations/{conversation_id}")
    await application.turn(input=[meant("msg_x")])
    assert application.sent()["input"] == [user("newest", id="msg_x")]


async def test_an_item_is_known_by_the_id_that_clients_see(application: Application) -> None:
    """An upstream used its id again, so that the second item got one of ours; and one that had none got one too."""
    application.mock.replies = [reply(message("a"), stream=False), reply(message("b"), stream=False)]
    first = await application.turn(input="q")
    second = await application.turn(input="r", previous_response_id=first["id"])
    fresh = second["output"][0]["id"]
    assert fresh != first["output"][0]["id"]
    minted = (await application.listed(first["id"]))[0]["id"]
    await application.turn(input=[meant(minted), meant(fresh)])
    [asked, answered] = application.sent()["input"]
    # An id that was only made to show the item by never goes up.
    assert asked == user("q")
    assert (answered["id"], answered["content"][0]["text"]) == (fresh, "b")


# --- conversations


@both_modes
async def test_what_is_named_is_appended_to_a_conversation_once(application: Application, stream: bool) -> None:
    application.mock.replies = [reply(message("a"), stream=stream), reply(message("b", id="msg_b"), stream=stream)]
    first = await application.turn(input=[user("q", id="msg_q")], stream=stream)
    conversation_id = await application.converse()
    given = [meant("msg_q"), meant(first["output"][0]["id"]), user("r", id="msg_r")]
    await application.turn(input=given, conversation=conversation_id, stream=stream)
    listed = await application.conversed(conversation_id)
    assert [item["id"] for item in listed] == ["msg_q", "msg_up", "msg_r", "msg_b"]
    assert listed[1] == first["output"][0]
    again = await application.post({"model": "m", "input": [meant("msg_q")], "conversation": conversation_id})
    assert error_of(again)[:3] == (400, "input", "invalid_value")


async def test_a_conversation_may_be_made_and_extended_by_reference(application: Application) -> None:
    application.mock.replies = [reply(message("a"), stream=False)]
    first = await application.turn(input=[user("q", id="msg_q")])
    conversation_id = await application.converse(meant("msg_q"))
    path = f"/v1/conversations/{conversation_id}/items"
    added = await application.http.post(path, json={"items": [user("x", id="msg_x"), {"id": "msg_up"}]})
    assert [item["id"] for item in added.json()["data"]] == ["msg_x", "msg_up"]
    assert added.json()["data"][1] == first["output"][0]
    assert (await application.http.post(path, json={"items": [meant("msg_q")]})).status_code == 400
    # It is an item of its own there: neither the response's end nor that of this list is the other's.
    await application.http.delete(f"/v1/responses/{first['id']}")
    await application.turn(input=[], conversation=conversation_id)
    assert [item.get("id") for item in application.sent()["input"]] == ["msg_q", "msg_x", "msg_up"]
    for url in (path, "/v1/conversations"):
        refused = await application.http.post(url, json={"items": [{"id": "msg_none"}]})
        assert error_of(refused) == not_found("msg_none", "items")


# --- what is stored


async def test_what_was_named_outlives_what_it_was_made_in(application: Application, emptied_database_url: str) -> None:
    application.mock.replies = [
        reply(reasoning("t"), message("a"), stream=False),
        reply(message("b", id="b"), stream=False),
    ]
    first = await application.turn(input=[user("q", id="msg_q")])
    second = await application.turn(input=[meant("rs_up"), meant("msg_up"), user("r")])
    sent = application.sent()["input"]
    async with connected(emptied_database_url) as connection:
        rows = await connection.fetch(
            "select public_id, body, is_output, issuer, count(*) over (partition by body, issuer) as copies"
            " from items where public_id in ('rs_up', 'msg_up') order by id"
        )
        # The same text and the same issuer, in rows of its own that no other response has.
        assert [row["copies"] for row in rows] == [2, 2, 2, 2]
        assert [row["is_output"] for row in rows] == [True, True, False, False]
        assert {row["issuer"] for row in rows} == {"default"}
        await application.http.delete(f"/v1/responses/{first['id']}")
        await connection.execute("delete from responses where public_id = $1", first["id"])
    await application.turn(input="s", previous_response_id=second["id"])
    assert application.sent()["input"][:3] == sent


async def test_a_text_is_kept_character_for_character(application: Application) -> None:
    odd = rb'{ "id":"msg_odd" ,"role":"user","content":"\u0000\ud83d","huge":1e400,"n":null,"one":1.0}'
    first = await application.http.post("/v1/responses", content=b'{"model":"m","input":[' + odd + b"]}")
    assert first.status_code == 200
    second = await application.turn(input=[meant("msg_odd"), user("x")])
    listed = (await application.http.get(f"/v1/responses/{second['id']}/input_items")).content
    assert rb'"huge":1e400,"n":null,"one":1.0' in listed
    assert rb'"text":"\u0000\ud83d"' in listed


# --- what is unknown


@both_modes
async def test_an_unknown_item_is_named_before_anything_is_sent(
    application: Application, emptied_database_url: str, stream: bool
) -> None:
    await application.turn(input=[user("q", id="msg_q")], stream=stream)
    before = await stored_rows(emptied_database_url)
    given = [user("x"), meant("msg_q"), meant("msg_none"), meant("msg_neither")]
    answer = await application.post({"model": "m", "input": given, "stream": stream})
    assert error_of(answer) == not_found("msg_none")
    assert answer.headers["content-type"] == "application/json"
    assert await stored_rows(emptied_database_url) == before
    assert len(application.mock.posts) == 1


async def test_what_was_not_stored_cannot_be_named(application: Application) -> None:
    application.mock.replies = [reply(message("a"), stream=False)]
    first = await application.turn(input=[user("q", id="msg_q")], store=False)
    for item_id in ("msg_q", first["output"][0]["id"]):
        answer = await application.post({"model": "m", "input": [meant(item_id)]})
        assert error_of(answer) == not_found(item_id)
    # What is named need not be stored again.
    await application.turn(input=[user("r", id="msg_r")])
    await application.turn(input=[meant("msg_r")], store=False)
    assert application.sent()["input"] == [user("r", id="msg_r")]


async def test_what_was_deleted_can_be_named_only_where_it_is_still_to_be_had(application: Application) -> None:
    application.mock.replies = [reply(message("a"), stream=False)]
    conversation_id = await application.converse(user("kept", id="msg_kept"))
    first = await application.turn(input=[user("q", id="msg_q")], conversation=conversation_id)
    items = f"/v1/conversations/{conversation_id}/items"

    async def can_be_named(item_id: str) -> bool:
        answer = await application.post({"model": "m", "input": [meant(item_id)], "store": False})
        assert answer.status_code == 200 or error_of(answer) == not_found(item_id)
        return answer.status_code == 200

    assert [await can_be_named(one) for one in ("msg_kept", "msg_q", "msg_up")] == [True, True, True]
    await application.http.delete(f"{items}/msg_kept")
    await application.http.delete(f"{items}/msg_q")
    # The response saw the one, and is made of the others.
    assert [await can_be_named(one) for one in ("msg_kept", "msg_q", "msg_up")] == [True, True, True]
    await application.http.delete(f"/v1/responses/{first['id']}")
    assert [await can_be_named(one) for one in ("msg_kept", "msg_q", "msg_up")] == [False, False, True]
    await application.http.delete(f"/v1/conversations/{conversation_id}")
    assert [await can_be_named(one) for one in ("msg_kept", "msg_q", "msg_up")] == [False, False, False]


@pytest.mark.parametrize(
    ("given", "status", "param"),
    [
        ([meant("")], 400, "input[0].id"),
        ([{"type": "item_reference"}], 400, "input[0].id"),
        ([{"type": "item_reference", "id": None}], 400, "input[0].id"),
        ([{"type": "item_reference", "id": 5}], 400, "input[0].id"),
        ([meant("a\x00")], 400, "input[0].id"),
        ([meant("\ud83d")], 400, "input[0].id"),
        ([meant("x" * 257)], 400, "input[0].id"),
        ([meant("x" * 256)], 404, "input"),
        ([meant("' or true --")], 404, "input"),
        ([meant("resp_1")], 404, "input"),
        ([meant("a"), meant("a")], 400, "input"),
        ([meant("a"), {"id": "a"}], 400, "input"),
        ([user("x", id="a"), meant("a")], 400, "input"),
    ],
)
async def test_a_reference_that_means_nothing(
    application: Application, given: list[dict[str, Any]], status: int, param: str
) -> None:
    assert error_of(await application.post({"model": "m", "input": given}))[:2] == (status, param)
    assert application.mock.posts == []


async def test_a_conversation_is_not_locked_for_what_is_unknown(application: Application) -> None:
    conversation_id = await application.converse(user("a"))
    body = {"model": "m", "conversation": conversation_id}
    for _ in range(2):
        answer = await application.post({**body, "input": [meant("msg_none")]})
        assert error_of(answer) == not_found("msg_none")
    assert (await application.post({**body, "input": "q"})).status_code == 200


async def test_what_history_has_is_not_taken_again(application: Application) -> None:
    application.mock.replies = [reply(message("a"), stream=False)]
    first = await application.turn(input=[user("q", id="msg_q")])
    for item_id in ("msg_q", "msg_up"):
        answer = await application.post({"model": "m", "input": [meant(item_id)], "previous_response_id": first["id"]})
        assert error_of(answer)[:3] == (400, "input", "invalid_value")
        assert f"'{item_id}'" in answer.json()["error"]["message"]


# --- replay


async def test_what_can_only_be_read_by_another_is_refused_by_its_place(application: Application) -> None:
    sealed = {"type": "reasoning", "id": "rs_sealed", "summary": [], "encrypted_content": "gAAAA"}
    await application.converse(sealed)
    answer = await application.post({"model": "m", "input": [user("x"), meant("rs_sealed")]})
    assert error_of(answer)[:3] == (400, "input[1]", "encrypted_reasoning_not_supported")
    assert "'rs_sealed'" in answer.json()["error"]["message"]
    assert application.mock.posts == []


async def test_a_call_that_is_named_must_be_answered_and_an_output_must_have_its_call(application: Application) -> None:
    application.mock.replies = [reply(function_call("f"), stream=False), reply(message("b"), stream=False)]
    await application.turn(input="q")
    refused = await application.post({"model": "m", "input": [meant("fc_up"), user("x")]})
    assert error_of(refused) == (400, "input", None, "No tool output found for function call call_1.")
    answered = await application.turn(input=[meant("fc_up"), {**OUTPUT, "id": "fco_1"}])
    assert answered["status"] == "completed"
    refused = await application.post({"model": "m", "input": [meant("fco_1")]})
    assert error_of(refused)[:2] == (400, "input")
    assert (await application.post({"model": "m", "input": [meant("fc_up"), meant("fco_1")]})).status_code == 200


async def test_a_message_without_a_role_is_the_models_also_where_it_is_named(emptied_database_url: str) -> None:
    bare = {"type": "message", "id": "msg_bare", "content": [{"type": "output_text", "text": "a"}]}
    async with running(emptied_database_url, [reply(json.dumps(bare), stream=False)]) as application:
        await application.turn(input="q")
        await application.turn(input=[meant("msg_bare"), user("x")])
        assert application.sent()["input"][0]["role"] == "assistant"


# --- cost


async def test_references_are_one_read_more(application: Application) -> None:
    application.mock.replies = [reply(message("a"), stream=False)]
    await application.turn(input=[user(str(number), id=f"msg_{number}") for number in range(20)])
    given = [meant(f"msg_{number}") for number in range(20)]
    conversation_id = await application.converse()
    for members, count in (({"store": False}, 1), ({}, 2), ({"conversation": conversation_id}, 3)):
        with recorded_statements(application.database) as statements:
            await application.turn(input=given, **members)
        assert len(statements) == count
