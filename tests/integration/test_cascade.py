"""Deleting a response with all that continues it: what goes, what is told, and what a turn in flight makes of it."""

import asyncio
from typing import Any

import pytest

from tests.application import Application
from tests.harness import until
from tests.integration.test_retention import LONG_CHAIN
from tests.postgres import connected, recorded_statements


async def tree(application: Application) -> dict[str, str]:
    """Ids by name: `root` is continued by `left` and `right`, and `left` by `leaf`."""
    ids: dict[str, str] = {}
    for name, parent in {"root": None, "left": "root", "right": "root", "leaf": "left"}.items():
        continued = {"previous_response_id": ids[parent]} if parent else {}
        ids[name] = (await application.turn(input=name, **continued))["id"]
    return ids


async def delete(application: Application, response_id: str, **query: str) -> tuple[int, dict[str, Any]]:
    answer = await application.http.delete(f"/v1/responses/{response_id}", params=query)
    return answer.status_code, answer.json()


async def there(application: Application, ids: dict[str, str]) -> set[str]:
    answers = {name: await application.http.get(f"/v1/responses/{id_}") for name, id_ in ids.items()}
    return {name for name, answer in answers.items() if answer.status_code == 200}


async def test_a_response_goes_with_its_descendants_and_with_no_others(application: Application) -> None:
    ids = await tree(application)
    told = {"id": ids["left"], "object": "response", "deleted": True, "deleted_count": 2}
    assert await delete(application, ids["left"], cascade="true") == (200, told)
    assert await there(application, ids) == {"root", "right"}
    status, _ = await delete(application, ids["left"], cascade="true")
    assert status == 404


async def test_descendants_of_what_was_deleted_before_go_too(application: Application) -> None:
    ids = await tree(application)
    assert (await delete(application, ids["left"]))[1] == {"id": ids["left"], "object": "response", "deleted": True}
    status, told = await delete(application, ids["root"], cascade="true")
    assert (status, told["deleted_count"]) == (200, 3)
    assert await there(application, ids) == set()


async def test_a_preview_tells_the_number_and_changes_nothing(application: Application) -> None:
    ids = await tree(application)
    told = {"id": ids["root"], "object": "response", "deleted": False, "deleted_count": 4}
    assert await delete(application, ids["root"], cascade="true", dry_run="true") == (200, told)
    told["deleted_count"] = 1
    assert await delete(application, ids["root"], dry_run="true") == (200, told)
    assert await there(application, ids) == {"root", "left", "right", "leaf"}
    assert (await delete(application, "resp_none", cascade="true", dry_run="true"))[0] == 404


@pytest.mark.parametrize("name", ["cascade", "dry_run"])
@pytest.mark.parametrize("value", ["yes", "True", "1", ""])
async def test_what_is_neither_true_nor_false_deletes_nothing(application: Application, name: str, value: str) -> None:
    ids = await tree(application)
    status, told = await delete(application, ids["root"], **{name: value})
    assert (status, told["error"]["param"], told["error"]["code"]) == (400, name, "invalid_value")
    assert await there(application, ids) == {"root", "left", "right", "leaf"}


async def test_what_a_process_remembers_of_a_deleted_chain_is_not_continued(application: Application) -> None:
    ids = await tree(application)
    # That of `leaf` is remembered: no history is read for a turn that continues it.
    with recorded_statements(application.database) as statements:
        await application.turn(input="Go on", previous_response_id=ids["leaf"])
    assert not [statement for statement in statements if "recursive" in statement]

    await delete(application, ids["root"], cascade="true")
    received = len(application.mock.posts)
    answer = await application.post({"model": "m", "input": "Go on", "previous_response_id": ids["leaf"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "previous_response_not_found")
    assert len(application.mock.posts) == received


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
async def test_a_turn_in_flight_ends_as_it_began_and_is_none_of_them(application: Application, stream: bool) -> None:
    ids = await tree(application)
    received = len(application.mock.posts)
    with application.upstream_held():
        late = asyncio.create_task(application.turn(input="late", previous_response_id=ids["leaf"], stream=stream))
        await until(lambda: len(application.mock.posts) > received)
        assert (await delete(application, ids["root"], cascade="true"))[1]["deleted_count"] == 4
    response = await late
    assert response["status"] == "completed"
    listed = await application.listed(response["id"])
    said = [item["content"][0]["text"] for item in listed if item.get("role") == "user"]
    assert said == ["root", "left", "leaf", "late"]
    assert (await delete(application, response["id"], cascade="true"))[1]["deleted_count"] == 1


async def test_a_cascade_leaves_the_items_in_their_conversation(application: Application) -> None:
    conversation_id = await application.converse()
    first = await application.turn(input="In", conversation=conversation_id)
    await application.turn(input="Out", previous_response_id=first["id"])
    before = await application.conversed(conversation_id)
    assert (await delete(application, first["id"], cascade="true"))[1]["deleted_count"] == 2
    assert await application.conversed(conversation_id) == before


async def test_a_chain_of_ten_thousand_goes_by_a_walk_and_ten_statements(
    application: Application, emptied_database_url: str
) -> None:
    async with connected(emptied_database_url) as connection:
        await connection.execute(LONG_CHAIN)
    with recorded_statements(application.database) as statements:
        async with asyncio.timeout(20):
            assert (await delete(application, "resp_1", cascade="true"))[1]["deleted_count"] == 10_000
    assert len(statements) == 11
