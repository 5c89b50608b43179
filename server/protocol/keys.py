"""API keys: how one is made, named, presented and compared.

What is kept of a key is its SHA-256. It is random throughout, so that nobody can find it by trying: a hash that is slow
on purpose, which passwords need, would protect nothing here and cost more than a turn.
"""

import hashlib
import hmac
import secrets

PREFIX_LENGTH = 12
"""How much of a key is shown, to name it by: `rjk_` and 8 of its 43 random characters. The other 35 hold 210 bits."""


def new_key() -> str:
    return f"rjk_{secrets.token_urlsafe(32)}"


def new_cache_salt() -> str:
    return secrets.token_urlsafe(32)


def prefix_of(key: str) -> str:
    return key[:PREFIX_LENGTH]


def hash_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def is_key_of(key: str, expected_hash: bytes) -> bool:
    """Whether a key has this hash, in a time that tells nothing about it."""
    return hmac.compare_digest(hash_of(key), expected_hash)


def presented(authorization: str | None) -> str | None:
    """The key in an Authorization header (RFC 6750, 2.1); None where it holds none."""
    scheme, _, key = (authorization or "").strip().partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None
