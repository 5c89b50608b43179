"""Spans of OpenTelemetry: one a request, those of its work within, and the client's trace carried on upstream."""

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from server.mock import Reply
from server.tracing import OpenTelemetrySpans
from tests.application import Application, both_modes, message, reply, running
from tests.harness import until

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


def by_name(spans: Sequence[ReadableSpan]) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans}


def parent_of(span: ReadableSpan) -> str:
    assert span.parent is not None
    return f"{span.parent.span_id:016x}"


def id_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


@both_modes
async def test_a_turn_is_a_span_with_its_work_within(emptied_database_url: str, stream: bool) -> None:
    exporter = InMemorySpanExporter()
    replies = [reply(message("Yes."), stream=stream)]
    async with running(emptied_database_url, replies, spans=OpenTelemetrySpans(exporter)) as application:
        answer = await application.post(
            {"model": "m", "input": "q", "stream": stream}, traceparent=TRACEPARENT, tracestate="vendor=word"
        )
        received = application.mock.posts[0].headers
    spans = by_name(exporter.get_finished_spans())
    assert set(spans) == {"POST /v1/responses", "upstream", "store"}
    request, upstream, store = spans["POST /v1/responses"], spans["upstream"], spans["store"]
    assert {f"{span.context.trace_id:032x}" for span in spans.values() if span.context} == {TRACE}
    assert parent_of(request) == PARENT
    assert parent_of(upstream) == parent_of(store) == id_of(request)
    assert (request.kind, upstream.kind, store.kind) == (SpanKind.SERVER, SpanKind.CLIENT, SpanKind.INTERNAL)
    assert dict(request.attributes or {}) == {
        "http.request.method": "POST",
        "http.route": "/v1/responses",
        "http.response.status_code": 200,
        "rejoinder.request_id": answer.headers["x-request-id"],
    }
    response_id = application.sent()["request_id"]
    assert dict(upstream.attributes or {}) == {"rejoinder.upstream": "default", "rejoinder.response_id": response_id}
    assert request.resource.attributes["service.name"] == "rejoinder"
    # The upstream's spans belong to the call's.
    told = {name.lower(): value for name, value in received.items()}
    assert told["traceparent"] == f"00-{TRACE}-{id_of(upstream)}-01"
    assert "tracestate" not in told


async def test_a_failure_is_told_by_its_type(emptied_database_url: str) -> None:
    exporter = InMemorySpanExporter()
    replies = [Reply(status=500, text="SECRET"), Reply(status=400, json={"error": {"message": "SECRET"}})]
    async with running(emptied_database_url, replies, spans=OpenTelemetrySpans(exporter)) as application:
        assert (await application.post({"model": "m", "input": "q"})).status_code == 502
        assert (await application.post({"model": "m", "input": "q"})).status_code == 400
    spans = exporter.get_finished_spans()
    first, second = [span for span in spans if span.name == "POST /v1/responses"]
    upstream = next(span for span in spans if span.name == "upstream")
    assert (upstream.attributes or {})["error.type"] == "ApiError"
    assert upstream.status.status_code is first.status.status_code is StatusCode.ERROR
    # A client's fault is none of the server's.
    assert second.status.status_code is StatusCode.UNSET
    assert not any(span.events or span.status.description for span in spans)
    assert "SECRET" not in "".join(span.to_json() for span in spans)


@pytest.mark.parametrize("given", ["nonsense", "", f"00-{'0' * 32}-{PARENT}-01"])
async def test_what_is_no_traceparent_begins_a_trace_of_its_own(emptied_database_url: str, given: str) -> None:
    exporter = InMemorySpanExporter()
    async with running(emptied_database_url, spans=OpenTelemetrySpans(exporter)) as application:
        await application.http.get("/v1/responses/resp_x", headers={"traceparent": given})
    [span] = exporter.get_finished_spans()
    assert span.name == "GET /v1/responses/{response_id}"
    assert span.parent is None


async def test_without_the_setting_no_header_is_passed_on(application: Application) -> None:
    await application.post({"model": "m", "input": "q"}, traceparent=TRACEPARENT)
    await until(lambda: bool(application.mock.posts))
    assert "traceparent" not in {name.lower() for name in application.mock.posts[0].headers}


def ran(code: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"HOME": "/nowhere", "PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_nothing_of_opentelemetry_is_loaded_by_a_server() -> None:
    finished = ran(
        "import sys; import server.cli.serve, server.app; from server.telemetry import Telemetry; Telemetry();"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    assert finished.stdout == "[]\n", finished.stderr


def test_where_it_is_missing_the_start_says_what_to_install() -> None:
    # A name that is None there can't be imported.
    hidden = "import sys; sys.modules['opentelemetry'] = None; from server.cli import main; sys.exit(main())"
    finished = ran(
        hidden.replace("main())", "main(['serve', '--upstream', 'http://127.0.0.1:1/v1', '--port', '0']))"),
        REJOINDER_TRACES="true",
    )
    assert finished.returncode != 0
    assert finished.stderr.strip() == (
        "rejoinder: traces need OpenTelemetry, which is not installed: pip install 'rejoinder[otel]'"
    )
