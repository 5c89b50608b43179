"""The request that an upstream of the `responses` dialect gets: the client's members that it takes, and the copies.

What lives here spells what `replay` decided and decides nothing about items.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from server import errors
from server.protocol import raw
from server.protocol.profile import Profile
from server.protocol.replay import Decision
from server.protocol.request import Request


def request_around_input(
    request: Request, response_id: str, profile: Profile, cache_salt: str | None = None
) -> tuple[bytes, bytes]:
    """What goes before and behind the elements of the input. The response id goes along, so that an upstream that takes
    one needs no rewriting (DESIGN 3), and so does the salt of its prefix cache.

    Raises ApiError 400 for a tool_choice on a tool that is not there or can't be sent.
    """
    members = sent_members(request, profile)
    if profile.takes_response_id:
        members["request_id"] = raw.literal(response_id)
    if profile.takes_cache_salt and cache_salt is not None:
        members["cache_salt"] = raw.literal(cache_salt)
    members["store"] = b"false"
    members["stream"] = raw.literal(request.stream)
    return raw.render(members)[:-1] + b',"input":[', b"]}"


def input_elements(decisions: Iterable[Decision], _: Profile) -> list[bytes]:
    """The elements of the input that these decisions come to."""
    return [decision.copy for decision in decisions if decision.copy is not None]


def sent_members(request: Request, profile: Profile) -> dict[str, bytes]:
    """The client's members that the upstream takes, in the Responses API's own form, in either dialect.

    Of tools and `include` only what the upstream knows is left. Raises ApiError 400 as above.
    """
    withheld = profile.own_members | profile.withheld_members
    members = {
        name: value
        for name, value in request.members.items()
        if name not in withheld and (profile.request_members is None or name in profile.request_members)
    }
    tools = _sent_tools(members.pop("tools", b"[]"), profile)
    if tools:
        members["tools"] = raw.array(tools)
    if "tool_choice" in members:
        _judge_tool_choice(members["tool_choice"], set(_offered(tools)))
    if include := _sent_include(members.pop("include", b"[]"), profile):
        members["include"] = raw.array(include)
    if "reasoning" in members and not profile.takes_reasoning_summary:
        members["reasoning"] = _without_summary(members["reasoning"])
    return members


def _without_summary(reasoning: bytes) -> bytes:
    asked = raw.Object(reasoning).members()
    return raw.render({name: value for name, value in asked if name not in ("summary", "generate_summary")})


def _sent_include(include: bytes, profile: Profile) -> list[bytes]:
    return [name for name in raw.elements(include) if raw.decode(name) in profile.includable]


def _sent_tools(tools: bytes, profile: Profile) -> list[bytes]:
    return [_sent_tool(tool, profile) for tool in raw.elements(tools) if _is_sent(tool, profile)]


def _is_sent(tool: bytes, profile: Profile) -> bool:
    return raw.Object(tool).string("type") in profile.tool_types


def _sent_tool(tool: bytes, profile: Profile) -> bytes:
    """A tool as the upstream takes it; of a namespace, those of its tools that it takes.

    A custom tool's grammar goes up as free text where it would be refused: the tool is usable without it.
    """
    cut = raw.Object(tool)
    if cut.string("type") == "namespace":
        return cut.spliced({"tools": raw.array(_sent_tools(cut.get("tools") or b"[]", profile))})
    form = cut.get("format")
    if (
        profile.custom_tools == "kept"
        or cut.string("type") != "custom"
        or form is None
        or raw.Object(form).string("type") != "grammar"
    ):
        return tool
    return cut.spliced({"format": b'{"type":"text"}'})


def _judge_tool_choice(choice: bytes, offered: Collection[tuple[str, str | None]]) -> None:
    if choice.startswith(b'"'):
        if choice == b'"required"' and not offered:
            raise errors.tool_not_offered("required")
        return
    cut = raw.Object(choice)
    is_list = cut.string("type") == "allowed_tools"
    for wanted in map(raw.Object, raw.elements(cut.get("tools") or b"[]")) if is_list else [cut]:
        wanted_type, wanted_name = wanted.string("type") or "", wanted.string("name")
        if (wanted_type, wanted_name) not in offered:
            raise errors.tool_not_offered(wanted_name or wanted_type)


def _offered(tools: Sequence[bytes]) -> Iterator[tuple[str, str | None]]:
    """Type and name of each tool; one of a namespace goes by its own name, and by both (vLLM's `namespace__name`)."""
    for tool in map(raw.Object, tools):
        name = tool.string("name")
        yield tool.string("type") or "", name
        is_namespace = tool.string("type") == "namespace"
        for inner in map(raw.Object, raw.elements(tool.get("tools") or b"[]") if is_namespace else []):
            inner_type, inner_name = inner.string("type") or "", inner.string("name")
            yield inner_type, inner_name
            yield inner_type, f"{name}__{inner_name}"
