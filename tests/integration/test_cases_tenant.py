"""Reported failures about whose data it is, each as the behaviour that it asks for."""

from tests.application import stored_rows
from tests.case_player import playing


async def test_an_upstreams_response_id_is_never_told_and_never_taken(emptied_database_url: str) -> None:
    """B091"""
    async with playing("B091", emptied_database_url) as case:
        await case.play()
        stored = await case.server.http.get(f"/v1/responses/{case.answer(1).json['id']}")
    assert b"upstream_raw_77" not in case.answer(1).body + stored.content
    assert (case.answer(2).status, case.answer(3).status, stored.status_code) == (404, 404, 200)


async def test_an_unknown_conversation_is_not_made_by_asking_for_it(emptied_database_url: str) -> None:
    """B094, but for the param, which the contract (api.md 5) has as null"""
    async with playing("B094", emptied_database_url) as case:
        await case.play()
        assert await stored_rows(emptied_database_url) == {}
    for step in (1, 2):
        assert case.answer(step).status == 404
        assert case.answer(step).json["error"] == {
            "message": "Conversation with id 'conv_typo' not found.",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }
    assert case.calls == 0
