"""Whose delta is whose: the calls of a chat reply, whatever its upstream does with their indexes and ids.

What lives here is a matter of reported failures: indexes that are missing, null, repeated or begin with 1, ids that are
empty, repeated or come with every delta (cases B053, B054).
"""

from server.protocol import ids, raw
from server.protocol.chat.items import Call


class Unattributable(Exception):
    """A delta that could be any call's."""


class Calls:
    """The calls of one reply, in the order they began."""

    def __init__(self) -> None:
        self.all: list[Call] = []
        self._by_index: dict[int | None, Call] = {}
        self._by_id: dict[str, Call] = {}

    def find(self, delta: raw.Object) -> Call | None:
        """The call that a delta goes on with, None where it begins one.

        Its index names the call, then its id. A name begins one, or an id that nobody knows, if it has no arguments:
        some servers send an id of its own with every piece. What names nothing goes on with the only call there is.
        Raises Unattributable.
        """
        known = self._known(delta)
        if known is not None:
            return None if _begins_anew(delta, known) else known
        if _name(delta) or (delta.string("id") and arguments_of(delta) is None):
            return None
        if len(self.all) == 1:
            return self.all[0]
        if not self.all and _index(delta) is not None:
            return None
        raise Unattributable

    def add(self, call: Call, delta: raw.Object) -> None:
        """A call that this delta begins."""
        index = _index(delta)
        if index is not None:
            self._by_index[index] = call
        self.all.append(call)

    def identify(self, call: Call, delta: raw.Object) -> None:
        """Give a call that has no id yet the delta's. An id that another call has already is not its own, and one that
        no client may send back with the output is none."""
        call_id = delta.string("id") or ""
        if ids.is_usable(call_id) and not call.call_id and call_id not in self._by_id:
            call.call_id = call_id
            self._by_id[call_id] = call

    def _known(self, delta: raw.Object) -> Call | None:
        """The call that a delta's index or id is known for, or whose name it repeats in the midst of its arguments."""
        call_id, index, name = delta.string("id") or "", _index(delta), _name(delta)
        if index in self._by_index:
            return self._by_index[index]
        if call_id in self._by_id and (index is None or not name):
            return self._by_id[call_id]
        last = self.all[-1] if self.all and index is None and not call_id else None
        is_unfinished = last is not None and last.name == name and last.arguments and not last.is_whole()
        return last if is_unfinished else None


def arguments_of(delta: raw.Object) -> bytes | None:
    """The arguments or the input in a delta of a call, as a string's literal; None where there are none.

    Some servers send arguments as the object that their text would hold.
    """
    said = function_of(delta)
    value = said.get("arguments") or said.get("input")
    if value is not None and value.startswith(b"{"):
        return raw.literal(value.decode())
    return value if value is not None and value.startswith(b'"') and value != b'""' else None


def function_of(delta: raw.Object) -> raw.Object:
    """What a delta of a call says: its function, or its custom tool."""
    for name in ("function", "custom"):
        said = delta.get(name)
        if said is not None and said.startswith(b"{"):
            return raw.Object(said)
    return raw.Object(b"{}")


def _begins_anew(delta: raw.Object, call: Call) -> bool:
    """Whether a delta that is placed where `call` is begins another one: by a name with another id, or by one that
    comes when the arguments are whole and is not merely told again."""
    name, call_id = _name(delta), delta.string("id") or ""
    if not name:
        return False
    if call_id and call.call_id and call_id != call.call_id:
        return True
    is_more = name != call.name or arguments_of(delta) is not None
    return is_more and bool(call.arguments) and call.is_whole()


def _name(delta: raw.Object) -> str:
    return function_of(delta).string("name") or ""


def _index(delta: raw.Object) -> int | None:
    index = delta.get("index")
    return int(index) if index is not None and index.isdigit() and len(index) < 10 else None
