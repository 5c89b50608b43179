"""A stored item as clients see it: its text, and only what clients can't do without (DESIGN 4).

What lives here adds members where they are absent or null and changes none that says something. Measured with
openai-python's strict types: `id`, the `status` of messages, calls and outputs, a call's `call_id`, a reasoning item's
`summary`, the full form of a short message, `annotations` of an output text and `detail` of an image.
"""

from server.protocol import raw
from server.protocol.items import Item

_COMPLETED = b'"completed"'


def shown(item: Item, *, is_done: bool = True) -> bytes:
    """The item's text for clients; of an item that is not done yet no status is claimed."""
    cut = raw.Object(item.body)
    changes: dict[str, bytes] = {}
    if cut.string("id") != item.public_id:
        changes["id"] = raw.literal(item.public_id)
    wanted = _wanted(item, is_done=is_done)
    changes |= {name: value for name, value in wanted.items() if cut.get(name) is None}
    for name in ("content", "output"):
        content = cut.get(name)
        if content is not None:
            full = _full_content(content, item.type, cut)
            if full != content:
                changes[name] = full
    return cut.spliced(changes) if changes else item.body


def _wanted(item: Item, *, is_done: bool) -> dict[str, bytes]:
    """The members that an item of this type must have, with what they say where they are missing."""
    wanted = {"type": raw.literal(item.type)}
    if is_done and _has_status(item.type):
        wanted["status"] = _COMPLETED
    if is_done and item.type in ("function_call", "custom_tool_call"):
        # Where a model server gave it none, it is answered by its own id.
        wanted["call_id"] = raw.literal(item.public_id)
    if item.type == "reasoning":
        wanted["summary"] = b"[]"
    if item.type == "local_shell_call_output" and item.call_id is not None:
        # Its own `id` named its call; now that it has an id of its own, the call is named as in other outputs.
        wanted["call_id"] = raw.literal(item.call_id)
    return wanted


def _has_status(item_type: str) -> bool:
    return item_type == "message" or item_type.endswith(("_call", "_output"))


def _full_content(content: bytes, item_type: str, cut: raw.Object) -> bytes:
    if content.startswith(b"["):
        parts = raw.elements(content)
        full = [_full_part(part) for part in parts]
        return content if full == parts else raw.array(full)
    if item_type != "message" or not content.startswith(b'"'):
        return content
    if cut.string("role") == "assistant":
        return b'[{"type":"output_text","text":' + content + b',"annotations":[],"logprobs":[]}]'
    return b'[{"type":"input_text","text":' + content + b"}]"


def _full_part(part: bytes) -> bytes:
    if not part.startswith(b"{"):
        return part
    cut = raw.Object(part)
    part_type = cut.get("type")
    if part_type == b'"input_image"' and cut.get("detail") is None:
        return cut.spliced({"detail": b'"auto"'})
    if part_type == b'"output_text"' and cut.get("annotations") is None:
        return cut.spliced({"annotations": b"[]"})
    return part
