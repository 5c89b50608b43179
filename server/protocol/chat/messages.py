"""Decisions become chat messages: the items of one assistant's turn are one message, all others one each.

What lives here writes copies down in another form. Texts are joined as JSON literals and never decoded.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter

from server.protocol import raw
from server.protocol.profile import Profile
from server.protocol.replay import Decision

_LINE_END = rb"\n"


def chat_messages(decisions: Iterable[Decision], profile: Profile) -> list[bytes]:
    """The messages of these items, in order; what was left out is in none of them."""
    sent = (decision for decision in decisions if decision.copy is not None)
    messages = [list(together) for _, together in groupby(sent, key=attrgetter("message"))]
    return [_message(together, profile) for together in _outputs_behind_calls(messages)]


def _outputs_behind_calls(messages: Iterable[list[Decision]]) -> list[list[Decision]]:
    """The same, each output directly behind the message that calls for it, where most servers of this API want it.

    Those that answer calls of earlier turns come first.
    """
    sections: list[list[list[Decision]]] = [[]]
    section_of_call: dict[str | None, int] = {}
    for together in messages:
        if together[0].item.type.endswith("_output"):
            sections[section_of_call.get(_call_id(together[0]), 0)].append(together)
            continue
        for decision in together:
            if decision.item.type.endswith("_call"):
                section_of_call[_call_id(decision)] = len(sections)
        sections.append([together])
    return [together for section in sections for together in section]


def _call_id(decision: Decision) -> str | None:
    return decision.item.call_id or raw.Object(decision.copy or b"{}").string("call_id")


def function_name(cut: raw.Object) -> str:
    """The name that a function of a namespace has among all functions (vLLM's `namespace__name`)."""
    name, namespace = cut.string("name") or "", cut.string("namespace")
    return f"{namespace}__{name}" if namespace else name


def _message(together: Sequence[Decision], profile: Profile) -> bytes:
    first = raw.Object(together[0].copy or b"{}")
    item_type = together[0].item.type
    if item_type.endswith("_output"):
        call_id = first.get("call_id") or raw.literal(together[0].item.public_id)
        content = _content(first.get("output") or b'""')
        return raw.render({"role": b'"tool"', "tool_call_id": call_id, "content": content})
    if item_type == "message" and first.string("role") != "assistant":
        return raw.render({"role": _role(first, profile), "content": _content(first.get("content") or b'""')})
    return _assistants(together, profile)


def _role(cut: raw.Object, profile: Profile) -> bytes:
    role = cut.get("role") or b'"user"'
    return raw.literal(profile.developer_role) if role == b'"developer"' else role


def _assistants(together: Sequence[Decision], profile: Profile) -> bytes:
    """One message with all that a model put out at once: what it thought, what it said, what it called."""
    cuts = [(decision, raw.Object(decision.copy or b"{}")) for decision in together]
    parts = [part for decision, cut in cuts if decision.item.type == "message" for part in _parts(cut.get("content"))]
    texts = _texts(parts, "text")
    calls = [_call(decision, cut, profile) for decision, cut in cuts if decision.item.type.endswith("_call")]
    members = {"role": b'"assistant"', "content": raw.joined(texts, _LINE_END) if texts else raw.NULL}
    members |= _reasoning(cuts)
    refusals = _texts(parts, "refusal")
    if refusals:
        members["refusal"] = raw.joined(refusals, _LINE_END)
    if calls:
        members["tool_calls"] = raw.array(calls)
    elif not texts and not refusals:
        # A message that holds reasoning alone was refused by some servers for its null (case B021).
        members["content"] = b'""'
    return raw.render(members)


def _reasoning(cuts: Sequence[tuple[Decision, raw.Object]]) -> dict[str, bytes]:
    """The members that carry reasoning, as `replay` decided: the texts of all items in each field, and all details."""
    members: dict[str, bytes] = {}
    texts = [
        text
        for decision, cut in cuts
        if decision.item.type == "reasoning" and decision.fields
        for text in _texts(_parts(cut.get("content")), "text")
    ]
    for name in next((decision.fields for decision, _ in cuts if decision.fields), ()):
        members[name] = raw.joined(texts, _LINE_END)
    details = [detail for decision, _ in cuts if decision.details for detail in raw.elements(decision.details)]
    if details:
        members["reasoning_details"] = raw.array(details)
    return members


def _call(decision: Decision, cut: raw.Object, profile: Profile) -> bytes:
    call_id = cut.get("call_id") or raw.literal(decision.item.public_id)
    name = raw.literal(function_name(cut))
    if decision.item.type != "custom_tool_call":
        arguments = cut.get("arguments") or b'"{}"'
    elif profile.custom_tools == "kept":
        custom = raw.render({"name": name, "input": cut.get("input") or b'""'})
        return raw.render({"id": call_id, "type": b'"custom"', "custom": custom})
    else:
        arguments = raw.literal('{"input":' + (cut.get("input") or b'""').decode() + "}")
    function = raw.render({"name": name, "arguments": arguments})
    return raw.render({"id": call_id, "type": b'"function"', "function": function})


def _content(content: bytes) -> bytes:
    """A content of a user's or a tool's message. A single text is a string, which every server reads."""
    if not content.startswith(b"["):
        return content
    parts = [spelled for spelled in map(_part, _parts(content)) if spelled is not None]
    only = raw.Object(parts[0]) if len(parts) == 1 else None
    if only is not None and only.string("type") == "text":
        return only.get("text") or b'""'
    return raw.array(parts) if parts else b'""'


def _part(part: raw.Object) -> bytes | None:
    part_type = part.string("type")
    if part_type == "input_image":
        # A file that was uploaded elsewhere has no name in this API.
        url = part.get("image_url")
        found = {"url": url, "detail": part.get("detail")}
        image = raw.render({name: value for name, value in found.items() if value is not None})
        return raw.render({"type": b'"image_url"', "image_url": image}) if url is not None else None
    if part_type == "input_file":
        names = ("file_id", "file_data", "filename")
        members = {name: value for name in names if (value := part.get(name)) is not None}
        # One that lies behind a URL has no name there either.
        is_there = "file_id" in members or "file_data" in members
        return raw.render({"type": b'"file"', "file": raw.render(members)}) if is_there else None
    text = part.get("text") or part.get("refusal")
    return raw.render({"type": b'"text"', "text": text}) if text is not None else None


def _parts(content: bytes | None) -> list[raw.Object]:
    if content is None:
        return []
    if content.startswith(b'"'):
        return [raw.Object(b'{"type":"output_text","text":' + content + b"}")]
    return [raw.Object(part) for part in raw.elements(content) if part.startswith(b"{")]


def _texts(parts: Iterable[raw.Object], name: str) -> list[bytes]:
    return [text for part in parts if (text := part.get(name)) is not None]
