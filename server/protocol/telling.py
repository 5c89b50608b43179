"""A whole item told as a stream: the events by which clients build it up, as if it had come piece by piece.

What lives here serves items that never came as a stream: of an upstream that answered in one body, or of a response
that was stored. Each text is one delta (contract api.md 6, legal order).
"""

from collections.abc import Callable, Iterator

from server.protocol import events, raw

Told = tuple[str, dict[str, bytes]]
"""An event's name and its members; those that place it in a stream and name its item are added by who writes it."""

_IN_PROGRESS = b'"in_progress"'


def told(view: bytes) -> Iterator[Told]:
    """The events of one item, from its announcement to its end. `view` is the item as clients see it."""
    cut = raw.Object(view)
    tell = _TELLERS.get(cut.string("type") or "")
    beginning, within = tell(cut) if tell else ({}, iter(()))
    if beginning and cut.get("status") is not None:
        beginning["status"] = _IN_PROGRESS
    yield events.ITEM_ADDED, {"item": cut.spliced(beginning) if beginning else view}
    yield from within
    yield events.ITEM_DONE, {"item": view}


def _tell_message(cut: raw.Object) -> tuple[dict[str, bytes], Iterator[Told]]:
    return {"content": b"[]"}, _parts(cut, "content")


def _tell_reasoning(cut: raw.Object) -> tuple[dict[str, bytes], Iterator[Told]]:
    beginning = {name: b"[]" for name in ("summary", "content") if cut.get(name) is not None}
    return beginning, _reasoning_events(cut)


def _reasoning_events(cut: raw.Object) -> Iterator[Told]:
    yield from _summary(cut)
    yield from _parts(cut, "content")


def _tell_call(cut: raw.Object) -> tuple[dict[str, bytes], Iterator[Told]]:
    name = {"name": cut.get("name") or b'""'}
    return {"arguments": b'""'}, _text("response.function_call_arguments", "arguments", cut.get("arguments"), name)


def _tell_custom_call(cut: raw.Object) -> tuple[dict[str, bytes], Iterator[Told]]:
    return {"input": b'""'}, _text("response.custom_tool_call_input", "input", cut.get("input"), {})


def _text(prefix: str, name: str, text: bytes | None, members_of_done: dict[str, bytes]) -> Iterator[Told]:
    if text not in (None, b'""'):
        yield f"{prefix}.delta", {"delta": text}
    yield f"{prefix}.done", {**members_of_done, name: text or b'""'}


def _parts(cut: raw.Object, member: str) -> Iterator[Told]:
    for number, part in enumerate(cut.objects(member)):
        index = {"content_index": raw.literal(number)}
        tell = _PART_TELLERS.get(part.string("type") or "")
        yield events.PART_ADDED, index | {"part": _emptied(part)}
        for name, members in tell(part) if tell else ():
            yield name, index | members
        yield events.PART_DONE, index | {"part": part.text}


def _emptied(part: raw.Object) -> bytes:
    empty = {"text": b'""', "refusal": b'""', "annotations": b"[]", "logprobs": b"[]"}
    return part.spliced({name: value for name, value in empty.items() if part.get(name) is not None})


def _tell_output_text(part: raw.Object) -> Iterator[Told]:
    text, logprobs = part.get("text") or b'""', part.get("logprobs") or b"[]"
    if text != b'""':
        yield "response.output_text.delta", {"delta": text, "logprobs": logprobs}
    for number, annotation in enumerate(part.elements("annotations")):
        yield (
            "response.output_text.annotation.added",
            {"annotation_index": raw.literal(number), "annotation": annotation},
        )
    yield "response.output_text.done", {"text": text, "logprobs": logprobs}


def _tell_refusal(part: raw.Object) -> Iterator[Told]:
    return _text("response.refusal", "refusal", part.get("refusal"), {})


def _tell_reasoning_text(part: raw.Object) -> Iterator[Told]:
    return _text("response.reasoning_text", "text", part.get("text"), {})


def _summary(cut: raw.Object) -> Iterator[Told]:
    for number, part in enumerate(cut.objects("summary")):
        index = {"summary_index": raw.literal(number)}
        yield "response.reasoning_summary_part.added", index | {"part": _emptied(part)}
        for name, members in _text("response.reasoning_summary_text", "text", part.get("text"), {}):
            yield name, index | members
        yield "response.reasoning_summary_part.done", index | {"part": part.text}


_TELLERS: dict[str, Callable[[raw.Object], tuple[dict[str, bytes], Iterator[Told]]]] = {
    "message": _tell_message,
    "reasoning": _tell_reasoning,
    "function_call": _tell_call,
    "custom_tool_call": _tell_custom_call,
}
_PART_TELLERS: dict[str, Callable[[raw.Object], Iterator[Told]]] = {
    "output_text": _tell_output_text,
    "refusal": _tell_refusal,
    "reasoning_text": _tell_reasoning_text,
}
