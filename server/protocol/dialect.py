"""Dialects: the APIs that upstreams speak, each a path, how a request is written for it and how its replies are read.

What lives here lets everything else know one form only, that of the Responses API: a reader gives every reply in it.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from server.protocol.chat.messages import chat_messages
from server.protocol.chat.reply import ChatReply
from server.protocol.chat.request import functions, request_around_messages
from server.protocol.profile import Profile
from server.protocol.replay import Decision
from server.protocol.request import Request
from server.protocol.upstream_request import input_elements, request_around_input


class Reader(Protocol):
    """One reply in the form of the Responses API: a stream by `feed` and `end`, or one body by `whole`."""

    def feed(self, chunk: bytes) -> bytes:
        """The server-sent events that these bytes of the upstream complete."""
        ...

    def end(self) -> bytes:
        """The events that the end of the upstream's bytes completes."""
        ...

    def whole(self, body: bytes) -> bytes:
        """The response object of a whole JSON reply; raises raw.Malformed where it is none."""
        ...

    def fidelity(self, item_id: str | None, /) -> bytes | None:
        """What must be recorded of the item that was given under this id (DESIGN 4)."""
        ...


class AsItCame:
    """The reader of the Responses API itself."""

    def feed(self, chunk: bytes) -> bytes:
        return chunk

    def end(self) -> bytes:
        return b""

    def whole(self, body: bytes) -> bytes:
        return body

    def fidelity(self, _: str | None) -> bytes | None:
        return None


class Dialect(NamedTuple):
    """An API that upstreams speak. `path` lies behind their base URL.

    What a request says is an array of elements, each the copy of an item or a message of several. `elements` gives
    those of one turn, `around` takes request, response id, profile and cache salt and gives what goes before and behind
    them; it raises ApiError 400. `read` takes the request, the profile and the largest size of one event in bytes.
    """

    path: str
    around: Callable[[Request, str, Profile, str | None], tuple[bytes, bytes]]
    elements: Callable[[Sequence[Decision], Profile], list[bytes]]
    read: Callable[[Request, Profile, int], Reader]


def _read_chat(request: Request, profile: Profile, event_bytes_max: int) -> Reader:
    return ChatReply(functions(request, profile), event_bytes_max)


DIALECTS: dict[Literal["responses", "chat"], Dialect] = {
    "responses": Dialect("/responses", request_around_input, input_elements, lambda *_: AsItCame()),
    "chat": Dialect("/chat/completions", request_around_messages, chat_messages, _read_chat),
}
