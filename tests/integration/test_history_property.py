"""Any sequence of turns, edits, forks, deletions and sweeps, against a model that keeps a plain list for everything.

What the upstream receives, what every response was made from and what every conversation lists must be the model's.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.engine.sweep import Sweep
from server.mock import Reply
from server.store.checks import Checks
from server.store.database import Database
from server.store.retention import Retention
from tests.application import Application, message, reply

COUNTS = ("completed", "incomplete")
ENDS = (*COUNTS, "completed", "failed", "refused", "unstored")


class Said(NamedTuple):
    """An item of the model: texts are never the same, and an id that only the server knows is None."""

    text: str
    id: str | None


class Made(NamedTuple):
    """A response of the model: all that was before its input, its input and its output."""

    id: str
    status: str
    before: list[Said]
    own: list[Said]
    output: list[Said]

    def history(self) -> list[Said]:
        """What a turn that continues it builds on."""
        return [*self.before, *self.own, *self.output] if self.status in COUNTS else self.before


class Player:
    """Carries out operations on the server and on the model, and compares the two at each step."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self.conversations: dict[str, list[Said]] = {}
        self.responses: list[Made] = []
        self.gone: list[str] = []
        self._numbers = itertools.count()

    async def play(self, operations: Sequence[tuple[str, int, int]]) -> None:
        self.conversations[await self.application.converse()] = []
        for name, first, second in operations:
            operation: Callable[[int, int], Any] = getattr(self, name)
            await operation(first, second)
        await self.check_everything()

    # --- what clients do

    async def turn_in_conversation(self, which: int, how: int) -> None:
        conversation_id = _chosen(list(self.conversations), which)
        listed = self.conversations[conversation_id]
        made = await self._turn(list(listed), how, conversation=conversation_id)
        if made is not None and made.status in COUNTS:
            listed += [*made.own, *made.output]

    async def turn_in_chain(self, which: int, how: int) -> None:
        if self.responses:
            parent = _chosen(self.responses, which)
            await self._turn(parent.history(), how, previous_response_id=parent.id)

    async def first_turn(self, _: int, how: int) -> None:
        await self._turn([], how)

    async def add_items(self, which: int, count: int) -> None:
        conversation_id = _chosen(list(self.conversations), which)
        added = [self._new_item(count + number) for number in range(1 + count % 3)]
        answer = await self.application.http.post(
            f"/v1/conversations/{conversation_id}/items", json={"items": [wire for wire, _ in added]}
        )
        assert answer.status_code == 200
        self.conversations[conversation_id] += [said for _, said in added]

    async def remove_item(self, which: int, place: int) -> None:
        conversation_id = _chosen(list(self.conversations), which)
        listed = self.conversations[conversation_id]
        if listed:
            at = place % len(listed)
            item = (await self.application.conversed(conversation_id))[at]
            path = f"/v1/conversations/{conversation_id}/items/{item['id']}"
            assert (await self.application.http.delete(path)).status_code == 200
            del listed[at]

    async def delete_response(self, which: int, _: int) -> None:
        if self.responses:
            made = self.responses.pop(which % len(self.responses))
            assert (await self.application.http.delete(f"/v1/responses/{made.id}")).status_code == 200
            self.gone.append(f"/v1/responses/{made.id}")

    async def change_conversation(self, which: int, _: int) -> None:
        """One is deleted and another made in its place, or the other way round."""
        if which % 2 or len(self.conversations) == 1:
            self.conversations[await self.application.converse()] = []
        else:
            conversation_id = _chosen(list(self.conversations), which)
            assert (await self.application.http.delete(f"/v1/conversations/{conversation_id}")).status_code == 200
            del self.conversations[conversation_id]
            self.gone.append(f"/v1/conversations/{conversation_id}")

    async def sweep(self, _: int, __: int) -> None:
        await _swept(self.application.database)
        assert await Checks(self.application.database).faults(1) == []

    # --- how it is done

    async def _turn(self, before: list[Said], how: int, **members: Any) -> Made | None:
        """A turn behind `before`, with a message of its own and perhaps a reference, that ends by `how`."""
        end, stream = ENDS[how % len(ENDS)], how % 2 == 0
        items = [self._new_item(how), *self._reference(before, how)]
        text = f"answer {next(self._numbers)}"
        self.application.forget()
        self.application.mock.replies = [_reply(text, end, stream=stream)]
        body = {"model": "m", "input": [wire for wire, _ in items], "stream": stream, **members}
        own = [said for _, said in items]
        if end == "refused":
            assert (await self.application.post(body)).status_code == 502
            response = None
        else:
            response = await self.application.turn(**body, store=end != "unstored")
        assert self._sent() == [said.text for said in (*before, *own)]
        if response is None or end == "unstored":
            return None
        assert response["status"] == end
        output = [Said(text, response["output"][0]["id"])]
        self.responses.append(Made(response["id"], end, before, own, output))
        return self.responses[-1]

    def _sent(self) -> list[str]:
        [post] = self.application.mock.posts
        return _texts(post.json["input"])

    def _new_item(self, how: int) -> tuple[dict[str, Any], Said]:
        number = next(self._numbers)
        said = Said(f"text {number}", f"msg_{number}" if how % 3 else None)
        return {"role": "user", "content": said.text} | ({"id": said.id} if said.id else {}), said

    def _reference(self, before: list[Said], how: int) -> list[tuple[dict[str, Any], Said]]:
        """At times, one item that can be reached and is not in the history: of a response, or of a conversation."""
        used = {said.id for said in before}
        known = [said for made in self.responses for said in (*made.own, *made.output)]
        known += [said for listed in self.conversations.values() for said in listed]
        free = [said for said in known if said.id is not None and said.id not in used]
        if how % 4 or not free:
            return []
        meant = _chosen(free, how // 4)
        # The upstream uses one id for everything, and what is made later under it is meant then.
        newest = [said for said in known if said.id == meant.id]
        return [({"type": "item_reference", "id": meant.id}, meant)] if len(set(newest)) == 1 else []

    # --- what must hold

    async def check_everything(self) -> None:
        for conversation_id, listed in self.conversations.items():
            shown = await self.application.conversed(conversation_id)
            assert _texts(shown) == [said.text for said in listed]
            assert all(said.id in (None, item["id"]) for said, item in zip(listed, shown, strict=True))
            assert len({item["id"] for item in shown}) == len(shown)
            await self._probe(listed, conversation=conversation_id)
        for made in self.responses:
            shown = await self.application.listed(made.id)
            assert _texts(shown) == [said.text for said in (*made.before, *made.own)]
            whole = (await self.application.http.get(f"/v1/responses/{made.id}")).json()
            assert (whole["status"], _texts(whole["output"])) == (made.status, [said.text for said in made.output])
            await self._probe(made.history(), previous_response_id=made.id)
        for path in self.gone:
            assert (await self.application.http.get(path)).status_code == 404

    async def _probe(self, history: list[Said], **members: Any) -> None:
        self.application.forget()
        await self.application.turn(input="probe", store=False, **members)
        assert self._sent() == [*(said.text for said in history), "probe"]


async def _swept(database: Database) -> None:
    """What was deleted goes at once, as far as nobody needs it."""
    await Sweep(Retention(database, retention_days=0, response_grace_s=0, conversation_grace_s=0)).run()


def _chosen(values: Sequence[Any], number: int) -> Any:
    return values[number % len(values)]


def _texts(items: Sequence[dict[str, Any]]) -> list[str]:
    contents = [item["content"] for item in items]
    return [content if isinstance(content, str) else content[0]["text"] for content in contents]


def _reply(text: str, end: str, *, stream: bool) -> Reply:
    if end == "refused":
        return Reply(status=500, text="no")
    return reply(message(text), stream=stream, status="completed" if end == "unstored" else end)


OPERATIONS = [
    "turn_in_conversation", "turn_in_conversation", "turn_in_conversation", "turn_in_chain", "turn_in_chain",
    "first_turn", "add_items", "remove_item", "remove_item", "delete_response", "change_conversation", "sweep",
]  # fmt: skip
NUMBERS = st.integers(0, 60)


ANY_SEQUENCE = st.lists(st.tuples(st.sampled_from(OPERATIONS), NUMBERS, NUMBERS), min_size=5, max_size=15)
PLAYED = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@PLAYED
@given(operations=ANY_SEQUENCE)
async def test_every_history_is_that_of_plain_lists(
    application: Application, operations: list[tuple[str, int, int]]
) -> None:
    await Player(application).play(operations)


@PLAYED
@given(operations=ANY_SEQUENCE)
async def test_every_history_is_the_same_while_another_server_sweeps(
    application: Application, emptied_database_url: str, operations: list[tuple[str, int, int]]
) -> None:
    others = Database.open(emptied_database_url, pool_size=1)

    async def go_on_sweeping() -> None:
        while True:
            await _swept(others)
            await asyncio.sleep(0.001)

    sweeping = asyncio.create_task(go_on_sweeping())
    try:
        await Player(application).play(operations)
        assert not sweeping.done()
    finally:
        sweeping.cancel()
        await asyncio.wait([sweeping])
        await others.close()
    assert await Checks(application.database).faults(1) == []
