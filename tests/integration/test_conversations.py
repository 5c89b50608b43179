"""The routes under /v1/conversations: what they answer, what they refuse, and how their lists are paged."""

import asyncio
import base64
import json
import random
import re
from typing import Any
from urllib.parse import quote

import httpx
import openai
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
from tests.harness import until
from tests.postgres import recorded_statements

UNKNOWN = "conv_unknown"


def said(text: str, **members: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **members}


def error_of(answer: httpx.Response) -> tuple[int, Any, Any]:
    """Status, param and code of an error that has the shape of every error."""
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return answer.status_code, error["param"], error["code"]


def texts(items: list[dict[str, Any]]) -> list[str]:
    return [item["content"][0]["text"] for item in items]


async def post(application: Application, path: str, body: Any = None, **members: Any) -> httpx.Response:
    return await application.http.post(f"/v1/conversations{path}", json=body, **members)


async def get(application: Application, path: str, **params: Any) -> httpx.Response:
    return await application.http.get(f"/v1/conversations{path}", params=params)


async def delete(application: Application, path: str) -> httpx.Response:
    return await application.http.delete(f"/v1/conversations{path}")


# --- a conversation


@pytest.mark.parametrize(
    "content", [b"", b" ", b"{}", b'{"items":[]}', b'{"items":null,"metadata":null}', b'{"metadata":{}}']
)
async def test_a_conversation_is_made_of_nothing(application: Application, content: bytes) -> None:
    answer = await application.http.post("/v1/conversations", content=content)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    made = answer.json()
    assert list(made) == ["id", "object", "created_at", "metadata"]
    assert re.fullmatch(r"conv_[0-9a-f]{48}", made["id"])
    assert (made["object"], made["metadata"], type(made["created_at"])) == ("conversation", {}, int)
    assert await application.conversed(made["id"]) == []
    assert (await get(application, f"/{made['id']}")).content == answer.content


async def test_metadata_are_replaced_whole(application: Application) -> None:
    metadata = {"a": "1", "é": '"\\\n\u0000'}
    answer = await post(application, "", {"metadata": metadata})
    made = answer.json()
    assert made["metadata"] == metadata
    path = f"/{made['id']}"
    changed = await post(application, path, {"metadata": {"b": "2"}})
    assert (changed.status_code, changed.json()) == (200, made | {"metadata": {"b": "2"}})
    assert (await get(application, path)).json() == changed.json()
    for empty in ({}, None):
        await post(application, path, {"metadata": {"b": "2"}})
        assert (await post(application, path, {"metadata": empty})).json()["metadata"] == {}
    refused = await post(application, path, {"metadata": {"k": "v" * 513}})
    assert error_of(refused) == (400, "metadata", "string_above_max_length")
    assert error_of(await post(application, path, {})) == (400, "metadata", "missing_required_parameter")
    assert (await get(application, path)).json()["metadata"] == {}


async def test_a_deleted_conversation_is_unknown_from_then_on(application: Application) -> None:
    conversation_id = await application.converse(said("a"))
    answer = await delete(application, f"/{conversation_id}")
    assert answer.status_code == 200
    assert answer.json() == {"id": conversation_id, "object": "conversation.deleted", "deleted": True}
    assert (await delete(application, f"/{conversation_id}")).status_code == 404
    assert (await get(application, f"/{conversation_id}")).status_code == 404


ODD_IDS = ["conv_unknown", "resp_1", "%20", "a%00b", "%ed%a0%80", "%F0%9F%98%80", "x" * 257, "..%2f..", "'--", "%25s"]


@pytest.mark.parametrize("odd", ODD_IDS)
async def test_every_route_says_that_it_knows_no_such_conversation(application: Application, odd: str) -> None:
    path = f"/v1/conversations/{odd}"
    asked: list[tuple[str, str, dict[str, Any] | None]] = [
        ("GET", path, None),
        ("POST", path, {"metadata": {}}),
        ("DELETE", path, None),
        ("POST", f"{path}/items", {"items": [said("a")]}),
        ("GET", f"{path}/items", None),
        ("GET", f"{path}/items?after=msg_1", None),
        ("GET", f"{path}/items/msg_1", None),
        ("DELETE", f"{path}/items/msg_1", None),
    ]
    for method, url, body in asked:
        answer = await application.http.request(method, url, json=body)
        assert error_of(answer) == (404, None, None), (method, url)
        # A slash is one of the path, however it is written: there it ends at no route.
        if "%2f" not in odd:
            assert answer.json()["error"]["message"].startswith("Conversation with id '")


@pytest.mark.parametrize("odd", ODD_IDS)
async def test_an_unknown_item_is_told_from_an_unknown_conversation(application: Application, odd: str) -> None:
    path = f"/v1/conversations/{await application.converse(said('a'))}/items/{odd}"
    for method in ("GET", "DELETE"):
        answer = await application.http.request(method, path)
        assert error_of(answer) == (404, None, None)
        if "%2f" not in odd:
            assert answer.json()["error"]["message"].startswith("Item with id '")
    if odd == "conv_unknown":
        assert answer.json()["error"]["message"] == "Item with id 'conv_unknown' not found."


# --- items


async def test_items_are_answered_and_listed_as_they_were_given(application: Application) -> None:
    """contract clients.md 6 and 27: what the agents' sessions keep, with ids or without."""
    items = [
        said("a"),
        {"type": "reasoning", "id": "rs_keep", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}], "x": [1.0, None]},
    ]
    conversation_id = await application.converse()
    answer = await post(
        application, f"/{conversation_id}/items?include[]=reasoning.encrypted_content", {"items": items}
    )
    assert answer.status_code == 200
    page = answer.json()
    assert set(page) == {"object", "data", "first_id", "last_id", "has_more"}
    ids = [item["id"] for item in page["data"]]
    assert (page["object"], page["first_id"], page["last_id"], page["has_more"]) == ("list", ids[0], ids[-1], False)
    assert ids[1] == "rs_keep"
    assert [re.sub("[0-9a-f]{48}", "", made) for made in ids] == ["msg_", "rs_keep", "fc_", "fco_", "msg_"]
    assert page["data"] == [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}], "id": ids[0], "type": "message"}
        | {"status": "completed"},
        items[1],
        items[2] | {"id": ids[2], "status": "completed"},
        items[3] | {"id": ids[3], "status": "completed"},
        items[4]
        | {"content": [{"type": "output_text", "text": "b", "annotations": []}], "id": ids[4], "status": "completed"},
    ]
    assert await application.conversed(conversation_id) == page["data"]
    for item in page["data"]:
        alone = await get(application, f"/{conversation_id}/items/{item['id']}", include="reasoning.encrypted_content")
        assert (alone.status_code, alone.json()) == (200, item)


async def test_what_an_item_says_is_kept_character_for_character(application: Application) -> None:
    item = rb'{"zebra":1.0,"role":"user","content":[{"type":"input_text","text":"\u0000\ud83d"}],"huge":1e400,"n":null}'
    answer = await application.http.post("/v1/conversations", content=b'{"items":[ ' + item + b" ]}")
    listed = (await get(application, f"/{answer.json()['id']}/items")).content
    assert item.removesuffix(b"}") in listed


async def test_an_id_can_be_anything_and_is_found_by_it(application: Application) -> None:
    odd = "Ids of clients: äöü ? # % & + 😀"
    conversation_id = await application.converse(said("a", id=odd), said("b"))
    [first, _] = await application.conversed(conversation_id)
    assert first["id"] == odd
    page = await get(application, f"/{conversation_id}/items", after=odd, order="asc")
    assert texts(page.json()["data"]) == ["b"]
    path = f"/v1/conversations/{conversation_id}/items/{quote(odd, safe='')}"
    assert (await application.http.get(path)).json() == first
    assert (await application.http.delete(path)).json()["id"] == conversation_id


async def test_more_items_than_twenty_are_refused_and_none_is_kept(
    application: Application, emptied_database_url: str
) -> None:
    items = [said(str(number)) for number in range(21)]
    assert error_of(await post(application, "", {"items": items})) == (400, "items", "array_above_max_length")
    assert await stored_rows(emptied_database_url) == {}
    conversation_id = await application.converse(*items[:20])
    refused = await post(application, f"/{conversation_id}/items", {"items": items})
    assert error_of(refused) == (400, "items", "array_above_max_length")
    for nothing, code in (({}, "missing_required_parameter"), ({"items": []}, "array_below_min_length")):
        assert error_of(await post(application, f"/{conversation_id}/items", nothing)) == (400, "items", code)
    wrong = [said("good"), {"role": "user"}]
    refused = await post(application, f"/{conversation_id}/items", {"items": wrong})
    assert error_of(refused) == (400, "items[1].content", "missing_required_parameter")
    assert texts(await application.conversed(conversation_id)) == [str(number) for number in range(20)]


async def test_an_id_is_listed_once(application: Application) -> None:
    application.mock.replies = [reply(message("b"), stream=False)]
    conversation_id = await application.converse(said("a", id="msg_a"))
    turn = await application.turn(input=[said("q", id="msg_q")], conversation=conversation_id)
    for repeated in ("msg_a", "msg_q", turn["output"][0]["id"]):
        body = {"items": [said("new"), said("again", id=repeated)]}
        refused = await post(application, f"/{conversation_id}/items", body)
        assert error_of(refused) == (400, "items", "invalid_value")
        assert f"'{repeated}'" in refused.json()["error"]["message"]
    twice = {"items": [said("x", id="msg_x"), said("y", id="msg_x")]}
    assert error_of(await post(application, f"/{conversation_id}/items", twice)) == (400, "items", "invalid_value")
    assert error_of(await post(application, "", twice)) == (400, "items", "invalid_value")
    assert texts(await application.conversed(conversation_id)) == ["a", "q", "b"]
    # An id that was removed is free again, and another conversation may list it too.
    assert (await delete(application, f"/{conversation_id}/items/msg_a")).status_code == 200
    again = {"items": [said("again", id="msg_a")]}
    assert (await post(application, f"/{conversation_id}/items", again)).status_code == 200
    assert texts(await application.conversed(conversation_id)) == ["q", "b", "again"]
    await application.converse(said("elsewhere", id="msg_a"))


async def test_removing_an_item_answers_with_the_conversation(application: Application) -> None:
    conversation_id = await application.converse(said("a"), said("b"), said("c"), metadata={"k": "v"})
    middle = (await application.conversed(conversation_id))[1]["id"]
    answer = await delete(application, f"/{conversation_id}/items/{middle}")
    assert answer.status_code == 200
    assert answer.content == (await get(application, f"/{conversation_id}")).content
    assert answer.json()["metadata"] == {"k": "v"}
    assert texts(await application.conversed(conversation_id)) == ["a", "c"]
    for method in ("GET", "DELETE"):
        gone = await application.http.request(method, f"/v1/conversations/{conversation_id}/items/{middle}")
        assert gone.status_code == 404


# --- pages


async def test_pages_are_those_of_a_plain_list(application: Application) -> None:
    """Any limit, order and cursor against slices of the list, while items are removed and added."""
    choose = random.Random(3)
    conversation_id = await application.converse(*(said(str(number)) for number in range(20)))
    path = f"/{conversation_id}/items"
    listed = await application.conversed(conversation_id)
    for number in range(60):
        if number % 10 == 9:
            gone = listed.pop(choose.randrange(len(listed)))
            assert (await delete(application, f"{path}/{gone['id']}")).status_code == 200
            added = await post(application, path, {"items": [said(f"new {number}")]})
            listed += added.json()["data"]
        limit, order = choose.choice([1, 2, 7, 19, 20, 100, None]), choose.choice(["asc", "desc", None])
        ordered = listed if order == "asc" else listed[::-1]
        cursor = choose.choice([None, *range(len(ordered))])
        asked = {"limit": limit, "order": order, "after": None if cursor is None else ordered[cursor]["id"]}
        page = (await get(application, path, **{name: value for name, value in asked.items() if value})).json()
        behind = ordered[0 if cursor is None else cursor + 1 :]
        expected = behind[: limit or 20]
        assert page["data"] == expected
        assert page["has_more"] is (len(behind) > len(expected))
        assert page["first_id"] == (expected[0]["id"] if expected else "")
        assert page["last_id"] == (expected[-1]["id"] if expected else "")


async def test_a_client_may_remove_what_it_has_listed_and_go_on(application: Application) -> None:
    """A cursor stays good when its item is removed: its place is still known."""
    conversation_id = await application.converse(*(said(str(number)) for number in range(10)))
    seen, after = [], None
    while True:
        page = (await get(application, f"/{conversation_id}/items", limit=3, order="asc", **after or {})).json()
        seen += texts(page["data"])
        for item in page["data"]:
            await delete(application, f"/{conversation_id}/items/{item['id']}")
        after = {"after": page["last_id"]}
        if not page["has_more"]:
            break
    assert seen == [str(number) for number in range(10)]
    assert await application.conversed(conversation_id) == []


@pytest.mark.parametrize(
    ("params", "param", "code"),
    [
        ({"limit": "0"}, "limit", "integer_below_min_value"),
        ({"limit": "101"}, "limit", "integer_above_max_value"),
        ({"limit": "x"}, "limit", "invalid_type"),
        ({"order": "up"}, "order", "invalid_value"),
        ({"after": "msg_unknown"}, "after", "invalid_value"),
        ({"after": "a\x00b"}, "after", "invalid_value"),
        ({"after": "x" * 10_000}, "after", "invalid_value"),
        ({"after": "'; drop table items; --"}, "after", "invalid_value"),
    ],
)
async def test_a_wrong_parameter_is_named(
    application: Application, params: dict[str, str], param: str, code: str
) -> None:
    conversation_id = await application.converse(said("a"))
    answer = await get(application, f"/{conversation_id}/items", **params)
    assert error_of(answer) == (400, param, code)
    assert len(answer.content) < 500


async def test_another_lists_item_is_no_cursor(application: Application) -> None:
    other = await application.converse(said("a", id="msg_other"))
    conversation_id = await application.converse(said("b"))
    assert error_of(await get(application, f"/{conversation_id}/items", after="msg_other"))[0] == 400
    assert (await get(application, f"/{other}/items", after="msg_other")).json()["data"] == []


# --- bodies


@pytest.mark.parametrize("path", ["", "/{}", "/{}/items"])
@pytest.mark.parametrize(
    "content", [b"hello", b"[]", b'{"items":', b'{"metadata":{},"metadata":{}}', b'{"a":"\xed\xa0\x80"}']
)
async def test_a_body_that_cannot_be_read(application: Application, path: str, content: bytes) -> None:
    url = "/v1/conversations" + path.format(await application.converse())
    answer = await application.http.post(url, content=content)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["", "/{}", "/{}/items"])
async def test_a_body_may_be_as_large_as_that_of_a_turn(emptied_database_url: str, path: str) -> None:
    async with running(emptied_database_url, body_bytes_max=20_000_000) as application:
        url = "/v1/conversations" + path.format(await application.converse())
        large = {"items": [said("a" * 15_000_000)], "metadata": {}}
        assert (await application.http.post(url, json=large)).status_code == 200
        large = {"items": [said("a" * 21_000_000)], "metadata": {}}
        refused = await application.http.post(url, json=large)
        assert error_of(refused) == (413, None, "request_too_large")
        assert "20000000" in refused.json()["error"]["message"]
        # The connection that it came by is still good.
        assert (await application.http.post("/v1/conversations")).status_code == 200


async def test_a_client_that_leaves_with_half_a_body_changes_nothing(
    application: Application, emptied_database_url: str
) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", application.port)
    writer.write(b"POST /v1/conversations HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    await asyncio.sleep(0.1)
    assert await stored_rows(emptied_database_url) == {}
    assert {json.loads(line)["event"] for line in application.log.splitlines()} <= {"request"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/conversations"),
        ("DELETE", "/v1/conversations"),
        ("PUT", "/v1/conversations/conv_1"),
        ("PATCH", "/v1/conversations/conv_1"),
        ("DELETE", "/v1/conversations/conv_1/items"),
        ("POST", "/v1/conversations/conv_1/items/msg_1"),
    ],
)
async def test_a_method_that_a_path_has_not(application: Application, method: str, path: str) -> None:
    assert (await application.http.request(method, path)).status_code == 405


# --- a conversation that is locked


async def test_a_conversation_in_use_is_read_and_not_edited(application: Application) -> None:
    application.mock.replies = [reply(message("b"), stream=False)]
    conversation_id = await application.converse(said("a", id="msg_a"))
    path = f"/{conversation_id}"
    with application.upstream_held():
        turning = asyncio.create_task(application.turn(input="q", conversation=conversation_id))
        await until(lambda: len(application.mock.posts) == 1)
        for refused in (
            await post(application, f"{path}/items", {"items": [said("x")]}),
            await delete(application, f"{path}/items/msg_a"),
            await delete(application, path),
        ):
            assert error_of(refused) == (400, "conversation", "conversation_locked")
            assert refused.json()["error"]["message"] == (
                "Another process is currently operating on this conversation. Please retry in a few seconds."
            )
        # What a turn in flight will add is shown by nobody.
        assert texts(await application.conversed(conversation_id)) == ["a"]
        assert (await get(application, f"{path}/items/msg_a")).status_code == 200
        assert (await post(application, path, {"metadata": {"k": "v"}})).json()["metadata"] == {"k": "v"}
    await turning
    assert (await delete(application, f"{path}/items/msg_a")).status_code == 200
    assert texts(await application.conversed(conversation_id)) == ["q", "b"]


# --- statements


async def test_each_request_is_one_statement(application: Application) -> None:
    conversation_id = await application.converse(said("a"))
    [item] = await application.conversed(conversation_id)
    path = f"/{conversation_id}"
    for call in (
        lambda: post(application, "", {"items": [said("a")]}),
        lambda: post(application, path, {"metadata": {}}),
        lambda: get(application, path),
        lambda: post(application, f"{path}/items", {"items": [said("b"), said("c")]}),
        lambda: get(application, f"{path}/items", after=item["id"]),
        lambda: get(application, f"{path}/items/{item['id']}"),
        lambda: delete(application, f"{path}/items/{item['id']}"),
        lambda: delete(application, path),
    ):
        with recorded_statements(application.database) as statements:
            assert (await call()).status_code == 200
        assert len(statements) == 1


# --- the official client


async def test_the_official_client_reads_every_answer_into_its_strict_types(application: Application) -> None:
    conversations = application.client.conversations
    image = "data:image/png;base64," + base64.b64encode(b"pixels").decode()
    items: Any = [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": image}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {
            "type": "reasoning",
            "id": "rs_2",
            "summary": [{"type": "summary_text", "text": "s"}],
            "encrypted_content": "e",
        },
        {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "o"}]},
        {"type": "custom_tool_call", "call_id": "call_2", "name": "c", "input": "i"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "o"},
        {"role": "assistant", "content": "b"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c"}]},
    ]
    made = await conversations.create(metadata={"k": "v"}, items=items)
    assert (made.object, made.metadata) == ("conversation", {"k": "v"})
    assert await conversations.retrieve(made.id) == made
    assert (await conversations.update(made.id, metadata={"k": "w"})).metadata == {"k": "w"}
    added = await conversations.items.create(made.id, items=[{"role": "user", "content": str(n)} for n in range(20)])
    assert (len(added.data), added.has_more) == (20, False)
    # Pages are fetched by the client itself, twenty at a time.
    listed = [
        item async for item in conversations.items.list(made.id, order="asc", include=["reasoning.encrypted_content"])
    ]
    assert [item.type for item in listed[:10]] == [item.get("type", "message") for item in items]
    assert [item.id for item in listed[10:]] == [item.id for item in added.data]
    newest = await conversations.items.list(made.id, limit=1)
    assert newest.data == listed[-1:]
    assert await conversations.items.retrieve(listed[0].id or "", conversation_id=made.id) == listed[0]
    removed = await conversations.items.delete(listed[0].id or "", conversation_id=made.id)
    assert (removed.id, removed.object) == (made.id, "conversation")
    gone = await conversations.delete(made.id)
    assert (gone.id, gone.object, gone.deleted) == (made.id, "conversation.deleted", True)
    with pytest.raises(openai.NotFoundError):
        await conversations.retrieve(made.id)
    assert (await conversations.create()).metadata == {}


@both_modes
async def test_the_official_client_reads_what_a_turn_left_in_a_conversation(
    application: Application, stream: bool
) -> None:
    output = [reasoning("I must look."), message("One moment."), function_call("f")]
    application.mock.replies = [reply(*output, stream=stream)]
    made = await application.client.conversations.create()
    turn = await application.turn(input="a", conversation=made.id, stream=stream)
    assert turn["conversation"] == {"id": made.id}
    items = await application.client.conversations.items.list(made.id, order="asc")
    assert [item.type for item in items.data] == ["message", "reasoning", "message", "function_call"]
    listed = await application.conversed(made.id)
    assert listed[1:] == turn["output"]
    assert json.dumps(listed).count("I must look.") == 1
