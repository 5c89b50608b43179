"""Whatever a model server answers and a client asks, through the whole server: nothing crashes, hangs or is lost.

What is made up begins as what a real vLLM was recorded to send, and is damaged from there: frames are lost, repeated,
changed or foreign, members hold what they never should, and bytes are missing.
"""

import asyncio
import copy
import json
from collections.abc import Iterable
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.mock import Reply
from tests.application import Application, events_of, message, reply, running
from tests.grammar import TERMINAL
from tests.harness import captures

UPSTREAMS = """
[[upstreams]]
name = "responses"
urls = ["URL"]
profile = "vllm"
models = ["m"]

[[upstreams]]
name = "chat"
urls = ["URL"]
profile = "chat-vllm"
models = ["chat"]
"""
ANSWER_MAX_S = 20
FOREIGN_FRAMES = [
    b": ping",
    b"data: [DONE]",
    b"data: {}",
    b"data: null",
    b"data: [1]",
    b'data: {"type":"response.completed"}',
    b'event: error\ndata: {"type":"error","message":"m"}',
    b'data: {"error":{"message":"m","code":500}}',
    b'data: {"choices":[{"index":0,"delta":null}]}',
    b'data: {"choices":[{"index":1,"delta":{"content":"x"}}]}',
    b"event: response.output_text.delta\ndata: {",
    b"\xff\xfe",
    b"data: " + b"[" * 2000,
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=[]), max_size=4)
    | st.sampled_from(["completed", "message", "reasoning", "function_call", "response.completed"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "id", "text"]), inner),
    max_leaves=4,
)


def recorded(name_begins: str, *, is_stream: bool) -> list[bytes]:
    return [
        capture.received
        for capture in captures("0.32")
        if capture.name.startswith(name_begins)
        and capture.status in (200, None)
        and capture.received.startswith((b"event:", b"data:")) is is_stream
        and len(capture.received) < 60_000
    ]


RESPONSES = ("1", "2", "3", "4", "5")
CHAT = ("70", "71")
STREAMS = [("m", stream) for begins in RESPONSES for stream in recorded(begins, is_stream=True)] + [
    ("chat", stream) for begins in CHAT for stream in recorded(begins, is_stream=True)
]
BODIES = [("m", body) for begins in RESPONSES for body in recorded(begins, is_stream=False)] + [
    ("chat", body) for begins in CHAT for body in recorded(begins, is_stream=False)
]


@st.composite
def damaged_streams(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """A model to ask for, and the pieces in which its upstream answers."""
    model, stream = draw(st.sampled_from(STREAMS))
    frames = stream.split(b"\n\n")
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(frames) - 1))
        how = draw(st.sampled_from(["lose", "repeat", "move", "cut", "foreign", "change", "change", "damage"]))
        if how == "lose":
            del frames[at : at + draw(st.integers(1, 3))]
        elif how == "repeat":
            frames.insert(at, frames[at])
        elif how == "move":
            frames.insert(draw(st.integers(0, len(frames) - 1)), frames.pop(at))
        elif how == "cut":
            del frames[at + 1 :]
        elif how == "foreign":
            frames.insert(at, draw(st.sampled_from(FOREIGN_FRAMES)))
        elif how == "damage":
            frames[at] = draw(damaged(frames[at]))
        else:
            head, data, text = frames[at].partition(b"data: ")
            frames[at] = head + data + draw(changed(text))
        frames = frames or [b""]
    whole = b"\n\n".join(frames)
    cut = draw(st.integers(0, len(whole)))
    return model, [piece for piece in (whole[:cut], whole[cut:]) if piece]


@st.composite
def changed(draw: st.DrawFn, text: bytes) -> bytes:
    """A JSON text in which one value is another, or is not there."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    places = list(_places(value))
    if not places:
        return text
    owner = value
    *way, last = draw(st.sampled_from(places))
    for key in way:
        owner = owner[key]
    if draw(st.booleans()):
        owner[last] = draw(VALUES)
    else:
        del owner[last]
    return json.dumps(value).encode()


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterable[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*at, key)
        yield from _places(one, (*at, key))


@st.composite
def damaged(draw: st.DrawFn, text: bytes) -> bytes:
    start = draw(st.integers(0, len(text)))
    end = min(len(text), start + draw(st.integers(0, 3)))
    return text[:start] + draw(st.sampled_from([b"", b"\n", b'"', b"{", b"}", b"\\", b"\xff", b"\0"])) + text[end:]


@pytest.fixture(scope="module")
async def served(shared_database_url: str) -> Any:
    async with running(shared_database_url, upstreams=UPSTREAMS) as application:
        yield application
        figures = (await application.http.get("/metrics")).text.splitlines()
        for idle in ("rejoinder_open_turns 0.0", "rejoinder_database_connections_in_use 0.0"):
            assert idle in figures


MADE_UP = settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize(
    ("model", "stream"), STREAMS, ids=[f"{model} {number}" for number, (model, _) in enumerate(STREAMS)]
)
async def test_what_is_not_damaged_completes(served: Application, model: str, stream: bytes) -> None:
    served.forget()
    served.mock.replies = [Reply(sse_chunks_b64=[stream])]
    answer = await served.post({"model": model, "input": "q", "stream": True})
    ended = events_of(answer.content)[-1]["response"]
    assert ended["status"] in ("completed", "incomplete")
    await assert_stored_and_continued(served, model, ended)


@MADE_UP
@given(made_up=damaged_streams())
async def test_a_stream_is_told_to_its_end_and_can_be_gone_on_with(
    served: Application, made_up: tuple[str, list[bytes]]
) -> None:
    model, pieces = made_up
    served.forget()
    served.mock.replies = [Reply(sse_chunks_b64=pieces)]
    async with asyncio.timeout(ANSWER_MAX_S):
        answer = await served.post({"model": model, "input": "q", "stream": True})
    assert '"turn_crashed"' not in served.log
    if answer.status_code != 200:
        # Its very first words were no stream.
        assert_refused(answer)
        return
    events = events_of(answer.content)
    types = [event["type"] for event in events]
    assert types[0] == "response.created"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [one for one in types if one in TERMINAL] == [types[-1]]
    await assert_stored_and_continued(served, model, events[-1]["response"])


@MADE_UP
@given(data=st.data())
async def test_a_whole_reply_is_told_or_refused_and_can_be_gone_on_with(
    served: Application, data: st.DataObject
) -> None:
    model, body = data.draw(st.sampled_from(BODIES))
    made_up = data.draw(changed(body) if data.draw(st.booleans()) else damaged(body))
    served.forget()
    served.mock.replies = [Reply(sse_chunks_b64=[made_up], headers={"content-type": "application/json"})]
    async with asyncio.timeout(ANSWER_MAX_S):
        answer = await served.post({"model": model, "input": "q"})
    assert '"turn_crashed"' not in served.log
    if answer.status_code != 200:
        assert_refused(answer)
        return
    await assert_stored_and_continued(served, model, answer.json())


@MADE_UP
@given(data=st.data())
async def test_a_request_is_answered_or_refused(served: Application, data: st.DataObject) -> None:
    asked = data.draw(st.sampled_from([capture.request for capture in captures("0.32") if capture.request]))
    text = asked.strip().encode()
    body = data.draw(changed(text) if data.draw(st.booleans()) else damaged(text))
    served.forget()
    served.mock.replies = [reply(message("Hi."), stream=False)]
    async with asyncio.timeout(ANSWER_MAX_S):
        answer = await served.post(body)
    # A reply that is no stream is not what a client who asks for one can be given.
    assert answer.status_code in (200, 400, 404, 502), answer.text
    assert '"turn_crashed"' not in served.log
    assert '"crashed"' not in served.log


def assert_refused(answer: httpx.Response) -> None:
    assert answer.status_code in (400, 429, 502, 503), answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]


async def assert_stored_and_continued(served: Application, model: str, told: dict[str, Any]) -> None:
    """It is stored as it was told, and a turn that answers its calls reaches the upstream."""
    stored = await served.http.get(f"/v1/responses/{told['id']}")
    assert (stored.status_code, stored.json()) == (200, told)
    answers = [
        {"type": f"{item['type']}_output", "call_id": _call_id(item), "output": "o"}
        for item in told["output"]
        # What failed adds nothing to the history.
        if told["status"] != "failed" and item["type"] in ("function_call", "custom_tool_call")
    ]
    asked = [*answers, {"type": "message", "role": "user", "content": "next"}]
    served.mock.replies = [Reply(json=copy.deepcopy(NEXT[model]))]
    answer = await served.post({"model": model, "input": asked, "previous_response_id": told["id"]})
    # Sealed state that only its issuer can open is said to the client.
    assert answer.status_code == 200 or "encrypted" in answer.text, answer.text


def _call_id(call: dict[str, Any]) -> str:
    """What answers it: a call that came without one is answered by its own id."""
    return call["call_id"] if isinstance(call.get("call_id"), str) else call["id"]


NEXT: dict[str, Any] = {
    "m": {"id": "r", "object": "response", "status": "completed", "output": [message("Hi.")]},
    "chat": {
        "id": "c",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}],
    },
}
