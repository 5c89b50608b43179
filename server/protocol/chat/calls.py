"""Whose delta is whose: the calls of a chat reply, whatever its upstream does with their indexes and ids.

What lives here is a matter of reported failures: indexes that are missing, null, repeated or begin with 1, ids that are
empty, repeated or come with every delta (cases B053, B054).
"""

from server.protocol import raw
from server.protocol.chat.items import Call


class Unattributable(Exception):
    """A delta that could be any call's."""


class Calls:
    """The calls of one reply, in the order they began."""

    def __init__(self) -> None:
        self.all: list[Call] = []
        self._by_index: dict[int, Call] = {}
        self._by_id: dict[str, Call] = {}

    def find(self, delta: raw.Object) -> Call | None:
        """The call that a delta goes on with, None where it begins one.

        An id that is known names its call, and one that is not begins one; then the index names it, unless the delta
        brings a name again after arguments that are whole. Without either it is the only call, if it brings no name.
        Raises Unattributable.
        """
        call_id, index = delta.string("id") or "", _index(delta)
        by_id, by_index = self._by_id.get(call_id), self._by_index.get(index) if index is not None else None
        if by_index is not None:
            begins = call_id not in ("", by_index.call_id) or self._begins_anew(delta, by_index)
            return None if begins else by_index
        if by_id is not None and index is None:
            return by_id
        if index is not None or call_id or _names(delta):
            return None
        if len(self.all) == 1:
            return self.all[0]
        raise Unattributable

    def add(self, call: Call, delta: raw.Object) -> None:
        """A call that this delta begins. An id that another call has already is not its own."""
        call_id, index = delta.string("id") or "", _index(delta)
        if call_id and call_id not in self._by_id:
            call.call_id = call_id
            self._by_id[call_id] = call
        if index is not None:
            self._by_index[index] = call
        self.all.append(call)

    def _begins_anew(self, delta: raw.Object, call: Call) -> bool:
        return _names(delta) and bool(call.arguments) and call.is_whole() and _has_arguments(delta)


def function_of(delta: raw.Object) -> raw.Object:
    """What a delta of a call says: its function, or its custom tool."""
    for name in ("function", "custom"):
        said = delta.get(name)
        if said is not None and said.startswith(b"{"):
            return raw.Object(said)
    return raw.Object(b"{}")


def _names(delta: raw.Object) -> bool:
    return bool(function_of(delta).string("name"))


def _has_arguments(delta: raw.Object) -> bool:
    said = function_of(delta)
    return bool(said.string("arguments") or said.string("input"))


def _index(delta: raw.Object) -> int | None:
    index = delta.get("index")
    return int(index) if index is not None and index.isdigit() and len(index) < 10 else None
