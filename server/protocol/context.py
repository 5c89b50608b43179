"""A context is history and input together; here it is judged whole, or refused with the id that breaks it.

What lives here looks at the order of items, at calls and their outputs, and at ids (DESIGN 7.5). An output answers the
nearest earlier open call of its family with its call_id, so that ids which an upstream reuses in every turn stay clear.
"""

from collections.abc import Sequence

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


def whole(history: Sequence[list[Item]], request_input: Input) -> Context:
    """The context of a request; raises ApiError 400 where an id comes twice, an output has no call or a call no output.

    Outputs without a call are named first, in order of position, then open calls.
    """
    for turn in history:
        for item in turn:
            if item.public_id in request_input.brought_ids:
                raise errors.repeated_item_id(item.public_id, "input")
    turns = [*history, request_input.items]
    items = [item for turn in turns for item in turn]
    answers = _answers(items)
    answered = frozenset(answers.values())
    input_start = len(items) - len(request_input.items)
    for position, item in enumerate(items):
        if item.type in _FAMILY_OF_CALL and position not in answered and not is_cut(item):
            following = items[max(position + 1, input_start) :]
            if not all(map(is_assistants, following)):
                raise errors.call_without_output(item.call_id or item.public_id)
    return Context(turns, answers, answered)


def is_call(item: Item) -> bool:
    return item.type in _FAMILY_OF_CALL


def is_cut(item: Item) -> bool:
    """Whether a call was cut short: it is incomplete, or a function's arguments are not a JSON object.

    Such a call may be answered but need not be (DESIGN 6).
    """
    cut = raw.Object(item.body)
    if cut.get("status") == b'"incomplete"':
        return True
    if item.type != "function_call":
        return False
    try:
        return not isinstance(raw.decode((cut.string("arguments") or "").encode("utf-8", "surrogatepass")), dict)
    except raw.Malformed:
        return True


def is_assistants(item: Item) -> bool:
    """Whether an item was made by a model: now, or in a history that the client keeps and sends inline."""
    if item.is_output or item.type == "reasoning" or item.type.endswith("_call"):
        return True
    return item.type == "message" and raw.Object(item.body).string("role") == "assistant"


def _answers(items: Sequence[Item]) -> dict[int, int]:
    """The call's position for each output's; raises ApiError 400 for an output that answers no open call."""
    open_calls: dict[str, list[int]] = {}
    answers: dict[int, int] = {}
    for position, item in enumerate(items):
        if call_family := _FAMILY_OF_CALL.get(item.type):
            open_calls.setdefault(call_family, []).append(position)
        elif family := _FAMILY_OF_OUTPUT.get(item.type):
            calls = open_calls.get(family, [])
            call = _nearest(items, calls, item)
            if call is None:
                raise errors.output_without_call(item.call_id or item.public_id)
            calls.remove(call)
            answers[position] = call
    return answers


def _nearest(items: Sequence[Item], open_calls: Sequence[int], output: Item) -> int | None:
    if output.call_id is not None:
        named = (call for call in reversed(open_calls) if _is_named(items[call], output.call_id))
        return next(named, None)
    name = raw.Object(output.body).string("name")
    same_name = (call for call in reversed(open_calls) if name and raw.Object(items[call].body).string("name") == name)
    return next(same_name, open_calls[-1] if open_calls else None)


def _is_named(call: Item, call_id: str) -> bool:
    # A local shell's output names its call by `id` alone (contract api.md 7), which people fill with either id.
    return call.call_id == call_id or (call.type == "local_shell_call" and call.public_id == call_id)
