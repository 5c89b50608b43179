"""A context is history and input together; here it is judged whole, or refused with the id that breaks it.

What lives here looks at the order of items, at calls and their outputs, and at ids (DESIGN 7.5). An output answers the
nearest earlier open call of its family with its call_id, so that ids which an upstream reuses in every turn stay clear.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from server import errors
from server.protocol import raw
from server.protocol.history import OpenCall, Past, Replayed
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
    """What a request comes to: what was replayed before, and turns of items behind it, oldest first.

    The last turn is the request's input, which may be empty. By position in these turns, `answers` has the call that an
    output answers, and `answered` are the calls that one of these turns answers. `open_calls` are those that the
    history leaves without an output.
    """

    replayed: Replayed
    turns: list[list[Item]]
    answers: dict[int, Item]
    answered: frozenset[int]
    open_calls: Sequence[OpenCall]

    def items(self) -> list[Item]:
        """The items of the turns."""
        return [item for turn in self.turns for item in turn]

    @property
    def input_items(self) -> list[Item]:
        return self.turns[-1]

    @property
    def is_settled(self) -> bool:
        """Whether what is sent of the history stays as it is: the copy of a cut call is another once it is answered."""
        return not any(is_cut(call.item) for call in self.open_calls)


def whole(past: Past, request_input: Input, history_param: str = "input") -> Context:
    """The context of a request; raises ApiError 400 where it is not whole.

    `history_param` is the member of the request that names the history. An output there whose call was deleted from
    the conversation is a fault of that, and no other input mends it.

    In this order: an id that the request brings and the history has, an output without a call, a call without an
    output (each by position), and no item at all, which leaves nothing to answer.
    """
    if request_input.brought_ids:
        brought = (item.public_id for item in request_input.items if item.public_id in request_input.brought_ids)
        if (repeated := past.holds(brought)) is not None:
            raise errors.repeated_item_id(repeated, "input")
    context = _answered(past, request_input, history_param)
    if not (past.replayed.item_count or any(context.turns)):
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


def is_assistants(item: Item, cut: raw.Object | None = None) -> bool:
    """Whether an item was made by a model: now, or in a history that the client keeps and sends inline.

    `cut` is the item's body where it is open already.
    """
    if item.is_output or item.type == "reasoning" or item.type.endswith("_call"):
        return True
    # A client's message always has a role: one without it was made by an upstream, and a reference stands for it.
    return item.type == "message" and (cut or raw.Object(item.body)).string("role") in ("assistant", None)


def _answered(past: Past, request_input: Input, history_param: str) -> Context:
    """The context, with the call that each output answers; raises ApiError 400 for what answers none or is not
    answered."""
    history = [item for turn in past.turns for item in turn]
    items = [*history, *request_input.items]
    by_name = any(item.type in _FAMILY_OF_OUTPUT and item.call_id is None for item in items)
    calls = _Calls(past.replayed.open_calls, by_name=by_name)
    calls.take(history, history_param)
    open_calls = calls.open_to(history)
    calls.take(request_input.items, "input")
    for call in calls.open_to(items):
        # The history too is judged anew: a conversation may have been edited since.
        if call.is_followed and not is_cut(call.item):
            raise errors.call_without_output(call.item.call_id or call.item.public_id)
    return Context(
        past.replayed,
        [*past.turns, request_input.items],
        {position: call.item for position, call in calls.answers.items()},
        frozenset(call.position for call in calls.answers.values()),
        open_calls,
    )


class _Call(msgspec.Struct, frozen=True):
    """A call at a position of the new turns, -1 for one of what was replayed before."""

    position: int
    item: Item
    is_followed: bool = False


class _Calls:
    """The calls of a context, each under all the keys that an output may name it by, the newest last.

    `answers` has, by the position of an output, the call that it answers; `by_name` says that some output names its
    call by nothing but its tool's name.
    """

    def __init__(self, open_calls: Iterable[OpenCall], *, by_name: bool) -> None:
        self.answers: dict[int, _Call] = {}
        self._by_name = by_name
        self._position = 0
        self._calls: list[_Call] = []
        self._waiting: dict[_Key, list[int]] = {}
        self._answered: set[int] = set()
        for call in open_calls:
            self._add(_Call(-1, call.item, call.is_followed))

    def take(self, items: Iterable[Item], param: str) -> None:
        """The items that come next; raises ApiError 400 for an output without a call, which `param` brought."""
        for item in items:
            if item.type in _FAMILY_OF_CALL:
                self._add(_Call(self._position, item))
            elif family := _FAMILY_OF_OUTPUT.get(item.type):
                call = self._answered_by(_keys_of_output(item, family))
                if call is None:
                    raise errors.output_without_call(item.call_id or item.public_id, param)
                self.answers[self._position] = call
            self._position += 1

    def open_to(self, items: Sequence[Item]) -> list[OpenCall]:
        """The calls that wait, these items being all; each counts as followed that others than a model's follow."""
        if len(self._answered) == len(self._calls):
            return []
        more = (position for position in range(len(items) - 1, -1, -1) if not is_assistants(items[position]))
        last = next(more, -1)
        return [
            OpenCall(call.item, call.is_followed or call.position < last)
            for number, call in enumerate(self._calls)
            if number not in self._answered
        ]

    def _add(self, call: _Call) -> None:
        for key in _keys_of_call(call.item, _FAMILY_OF_CALL[call.item.type], by_name=self._by_name):
            self._waiting.setdefault(key, []).append(len(self._calls))
        self._calls.append(call)

    def _answered_by(self, keys: Iterable[_Key]) -> _Call | None:
        """The newest waiting call under the first of these keys that has one; it waits no more."""
        for key in keys:
            waiting = self._waiting.get(key, [])
            while waiting:
                number = waiting.pop()
                if number not in self._answered:
                    self._answered.add(number)
                    return self._calls[number]
        return None


def _keys_of_call(call: Item, family: str, *, by_name: bool) -> list[_Key]:
    keys: list[_Key] = [(family, "any", None), (family, "id", call.call_id or call.public_id)]
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
