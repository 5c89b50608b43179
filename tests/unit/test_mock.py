"""The scripted upstream, driven without a socket: scripts, bodies, the recorder, and its own answers as a vLLM's."""

import json
from typing import Any

import pytest

from server.mock import RECEIVED_MAX, Mock, Received, Reply, load_script
from server.protocol.sse import Decoder
from tests.harness import captures


async def exchange(
    mock: Mock, method: str = "POST", path: str = "/v1/responses", body: Any = b'{"input": "Hello."}'
) -> tuple[int, dict[str, str], list[bytes]]:
    """Status, headers and the body's writes of one request."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    incoming = [
        {"type": "http.request", "body": raw[:3], "more_body": True},
        {"type": "http.request", "body": raw[3:], "more_body": False},
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return incoming.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"authorization", b"Bearer key")]
    await mock({"type": "http", "method": method, "path": path, "headers": headers}, receive, send)
    head = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    assert sent[-1]["more_body"] is False
    return sent[0]["status"], head, [message["body"] for message in sent[1:-1]]


async def answer(mock: Mock, body: Any) -> dict[str, Any]:
    status, _, writes = await exchange(mock, body=body)
    assert status == 200
    return json.loads(b"".join(writes))


async def events(mock: Mock, body: Any) -> list[dict[str, Any]]:
    status, headers, writes = await exchange(mock, body=body)
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    decoder = Decoder(1024 * 1024)
    # As in vLLM, one write is one event.
    decoded = [decoder.feed(write)[0] for write in writes]
    parsed = [json.loads(event.data) for event in decoded]
    assert [event["type"].encode() for event in parsed] == [event.name for event in decoded]
    return parsed


@pytest.mark.parametrize(
    ("reply", "content_type", "writes"),
    [
        (Reply(json={"a": "é", "b": None}), "application/json", ['{"a":"é","b":null}'.encode()]),
        (Reply(json=None), "application/json", [b"null"]),
        (Reply(json="\ud83d"), "application/json", [b'"\\ud83d"']),
        (Reply(text="<html>"), "text/plain; charset=utf-8", [b"<html>"]),
        (Reply(text="<html>", headers={"Content-Type": "text/html"}), "text/html", [b"<html>"]),
        (Reply(sse="data: é\ud83d\n\n"), "text/event-stream; charset=utf-8", [b"data: \xc3\xa9\xed\xa0\xbd\n\n"]),
        (Reply(sse_chunks=["da", "ta: 1\n\n"]), "text/event-stream; charset=utf-8", [b"da", b"ta: 1\n\n"]),
        (Reply(sse_chunks_b64=[b"\xef", b"\xbb\xbf"]), "text/event-stream; charset=utf-8", [b"\xef", b"\xbb\xbf"]),
        (Reply(text="abcde", split_every_bytes=2), "text/plain; charset=utf-8", [b"ab", b"cd", b"e"]),
    ],
)
async def test_a_body_goes_out_as_scripted(reply: Reply, content_type: str, writes: list[bytes]) -> None:
    status, headers, written = await exchange(Mock([reply]))
    assert (status, headers["content-type"], written) == (200, content_type, writes)


async def test_a_whole_body_has_its_length_and_a_stream_has_none() -> None:
    mock = Mock([Reply(text="é"), Reply(sse="data: 1\n\n")])
    assert (await exchange(mock))[1]["content-length"] == "2"
    assert "content-length" not in (await exchange(mock))[1]


def test_a_delayed_stream_goes_out_event_by_event() -> None:
    reply = Reply(sse="data: 1\n\ndata: 2\n\ndata: 3", chunk_delay_ms=5)
    assert reply.writes(0, "resp_1") == [b"data: 1\n\n", b"data: 2\n\n", b"data: 3"]


def test_random_pieces_are_the_same_for_the_same_seed_and_lose_nothing() -> None:
    reply = Reply(text="0123456789" * 20, split_random_seeds=[1, 2])
    first, second, third = [reply.writes(post_number, "") for post_number in range(3)]
    assert first == third != second
    assert b"".join(first) == b"".join(second) == b"0123456789" * 20
    assert {len(piece) for piece in first} <= set(range(1, 10))


async def test_reply_n_answers_post_n_and_the_last_repeats() -> None:
    mock = Mock([Reply(status=500, text="one"), Reply(text="two")])
    await exchange(mock, "GET", "/v1/models")
    replies = [await exchange(mock, path=path) for path in ("/v1/responses", "/v1/chat/completions", "/v1/responses")]
    assert [(status, writes) for status, _, writes in replies] == [(500, [b"one"]), (200, [b"two"]), (200, [b"two"])]


@pytest.mark.parametrize("member", ["json", "text", "sse", "sse_chunks"])
async def test_the_token_becomes_the_request_id(member: str) -> None:
    values = {"json": {"id": "{{request_id}}"}, "sse_chunks": ['{"id":"{{request_id}}"}']}
    mock = Mock([Reply(**{member: values.get(member, '{"id":"{{request_id}}"}')})])  # type: ignore[arg-type]
    assert await answer(mock, {"request_id": 'resp_"1'}) == {"id": 'resp_"1'}
    without = [(await answer(mock, {}))["id"] for _ in range(2)]
    assert [len(fresh) for fresh in without] == [len("resp_b5ee4683a49fb422")] * 2
    assert without[0] != without[1]


SCRIPTS = [
    b'{"status": 500, "text": "no"}\n\n{"json": {"a": [1]}}\n',
    b'[{"status": 500, "text": "no"}, {"json": {"a": [1]}}]',
    b'{"replies": [\n{"status": 500, "text": "no"},\n{"json": {"a": [1]}}\n]}',
]


@pytest.mark.parametrize("script", SCRIPTS, ids=["lines", "array", "object"])
def test_a_script_is_lines_or_an_array_or_an_object(script: bytes) -> None:
    assert load_script(script) == [Reply(status=500, text="no"), Reply(json={"a": [1]})]


def test_a_script_may_be_one_reply_and_may_hold_bytes_and_lone_surrogates() -> None:
    script = b'{"sse_chunks_b64": ["7w==", "uw=="], "delay_ms": 20, "split_random_seeds": [3]}'
    assert load_script(script) == [Reply(sse_chunks_b64=[b"\xef", b"\xbb"], delay_ms=20, split_random_seeds=[3])]
    assert load_script(b'{"sse": "\\ud83d"}') == [Reply(sse="\ud83d")]


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        (b'{"text": "a"}\n{"txt": "b"}', r"unknown field `txt` - at `\$\[1\]`"),
        (b'[{"text": "a", "json": null}]', "only one of json, text, sse"),
        (b'{"status": "200"}', r"Expected `int`, got `str` - at `\$\[0\]\.status`"),
        (b'{"replies": 1}', "Expected `array`"),
        (b"status: 200", "Expecting value"),
    ],
)
def test_a_misspelt_script_is_refused(script: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        load_script(script)


async def test_a_request_is_recorded_as_it_came() -> None:
    seen: list[Received] = []
    mock = Mock(record=seen.append)
    await exchange(mock, body=b'{"input": "\\ud83d", "n": 1.0}')
    await exchange(mock, "GET", "/health")
    assert mock.received == seen
    assert [(received.method, received.path) for received in seen] == [("POST", "/v1/responses"), ("GET", "/health")]
    assert seen[0].headers == {"content-type": "application/json", "authorization": "Bearer key"}
    assert seen[0].body == b'{"input": "\\ud83d", "n": 1.0}'
    assert seen[0].json == {"input": "\ud83d", "n": 1.0}
    assert mock.posts == seen[:1]


async def test_a_request_is_recorded_before_it_is_answered() -> None:
    def fail(received: Received) -> None:
        raise OSError("disk full")

    mock = Mock(record=fail)
    with pytest.raises(OSError, match="disk full"):
        await exchange(mock)
    assert len(mock.received) == 1


async def test_only_the_latest_requests_are_kept_and_replies_go_on_counting() -> None:
    mock = Mock([Reply(text="first"), Reply(text="later")])
    for number in range(RECEIVED_MAX + 1):
        _, _, writes = await exchange(mock, body=str(number).encode())
    assert len(mock.received) == RECEIVED_MAX
    assert (mock.received[0].body, mock.received[-1].body) == (b"1", str(RECEIVED_MAX).encode())
    assert writes == [b"later"]


async def test_gets_are_answered_as_vllm_answers_them() -> None:
    mock = Mock([Reply(text="for a POST")])
    status, _, writes = await exchange(mock, "GET", "/v1/models", b"")
    assert status == 200
    models = json.loads(b"".join(writes))
    assert models["object"] == "list"
    assert [model["object"] for model in models["data"]] == ["model"]
    assert await exchange(mock, "GET", "/health", b"") == (
        200,
        {"content-type": "text/plain; charset=utf-8", "content-length": "0"},
        [b""],
    )
    recorded = {capture.name: capture for capture in captures("0.33")}
    for method, path, name in [("GET", "/nope", "68-get-_nope"), ("DELETE", "/v1/responses/x", "68-delete-nope")]:
        status, _, writes = await exchange(mock, method, path, b"")
        assert (status, b"".join(writes)) == (recorded[name].status, recorded[name].received)


@pytest.mark.parametrize("name", ["62-bad-json", "61-no-input", "61-input-empty-list"])
async def test_a_bad_request_is_refused_as_vllm_refuses_it(name: str) -> None:
    recorded = next(capture for capture in captures("0.33") if capture.name == name and not capture.stream)
    assert recorded.request is not None
    status, headers, writes = await exchange(Mock(), body=recorded.request.encode())
    assert (status, headers["content-type"]) == (recorded.status, "application/json")
    # What vLLM counts as the request's members includes one that it adds itself.
    assert b"".join(writes) == recorded.received.replace(b"<dict of 3 items>", b"<dict of 2 items>")


@pytest.mark.parametrize(("body", "param"), [({"input": 5}, "body.input"), ([1], "body.input"), (b'"\xff"', None)])
async def test_other_bad_requests_are_refused_in_the_same_shape(body: Any, param: str | None) -> None:
    status, _, writes = await exchange(Mock(), body=body)
    error = json.loads(b"".join(writes))["error"]
    assert status == error["code"] == 400
    assert (error["type"], error["param"], list(error)) == ("Bad Request", param, ["message", "type", "param", "code"])


async def test_a_body_that_is_not_json_gets_no_scripted_reply() -> None:
    mock = Mock([Reply(text="scripted")])
    assert (await exchange(mock, body=b"{"))[0] == 400
    assert (await exchange(mock, body=b"{}"))[0] == 200


async def test_without_a_script_only_responses_are_posted() -> None:
    assert (await exchange(Mock(), path="/v1/chat/completions"))[0] == 404


def shape(value: Any) -> Any:
    """A value without its texts and numbers: members in order, and what kind of thing each is."""
    if isinstance(value, dict):
        return {name: shape(member) for name, member in value.items()}
    if isinstance(value, list):
        return [shape(member) for member in value]
    return type(value).__name__


def ordered(value: Any) -> str:
    return json.dumps(value)


async def test_its_own_answer_has_the_shape_of_vllms() -> None:
    recorded = next(capture for capture in captures("0.33") if capture.name == "11-reasoning" and not capture.stream)
    theirs = json.loads(recorded.received) | {"max_output_tokens": None}
    ours = await answer(Mock(), recorded.request and json.loads(recorded.request))
    assert ordered(shape(ours)) == ordered(shape(theirs))
    assert ours["model"] == "tiny"


async def test_its_own_stream_has_the_grammar_of_vllms() -> None:
    recorded = next(capture for capture in captures("0.33") if capture.name == "11-reasoning" and capture.stream)
    theirs = [json.loads(event.data) for event in Decoder(1024 * 1024).feed(recorded.received)]
    for event in theirs:
        event.get("response", {}).pop("max_output_tokens", None)
    ours = await events(Mock(), recorded.request and json.loads(recorded.request))
    for event in ours:
        event.get("response", {}).pop("max_output_tokens", None)

    def grammar(stream: list[dict[str, Any]]) -> list[str]:
        """Each event's shape, runs of equal deltas taken together."""
        shapes = [ordered([event["type"], event.get("output_index"), shape(event)]) for event in stream]
        return [one for before, one in zip(["", *shapes], shapes, strict=False) if one != before]

    assert grammar(ours) == grammar(theirs)
    assert [event["sequence_number"] for event in ours] == list(range(len(ours)))
    terminal = ours[-1]["response"]
    assert [event["item"] for event in ours if event["type"] == "response.output_item.done"] == terminal["output"]
    for item in terminal["output"]:
        deltas = [event["delta"] for event in ours if event.get("item_id") == item["id"] and "delta" in event]
        assert len(deltas) > 3
        assert "".join(deltas) == item["content"][0]["text"]


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ("Hello.", "1 input item; the last one said: Hello."),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "2 input items; the last one said: b"),
        ([{"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_image"}]}], "said: x"),
        ([{"type": "function_call_output", "call_id": "c", "output": "sunny"}], "said: sunny"),
        ([{"type": "function_call", "call_id": "c"}], "said: (function_call)"),
        (["?"], "said: ?"),
        ("\ud83d" + "x" * 300, "said: \ud83d" + "x" * 199),
    ],
)
async def test_its_own_answer_says_that_it_is_a_mocks_and_what_came(items: Any, said: str) -> None:
    body = {"input": items, "request_id": "resp_mine", "metadata": {"a": "b"}, "tools": [{"type": "function"}]}
    plain = await answer(Mock(), body)
    streamed = (await events(Mock(), body | {"stream": True}))[-1]["response"]
    for response in (plain, streamed):
        assert response["id"] == "resp_mine"
        text = response["output"][1]["content"][0]["text"]
        assert text.startswith("This is the rejoinder mock, not a model. It received ")
        assert text.endswith(said)
        assert "mock" in response["output"][0]["content"][0]["text"]
        assert (response["metadata"], response["tool_choice"], response["temperature"]) == ({"a": "b"}, "auto", 1.0)
        usage = response["usage"]
        assert usage["input_tokens"] > 0
        assert usage["output_tokens"] > usage["output_tokens_details"]["reasoning_tokens"] > 0
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


async def test_ids_are_fresh_in_each_of_its_own_answers() -> None:
    mock = Mock()
    answers = [await answer(mock, {"input": "a"}) for _ in range(2)]
    ids = [response["id"] for response in answers] + [item["id"] for response in answers for item in response["output"]]
    assert len(set(ids)) == 6
    assert [new_id.split("_")[0] for new_id in ids] == ["resp", "resp", "rs", "msg", "rs", "msg"]
