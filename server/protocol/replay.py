"""Replay: stored items and a profile give the copy that an upstream can read. The one place that decides it (DESIGN 6).

What lives here never changes a stored item: a copy is made anew each time, so a chain stored by an older release heals
by itself. The copy of an item depends on the item, the items of its own turn and its call's answer, never on where it
stands; so turn n+1 begins with turn n's bytes and the upstream's prefix cache keeps hitting.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    """An item, and what of its surroundings its copy depends on.

    An error names the item as `known_as` and the request member that brought it as `param`.
    """

    item: Item
    cut: raw.Object
    profile: Profile
    param: str
    known_as: str
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
            cut = raw.Object(item.body)
            param = f"input[{index}]" if is_input else history_param
            yield _Place(
                item=item,
                cut=cut,
                profile=profile,
                param=param,
                # An id minted for an item of this very request would tell its sender nothing.
                known_as=param if is_input and not _has_text(cut.get("id")) else item.public_id,
                beside_call=index in beside_calls,
                is_answered=position in context.answered,
                answers=None if answers is None else items[answers],
            )
            position += 1


def _beside_calls(turn: Sequence[Item]) -> set[int]:
    """The indexes of the items that share a run with a call: what a turn put out, or an unbroken inline run."""
    found: set[int] = set()
    if not any(map(is_call, turn)):
        return found
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
    if _has_text(place.cut.get("encrypted_content")):
        return _refuse_or_omit(place)
    return _left_out(place, "type_not_readable")


def _refuse_or_omit(place: _Place) -> Decision:
    if place.profile.encrypted_only == "refuse":
        raise errors.encrypted_only(place.known_as, place.param)
    return _left_out(place, "encrypted_only")


def _decide_reasoning(place: _Place) -> Decision:
    texts = list(filter(_has_text, _texts(_parts(place.cut.get("content")))))
    is_sealed = _has_text(place.cut.get("encrypted_content"))
    if not texts:
        if is_sealed:
            return _refuse_or_omit(place)
        has_summary = any(map(_has_text, _texts(_parts(place.cut.get("summary")))))
        return _left_out(place, "summary_is_not_reasoning" if has_summary else "empty")
    part = b'{"type":"reasoning_text","text":' + raw.joined(texts, rb"\n") + b"}"
    copy = _copy(place, {"summary": b"[]", "content": raw.array([part])})
    if is_sealed:
        return Decision(place.item, "changed", "encrypted_state_left_out", copy)
    return Decision(place.item, "kept" if len(texts) == 1 else "changed", "plaintext", copy)


def _decide_message(place: _Place) -> Decision:
    content = place.cut.get("content") or b"[]"
    # An upstream that gives its message no role can mean only one; a client's message always has one.
    if place.cut.string("role") in ("assistant", None):
        return _decide_assistants(place, content)
    if all(_text(part) == b'""' for part in _parts(content)):
        return _left_out(place, "empty")
    return Decision(place.item, "kept", "message", _copy(place, {}))


def _decide_assistants(place: _Place, content: bytes) -> Decision:
    parts = _parts(content)
    texts = _texts(parts)
    text = raw.joined(texts)
    if not _has_text(text):
        return _left_out(place, "empty")
    if place.beside_call and not raw.decode(text).strip():
        return _left_out(place, "blank_beside_call")
    is_plain = len(parts) == 1 and parts[0].get("refusal") is None
    part = b'{"type":"output_text","text":' + text + b',"annotations":[]}'
    copy = _copy(place, {"role": b'"assistant"', "content": raw.array([part])})
    return Decision(place.item, "kept" if is_plain else "changed", "message", copy)


def _decide_call(place: _Place) -> Decision:
    if not is_cut(place.item, place.cut):
        return Decision(place.item, "kept", "call", _copy(place, {}))
    if not place.is_answered:
        return _left_out(place, "cut_call")
    # The call goes up with its output, so that the model sees the tool's error.
    arguments = {"arguments": b'"{}"'} if place.item.type == "function_call" else {}
    return Decision(place.item, "changed", "cut_call", _copy(place, arguments))


def _decide_output(place: _Place) -> Decision:
    output = place.cut.get("output")
    changes = {} if output is None else {"output": _with_details(output)}
    if place.item.call_id is None and place.answers is not None and place.answers.call_id is not None:
        changes["call_id"] = raw.literal(place.answers.call_id)
    return Decision(place.item, "kept", "output", _copy(place, changes))


def _with_details(output: bytes) -> bytes:
    """An output whose images say their `detail`: vLLM refuses one that does not, and clients leave it out."""
    if not output.startswith(b"["):
        return output
    parts = raw.elements(output)
    detailed = [_with_detail(part) for part in parts]
    return output if detailed == parts else raw.array(detailed)


def _with_detail(part: bytes) -> bytes:
    if not part.startswith(b"{"):
        return part
    cut = raw.Object(part)
    lacks_detail = cut.string("type") == "input_image" and cut.get("detail") is None
    return cut.spliced({"detail": b'"auto"'}) if lacks_detail else part


def _left_out(place: _Place, rule: str) -> Decision:
    return Decision(place.item, "left_out", rule, None)


def _copy(place: _Place, changes: dict[str, bytes]) -> bytes:
    """The item's allow-listed members, without nulls at any depth; `changes` are sent in place of what it has."""
    members = {"type": raw.literal(place.item.type)}
    for name in place.profile.item_members[place.item.type]:
        value = _id(place) if name == "id" else changes.get(name) or place.cut.get(name)
        if value is not None:
            members[name] = raw.without_null_members(value)
    return raw.render(members)


def _id(place: _Place) -> bytes | None:
    """The id that clients see, unless it was only minted here to show a client's item by: that one never goes up."""
    is_known = place.item.is_output or _has_text(place.cut.get("id"))
    return raw.literal(place.item.public_id) if is_known else None


def _has_text(value: bytes | None) -> bool:
    return value not in (None, b'""')


def _parts(content: bytes | None) -> list[raw.Object]:
    """The parts of a content, a string being one. What an upstream made was never judged: all else is passed over."""
    if content is None or content[:1] not in (b"[", b'"'):
        return []
    if content.startswith(b'"'):
        return [raw.Object(b'{"text":' + content + b"}")]
    return [raw.Object(part) for part in raw.elements(content) if part.startswith(b"{")]


def _texts(parts: Iterable[raw.Object]) -> list[bytes]:
    """The string literals of parts, in order: their texts and refusals."""
    return [text for text in map(_text, parts) if text is not None]


def _text(part: raw.Object) -> bytes | None:
    text = part.get("text") or part.get("refusal")
    return text if text is not None and text.startswith(b'"') else None


_RULES: dict[str, Callable[[_Place], Decision]] = {
    "reasoning": _decide_reasoning,
    "message": _decide_message,
    "function_call": _decide_call,
    "custom_tool_call": _decide_call,
    "function_call_output": _decide_output,
    "custom_tool_call_output": _decide_output,
}
