"""Reported failures about whose data it is, each as the behaviour that it asks for."""

import json

import pytest

from server.store.database import Database
from server.store.keys import ApiKeys
from tests.application import stored_rows
from tests.case_player import Player, playing


async def let_in(case: Player, database: Database) -> None:
    """The two tenants of the cases, by the keys that these name."""
    for name in "ab":
        assert await ApiKeys(database).create(f"key-tenant-{name}", name)
    await case.server.read_keys()


@pytest.mark.parametrize("stream", [False, True])
async def test_another_tenants_id_is_an_unknown_one(database_url: str, database: Database, stream: bool) -> None:
    """B090"""
    async with playing("B090", database_url) as case:
        await let_in(case, database)
        await case.play(1)
        calls = case.calls
        await case.play(2, 3, 5, 6, 7, 8)
        await case.play(4, stream=stream)
        assert case.calls == calls
    known, unknown = case.answer(1).json["id"], "resp_unknown"
    for step in (2, 3, 5, 6):
        assert case.answer(step).status == 404
        told = json.loads(case.answer(step).body)
        assert told == json.loads(case.answer(8).body.replace(unknown.encode(), known.encode()))
    assert (case.answer(4).status, case.answer(4).json["error"]["code"]) == (400, "previous_response_not_found")
    for step in (2, 3, 4, 5, 6):
        assert b"alpha-secret" not in case.answer(step).body
    assert case.answer(7).status == 200


async def test_tenants_may_mint_the_same_item_ids(database_url: str, database: Database) -> None:
    """B093"""
    async with playing("B093", database_url) as case:
        await let_in(case, database)
        for _ in range(2):
            await case.play()
            for step, text in ((3, "A text"), (4, "B text")):
                [item] = case.answer(step).json["data"]
                assert (item["id"], item["content"]) == ("msg_shared", [{"type": "input_text", "text": text}])


async def test_an_upstreams_response_id_is_never_told_and_never_taken(emptied_database_url: str) -> None:
    """B091"""
    async with playing("B091", emptied_database_url) as case:
        await case.play()
        stored = await case.server.http.get(f"/v1/responses/{case.answer(1).json['id']}")
    assert b"upstream_raw_77" not in case.answer(1).body + stored.content
    assert (case.answer(2).status, case.answer(3).status, stored.status_code) == (404, 404, 200)


async def test_an_unknown_conversation_is_not_made_by_asking_for_it(emptied_database_url: str) -> None:
    """B094, but for the param, which the contract (api.md 5) has as null"""
    async with playing("B094", emptied_database_url) as case:
        await case.play()
        assert await stored_rows(emptied_database_url) == {}
    for step in (1, 2):
        assert case.answer(step).status == 404
        assert case.answer(step).json["error"] == {
            "message": "Conversation with id 'conv_typo' not found.",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }
    assert case.calls == 0
