"""The items of a chat reply on their way: each is announced, said piece by piece, and done, as the contract has it.

What lives here makes items of the Responses API out of texts that it never decodes, and the events that tell them
(contract api.md 6). Which delta belongs to which item is decided elsewhere.
"""

from collections.abc import Callable

from server.protocol import events, fidelity, ids, raw
from server.protocol.fidelity import Fidelity

Write = Callable[[str, dict[str, bytes]], None]
"""Takes an event's name and its members, without its number in the stream."""


class _ItemOnItsWay:
    """What all have: a place in the output, an id of our own, and an end."""

    type: str

    def __init__(self, index: int, write: Write) -> None:
        self.public_id = ids.new_item_id(self.type)
        self.body: bytes | None = None
        self._index = raw.literal(index)
        self._write = write

    def fidelity(self) -> bytes | None:
        return None

    def _announce(self, members: dict[str, bytes]) -> None:
        item = raw.render({**self._head("in_progress"), **members})
        self._write(events.ITEM_ADDED, {"output_index": self._index, "item": item})

    def _end(self, status: str, members: dict[str, bytes]) -> None:
        self.body = raw.render({**self._head(status), **members})
        self._write(events.ITEM_DONE, {"output_index": self._index, "item": self.body})

    def _head(self, status: str) -> dict[str, bytes]:
        return {"id": raw.literal(self.public_id), "type": raw.literal(self.type), "status": raw.literal(status)}

    def _tell(self, name: str, members: dict[str, bytes]) -> None:
        self._write(name, {"item_id": raw.literal(self.public_id), "output_index": self._index, **members})


class Reasoning(_ItemOnItsWay):
    """What a model thought. Its `field` is the one that carried it, None where that can't be said."""

    type = "reasoning"

    def __init__(self, index: int, write: Write) -> None:
        super().__init__(index, write)
        self._field: str | None = None
        self._is_sealed = False
        self._texts: list[bytes] = []
        self._details: list[dict[str, bytes]] = []
        self._announce({"summary": b"[]", "content": b"[]"})

    def goes_on_with(self, text: bytes | None, field: str | None) -> bool:
        """Whether what comes next is of this item: nothing is behind a payload, and a text has one field."""
        return not self._is_sealed and (text is None or not self._texts or field == self._field)

    def say(self, text: bytes, field: str | None) -> None:
        if not self._texts:
            self._field = field
            self._tell(events.PART_ADDED, {"content_index": b"0", "part": b'{"type":"reasoning_text","text":""}'})
        self._texts.append(text)
        self._tell("response.reasoning_text.delta", {"content_index": b"0", "delta": text})

    def add_details(self, details: list[raw.Object]) -> None:
        """Merge `reasoning_details`: pieces of one text have one index, and what they say besides comes once."""
        for detail in details:
            found = dict(detail.members())
            if self._details and _is_piece_of(found, self._details[-1]):
                _merge(self._details[-1], found)
            else:
                self._details.append(found)
            self._is_sealed |= fidelity.holds_payload(found)

    def end(self, status: str) -> None:
        content: list[bytes] = []
        if self._texts:
            text = raw.joined(self._texts)
            part = raw.render({"type": b'"reasoning_text"', "text": text})
            self._tell("response.reasoning_text.done", {"content_index": b"0", "text": text})
            self._tell(events.PART_DONE, {"content_index": b"0", "part": part})
            content.append(part)
        self._end(status, {"summary": b"[]", "content": raw.array(content)})

    def fidelity(self) -> bytes | None:
        details = raw.array([raw.render(detail) for detail in self._details]) if self._details else None
        return fidelity.write(Fidelity(reasoning_field=self._field, reasoning_details=details))


class Message(_ItemOnItsWay):
    """What a model said, or why it would not; parts of text and of refusal in the order they came."""

    type = "message"

    def __init__(self, index: int, write: Write, phase: bytes | None) -> None:
        super().__init__(index, write)
        self.phase = phase
        self._parts: list[bytes] = []
        self._open: str | None = None
        self._texts: list[bytes] = []
        self._logprobs: list[bytes] = []
        self._annotations: list[bytes] = []
        self._announce(self._members())

    def say(self, kind: str, text: bytes, logprobs: list[bytes]) -> None:
        """A piece of `output_text` or `refusal`."""
        self._open_part(kind)
        self._texts.append(text)
        self._logprobs += logprobs
        members = {"content_index": self._part_index(), "delta": text}
        if kind == "output_text":
            members["logprobs"] = raw.array(logprobs)
        self._tell(f"response.{kind}.delta", members)

    def annotate(self, annotations: list[bytes]) -> None:
        self._open_part("output_text")
        for annotation in annotations:
            members = {"content_index": self._part_index(), "annotation_index": raw.literal(len(self._annotations))}
            self._annotations.append(annotation)
            self._tell("response.output_text.annotation.added", {**members, "annotation": annotation})

    def end(self, status: str) -> None:
        self._end_part()
        self._end(status, self._members())

    def _members(self) -> dict[str, bytes]:
        members = {"role": b'"assistant"', "content": raw.array(self._parts)}
        return members if self.phase is None else {**members, "phase": self.phase}

    def _part_index(self) -> bytes:
        return raw.literal(len(self._parts))

    def _open_part(self, kind: str) -> None:
        if self._open == kind:
            return
        self._end_part()
        self._open = kind
        self._tell(events.PART_ADDED, {"content_index": self._part_index(), "part": self._part()})

    def _end_part(self) -> None:
        if self._open is None:
            return
        part = self._part()
        said = {"text": raw.joined(self._texts), "logprobs": raw.array(self._logprobs)}
        if self._open == "refusal":
            said = {"refusal": raw.joined(self._texts)}
        self._tell(f"response.{self._open}.done", {"content_index": self._part_index(), **said})
        self._tell(events.PART_DONE, {"content_index": self._part_index(), "part": part})
        self._parts.append(part)
        self._open = None
        self._texts, self._logprobs, self._annotations = [], [], []

    def _part(self) -> bytes:
        if self._open == "refusal":
            return raw.render({"type": b'"refusal"', "refusal": raw.joined(self._texts)})
        return raw.render(
            {
                "type": b'"output_text"',
                "text": raw.joined(self._texts),
                "annotations": raw.array(self._annotations),
                "logprobs": raw.array(self._logprobs),
            }
        )


class Call(_ItemOnItsWay):
    """A call of a tool. It is announced once its name is whole, which its first arguments or its end tell.

    `tools` are those of the request by name: a custom tool that went up as a function comes back as what it is. Then
    its input is wrapped in arguments, which nobody can read before their end.
    """

    type = "function_call"

    def __init__(
        self, place: Callable[[], int], write: Write, tools: dict[str, raw.Object], *, is_custom: bool
    ) -> None:
        self.name = ""
        self.call_id = ""
        self.arguments: list[bytes] = []
        self._place = place
        self._sink = write
        self._tools = tools
        self._is_custom = is_custom
        self._is_wrapped = False
        self._is_announced = False

    def is_whole(self) -> bool:
        """Whether its arguments are a JSON object already, so that nothing can follow."""
        try:
            raw.Object((raw.decode(raw.joined(self.arguments)) or "").encode("utf-8", "backslashreplace"))
        except raw.Malformed:
            return False
        return True

    def add_name(self, name: str) -> None:
        """A name may come in pieces, or again with every delta."""
        if not self._is_announced and name != self.name:
            self.name += name

    def say(self, arguments: bytes) -> None:
        self.arguments.append(arguments)
        self.announce()
        if not self._is_wrapped:
            self._tell(f"{self._prefix()}.delta", {"delta": arguments})

    def announce(self) -> None:
        if self._is_announced:
            return
        self._is_announced = True
        tool = self._tools.get(self.name)
        self._is_wrapped = not self._is_custom and tool is not None and tool.string("type") == "custom"
        self._is_custom = self._is_custom or self._is_wrapped
        self.type = "custom_tool_call" if self._is_custom else "function_call"
        super().__init__(self._place(), self._sink)
        self.call_id = self.call_id or f"call_{self.public_id.partition('_')[2]}"
        self._announce(self._members(b'""'))

    def end(self, status: str) -> None:
        self.announce()
        said = self._input() if self._is_wrapped else raw.joined(self.arguments)
        if self._is_wrapped and said != b'""':
            self._tell(f"{self._prefix()}.delta", {"delta": said})
        done = {"input": said} if self._is_custom else {"name": raw.literal(self.name), "arguments": said}
        self._tell(f"{self._prefix()}.done", done)
        self._end(status, self._members(said))

    def _prefix(self) -> str:
        return "response.custom_tool_call_input" if self._is_custom else "response.function_call_arguments"

    def _input(self) -> bytes:
        arguments = raw.joined(self.arguments)
        try:
            text = raw.decode(arguments).encode("utf-8", "backslashreplace")
            said = raw.Object(text).get("input")
        except raw.Malformed:
            return arguments
        return said if said is not None and said.startswith(b'"') else arguments

    def _members(self, said: bytes) -> dict[str, bytes]:
        tool = self._tools.get(self.name)
        namespace = tool.get("namespace") if tool is not None else None
        name = tool.get("name") if tool is not None else None
        members = {"call_id": raw.literal(self.call_id), "name": name or raw.literal(self.name)}
        if namespace is not None:
            members["namespace"] = namespace
        return {**members, "input" if self._is_custom else "arguments": said}


def _is_piece_of(found: dict[str, bytes], last: dict[str, bytes]) -> bool:
    """Whether a detail goes on with the one before it. Behind a payload another begins, with or without an index."""
    return not fidelity.holds_payload(last) and all(found.get(key) == last.get(key) for key in ("type", "index"))


def _merge(last: dict[str, bytes], found: dict[str, bytes]) -> None:
    texts = {
        name: raw.joined([one[name] for one in (last, found) if _is_text(one.get(name))])
        for name in ("text", "summary")
        if _is_text(last.get(name)) or _is_text(found.get(name))
    }
    last |= {key: value for key, value in found.items() if value != raw.NULL} | texts


def _is_text(value: bytes | None) -> bool:
    return value is not None and value.startswith(b'"') and value != b'""'
