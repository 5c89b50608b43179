"""What a process tells of its turns: in the line of the request that began one, and in its metrics.

What lives here knows sizes, ids and statuses. One line a turn is enough, and costs less than two: only a turn that
outlives its request has one of its own.
"""

import re

from server.engine.prepare import Prepared
from server.engine.run import Run
from server.errors import ApiError
from server.protocol import usage
from server.protocol.assemble import Outcome
from server.protocol.request import MEMBERS
from server.telemetry import Field, Telemetry


class Account:
    """All turns of this process, as they begin and end."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._metrics = telemetry.metrics

    def began(self, prepared: Prepared, prefix: str) -> None:
        history = prepared.history
        fields: dict[str, Field] = {
            "response_id": prepared.response_id,
            "previous_response_id": prepared.request.previous_response_id,
            "conversation_id": prepared.request.conversation_id,
            "upstream": prepared.upstream.name,
            "stream": prepared.request.stream,
            "store": prepared.request.store,
            "history_items": history.item_count,
            "input_items": len(prepared.input_items),
            "left_out_items": prepared.left_out_count,
            "upstream_bytes": sum(map(len, prepared.body)),
            "prefix": prefix,
        }
        self._telemetry.debug("turn_began", **fields)
        self._telemetry.note(**fields)
        replayed = [(decision.action, decision.rule) for decision in prepared.decisions]
        self._metrics.turn_began(history.item_count, history.body_bytes, replayed)

    def not_begun(self, error: ApiError) -> None:
        log = self._telemetry.warning if error.status >= 500 else self._telemetry.info
        log("request_refused", status=error.status, code=error.code, param=_place(error), cause=error.cause)

    def ended(self, response_id: str, upstream: str, run: Run, outcome: Outcome) -> None:
        """A turn has a response, which its client has been told, or is about to be."""
        fields: dict[str, Field] = {"turn": outcome.status, "output_items": len(outcome.items)}
        if run.is_stream and run.first_event_s is not None:
            fields["first_event_ms"] = round(run.first_event_s * 1000)
        if not self._telemetry.note(**fields):
            self._telemetry.info("turn_ended", response_id=response_id, **fields, duration_ms=round(run.age_s * 1000))
        self._count(outcome.status, upstream, run)
        self.cost(upstream, outcome)

    def cost(self, upstream: str, outcome: Outcome) -> None:
        """Tokens were paid for, whatever became of what they made."""
        costs = usage.read(outcome.body)
        if costs is not None:
            self._metrics.tokens_used(
                upstream,
                input_tokens=costs.input_tokens,
                cached_tokens=costs.cached_tokens,
                output_tokens=costs.output_tokens,
            )

    def refused(self, response_id: str, upstream: str, run: Run, error: ApiError) -> None:
        """A turn has no response: its client is told why."""
        self._warn("turn_refused", response_id, error)
        self._telemetry.note(turn="refused")
        self._count("refused", upstream, run)

    def broken(self, event: str, response_id: str, error: ApiError) -> None:
        """A stream ends as failed, for a reason that is not its upstream's own."""
        self._warn(event, response_id, error)
        self._metrics.error_told(error.status, error.code)

    def _warn(self, event: str, response_id: str, error: ApiError) -> None:
        self._telemetry.warning(event, response_id=response_id, status=error.status, code=error.code, cause=error.cause)

    def _count(self, status: str, upstream: str, run: Run) -> None:
        self._metrics.turn_ended(
            status, upstream, stream=run.is_stream, duration_s=run.age_s, first_event_s=run.first_event_s
        )


def _place(error: ApiError) -> str | None:
    """Where in a request the fault is, for the log."""
    member = re.match(r"\w*", error.param or "")
    return error.param if member and member[0] in MEMBERS else None
