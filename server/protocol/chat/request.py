"""The request that an upstream of the chat dialect gets: the Responses request's members under their names there.

What lives here knows which member of the one API is which of the other. Members that neither knows pass as they came,
where the profile lets them.
"""

from collections.abc import Iterator

from server.protocol import raw
from server.protocol.chat.messages import function_name
from server.protocol.profile import Profile
from server.protocol.request import Request
from server.protocol.upstream_request import sent_members

# What these ask for is spelled otherwise, or is not there. `metadata` is the server's own to keep, and of `n` choices
# all but the first would be paid for and not read.
_SPELLED = (
    "instructions", "tools", "tool_choice", "parallel_tool_calls", "max_tool_calls", "max_output_tokens", "text",
    "reasoning", "include", "top_logprobs", "metadata", "n",
)  # fmt: skip

_INPUT_SCHEMA = b'{"type":"object","properties":{"input":{"type":"string"}},"required":["input"]}'


def request_around_messages(
    request: Request, response_id: str, profile: Profile, cache_salt: str | None = None
) -> tuple[bytes, bytes]:
    """What goes before and behind the messages; raises ApiError 400 for a tool_choice on a tool that is not there or
    can't be sent."""
    asked = sent_members(request, profile)
    before = {name: value for name, value in asked.items() if name not in _SPELLED}
    behind = _tools(asked, profile) | _output(asked)
    behind["stream"] = raw.literal(request.stream)
    if request.stream:
        behind["stream_options"] = b'{"include_usage":true}'
    if profile.takes_response_id:
        behind["request_id"] = raw.literal(response_id)
    if profile.takes_cache_salt and cache_salt is not None:
        behind["cache_salt"] = raw.literal(cache_salt)
    beginning = raw.render(before)[:-1] + b',"messages":['
    if "instructions" in asked:
        beginning += raw.render({"role": b'"system"', "content": asked["instructions"]}) + b","
    return beginning, b"]," + raw.render(behind)[1:]


def functions(request: Request, profile: Profile) -> dict[str, raw.Object]:
    """The tools that a reply may call, by the name that they go by upstream, each with its `namespace` beside it."""
    return dict(_named(sent_members(request, profile)))


def _named(asked: dict[str, bytes]) -> Iterator[tuple[str, raw.Object]]:
    for tool in map(raw.Object, raw.elements(asked.get("tools", b"[]"))):
        if tool.string("type") != "namespace":
            yield tool.string("name") or "", tool
            continue
        for inner in map(raw.Object, raw.elements(tool.get("tools") or b"[]")):
            placed = raw.Object(inner.spliced({"namespace": tool.get("name") or b'""'}))
            yield function_name(placed), placed


def _tools(asked: dict[str, bytes], profile: Profile) -> dict[str, bytes]:
    tools = dict(_named(asked))
    choice = asked.get("tool_choice")
    if choice is not None and choice.startswith(b"{"):
        tools, choice = _chosen(raw.Object(choice), tools, profile)
    members: dict[str, bytes] = {}
    if tools:
        members["tools"] = raw.array([_tool(name, tool, profile) for name, tool in tools.items()])
        if "parallel_tool_calls" in asked:
            members["parallel_tool_calls"] = asked["parallel_tool_calls"]
        if choice is not None:
            members["tool_choice"] = choice
    return members


def _chosen(
    choice: raw.Object, tools: dict[str, raw.Object], profile: Profile
) -> tuple[dict[str, raw.Object], bytes | None]:
    """The tools to offer and the choice among them. Not every server knows a list of allowed tools, and none a
    namespace: the others are not offered."""
    is_list = choice.string("type") == "allowed_tools"
    if is_list or choice.string("type") == "namespace":
        listed = choice.objects("tools") if is_list else [choice]
        allowed = {tool.string("name") for tool in listed} - {None}
        offered = {name: tool for name, tool in tools.items() if _names_of(name, tool) & allowed}
        return offered, choice.get("mode") if is_list else b'"required"'
    wanted = choice.string("name")
    for name, tool in tools.items():
        if wanted in (name, tool.string("name")):
            kind = "custom" if _is_native(tool, profile) else "function"
            return tools, raw.render({"type": raw.literal(kind), kind: raw.render({"name": raw.literal(name)})})
    return tools, None


def _names_of(name: str, tool: raw.Object) -> set[str | None]:
    return {name, tool.string("name"), tool.string("namespace")}


def _is_native(tool: raw.Object, profile: Profile) -> bool:
    return tool.string("type") == "custom" and profile.custom_tools == "kept"


def _tool(name: str, tool: raw.Object, profile: Profile) -> bytes:
    members = {"name": raw.literal(name)}
    if (description := tool.get("description")) is not None:
        members["description"] = description
    if _is_native(tool, profile):
        if (form := tool.get("format")) is not None:
            members["format"] = _format(raw.Object(form))
        return raw.render({"type": b'"custom"', "custom": raw.render(members)})
    if tool.string("type") == "custom":
        members["parameters"] = _INPUT_SCHEMA
    for member in ("parameters", "strict"):
        if (value := tool.get(member)) is not None:
            members[member] = value
    return raw.render({"type": b'"function"', "function": raw.render(members)})


def _format(form: raw.Object) -> bytes:
    """A custom tool's format; a grammar's own members lie one level deeper here."""
    if form.string("type") != "grammar":
        return form.text
    grammar = {name: value for name in ("definition", "syntax") if (value := form.get(name)) is not None}
    return raw.render({"type": b'"grammar"', "grammar": raw.render(grammar)})


def _output(asked: dict[str, bytes]) -> dict[str, bytes]:
    """How much is to be put out, in which form, and with what beside it."""
    members: dict[str, bytes] = {}
    if "max_output_tokens" in asked:
        members["max_completion_tokens"] = asked["max_output_tokens"]
    text = raw.Object(asked.get("text", b"{}"))
    if (form := text.get("format")) is not None and (spelled := _response_format(raw.Object(form))) is not None:
        members["response_format"] = spelled
    if (verbosity := text.get("verbosity")) is not None:
        members["verbosity"] = verbosity
    if (effort := raw.Object(asked.get("reasoning", b"{}")).get("effort")) is not None:
        members["reasoning_effort"] = effort
    if "include" in asked:
        # Logprobs are all that can be asked for besides.
        members["logprobs"] = b"true"
        if "top_logprobs" in asked:
            members["top_logprobs"] = asked["top_logprobs"]
    return members


def _response_format(form: raw.Object) -> bytes | None:
    if form.string("type") == "json_object":
        return b'{"type":"json_object"}'
    if form.string("type") != "json_schema":
        return None
    names = ("name", "description", "schema", "strict")
    schema = {name: value for name in names if (value := form.get(name)) is not None}
    return raw.render({"type": b'"json_schema"', "json_schema": raw.render(schema)})
