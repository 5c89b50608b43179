"""Marked secrets on every path, at level debug: none in logs, metrics, traces, and what others are told (DESIGN 8).

Every secret holds MARK, which no escape changes. What is searched is all that was written, not lines that are expected.
"""

import base64
import contextlib
import importlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from server.mock import Reply
from server.tracing import OpenTelemetrySpans
from tests.application import Application, both_modes, function_call, message, reasoning, reply, running
from tests.postgres import connected

MARK = "LEAKMARK"


def secret(name: str) -> str:
    return f"{MARK}-{name}"


# What a client sends besides the body. `x-request-id` is an id by its form alone, which this has not.
HEADERS = {
    "authorization": f"Bearer {secret('client-key')}",
    "cookie": secret("cookie"),
    "x-request-id": f"{secret('request id')} {{}}",
    "traceparent": secret("traceparent"),
    "tracestate": f"vendor={secret('tracestate')}",
    "user-agent": secret("user-agent"),
    "idempotency-key": secret("idempotency-key"),
}


def asked(**members: Any) -> dict[str, Any]:
    """A request with a secret wherever a client can put one."""
    sealed = {
        "type": "reasoning",
        "id": secret("reasoning-id"),
        "summary": [{"type": "summary_text", "text": secret("summary")}],
        "content": [{"type": "reasoning_text", "text": secret("reasoning")}],
        "encrypted_content": base64.b64encode(secret("sealed").encode()).decode() + secret("blob"),
    }
    call_id = secret("call-id")
    return {
        "model": secret("model"),
        "input": [
            {"role": "user", "id": secret("message-id"), "content": [{"type": "input_text", "text": secret("prompt")}]},
            sealed,
            {"type": "function_call", "call_id": call_id, "name": secret("tool"), "arguments": f'{{"k":"{MARK}"}}'},
            {"type": "function_call_output", "call_id": call_id, "output": secret("tool-output")},
            {"type": f"x_{MARK}", "x": secret("unknown-item")},
        ],
        "instructions": secret("instructions"),
        "metadata": {secret("metadata-key"): secret("metadata-value")},
        "user": secret("user"),
        "safety_identifier": secret("safety"),
        "prompt_cache_key": secret("cache-key"),
        f"x_{MARK}": secret("unknown-member"),
        "tools": [{"type": "function", "name": secret("tool"), "description": secret("description"), "parameters": {}}],
        **members,
    }


def answered(stream: bool) -> Reply:
    """What a model server says, marked."""
    return reply(
        reasoning(secret("thought"), encrypted_content=secret("own-blob"), id=secret("rs")),
        message(secret("answer"), id=secret("msg")),
        function_call(secret("tool"), json.dumps({"k": secret("arguments")}), call_id=secret("own-call")),
        stream=stream,
        id=secret("upstream-response-id"),
        system_fingerprint=secret("fingerprint"),
    )


class Watched:
    """A server, and all that it writes."""

    def __init__(
        self,
        application: Application,
        spans: OpenTelemetrySpans,
        exported: InMemorySpanExporter,
        libraries: pytest.LogCaptureFixture,
        terminal: pytest.CaptureFixture[str],
    ) -> None:
        self.application = application
        self._spans = spans
        self._exported = exported
        self._libraries = libraries
        self._terminal = terminal

    async def ask(self, body: dict[str, Any] | bytes, **headers: str) -> Any:
        return await self.application.post(body, **(HEADERS | headers))

    async def check(self) -> str:
        """What was written and what others are told hold no secret. Returns the server's log."""
        metrics = (await self.application.http.get("/metrics")).text
        assert "rejoinder_turns_total" in metrics
        # They are sent every few seconds.
        self._spans._provider.force_flush()
        traces = "".join(span.to_json() for span in self._exported.get_finished_spans())
        assert "http.route" in traces
        terminal = self._terminal.readouterr()
        written = {
            "log": self.application.log,
            "metrics": metrics,
            "traces": traces,
            "terminal": terminal.out + terminal.err,
            "libraries": self._libraries.text + "".join(map(repr, self._libraries.records)),
            "others": await self._told_to_others(),
        }
        for place, text in written.items():
            assert MARK not in text, f"{place}: {text[max(0, text.index(MARK) - 300) :][:600]}"
        return written["log"]

    async def _told_to_others(self) -> str:
        """The errors that a client gets who has sent no secret."""
        http = self.application.http
        answers = [
            await http.get("/v1/responses/resp_x"),
            await http.get("/v1/responses/resp_x/input_items"),
            await http.delete("/v1/conversations/conv_x"),
            await http.get("/v1/nothing"),
            await http.put("/v1/models"),
            await http.post("/v1/responses", content=b"{"),
            await http.post("/v1/responses", json={"model": "m"}),
            await http.post("/v1/responses", json={"model": "m", "input": "q", "previous_response_id": "resp_x"}),
        ]
        assert all(answer.status_code >= 400 for answer in answers)
        return "".join(answer.text + repr(answer.headers) for answer in answers)


@pytest.fixture
async def watched(
    emptied_database_url: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> AsyncIterator[Watched]:
    caplog.set_level(logging.DEBUG)
    # What the tests' own client says of what it sends.
    for name in ("httpx", "httpcore", "openai"):
        caplog.set_level(logging.CRITICAL, logger=name)
    exported = InMemorySpanExporter()
    spans = OpenTelemetrySpans(exported)
    async with running(
        with_password(emptied_database_url),
        spans=spans,
        upstream_api_key=secret("upstream-key"),
        history_cache_bytes=0,
        log_level="debug",
    ) as application:
        yield Watched(application, spans, exported, caplog, capfd)
    # What is told at the end is told as well.
    assert MARK not in application.log


def with_password(url: str) -> str:
    """The database's URL with a marked password, where it is a Postgres that asks for none."""
    parts = urlsplit(url)
    if parts.password is not None:
        return url
    return parts._replace(netloc=parts.netloc.replace("@", f":{secret('database-password')}@", 1)).geturl()


@both_modes
async def test_what_succeeds(watched: Watched, stream: bool) -> None:
    application = watched.application
    application.mock.replies = [answered(stream), answered(stream)]
    first = await watched.ask(asked(stream=stream))
    assert first.status_code == 200
    assert MARK in first.text
    response_id = application.sent()["request_id"]
    output = {"type": "function_call_output", "call_id": secret("own-call"), "output": secret("second-output")}
    second = {"previous_response_id": response_id, "input": [output], "stream": stream}
    assert (await watched.ask(asked(**second), **{"idempotency-key": secret("second")})).status_code == 200
    # The same again, told from what is stored.
    assert (await watched.ask(asked(stream=stream))).status_code == 200
    http = application.http
    for path in ("", "/input_items"):
        read = await http.get(f"/v1/responses/{response_id}{path}?x={MARK}", headers=HEADERS)
        assert MARK in read.text
    rehearsed = await http.post("/v1/responses/replay", json=asked(), headers=HEADERS)
    assert rehearsed.status_code == 200
    assert (await http.delete(f"/v1/responses/{response_id}", headers=HEADERS)).status_code == 200
    assert '"turn":"completed"' in await watched.check()


@both_modes
async def test_conversations(watched: Watched, stream: bool) -> None:
    application = watched.application
    http = application.http
    said = {"role": "user", "content": secret("said"), "id": secret("said-id")}
    conversation_id = await application.converse(said, metadata={secret("key"): secret("value")})
    application.mock.replies = [answered(stream)]
    assert (await watched.ask(asked(stream=stream, conversation=conversation_id))).status_code == 200
    path = f"/v1/conversations/{conversation_id}"
    for answer in (
        await http.post(path, json={"metadata": {secret("key"): secret("value")}}),
        await http.get(f"{path}/items/{secret('said-id')}"),
        await http.delete(f"{path}/items/{secret('said-id')}"),
    ):
        assert answer.status_code == 200
    for answer in (
        await http.get(f"{path}/items?after={MARK}"),
        await http.get(f"{path}/items/{MARK}"),
        await http.post(path, json={"metadata": {secret("key"): 1}}),
        await http.post(f"/v1/conversations/{MARK}/items", json={"items": [said]}),
    ):
        assert answer.status_code in (400, 404)
    await watched.check()


FAILURES: dict[str, Reply] = {
    "a 400 that quotes the prompt": Reply(
        status=400, json={"error": {"message": secret("prompt"), "type": MARK, "param": MARK, "code": MARK}}
    ),
    "pydantic's list": Reply(status=400, json={"detail": [{"loc": ["body", MARK], "input": MARK, "msg": MARK}]}),
    "a 429": Reply(status=429, json={"error": {"message": MARK}}, headers={"retry-after": "7", "x-mark": MARK}),
    "an overflow": Reply(status=400, json={"error": {"message": f"maximum context length {MARK}"}}),
    "a wrong key": Reply(status=401, json={"error": {"message": f"Incorrect API key provided: {MARK}"}}),
    "a 500": Reply(status=500, text=f"Traceback: {MARK}"),
    "HTML": Reply(status=502, text=f"<h1>{MARK}</h1>"),
    "no JSON": Reply(text=MARK),
    "a cut": Reply(text=MARK, close=True),
    "an error in the stream": Reply(sse=f'data: {{"type":"error","message":"{MARK}","code":"{MARK}"}}\n\n'),
    "a broken event": Reply(sse=f"{(reply(stream=True).sse_chunks or [])[0]}data: {MARK}\n\n"),
    "a stream that breaks off": Reply(sse_chunks=(answered(True).sse_chunks or [])[:5], close=True),
}


@both_modes
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
async def test_what_an_upstream_says_of_a_failure(watched: Watched, failure: Reply, stream: bool) -> None:
    watched.application.mock.replies = [failure]
    answer = await watched.ask(asked(stream=stream))
    assert answer.status_code >= 400 or "response.failed" in answer.text
    assert secret("upstream-key") not in answer.text
    await watched.check()


REFUSED: dict[str, dict[str, Any] | bytes] = {
    "no JSON": f'{{"model":"{MARK}","input":"{MARK}'.encode(),
    "a duplicate": f'{{"{MARK}":1,"{MARK}":2}}'.encode(),
    "no object": f'["{MARK}"]'.encode(),
    "no UTF-8": f'{{"input":"{MARK}\xff"}}'.encode("latin-1"),
    "a role": asked(input=[{"role": MARK, "content": MARK}]),
    "a type": asked(temperature=MARK),
    "a choice": asked(truncation=MARK),
    "a tool": asked(tool_choice={"type": "function", "name": MARK}),
    "a response": asked(previous_response_id=MARK),
    "a conversation": asked(conversation=MARK),
    "a reference": asked(input=[{"type": "item_reference", "id": MARK}]),
    "a sealed item": asked(
        input=[{"type": "reasoning", "id": MARK, "summary": [], "encrypted_content": secret("blob")}]
    ),
    "an output without its call": asked(input=[{"type": "function_call_output", "call_id": MARK, "output": MARK}]),
    "an id twice": asked(input=[{"role": "user", "content": MARK, "id": MARK}] * 2),
    "a prompt": asked(prompt={"id": MARK}),
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
async def test_what_is_refused(watched: Watched, body: dict[str, Any] | bytes) -> None:
    answer = await watched.ask(body)
    assert 400 <= answer.status_code < 500
    await watched.ask(asked(), **{"idempotency-key": "another"})
    await watched.check()


def crashing(name: str) -> Callable[..., Any]:
    """A function that fails as drivers and parsers do: by an exception that quotes all that it was given."""

    def crash(*arguments: Any, **named: Any) -> Any:
        try:
            raise KeyError(secret("cause"))
        except KeyError as error:
            raise ValueError(f"{secret(name)}: {arguments!r} {named!r}") from error

    return crash


# One function of each layer, or one for each mode; all of them are on the way of every turn in its mode.
LAYERS: dict[str, tuple[str, ...]] = {
    "api, before a turn": ("server.api.responses._begin",),
    "api, after it": ("server.api.responses._Reply._start",),
    "engine, before its upstream": ("server.engine.prepare._prepared",),
    "engine, after it": ("server.engine.turn.Turns._store",),
    "protocol, of a request": ("server.engine.prepare.parse",),
    "protocol, of a reply": ("server.engine.turn.assemble_body", "server.protocol.assemble.Assembler.feed"),
    "store, reading": ("server.store.responses.Responses.history",),
    "store, writing": ("server.store.responses.Responses.add",),
    "store, its connection": ("server.store.database.Database._fetch",),
    "upstream": ("server.upstream.client.UpstreamClient._answered",),
}


@contextlib.contextmanager
def broken(*names: str) -> Iterator[None]:
    """While this lasts the functions of these names crash."""
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            owner, _, attribute = name.rpartition(".")
            patch.setattr(found(owner), attribute, crashing(name))
        yield


def found(name: str) -> Any:
    """A module, or a class in one, by its name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(module), attribute)


@both_modes
@pytest.mark.parametrize("names", LAYERS.values(), ids=LAYERS)
async def test_a_crash_in_each_layer(watched: Watched, names: tuple[str, ...], stream: bool) -> None:
    application = watched.application
    application.mock.replies = [reply(message("Yes."), stream=False), answered(stream)]
    first = await application.turn(input="q")
    # Without a key, whose look-up would be what crashes.
    headers = {name: value for name, value in HEADERS.items() if name != "idempotency-key"}
    with broken(*names):
        body = asked(stream=stream, previous_response_id=first["id"])
        # An answer that can't even begin is a connection that ends.
        with contextlib.suppress(httpx.RemoteProtocolError):
            crashed = await application.post(body, **headers)
            assert crashed.status_code == 500 or "response.failed" in crashed.text
            # Who asked is told that there was a fault, and not what it said.
            for name in ("cause", *names):
                assert secret(name) not in crashed.text
    log = await watched.check()
    events = [json.loads(line)["event"] for line in log.splitlines()]
    assert {"turn_crashed", "request_crashed"} & set(events)
    crash = next(json.loads(line) for line in log.splitlines() if "_crashed" in line)
    assert (crash["error"], crash["cause"]) == ("ValueError", "KeyError")
    # The next turn is carried out.
    application.mock.replies = []
    assert (await application.turn(input="q"))["status"] == "completed"


@both_modes
async def test_a_driver_that_quotes_the_row(watched: Watched, emptied_database_url: str, stream: bool) -> None:
    watched.application.mock.replies = [answered(stream)]
    async with connected(emptied_database_url) as connection:
        await connection.execute("alter table items add constraint nothing_fits check (body = '') not valid")
        try:
            await watched.ask(asked(stream=stream))
        finally:
            await connection.execute("alter table items drop constraint nothing_fits")
    assert "turn_crashed" in await watched.check()
