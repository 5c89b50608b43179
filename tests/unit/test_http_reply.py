"""One HTTP reply from its bytes: every cut of what was recorded of real model servers, and what may not follow it."""

import httpx
import msgspec
import pytest

from server.upstream.http_reply import HttpReply
from tests.harness import captures

# What came over the wire, and its body, whose chunks the harness joins by itself. The killed engines ended no body.
RECORDED = {
    f"{capture.name} {version}": (
        capture.raw.removesuffix("<<EOF>>").encode(),
        msgspec.structs.replace(capture, body=None).received,
    )
    for version in ("0.32", "0.33")
    for capture in captures(version)
    if capture.raw is not None
}


def fed(*pieces: bytes, method: str = "POST") -> HttpReply:
    reply = HttpReply(method)
    for piece in pieces:
        reply.feed(piece)
    return reply


def test_what_was_recorded_is_here() -> None:
    assert len(RECORDED) == 12
    assert sum(body.startswith(b"event: response.created") for _, body in RECORDED.values()) == 10


@pytest.mark.parametrize("name", RECORDED)
def test_every_cut_of_what_was_recorded(name: str) -> None:
    raw, body = RECORDED[name]
    status, is_whole = int(raw.split()[1]), "killed" not in name
    for cut in range(1, len(raw)):
        reply = fed(raw[:cut], raw[cut:])
        assert (reply.status, reply.is_complete, reply.take()) == (status, is_whole, body), cut
        # Behind the head of all but the killed ones stands `connection: close`.
        assert reply.is_kept is not is_whole


def test_a_byte_at_a_time() -> None:
    raw, body = RECORDED["11-reasoning 0.33"]
    reply = fed(*(raw[index : index + 1] for index in range(len(raw))))
    assert (reply.is_complete, reply.take()) == (True, body)
    assert reply.headers[1] == (b"server", b"uvicorn")


def test_what_was_taken_is_not_taken_again() -> None:
    reply = fed(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\na", b"b")
    assert (reply.take(), reply.pieces_bytes, reply.is_complete) == (b"ab", 0, False)
    reply.feed(b"cd")
    assert (reply.take(), reply.is_complete) == (b"cd", True)


@pytest.mark.parametrize(
    ("head", "is_whole"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nabc", True),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nabc", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nabc", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n3\r\nabc\r\n", False),
        (b"HTTP/1.1 200 OK\r\n", False),
        (b"HTTP/1.1 100 Continue\r\n\r\n", False),
        (b"", False),
    ],
)
def test_what_the_end_of_a_connection_ends(head: bytes, is_whole: bool) -> None:
    assert fed(head).end_of_connection() is is_whole


@pytest.mark.parametrize("surplus", [b"x", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_what_comes_behind_a_reply_changes_nothing_of_it(surplus: bytes) -> None:
    reply = fed(b"HTTP/1.1 201 Made\r\ncontent-length: 2\r\n\r\nok" + surplus)
    assert (reply.status, reply.take(), reply.is_complete, reply.is_kept) == (201, b"ok", True, False)


def test_a_reply_without_a_body_has_none_even_if_one_comes() -> None:
    reply = fed(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", method="HEAD")
    assert (reply.take(), reply.is_complete, reply.is_kept) == (b"", True, False)


def test_a_switch_of_protocols_is_no_reply() -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        fed(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
