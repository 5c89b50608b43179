"""Cursors and envelopes of lists."""

import json

import pytest

from server.errors import ApiError
from server.protocol.items import Item
from server.protocol.pages import PageRequest, item_page, parse_page_request

ITEMS = [
    Item(body=b'{"type":"message","role":"user","content":"%d"}' % number, public_id=f"msg_{number}", type="message")
    for number in range(5)
]


def page(limit: int, order: str, after: str | None = None) -> dict[str, object]:
    return json.loads(item_page(ITEMS, parse_page_request(str(limit), order, after)))


def ids(listed: dict[str, object]) -> list[str]:
    data = listed["data"]
    assert isinstance(data, list)
    return [item["id"] for item in data]


def test_twenty_of_the_newest_are_the_default() -> None:
    assert parse_page_request(None, None, None) == PageRequest(20, "desc", None)
    assert parse_page_request(None, None, "") == PageRequest(20, "desc", None)


def test_an_envelope_has_all_five_members() -> None:
    listed = page(2, "asc")
    assert ids(listed) == ["msg_0", "msg_1"]
    assert (listed["object"], listed["first_id"], listed["last_id"], listed["has_more"]) == (
        "list",
        "msg_0",
        "msg_1",
        True,
    )
    assert set(listed) == {"object", "data", "first_id", "last_id", "has_more"}


def test_pages_follow_one_another_without_gap_or_repeat() -> None:
    assert ids(page(2, "asc", "msg_1")) == ["msg_2", "msg_3"]
    last = page(2, "asc", "msg_3")
    assert (ids(last), last["has_more"]) == (["msg_4"], False)
    assert ids(page(3, "desc")) == ["msg_4", "msg_3", "msg_2"]
    assert ids(page(3, "desc", "msg_2")) == ["msg_1", "msg_0"]
    assert page(5, "asc")["has_more"] is False


def test_behind_the_last_there_is_an_empty_page() -> None:
    assert page(2, "asc", "msg_4") == {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}


@pytest.mark.parametrize(
    ("limit", "order", "param", "code"),
    [
        ("0", None, "limit", "integer_below_min_value"),
        ("-1", None, "limit", "integer_below_min_value"),
        ("101", None, "limit", "integer_above_max_value"),
        ("x", None, "limit", "invalid_type"),
        ("", None, "limit", "invalid_type"),
        ("1.0", None, "limit", "invalid_type"),
        ("+1", None, "limit", "invalid_type"),
        ("1_0", None, "limit", "invalid_type"),
        ("\u0661", None, "limit", "invalid_type"),
        ("99999999999999", None, "limit", "integer_above_max_value"),
        ("-99999999999999", None, "limit", "integer_below_min_value"),
        ("9" * 40, None, "limit", "invalid_type"),
        ("5", "up", "order", "invalid_value"),
        ("5", "", "order", "invalid_value"),
    ],
)
def test_a_wrong_parameter_is_named(limit: str, order: str | None, param: str, code: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_page_request(limit, order, None)
    assert (refused.value.status, refused.value.param, refused.value.code) == (400, param, code)


@pytest.mark.parametrize("after", ["\x00", "a\nb", "\ud83d", "m" * 257])
def test_a_cursor_that_is_no_id_is_unknown(after: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_page_request(None, None, after)
    assert (refused.value.status, refused.value.param) == (400, "after")
    assert after not in refused.value.message


def test_an_unknown_cursor_is_refused() -> None:
    with pytest.raises(ApiError) as refused:
        page(2, "asc", "msg_9")
    assert (refused.value.status, refused.value.param) == (400, "after")
    assert "msg_9" in refused.value.message
