"""What a caller may read of an upstream's own words, and what they tell us.

What lives here sees a message of an upstream's error, which may quote a request, a key or itself.
"""

import re

MESSAGE_LENGTH_MAX = 500
"""How much of an upstream's own message a caller may read."""

_CREDENTIAL = re.compile(
    r"(?i)\b(bearer\s+|basic\s+|authorization:\s*token\s+|sk-|hf_|ghp_|akia|eyj"
    r"|(?:api[-_ ]?key(?: provided)?|token|password)[\"']?\s*[:=]\s*[\"']?)[\w.~+/=-]{6,}"
)
_USER_OF_A_URL = re.compile(r"://[^\s/@]+@")
_OVERFLOW = re.compile(r"(?i)maximum context length|context window|maximum model length")
_VALIDATION_LIST = re.compile(r"\b\d+ validation errors?\b")


def fit_to_tell(message: object, api_key: str | None = None) -> str | None:
    """What a caller may read of an upstream's message (DESIGN 8): a bounded first line without credentials.

    None for no text, and for pydantic's list of what it tried, which quotes the request. `api_key` is ours.
    """
    if not isinstance(message, str) or not message.strip() or _VALIDATION_LIST.search(message):
        return None
    line = message.strip().splitlines()[0]
    if api_key:
        line = line.replace(api_key, "***")
    return _CREDENTIAL.sub(r"\1***", _USER_OF_A_URL.sub("://***@", line))[:MESSAGE_LENGTH_MAX]


def tells_overflow(message: object) -> bool:
    """Whether an upstream's words say that history and input are too long for its model (contract vllm.md 5)."""
    return isinstance(message, str) and _OVERFLOW.search(message) is not None
