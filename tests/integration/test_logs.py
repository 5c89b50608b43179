"""What is said about turns in logs: ids, sizes and statuses, and no word of what was said in them (DESIGN 8)."""

import asyncio
import json
import logging
import re
from typing import Any

import pytest

from server.mock import Reply
from tests.application import (
    CLIENT_API_KEY,
    UPSTREAM_API_KEY,
    Application,
    both_modes,
    function_call,
    message,
    reasoning,
    reply,
    running,
)
from tests.harness import until
from tests.postgres import connected

SECRET = "WORD-THAT-NO-LOG-MAY-HOLD"


@pytest.fixture
def library_log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """All that the libraries below the server say, at level debug; not what the tests' own client does."""
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpcore", "openai"):
        caplog.set_level(logging.CRITICAL, logger=name)
    return caplog


def _said(number: int) -> str:
    return f"{SECRET}-{number}"


def _asked(**members: Any) -> dict[str, Any]:
    """A request that has a secret wherever a client may put one."""
    sealed = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": _said(1)}],
        "content": [{"type": "reasoning_text", "text": _said(2)}],
        "encrypted_content": _said(3),
    }
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": _said(4)}]},
        sealed,
        {"type": "function_call", "call_id": "call_0", "name": "f", "arguments": json.dumps({"k": _said(5)})},
        {"type": "function_call_output", "call_id": "call_0", "output": _said(6)},
        {"type": "x_unknown", "x": _said(7)},
    ]
    return {
        "model": "m",
        "input": items,
        "instructions": _said(8),
        "metadata": {"k": _said(9)},
        "user": _said(10),
        "x_unknown": _said(11),
        "tools": [{"type": "function", "name": "f", "description": _said(12), "parameters": {}}],
        **members,
    }


def _check(application: Application, library_log: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Nothing secret is in any log. Returns the server's own lines."""
    for text in (application.log, library_log.text, *map(repr, library_log.records)):
        assert SECRET not in text
        assert CLIENT_API_KEY not in text
        assert UPSTREAM_API_KEY not in text
    return [json.loads(line) for line in application.log.splitlines()]


@both_modes
async def test_turns_that_succeed(
    library_log: pytest.LogCaptureFixture, emptied_database_url: str, stream: bool
) -> None:
    output = [
        reasoning(_said(20), encrypted_content=_said(21), summary=[{"type": "summary_text", "text": _said(22)}]),
        message(_said(23)),
        function_call("f", json.dumps({"k": _said(24)})),
    ]
    replies = [reply(*output, stream=stream), reply(message(_said(25)), stream=stream)]
    async with running(emptied_database_url, replies) as application:
        headers = {"authorization": f"Bearer {CLIENT_API_KEY}", "cookie": SECRET}
        answer = await application.post(_asked(stream=stream), **headers)
        response_id = application.sent()["request_id"]
        assert answer.status_code == 200
        outputs = [{"type": "function_call_output", "call_id": "call_1", "output": _said(26)}]
        await application.turn(input=outputs, previous_response_id=response_id, stream=stream)
        await application.listed(response_id)
        await application.http.get(f"/v1/responses/{response_id}")
        await application.http.delete(f"/v1/responses/{response_id}")
        lines = _check(application, library_log)
        assert [line["event"] for line in lines] == ["turn_began", "request"] * 2 + ["request"] * 3
        # What is known at a turn's beginning is told at once at level debug alone: one line a turn is enough.
        assert [line["level"] for line in lines[:2]] == ["debug", "info"]
        first, second = lines[1], lines[3]
        assert (first["method"], first["route"], first["status"]) == ("POST", "/v1/responses", 200)
        assert first["bytes"] == len(answer.content)
        assert first["response_id"] == response_id
        assert first["request_id"] == lines[0]["request_id"] == answer.headers["x-request-id"]
        assert (first["input_items"], first["history_items"], first["left_out_items"]) == (5, 0, 1)
        assert (first["turn"], first["output_items"], first["store"]) == ("completed", 3, True)
        assert 0 < first["duration_ms"] < 60_000
        assert ("first_event_ms" in first) == stream
        assert (second["previous_response_id"], second["history_items"]) == (response_id, 8)
        assert [(line["method"], line["route"], line["response_id"]) for line in lines[4:]] == [
            ("GET", "/v1/responses/{response_id}/input_items", response_id),
            ("GET", "/v1/responses/{response_id}", response_id),
            ("DELETE", "/v1/responses/{response_id}", response_id),
        ]


FAILURES: dict[str, tuple[Reply, dict[str, Any]]] = {
    "refused": (
        Reply(status=400, json={"error": {"message": SECRET, "type": SECRET, "param": "input", "code": SECRET}}),
        {},
    ),
    "no JSON": (Reply(text=SECRET), {}),
    "HTML": (Reply(status=502, text=f"<h1>{SECRET}</h1>"), {}),
    "an error in the stream": (
        Reply(sse=f'data: {{"type":"error","message":"{SECRET}","code":"{SECRET}"}}\n\n'),
        {"stream": True},
    ),
    "a broken event": (Reply(sse=f"{(reply(stream=True).sse_chunks or [])[0]}data: {SECRET}\n\n"), {"stream": True}),
    "a sealed item": (
        Reply(),
        {"input": [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": SECRET}]},
    ),
    "an unknown role": (Reply(), {"input": [{"role": SECRET, "content": SECRET}]}),
    "a wrong type": (Reply(), {"temperature": SECRET}),
    "a wrong choice": (Reply(), {"truncation": SECRET}),
    "an unknown tool": (Reply(), {"tool_choice": {"type": "function", "name": SECRET}}),
    "an unknown conversation": (Reply(), {"conversation": SECRET}),
}


@pytest.mark.parametrize(("answer", "members"), FAILURES.values(), ids=FAILURES)
async def test_turns_that_fail(
    library_log: pytest.LogCaptureFixture, application: Application, answer: Reply, members: dict[str, Any]
) -> None:
    application.mock.replies = [answer]
    failed = await application.post(_asked(**members), authorization=f"Bearer {CLIENT_API_KEY}")
    assert failed.status_code != 200 or b"response.failed" in failed.content
    lines = _check(application, library_log)
    assert [line["event"] for line in lines] in (
        ["request_refused", "request"],
        ["turn_began", "turn_refused", "request"],
        ["turn_began", "request"],
    )
    assert {line["request_id"] for line in lines} == {failed.headers["x-request-id"]}


async def test_a_body_that_cannot_be_read(library_log: pytest.LogCaptureFixture, application: Application) -> None:
    for body in (f'{{"model":"m","input":"{SECRET}', f'{{"{SECRET}":1,"{SECRET}":2}}', f'["{SECRET}"]'):
        assert (await application.post(body.encode())).status_code == 400
    assert (await application.http.get(f"/v1/responses/{SECRET}?after={SECRET}")).status_code == 404
    assert (await application.post({"model": "m", "input": [{"role": SECRET, "content": SECRET}]})).status_code == 400
    lines = [line for line in _check(application, library_log) if line["event"] == "request_refused"]
    assert [line["param"] for line in lines] == [None, None, None, "input[0]"]


@both_modes
async def test_a_write_that_fails(
    library_log: pytest.LogCaptureFixture, emptied_database_url: str, stream: bool
) -> None:
    """Drivers quote the values that they choke on: what is logged of their errors is where they came from."""
    async with (
        running(emptied_database_url, [reply(message(_said(30)), stream=stream)]) as application,
        connected(emptied_database_url) as connection,
    ):
        # A mistake of ours, as it were: nothing that a client or an operator could do anything about.
        await connection.execute("alter table items add constraint nothing_may_be_said check (body = '') not valid")
        try:
            answer = await application.post(_asked(stream=stream))
        finally:
            await connection.execute("alter table items drop constraint nothing_may_be_said")
        told = json.loads(answer.content) if not stream else {}
        assert answer.status_code == (200 if stream else 500)
        assert stream or told["error"]["type"] == "server_error"
        assert "nothing_may_be_said" not in answer.text
        lines = _check(application, library_log)
        [crash] = [line for line in lines if line["event"] == "turn_crashed"]
        assert crash["level"] == "error"
        assert crash["response_id"] == application.sent()["request_id"]
        assert "server/store/database.py" in crash["frames"]


async def test_a_database_that_lost_its_tables(library_log: pytest.LogCaptureFixture, database_url: str) -> None:
    async with (
        running(database_url, [reply(message(_said(31)), stream=False)]) as application,
        connected(database_url) as connection,
    ):
        await connection.execute("drop table responses cascade")
        assert (await application.post(_asked())).status_code == 500
        assert (await application.http.get(f"/v1/responses/{SECRET}")).status_code == 500
        assert {line["event"] for line in _check(application, library_log)} >= {"turn_crashed", "request_crashed"}


async def test_edits_of_conversations(library_log: pytest.LogCaptureFixture, application: Application) -> None:
    said = {"role": "user", "content": _said(40), "id": _said(41)}
    conversation_id = await application.converse(said, metadata={_said(42): _said(43)})
    path = f"/v1/conversations/{conversation_id}"
    http = application.http
    for answer in (
        await http.post(path, json={"metadata": {_said(44): _said(45)}}),
        await http.post(f"{path}/items", json={"items": [said | {"id": f"{SECRET}-{n}"} for n in (46, 47)]}),
        await http.get(f"{path}/items"),
        await http.delete(f"{path}/items/{_said(41)}"),
        await http.delete(path),
    ):
        assert answer.status_code == 200
    lines = [line for line in _check(application, library_log) if line["event"] != "request"]
    assert [(line["level"], line["event"], line["conversation_id"]) for line in lines] == [
        ("info", event, conversation_id)
        for event in (
            "conversation_created",
            "metadata_replaced",
            "items_added",
            "item_removed",
            "conversation_deleted",
        )
    ]
    assert lines[2]["items"] == 2


async def test_edits_that_are_refused(library_log: pytest.LogCaptureFixture, application: Application) -> None:
    http = application.http
    said = {"role": "user", "content": _said(50), "id": _said(51)}
    conversation_id = await application.converse(said)
    path = f"/v1/conversations/{conversation_id}"
    await http.post(f"{path}/items", json={"items": [said]})
    await http.post("/v1/conversations", json={"metadata": {_said(52): 1}})
    await http.post(path, content=f'{{"{SECRET}":1,"{SECRET}":2}}')
    await http.delete(f"{path}/items/{SECRET}")
    await http.delete(f"/v1/conversations/{SECRET}")
    await http.delete(f"/v1/conversations/conv_{'0' * 48}")
    # What is only read is no edit.
    await http.get(f"{path}/items/{SECRET}")
    lines = [line for line in _check(application, library_log) if line["event"] != "request"][1:]
    assert {(line["level"], line["event"]) for line in lines} == {("info", "edit_refused")}
    assert [(line["edit"], line.get("conversation_id"), line["status"], line["code"]) for line in lines] == [
        ("items_added", conversation_id, 400, "invalid_value"),
        ("conversation_created", None, 400, "invalid_type"),
        ("metadata_replaced", conversation_id, 400, "invalid_value"),
        ("item_removed", conversation_id, 404, None),
        ("conversation_deleted", None, 404, None),
        ("conversation_deleted", f"conv_{'0' * 48}", 404, None),
    ]


@both_modes
async def test_what_kept_a_turn_from_its_model_server_is_told_by_its_type(
    library_log: pytest.LogCaptureFixture, application: Application, stream: bool
) -> None:
    application.mock.replies = [Reply(close=True)]
    assert (await application.post({"model": "m", "input": "x", "stream": stream})).status_code == 502
    _, refused, _ = _check(application, library_log)
    assert (refused["event"], refused["cause"]) == ("turn_refused", "RemoteProtocolError")


async def test_a_clients_id_goes_through(library_log: pytest.LogCaptureFixture, application: Application) -> None:
    answer = await application.post({"model": "m", "input": "q"}, **{"x-request-id": "3f1c9a52-07de.AB:1"})
    assert answer.headers["x-request-id"] == "3f1c9a52-07de.AB:1"
    assert {line["request_id"] for line in _check(application, library_log)} == {"3f1c9a52-07de.AB:1"}


@pytest.mark.parametrize("given", ["", "a b", f"a{'b' * 128}", "-a", "a\xe9", '"a"', "a=b"])
async def test_what_is_no_id_is_not_taken_for_one(application: Application, given: str) -> None:
    answer = await application.http.get("/v1/responses/x", headers={"x-request-id": given.encode("latin-1")})
    assert re.fullmatch("req_[0-9a-f]{32}", answer.headers["x-request-id"])
    [line] = map(json.loads, application.log.splitlines())
    assert line["request_id"] == answer.headers["x-request-id"]


async def test_a_route_is_told_and_no_path(library_log: pytest.LogCaptureFixture, application: Application) -> None:
    for path in (
        f"/v1/{SECRET}",
        f"/v1/conversations/{SECRET}/items/{SECRET}?after={SECRET}",
        f"/v1/models/{SECRET}",
        f"/v1/responses/{SECRET}",
    ):
        assert (await application.http.get(path)).status_code == 404
    await application.http.get("/healthz")
    lines = _check(application, library_log)
    assert [(line["level"], line["route"], line["status"]) for line in lines] == [
        ("info", None, 404),
        ("info", "/v1/conversations/{conversation_id}/items/{item_id}", 404),
        ("info", "/v1/models/{model}", 404),
        ("info", "/v1/responses/{response_id}", 404),
        ("debug", "/healthz", 200),
    ]
    assert not any("response_id" in line or "conversation_id" in line for line in lines)


async def test_a_turn_that_outlives_its_request_has_a_line_of_its_own(
    library_log: pytest.LogCaptureFixture, application: Application
) -> None:
    with application.upstream_held():
        body = {"model": "m", "input": "q"}
        asking = asyncio.create_task(application.http.post("/v1/responses", json=body, headers={"x-request-id": "r"}))
        await until(lambda: bool(application.mock.posts))
        asking.cancel()
        await until(lambda: '"request"' in application.log)
    await until(lambda: "turn_ended" in application.log)
    began, request, ended = _check(application, library_log)
    assert [line["event"] for line in (began, request, ended)] == ["turn_began", "request", "turn_ended"]
    assert (request["status"], request["bytes"], "turn" in request) == (None, 0, False)
    assert (ended["turn"], ended["response_id"], ended["request_id"]) == ("completed", began["response_id"], "r")
