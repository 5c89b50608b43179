"""Spans: where the time of a request goes, from its route to the model server and the store. Handed in with telemetry.

Rule of this file: a span has names, ids and numbers of ours, never a text of a client, a model or an exception.
OpenTelemetry is an extra, and nothing of it is imported where no spans are wanted.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

Told = Callable[[str | None, int | None], None]
"""Takes the route and the status of a request that was answered, None where there was none."""

Header = tuple[bytes, bytes]


class Spans(Protocol):
    def request(
        self, method: str, request_id: str, traceparent: str | None, /
    ) -> contextlib.AbstractContextManager[Told]:
        """A span of a request; `traceparent` is what its client sent. What is done meanwhile belongs to it."""

    def of(self, name: str, /, **attributes: str | int) -> contextlib.AbstractContextManager[None]:
        """A span of a part of the work."""

    def headers(self) -> Sequence[Header]:
        """What a call to another server carries, so that its spans belong to the current one."""

    async def close(self) -> None:
        """Send what was not sent yet."""


class _NoSpans:
    def request(self, *_: object) -> contextlib.AbstractContextManager[Told]:
        return _NO_REQUEST

    def of(self, _: str, /, **__: str | int) -> contextlib.AbstractContextManager[None]:
        return _NO_SPAN

    def headers(self) -> Sequence[Header]:
        return ()

    async def close(self) -> None:
        pass


# Made once: there is nothing to be told of either.
_NO_SPAN: Final = contextlib.nullcontext()
_NO_REQUEST: Final[contextlib.AbstractContextManager[Told]] = contextlib.nullcontext(lambda *_: None)
NO_SPANS: Final[Spans] = _NoSpans()


def is_available() -> bool:
    """Whether what the extra `otel` brings is installed."""
    # The last of these is asked for only where its parents are there, which it would import.
    names = ("opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.exporter.otlp.proto.http")
    try:
        return all(find_spec(name) is not None for name in names)
    except ModuleNotFoundError:
        return False


class OpenTelemetrySpans:
    """Spans for an OTLP collector, by default; where it is, and which of them are sent, say the OTEL_* variables.

    Raises ImportError where the extra `otel` is not installed.
    """

    def __init__(self, exporter: "SpanExporter | None" = None) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.trace import SpanKind  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        # OTEL_SERVICE_NAME, where it is set, is the operator's own word.
        name = os.environ.get("OTEL_SERVICE_NAME") or "rejoinder"
        self._provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("rejoinder")
        self._propagator = TraceContextTextMapPropagator()
        self._server, self._inside = SpanKind.SERVER, SpanKind.INTERNAL
        self._kinds = {"upstream": SpanKind.CLIENT}

    @contextlib.contextmanager
    def request(self, method: str, request_id: str, traceparent: str | None, /) -> Iterator[Told]:
        # Its neighbour `tracestate` is a text of its client's choice, and stays here.
        parent = self._propagator.extract({} if traceparent is None else {"traceparent": traceparent})
        with self._tracer.start_as_current_span(
            method, parent, kind=self._server, record_exception=False, set_status_on_exception=False
        ) as span:
            span.set_attribute("http.request.method", method)
            span.set_attribute("rejoinder.request_id", request_id)

            def tell(route: str | None, status: int | None) -> None:
                if route is not None:
                    span.update_name(f"{method} {route}")
                    span.set_attribute("http.route", route)
                if status is not None:
                    span.set_attribute("http.response.status_code", status)
                if status is None or status >= 500:
                    _fail(span)

            yield tell

    @contextlib.contextmanager
    def of(self, name: str, /, **attributes: str | int) -> Iterator[None]:
        with self._tracer.start_as_current_span(
            name,
            kind=self._kinds.get(name, self._inside),
            attributes={f"rejoinder.{key}": value for key, value in attributes.items()},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                # What an exception says may quote what was asked.
                span.set_attribute("error.type", type(error).__name__)
                _fail(span)
                raise

    def headers(self) -> Sequence[Header]:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return [(name.encode(), value.encode()) for name, value in carrier.items()]

    async def close(self) -> None:
        # It waits for the collector.
        await asyncio.to_thread(self._provider.shutdown)


def _fail(span: "Span") -> None:
    from opentelemetry.trace import StatusCode  # noqa: PLC0415

    span.set_status(StatusCode.ERROR)
