"""Budgets: how much a request may ask for, and how much of a history is sent. 0 is no limit.

What lives here refuses before anything is sent, by a 400 that names the limit; what an upstream finds too long it says
itself.
"""

import msgspec

from server import errors
from server.protocol import raw
from server.protocol.context import Context
from server.protocol.request import Request


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits in tokens, items and bytes.

    `output_tokens` is what is asked for where a request says nothing, `output_tokens_max` the most that it may say,
    `total_tokens_max` what all rounds of a response may cost before there is no other.
    """

    output_tokens: int = 0
    output_tokens_max: int = 0
    total_tokens_max: int = 0
    history_items_max: int = 0
    history_bytes_max: int = 0

    def narrowed(self, other: "Budget") -> "Budget":
        """The tighter limit of both, each for itself; what is asked for by default is as the other says, if it does."""
        if other is NO_LIMITS:
            return self
        mine, others = msgspec.structs.asdict(self), msgspec.structs.asdict(other)
        tighter = {name: min(filter(None, (mine[name], others[name])), default=0) for name in mine}
        return Budget(**tighter | {"output_tokens": other.output_tokens or self.output_tokens})


NO_LIMITS = Budget()


def kept_within(request: Request, context: Context, budget: Budget, history_param: str) -> Request:
    """The request, with the output that it may have at most; raises ApiError 400 where it asks for more."""
    _check_history(context, budget, history_param)
    asked = request.members.get("max_output_tokens")
    limit = budget.output_tokens_max
    if asked is None:
        tokens = budget.output_tokens or limit
        return _asking_for(request, min(tokens, limit) if limit else tokens) if tokens else request
    # It may have thousands of digits, which are compared as a float as they are elsewhere.
    if limit and float(asked) > limit:
        raise errors.above_budget("max_output_tokens", limit)
    return request


def _check_history(context: Context, budget: Budget, history_param: str) -> None:
    if not (budget.history_items_max or budget.history_bytes_max):
        return
    replayed, items = context.replayed, context.items()
    param = history_param if replayed.item_count or len(context.turns) > 1 else "input"
    if budget.history_items_max and replayed.item_count + len(items) > budget.history_items_max:
        raise errors.context_too_long(f"{budget.history_items_max} items", param)
    if (
        budget.history_bytes_max
        and replayed.body_bytes + sum(len(item.body) for item in items) > budget.history_bytes_max
    ):
        raise errors.context_too_long(f"{budget.history_bytes_max} bytes", param)


def _asking_for(request: Request, tokens: int) -> Request:
    members = {**request.members, "max_output_tokens": raw.literal(tokens)}
    return msgspec.structs.replace(request, members=members)
