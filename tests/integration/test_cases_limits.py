"""Reported failures about limits and sizes, each as the behaviour that it asks for."""

import asyncio
import time

from tests.application import stored_rows
from tests.case_player import assistant, playing, texts, user
from tests.postgres import connected, recorded_statements


async def test_metadata_is_bounded_in_pairs_and_characters(emptied_database_url: str) -> None:
    """B095"""
    async with playing("B095", emptied_database_url) as case:
        await case.play()
        assert "conversations" not in await stored_rows(emptied_database_url)
    assert (case.answer(1).status, case.answer(4).status) == (200, 200)
    assert case.answer(1).json["metadata"] == {f"k{number}": "v" for number in range(16)}
    assert case.answer(4).json["metadata"] == {"k": "é" * 512}
    refused = {step: case.answer(step).json["error"] for step in (2, 3, 5, 6, 7)}
    assert {case.answer(step).status for step in refused} == {400}
    assert {error["param"] for error in refused.values()} == {"metadata"}
    assert [error["code"] for error in refused.values()] == [
        "object_above_max_properties",
        "string_above_max_length",
        "string_above_max_length",
        "invalid_type",
        "string_above_max_length",
    ]
    assert case.calls == 2


async def test_an_image_of_megabytes_is_kept_and_a_history_too_large_for_the_upstream_is_told(
    emptied_database_url: str,
) -> None:
    """B096"""
    async with playing("B096", emptied_database_url) as case:
        await case.play()
    image = "data:image/png;base64," + "A" * 12_000_000
    content = [{"type": "input_image", "image_url": image}]
    assert case.answer(1).status == 200
    assert case.sent(1)["input"] == [{"type": "message", "role": "user", "content": content}]
    refused = case.answer(2)
    assert (refused.status, refused.content_type) == (413, "application/json")
    assert refused.json["error"] == {
        "message": "The model server refused the request: history and input together are larger than it takes.",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }
    assert case.answer(3).status == 200
    assert case.sent(3)["input"] == [*case.sent(1)["input"], assistant("m1", "ok"), user("retry")]


async def test_a_history_too_long_for_the_model_is_told_as_such_and_not_kept(emptied_database_url: str) -> None:
    """B098"""
    async with playing("B098", emptied_database_url) as case:
        await case.play()
    assert case.answer(2).status == 400
    assert case.answer(2).json["error"] == {
        "message": "maximum context length is 4096 tokens",
        "type": "invalid_request_error",
        "param": "input",
        "code": "context_length_exceeded",
    }
    assert [event["type"] for event in case.answer(3).events] == [
        "response.created",
        "response.in_progress",
        "response.failed",
    ]
    assert case.answer(3).json["error"] == {"code": "context_length_exceeded", "message": "too long"}
    assert case.sent(4)["input"] == [user("a"), assistant("m1", "ok"), user("c")]


async def test_a_chain_of_300_turns_grows_by_its_own_items_and_is_read_at_once(emptied_database_url: str) -> None:
    """B099"""
    # What is remembered of a chain does not show what became of its rows.
    async with playing("B099", emptied_database_url, history_cache_bytes=0) as case:
        await case.play()
        head = case.answer(2).json["id"]
        with recorded_statements(case.server.database) as statements:
            began_s = time.monotonic()
            await case.server.turn(input="one more", previous_response_id=head)
            took_s = time.monotonic() - began_s
        async with connected(emptied_database_url) as connection:
            assert await connection.fetchval("select count(*) from responses") == 301
            assert await connection.fetchval("select count(*) from items") == 602
            await connection.execute(
                "update responses set parent_id = (select id from responses where public_id = $1) where depth = 0", head
            )
        async with asyncio.timeout(5):
            broken = await case.server.post({"model": "m", "input": "x", "previous_response_id": head})
    sent = texts(case.sent(300)["input"])
    assert len(sent) == 599
    assert sent[::2] == ["t1", *(f"t{number}" for number in range(299))]
    # One read and one write, at any depth.
    assert len(statements) == 2
    assert took_s < 1
    assert (broken.status_code, broken.json()["error"]["param"]) == (500, "previous_response_id")
    assert case.calls == 301
