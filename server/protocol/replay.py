"""Replay: stored items and a profile give the copy that an upstream can read. The one place that decides it (DESIGN 6).

What lives here never changes a stored item: a copy is made anew each time, so a chain stored by an older release heals
by itself. The copy of an item depends on the item, the items of its own turn and its call's answer, never on where it
stands; so turn n+1 begins with turn n's bytes and the upstream's prefix cache keeps hitting.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Literal

import msgspec

from server import errors
from server.protocol import fidelity, raw
from server.protocol.context import Context, is_assistants, is_call, is_cut
from server.protocol.items import Item
from server.protocol.profile import Profile


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of an item upstream, by which rule; `copy` is None where it is left out.

    The copy has the form of the Responses API in either dialect. `message` is the same number for the items that make
    one chat message; in such a message a reasoning text stands in `fields`, and `details` are its `reasoning_details`.
    """

    item: Item
    action: Literal["kept", "changed", "left_out"]
    rule: str
    copy: bytes | None
    message: int
    fields: tuple[str, ...] = ()
    details: bytes | None = None


class _Surroundings(msgspec.Struct, frozen=True, gc=False):
    """What the items of one chat message have in common: its number, whether a call is among them, the fields that
    carry reasoning in it; and who reads them."""

    message: int
    has_call: bool
    fields: tuple[str, ...]
    profile: Profile
    issuer: str


class _Place(msgspec.Struct, frozen=True, gc=False):
    """An item, and what its copy depends on besides.

    `param` is the request member that brought it; `is_asked` says that this is the request's own input.
    """

    item: Item
    cut: raw.Object
    around: _Surroundings
    param: str
    is_asked: bool
    is_answered: bool
    answers: Item | None

    @property
    def known_as(self) -> str:
        """What an error calls it: an id minted for an item of this very request would tell its sender nothing."""
        return self.param if self.is_asked and not _has_text(self.cut.get("id")) else self.item.public_id


def replay(context: Context, profile: Profile, history_param: str, issuer: str) -> list[Decision]:
    """A decision for each item of the context's turns, in order.

    `history_param` is the request member that brought the history in, `issuer` the one of what this upstream makes.
    Raises ApiError 400 `encrypted_reasoning_not_supported` for an item that holds nothing but sealed content which it
    can't open.
    """
    return [_decide(place) for place in _places(context, profile, history_param, issuer)]


def _places(context: Context, profile: Profile, history_param: str, issuer: str) -> Iterator[_Place]:
    position = message = 0
    last = len(context.turns) - 1
    for number, turn in enumerate(context.turns):
        is_asked = number == last
        cuts = [raw.Object(item.body) for item in turn]
        for run in _runs(turn, cuts):
            items = turn[run.start : run.stop]
            around = _Surroundings(message, any(map(is_call, items)), _fields(items, profile), profile, issuer)
            for index, item in zip(run, items, strict=True):
                yield _Place(
                    item,
                    cuts[index],
                    around,
                    f"input[{index}]" if is_asked else history_param,
                    is_asked,
                    position in context.answered,
                    context.answers.get(position),
                )
                position += 1
            message += 1


def _runs(turn: Sequence[Item], cuts: Sequence[raw.Object]) -> Iterator[range]:
    """The indexes of a turn's items by chat message: what a turn put out, an unbroken inline run, any other alone."""
    start, before = 0, None
    for index, (item, cut) in enumerate(zip(turn, cuts, strict=True)):
        made = item.is_output if is_assistants(item, cut) else None
        if index and (made is None or made is not before):
            yield range(start, index)
            start = index
        before = made
    if turn:
        yield range(start, len(turn))


def _fields(run: Iterable[Item], profile: Profile) -> tuple[str, ...]:
    """The fields that carry reasoning in one chat message: the one that carried it, if all its items agree on it and
    this upstream reads it."""
    if not profile.reasoning_fields:
        return ()
    carried = {fidelity.read(item.fidelity).reasoning_field for item in run if item.type == "reasoning"}
    recorded = carried.pop() if len(carried) == 1 else None
    return (recorded,) if recorded is not None and recorded in profile.reasoning_fields else profile.without_record


def _decide(place: _Place) -> Decision:
    if place.item.type not in place.around.profile.item_members:
        return _decide_unreadable(place)
    return _RULES.get(place.item.type, _decide_other)(place)


def _decide_unreadable(place: _Place) -> Decision:
    if _has_text(place.cut.get("encrypted_content")):
        return _refuse_or_omit(place)
    return _left_out(place, "type_not_readable")


def _decide_other(place: _Place) -> Decision:
    """An item of a type that the upstream knows and we need not: only what is sealed in it must be its own."""
    if _has_text(place.cut.get("encrypted_content")) and not _is_own(place):
        return _refuse_or_omit(place)
    return _sent(place, "kept", "item", _copy(place, {}))


def _is_own(place: _Place) -> bool:
    """Whether sealed state may go to this upstream; what nobody knows the issuer of, the upstream itself judges."""
    return place.item.issuer in (None, place.around.issuer)


def _refuse_or_omit(place: _Place) -> Decision:
    if place.around.profile.encrypted_only == "refuse":
        raise errors.encrypted_only(place.known_as, place.param)
    return _left_out(place, "encrypted_only")


def _decide_reasoning(place: _Place) -> Decision:
    texts = [text for text in _texts(_parts(place.cut.get("content"))) if _has_text(text)]
    details = fidelity.read(place.item.fidelity).reasoning_details
    if details is not None and place.around.profile.sends_reasoning_details and _is_own(place):
        copy = _copy(place, {"content": raw.array([_reasoning_text(texts)])})
        return _sent(place, "kept", "reasoning_details", copy, details=details)
    is_sealed = _has_text(place.cut.get("encrypted_content"))
    # Of details that hold no payload, such as a summary, nothing is kept from who reads plain text.
    are_sealed = details is not None and any(
        fidelity.holds_payload(raw.Object(detail)) for detail in raw.elements(details)
    )
    takes_sealed = "encrypted_content" in place.around.profile.item_members["reasoning"] and _is_own(place)
    if (is_sealed or are_sealed) and not texts and not (is_sealed and takes_sealed):
        return _refuse_or_omit(place)
    if place.around.profile.reasoning == "none":
        return _left_out(place, "reasoning_not_taken")
    if place.around.profile.dialect == "chat" and not place.around.fields:
        return _left_out(place, "no_field_for_reasoning")
    if place.around.profile.reasoning == "plaintext":
        return _decide_plaintext(place, texts, is_sealed=is_sealed)
    return _decide_opaque(place, texts, is_sealed=is_sealed, takes_sealed=takes_sealed)


def _decide_opaque(place: _Place, texts: Sequence[bytes], *, is_sealed: bool, takes_sealed: bool) -> Decision:
    has_summary = any(map(_has_text, _texts(_parts(place.cut.get("summary")))))
    if not (texts or is_sealed or has_summary):
        return _left_out(place, "empty")
    if is_sealed and not takes_sealed:
        return _sent(place, "changed", "encrypted_state_left_out", _copy(place, _NO_SUMMARY, {"encrypted_content"}))
    return _sent(place, "kept", "reasoning", _copy(place, _NO_SUMMARY if not has_summary else {}))


def _decide_plaintext(place: _Place, texts: Sequence[bytes], *, is_sealed: bool) -> Decision:
    if not texts:
        has_summary = any(map(_has_text, _texts(_parts(place.cut.get("summary")))))
        return _left_out(place, "summary_is_not_reasoning" if has_summary else "empty")
    copy = _copy(place, {**_NO_SUMMARY, "content": raw.array([_reasoning_text(texts)])})
    if is_sealed:
        return _sent(place, "changed", "encrypted_state_left_out", copy)
    return _sent(place, "kept" if len(texts) == 1 else "changed", "plaintext", copy)


def _reasoning_text(texts: Sequence[bytes]) -> bytes:
    return b'{"type":"reasoning_text","text":' + raw.joined(texts, rb"\n") + b"}"


def _decide_message(place: _Place) -> Decision:
    content = place.cut.get("content") or b"[]"
    # An upstream that gives its message no role can mean only one; a client's message always has one.
    if place.cut.string("role") in ("assistant", None):
        return _decide_assistants(place, content)
    sent = _sent_parts(place, content)
    if sent == b'""' or (not sent.startswith(b'"') and all(_text(part) == b'""' for part in _parts(sent))):
        return _left_out(place, "empty")
    return _sent(place, "kept", "message", _copy(place, {"content": sent}))


def _decide_assistants(place: _Place, content: bytes) -> Decision:
    parts = _parts(content)
    text = raw.joined(_texts(parts))
    if not _has_text(text):
        return _left_out(place, "empty")
    if place.around.has_call and place.around.profile.blank_beside_call == "left_out" and not raw.decode(text).strip():
        return _left_out(place, "blank_beside_call")
    role = {"role": b'"assistant"'}
    if place.around.profile.assistant_parts == "kept":
        return _sent(place, "kept", "message", _copy(place, role | {"content": _sent_parts(place, content)}))
    sent = _joined_parts(parts, place.around.profile)
    is_plain = len(parts) == 1 and (parts[0].get("refusal") is None or place.around.profile.refusals == "kept")
    return _sent(place, "kept" if is_plain else "changed", "message", _copy(place, role | {"content": sent}))


def _joined_parts(parts: Sequence[Mapping[str, bytes]], profile: Profile) -> bytes:
    """One part of text that holds all of it; a refusal is text as well, or one part of its own."""
    refusals = [part for part in parts if part.get("refusal") is not None] if profile.refusals == "kept" else []
    texts = _texts(part for part in parts if part not in refusals)
    joined = []
    if texts:
        joined.append(b'{"type":"output_text","text":' + raw.joined(texts) + b',"annotations":[]}')
    if refusals:
        joined.append(b'{"type":"refusal","refusal":' + raw.joined(_texts(refusals)) + b"}")
    return raw.array(joined)


def _decide_call(place: _Place) -> Decision:
    changes = {} if place.item.call_id is not None else {"call_id": raw.literal(_call_id(place.item))}
    if not is_cut(place.item, place.cut):
        return _sent(place, "kept", "call", _copy(place, changes))
    if not place.is_answered:
        return _left_out(place, "cut_call")
    # The call goes up with its output, so that the model sees the tool's error.
    if place.item.type == "function_call":
        changes["arguments"] = b'"{}"'
    return _sent(place, "changed", "cut_call", _copy(place, changes))


def _call_id(call: Item) -> str:
    """What an output names its call by: a call that an upstream made without one has its own id."""
    return call.call_id or call.public_id


def _decide_output(place: _Place) -> Decision:
    changes: dict[str, bytes] = {}
    output = place.cut.get("output")
    is_spoken = place.around.profile.output_parts == "as_text" and output is not None and output.startswith(b"[")
    if output is not None:
        # An output that is read as a string only is what its texts say.
        changes["output"] = raw.joined(_texts(_parts(output)), rb"\n") if is_spoken else _sent_parts(place, output)
    if place.item.call_id is None and place.answers is not None:
        changes["call_id"] = raw.literal(_call_id(place.answers))
    if is_spoken:
        return _sent(place, "changed", "output_as_text", _copy(place, changes))
    return _sent(place, "kept", "output", _copy(place, changes))


def _sent_parts(place: _Place, content: bytes) -> bytes:
    """A content as the upstream takes it: a string as it is, of parts those that it knows, with what it knows of them.

    The images of an output say their `detail`: vLLM refuses one that does not, and clients leave it out.
    """
    if not content.startswith(b"["):
        return content
    parts = raw.elements(content)
    members = place.around.profile.part_members
    sent = parts if members is None else [part for part in (_sent_part(part, members) for part in parts) if part]
    if place.item.type.endswith("_output"):
        sent = [_with_detail(part) for part in sent]
    return content if sent == parts else raw.array(sent)


def _sent_part(part: bytes, part_members: dict[str, tuple[str, ...]]) -> bytes | None:
    """The allow-listed members of a part, None for one of a type that is not sent."""
    if not part.startswith(b"{"):
        return None
    cut = raw.Object(part)
    part_type = cut.string("type") or ""
    if part_type not in part_members:
        return None
    found = {name: cut.get(name) for name in ("type", *part_members[part_type])}
    return raw.render({name: value for name, value in found.items() if value is not None})


def _with_detail(part: bytes) -> bytes:
    if not part.startswith(b"{"):
        return part
    cut = raw.Object(part)
    lacks_detail = cut.string("type") == "input_image" and cut.get("detail") is None
    return cut.spliced({"detail": b'"auto"'}) if lacks_detail else part


def _left_out(place: _Place, rule: str) -> Decision:
    return Decision(item=place.item, action="left_out", rule=rule, copy=None, message=place.around.message)


def _sent(
    place: _Place, action: Literal["kept", "changed"], rule: str, copy: bytes, details: bytes | None = None
) -> Decision:
    return Decision(
        item=place.item,
        action=action,
        rule=rule,
        copy=copy,
        message=place.around.message,
        fields=place.around.fields if place.item.type == "reasoning" and details is None else (),
        details=details,
    )


def _copy(place: _Place, changes: Mapping[str, bytes], without: Collection[str] = ()) -> bytes:
    """The item's allow-listed members, without nulls at any depth; `changes` are sent in place of what it has."""
    pieces = [b'{"type":', raw.literal(place.item.type)]
    for name in place.around.profile.item_members[place.item.type]:
        if name in without:
            continue
        value = _id(place) if name == "id" else changes.get(name) or _member(place, name)
        if value is not None:
            pieces += _key(name), value if value.startswith(b'"') else raw.without_null_members(value)
    pieces.append(b"}")
    return b"".join(pieces)


@cache
def _key(name: str) -> bytes:
    """What stands before the value of a member that a profile names."""
    return b"," + raw.literal(name) + b":"


def _member(place: _Place, name: str) -> bytes | None:
    value = place.cut.get(name)
    # A summary and a content of reasoning are made of parts as well.
    return _sent_parts(place, value) if value is not None and name in ("content", "summary") else value


def _id(place: _Place) -> bytes | None:
    """The id that clients see, unless it was only minted here to show a client's item by: that one never goes up."""
    if place.item.type == "local_shell_call_output":
        # Its `id` is its call's (contract api.md 7).
        return place.cut.get("id") or raw.literal(place.item.call_id)
    is_known = place.item.is_output or _has_text(place.cut.get("id"))
    return raw.literal(place.item.public_id) if is_known else None


def _has_text(value: bytes | None) -> bool:
    return value not in (None, b'""')


def _parts(content: bytes | None) -> list[dict[str, bytes]]:
    """The parts of a content, a string being one. What an upstream made was never judged: all else is passed over."""
    if content is None or content[:1] not in (b"[", b'"'):
        return []
    return [{"text": content}] if content.startswith(b'"') else raw.objects(content)


def _texts(parts: Iterable[Mapping[str, bytes]]) -> list[bytes]:
    """The string literals of parts, in order: their texts and refusals."""
    return [text for text in map(_text, parts) if text is not None]


def _text(part: Mapping[str, bytes]) -> bytes | None:
    text = part.get("text") or part.get("refusal")
    return text if text is not None and text.startswith(b'"') else None


# The published schema wants one, and vLLM would take what it says for reasoning (contract vllm.md 3).
_NO_SUMMARY = {"summary": b"[]"}

_RULES: dict[str, Callable[[_Place], Decision]] = {
    "reasoning": _decide_reasoning,
    "message": _decide_message,
    "function_call": _decide_call,
    "custom_tool_call": _decide_call,
    "function_call_output": _decide_output,
    "custom_tool_call_output": _decide_output,
}
