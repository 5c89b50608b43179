"""What a value must be, wherever it was given: addresses, keys, files that hold secrets.

What lives here quotes no value in an error, for it may be a secret put in the wrong place.
"""

import difflib
import ipaddress
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

import msgspec


class ConfigError(Exception):
    """A setting that cannot be used. The text is one line, names the setting as it was spelled and never a secret."""


def unusable(spelled: str, error: msgspec.ValidationError, kind: Any) -> ConfigError:
    """What msgspec says of a value of this type, or struct: the member at fault by its own name, no value quoted."""
    reason, _, place = str(error).partition(" - at `$")
    place = place.removesuffix("`")
    name = re.match(r"\.(\w+)", place)
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)} if name else {}
    choices = _choices(fields.get(name[1]) if name else kind)
    if choices and reason.startswith("Invalid enum value"):
        reason = f"Expected one of {', '.join(choices)}"
    return ConfigError(f"{spelled}{place} cannot be used: {reason}")


def _choices(kind: Any) -> tuple[str, ...]:
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(choice for part in get_args(kind) for choice in _choices(part))


def closest(name: str, known: Iterable[str]) -> str | None:
    """The real name that this one may be a slip of; None where a guess would only puzzle."""
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def base_url(spelled: str, value: str) -> str:
    """The base URL of a model server, without a slash at its end; raises ConfigError."""
    if has_gaps(value) or not re.match(r"https?://[^/?#]", value, re.IGNORECASE):
        raise ConfigError(f"{spelled} must be a URL like http://host:8000/v1")
    parts = urlsplit(value)
    if parts.query or parts.fragment:
        raise ConfigError(f"{spelled} must not have a query or a fragment")
    check_address(spelled, value)
    return value.rstrip("/")


def held(spelled: str, path: object) -> str:
    """The secret in a file, without the line end that editors and `echo` put behind it."""
    if not isinstance(path, str):
        raise ConfigError(f"{spelled} cannot be used: Expected `str`, the name of a file")
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise ConfigError(f"the file that {spelled} names cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the file that {spelled} names is not UTF-8") from None


def check_address(spelled: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port, (parts.hostname or "").encode("idna")
    except ValueError:
        raise ConfigError(f"{spelled} has a host or a port that cannot be read") from None


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine alone; of a name only `localhost` says so."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def api_key(spelled: str, value: str) -> str:
    # It becomes part of a header line: what could end that line, or is no ASCII, would fail in every single turn.
    if not value or has_gaps(value) or not value.isascii():
        raise ConfigError(f"{spelled} must be ASCII text without spaces, line ends or control characters")
    return value


def has_gaps(text: str) -> bool:
    return any(character.isspace() or not character.isprintable() for character in text)
