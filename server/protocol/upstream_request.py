"""The request that an upstream of the `responses` dialect gets: the client's members that it takes, and the copies.

What lives here spells what `replay` decided and decides nothing about items.
"""

from collections.abc import Iterable, Sequence

from server import errors
from server.protocol import raw
from server.protocol.profile import Profile
from server.protocol.request import Request


def upstream_request(request: Request, response_id: str, copies: Iterable[bytes], profile: Profile) -> bytes:
    """The body to send. The response id goes along, so that an upstream that takes one needs no rewriting (DESIGN 3).

    Raises ApiError 400 for a tool_choice on a tool that is not there or can't be sent.
    """
    withheld = profile.own_members | profile.withheld_members
    members = {name: value for name, value in request.members.items() if name not in withheld}
    tools = [_sent_tool(tool) for tool in raw.elements(members.pop("tools", b"[]")) if _is_sent(tool, profile)]
    if tools:
        members["tools"] = raw.array(tools)
    if "tool_choice" in members:
        _judge_tool_choice(members["tool_choice"], tools)
    if include := _sent_include(members.pop("include", b"[]"), profile):
        members["include"] = raw.array(include)
    members["request_id"] = raw.literal(response_id)
    members["store"] = b"false"
    members["stream"] = raw.literal(request.stream)
    members["input"] = raw.array(list(copies))
    return raw.render(members)


def _sent_include(include: bytes, profile: Profile) -> list[bytes]:
    return [name for name in raw.elements(include) if raw.decode(name) in profile.includable]


def _is_sent(tool: bytes, profile: Profile) -> bool:
    return raw.Object(tool).string("type") in profile.tool_types


def _sent_tool(tool: bytes) -> bytes:
    """A custom tool's grammar goes up as free text: vLLM refuses a grammar, and the tool is usable without it."""
    cut = raw.Object(tool)
    form = cut.get("format")
    if cut.string("type") != "custom" or form is None or raw.Object(form).string("type") != "grammar":
        return tool
    return cut.spliced({"format": b'{"type":"text"}'})


def _judge_tool_choice(choice: bytes, tools: Sequence[bytes]) -> None:
    if choice.startswith(b'"'):
        return
    cut = raw.Object(choice)
    wanted_type, wanted_name = cut.string("type") or "", cut.string("name")
    if wanted_type == "allowed_tools":
        for tool in raw.elements(cut.get("tools") or b"[]"):
            _judge_tool_choice(tool, tools)
    elif (wanted_type, wanted_name) not in set(_offered(tools)):
        raise errors.tool_not_offered(wanted_name or wanted_type)


def _offered(tools: Sequence[bytes]) -> Iterable[tuple[str, str | None]]:
    for tool in map(raw.Object, tools):
        yield tool.string("type") or "", tool.string("name")
        for inner in raw.elements(tool.get("tools") or b"[]"):
            inner_tool = raw.Object(inner)
            yield inner_tool.string("type") or "", inner_tool.string("name")
