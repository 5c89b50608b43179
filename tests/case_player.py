"""Plays a reported failure: its upstream, the server before it, its client's steps, and what came of each.

What lives here knows what a case says (`tests/data/cases.jsonl`) and judges nothing: every expectation is written by
hand in the test that is named for the behaviour. Values that a step takes from an earlier one, `{{s1.id}}`, are filled
in from that step's answer.
"""

import asyncio
import contextlib
import functools
import json
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import httpx

from server.mock import Mock, Reply
from tests.application import Application, running
from tests.grammar import assert_grammar, assert_openai_accepts, assert_response
from tests.harness import case_replies, cases, serving, until

CHAT = """
[[upstreams]]
name = "chat"
urls = ["{}/v1"]
profile = "{}"
models = ["*"]
"""

_COMMENT = re.compile(rb"^:[^\n]*\n\n", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{\{([^}]+)\}\}")


class Answer:
    """What a client got for one step."""

    def __init__(self, answer: httpx.Response) -> None:
        self.status = answer.status_code
        self.headers = answer.headers
        self.body = answer.content

    @property
    def content_type(self) -> str:
        """Without its parameters."""
        return self.headers["content-type"].partition(";")[0]

    @functools.cached_property
    def json(self) -> Any:
        """The body, or the response object in a stream's last event; that it is one by the contract is asserted."""
        if self.content_type == "text/event-stream":
            return self.events[-1]["response"]
        body = json.loads(self.body)
        if body.get("object") == "response" and "deleted" not in body:
            assert_response(body)
        return body

    @functools.cached_property
    def events(self) -> list[dict[str, Any]]:
        """The stream's events. That they follow the grammar and that openai-python takes them is asserted here."""
        assert (self.status, self.content_type) == (200, "text/event-stream"), self.body
        events = assert_grammar(_COMMENT.sub(b"", self.body))
        # The one code that is in no client's enum; those who act on a full context look for it.
        if (events[-1]["response"]["error"] or {}).get("code") != "context_length_exceeded":
            assert_openai_accepts(events)
        return events

    def of_type(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == name]


class Player:
    """One case on its way. Steps and upstream calls are counted from 1, as the case's own text counts them."""

    def __init__(self, case: dict[str, Any], database_url: str, mock: Mock, settings: dict[str, Any]) -> None:
        self.database_url = database_url
        self.mock = mock
        self._case = case
        self._settings = settings
        self._servers: dict[int, Application] = {}
        self._running: dict[int, contextlib.AsyncExitStack] = {}
        self._answers: dict[int, Answer] = {}
        self._values: dict[str, Any] = {}

    def answer(self, step: int) -> Answer:
        return self._answers[step]

    def sent(self, call: int) -> dict[str, Any]:
        """The body that the upstream got with this call."""
        sent: dict[str, Any] = self.mock.posts[call - 1].json
        return sent

    @property
    def calls(self) -> int:
        return len(self.mock.posts)

    @property
    def sent_bytes(self) -> bytes:
        """All that the upstream was ever sent, as it was sent."""
        return b"\n".join(post.body for post in self.mock.posts)

    @property
    def server(self) -> Application:
        return self._servers[1]

    async def start(self, number: int, **settings: Any) -> None:
        """Start a server on the case's database; server 1 runs from the beginning."""
        self._running[number] = contextlib.AsyncExitStack()
        started = running(self.database_url, **(self._settings | settings))
        self._servers[number] = await self._running[number].enter_async_context(started)

    async def stop(self, number: int) -> None:
        await self._running.pop(number).aclose()

    async def stop_all(self) -> None:
        for number in list(self._running):
            await self.stop(number)

    def know(self, step: int, value: Any) -> None:
        """Take `value` for the answer of a step that is not played."""
        self._values[f"s{step}"] = value

    async def play(self, *steps: int, server: int = 1, **members: Any) -> None:
        """Play these steps in order, by default all; those that the case starts together are started together.

        `server` is the one that is asked where the case names no other, `members` go into each body besides.
        """
        waiting = list(steps) or list(range(1, len(self._case["client_steps"]) + 1))
        while waiting:
            label = self._step(waiting[0]).get("parallel")
            together = [step for step in waiting if label and self._step(step).get("parallel") == label] or waiting[:1]
            waiting = waiting[len(together) :]
            async with asyncio.TaskGroup() as group:
                for step in together:
                    calls = self.calls
                    group.create_task(self._play_one(step, server, members))
                    # Each reaches the upstream after the one before it, so that it gets the reply meant for it.
                    if step != together[-1]:
                        await until(functools.partial(self._has_more_calls, calls))

    def _has_more_calls(self, calls: int) -> bool:
        return self.calls > calls

    def _step(self, number: int) -> dict[str, Any]:
        step: dict[str, Any] = self._case["client_steps"][number - 1]
        return step

    async def _play_one(self, number: int, server: int, members: dict[str, Any]) -> None:
        step = self._step(number)
        if step["method"] == "RESTART":
            await self.stop(server)
            await self.start(server)
        elif step["method"] == "LOOP":
            for turn in range(step["json"]["times"]):
                self._values["n"] = turn
                body = {"method": "POST", "path": step["path"], "json": step["json"]["body"]}
                await self._send(number, body, server, members)
        else:
            await self._send(number, step, server, members)

    async def _send(self, number: int, step: dict[str, Any], server: int, members: dict[str, Any]) -> None:
        asked = step.get("replica", server)
        if asked not in self._servers:
            await self.start(asked)
        content = step.get("raw")
        if "json" in step:
            content = json.dumps(self._filled(step["json"]) | members)
        answer = await self._servers[asked].http.request(
            step["method"],
            self._filled(step["path"]),
            content=content,
            headers={"content-type": "application/json", **step.get("headers", {})},
        )
        self._answers[number] = Answer(answer)
        if answer.status_code == 200:
            self._values[f"s{number}"] = self._values["prev"] = self._answers[number].json

    def _filled(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._filled(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._filled(one) for one in value]
        if not isinstance(value, str):
            return value
        if whole := _PLACEHOLDER.fullmatch(value):
            return self._looked_up(whole[1])
        return _PLACEHOLDER.sub(lambda match: str(self._looked_up(match[1])), value)

    def _looked_up(self, reference: str) -> Any:
        step, *path = reference.split(".")
        value = self._values[step]
        for name in path:
            value = value[int(name)] if isinstance(value, list) else value[name]
        return value


@contextlib.asynccontextmanager
async def playing(
    case_id: str,
    database_url: str,
    *,
    replies: Sequence[Reply] | None = None,
    chat_profile: str | None = None,
    **settings: Any,
) -> AsyncIterator[Player]:
    """A case before its first step, on a server with these settings; `replies` take the place of the case's own.

    With `chat_profile` the upstream speaks Chat Completions, by that profile.
    """
    case = cases()[case_id]
    mock = Mock(case_replies(case) if replies is None else replies)
    async with serving(mock) as upstream:
        given = (
            {"upstream": f"{upstream}/v1"}
            if chat_profile is None
            else {"upstreams": CHAT.format(upstream, chat_profile)}
        )
        player = Player(case, database_url, mock, given | settings)
        await player.start(1)
        try:
            yield player
        finally:
            await player.stop_all()


def user(text: str) -> dict[str, Any]:
    """What an upstream gets of a user's plain text, or of one that came as a short message."""
    return {"type": "message", "role": "user", "content": text}


def assistant(item_id: str, text: str) -> dict[str, Any]:
    """What an upstream gets of a message that an upstream made."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": item_id, "role": "assistant", "content": content}


def reasoning(item_id: str, text: str) -> dict[str, Any]:
    """What an upstream gets of reasoning with plain text, of an upstream's or with an id that the client brought."""
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": item_id, "summary": [], "content": content}


def answered(item_id: str, text: str) -> dict[str, Any]:
    """The message of most cases' replies, as it came and is shown."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": item_id, "type": "message", "role": "assistant", "status": "completed", "content": content}


def texts(items: Iterable[dict[str, Any]]) -> list[str]:
    """The text of each message, whether its content is a string or one part."""
    contents = [item["content"] for item in items]
    return [content if isinstance(content, str) else content[0]["text"] for content in contents]
