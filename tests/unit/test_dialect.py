"""The dialects by name: where each lies, and that the Responses API is read as it came."""

from server.protocol.dialect import DIALECTS, AsItCame


def test_where_the_responses_api_lies() -> None:
    assert DIALECTS["responses"].path == "/responses"


def test_the_responses_api_is_read_as_it_came() -> None:
    reader = AsItCame()
    assert (reader.feed(b"event: x\n"), reader.end(), reader.whole(b'{"a" : 1}')) == (b"event: x\n", b"", b'{"a" : 1}')
    assert reader.fidelity("rs_1") is None
