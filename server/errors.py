"""Every error a client can get, by name: one type, and one constructor for each row of the contract (api.md 5).

What lives here knows no HTTP library and no database. Foreign exceptions are translated where they arise; one place
(`api.wire`) renders them. A message of ours never quotes what a client or a model wrote, only names, ids and limits; of
an upstream's message it holds what `protocol.upstream_words` lets through.
"""

from collections.abc import Iterable


class ApiError(Exception):
    """An answer that is not a success.

    `status` is HTTP's; `message`, `type`, `param` and `code` are the members of the body's `error`. `retry_after` is
    the header's value as the upstream sent it, `allow` that of a 405, and `challenge` the WWW-Authenticate of a 401.
    The SDKs send a 409 again unless `should_retry` is false.
    """

    is_stored = False
    """Whether the turn is stored as failed all the same, though its client is told to try again."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: str | None = None,
        allow: str | None = None,
        challenge: str | None = None,
        should_retry: bool = True,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.allow = allow
        self.challenge = challenge
        self.should_retry = should_retry

    @property
    def cause(self) -> str | None:
        """The type of what went wrong underneath, which is all of it that a log may hold."""
        return type(self.__cause__).__name__ if self.__cause__ else None


class UpstreamUnreachable(ApiError):
    """A model server that nothing was sent to, since no connection to it could be made: an equal one may be asked."""


class LeaseLost(ApiError):
    """A turn may not add to its conversation any more, though it may still be stored."""


class StoreUnavailable(ApiError):
    """The database could not be asked, or its answer was lost: then what it was asked to do may have been done."""


# --- who asks, and how often


def no_api_key() -> ApiError:
    message = (
        "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
        "(i.e. Authorization: Bearer YOUR_KEY)."
    )
    return ApiError(401, message, code="invalid_api_key", challenge="Bearer")


def invalid_api_key() -> ApiError:
    """For a key that there is not and for one that was revoked; RFC 6750 (3.1) has the challenge."""
    return ApiError(
        401, "Incorrect API key provided.", code="invalid_api_key", challenge='Bearer error="invalid_token"'
    )


def too_many_requests(limit: int, retry_after_s: int) -> ApiError:
    message = f"Rate limit reached: {limit} requests per minute. Please try again in {retry_after_s}s."
    return _rate_limited(message, retry_after_s)


def too_many_open_turns(limit: int) -> ApiError:
    return _rate_limited(f"Rate limit reached: {limit} open turns. Please try again in 1s.", 1)


def _rate_limited(message: str, retry_after_s: int) -> ApiError:
    return ApiError(429, message, type="rate_limit_error", code="rate_limit_exceeded", retry_after=str(retry_after_s))


# --- the body and its members


def malformed_json(reason: str) -> ApiError:
    return ApiError(400, f"We could not parse the JSON body of your request: {reason}.")


def body_too_large(limit_bytes: int) -> ApiError:
    return ApiError(413, f"The request body is larger than {limit_bytes} bytes.", code="request_too_large")


def missing_parameter(param: str) -> ApiError:
    return ApiError(400, f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def duplicate_parameter(param: str, member: str | None = None) -> ApiError:
    """`member`, here and below, is the path in the message, where the contract's `param` names only what holds it."""
    return ApiError(400, f"Duplicate parameter: '{member or param}'.", param=param, code="invalid_value")


def invalid_type(param: str, expected: str, got: str, member: str | None = None) -> ApiError:
    message = f"Invalid type for '{member or param}': expected {expected}, but got {got} instead."
    return ApiError(400, message, param=param, code="invalid_type")


def invalid_value(param: str, supported: Iterable[str], member: str | None = None) -> ApiError:
    names = [f"'{name}'" for name in supported]
    listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    message = f"Invalid value for '{member or param}'. Supported values are: {listed}."
    return ApiError(400, message, param=param, code="invalid_value")


def unusable_text(param: str, length_max: int) -> ApiError:
    message = (
        f"Invalid '{param}': expected at most {length_max} characters, none of them a control character or a surrogate."
    )
    return ApiError(400, message, param=param, code="invalid_value")


def below_minimum(param: str, minimum: float, got: float, kind: str = "integer") -> ApiError:
    message = f"Invalid '{param}': {kind} below minimum value. Expected a value >= {minimum}, but got {got} instead."
    return ApiError(400, message, param=param, code=f"{kind}_below_min_value")


def above_maximum(param: str, maximum: float, got: float, kind: str = "integer") -> ApiError:
    message = f"Invalid '{param}': {kind} above maximum value. Expected a value <= {maximum}, but got {got} instead."
    return ApiError(400, message, param=param, code=f"{kind}_above_max_value")


def too_many_properties(param: str, maximum: int, got: int) -> ApiError:
    message = f"Invalid '{param}': too many properties. Expected at most {maximum}, but got {got} instead."
    return ApiError(400, message, param=param, code="object_above_max_properties")


def string_too_long(param: str, maximum: int, got: int, member: str | None = None) -> ApiError:
    message = (
        f"Invalid '{member or param}': string too long. Expected at most {maximum} characters, but got {got} instead."
    )
    return ApiError(400, message, param=param, code="string_above_max_length")


def array_too_long(param: str, maximum: int, got: int) -> ApiError:
    message = f"Invalid '{param}': array too long. Expected at most {maximum} elements, but got {got} instead."
    return ApiError(400, message, param=param, code="array_above_max_length")


def array_too_short(param: str, minimum: int, got: int) -> ApiError:
    message = f"Invalid '{param}': array too short. Expected at least {minimum} elements, but got {got} instead."
    return ApiError(400, message, param=param, code="array_below_min_length")


def nothing_to_answer() -> ApiError:
    message = "One of \"input\" or \"previous_response_id\" or 'prompt' or 'conversation' must be provided."
    return ApiError(400, message, param="input", code="missing_required_parameter")


def mutually_exclusive(one: str, other: str) -> ApiError:
    message = f"Mutually exclusive parameters: '{one}' and '{other}' can't be used together."
    return ApiError(400, message, code="mutually_exclusive_parameters")


def not_supported(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param)


def tool_not_offered(name: str) -> ApiError:
    message = f"Tool choice '{name}' not found in 'tools' parameter, or not a tool that the model can call."
    return ApiError(400, message, param="tool_choice", code="invalid_value")


# --- state


def response_not_found(response_id: str) -> ApiError:
    return ApiError(404, f"Response with id '{response_id}' not found.")


def previous_response_not_found(response_id: str) -> ApiError:
    message = f"Previous response with id '{response_id}' not found."
    return ApiError(400, message, param="previous_response_id", code="previous_response_not_found")


def lost_ancestor(response_id: str) -> ApiError:
    message = f"The history is broken: the response before '{response_id}' is lost."
    return ApiError(500, message, type="server_error", param="previous_response_id")


def invalid_idempotency_key(length_max: int) -> ApiError:
    message = f"An idempotency key is 1 to {length_max} printable ASCII characters."
    return ApiError(400, message, param="Idempotency-Key", code="invalid_value")


def idempotency_needs_store() -> ApiError:
    message = "A response that is not stored can't be told again: leave out the idempotency key, or `store: false`."
    return ApiError(400, message, param="Idempotency-Key", code="unsupported_value")


def idempotency_conflict() -> ApiError:
    message = "This idempotency key came with another request before."
    return ApiError(409, message, param="Idempotency-Key", code="idempotency_conflict", should_retry=False)


def idempotency_in_progress() -> ApiError:
    message = "The first request with this idempotency key is still being answered."
    return ApiError(409, message, param="Idempotency-Key", code="idempotency_in_progress", retry_after="5")


def conversation_not_found(conversation_id: str) -> ApiError:
    return ApiError(404, f"Conversation with id '{conversation_id}' not found.")


def conversation_locked() -> ApiError:
    message = "Another process is currently operating on this conversation. Please retry in a few seconds."
    return ApiError(400, message, param="conversation", code="conversation_locked")


def key_lost() -> ApiError:
    message = (
        "The claim on the Idempotency-Key could not be kept. Send the request again: another server may answer it."
    )
    return ApiError(503, message, type="server_error")


def lease_lost() -> LeaseLost:
    message = "The turn took longer than its claim on the conversation could be kept. Nothing was added to it."
    return LeaseLost(503, message, type="server_error", param="conversation")


def listed_item_not_found(item_id: str) -> ApiError:
    return ApiError(404, f"Item with id '{item_id}' not found.")


def item_not_found(item_id: str, param: str) -> ApiError:
    message = (
        f"Item with id '{item_id}' not found. Items are not persisted when `store` is set to false. Try again with "
        f"`store` set to true, or remove this item from your {param}."
    )
    return ApiError(404, message, param=param)


def cursor_not_found(item_id: str) -> ApiError:
    return ApiError(400, f"Item with id '{item_id}' not found in this list.", param="after", code="invalid_value")


def prompt_not_found(prompt_id: str) -> ApiError:
    return ApiError(404, f"Prompt with id '{prompt_id}' not found.", param="prompt")


def cannot_cancel() -> ApiError:
    return ApiError(400, "Cannot cancel a synchronous response.")


def repeated_item_id(item_id: str, param: str) -> ApiError:
    message = f"Duplicate item found with id '{item_id}'. Remove it from your input: the history or the input has it."
    return ApiError(400, message, param=param, code="invalid_value")


def call_without_output(call_id: str) -> ApiError:
    return ApiError(400, f"No tool output found for function call {call_id}.", param="input")


def output_without_call(call_id: str, param: str) -> ApiError:
    return ApiError(400, f"No tool call found for function call output with call_id {call_id}.", param=param)


def encrypted_only(item_id: str, param: str) -> ApiError:
    message = (
        f"Item '{item_id}' holds only encrypted content, which this model server cannot read. Continue from an earlier "
        'response, remove the item from the input or its conversation, or set `encrypted_only = "omit"` on the server.'
    )
    return ApiError(400, message, param=param, code="encrypted_reasoning_not_supported")


# --- routes


def route_not_found() -> ApiError:
    return ApiError(404, "Not found.")


def bad_request(status: int) -> ApiError:
    return ApiError(status, "The request can't be read.")


def method_not_allowed(allowed: Iterable[str]) -> ApiError:
    return ApiError(405, "Method not allowed.", allow=", ".join(sorted(allowed)))


# --- the upstream, and ourselves


def model_not_found(model: str) -> ApiError:
    return ApiError(400, f"The requested model '{model}' does not exist.", param="model", code="model_not_found")


def unknown_model(model: str) -> ApiError:
    """For a look-up by the name in a path, which is a 404 where the one in a request's body is a 400."""
    return ApiError(404, f"The model '{model}' does not exist.", param="model", code="model_not_found")


def upstream_refused(
    status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: str | None = None
) -> ApiError:
    """The upstream's own 4xx or 503, in our type: it judged the request, and `message` is its scrubbed first line."""
    kind = {429: "rate_limit_error", 503: "server_error"}.get(status, "invalid_request_error")
    return ApiError(status, message, type=kind, param=param, code=code, retry_after=retry_after)


def upstream_misconfigured(status: int) -> ApiError:
    message = (
        f"The model server answered {status}. Its URL (does it end in /v1?), its dialect or its API key is not "
        "configured as it should be."
    )
    return ApiError(502, message, type="server_error", code="upstream_misconfigured")


def upstream_broken(reason: str) -> ApiError:
    return ApiError(502, f"The model server failed: {reason}", type="server_error")


def upstream_unreachable() -> UpstreamUnreachable:
    return UpstreamUnreachable(503, "The model server cannot be reached.", type="server_error")


def upstream_not_connected() -> UpstreamUnreachable:
    return UpstreamUnreachable(504, "The model server did not take a connection in time.", type="server_error")


def upstream_too_slow() -> ApiError:
    return ApiError(504, "The model server did not answer in time.", type="server_error")


def above_budget(param: str, limit: int) -> ApiError:
    message = f"'{param}' is larger than this server lets a request ask for, which is {limit}."
    return ApiError(400, message, param=param, code="integer_above_max_value")


def context_too_long(limit: str, param: str) -> ApiError:
    message = f"History and input together are longer than this server sends, which is {limit}."
    return ApiError(400, message, param=param, code="context_length_exceeded")


def turn_too_slow(limit_s: float) -> ApiError:
    return ApiError(504, f"The turn took longer than {limit_s:g} seconds.", type="server_error")


def no_output(reason: str) -> ApiError:
    return ApiError(502, reason, type="server_error")


def stopping() -> ApiError:
    return ApiError(503, "The server is stopping.", type="server_error")


def overloaded() -> ApiError:
    message = "The server has as many turns open as it takes. Please try again in a moment."
    return ApiError(503, message, type="server_error", code="server_is_overloaded", retry_after="1")


def store_unavailable() -> StoreUnavailable:
    message = "The database is not available. It may be that nothing was stored."
    return StoreUnavailable(503, message, type="server_error")


def internal() -> ApiError:
    return ApiError(500, "The server had an error while processing your request.", type="server_error")
