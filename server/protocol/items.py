"""Items: the request's `input` cut into units of history.

What lives here opens an item to learn what must be known of it (type, ids) and to judge its shape; its text is kept as
it came and never written again. A type that nobody knows is an item like any other (contract api.md 7).
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from server import errors
from server.protocol import ids, raw

REFERENCE = "item_reference"
ROLES = ("user", "assistant", "system", "developer")

# What must be there, and be a string, for the item to mean anything (contract api.md 7).
_REQUIRED = {
    "function_call": ("call_id", "name", "arguments"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id",),
}
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_PART_TEXTS = {
    "input_text": "text",
    "output_text": "text",
    "reasoning_text": "text",
    "summary_text": "text",
    "refusal": "refusal",
}


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of history: its JSON text as it came, and beside it what must be known without opening it.

    `public_id` is what clients see, `call_id` the call it makes or answers. `fidelity` is wire-level data that a
    dialect needs to write the item again, `issuer` the upstream that made its opaque state; both are never shown.
    """

    body: bytes
    public_id: str
    type: str
    call_id: str | None = None
    is_output: bool = False
    fidelity: bytes | None = None
    issuer: str | None = None


class Input(msgspec.Struct, frozen=True):
    """A request's input: its items, and the ids that the client brought (not those minted here).

    A reference stands among the items under the id that it names, until it is resolved.
    """

    items: list[Item]
    brought_ids: set[str]

    def references(self) -> list[str]:
        return [item.public_id for item in self.items if item.type == REFERENCE]

    def resolved(self, found: Mapping[str, Item]) -> "Input":
        """The input with stored items in place of references: as they are, but no output of this turn."""
        items = [
            msgspec.structs.replace(found[item.public_id], is_output=False) if item.type == REFERENCE else item
            for item in self.items
        ]
        return Input(items, self.brought_ids)


def parse_input(text: bytes, name: str = "input") -> Input:
    """The items of an `input`, in order; a string is one user message, and an empty one none.

    `name` is the member that holds them. Raises ApiError 400 with the path of the member at fault
    (`input[0].content[0].text`).
    """
    if text.startswith(b'"'):
        items = [] if text == b'""' else [_spoken(text)]
        return Input(items, set())
    parsed = Input([], set())
    for number, element in enumerate(raw.elements(text)):
        _add(parsed, element, f"{name}[{number}]")
    return parsed


def from_upstream(cut: raw.Object, public_id: str, issuer: str, fidelity: bytes | None = None) -> Item:
    """An item that an upstream made, under the id that clients see."""
    return Item(
        body=cut.text,
        public_id=public_id,
        type=_key(cut, "type") or "unknown",
        call_id=_key(cut, "call_id"),
        is_output=True,
        fidelity=fidelity,
        issuer=issuer,
    )


def accepted_by(items: Sequence[Item], issuer: str) -> list[Item]:
    """The items, of which the sealed ones of unknown issuer are this one's: it has read them (DESIGN 6)."""
    return [
        msgspec.structs.replace(item, issuer=issuer) if item.issuer is None and _is_sealed(item) else item
        for item in items
    ]


def _is_sealed(item: Item) -> bool:
    return raw.Object(item.body).get("encrypted_content") not in (None, b'""')


def _spoken(text: bytes) -> Item:
    body = b'{"type":"message","role":"user","content":' + text + b"}"
    return Item(body=body, public_id=ids.new_item_id("message"), type="message")


def _add(parsed: Input, element: bytes, param: str) -> None:
    if not element.startswith(b"{"):
        raise errors.invalid_type(param, "an object", raw.kind(element))
    cut = raw.Object(element)
    # An empty id is none: some clients fill it in where they know no id, and none may go up (contract vllm.md 10).
    item_id = None if cut.get("id") == b'""' else _key_or_refuse(cut, "id", param)
    item_type = _key_or_refuse(cut, "type", param) or _type_of_untyped(cut, param)
    if item_type == REFERENCE and item_id is None:
        raise errors.missing_parameter(f"{param}.id")
    _judge(item_type, cut, param)
    call_id = _key_or_refuse(cut, "call_id", param)
    if item_type == "local_shell_call_output":
        # Its `id` is its call's (contract api.md 7); where it has a call_id as well, that one says so more plainly.
        call_id, item_id = call_id or item_id, None
    if item_id in parsed.brought_ids:
        raise errors.repeated_item_id(item_id, param.partition("[")[0])
    if item_id is not None:
        parsed.brought_ids.add(item_id)
    parsed.items.append(
        Item(body=element, public_id=item_id or ids.new_item_id(item_type), type=item_type, call_id=call_id)
    )


def _type_of_untyped(cut: raw.Object, param: str) -> str:
    if cut.get("role") is not None:
        return "message"
    if [name for name, value in cut.members() if value != raw.NULL] == ["id"]:
        return REFERENCE
    raise errors.missing_parameter(f"{param}.type")


def _key(cut: raw.Object, name: str) -> str | None:
    value = cut.string(name)
    return value if value is not None and ids.is_usable(value) else None


def _key_or_refuse(cut: raw.Object, name: str, param: str) -> str | None:
    value = cut.get(name)
    if value is None:
        return None
    _is_string(value, f"{param}.{name}")
    text: str = raw.decode(value)
    if not text:
        raise errors.missing_parameter(f"{param}.{name}")
    if not ids.is_usable(text):
        raise errors.unusable_text(f"{param}.{name}", ids.KEY_LENGTH_MAX)
    return text


def _judge(item_type: str, cut: raw.Object, param: str) -> None:
    for name in _REQUIRED.get(item_type, ()):
        _is_required_string(cut, name, param)
    judge = _JUDGES.get(item_type)
    if judge:
        judge(cut, param)


def _judge_message(cut: raw.Object, param: str) -> None:
    _is_required_string(cut, "role", param)
    role = cut.string("role")
    if role not in ROLES:
        raise errors.invalid_value(param, ROLES, f"{param}.role")
    # An assistant that only called tools said nothing: its content may be null, as in the Chat API.
    if role != "assistant" or cut.get("content") is not None:
        _judge_text(cut, "content", param)


def _judge_output(cut: raw.Object, param: str) -> None:
    _judge_text(cut, "output", param)


def _judge_reasoning(cut: raw.Object, param: str) -> None:
    encrypted = cut.get("encrypted_content")
    if encrypted is not None:
        _is_string(encrypted, f"{param}.encrypted_content")
    for name in ("summary", "content"):
        value = cut.get(name)
        if value is not None:
            _judge_parts(value, f"{param}.{name}", "an array")


def _judge_text(cut: raw.Object, name: str, param: str) -> None:
    """A required text: a string, or an array of parts."""
    value = cut.get(name)
    if value is None:
        raise errors.missing_parameter(f"{param}.{name}")
    if not value.startswith(b'"'):
        _judge_parts(value, f"{param}.{name}", "a string or an array")


def _judge_parts(value: bytes, param: str, expected: str) -> None:
    if not value.startswith(b"["):
        raise errors.invalid_type(param, expected, raw.kind(value))
    for number, part in enumerate(raw.elements(value)):
        at = f"{param}[{number}]"
        if not part.startswith(b"{"):
            raise errors.invalid_type(at, "an object", raw.kind(part))
        cut = raw.Object(part)
        _is_required_string(cut, "type", at)
        text_name = _PART_TEXTS.get(cut.string("type") or "")
        if text_name:
            _is_required_string(cut, text_name, at)


def _is_required_string(cut: raw.Object, name: str, param: str) -> None:
    value = cut.get(name)
    if value is None:
        raise errors.missing_parameter(f"{param}.{name}")
    _is_string(value, f"{param}.{name}")


def _is_string(value: bytes, param: str) -> None:
    if not value.startswith(b'"'):
        raise errors.invalid_type(param, "a string", raw.kind(value))


_JUDGES: dict[str, Callable[[raw.Object, str], None]] = {
    "message": _judge_message,
    "reasoning": _judge_reasoning,
    **dict.fromkeys(_OUTPUTS, _judge_output),
}
