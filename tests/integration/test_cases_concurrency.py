"""Reported failures about turns at the same time, each as the behaviour that it asks for."""

from tests.case_player import assistant, playing, user


async def test_branches_of_one_response_know_nothing_of_each_other(emptied_database_url: str) -> None:
    """B112"""
    async with playing("B112", emptied_database_url) as case:
        await case.play()
    assert [case.answer(step).status for step in (1, 2, 3, 4)] == [200, 200, 200, 200]
    root = [user("r"), assistant("m1", "root")]
    assert case.sent(2)["input"] == [*root, user("L")]
    assert case.sent(3)["input"] == [*root, user("R")]
    assert case.sent(4)["input"] == [*root, user("L"), assistant("m2", "left"), user("L2")]
