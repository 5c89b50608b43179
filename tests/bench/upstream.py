"""A model server that costs almost nothing: prebuilt bytes, so that what is measured is the server in front of it.

Run as a script it listens on a free port and prints its URL. The model of a streamed request says what comes:
`burst-200` is 200 deltas in one write, `live-200-5` the same with one write an event and 5 ms between them. A request
that is not streamed gets a short message, whatever its model. Only the standard library is used here.
"""

import asyncio
import functools
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

TEXT = "hello world " * 20
USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 15,
}
# Stands for an id in the prebuilt bytes. Every reply has ids of its own, as those of a real model server have.
MARK = "@@@@@@@@@@@@"


def message(text: str, status: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}] if text else []
    return {"id": f"msg_{MARK}", "type": "message", "role": "assistant", "status": status, "content": content}


def response(output: list[dict[str, Any]], status: str, usage: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "id": f"resp_{MARK}",
        "object": "response",
        "created_at": 1_800_000_000,
        "model": "bench",
        "status": status,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "incomplete_details": None,
        "error": None,
        "usage": usage,
    }


@functools.cache
def whole_reply() -> bytes:
    return json.dumps(response([message(TEXT, "completed")], "completed", USAGE)).encode()


@functools.cache
def stream(deltas: int) -> list[bytes]:
    """The events of one message, a delta a token, in the order of the contract."""
    numbered = enumerate(_events(deltas))
    return [_frame(name, {"type": name, "sequence_number": number, **members}) for number, (name, members) in numbered]


def _events(deltas: int) -> Iterator[tuple[str, dict[str, Any]]]:
    tokens = [f"tok{number} " for number in range(deltas)]
    whole = message("".join(tokens), "completed")
    part = whole["content"][0]
    place = {"output_index": 0, "item_id": whole["id"], "content_index": 0}
    yield "response.created", {"response": response([], "in_progress", None)}
    yield "response.in_progress", {"response": response([], "in_progress", None)}
    yield "response.output_item.added", {"output_index": 0, "item": message("", "in_progress")}
    yield "response.content_part.added", {**place, "part": {**part, "text": ""}}
    for token in tokens:
        yield "response.output_text.delta", {**place, "delta": token, "logprobs": []}
    yield "response.output_text.done", {**place, "text": part["text"], "logprobs": []}
    yield "response.content_part.done", {**place, "part": part}
    yield "response.output_item.done", {"output_index": 0, "item": whole}
    yield "response.completed", {"response": response([whole], "completed", USAGE)}


def _frame(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


class Connection(asyncio.Protocol):
    """One client's connection. Requests have a content-length, and come one after the other."""

    _ids = itertools.count()

    def __init__(self) -> None:
        self._received = bytearray()
        self._awaited_bytes = 0
        # The loop itself holds its tasks weakly.
        self._live: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        # A long history comes in many pieces: its head is read once.
        while len(self._received) > self._awaited_bytes:
            head_end = self._received.find(b"\r\n\r\n") + 4
            if head_end < 4:
                return
            length = re.search(rb"\r\ncontent-length: *(\d+)", self._received[:head_end], re.IGNORECASE)
            end = head_end + (int(length[1]) if length else 0)
            if len(self._received) < end:
                self._awaited_bytes = end - 1
                return
            is_get, body = self._received.startswith(b"GET"), bytes(self._received[head_end:end])
            del self._received[:end]
            self._awaited_bytes = 0
            self._answer(is_get, body)

    def _answer(self, is_get: bool, body: bytes) -> None:
        fresh = b"%012x" % next(self._ids)
        if is_get:
            self._send(b"application/json", b'{"object":"list","data":[]}')
        elif not re.search(rb'"stream": ?true', body):
            self._send(b"application/json", whole_reply().replace(MARK.encode(), fresh))
        else:
            wanted = re.search(rb'"model": ?"(burst|live)-(\d+)(?:-(\d+))?"', body)
            assert wanted, "a streamed request names how it is streamed"
            frames = [frame.replace(MARK.encode(), fresh) for frame in stream(int(wanted[2]))]
            if wanted[1] == b"burst":
                self._send(b"text/event-stream", b"".join(frames))
            else:
                self._live = asyncio.ensure_future(self._send_live(frames, int(wanted[3]) / 1000))

    async def _send_live(self, frames: list[bytes], gap_s: float) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        for frame in frames:
            if self._transport.is_closing():
                return
            self._transport.write(b"%s%x\r\n%s\r\n" % (head, len(frame), frame))
            head = b""
            await asyncio.sleep(gap_s)
        self._transport.write(b"0\r\n\r\n")

    def _send(self, content_type: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n" % (content_type, len(body))
        self._transport.write(head + body)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
