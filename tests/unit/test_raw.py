"""Lossless JSON: what is cut and spliced is character for character what came."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.protocol import raw

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_values_are_cut_as_they_came() -> None:
    text = b' { "b" : 1.0 ,"a":1e400, "\\u0063" : {"z":1,"a":[ 1 ,2]},"n":null , "s":"\\u0000\\/" } '
    cut = raw.Object(text)
    assert dict(cut.members()) == {
        "b": b"1.0",
        "a": b"1e400",
        "c": b'{"z":1,"a":[ 1 ,2]}',
        "n": b"null",
        "s": b'"\\u0000\\/"',
    }
    assert cut.get("n") is None
    assert cut.get("missing") is None
    assert cut.string("s") == "\0/"


@pytest.mark.parametrize(
    ("text", "members"),
    [
        (b'{"a":"\\ud83d","b":"caf\xc3\xa9"}', {"a": b'"\\ud83d"', "b": b'"caf\xc3\xa9"'}),
        (b'{"a":["\\ud83d"],"caf\xc3\xa9":2}', {"a": b'["\\ud83d"]', "caf\u00e9": b"2"}),
        (b'{"a":"\\ud83d","n":' + b"9" * 5000 + b"}", {"a": b'"\\ud83d"', "n": b"9" * 5000}),
        (b'{"a" : "\\ude42" , "b" : [ ] }', {"a": b'"\\ude42"', "b": b"[ ]"}),
    ],
)
def test_a_lone_surrogate_is_cut_at_the_same_places(text: bytes, members: dict[str, bytes]) -> None:
    assert dict(raw.Object(text).members()) == members


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"[]", []),
        (b' [ {"a" : [ 1 ] , "n" : null} , {} ] ', [{"a": b"[ 1 ]"}, {}]),
        (b'[{"a":1,"a":2},{"a":1,"a":null}]', [{"a": b"2"}, {}]),
        (b'[1,"x",null,[{"a":1}],{"a":1}]', [{"a": b"1"}]),
        (b'[{"\\ud83d":1,"a":"\\ude42","n":null}]', [{"\ud83d": b"1", "a": b'"\\ude42"'}]),
    ],
)
def test_the_objects_of_an_array_are_cut_and_all_else_is_passed_over(
    text: bytes, found: list[dict[str, bytes]]
) -> None:
    assert raw.objects(text) == found


@pytest.mark.parametrize("text", [b"{}", b'"x"', b"1", b'[{"a":1}', b'[{"a":1,}]'])
def test_what_is_no_array_has_no_objects(text: bytes) -> None:
    with pytest.raises(raw.Malformed):
        raw.objects(text)


@pytest.mark.parametrize(
    ("text", "last", "repeated"),
    [
        (b'{"a":1,"a":2}', b"2", ["a"]),
        (b'{"a":12,"a":3}', b"3", ["a"]),
        (b'{"a":[1,2],"a":99}', b"99", ["a"]),
        (b'{"a":{"a":1,"y":2},"y":2,"a":1234567}', b"1234567", ["a"]),
        (b'{"a":1,"a":1}', b"1", ["a"]),
        (b'{"a":1,"\\u0061":2}', b"2", ["a"]),
    ],
)
def test_the_last_of_a_repeated_member_counts(text: bytes, last: bytes, repeated: list[str]) -> None:
    cut = raw.Object(text)
    assert cut.get("a") == last
    assert cut.repeated == repeated
    assert cut.spliced({"a": b"0"}).endswith(last.join([b":", b"}"]).replace(last, b"0"))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b'{"a":1,}',
        b'{"a" 1}',
        b'{"a":1}x',
        b"{a:1}",
        b"{1:1}",
        b'{"a":NaN,"b":"\\ud83d"}',
        b'{"a":01}',
        b'{"a":"\\ud83d",}',
        b'{"a":"\\ud83d"}x',
        b'{"a":"\n\\ud83d"}',
        b'{1:"\\ud83d"}',
        b'"\\ud83d"',
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_not_an_object_is_refused(text: bytes) -> None:
    with pytest.raises(raw.Malformed):
        raw.Object(text)


@pytest.mark.parametrize("text", [b"", b"{}", b"[1,]", b'["\\ud83d",]', b'["\\ud83d"', b'["\\ud83d"]]'])
def test_what_is_not_an_array_is_refused(text: bytes) -> None:
    with pytest.raises(raw.Malformed):
        raw.elements(text)


def test_elements_are_cut_as_they_came() -> None:
    assert raw.elements(b' [ 1.0 , {"b":1,"a":2} ,"x" ] ') == [b"1.0", b'{"b":1,"a":2}', b'"x"']
    assert raw.elements(b'["\\ud83d" , 1e5]') == [b'"\\ud83d"', b"1e5"]
    assert raw.elements(b"[]") == []


def test_splicing_changes_nothing_else() -> None:
    cut = raw.Object(b'{ "b" : 1.0 ,\n "id":null, "a" : "\\u0041" }')
    assert cut.spliced({"id": b'"x"', "c": b"2"}) == b'{ "b" : 1.0 ,\n "id":"x", "a" : "\\u0041" ,"c":2}'
    assert raw.Object(b"{ }").spliced({"a": b"1", "b": b"2"}) == b'{ "a":1,"b":2}'
    assert cut.spliced({}) == cut.text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"a":"\xff"}', "not UTF-8"),
        (b'{"a":"\xed\xa0\x80"}', "not UTF-8"),
        (b"[" * 201 + b"]" * 201, "201"),
        (b'{"a":' * 201 + b"1" + b"}" * 201, "201"),
    ],
)
def test_a_text_that_could_hurt_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(raw.Malformed) as refused:
        raw.check(text, 200)
    assert reason.replace("201", "200 levels") in str(refused.value)


def test_a_name_that_is_not_utf_8_is_malformed_though_nobody_has_checked_the_text() -> None:
    with pytest.raises(raw.Malformed):
        raw.Object(b'{"\xff":1}')


def test_brackets_in_strings_are_not_depth() -> None:
    raw.check(b'["' + b"[{" * 500 + b'\\"[", ' + b"[" * 199 + b"]" * 199 + b"]", 200)
    raw.check(b"[]," * 1000, 200)


def test_decoding_survives_what_msgspec_refuses() -> None:
    assert raw.decode(b'"\\ud83d"') == "\ud83d"
    assert raw.decode(b"1e400") == float("inf")
    with pytest.raises(raw.Malformed):
        raw.decode(b"NaN")


def test_literals_are_joined_without_decoding() -> None:
    assert raw.joined([b'"\\ud83d"', b'"\\ude42 \\u0000"']) == b'"\\ud83d\\ude42 \\u0000"'
    assert raw.joined([b'"a"', b'"b"'], rb"\n") == b'"a\\nb"'
    assert raw.joined([]) == b'""'


@pytest.mark.parametrize(
    ("string", "kept", "cut"),
    [
        (b'"a\\ud83d"', b'"a"', b"\\ud83d"),
        (b'"\\uD83D"', b'""', b"\\uD83D"),
        (b'"\\\\\\ud83d"', b'"\\\\"', b"\\ud83d"),
        (b'"\\\\ud83d"', b'"\\\\ud83d"', b""),
        (b'"\\ud83d\\ude42"', b'"\\ud83d\\ude42"', b""),
        (b'"abc"', b'"abc"', b""),
    ],
)
def test_half_a_character_is_cut_from_the_end(string: bytes, kept: bytes, cut: bytes) -> None:
    assert raw.split_high_surrogate(string) == (kept, cut)


@pytest.mark.parametrize(
    ("text", "kind"),
    [(b'"x"', "a string"), (b"{}", "an object"), (b"[]", "an array"), (b"true", "a boolean"), (b"null", "null"),
     (b"-1", "an integer"), (b"1.0", "a number"), (b"1e3", "a number")],
)  # fmt: skip
def test_kinds_have_the_contracts_names(text: bytes, kind: str) -> None:
    assert raw.kind(text) == kind


@given(st.dictionaries(st.text(), JSON_VALUES, max_size=6), st.booleans())
def test_any_object_is_cut_into_texts_that_mean_the_same(value: dict[str, object], ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, separators=(" , ", " : ")).encode()
    cut = raw.Object(text)
    assert {name: json.loads(member) for name, member in cut.members()} == value
    assert cut.repeated == []
    # The surrogate makes the slow path cut the same text with one member more.
    slow = raw.Object(text[:-1] + (b"," if value else b"") + b'"\\ud83d surely new":"\\ud83d"}')
    assert list(slow.members())[:-1] == list(cut.members())


def test_hostile_strings_cost_no_more_than_their_length() -> None:
    """A string that never ends, one of escapes alone, and a run of backslashes: each is passed over once.

    What is asserted is that the answers are right; backing up at each quote, the first would take days.
    """
    with pytest.raises(raw.Malformed):
        raw.check(b"[" * 201 + b'"' + b'\\"' * 2_000_000, 200)
    escapes = b'"' + b"\\n" * 2_000_000 + b'"'
    raw.check(b"[" * 101 + escapes + b"]" * 101, 200)
    assert raw.Object(b'{"a":' + escapes + b',"b":1,"b":2}').get("a") == escapes
    assert raw.without_null_members(b'{"a":' + escapes + b',"b":null}') == b'{"a":' + escapes + b"}"
    assert raw.split_high_surrogate(b'"' + b"\\\\" * 500_000 + b'\\ud83d"') == (
        b'"' + b"\\\\" * 500_000 + b'"',
        b"\\ud83d",
    )


@pytest.mark.parametrize(
    ("text", "without"),
    [
        (b'{"a":null,"b":1}', b'{"b":1}'),
        (b'{"b":1,"a":null}', b'{"b":1}'),
        (b'{ "a" : null , "b" : 1 }', b'{ "b" : 1 }'),
        (b'{"a":null}', b"{}"),
        (b'[{"a":[{"b":null,"c":"null, \\"d\\":null"}]},null]', b'[{"a":[{"c":"null, \\"d\\":null"}]},null]'),
        (b'"null"', b'"null"'),
        (b"null", b"null"),
    ],
)
def test_null_members_are_left_out_and_null_elements_stay(text: bytes, without: bytes) -> None:
    assert raw.without_null_members(text) == without


def test_members_are_taken_for_what_they_are_or_not_at_all() -> None:
    cut = raw.Object(b'{"o":{"a":1},"l":[{"b":2},3,[4]],"s":"x","n":null}')
    nested = cut.object("o")
    assert nested is not None
    assert nested.text == b'{"a":1}'
    assert cut.elements("l") == [b'{"b":2}', b"3", b"[4]"]
    assert [one.text for one in cut.objects("l")] == [b'{"b":2}']
    for name in ("s", "n", "none"):
        assert (cut.object(name), cut.elements(name), cut.objects(name)) == (None, [], [])
    assert (cut.object("l"), cut.elements("o")) == (None, [])
