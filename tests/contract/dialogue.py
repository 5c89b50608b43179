"""One dialogue of two turns with a tool, and a client's side of the wire: what the tests of client libraries share.

The upstream's three answers are recorded bytes of a real vLLM, with its ids: it thinks and calls the tool, thinks and
answers by what the tool said, thinks and answers the second question. What it has to receive is written out by hand.
"""

import json
from typing import Any, NamedTuple

import httpx
import openai

from server.mock import Reply
from tests.application import CLIENT_API_KEY, TIMEOUT_S, Application, Minted
from tests.harness import Capture, captures

QUESTIONS = ("Weather in Paris?", "Which word was it?")
ANSWERS = ("\n\nIt is sunny in Paris.", "\n\nIt was ZEBRA.")
WEATHER = "sunny"


class Ids(NamedTuple):
    """What the recorded vLLM called the items that are sent to it again."""

    first_thought: str
    call: str
    call_id: str
    second_thought: str
    answer: str


_IDS = {
    "n": Ids(
        first_thought="rs_b7b2babb2f374219",
        call="fc_aeb1d769a1ab2b4e",
        call_id="chatcmpl-tool-946841eb61385c43",
        second_thought="rs_89e16fa50417570e",
        answer="msg_8f2f35c3881ce1d9",
    ),
    "s": Ids(
        first_thought="rs_b3fa9dfea1a25fea",
        call="fc_a923b1d05663e49e",
        call_id="chatcmpl-tool-9402fa4e2a7a2b48",
        second_thought="rs_87e7a9c73b2117b2",
        answer="msg_b15e2a03a08f9669",
    ),
}


class Dialogue:
    """The recorded dialogue in one mode, and what there must be of it on every side.

    Streamed, the recorded vLLM tells of a message of nothing but white space between its first thought and the call.
    It is in `outputs` and is listed, and it is never sent again.
    """

    def __init__(self, stream: bool) -> None:
        mode = "s" if stream else "n"
        kept = {capture.name: capture for capture in captures("0.33")}
        names = (f"60chain-weather-{mode}-t1", f"60chain-weather-{mode}-t2", f"60chain-secret-{mode}-t2")
        recorded = [kept[name] for name in names]
        kind = "text/event-stream" if stream else "application/json"
        self.ids = _IDS[mode]
        self.replies = [
            Reply(sse_chunks_b64=[capture.received], headers={"content-type": kind}) for capture in recorded
        ]
        self.outputs = [_output(capture) for capture in recorded]

    def upstream_inputs(self) -> list[list[dict[str, Any]]]:
        """The whole `input` of each of the upstream's three requests, of a client that sends each item once."""
        first = [_asked(QUESTIONS[0])]
        second = [*first, *self.call_and_output()]
        third = [*second, *self.answer(), _asked(QUESTIONS[1])]
        return [first, second, third]

    def call_and_output(self) -> list[dict[str, Any]]:
        """The first thought, its call and what the tool said, as the upstream receives them."""
        call = {
            "type": "function_call",
            "id": self.ids.call,
            "call_id": self.ids.call_id,
            "name": "get_weather",
            "arguments": '{"city": "Paris"}',
        }
        output = {"type": "function_call_output", "call_id": self.ids.call_id, "output": WEATHER}
        return [_thought(self.ids.first_thought, "\nI need the weather tool.\n"), call, output]

    def answer(self) -> list[dict[str, Any]]:
        """The second thought and the first turn's answer, as the upstream receives them."""
        part = {"type": "output_text", "text": ANSWERS[0], "annotations": []}
        message = {"type": "message", "id": self.ids.answer, "role": "assistant", "content": [part]}
        return [_thought(self.ids.second_thought, "\nThe tool said sunny.\n"), message]

    def listed(self) -> list[dict[str, Any]]:
        """All items but the last answer, in order, as a list shows them: the upstream's are as they came."""
        output = {
            "id": Minted("fco"),
            "type": "function_call_output",
            "call_id": self.ids.call_id,
            "output": WEATHER,
            "status": "completed",
        }
        return [shown(QUESTIONS[0]), *self.outputs[0], output, *self.outputs[1], shown(QUESTIONS[1])]


class Wire:
    """A client's side of the wire: `http` is for a library to send by, `requests` is what it has sent."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self.http = httpx.AsyncClient(
            trust_env=False, verify=False, timeout=TIMEOUT_S, event_hooks={"request": [self._keep]}
        )

    async def _keep(self, request: httpx.Request) -> None:
        self.requests.append(request)

    def openai(self, application: Application) -> openai.AsyncOpenAI:
        """A client that is strict about types, never retries, and sends by `http`."""
        return openai.AsyncOpenAI(
            base_url=f"{application.url}/v1",
            api_key=CLIENT_API_KEY,
            max_retries=0,
            http_client=self.http,
            _strict_response_validation=True,
        )

    def item_counts(self) -> list[int]:
        """How many items of input each turn's request held."""
        turns = [request for request in self.requests if request.url.path == "/v1/responses"]
        return [len(json.loads(request.content)["input"]) for request in turns]


def shown(question: str) -> dict[str, Any]:
    """A question as lists show it."""
    part = {"type": "input_text", "text": question}
    return {"id": Minted("msg"), "type": "message", "role": "user", "status": "completed", "content": [part]}


def received(application: Application) -> list[list[dict[str, Any]]]:
    """The whole `input` of each request that the upstream has received."""
    return [post.json["input"] for post in application.mock.posts]


def _asked(question: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": question}


def _thought(item_id: str, text: str) -> dict[str, Any]:
    return {
        "type": "reasoning",
        "id": item_id,
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
    }


def _output(capture: Capture) -> list[dict[str, Any]]:
    """The output items of a recorded response."""
    if not capture.is_stream:
        whole = json.loads(capture.received)
    else:
        *_, terminal = [line for line in capture.received.splitlines() if line.startswith(b"data: {")]
        whole = json.loads(terminal.removeprefix(b"data: "))["response"]
    output: list[dict[str, Any]] = whole["output"]
    return output
