"""The create request: the members that we act on, beside the raw ones.

What lives here judges a request by itself, in the order of the contract (api.md 5): JSON, model, input, each member in
a fixed order. What state says of it (an unknown previous response, an open call) is judged later, by others. Null
counts as absent; members that nobody knows are kept for the upstream.
"""

from collections.abc import Callable, Collection

import msgspec

from server import errors
from server.protocol import ids, items, raw

METADATA_PAIRS_MAX = 16
METADATA_KEY_LENGTH_MAX = 64
METADATA_VALUE_LENGTH_MAX = 512
QUOTED_NUMBER_LENGTH_MAX = 20

INCLUDABLE = (
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
)
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
SUMMARIES = ("auto", "concise", "detailed")
VERBOSITIES = ("low", "medium", "high")
TEXT_FORMATS = ("text", "json_schema", "json_object")
TOOL_CHOICES = ("none", "auto", "required")
TRUNCATIONS = ("auto", "disabled")

Check = Callable[[str, bytes], None]

# Null counts as absent, and so does an empty id of what is to be continued.
_ABSENT = dict.fromkeys(("previous_response_id", "conversation"), (raw.NULL, b'""'))


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A create request that is right by itself.

    `members` holds every member that is not null, as it was sent, `input` excepted; `input` is its text. An empty
    `previous_response_id` or `conversation` counts as absent, like a null one.
    """

    members: dict[str, bytes]
    input: bytes
    model: str
    previous_response_id: str | None
    conversation_id: str | None
    store: bool
    stream: bool


def parse(body: bytes, depth_max: int) -> Request:
    """The request in a body; raises ApiError 400 or 404 that names the member at fault."""
    members = _members(body, depth_max)
    for name, check in _CHECKS.items():
        if name in members:
            check(name, members[name])
    request = Request(
        input=members.pop("input"),
        members=members,
        model=raw.decode(members["model"]),
        previous_response_id=_string(members, "previous_response_id"),
        conversation_id=_conversation_id(members),
        store=members.get("store") != b"false",
        stream=members.get("stream") == b"true",
    )
    refusal = _refusal(request)
    if refusal:
        # State and abilities are judged after the items, which the caller walks otherwise (contract api.md 5).
        items.parse_input(request.input)
        raise refusal
    return request


def parse_object(body: bytes, depth_max: int) -> raw.Object:
    """A body as a JSON object whose members come once each; raises ApiError 400."""
    try:
        raw.check(body, depth_max)
        if body.strip() and not body.lstrip().startswith(b"{"):
            # Whether it is JSON at all is told first.
            raw.decode(body)
            raise errors.malformed_json(f"it must be an object, and is {raw.kind(body.strip())}")
        cut = raw.Object(body)
    except raw.Malformed as malformed:
        raise errors.malformed_json(str(malformed)) from None
    for name in cut.repeated:
        raise errors.duplicate_parameter(name if ids.is_usable(name) else "(unprintable)")
    return cut


def _members(body: bytes, depth_max: int) -> dict[str, bytes]:
    cut = parse_object(body, depth_max)
    for name in ("model", "input"):
        if name not in cut:
            raise errors.missing_parameter(name)
    if cut.get("model") is None:
        raise errors.invalid_type("model", "a string", "null")
    if cut.get("input") is None:
        raise errors.invalid_type("input", "a string or an array", "null")
    return {name: value for name, value in cut.members() if value not in _ABSENT.get(name, (raw.NULL,))}


def _refusal(request: Request) -> errors.ApiError | None:
    """What can't be meant at once (DESIGN 7.2), and the answers to what is not built (7.9)."""
    if request.previous_response_id and request.conversation_id:
        return errors.mutually_exclusive("previous_response_id", "conversation")
    if "prompt" in request.members:
        return errors.prompt_not_found(raw.Object(request.members["prompt"]).string("id") or "")
    if request.members.get("background") == b"true":
        return errors.not_supported("background", "Background responses are not supported by this server.")
    return None


def _string(members: dict[str, bytes], name: str) -> str | None:
    return raw.decode(members[name]) if name in members else None


def _conversation_id(members: dict[str, bytes]) -> str | None:
    value = members.get("conversation")
    if value is None:
        return None
    return raw.Object(value).string("id") if value.startswith(b"{") else raw.decode(value)


def _is_string(param: str, value: bytes) -> None:
    if not value.startswith(b'"'):
        raise errors.invalid_type(param, "a string", raw.kind(value))


def _is_key(param: str, value: bytes) -> None:
    _is_string(param, value)
    if value == b'""':
        raise errors.missing_parameter(param)
    if not ids.is_usable(raw.decode(value)):
        raise errors.unusable_text(param, ids.KEY_LENGTH_MAX)


def _is_conversation(param: str, value: bytes) -> None:
    if value.startswith(b'"'):
        return _is_key(param, value)
    return _required(_object(param, value, "a string or an object"), param, "id", _is_key)


def _is_prompt(param: str, value: bytes) -> None:
    _required(_object(param, value), param, "id", _is_key)


def _is_input(param: str, value: bytes) -> None:
    if value[:1] not in (b'"', b"["):
        raise errors.invalid_type(param, "a string or an array", raw.kind(value))


def _is_boolean(param: str, value: bytes) -> None:
    if value not in (b"true", b"false"):
        raise errors.invalid_type(param, "a boolean", raw.kind(value))


def _integer(minimum: int, maximum: int | None = None) -> Check:
    def check(param: str, value: bytes) -> None:
        if raw.kind(value) != "an integer":
            raise errors.invalid_type(param, "an integer", raw.kind(value))
        _is_within(param, value, minimum, maximum, "integer")

    return check


def _number(minimum: float, maximum: float) -> Check:
    def check(param: str, value: bytes) -> None:
        if raw.kind(value) not in ("an integer", "a number"):
            raise errors.invalid_type(param, "a number", raw.kind(value))
        _is_within(param, value, minimum, maximum, "decimal")

    return check


def _is_within(param: str, value: bytes, minimum: float, maximum: float | None, kind: str) -> None:
    # A number may have thousands of digits: it is compared, and quoted, as a float then.
    number = raw.decode(value) if len(value) <= QUOTED_NUMBER_LENGTH_MAX else float(value)
    if number < minimum:
        raise errors.below_minimum(param, minimum, number, kind)
    if maximum is not None and number > maximum:
        raise errors.above_maximum(param, maximum, number, kind)


def _one_of(supported: Collection[str]) -> Check:
    def check(param: str, value: bytes) -> None:
        _is_string(param, value)
        if raw.decode(value) not in supported:
            raise errors.invalid_value(param, supported)

    return check


def _is_include(param: str, value: bytes) -> None:
    for number, element in enumerate(_array(param, value)):
        _one_of(INCLUDABLE)(f"{param}[{number}]", element)


def check_metadata(param: str, value: bytes) -> None:
    """At most 16 pairs of strings; lengths are counted in characters.

    The param is `metadata` for every pair, and the message names `metadata.KEY`. A key comes once: metadata are stored
    as they came, and what stood there under a repeated key would be held to no limit.
    """
    metadata = _object(param, value)
    pairs = metadata.members()
    if len(pairs) > METADATA_PAIRS_MAX:
        raise errors.too_many_properties(param, METADATA_PAIRS_MAX, len(pairs))
    for name, pair in pairs:
        if len(name) > METADATA_KEY_LENGTH_MAX:
            raise errors.string_too_long(param, METADATA_KEY_LENGTH_MAX, len(name))
        if not ids.is_usable(name):
            raise errors.unusable_text(param, METADATA_KEY_LENGTH_MAX)
        member = f"{param}.{name}"
        if not pair.startswith(b'"'):
            raise errors.invalid_type(param, "a string", raw.kind(pair), member)
        length = len(raw.decode(pair))
        if length > METADATA_VALUE_LENGTH_MAX:
            raise errors.string_too_long(param, METADATA_VALUE_LENGTH_MAX, length, member)
    for name in metadata.repeated:
        raise errors.duplicate_parameter(param, f"{param}.{name}")


def _is_tools(param: str, value: bytes) -> None:
    for number, element in enumerate(_array(param, value)):
        at = f"{param}[{number}]"
        tool = _object(at, element)
        _required(tool, at, "type", _is_string)
        tool_type = tool.string("type")
        if tool_type in ("function", "custom", "namespace"):
            _required(tool, at, "name", _is_key)
        if tool_type == "custom":
            _optional(tool, at, "format", _is_object)
        if tool_type == "namespace":
            _required(tool, at, "tools", _is_tools)


def _is_tool_choice(param: str, value: bytes) -> None:
    if value.startswith(b'"'):
        return _one_of(TOOL_CHOICES)(param, value)
    choice = _object(param, value, "a string or an object")
    _required(choice, param, "type", _is_key)
    choice_type = choice.string("type")
    if choice_type == "allowed_tools":
        return _required(choice, param, "tools", _is_allowed_tools)
    judge = _required if choice_type in ("function", "custom") else _optional
    return judge(choice, param, "name", _is_key)


def _is_allowed_tools(param: str, value: bytes) -> None:
    for number, element in enumerate(_array(param, value)):
        at = f"{param}[{number}]"
        tool = _object(at, element)
        _required(tool, at, "type", _is_key)
        _optional(tool, at, "name", _is_key)


def _is_text(param: str, value: bytes) -> None:
    text = _object(param, value)
    _optional(text, param, "verbosity", _one_of(VERBOSITIES))
    if form := text.get("format"):
        at = f"{param}.format"
        form_object = _object(at, form)
        _required(form_object, at, "type", _one_of(TEXT_FORMATS))
        if form_object.string("type") == "json_schema":
            _required(form_object, at, "name", _is_string)
            _required(form_object, at, "schema", _is_object)


def _is_reasoning(param: str, value: bytes) -> None:
    reasoning = _object(param, value)
    _optional(reasoning, param, "effort", _one_of(EFFORTS))
    _optional(reasoning, param, "summary", _one_of(SUMMARIES))


def _is_object(param: str, value: bytes) -> None:
    _object(param, value)


def _optional(owner: raw.Object, param: str, name: str, check: Check) -> None:
    value = owner.get(name)
    if value is not None:
        check(f"{param}.{name}", value)


def _required(owner: raw.Object, param: str, name: str, check: Check) -> None:
    value = owner.get(name)
    if value is None:
        raise errors.missing_parameter(f"{param}.{name}")
    check(f"{param}.{name}", value)


def _object(param: str, value: bytes, expected: str = "an object") -> raw.Object:
    if not value.startswith(b"{"):
        raise errors.invalid_type(param, expected, raw.kind(value))
    return raw.Object(value)


def _array(param: str, value: bytes) -> list[bytes]:
    if not value.startswith(b"["):
        raise errors.invalid_type(param, "an array", raw.kind(value))
    return raw.elements(value)


# OpenAI wants 16 output tokens at least; model servers serve fewer, and people use that (docs/compatibility.md).
_CHECKS: dict[str, Check] = {
    "model": _is_key,
    "input": _is_input,
    "instructions": _is_string,
    "previous_response_id": _is_key,
    "conversation": _is_conversation,
    "store": _is_boolean,
    "background": _is_boolean,
    "stream": _is_boolean,
    "stream_options": _is_object,
    "include": _is_include,
    "tools": _is_tools,
    "tool_choice": _is_tool_choice,
    "parallel_tool_calls": _is_boolean,
    "max_tool_calls": _integer(1),
    "max_output_tokens": _integer(1),
    "temperature": _number(0, 2),
    "top_p": _number(0, 1),
    "top_logprobs": _integer(0, 20),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "text": _is_text,
    "reasoning": _is_reasoning,
    "truncation": _one_of(TRUNCATIONS),
    "metadata": check_metadata,
    "prompt_cache_key": _is_string,
    "safety_identifier": _is_string,
    "user": _is_string,
    "service_tier": _is_string,
    "prompt": _is_prompt,
}

MEMBERS = frozenset(_CHECKS)
"""The names that are ours. Any other name in a request is its client's text, and no log may hold it (DESIGN 8)."""
