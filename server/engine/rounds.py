"""Further rounds of a turn: its model thought and said nothing, and is asked to go on from that thought.

What lives here decides whether there is another round, and what a turn is that showed nothing in the end. A server
spends no tokens unasked: without settings there is one round, and a turn is what its upstream says.
"""

from collections.abc import Callable, Sequence

from server.errors import ApiError
from server.protocol import usage
from server.protocol.assemble import Outcome
from server.protocol.items import Item
from server.protocol.visible import is_empty, is_reasoning_only
from server.upstream.choose import Upstream

NO_VISIBLE_OUTPUT = "no_visible_output: the model reasoned and said nothing."
EMPTY_OUTPUT = "The model server ended the response without any output."


class Rounds:
    """The rounds of one turn. `body_after` gives the request that goes on from what was made so far, None where that
    would be the same request again; `total_tokens_max` is what all of them may cost, 0 for any."""

    def __init__(
        self, upstream: Upstream, total_tokens_max: int, body_after: Callable[[Sequence[Item]], list[bytes] | None]
    ) -> None:
        self._upstream = upstream
        self._total_tokens_max = total_tokens_max
        self._left = upstream.continue_reasoning_only
        # It holds the whole context, for which there is no other use.
        self._body_after = body_after if self._left else None
        self._refusal: ApiError | None = None

    def next_body(self, outcome: Outcome | None) -> list[bytes] | None:
        """The request of the next round, None where there is none."""
        if outcome is None or outcome.status != "completed" or not is_reasoning_only(outcome.items):
            return None
        if self._left == 0 or self._body_after is None or self._is_spent(outcome):
            return None
        self._left -= 1
        try:
            return self._body_after(outcome.items)
        except ApiError as refusal:
            # The request was right and has been paid for: what it thought, not its client, made it too long.
            self._refusal = refusal
            return None

    def _why_no_more(self, outcome: Outcome) -> str:
        """The limit, if it is one, that ended the rounds."""
        if self._refusal is not None:
            return f" {self._refusal.message}"
        return f" Its {self._total_tokens_max} tokens are used up." if self._is_spent(outcome) else ""

    def _is_spent(self, outcome: Outcome) -> bool:
        """Whether the rounds so far have cost what a response may cost."""
        limit, costs = self._total_tokens_max, usage.read(outcome.body)
        return bool(limit) and costs is not None and costs.input_tokens + costs.output_tokens >= limit

    def reason_to_fail(self, outcome: Outcome) -> str | None:
        """Why a turn that its upstream calls completed is none."""
        if outcome.status != "completed":
            return None
        if self._upstream.continue_reasoning_only and is_reasoning_only(outcome.items):
            return NO_VISIBLE_OUTPUT + self._why_no_more(outcome)
        return EMPTY_OUTPUT if self._upstream.empty_output == "fail" and is_empty(outcome.items) else None
