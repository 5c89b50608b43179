"""Our response object over the upstream's (DESIGN 3, contract api.md 3).

What lives here knows which members are ours (the ids, and what the request asked for), which are the upstream's (what
became of it), and which are always there. Members that neither side knows pass as they came.
"""

from collections.abc import Callable, Mapping, Sequence

from server.protocol import raw, upstream_words
from server.protocol.request import MEMBERS, Request

Clock = Callable[[], int]
"""Seconds since the epoch, handed in so that what lives here stays pure."""

ERROR_CODES = frozenset(
    {
        "server_error", "rate_limit_exceeded", "invalid_prompt", "data_residency_mismatch", "bio_policy",
        "vector_store_timeout", "invalid_image", "invalid_image_format", "invalid_base64_image", "invalid_image_url",
        "image_too_large", "image_too_small", "image_parse_error", "image_content_policy_violation",
        "invalid_image_mode", "image_file_too_large", "unsupported_image_media_type", "empty_image_file",
        "failed_to_download_image", "image_file_not_found", "context_length_exceeded",
    }
)  # fmt: skip
"""The contract's enum of `error.code`, and `context_length_exceeded`, the one exception (DESIGN 8)."""

_DEFAULTS: dict[str, bytes] = {
    "background": b"false",
    "conversation": b"null",
    "frequency_penalty": b"0.0",
    "instructions": b"null",
    "max_output_tokens": b"null",
    "max_tool_calls": b"null",
    "metadata": b"{}",
    "parallel_tool_calls": b"true",
    "presence_penalty": b"0.0",
    "prompt_cache_key": b"null",
    "reasoning": b"null",
    "safety_identifier": b"null",
    "service_tier": b'"default"',
    "temperature": b"1.0",
    "text": b'{"format":{"type":"text"}}',
    "tool_choice": b'"auto"',
    "tools": b"[]",
    "top_logprobs": b"0",
    "top_p": b"1.0",
}
_UPSTREAMS = frozenset(
    {"output", "status", "usage", "incomplete_details", "error", "created_at", "completed_at", "id", "object"}
)
# Said by what a response was made from, or by how it was sent.
_NOT_ASKED = frozenset({"input", "previous_response_id", "conversation", "stream", "truncation", "background", "store"})
_NOT_ECHOED = frozenset({"input", "include", "stream", "stream_options"})
# Members of a request that a model server echoes by itself; unsent, they are not shown (`user` may not be null). And
# what SDKs make for themselves of the output, which is on no wire (contract api.md 3).
_NOT_PASSED = frozenset(
    {
        "user", "prompt", "prompt_cache_options", "prompt_cache_retention", "context_management", "moderation",
        "output_text",
    }
)  # fmt: skip
_TOKENS = ("input_tokens", "output_tokens")
_TOKEN_DETAILS = {
    "input_tokens_details": ("cached_tokens", "cache_write_tokens"),
    "output_tokens_details": ("reasoning_tokens",),
}

# An integer of thousands of digits is legal JSON, and Python refuses to read one.
_NUMBER_LENGTH_MAX = 32
# So many digits are below 2**53, which every client can read.
_SURE_DIGITS = 15
_NUMBERS_BEGIN = frozenset(bytes([byte]) for byte in b"-0123456789")
_NO_WORDS = "The model server reported an error."


class ResponseObject:
    """The response object of one turn, at its start and at its end.

    `created_at` is settled by the first object that is shown, so that all of them agree. `fit_to_tell` gives what a
    client may read of the upstream's own words.
    """

    def __init__(
        self,
        request: Request,
        response_id: str,
        clock: Clock,
        fit_to_tell: Callable[[object], str | None] = upstream_words.fit_to_tell,
    ) -> None:
        self._clock = clock
        self._fit_to_tell = fit_to_tell
        self._created_at: bytes | None = None
        self._ours = _ours(request, response_id)

    def started(self, upstream: raw.Object | None) -> bytes:
        """The object of `response.created` and `response.in_progress`; `upstream` is the upstream's own, if any."""
        return raw.render(self._members(upstream, {"status": b'"in_progress"', "output": b"[]"}))

    def ended(self, upstream: raw.Object | None, status: str, error: Mapping[str, str] | None) -> raw.Object:
        """The final object with an empty `output`, to be spliced with the items as they are shown.

        `error` (code, message) is what we say of a failed turn; without it the upstream's own error is shown.
        """
        outcome = {"status": raw.literal(status), "output": b"[]"}
        if status == "completed":
            outcome["completed_at"] = _integer(upstream, "completed_at") or raw.literal(self._clock())
        if status == "incomplete":
            outcome["incomplete_details"] = _object(upstream, "incomplete_details") or b'{"reason":"max_output_tokens"}'
        if status == "failed":
            outcome["error"] = _error(error or self.told(raw.Object(_object(upstream, "error") or b"{}")))
        usage = _object(upstream, "usage")
        if usage is not None:
            outcome["usage"] = _full_usage(usage)
        return raw.Object.of(self._members(upstream, outcome))

    def told(self, error: raw.Object) -> dict[str, str]:
        """Code and message of an upstream's error, as far as they are a client's to read; some send the words alone."""
        words = error.string("message") or error.string("error")
        code = "context_length_exceeded" if upstream_words.tells_overflow(words) else error.string("code") or ""
        return {"code": code, "message": self._fit_to_tell(words) or _NO_WORDS}

    def _members(self, upstream: raw.Object | None, outcome: Mapping[str, bytes]) -> dict[str, bytes]:
        if self._created_at is None:
            self._created_at = _integer(upstream, "created_at") or raw.literal(self._clock())
        members = {
            "id": self._ours["id"],
            "object": b'"response"',
            "created_at": self._created_at,
            "completed_at": raw.NULL,
            "error": raw.NULL,
            "incomplete_details": raw.NULL,
            "usage": raw.NULL,
            **outcome,
            **self._ours,
        }
        for name, value in upstream.members() if upstream else ():
            if name not in members and name not in _NOT_PASSED:
                members[name] = value
        return members


def request_of(body: raw.Object) -> bytes:
    """The create request that a stored response object tells, without what it was made from.

    What only looks as if nobody had asked for it is not in it: a default, and a member that is no request's own.
    """
    members = {
        name: raw.without_null_members(value)
        for name, value in body.members()
        if name in MEMBERS and name not in _NOT_ASKED and value not in (raw.NULL, _DEFAULTS.get(name))
    }
    if "reasoning" in members:
        asked = raw.Object(members["reasoning"]).members()
        members["reasoning"] = raw.render({name: value for name, value in asked if name != "context"})
    return raw.render({**members, "input": b"[]"})


def whole(body: raw.Object, output: Sequence[bytes]) -> bytes:
    """A final object with its items: body, terminal event and GET are these same bytes."""
    return raw.render({**dict(body.members()), "output": raw.array(output)})


def _ours(request: Request, response_id: str) -> dict[str, bytes]:
    ours = {"id": raw.literal(response_id), "model": request.members["model"]}
    ours |= _DEFAULTS
    ours |= {name: value for name, value in request.members.items() if name not in _UPSTREAMS | _NOT_ECHOED}
    ours["previous_response_id"] = raw.literal(request.previous_response_id)
    if request.conversation_id is not None:
        ours["conversation"] = raw.render({"id": raw.literal(request.conversation_id)})
    ours["store"] = raw.literal(request.store)
    ours["truncation"] = b'"disabled"'
    ours["tools"] = raw.array([_full_tool(tool) for tool in raw.elements(ours["tools"])])
    text = raw.Object(ours["text"])
    if text.get("format") is None:
        ours["text"] = text.spliced({"format": b'{"type":"text"}'})
    if ours["reasoning"] != raw.NULL:
        ours["reasoning"] = _full_reasoning(raw.Object(ours["reasoning"]))
    return ours


def _full_tool(tool: bytes) -> bytes:
    cut = raw.Object(tool)
    if cut.get("type") != b'"function"':
        return tool
    wanted = {"description": raw.NULL, "parameters": raw.NULL, "strict": b"true"}
    return cut.spliced({name: value for name, value in wanted.items() if name not in cut})


def _full_reasoning(reasoning: raw.Object) -> bytes:
    absent = {name: raw.NULL for name in ("effort", "summary") if name not in reasoning}
    return reasoning.spliced({**absent, "context": b'"all_turns"'})


def _full_usage(usage: bytes) -> bytes:
    """With every count that the contract wants as an integer, and nothing but counts in the details.

    vLLM has lists of tokens per turn there, at which the JavaScript agents' client gives up a stream. What is no count,
    such as a text or an integer that no client can read, is 0.
    """
    cut = raw.Object(usage)
    full = {name: _integer(cut, name) or b"0" for name in _TOKENS}
    full["total_tokens"] = _integer(cut, "total_tokens") or raw.literal(sum(map(int, full.values())))
    for name, wanted in _TOKEN_DETAILS.items():
        details = dict(raw.Object(_object(cut, name) or b"{}").members())
        counts = {key: value for key, value in details.items() if _is_number(value)}
        missing = [key for key in wanted if key not in counts]
        if missing or len(counts) < len(details):
            full[name] = raw.render(dict.fromkeys(wanted, b"0") | counts)
    members = dict(cut.members())
    return usage if members == members | full else raw.render(members | full)


def _error(error: Mapping[str, str]) -> bytes:
    code = error["code"] if error["code"] in ERROR_CODES else "server_error"
    return raw.render({"code": raw.literal(code), "message": raw.literal(error["message"])})


def _object(upstream: raw.Object | None, name: str) -> bytes | None:
    value = upstream.get(name) if upstream else None
    return value if value is not None and value.startswith(b"{") else None


def _integer(upstream: raw.Object | None, name: str) -> bytes | None:
    """A time in whole seconds; vLLM and others send floats, the contract wants integers."""
    value = upstream.get(name) if upstream else None
    if value is None or not _is_number(value) or len(value) > _NUMBER_LENGTH_MAX:
        return None
    if value.isdigit() and len(value) <= _SURE_DIGITS:
        return value
    number = raw.decode(value)
    return raw.literal(int(number)) if 0 <= number < 2**53 else None


def _is_number(value: bytes) -> bool:
    return value[:1] in _NUMBERS_BEGIN
