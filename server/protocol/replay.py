"""Replay: stored items and a profile give the copy that an upstream can read. The one place that decides it (DESIGN 6).

What lives here never changes a stored item: a copy is made anew each time, so a chain stored by an older release heals
by itself. The copy of an item depends on the item, the items of its own turn and its call's answer, never on where it
stands; so turn n+1 begins with turn n's bytes and the upstream's prefix cache keeps hitting.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from server import errors
from server.protocol import raw
from server.protocol.context import Context, is_assistants, is_call, is_cut
from server.protocol.items import Item
from server.protocol.profile import Profile


class Decision(msgspec.Struct, frozen=True):
    """What becomes of an item upstream, by which rule; `copy` is None where it is left out."""

    item: Item
    action: Literal["kept", "changed", "left_out"]
    rule: str
    copy: bytes | None


class _Place(NamedTuple):
    """An item, and what of its surroundings its copy depends on."""

    item: Item
    cut: raw.Object
    profile: Profile
    param: str
    beside_call: bool
    is_answered: bool
    answers: Item | None


def replay(context: Context, profile: Profile, history_param: str) -> list[Decision]:
    """A decision for each item of the context, in order.

    `history_param` is the request member that brought the history in. Raises ApiError 400
    `encrypted_reasoning_not_supported` for an item that holds nothing but sealed content.
    """
    return [_decide(place) for place in _places(context, profile, history_param)]


def _places(context: Context, profile: Profile, history_param: str) -> Iterator[_Place]:
    items = context.items()
    position = 0
    for number, turn in enumerate(context.turns):
        is_input = number == len(context.turns) - 1
        beside_calls = _beside_calls(turn)
        for index, item in enumerate(turn):
            answers = context.answers.get(position)
            yield _Place(
                item=item,
                cut=raw.Object(item.body),
                profile=profile,
                param=f"input[{index}]" if is_input else history_param,
                beside_call=index in beside_calls,
                is_answered=position in context.answered,
                answers=None if answers is None else items[answers],
            )
            position += 1


def _beside_calls(turn: Sequence[Item]) -> set[int]:
    """The indexes of the items that share a run with a call: what a turn put out, or an unbroken inline run."""
    found: set[int] = set()
    run: list[int] = []
    for index, item in enumerate(turn):
        if run and (item.is_output != turn[run[-1]].is_output or not is_assistants(item)):
            found.update(run if any(is_call(turn[one]) for one in run) else ())
            run = []
        if is_assistants(item):
            run.append(index)
    found.update(run if any(is_call(turn[one]) for one in run) else ())
    return found


def _decide(place: _Place) -> Decision:
    decide = _RULES.get(place.item.type)
    if decide is None or place.item.type not in place.profile.item_members:
        return _decide_unreadable(place)
    return decide(place)


def _decide_unreadable(place: _Place) -> Decision:
    if place.cut.string("encrypted_content"):
        return _refuse_or_omit(place)
    return _left_out(place, "type_not_readable")


def _refuse_or_omit(place: _Place) -> Decision:
    if place.profile.encrypted_only == "refuse":
        raise errors.encrypted_only(place.item.public_id, place.param)
    return _left_out(place, "encrypted_only")


def _decide_reasoning(place: _Place) -> Decision:
    texts = [text for text in _texts(place.cut.get("content")) if text != b'""']
    encrypted = bool(place.cut.string("encrypted_content"))
    if not texts:
        if encrypted:
            return _refuse_or_omit(place)
        has_summary = any(text != b'""' for text in _texts(place.cut.get("summary")))
        return _left_out(place, "summary_is_not_reasoning" if has_summary else "empty")
    part = b'{"type":"reasoning_text","text":' + raw.joined(texts, rb"\n") + b"}"
    copy = _copy(place, {"summary": b"[]", "content": raw.array([part])})
    if encrypted:
        return Decision(place.item, "changed", "encrypted_state_left_out", copy)
    return Decision(place.item, "kept" if len(texts) == 1 else "changed", "plaintext", copy)


def _decide_message(place: _Place) -> Decision:
    content = place.cut.get("content") or b"[]"
    if content in (b'""', b"[]"):
        return _left_out(place, "empty")
    if place.cut.string("role") != "assistant":
        return Decision(place.item, "kept", "message", _copy(place, {"content": _without_nulls(content)}))
    texts = _texts(content)
    text = raw.joined(texts)
    if text == b'""':
        return _left_out(place, "empty")
    if place.beside_call and not raw.decode(text).strip():
        return _left_out(place, "blank_beside_call")
    part = b'{"type":"output_text","text":' + text + b',"annotations":[]}'
    action: Literal["kept", "changed"] = "kept" if len(texts) == 1 else "changed"
    return Decision(place.item, action, "message", _copy(place, {"content": raw.array([part])}))


def _decide_call(place: _Place) -> Decision:
    if not is_cut(place.item):
        return Decision(place.item, "kept", "call", _copy(place, {}))
    if not place.is_answered:
        return _left_out(place, "cut_call")
    # The call goes up with its output, so that the model sees the tool's error.
    arguments = {"arguments": b'"{}"'} if place.item.type == "function_call" else {}
    return Decision(place.item, "changed", "cut_call", _copy(place, arguments))


def _decide_output(place: _Place) -> Decision:
    changes = {"output": _without_nulls(place.cut.get("output") or b'""')}
    if place.item.call_id is None and place.answers is not None and place.answers.call_id is not None:
        changes["call_id"] = raw.literal(place.answers.call_id)
    return Decision(place.item, "kept", "output", _copy(place, changes))


def _left_out(place: _Place, rule: str) -> Decision:
    return Decision(place.item, "left_out", rule, None)


def _copy(place: _Place, changes: dict[str, bytes]) -> bytes:
    """The item with its allow-listed members that are not null; `changes` are sent in place of what it has."""
    members = {"type": raw.literal(place.item.type)}
    for name in place.profile.item_members[place.item.type]:
        value = changes.get(name) or place.cut.get(name)
        if name == "id" and place.item.is_output:
            value = raw.literal(place.item.public_id)
        if value is not None:
            members[name] = value
    return raw.render(members)


def _texts(content: bytes | None) -> list[bytes]:
    """The string literals of a content: of the string that it is, or of its parts' texts and refusals, in order."""
    if content is None:
        return []
    if content.startswith(b'"'):
        return [content]
    parts = [raw.Object(part) for part in raw.elements(content)]
    texts = [part.get("text") or part.get("refusal") for part in parts]
    return [text for text in texts if text is not None and text.startswith(b'"')]


def _without_nulls(content: bytes) -> bytes:
    """A content whose parts have no null members; the text as it came where they have none."""
    if not content.startswith(b"["):
        return content
    parts = raw.elements(content)
    cleaned = [_part_without_nulls(part) for part in parts]
    return content if cleaned == parts else raw.array(cleaned)


def _part_without_nulls(part: bytes) -> bytes:
    if not part.startswith(b"{"):
        return part
    members = dict(raw.Object(part).members())
    kept = {name: value for name, value in members.items() if value != raw.NULL}
    return part if len(kept) == len(members) else raw.render(kept)


_RULES: dict[str, Callable[[_Place], Decision]] = {
    "reasoning": _decide_reasoning,
    "message": _decide_message,
    "function_call": _decide_call,
    "custom_tool_call": _decide_call,
    "function_call_output": _decide_output,
    "custom_tool_call_output": _decide_output,
}
