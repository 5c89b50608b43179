"""An upstream that echoes, and servers before it: real processes, each with a client."""

import asyncio
import contextlib
import itertools
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx

from server.mock import Mock
from tests.application import message, reply
from tests.e2e import processes


class Echo:
    """An upstream that answers the last message of its input, in either mode, and only while it may."""

    def __init__(self) -> None:
        self.inputs: list[list[str]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (event := await receive())["type"] == "http.request":
            body += event["body"]
            if not event["more_body"]:
                break
        asked = json.loads(body)
        self.inputs.append([text_of(item) for item in asked["input"]])
        await self.may_answer.wait()
        answer = reply(message(f"re: {self.inputs[-1][-1]}", id=f"msg_{len(self.inputs)}"), stream=asked["stream"])
        again = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def received() -> Any:
            return next(again, None) or await receive()

        await Mock([answer])(scope, received, send)


class Server:
    """One process, and a client of it."""

    def __init__(self, process: "subprocess.Popen[bytes]", url: str) -> None:
        self.process = process
        self.http = httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False)

    async def ask(self, conversation_id: str, text: str, *, stream: bool = False) -> httpx.Response:
        body = {"model": "m", "input": text, "conversation": conversation_id, "stream": stream}
        return await self.http.post("/v1/responses", json=body)

    async def ask_until_free(self, conversation_id: str, text: str, *, stream: bool = False) -> int:
        """Ask until the conversation is not locked any more, and say how often it was."""
        async with asyncio.timeout(30):
            for refused_count in itertools.count():
                answer = await self.ask(conversation_id, text, stream=stream)
                if answer.status_code == 200:
                    return refused_count
                assert answer.json()["error"]["code"] == "conversation_locked"
                await asyncio.sleep(0.1)
        raise AssertionError

    async def listed(self, conversation_id: str) -> list[str]:
        found: list[str] = []
        after: dict[str, str] = {}
        while True:
            params = {"order": "asc", "limit": "100", **after}
            page = (await self.http.get(f"/v1/conversations/{conversation_id}/items", params=params)).json()
            found += map(text_of, page["data"])
            after = {"after": page["last_id"]}
            if not page["has_more"]:
                return found

    async def converse(self) -> str:
        conversation_id: str = (await self.http.post("/v1/conversations")).json()["id"]
        return conversation_id

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def text_of(item: dict[str, Any]) -> str:
    content: Any = item["content"]
    return str(content if isinstance(content, str) else content[0]["text"])


@contextlib.contextmanager
def _process(folder: Path, name: str, **settings: Any) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    file = folder / f"{name}.toml"
    file.write_text("\n".join(f"{setting} = {json.dumps(value)}" for setting, value in settings.items()))
    line: list[str | Path] = [processes.OURS / "rejoinder", "serve", "--port", "0", "--config", file]
    with processes.running(line, folder, name) as process:
        log = folder / f"{name}.log"
        try:
            yield process, processes.awaited(process, lambda: processes.serving(log), log)["url"]
        finally:
            # One that is stopped would not see that it is to end.
            process.send_signal(signal.SIGCONT)


@contextlib.asynccontextmanager
async def started(folder: Path, name: str, **settings: Any) -> AsyncIterator[Server]:
    """A server as a process of its own with these settings, on a free port; its log is `NAME.log` in the folder."""
    with contextlib.ExitStack() as running:
        # Not in this loop, which has a database's proxy to serve meanwhile.
        process, url = await asyncio.to_thread(running.enter_context, _process(folder, name, **settings))
        server = Server(process, url)
        async with server.http:
            yield server
        await asyncio.to_thread(running.close)
