"""A context is history and input together; here it is judged whole, or refused with the id that breaks it.

What lives here looks at the order of items, at calls and their outputs, and at ids (DESIGN 7.5). An output answers the
nearest earlier open call of its family with its call_id, so that ids which an upstream reuses in every turn stay clear.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from server import errors
from server.protocol import raw
from server.protocol.items import Input, Item

_FAMILY_OF_CALL = {
    "function_call": "function",
    "custom_tool_call": "custom",
    "shell_call": "shell",
    "local_shell_call": "local_shell",
    "apply_patch_call": "apply_patch",
    "computer_call": "computer",
}
_FAMILY_OF_OUTPUT = {
    "function_call_output": "function",
    "custom_tool_call_output": "custom",
    "shell_call_output": "shell",
    "local_shell_call_output": "local_shell",
    "apply_patch_call_output": "apply_patch",
    "computer_call_output": "computer",
}


_Key = tuple[str, Literal["any", "id", "name"], str | None]


class Context(msgspec.Struct, frozen=True):
    """Turns of items, oldest first; the last turn is the request's input, which may be empty.

    `answers` has, by position in the whole context, the call that an output answers; `answered` those calls.
    """

    turns: list[list[Item]]
    answers: dict[int, int]
    answered: frozenset[int]

    def items(self) -> list[Item]:
        return [item for turn in self.turns for item in turn]

    def public_ids(self) -> set[str]:
        return {item.public_id for turn in self.turns for item in turn}


def whole(history: Sequence[list[Item]], request_input: Input, history_param: str = "input") -> Context:
    """The context of a request; raises ApiError 400 where it is not whole.

    `history_param` is the member of the request that names the history. An output there whose call was deleted from
    the conversation is a fault of that, and no other input mends it.

    In this order: an id that the request brings and the history has, an output without a call, a call without an
    output (each by position), and no item at all, which leaves nothing to answer.
    """
    for turn in history:
        for item in turn:
            if item.public_id in request_input.brought_ids:
                raise errors.repeated_item_id(item.public_id, "input")
    context = _answered([*history, request_input.items], history_param)
    _refuse_open_calls(context)
    if not any(context.turns):
        raise errors.nothing_to_answer()
    return context


def is_call(item: Item) -> bool:
    return item.type in _FAMILY_OF_CALL


def is_cut(item: Item, cut: raw.Object | None = None) -> bool:
    """Whether a call was cut short: it is incomplete, or a function's arguments are not a JSON object.

    Such a call may be answered but need not be (DESIGN 6). `cut` is the item's body where it is open already.
    """
    cut = cut or raw.Object(item.body)
    if cut.string("status") == "incomplete":
        return True
    if item.type != "function_call":
        return False
    try:
        # Arguments may hold a lone surrogate, which is legal JSON as an escape only.
        raw.Object((cut.string("arguments") or "").encode("utf-8", "backslashreplace"))
    except raw.Malformed:
        return True
    return False


def is_assistants(item: Item) -> bool:
    """Whether an item was made by a model: now, or in a history that the client keeps and sends inline."""
    if item.is_output or item.type == "reasoning" or item.type.endswith("_call"):
        return True
    # A client's message always has a role: one without it was made by an upstream, and a reference stands for it.
    return item.type == "message" and raw.Object(item.body).string("role") in ("assistant", None)


def _answered(turns: list[list[Item]], history_param: str) -> Context:
    """The turns, with the call that each output answers; raises ApiError 400 for an output that answers none."""
    items = [item for turn in turns for item in turn]
    history_length = len(items) - len(turns[-1])
    by_name = any(item.type in _FAMILY_OF_OUTPUT and item.call_id is None for item in items)
    open_calls = _OpenCalls()
    answers: dict[int, int] = {}
    for position, item in enumerate(items):
        if family := _FAMILY_OF_CALL.get(item.type):
            open_calls.add(position, _keys_of_call(item, family, by_name=by_name))
        elif family := _FAMILY_OF_OUTPUT.get(item.type):
            call = open_calls.take(_keys_of_output(item, family))
            if call is None:
                param = history_param if position < history_length else "input"
                raise errors.output_without_call(item.call_id or item.public_id, param)
            answers[position] = call
    return Context(turns, answers, frozenset(answers.values()))


def _refuse_open_calls(context: Context) -> None:
    """Raises ApiError 400 for a call without an output when more follows than a model's own items.

    The history too is judged anew: a conversation may have been edited since.
    """
    items = context.items()
    more = (position for position in range(len(items) - 1, -1, -1) if not is_assistants(items[position]))
    last = next(more, -1)
    for position, item in enumerate(items[: max(last, 0)]):
        if item.type in _FAMILY_OF_CALL and position not in context.answered and not is_cut(item):
            raise errors.call_without_output(item.call_id or item.public_id)


class _OpenCalls:
    """The calls that wait for an output, each under all the keys that an output may name it by, the newest last."""

    def __init__(self) -> None:
        self._waiting: dict[_Key, list[int]] = {}
        self._taken: set[int] = set()

    def add(self, position: int, keys: Iterable[_Key]) -> None:
        for key in keys:
            self._waiting.setdefault(key, []).append(position)

    def take(self, keys: Iterable[_Key]) -> int | None:
        """The newest waiting call under the first of these keys that has one; it waits no more."""
        for key in keys:
            waiting = self._waiting.get(key, [])
            while waiting:
                position = waiting.pop()
                if position not in self._taken:
                    self._taken.add(position)
                    return position
        return None


def _keys_of_call(call: Item, family: str, *, by_name: bool) -> list[_Key]:
    keys: list[_Key] = [(family, "any", None), (family, "id", call.call_id)]
    if call.type == "local_shell_call":
        # Its output names it by `id` alone (contract api.md 7), which people fill with either id.
        keys.append((family, "id", call.public_id))
    if by_name:
        keys.append((family, "name", raw.Object(call.body).string("name")))
    return keys


def _keys_of_output(output: Item, family: str) -> list[_Key]:
    if output.call_id is not None:
        return [(family, "id", output.call_id)]
    name = raw.Object(output.body).string("name")
    any_call: _Key = (family, "any", None)
    return [any_call] if name is None else [(family, "name", name), any_call]
