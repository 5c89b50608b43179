"""Logs: one JSON object a line, and no way for a text of others into it."""

import io
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from server.config import ConfigError, load
from server.telemetry import Telemetry, scrubbed_urls

SECRET = "hunter2"


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.fixture
def restored_logging() -> Iterator[None]:
    root, uvicorn = logging.getLogger(), logging.getLogger("uvicorn.error")
    before = (root.handlers, root.level, uvicorn.level)
    yield
    logging.captureWarnings(False)
    root.handlers, root.level, uvicorn.level = before


def test_an_event_is_one_object_on_one_line() -> None:
    stream = io.StringIO()

    Telemetry(stream=stream).info("turn_stored", id="resp_1", items=3, share=0.5, streamed=True, parent=None)

    assert stream.getvalue().endswith("}\n")
    (line,) = lines(stream)
    assert list(line) == ["time", "level", "event", "id", "items", "share", "streamed", "parent"]
    assert abs((datetime.now(UTC) - datetime.fromisoformat(line.pop("time"))).total_seconds()) < 60
    assert line == {
        "level": "info",
        "event": "turn_stored",
        "id": "resp_1",
        "items": 3,
        "share": 0.5,
        "streamed": True,
        "parent": None,
    }


@pytest.mark.parametrize(
    ("log_level", "written"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_the_log_level_is_the_least_that_is_written(log_level: str, written: list[str]) -> None:
    stream = io.StringIO()
    telemetry = Telemetry(log_level, stream)

    for level in ("debug", "info", "warning", "error"):
        getattr(telemetry, level)("event")

    assert [line["level"] for line in lines(stream)] == written


def test_a_long_text_is_cut() -> None:
    stream = io.StringIO()

    Telemetry(stream=stream).error("refused", why="a" * 300)

    assert lines(stream)[0]["why"] == "a" * 256


def test_what_is_no_scalar_is_only_its_type() -> None:
    stream = io.StringIO()
    fields: Any = {"body": {"input": SECRET}, "raw": SECRET.encode(), "error": ValueError(SECRET)}

    Telemetry(stream=stream).error("refused", **fields)

    assert SECRET not in stream.getvalue()
    assert lines(stream)[0]["body"] == "<dict>"


def test_any_text_stays_valid_json_on_one_line() -> None:
    stream = io.StringIO()

    Telemetry(stream=stream).info("event", id="a\nb\u2028\ud800\x00", rate=float("nan"))

    assert stream.getvalue().count("\n") == 1
    (line,) = lines(stream)
    assert line["id"] == "a\nb\u2028\ud800\x00"
    assert line["rate"] == "nan"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://host:8000/v1", "http://host:8000/v1"),
        ("https://ada:hunter2@host/v1?key=hunter2#hunter2", "https://host/v1"),
        ("postgresql://ada:hunter2@host:5432/db?password=hunter2", "postgresql://host:5432/db"),
        ("http://ada:hun@ter2@host/v1", "http://host/v1"),
        ("postgresql://ada:hunter2/x@host/db", "postgresql://***"),
        ("no URL at all", "no URL at all"),
        ("from http://a:hunter2@b/c to http://d?hunter2", "from http://b/c to http://d"),
        ("http://[::1]:80/v1", "http://[::1]:80/v1"),
    ],
)
def test_a_url_loses_its_credentials_and_its_query(given: str, expected: str) -> None:
    stream = io.StringIO()

    Telemetry(stream=stream).info("serving", url=given)

    assert scrubbed_urls(given) == expected
    assert lines(stream)[0]["url"] == expected


def test_a_crash_tells_types_and_our_own_lines_and_no_message() -> None:
    stream = io.StringIO()

    with pytest.raises(ConfigError) as caught:
        load({"host": SECRET, SECRET: 1}, {})
    Telemetry(stream=stream).crash("load_failed", caught.value, id="resp_1")

    (line,) = lines(stream)
    assert (line["level"], line["event"], line["id"]) == ("error", "load_failed", "resp_1")
    assert line["error"] == "server.config.checks.ConfigError"
    assert all(frame.startswith("server/config/") for frame in line["frames"].split(" < "))
    assert SECRET not in stream.getvalue()


def test_a_crash_outside_our_code_tells_the_line_and_the_cause() -> None:
    stream = io.StringIO()

    try:
        try:
            {}[SECRET]
        except KeyError as error:
            raise RuntimeError(SECRET) from error
    except RuntimeError as error:
        Telemetry(stream=stream).crash("failed", error)

    (line,) = lines(stream)
    assert (line["error"], line["cause"]) == ("RuntimeError", "KeyError")
    assert line["frames"].startswith("unit/test_telemetry.py:")
    assert SECRET not in stream.getvalue()


@pytest.mark.usefixtures("restored_logging")
def test_a_record_of_a_library_tells_where_and_what_and_no_text() -> None:
    stream = io.StringIO()
    Telemetry(stream=stream).adopt_library_logs()

    try:
        raise ValueError(SECRET)
    except ValueError:
        logging.getLogger("sqlalchemy.pool").exception("lost %s", SECRET)
    logging.getLogger("asyncio").warning("slow %s", SECRET)
    logging.getLogger("httpx").info("POST %s", SECRET)
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 7)

    crash, slow = lines(stream)
    assert (crash["level"], crash["logger"], crash["error"]) == ("error", "sqlalchemy.pool", "ValueError")
    assert (slow["level"], slow["logger"]) == ("warning", "asyncio")
    assert slow["source"].startswith("test_telemetry.py:")
    assert SECRET not in stream.getvalue()


@pytest.mark.usefixtures("restored_logging")
def test_uvicorn_tells_its_start_and_stop_when_debugging() -> None:
    stream = io.StringIO()
    Telemetry("debug", stream).adopt_library_logs()

    logging.getLogger("uvicorn.error").info("Started server process [%d]", 7)
    logging.getLogger("uvicorn.error").error("invalid %s", SECRET)
    logging.getLogger("httpx").info("POST %s", SECRET)

    started, invalid = lines(stream)
    assert started["text"] == "Started server process [7]"
    assert "text" not in invalid
    assert SECRET not in stream.getvalue()
