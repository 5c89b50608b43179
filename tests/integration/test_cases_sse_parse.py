"""Reported failures about reading an upstream's stream, each as the behaviour that it asks for."""

import json

import pytest

from tests.case_player import Player, answered, playing

MESSAGE_EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


def assert_message_was_streamed_and_stored(case: Player, text: str) -> None:
    """Step 1 streamed one message in one delta; what step 2 got is what the stream ended with."""
    streamed = case.answer(1)
    assert [event["type"] for event in streamed.events] == MESSAGE_EVENTS
    assert [event["delta"] for event in streamed.of_type("response.output_text.delta")] == [text]
    assert streamed.json["status"] == "completed"
    assert streamed.json["output"] == [answered("m1", text)]
    assert case.answer(2).json == streamed.json


async def test_crlf_line_ends_are_read_wherever_they_are_cut(emptied_database_url: str) -> None:
    """B060"""
    async with playing("B060", emptied_database_url) as case:
        await case.play()
    assert_message_was_streamed_and_stored(case, "café 猫 ok")


async def test_cr_line_ends_are_read(emptied_database_url: str) -> None:
    """B061"""
    async with playing("B061", emptied_database_url) as case:
        await case.play()
    assert_message_was_streamed_and_stored(case, "café 猫 ok")


async def test_a_byte_order_mark_is_dropped_at_the_start_and_kept_in_a_text(emptied_database_url: str) -> None:
    """B063"""
    async with playing("B063", emptied_database_url) as case:
        await case.play()
    assert_message_was_streamed_and_stored(case, "a\ufeffb")


async def test_characters_cut_by_chunks_are_whole_again(emptied_database_url: str) -> None:
    """B064"""
    async with playing("B064", emptied_database_url) as case:
        await case.play()
    thought = {
        "id": "r1",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "考える 🧠"}],
        "status": "completed",
    }
    streamed = case.answer(1)
    assert streamed.json["output"] == [thought, answered("m1", "naïve 🐈\u200d⬛ 한글")]
    assert [event["delta"] for event in streamed.events if "delta" in event] == ["考える 🧠", "naïve 🐈\u200d⬛ 한글"]
    assert "\ufffd" not in streamed.body.decode() + case.answer(2).body.decode()
    assert case.answer(2).json == streamed.json


async def test_an_event_of_megabytes_passes(emptied_database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """B066"""
    async with playing("B066", emptied_database_url) as case:
        await case.play()
        log = [json.loads(line) for line in case.server.log.splitlines()]
    assert_message_was_streamed_and_stored(case, "z" * 3_000_000)
    assert [line["event"] for line in log if line["level"] in ("warning", "error")] == []
    assert caplog.records == []


async def test_an_event_above_the_limit_ends_the_turn_as_failed(emptied_database_url: str) -> None:
    """B066, with a limit that its events exceed"""
    async with playing("B066", emptied_database_url, event_bytes_max=1 << 20) as case:
        await case.play()
    failed = case.answer(1).json
    assert (failed["status"], failed["error"]["code"], failed["output"]) == ("failed", "server_error", [])
    assert "too large" in failed["error"]["message"]
    assert len(case.answer(1).body) < 10_000
    assert case.answer(2).json == failed


async def test_spaces_data_lines_and_the_order_of_fields_are_free(emptied_database_url: str) -> None:
    """B067"""
    async with playing("B067", emptied_database_url) as case:
        await case.play()
    streamed = case.answer(1)
    assert [event["type"] for event in streamed.events] == MESSAGE_EVENTS
    assert streamed.json["status"] == "completed"
    assert streamed.json["output"] == [answered("m1", "café 猫 ok")]


async def test_done_ends_a_stream_and_is_no_success_by_itself(emptied_database_url: str) -> None:
    """B069"""
    async with playing("B069", emptied_database_url) as case:
        await case.play()
    completed, failed = case.answer(1), case.answer(2)
    assert [event["type"] for event in completed.events] == MESSAGE_EVENTS
    assert completed.json["output"] == [answered("m1", "café 猫 ok")]
    assert [event["type"] for event in failed.events] == [
        "response.created",
        "response.in_progress",
        "response.failed",
    ]
    assert failed.json["error"]["code"] == "server_error"
    assert case.answer(3).json["status"] == "failed"
    assert case.answer(3).json == failed.json


async def test_an_events_own_type_decides_over_its_name(emptied_database_url: str) -> None:
    """B070"""
    async with playing("B070", emptied_database_url) as case:
        await case.play()
    # That each event goes out under the name of its type is asserted of every stream.
    assert [event["type"] for event in case.answer(1).events] == MESSAGE_EVENTS
    assert case.answer(1).json["status"] == "completed"
