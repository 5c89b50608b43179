"""One reply over HTTP/1.1, from the bytes that come to its status, headers and body.

What lives here does no I/O. Sizes are in bytes; httptools knows the grammar, and what it leaves open is settled here.
"""

import httptools
import httpx

HEAD_BYTES_MAX = 65_536
"""How long the fields of a reply may be, together and each line, trailers counted with them."""


class HttpReply:
    """One reply, as far as it has come. Nothing is awaited here; the parser calls what begins with `on_`."""

    def __init__(self, method: str) -> None:
        self.status = 0  # until the head is whole
        self.headers: list[tuple[bytes, bytes]] = []
        self.pieces: list[bytes] = []
        self.pieces_bytes = 0
        self.is_complete = False
        self.is_kept = False
        """Whether the connection may carry another reply behind this one."""
        self._is_bodiless = method == "HEAD"
        self._fields_bytes = 0
        self._unfinished_bytes = 0
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Takes what has come; raises RemoteProtocolError for what is no HTTP. Nothing may follow a whole reply."""
        self._unfinished_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.is_kept = False
            if not self.is_complete:
                raise httpx.RemoteProtocolError("What came is no HTTP reply.") from error
        if self._unfinished_bytes > HEAD_BYTES_MAX and not self.is_complete:
            # The parser gathers a line until its end, and would never stop.
            raise httpx.RemoteProtocolError(f"A line of the reply is longer than {HEAD_BYTES_MAX} bytes.")

    def end_of_connection(self) -> bool:
        """Whether the reply is whole now that nothing more comes, as one without a length is (RFC 9112, 6.3)."""
        if self.status and not any(map(_frames, self.headers)):
            self.is_complete = True
        return self.is_complete

    def take(self) -> bytes:
        """All of the body that came since it was last taken."""
        taken = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        self.pieces.clear()
        self.pieces_bytes = 0
        return taken

    def end(self) -> None:
        """Lets go of the parser, which holds this reply in turn: the two would wait for the garbage collector."""
        del self._parser

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise ValueError("bytes behind the reply")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._unfinished_bytes = 0
        self._fields_bytes += len(name) + len(value)
        if self._fields_bytes > HEAD_BYTES_MAX:
            raise ValueError("too long a head")
        if not self.status:
            self.headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            # One that only says that another comes. Its fields go on counting: it may come without end.
            self.headers.clear()
            return
        self.status = status
        self.is_kept = self._parser.should_keep_alive()
        self.is_complete = self._is_bodiless

    def on_body(self, piece: bytes) -> None:
        if self.is_complete:
            raise ValueError("a body where there is none")
        self._unfinished_bytes = 0
        self.pieces.append(piece)
        self.pieces_bytes += len(piece)

    def on_message_complete(self) -> None:
        self.is_complete = self.status != 0


def _frames(field: tuple[bytes, bytes]) -> bool:
    """Whether a header tells where the body ends."""
    name, value = field[0].lower(), field[1].lower()
    return name == b"content-length" or (name == b"transfer-encoding" and value.endswith(b"chunked"))
