"""Lossless JSON: text is cut and spliced, never decoded and written again.

What lives here knows JSON's grammar and nothing of what a text means. A text is UTF-8 bytes; a slice of it is the value
exactly as it came: key order, explicit nulls, `1.0`, `1e400`, `\\u0000` and lone surrogates. msgspec cuts; it refuses a
whole document for one lone surrogate, so such a text is cut by the standard library's decoder at the same places.
"""

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

NULL = b"null"

# Possessive throughout: what is no string is found to be none in one pass, and a long one costs no memory.
_KEY = re.compile(rb'[ \t\n\r]*+("(?:[^"\\]++|\\.)*+")[ \t\n\r]*+:[ \t\n\r]*+', re.DOTALL)
_AFTER_VALUE = re.compile(rb"[ \t\n\r]*([,}\]])[ \t\n\r]*")
_SPACE = re.compile(r"[ \t\n\r]*")
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
# Strings are matched whole, so that nothing is found within one. A null member goes with the comma before it; where it
# was its object's first one, the comma after it is left over.
_STRING_OR_NULL_MEMBER = re.compile(rb'(?:,\s*+)?"(?:[^"\\]++|\\.)*+"(?P<null>\s*+:\s*+null)?', re.DOTALL)
_STRING_OR_LEADING_COMMA = re.compile(rb'(?P<string>"(?:[^"\\]++|\\.)*+")|\{\s*+,', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_NESTING = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")
_KINDS = {'"': "a string", "{": "an object", "[": "an array", "t": "a boolean", "f": "a boolean", "n": "null"}

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENCODER = msgspec.json.Encoder()
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECTS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


class Malformed(ValueError):
    """The text is not JSON, not strict UTF-8, or nested too deeply; the message says which and quotes nothing."""


def _refuse_constant(_name: str) -> NoReturn:
    raise Malformed("NaN and Infinity are not JSON")


# Numbers stay text here: an integer of thousands of digits is legal JSON and must not meet Python's own limit.
_CUTTER = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=str, parse_float=str)
_READER = json.JSONDecoder(parse_constant=_refuse_constant)


class Object:
    """A JSON object as text, and the values of its members as they lie in it.

    Of a member that comes twice the last value counts.
    """

    __slots__ = ("_places", "_values", "text")

    def __init__(self, text: bytes) -> None:
        """Cut `text`; raises Malformed where it is not one JSON object."""
        self.text = text
        # Where the members lie is found out when it is asked for: most objects are only read.
        self._places: list[tuple[str, int, int]] | None = None
        self._values: Mapping[str, bytes | msgspec.Raw]
        try:
            self._values = _OBJECT.decode(text)
        except (msgspec.DecodeError, RecursionError):
            self._places = _members_slowly(text)
            self._values = {name: text[start:end] for name, start, end in self._places}

    @classmethod
    def of(cls, members: Mapping[str, bytes]) -> "Object":
        """The object of these texts, in their order, which need not be cut again."""
        made = cls.__new__(cls)
        made.text, made._values, made._places = render(members), members, None
        return made

    def __contains__(self, name: str) -> bool:
        """Whether there is such a member, be it null."""
        return name in self._values

    @property
    def repeated(self) -> list[str]:
        """The names that come again, where they do, once for each time."""
        seen: set[str] = set()
        repeated: list[str] = []
        for name, _, _ in self._located():
            if name in seen:
                repeated.append(name)
            seen.add(name)
        return repeated

    def get(self, name: str) -> bytes | None:
        """The value's text, or None where the member is absent or null (null counts as absent, DESIGN 7.8)."""
        value = self._values.get(name)
        if value is None:
            return None
        text = bytes(value)
        return None if text == NULL else text

    def string(self, name: str) -> str | None:
        """The member's value where it is a string, else None."""
        value = self.get(name)
        return decode(value) if value is not None and value.startswith(b'"') else None

    def object(self, name: str) -> "Object | None":
        """The member's value where it is an object, else None."""
        value = self.get(name)
        return Object(value) if value is not None and value.startswith(b"{") else None

    def elements(self, name: str) -> list[bytes]:
        """The elements of the member's value where it is an array, else none."""
        value = self.get(name)
        return elements(value) if value is not None and value.startswith(b"[") else []

    def objects(self, name: str) -> list["Object"]:
        """Those of its elements that are objects."""
        return [Object(element) for element in self.elements(name) if element.startswith(b"{")]

    def members(self) -> list[tuple[str, bytes]]:
        """Every member's name and text, nulls too, in the order they came."""
        return [(name, bytes(value)) for name, value in self._values.items()]

    def spliced(self, changes: Mapping[str, bytes]) -> bytes:
        """The text with these members' values replaced where they stand, or added at the end; all else as it came."""
        spans = {name: (start, end) for name, start, end in self._located()}
        present = sorted((spans[name], value) for name, value in changes.items() if name in spans)
        pieces, at = [], 0
        for (start, end), value in present:
            pieces += [self.text[at:start], value]
            at = end
        close = self.text.rindex(b"}")
        pieces.append(self.text[at:close])
        comma = b"," if spans else b""
        for name, value in changes.items():
            if name not in spans:
                pieces += [comma, literal(name), b":", value]
                comma = b","
        pieces.append(self.text[close:])
        return b"".join(pieces)

    def _located(self) -> list[tuple[str, int, int]]:
        """Name, start and end of each member's value, in order; a name that comes twice is there twice."""
        if self._places is None:
            self._places = _located(self.text, self._values) or _members_slowly(self.text)
        return self._places


def check(text: bytes, depth_max: int) -> None:
    """Raises Malformed where `text` is not strict UTF-8 or nests more than `depth_max` objects and arrays.

    Whoever cuts or decodes a slice of a checked text later need not fear the recursion limit.
    """
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"it is not UTF-8 (byte {error.start})") from None
    if text.count(b"[") + text.count(b"{") <= depth_max:
        return
    brackets = _STRING.sub(b"", text).translate(None, delete=_NOT_BRACKETS)
    deepest = max(itertools.accumulate(map(_NESTING.__getitem__, brackets)), default=0)
    if deepest > depth_max:
        raise Malformed(f"it is nested more than {depth_max} levels deep")


def elements(text: bytes) -> list[bytes]:
    """The elements of a JSON array, each as its text; raises Malformed where `text` is not one."""
    try:
        return [bytes(element) for element in _ARRAY.decode(text)]
    except msgspec.DecodeError:
        return [text[start:end] for start, end in _elements_slowly(text)]


def objects(text: bytes) -> list[dict[str, bytes]]:
    """The members that are not null of each element of a JSON array that is an object.

    Raises Malformed where `text` is not an array.
    """
    try:
        found: Iterable[Mapping[str, bytes | msgspec.Raw]] = _OBJECTS.decode(text)
    except (msgspec.DecodeError, RecursionError):
        found = [dict(Object(element).members()) for element in elements(text) if element.startswith(b"{")]
    return [{name: value for name, part in one.items() if (value := bytes(part)) != NULL} for one in found]


def decode(text: bytes) -> Any:
    """The value of a text; a lone surrogate stays one, and a number too large for a float becomes infinite.

    Raises Malformed where `text` is not JSON.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return _READER.decode(text.decode())
    except (ValueError, RecursionError):
        raise Malformed("it is not JSON that can be read") from None


def literal(value: str | float | bool | None) -> bytes:
    """The JSON text of a plain value; a lone surrogate in it is escaped, as it must have come."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def array(values: Sequence[bytes]) -> bytes:
    """The JSON array of these texts."""
    return b"[" + b",".join(values) + b"]"


def render(members: Mapping[str, bytes]) -> bytes:
    """The JSON object of these texts, in their order."""
    try:
        return _ENCODER.encode({name: msgspec.Raw(value) for name, value in members.items()})
    except UnicodeEncodeError:
        return b"{" + b",".join(literal(name) + b":" + value for name, value in members.items()) + b"}"


def joined(literals: Sequence[bytes], separator: bytes = b"") -> bytes:
    """One string literal that holds these in a row; `separator` is in escaped form.

    Joining the literals keeps what decoding would lose or refuse: escapes, NUL, halves of a surrogate pair.
    """
    return b'"' + separator.join(one[1:-1] for one in literals) + b'"'


def without_null_members(text: bytes) -> bytes:
    """A value without the null members of its objects, at any depth and in one pass; all else as it came.

    Of a member that comes twice in one object, the one that is null goes.
    """
    if text[:1] not in (b"[", b"{") or b"null" not in text:
        return text
    cut = _STRING_OR_NULL_MEMBER.sub(lambda found: b"" if found["null"] else found[0], text)
    return _STRING_OR_LEADING_COMMA.sub(lambda found: found["string"] or b"{", cut)


def split_high_surrogate(string: bytes) -> tuple[bytes, bytes]:
    """A string literal without a trailing escaped high surrogate, and that escape (b"" where there is none)."""
    before, last = string[:-7], string[-7:-1]
    # An even run of backslashes before it is so many escaped ones; an odd run escapes the backslash of `last` itself.
    is_escape = (len(before) - len(before.rstrip(b"\\"))) % 2 == 0
    if not is_escape or not _HIGH_SURROGATE.fullmatch(last):
        return string, b""
    return before + b'"', last


def kind(text: bytes) -> str:
    """What a text is, in the words of the contract's messages: `a string`, `an integer`, ..."""
    named = _KINDS.get(chr(text[0]))
    if named:
        return named
    return "a number" if b"." in text or b"e" in text or b"E" in text else "an integer"


def _located(text: bytes, values: Mapping[str, bytes | msgspec.Raw]) -> list[tuple[str, int, int]] | None:
    """Where the values that msgspec cut lie in the text; None where a name comes twice with another value.

    msgspec has seen that the text is JSON, so each key is followed by its value, and no JSON value followed by a comma
    or a brace begins with another one.
    """
    found: list[tuple[str, int, int]] = []
    at = text.index(b"{") + 1
    while key := _KEY.match(text, at):
        name = _key_name(key[1])
        value = bytes(values[name])
        start, end = key.end(), key.end() + len(value)
        after = _AFTER_VALUE.match(text, end)
        if after is None or not text.startswith(value, start):
            return None
        found.append((name, start, end))
        at = after.end()
    return found


def _key_name(key: bytes) -> str:
    return str(decode(key)) if b"\\" in key else key[1:-1].decode()


def _members_slowly(text: bytes) -> list[tuple[str, int, int]]:
    cursor = _Cursor(text)
    cursor.expect("{")
    found: list[tuple[str, int, int]] = []
    while not cursor.take("}"):
        if found:
            cursor.expect(",")
        name_start, name_end = cursor.value()
        cursor.expect(":")
        found.append((_slow_key_name(text[name_start:name_end]), *cursor.value()))
    cursor.finish()
    return found


def _slow_key_name(key: bytes) -> str:
    if not key.startswith(b'"'):
        raise Malformed("a name in an object is not a string")
    try:
        return _key_name(key)
    except UnicodeDecodeError:
        raise Malformed("a name in an object is not UTF-8") from None


def _elements_slowly(text: bytes) -> list[tuple[int, int]]:
    cursor = _Cursor(text)
    cursor.expect("[")
    found: list[tuple[int, int]] = []
    while not cursor.take("]"):
        if found:
            cursor.expect(",")
        found.append(cursor.value())
    cursor.finish()
    return found


class _Cursor:
    """A place in a text that is read value by value.

    The text is read as Latin-1, so that a place in its characters is a place in its bytes; all that JSON's grammar is
    made of is ASCII.
    """

    def __init__(self, text: bytes) -> None:
        self.characters = text.decode("latin-1")
        self.at = 0

    def skip_space(self) -> None:
        space = _SPACE.match(self.characters, self.at)
        self.at = space.end() if space else self.at

    def take(self, character: str) -> bool:
        self.skip_space()
        if self.characters[self.at : self.at + 1] != character:
            return False
        self.at += 1
        return True

    def expect(self, character: str) -> None:
        if not self.take(character):
            raise Malformed(f"'{character}' is missing at byte {self.at}")

    def value(self) -> tuple[int, int]:
        self.skip_space()
        start = self.at
        try:
            _, self.at = _CUTTER.raw_decode(self.characters, start)
        except Malformed:
            raise
        except (ValueError, RecursionError):
            raise Malformed(f"there is no value at byte {start}") from None
        return start, self.at

    def finish(self) -> None:
        self.skip_space()
        if self.at != len(self.characters):
            raise Malformed(f"something follows at byte {self.at}")
