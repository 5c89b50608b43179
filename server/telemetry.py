"""What the server says about itself: logs, one JSON object a line, and with them metrics and spans. Handed in.

Rule of this file: no text of a client, a model or a driver can get into a log by mistake. A field is a short scalar, a
URL loses its credentials and its query, and an exception is its type and the places in our code it passed, never its
message: messages of drivers and parsers quote the values they choke on.
"""

import contextlib
import json
import logging
import math
import re
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TextIO

import msgspec
import structlog
from structlog.typing import EventDict

from server.metrics import Metrics
from server.tracing import NO_SPANS, Spans

Field = str | int | float | bool | None

FIELD_CHARACTERS_MAX: Final = 256
FRAMES_MAX: Final = 6

_AS_THEY_ARE: Final = (int, bool, type(None))
_PACKAGE = Path(__file__).parent
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^\s\"'<>]*)")


class RequestLine:
    """The line about one request, as far as it is known. `noted` are fields of it, by those who carry it out."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.noted: dict[str, Field] = {}
        self.is_open = True


# Whoever works for a request has it around him, also in tasks of his own: nobody has to hand it on.
_REQUEST: ContextVar[RequestLine | None] = ContextVar("request", default=None)


class Telemetry:
    """Writes events at or above `log_level` (debug, info, warning, error) to `stream`, standard error by default.

    An event is a fixed name in our words (`turn_stored`), its fields are ids, sizes, types, statuses and URLs. `pid` is
    in each of them, where there is one, and `request_id` in those about a request.
    """

    def __init__(
        self,
        log_level: str = "info",
        stream: TextIO | None = None,
        *,
        pid: int | None = None,
        spans: Spans = NO_SPANS,
    ) -> None:
        self.metrics = Metrics()
        self.spans = spans
        self._level = _LEVELS[log_level]
        self._logger: Any = structlog.wrap_logger(
            structlog.WriteLogger(stream or sys.stderr),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
                _in_reading_order,
                structlog.processors.JSONRenderer(_json),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(self._level),
            context_class=dict,
        ).bind(**{} if pid is None else {"pid": pid})

    def debug(self, event: str, **fields: Field) -> None:
        if self._level <= logging.DEBUG:
            self._logger.debug(event, **_safe(fields))

    def info(self, event: str, **fields: Field) -> None:
        if self._level <= logging.INFO:
            self._logger.info(event, **_safe(fields))

    def warning(self, event: str, **fields: Field) -> None:
        self._logger.warning(event, **_safe(fields))

    def error(self, event: str, **fields: Field) -> None:
        self._logger.error(event, **_safe(fields))

    def note(self, **fields: Field) -> bool:
        """Add these to the line of the request that this is done for, None for what there is nothing to say of.

        False where there is none, or none any more: its client has left, and what it began goes on.
        """
        line = _REQUEST.get()
        if line is None or not line.is_open:
            return False
        line.noted.update(fields)
        return True

    @contextlib.contextmanager
    def request(self, request_id: str) -> Iterator[RequestLine]:
        """While this lasts all that is done, and what is begun then, is done for this request."""
        line = RequestLine(request_id)
        before = _REQUEST.set(line)
        try:
            yield line
        finally:
            line.is_open = False
            _REQUEST.reset(before)

    def crash(self, event: str, error: BaseException, **fields: Field) -> None:
        """Log an exception nobody expected: its type, its cause's type and our frames it passed, innermost first."""
        self.error(event, **fields, **_described(error))

    def adopt_library_logs(self) -> None:
        """Route the standard library's logging through here, so that a process has one kind of line on its stderr.

        For a process that is the server's own (the serve command): the root logger is global, an embedding program's
        is not ours to take. Libraries speak from warning up; uvicorn tells its start and stop at log level debug.
        """
        root = logging.getLogger()
        root.handlers = [_LibraryRecords(self)]
        root.setLevel(max(self._level, logging.WARNING))
        logging.getLogger("uvicorn.error").setLevel(logging.INFO if self._level == logging.DEBUG else logging.WARNING)
        logging.captureWarnings(True)


def unwrapped(error: BaseException) -> BaseException:
    """What went wrong, out of the exception groups that task groups put around a single exception."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def scrubbed_urls(text: str) -> str:
    """`text` with each URL in it reduced to scheme, host, port and path: no credentials, no query, no fragment."""
    return _URL.sub(lambda match: f"{match[1]}://{_scrubbed_rest(match[2])}", text)


def _scrubbed_rest(rest: str) -> str:
    address = re.split(r"[/?#]", rest, maxsplit=1)[0]
    # An at sign behind the address may end a password that holds an unescaped slash: then nothing of it is certain.
    if "@" in rest[len(address) :]:
        return "***"
    return re.split(r"[?#]", rest.rpartition("@")[2], maxsplit=1)[0]


class _LibraryRecords(logging.Handler):
    """A library's record as an event: which logger, from which line, which exception; its text only where it is safe.

    A text may hold values (SQL parameters, header lines), so it is left out, but for uvicorn's lines of information:
    those tell process ids and addresses of ours.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        super().__init__()
        self._telemetry = telemetry

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Field] = {"logger": record.name, "source": f"{record.filename}:{record.lineno}"}
        if record.name == "uvicorn.error" and record.levelno == logging.INFO:
            fields["text"] = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            fields |= _described(record.exc_info[1])
        if record.levelno >= logging.ERROR:
            self._telemetry.error("library", **fields)
        elif record.levelno >= logging.WARNING:
            self._telemetry.warning("library", **fields)
        else:
            self._telemetry.debug("library", **fields)


def _safe(fields: dict[str, Field]) -> dict[str, Field]:
    # Most are of these types, which cost more to look at than to write.
    safe = {name: value if type(value) in _AS_THEY_ARE else _safe_value(value) for name, value in fields.items()}
    line = _REQUEST.get()
    return safe if line is None else {"request_id": line.request_id, **safe}


def _safe_value(value: Field) -> Field:
    if isinstance(value, str):
        return (scrubbed_urls(value) if "://" in value else value)[:FIELD_CHARACTERS_MAX]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, int | float):
        return value
    # A logging call must never end a turn: what the type checker would have refused is shown as its type.
    return f"<{type(value).__name__}>"


def _json(event: EventDict, **_: object) -> str:
    try:
        return msgspec.json.encode(event).decode()
    except UnicodeEncodeError:
        # Half a character, which is legal as an escape only.
        return json.dumps(event)


def _in_reading_order(_logger: object, _method: str, event: EventDict) -> EventDict:
    first = {name: event.pop(name) for name in ("time", "level", "event")}
    return {**first, **event}


def _described(error: BaseException) -> dict[str, Field]:
    error = unwrapped(error)
    described: dict[str, Field] = {"error": _type_name(error)}
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        described["cause"] = _type_name(cause)
    described["frames"] = _frames(error.__traceback__)
    return described


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _frames(traceback: TracebackType | None) -> str:
    """Our own frames, innermost first (`server/store/rows.py:12 < server/app.py:40`), else the innermost of others."""
    places: list[tuple[Path, int]] = []
    while traceback is not None:
        places.append((Path(traceback.tb_frame.f_code.co_filename), traceback.tb_lineno))
        traceback = traceback.tb_next
    own = [(path.relative_to(_PACKAGE.parent), line) for path, line in places if path.is_relative_to(_PACKAGE)]
    shown = own[-FRAMES_MAX:] or [(Path(*path.parts[-2:]), line) for path, line in places[-1:]]
    return " < ".join(f"{path.as_posix()}:{line}" for path, line in reversed(shown))
