"""A chat reply becomes one of the Responses API: chunks, or one body, which is read as one big delta.

What lives here decides which item a piece of the reply belongs to, and how the turn ended; items tell themselves. Of
several choices only the first is read, since no more than one is ever asked for.
"""

from collections.abc import Callable
from typing import TypeVar

from server.protocol import events, raw, sse
from server.protocol.chat.calls import Calls, Unattributable, arguments_of, function_of
from server.protocol.chat.items import Call, Message, Reasoning

_REASONING_FIELDS = ("reasoning", "reasoning_content")
_REASON_OF_FINISH = {"length": "max_output_tokens", "content_filter": "content_filter"}

_Text = TypeVar("_Text", Reasoning, Message)


class ChatReply:
    """One reply, as a stream or as a body (`dialect.Reader`). `tools` are those that it may call, by name."""

    def __init__(self, tools: dict[str, raw.Object], event_bytes_max: int) -> None:
        self._tools = tools
        self._decoder = sse.Decoder(event_bytes_max)
        self._frames: list[bytes] = []
        self._sequence_number = 0
        self._opened = False
        self._has_ended = False
        self._head: dict[str, bytes] = {}
        self._usage = raw.NULL
        self._finish_reason: str | None = None
        self._items: list[Reasoning | Message | Call] = []
        self._open: Reasoning | Message | None = None
        self._calls = Calls()

    def feed(self, chunk: bytes) -> bytes:
        try:
            self._take_all(self._decoder.feed(chunk))
        except sse.EventTooLarge as too_large:
            self._take_all(too_large.events_before)
            self._fail(b'{"message":"The model server sent an event that is too large."}')
        return self._written()

    def end(self) -> bytes:
        """Without a reason to finish there was no end: the stream was cut, and what was on its way with it."""
        if not self._has_ended:
            if self._finish_reason is not None:
                self._finish()
            else:
                self._end_items("incomplete")
                self._tell_costs()
        return self._written()

    def whole(self, body: bytes) -> bytes:
        raw.check(body, events.DEPTH_MAX)
        reply = raw.Object(body)
        choice = _first_choice(reply)
        message = choice.object("message") if choice is not None else None
        if choice is None or message is None:
            raise raw.Malformed("it is not a chat completion")
        self._take_chunk(reply, choice, message, self._take_whole_calls)
        return raw.render(self._finish())

    def fidelity(self, item_id: str | None, /) -> bytes | None:
        found = (item for item in self._items if item.public_id == item_id)
        return next((item.fidelity() for item in found), None)

    def _take_all(self, frames: list[sse.Event]) -> None:
        for frame in frames:
            if not self._has_ended:
                self._take(frame.name, frame.data.strip())

    def _take(self, name: bytes, data: bytes) -> None:
        if not data:
            return
        if data == b"[DONE]":
            if self._finish_reason is not None or self._items:
                self._finish()
            return
        try:
            raw.check(data, events.DEPTH_MAX)
            chunk = raw.Object(data)
            if (error := _error(name, chunk)) is not None:
                self._fail(error)
                return
            choice = _first_choice(chunk)
            delta = choice.object("delta") or choice.object("message") if choice is not None else None
            self._take_chunk(chunk, choice, delta, self._take_calls)
        except raw.Malformed:
            # It is handed on as it came, to be judged like any other event that can't be read.
            self._end_items("incomplete")
            self._tell_costs()
            self._frames.append(sse.encode(b"error", data))
            self._has_ended = True
        except Unattributable:
            self._fail(b'{"message":"The model server sent a part of a tool call that belongs to none."}')

    def _take_chunk(
        self,
        chunk: raw.Object,
        choice: raw.Object | None,
        delta: raw.Object | None,
        take_calls: Callable[[raw.Object], None],
    ) -> None:
        self._begin(chunk)
        if (usage := chunk.object("usage")) is not None:
            self._usage = response_usage(usage)
        if choice is None:
            return
        if delta is not None:
            self._take_reasoning(delta)
            self._take_content(delta, choice)
            take_calls(delta)
        self._finish_reason = choice.string("finish_reason") or self._finish_reason

    def _begin(self, chunk: raw.Object) -> None:
        if self._opened:
            return
        self._opened = True
        self._head = {name: value for name in ("id", "model") if (value := chunk.get(name)) is not None}
        if (created := chunk.get("created")) is not None:
            self._head["created_at"] = created
        response = raw.render({**self._head, "object": b'"response"', "status": b'"in_progress"', "output": b"[]"})
        for name in (events.CREATED, events.IN_PROGRESS):
            self._write(name, {"response": response})

    def _take_reasoning(self, delta: raw.Object) -> None:
        text, field = _reasoning_of(delta)
        details = delta.objects("reasoning_details")
        if text is None and not details:
            return
        if text is None:
            texts = [found for one in details if (found := _text(one.get("text"))) is not None]
            text = raw.joined(texts) if texts else None
        item = self._open
        if not isinstance(item, Reasoning) or not item.goes_on_with(text, field):
            item = self._opens(lambda index: Reasoning(index, self._write))
        if text is not None:
            item.say(text, field)
        item.add_details(details)

    def _take_content(self, delta: raw.Object, choice: raw.Object) -> None:
        given = choice.object("logprobs")
        logprobs = [_logprob(one) for one in given.objects("content")] if given is not None else []
        for text in _content_texts(delta):
            self._message(delta).say("output_text", text, logprobs)
            logprobs = []
        if (refusal := _text(delta.get("refusal"))) is not None:
            self._message(delta).say("refusal", refusal, [])
        annotations = [_flat(one) for one in delta.objects("annotations")]
        if annotations:
            self._message(delta).annotate(annotations)

    def _message(self, delta: raw.Object) -> Message:
        """The message that this delta goes on with; another phase is another message."""
        phase = _text(delta.get("phase"))
        item = self._open
        if isinstance(item, Message) and phase in (None, item.phase):
            return item
        return self._opens(lambda index: Message(index, self._write, phase))

    def _take_calls(self, delta: raw.Object) -> None:
        for piece in _calls_in(delta):
            self._take_call(self._calls.find(piece) or self._begin_call(piece), piece)

    def _take_whole_calls(self, message: raw.Object) -> None:
        """The calls of a whole message: each is one of its own, whatever it is called by."""
        for call in _calls_in(message):
            self._take_call(self._begin_call(call), call)

    def _begin_call(self, delta: raw.Object) -> Call:
        self._close("completed")
        self._announce_calls()
        is_custom = delta.string("type") == "custom"
        call = Call(lambda: len(self._items), self._write, self._tools, is_custom=is_custom)
        self._calls.add(call, delta)
        return call

    def _take_call(self, call: Call, delta: raw.Object) -> None:
        self._calls.identify(call, delta)
        call.add_name(function_of(delta).string("name") or "")
        arguments = arguments_of(delta)
        if arguments is not None:
            # Whatever began before it has its name by now.
            self._announce_calls()
            call.say(arguments)

    def _announce_calls(self) -> None:
        for call in self._calls.all:
            if call not in self._items:
                call.announce()
                self._items.append(call)

    def _opens(self, make: Callable[[int], _Text]) -> _Text:
        """A new item of text, at the next place."""
        self._close("completed")
        self._announce_calls()
        item = make(len(self._items))
        self._open = item
        self._items.append(item)
        return item

    def _close(self, status: str) -> None:
        if self._open is not None:
            self._open.end(status)
            self._open = None

    def _finish(self) -> dict[str, bytes]:
        """The final response object. What a limit has cut is the item that was on its way last."""
        reason = _REASON_OF_FINISH.get(self._finish_reason or "")
        failed = self._finish_reason == "error"
        status = "failed" if failed else "incomplete" if reason else "completed"
        self._end_items("completed" if status == "completed" else "incomplete")
        return self._end(status, error=_FAILED if failed else raw.NULL, reason=reason)

    def _fail(self, error: bytes) -> None:
        """The upstream's own error, or one of ours; what was on its way is as far as it came, and has its price."""
        if self._has_ended:
            return
        self._end_items("incomplete")
        self._end("failed", error=error)

    def _end(self, status: str, *, error: bytes = raw.NULL, reason: str | None = None) -> dict[str, bytes]:
        """The terminal event, and the response object in it."""
        response = {
            **self._head,
            "object": b'"response"',
            "status": raw.literal(status),
            "incomplete_details": raw.render({"reason": raw.literal(reason)}) if reason else raw.NULL,
            "error": error,
            "usage": self._usage,
            "output": raw.array([item.body for item in self._items if item.body is not None]),
        }
        self._write(events.TERMINAL_OF_STATUS[status], {"response": raw.render(response)})
        self._has_ended = True
        return response

    def _tell_costs(self) -> None:
        """A stream that was cut has no terminal event to tell them in."""
        if self._usage != raw.NULL:
            response = raw.render({**self._head, "status": b'"in_progress"', "usage": self._usage})
            self._write(events.IN_PROGRESS, {"response": response})

    def _end_items(self, last_status: str) -> None:
        """End what is open: the last item with this status, those before it as they should be."""
        last = self._open or (self._calls.all[-1] if self._calls.all else None)
        self._announce_calls()
        for call in self._calls.all:
            call.end(last_status if call is last else "completed")
        self._close(last_status)

    def _write(self, name: str, members: dict[str, bytes]) -> None:
        self._frames.append(events.write(name, {"sequence_number": raw.literal(self._sequence_number), **members}))
        self._sequence_number += 1

    def _written(self) -> bytes:
        frames, self._frames = self._frames, []
        return b"".join(frames)


# No error, as some servers spell it in every chunk; the official clients raise only for what is true (api.md 6).
_NO_ERROR = (b"false", b'""', b"{}")
_FAILED = b'{"code":"server_error","message":"The model server ended the response with an error."}'
_TOKENS = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens", "total_tokens": "total_tokens"}
_TOKEN_DETAILS = {
    "input_tokens_details": ("prompt_tokens_details", "cached_tokens"),
    "output_tokens_details": ("completion_tokens_details", "reasoning_tokens"),
}


def response_usage(usage: raw.Object) -> bytes:
    """The usage of a chat completion under the names of the Responses API; what is not a count is left out."""
    members = {ours: count for ours, theirs in _TOKENS.items() if (count := _count(usage.get(theirs))) is not None}
    for ours, (theirs, name) in _TOKEN_DETAILS.items():
        details = usage.object(theirs)
        count = _count(details.get(name)) if details is not None else None
        if count is not None:
            members[ours] = raw.render({name: count})
    return raw.render(members)


def _count(value: bytes | None) -> bytes | None:
    return value if value is not None and value.isdigit() else None


def _first_choice(reply: raw.Object) -> raw.Object | None:
    choices = reply.objects("choices")
    return next((choice for choice in choices if choice.get("index") in (None, b"0")), None)


def _error(name: bytes, chunk: raw.Object) -> bytes | None:
    """The error object that a chunk holds, or that it is by the event's name; some tell no more than the words."""
    error = chunk.get("error")
    if error is None or error in _NO_ERROR:
        error = chunk.text if name == b"error" else None
    return error if error is None or error.startswith(b"{") else raw.render({"message": error})


def _calls_in(said: raw.Object) -> list[raw.Object]:
    """The calls, or pieces of calls, in a delta or a message."""
    # What came before there were several calls.
    function = said.object("function_call")
    only = [raw.Object(raw.render({"index": b"0", "function": function.text}))] if function is not None else []
    return [*said.objects("tool_calls"), *only]


def _reasoning_of(delta: raw.Object) -> tuple[bytes | None, str | None]:
    """The reasoning in a delta and the field that carried it; None for the field where both did.

    Where they differ `reasoning` counts, the newer name (vllm#27752).
    """
    found = {name: text for name in _REASONING_FIELDS if (text := _text(delta.get(name))) is not None}
    texts = list(found.values())
    if not texts:
        return None, None
    is_one = len(texts) == 1 or texts[0] != texts[1]
    return texts[0], next(iter(found)) if is_one else None


def _content_texts(delta: raw.Object) -> list[bytes]:
    """The texts of a content, which some servers send in parts."""
    whole = _text(delta.get("content"))
    parts = [_text(part.get("text")) for part in delta.objects("content")]
    return [text for text in (whole, *parts) if text is not None]


def _logprob(logprob: raw.Object) -> bytes:
    """A token's logprob; here its `bytes` and its alternatives may not be null."""
    alternatives = logprob.objects("top_logprobs")
    full = {"top_logprobs": raw.array([_with_bytes(one, {}) for one in alternatives])}
    return _with_bytes(logprob, full)


def _with_bytes(logprob: raw.Object, changes: dict[str, bytes]) -> bytes:
    return logprob.spliced({**changes, "bytes": logprob.get("bytes") or b"[]"})


def _flat(annotation: raw.Object) -> bytes:
    """An annotation whose members lie under its type there, and beside it here."""
    inner = annotation.object(annotation.string("type") or "")
    if inner is None:
        return annotation.text
    return raw.render({"type": annotation.get("type") or raw.NULL, **dict(inner.members())})


def _text(value: bytes | None) -> bytes | None:
    return value if value is not None and value.startswith(b'"') and value != b'""' else None
