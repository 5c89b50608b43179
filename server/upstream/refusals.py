"""What an upstream's refusal becomes: a status, a type and a code of the contract, and a message fit for the caller.

What lives here reads error bodies (contract vllm.md 5, DESIGN 8). Only the message of a JSON error object may reach the
caller, never other text; its first line, bounded, with anything like a credential blotted out.
"""

import re
from collections.abc import Mapping
from typing import Any

from server import errors
from server.errors import ApiError
from server.protocol import ids, raw, upstream_words

REFUSAL_BYTES_MAX = 65_536

_KEPT = frozenset({400, 408, 409, 413, 422, 429, 503})
_MISCONFIGURED = frozenset({401, 403, 404, 405})
_RETRY_AFTER = re.compile(r"[\w ,:+-]{1,64}", re.ASCII)
_UNION_MEMBER = re.compile(r"\.[A-Z].*")
_LOCATION = re.compile(r"'loc': '([\w.\[\]]+)'")


def refusal(status: int, headers: Mapping[str, str], body: bytes, model: str, api_key: str | None) -> ApiError:
    """The error a client gets for an upstream's reply that is not a success.

    `body` may be the beginning of one; `model` is the one that was asked for, `api_key` ours, to be kept secret.
    """
    told = _error_object(body)
    if status == 404 and (told.get("param") == "model" or told.get("code") == "model_not_found"):
        return errors.model_not_found(model)
    if status in _MISCONFIGURED:
        return errors.upstream_misconfigured(status)
    if status not in _KEPT:
        return errors.upstream_broken(f"it answered {status}.")
    retry_after = headers.get("retry-after")
    if retry_after is not None and not _RETRY_AFTER.fullmatch(retry_after):
        retry_after = None
    param = _param(told)
    if api_key and param and api_key in param:
        param = None
    message = _message(status, told, param, api_key)
    is_overflow = status == 400 and _is_overflow(told)
    return errors.upstream_refused(
        status,
        message,
        param="input" if is_overflow else param,
        code="context_length_exceeded" if is_overflow else _code(status),
        retry_after=retry_after,
    )


def _error_object(body: bytes) -> dict[str, Any]:
    """The error in a body: `{"error": {...}}`, or FastAPI's `{"detail": [...]}` as its first entry; else empty."""
    try:
        told = raw.decode(body)
    except raw.Malformed:
        return {}
    if not isinstance(told, dict):
        return {}
    error, detail = told.get("error"), told.get("detail")
    if isinstance(error, dict):
        return error
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):
        location = detail[0].get("loc")
        return {"param": ".".join(map(str, location)) if isinstance(location, list) else None}
    return {}


def _param(told: Mapping[str, Any]) -> str | None:
    """The request's path to what is wrong: `body.include.0` is `include[0]`, `body.tools.0.FunctionTool` `tools[0]`."""
    param, message = told.get("param"), told.get("message")
    if not isinstance(param, str) and isinstance(message, str) and (found := _LOCATION.search(message)):
        param = found[1]
    if not isinstance(param, str) or not ids.is_usable(param):
        return None
    # Behind the request's own path pydantic names the types of a union that it tried.
    path = _UNION_MEMBER.sub("", param.removeprefix("body."))
    if path.startswith("input."):
        # The upstream counts in what it got, which begins with the history: no place in the client's own input.
        return "input"
    return re.sub(r"\.(\d+)", r"[\1]", path) if path != "body" and path[:1].isalpha() else None


def _message(status: int, told: Mapping[str, Any], param: str | None, api_key: str | None) -> str:
    if status == 413:
        return "The model server refused the request: history and input together are larger than it takes."
    place = f" ('{param}')" if param else ""
    refused = f"The model server refused the request with status {status}{place}."
    return upstream_words.fit_to_tell(told.get("message"), api_key) or refused


def _is_overflow(told: Mapping[str, Any]) -> bool:
    if told.get("code") == "context_length_exceeded" or told.get("param") == "input_tokens":
        return True
    return upstream_words.tells_overflow(told.get("message"))


def _code(status: int) -> str | None:
    return "rate_limit_exceeded" if status == 429 else None
