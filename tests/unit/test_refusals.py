"""What an upstream refuses, as the caller is told: recorded bodies of a real vLLM, and those of gateways before it."""

import json

import pytest

from server.errors import ApiError
from server.protocol.upstream_words import MESSAGE_LENGTH_MAX
from server.upstream.refusals import refusal
from tests.harness import captures

SECRET = "sk-upstream-0123456789"


def refused(status: int, body: object, headers: dict[str, str] | None = None) -> ApiError:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return refusal(status, headers or {}, text, "nope", SECRET)


def recorded(version: str, name: str) -> ApiError:
    capture = next(one for one in captures(version) if one.name == name)
    assert capture.status is not None
    return refused(capture.status, capture.received)


@pytest.mark.parametrize("version", ["0.32", "0.33"])
@pytest.mark.parametrize(
    ("name", "status", "param", "code", "message"),
    [
        ("60-bad-model", 400, "model", "model_not_found", "The requested model 'nope' does not exist."),
        ("65-max-output-too-big", 400, "max_output_tokens", None, "max_output_tokens=99999 cannot be greater"),
        ("65-too-long", 400, "input", "context_length_exceeded", "This model's maximum context length is 2048 tokens."),
        ("66-temperature-bad", 400, "temperature", None, "temperature must be non-negative, got -5.0."),
        (
            "66-tools-unknown",
            400,
            "tools[0]",
            None,
            "The model server refused the request with status 400 ('tools[0]').",
        ),
        ("66-include-unknown", 400, "include[0]", None, "The model server refused the request with status 400"),
        ("61-input-number", 400, "input", None, "The model server refused the request with status 400 ('input')."),
    ],
)
def test_vllms_refusals_keep_their_status_and_name_the_member(
    version: str, name: str, status: int, param: str, code: str | None, message: str
) -> None:
    error = recorded(version, name)
    assert (error.status, error.type, error.code) == (status, "invalid_request_error", code)
    assert error.param == param
    assert error.message.startswith(message)
    assert "\n" not in error.message
    assert "validation error" not in error.message


@pytest.mark.parametrize(
    ("status", "told", "type_"),
    [
        (400, 400, "invalid_request_error"),
        (408, 408, "invalid_request_error"),
        (409, 409, "invalid_request_error"),
        (413, 413, "invalid_request_error"),
        (422, 422, "invalid_request_error"),
        (429, 429, "rate_limit_error"),
        (503, 503, "server_error"),
        (401, 502, "server_error"),
        (403, 502, "server_error"),
        (404, 502, "server_error"),
        (405, 502, "server_error"),
        (402, 502, "server_error"),
        (302, 502, "server_error"),
        (500, 502, "server_error"),
        (502, 502, "server_error"),
        (504, 502, "server_error"),
    ],
)
def test_each_status_has_its_answer(status: int, told: int, type_: str) -> None:
    error = refused(status, b"<html>internal SECRET-HOST</html>")
    assert (error.status, error.type) == (told, type_)
    assert "html" not in error.message
    assert "SECRET-HOST" not in error.message
    assert (error.code == "upstream_misconfigured") == (status in (401, 403, 404, 405))


def test_a_gateways_string_error_is_no_message() -> None:
    error = refused(401, {"error": "Unauthorized"})
    assert (error.status, error.code) == (502, "upstream_misconfigured")


def test_a_404_about_the_model_is_the_callers_to_mend() -> None:
    assert refused(404, {"error": {"message": "x", "param": "model"}}).code == "model_not_found"
    # As OpenAI says it of chat completions.
    assert refused(404, {"error": {"message": "x", "param": None, "code": "model_not_found"}}).status == 400
    assert refused(404, {"detail": "Not Found"}).code == "upstream_misconfigured"


def test_a_404_about_the_route_names_what_may_be_set_up_wrongly() -> None:
    said = refused(404, {"detail": "Not Found"}).message
    assert all(name in said for name in ("URL", "dialect", "API key"))


def test_fastapis_list_becomes_a_sentence_with_the_param() -> None:
    error = refused(422, {"detail": [{"loc": ["body", "input", 0, "content"], "msg": "secret text", "type": "x"}]})
    assert (error.status, error.param) == (422, "input")
    assert error.message == "The model server refused the request with status 422 ('input')."


def test_our_key_is_no_param() -> None:
    assert refused(400, {"error": {"message": "x", "param": SECRET}}).param is None


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("first line\nsecond line", "first line"),
        (f"key {SECRET} is wrong", "key *** is wrong"),
        ("Incorrect API key provided: sk-abcdef123456.", "Incorrect API key provided: ***"),
        ("Authorization: Bearer abcdef123456 refused", "Authorization: Bearer *** refused"),
        ("x" * 900, "x" * MESSAGE_LENGTH_MAX),
        ("", "The model server refused the request with status 400."),
        (7, "The model server refused the request with status 400."),
    ],
)
def test_a_message_is_one_bounded_line_without_credentials(message: object, told: str) -> None:
    assert refused(400, {"error": {"message": message, "code": 400}}).message == told


def test_a_413_says_what_is_too_large() -> None:
    assert refused(413, b"<html>too large</html>").message == (
        "The model server refused the request: history and input together are larger than it takes."
    )


@pytest.mark.parametrize(
    ("sent", "passed"),
    [
        ("7", "7"),
        ("Wed, 21 Oct 2026 07:28:00 GMT", "Wed, 21 Oct 2026 07:28:00 GMT"),
        ("a\nb", None),
        # A digit to Python, and no number.
        ("\u00b2", None),
    ],
)
def test_retry_after_is_passed_on(sent: str, passed: str | None) -> None:
    assert refused(429, {}, {"retry-after": sent}).retry_after == passed


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"null", b'{"error":null}', b'{"detail":"x"}', b"\xff"])
def test_a_body_that_says_nothing_is_no_trouble(body: bytes) -> None:
    assert refused(400, body).message == "The model server refused the request with status 400."
