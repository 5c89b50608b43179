"""A scripted upstream with a request recorder: for our tests, the demo, and the tests of those who use this server.

What lives here stands in for a vLLM. It answers on the wire as one does, by a script or by itself, and remembers what
it was sent. Any ASGI server can serve it; it imports the protocol only.
"""

import asyncio
import itertools
import json
import random
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any

import msgspec

from server.protocol.sse import encode

HANG_MAX_S = 60
RECEIVED_MAX = 1_000

_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_EVENT_STREAM = "text/event-stream; charset=utf-8"
_REQUEST_ID = b"{{request_id}}"

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Reply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One scripted answer: a status, at most one body, and what goes wrong with it.

    Bodies: `json` (any value, rendered compactly), `text`, `sse` (one write, lone surrogates as their three bytes),
    `sse_chunks` and `sse_chunks_b64` (one write each; base64 in a script, bytes in Python). In all but the last,
    `{{request_id}}` becomes the `request_id` of the request, as vLLM makes it the response's id, or a fresh id.

    `close` drops the connection after the body, so that the client sees a cut; `hang` stays silent after the body until
    the client leaves, or drops the connection after HANG_MAX_S. `delay_ms` passes before the headers,
    `first_byte_delay_ms` before the body, `chunk_delay_ms` after each write, which is then one event of `sse`.
    `split_every_bytes` and `split_random_seeds` (pieces of 1 to 9 bytes; POST n takes the nth seed, from the first
    again after the last) cut the body anew.
    """

    status: int = 200
    headers: dict[str, str] = {}
    json: Any = msgspec.UNSET
    text: str | None = None
    sse: str | None = None
    sse_chunks: list[str] | None = None
    sse_chunks_b64: list[bytes] | None = None
    close: bool = False
    hang: bool = False
    delay_ms: float = 0
    first_byte_delay_ms: float = 0
    chunk_delay_ms: float = 0
    split_every_bytes: int | None = None
    split_random_seeds: list[int] = []

    def __post_init__(self) -> None:
        bodies = (self.text, self.sse, self.sse_chunks, self.sse_chunks_b64)
        if (self.json is not msgspec.UNSET) + sum(body is not None for body in bodies) > 1:
            raise ValueError("a reply has only one of json, text, sse, sse_chunks and sse_chunks_b64")

    @property
    def content_type(self) -> str:
        if self.json is not msgspec.UNSET:
            return _JSON
        return _EVENT_STREAM if self.text is None else _TEXT

    def writes(self, post_number: int, request_id: str) -> list[bytes]:
        """The body as the writes it goes out in, for POST `post_number` (from 0)."""
        if self.sse_chunks_b64 is not None:
            writes = self.sse_chunks_b64
        else:
            writes = [write.replace(_REQUEST_ID, _rendered(request_id)[1:-1]) for write in self._unfilled()]
        if self.split_every_bytes:
            return _cut(b"".join(writes), itertools.repeat(self.split_every_bytes))
        if self.split_random_seeds:
            generator = random.Random(self.split_random_seeds[post_number % len(self.split_random_seeds)])  # noqa: S311
            return _cut(b"".join(writes), (generator.randint(1, 9) for _ in itertools.count()))
        return writes

    def _unfilled(self) -> list[bytes]:
        if self.json is not msgspec.UNSET:
            return [_rendered(self.json)]
        if self.text is not None:
            return [self.text.encode()]
        if self.sse_chunks is not None:
            return [chunk.encode("utf-8", "surrogatepass") for chunk in self.sse_chunks]
        stream = (self.sse or "").encode("utf-8", "surrogatepass")
        return re.findall(rb".+?(?:\n\n|\Z)", stream, re.DOTALL) if self.chunk_delay_ms else [stream]


class Received(msgspec.Struct):
    """One request as it came: lower-case header names (of repeated ones the last), the body's bytes.

    `left` becomes true when the client was seen to leave before its answer ended.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    left: bool = False

    @property
    def json(self) -> Any:
        """The body as JSON. Raises ValueError where it is none."""
        return json.loads(self.body)


class Mock:
    """The ASGI application. Without replies it answers by itself, and says loudly that no model did.

    POST n is answered by reply n, whatever its path; the last reply repeats. `received` holds the latest RECEIVED_MAX
    requests of any method, `posts` those that ask for an answer; a request is in both, and was handed to `record`,
    before its answer begins.
    """

    def __init__(self, replies: Sequence[Reply] = (), *, record: Callable[[Received], None] | None = None) -> None:
        self.replies = list(replies)
        self.received: list[Received] = []
        self._record = record
        self._post_count = 0

    @property
    def posts(self) -> list[Received]:
        return [received for received in self.received if received.method == "POST"]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "the mock speaks HTTP only and needs no start-up"
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        received = Received(scope["method"], scope["path"], headers, await _whole_body(receive))
        self.received.append(received)
        del self.received[:-RECEIVED_MAX]
        if self._record:
            self._record(received)
        post_number = self._post_count
        self._post_count += received.method == "POST"
        reply = self._reply(received, post_number)
        received.left = await _send(reply, reply.writes(post_number, _request_id(received)), receive, send)

    def _reply(self, received: Received, post_number: int) -> Reply:
        if received.method == "GET":
            return _GET_REPLIES.get(received.path, _NOT_FOUND)
        if received.method != "POST":
            return Reply(status=405, json={"detail": "Method Not Allowed"})
        if received.path == "/v1/responses" and (refusal := _not_json(received.body)):
            return refusal
        if self.replies:
            return self.replies[min(post_number, len(self.replies) - 1)]
        if received.path != "/v1/responses":
            return _NOT_FOUND
        return _no_input(received.json) or _own_answer(received.json, _request_id(received))


def load_script(text: bytes) -> list[Reply]:
    """The replies of a script: one JSON object a line, or a JSON array of them, or `{"replies": [...]}`.

    Raises ValueError for what is not JSON, and for a member that a Reply has not, naming it.
    """
    try:
        script = json.loads(text)
    except json.JSONDecodeError:
        script = [json.loads(line) for line in text.splitlines() if line.strip()]
    if isinstance(script, dict):
        script = script.get("replies", [script])
    return msgspec.convert(script, list[Reply])


async def _send(reply: Reply, writes: list[bytes], receive: Receive, send: Send) -> bool:
    """Plays one reply; true if the client left before its end."""
    cut = reply.close or reply.hang
    headers = {"content-type": reply.content_type}
    if not cut and reply.content_type != _EVENT_STREAM:
        headers["content-length"] = str(sum(map(len, writes)))
    headers |= {name.lower(): value for name, value in reply.headers.items()}
    if await _client_leaves(receive, reply.delay_ms / 1e3):
        return True
    raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": raw_headers})
    if await _client_leaves(receive, reply.first_byte_delay_ms / 1e3):
        return True
    for write in writes:
        await send({"type": "http.response.body", "body": write, "more_body": True})
        if await _client_leaves(receive, reply.chunk_delay_ms / 1e3):
            return True
    if reply.hang and await _client_leaves(receive, HANG_MAX_S):
        return True
    # An application that returns before the end of its body makes the server drop the connection without a last chunk.
    if not cut:
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    return False


async def _client_leaves(receive: Receive, within_s: float) -> bool:
    if not within_s:
        await asyncio.sleep(0)
        return False
    try:
        async with asyncio.timeout(within_s):
            while (await receive())["type"] != "http.disconnect":
                pass
    except TimeoutError:
        return False
    return True


async def _whole_body(receive: Receive) -> bytes:
    body, more = bytearray(), True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body)


def _cut(body: bytes, sizes: Iterable[int]) -> list[bytes]:
    pieces, begin = [], 0
    for size in sizes:
        if begin >= len(body):
            break
        pieces.append(body[begin : begin + size])
        begin += size
    return pieces


def _rendered(value: Any) -> bytes:
    # A lone surrogate cannot be UTF-8. `backslashreplace` writes it as the escape by which JSON can still say it.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def _request_id(received: Received) -> str:
    try:
        request_id = received.json["request_id"]
    except (ValueError, LookupError, TypeError):
        request_id = None
    return request_id if isinstance(request_id, str) else f"resp_{secrets.token_hex(8)}"


# The rest is what vLLM does by itself, recorded from 0.33.

_GET_REPLIES = {
    "/health": Reply(text=""),
    "/v1/models": Reply(
        json={"object": "list", "data": [{"id": "mock", "object": "model", "created": 0, "owned_by": "rejoinder"}]}
    ),
}
_NOT_FOUND = Reply(status=404, json={"detail": "Not Found"})


def _not_json(body: bytes) -> Reply | None:
    """The refusal of a body that is not JSON; None for one that is."""
    try:
        json.loads(body)
    except json.JSONDecodeError as fault:
        detail = {"type": "json_invalid", "loc": f"body.{fault.pos}", "msg": "JSON decode error"}
        return _bad_request({**detail, "input": "<dict of 0 items>", "ctx": {"error": fault.msg}})
    except ValueError:
        return _error("There was an error parsing the body", "Bad Request", None)
    return None


def _no_input(request: Any) -> Reply | None:
    """The refusal of a request without input; None for one that has some."""
    if not isinstance(request, dict) or "input" not in request:
        count = f"<dict of {len(request)} items>" if isinstance(request, dict) else ""
        return _bad_request({"type": "missing", "loc": "body.input", "msg": "Field required", "input": count})
    if not isinstance(request["input"], str | list):
        return _bad_request({"type": "list_type", "loc": "body.input", "msg": "Input should be a valid list"})
    if request["input"] == []:
        message = "Cannot apply chat template to an empty conversation. Provide at least one message."
        return _error(message, "BadRequestError", None)
    return None


def _bad_request(detail: dict[str, Any]) -> Reply:
    return _error(f"1 validation error:\n  {detail}", "Bad Request", detail["loc"])


def _error(message: str, type: str, param: str | None) -> Reply:
    return Reply(status=400, json={"error": {"message": message, "type": type, "param": param, "code": 400}})


# The members, their order and their defaults are those of a response of vLLM 0.33.
_RESPONSE = """{"id":"","created_at":0,"incomplete_details":null,"instructions":null,"metadata":null,"model":"mock",
"object":"response","output":[],"parallel_tool_calls":true,"temperature":1.0,"tool_choice":"none","tools":[],"top_p":1.0,
"background":false,"max_output_tokens":null,"max_tool_calls":null,"previous_response_id":null,"prompt":null,
"prompt_cache_options":null,"prompt_cache_key":null,"prompt_cache_retention":null,"reasoning":null,
"safety_identifier":null,"service_tier":"auto","status":"completed","text":null,"top_logprobs":null,
"truncation":"disabled","usage":{"input_tokens":0,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0,
"input_tokens_per_turn":[],"cached_tokens_per_turn":[]},"output_tokens":0,"output_tokens_details":{"reasoning_tokens":0,
"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]},"total_tokens":0},"user":null,
"presence_penalty":0.0,"frequency_penalty":0.0,"kv_transfer_params":null,"ec_transfer_params":null,
"input_messages":null,"output_messages":null}"""
_NEVER_ECHOED = {"id", "created_at", "object", "output", "status", "usage", "previous_response_id", "background"}


def _own_answer(request: dict[str, Any], response_id: str) -> Reply:
    items = request["input"] if isinstance(request["input"], list) else [request["input"]]
    count = f"{len(items)} input item{'' if len(items) == 1 else 's'}"
    thought = f"I am a mock and cannot think. I count {count}."
    text = f"This is the rejoinder mock, not a model. It received {count}; the last one said: {_said(items[-1])}"
    response = json.loads(_RESPONSE)
    echoed = {name for name in response.keys() - _NEVER_ECHOED if request.get(name) is not None}
    response |= {"tool_choice": "auto" if request.get("tools") else "none"} | {name: request[name] for name in echoed}
    response |= {"id": response_id, "created_at": int(time.time())}
    response["output"] = [_reasoning(thought, status="completed" if request.get("stream") else None), _message(text)]
    _count_tokens(response["usage"], len(_tokens(str(items))), len(_tokens(thought)), len(_tokens(text)))
    if not request.get("stream"):
        return Reply(json=response)
    events = [dict(sorted(event.items())) for event in _events(response)]
    return Reply(sse_chunks_b64=[encode(event["type"].encode(), _rendered(event)) for event in events])


def _said(item: Any) -> str:
    """The text of an item, at most 200 characters of it; of an item without text its type."""
    if not isinstance(item, dict):
        return str(item)[:200]
    content = item.get("content") or item.get("output")
    if isinstance(content, list):
        content = "".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return str(content or f"({item.get('type')})")[:200]


def _reasoning(text: str, status: str | None) -> dict[str, Any]:
    return {
        "id": f"rs_{secrets.token_hex(8)}",
        "summary": [],
        "type": "reasoning",
        "content": [{"text": text, "type": "reasoning_text"}],
        "encrypted_content": None,
        "status": status,
    }


def _message(text: str) -> dict[str, Any]:
    return {
        "id": f"msg_{secrets.token_hex(8)}",
        "content": [{"annotations": [], "text": text, "type": "output_text", "logprobs": None}],
        "role": "assistant",
        "status": "completed",
        "type": "message",
        "phase": None,
    }


def _tokens(text: str) -> list[str]:
    """A mock's tokens are words, each with the white space before it."""
    return re.findall(r"\s*\S+|\s+", text)


def _count_tokens(usage: dict[str, Any], input_tokens: int, reasoning_tokens: int, text_tokens: int) -> None:
    output_tokens = reasoning_tokens + text_tokens
    usage |= {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
    }
    usage["output_tokens_details"]["reasoning_tokens"] = reasoning_tokens


def _events(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    numbers = itertools.count()
    begun = response | {"status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "sequence_number": next(numbers), "response": begun}
    yield {"type": "response.in_progress", "sequence_number": next(numbers), "response": begun}
    for output_index, item in enumerate(response["output"]):
        for event in _item_events(item):
            yield event | {"sequence_number": next(numbers), "output_index": output_index}
    yield {"type": "response.completed", "sequence_number": next(numbers), "response": response}


def _item_events(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    part = item["content"][0]
    kind = part["type"]
    place = {"item_id": item["id"], "content_index": 0}
    no_logprobs: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
    no_content: list[Any] | None = [] if item["type"] == "message" else None
    yield {"type": "response.output_item.added", "item": item | {"content": no_content, "status": "in_progress"}}
    yield {"type": "response.content_part.added", **place, "part": part | {"text": ""} | no_logprobs}
    for token in _tokens(part["text"]):
        yield {"type": f"response.{kind}.delta", **place, "delta": token, **no_logprobs}
    yield {"type": f"response.{kind}.done", **place, "text": part["text"], **no_logprobs}
    yield {"type": "response.content_part.done", **place, "part": part}
    yield {"type": "response.output_item.done", "item": item}
