"""Reported failures about an upstream that fails, each as the behaviour that it asks for."""

import socket
import time

from tests.case_player import assistant, playing, user

CHAIN = [user("a"), assistant("m1", "ok"), user("b")]


async def test_too_many_requests_are_told_with_the_time_to_wait(emptied_database_url: str) -> None:
    """B104"""
    async with playing("B104", emptied_database_url) as case:
        await case.play()
    refused = case.answer(2)
    assert (refused.status, refused.content_type, refused.headers["retry-after"]) == (429, "application/json", "7")
    assert refused.json["error"] == {
        "message": "slow down",
        "type": "rate_limit_error",
        "param": None,
        "code": "rate_limit_exceeded",
    }
    assert case.answer(3).status == 200
    assert case.sent(3)["input"] == CHAIN


async def test_an_upstreams_refusal_of_a_request_stays_a_refusal(emptied_database_url: str) -> None:
    """B105"""
    async with playing("B105", emptied_database_url) as case:
        await case.play()
    assert case.answer(1).status == 400
    assert case.answer(1).json["error"] == {
        "message": "bad tool schema",
        "type": "invalid_request_error",
        "param": "tools[0]",
        "code": None,
    }
    assert case.answer(2).status == 422
    error = case.answer(2).json["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "input", None)
    assert "detail" not in case.answer(2).json
    assert "string_type" not in error["message"]


async def test_an_error_event_ends_the_turn_as_failed_with_its_message(emptied_database_url: str) -> None:
    """B108, whose code is none of the contract's"""
    async with playing("B108", emptied_database_url) as case:
        await case.play()
    assert [event["type"] for event in case.answer(1).events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.failed",
    ]
    assert case.answer(1).json["error"] == {"code": "server_error", "message": "overloaded"}
    assert case.answer(2).json["status"] == "failed"
    assert case.answer(2).json == case.answer(1).json


async def test_a_silent_and_an_absent_upstream_leave_the_chain_as_it_was(emptied_database_url: str) -> None:
    """B110"""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        absent = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
    async with playing("B110", emptied_database_url, reply_timeout_s=0.3) as case:
        await case.play(1)
        began_s = time.monotonic()
        await case.play(2)
        took_s = time.monotonic() - began_s
        await case.start(2, upstream=absent)
        await case.play(3, server=2)
        await case.play(4)
    assert case.answer(2).status == 504
    assert took_s < 5
    assert case.answer(3).status == 503
    assert case.answer(4).status == 200
    assert case.sent(3)["input"] == CHAIN
    assert case.calls == 3


async def test_an_error_in_a_chat_stream_is_no_empty_success(emptied_database_url: str) -> None:
    """B107"""
    async with playing("B107", emptied_database_url, chat_profile="strict-chat") as case:
        await case.play()
    assert case.answer(1).events[-1]["type"] == "response.failed"
    for step in (1, 2):
        response = case.answer(step).json
        assert (response["status"], response["error"]["message"]) == ("failed", "engine died")
        assert [part["text"] for item in response["output"] for part in item["content"]] == ["par"]
