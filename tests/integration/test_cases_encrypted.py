"""Reported failures about encrypted reasoning, each as the behaviour that it asks for."""

import pytest

from tests.case_player import answered, assistant, playing, reasoning, user
from tests.postgres import connected


async def test_encrypted_state_beside_plaintext_is_kept_and_not_sent(emptied_database_url: str) -> None:
    """B026"""
    async with playing("B026", emptied_database_url) as case:
        await case.play()
    first = [user("a"), reasoning("r1", "visible"), assistant("m0", "b"), user("c")]
    assert case.sent(1)["input"] == first
    assert case.sent(2)["input"] == [*first, assistant("m1", "ok"), user("d")]
    assert b"gAAAA-opaque-1" not in case.sent_bytes
    assert b"encrypted_content" not in case.sent_bytes
    assert case.answer(3).json["data"][1] == {
        "id": "r1",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "visible"}],
        "encrypted_content": "gAAAA-opaque-1",
    }


@pytest.mark.parametrize("step", [1, 2, 3], ids=["no content", "empty content, streamed", "empty text"])
async def test_reasoning_that_is_only_encrypted_is_refused_before_anything_is_sent(
    emptied_database_url: str, step: int
) -> None:
    """B027"""
    async with playing("B027", emptied_database_url) as case:
        await case.play(step)
    refused = case.answer(step)
    assert (refused.status, refused.content_type) == (400, "application/json")
    error = refused.json["error"]
    assert (error["type"], error["param"], error["code"]) == (
        "invalid_request_error",
        "input[1]",
        "encrypted_reasoning_not_supported",
    )
    assert "'r1'" in error["message"]
    assert b"gAAAA-only" not in refused.body
    assert case.calls == 0
    async with connected(emptied_database_url) as connection:
        assert await connection.fetchval("select count(*) from responses") == 0
        assert await connection.fetchval("select count(*) from items") == 0


async def test_another_models_encrypted_state_is_left_out_and_its_plaintext_sent(emptied_database_url: str) -> None:
    """B029"""
    async with playing("B029", emptied_database_url) as case:
        await case.play()
        kept = await case.server.http.get(f"/v1/responses/{case.answer(1).json['id']}")
    assert case.sent(2)["model"] == "other-model"
    assert case.sent(2)["input"] == [user("q1"), reasoning("r1", "plain a"), assistant("m1", "one"), user("q2")]
    assert b"SEALED-A" not in case.sent_bytes
    assert kept.json()["output"][0] == {
        "id": "r1",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "plain a"}],
        "status": "completed",
        "encrypted_content": "SEALED-A",
    }


async def test_streamed_encrypted_state_stays_with_its_item(emptied_database_url: str) -> None:
    """B030"""
    async with playing("B030", emptied_database_url) as case:
        await case.play()
    assert [
        (item["id"], item["content"][0]["text"], item["encrypted_content"])
        for item in case.answer(2).json["output"]
        if item["type"] == "reasoning"
    ] == [("r1", "t1", "BLOB-1"), ("r2", "t2", "BLOB-2")]
    assert case.answer(2).json["output"][2] == answered("m1", "x")
    assert case.answer(2).json == case.answer(1).json


async def test_an_encrypted_compaction_is_refused_and_the_chain_goes_on_without_it(emptied_database_url: str) -> None:
    """B032"""
    async with playing("B032", emptied_database_url) as case:
        await case.play(1, 2)
        assert case.calls == 1
        await case.play(3)
    refused = case.answer(2)
    assert refused.status == 400
    assert (refused.json["error"]["param"], refused.json["error"]["code"]) == (
        "input[0]",
        "encrypted_reasoning_not_supported",
    )
    assert "'cmp_1'" in refused.json["error"]["message"]
    assert b"OPAQUE" not in refused.body
    assert case.answer(3).status == 200
    assert case.sent(2)["input"] == [user("start"), assistant("m1", "ok"), user("go")]


async def test_a_model_servers_own_encoded_reasoning_is_kept_and_not_sent(emptied_database_url: str) -> None:
    """B033"""
    async with playing("B033", emptied_database_url) as case:
        await case.play()
        kept = await case.server.http.get(f"/v1/responses/{case.answer(1).json['id']}")
    assert case.sent(2)["input"] == [user("go"), reasoning("r1", "text"), assistant("m1", "x"), user("on")]
    assert b"encrypted_content" not in case.sent_bytes.replace(b'"include":["reasoning.encrypted_content"]', b"")
    assert kept.json()["output"][0]["encrypted_content"] == "vllm-reasoning-v1.eJwrSS0uUTAEAAqSAl0="
