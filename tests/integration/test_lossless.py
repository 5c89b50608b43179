"""What comes from a client or an upstream is stored, shown and sent again byte for byte (DESIGN 4)."""

import base64
import json
from typing import Any

import pytest

from server.mock import Reply
from tests.application import Application, both_modes, events_of, message, reply, stored_rows
from tests.postgres import connected

# JSON texts of an output's or an input's member, each of which a decoder would change.
TEXTS = {
    "a NUL": r'"a\u0000b"',
    "lone surrogates": r'"\ud83d and \ude00 and \udfff\ud800"',
    "escapes of plain letters": r'"\u0041\/\u00e9"',
    "letters without escapes": '"é😀\u2028\x7f"',
    "a float that is whole": "1.0",
    "a float without end": "1e400",
    "a negative zero": "-0.0",
    "digits beyond a double": "0.1000000000000000055511151231257827",
    "an integer beyond 64 bits": "123456789012345678901234567890",
    "five thousand digits": "7" * 5_000,
    "an explicit null": "null",
    "duplicate keys": '{"a":1,"a":2,"b":{"c":null,"c":[]}}',
    "keys out of order": '{"z":1,"y":{"b":1,"a":2},"x":3}',
    "odd white space": '{ "a" :\t[ 1 ,2,\r\n 3 ]  , "b":{ } }',
    "deep nesting": "[" * 150 + "]" * 150,
    "an empty key": '{"":{"":0}}',
    "a key with a NUL": r'{"a\u0000":1}',
}


@both_modes
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_an_upstreams_item_keeps_every_byte(
    application: Application, emptied_database_url: str, stream: bool, text: str
) -> None:
    """In its own member, where nobody looks, and in the one that goes upstream again."""
    call = r'"id":"fc_1",  "type":"function_call","call_id":"call_1","name":"f","arguments":"{\"k\":\"\\u0000\"}"'
    item = f'{{"x_own": {text}, "status":"completed", {call}}}'
    # A raw line end in an event can only be white space, and is a space where it is sent in a line of data.
    as_event = item.replace("\r", " ").replace("\n", " ") if stream else item
    application.mock.replies = [reply(as_event, stream=stream), reply(message("Hi."), stream=False)]
    answer = await application.post({"model": "m", "input": "One", "stream": stream})
    assert answer.status_code == 200, answer.text
    response_id = application.sent()["request_id"]
    kept = as_event.encode()

    assert kept in answer.content
    assert kept in (await application.http.get(f"/v1/responses/{response_id}")).content
    [_, row] = (await stored_rows(emptied_database_url))["items"]
    assert row["body"].encode() == kept
    output = {"type": "function_call_output", "call_id": "call_1", "output": "x"}
    again = await application.post({"model": "m", "input": [output], "previous_response_id": response_id})
    listed = await application.http.get(f"/v1/responses/{again.json()['id']}/input_items")
    assert kept in listed.content
    assert rb'"arguments":"{\"k\":\"\\u0000\"}"' in application.mock.posts[-1].body


@both_modes
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_a_clients_item_keeps_every_byte(
    application: Application, emptied_database_url: str, stream: bool, text: str
) -> None:
    """The message's own text goes upstream as well, the member that nobody knows does not."""
    said = text if text.startswith('"') else '"Hi."'
    content = f'[{{"type":"input_text", "text":{said}}}]'
    item = (
        f'{{"x_own": {text},\n "type":"message","id":"msg_1","role":"user","status":"completed","content":{content}}}'
    )
    application.mock.replies = [reply(message("Hi."), stream=stream)]
    body = f'{{"model":"m","stream":{json.dumps(stream)},"input":[ {item} ]}}'
    assert (await application.post(body.encode())).status_code == 200
    response_id = application.sent()["request_id"]

    rows = (await stored_rows(emptied_database_url))["items"]
    assert rows[0]["body"] == item
    listed = await application.http.get(f"/v1/responses/{response_id}/input_items")
    assert item.encode() in listed.content
    await application.turn(input="Two", previous_response_id=response_id, stream=stream)
    for post in application.mock.posts:
        assert f'"content":{content}'.encode() in post.body
        assert b"x_own" not in post.body


@both_modes
@pytest.mark.parametrize("said", [text for text in TEXTS.values() if text.startswith('"')])
async def test_a_models_text_is_sent_again_as_it_was_written(application: Application, stream: bool, said: str) -> None:
    """Though parts are joined, and other members left out: what escapes it was written with stays."""
    part = f'{{"type":"output_text","text":{said},"annotations":[]}}'
    item = f'{{"id":"msg_1","type":"message","role":"assistant","status":"completed","content":[{part}]}}'
    thoughts = f'[{{"type":"reasoning_text","text":{said}}},{{"type":"reasoning_text","text":{said}}}]'
    thought = f'{{"id":"rs_1","type":"reasoning","summary":[],"content":{thoughts}}}'
    application.mock.replies = [reply(thought, item, stream=stream), reply(message("Hi."), stream=stream)]
    answer = await application.post({"model": "m", "input": "One", "stream": stream})
    for text in (item, thought):
        assert text.encode() in answer.content
    response_id = application.sent()["request_id"]
    await application.turn(input="Two", previous_response_id=response_id, stream=stream)
    assert part.encode() in application.mock.posts[-1].body
    joined = f"{said[:-1]}\\n{said[1:]}"
    assert f'{{"type":"reasoning_text","text":{joined}}}'.encode() in application.mock.posts[-1].body


@both_modes
async def test_an_item_of_twelve_megabytes(application: Application, stream: bool) -> None:
    url = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 36_000).decode()
    assert len(url) > 12_000_000
    image = {"type": "input_image", "image_url": url, "detail": "auto"}
    item = {"type": "message", "role": "user", "content": [image], "id": "msg_1", "status": "completed"}
    application.mock.replies = [reply(message("A gradient."), stream=stream)]
    first = await application.turn(input=[item], stream=stream)
    assert (await application.listed(first["id"])) == [item]
    await application.turn(input="And now?", previous_response_id=first["id"], stream=stream)
    assert application.sent()["input"][0]["content"] == [image]


@both_modes
async def test_items_of_a_type_that_nobody_knows(application: Application, stream: bool) -> None:
    """They are kept, shown and counted like any other, and are nothing that this upstream can read."""
    known = {"id": "msg_1", "type": "message", "role": "user", "content": "One"}
    from_client = {"type": "x_vendor:memo", "id": "memo_1", "note": None, "call_id": "call_9"}
    from_upstream = {"id": "new_1", "type": "brand_new_call", "status": "in_progress", "body": {"a": None}}
    application.mock.replies = [reply(json.dumps(from_upstream), message("Hi."), stream=stream)]
    first = await application.turn(input=[known, from_client], stream=stream)
    assert first["output"][0] == from_upstream
    second = await application.turn(input="Two", previous_response_id=first["id"], stream=stream)
    listed = await application.listed(second["id"])
    assert [item["id"] for item in listed[:3]] == ["msg_1", "memo_1", "new_1"]
    assert listed[1:3] == [from_client, from_upstream]
    assert [item["type"] for item in application.sent()["input"]] == ["message"] * 3


@both_modes
async def test_explicit_nulls_are_kept_and_not_sent(application: Application, stream: bool) -> None:
    asked = {
        "type": "message", "id": None, "role": "user", "status": None, "phase": None, "name": None,
        "content": [{"type": "input_text", "text": "One", "prompt_cache_breakpoint": None}],
    }  # fmt: skip
    called = {
        "type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}",
        "namespace": None, "caller": None, "status": "completed",
    }  # fmt: skip
    answered = {"type": "function_call_output", "id": None, "call_id": "call_1", "output": "x", "status": None}
    application.mock.replies = [reply(called, stream=stream), reply(message("Hi."), stream=stream)]
    first = await application.turn(input=[asked], stream=stream)
    assert first["output"] == [called]
    second = await application.turn(input=[answered], previous_response_id=first["id"], stream=stream)
    listed = await application.listed(second["id"])
    minted = [item.pop("id") for item in (listed[0], listed[2])]
    assert [prefix for prefix, _, _ in (item_id.partition("_") for item_id in minted)] == ["msg", "fco"]
    assert listed[0] == {name: value for name, value in asked.items() if name != "id"} | {"status": "completed"}
    assert listed[1] == called
    assert listed[2] == {name: value for name, value in answered.items() if name != "id"} | {"status": "completed"}
    assert application.sent()["input"] == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "One"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "x"},
    ]


async def test_body_terminal_event_and_get_are_the_same_bytes(application: Application) -> None:
    content = r'[{"type":"output_text","text":"\u00e9","annotations":[]}]'
    item = f'{{ "id":"msg_1", "type":"message","role":"assistant","status":"completed","x":1.0,"content":{content}}}'
    application.mock.replies = [reply(item, stream=False, x_own=None), reply(item, stream=True, x_own=None)]
    plain = await application.post({"model": "m", "input": "One", "metadata": {"k": "v"}})
    streamed = await application.post({"model": "m", "input": "One", "metadata": {"k": "v"}, "stream": True})
    final = streamed.content.split(b"\n\n")[-3].partition(b'"response":')[2].removesuffix(b"}")
    for body in (plain.content, final):
        got = await application.http.get(f"/v1/responses/{json.loads(body)['id']}")
        assert got.content == body
    assert _without_ids(plain.json()) == _without_ids(json.loads(final))
    assert list(plain.json()) == list(json.loads(final))


def _without_ids(response: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in response.items() if name not in ("id", "completed_at")}


async def test_the_request_is_echoed_as_it_was_written(application: Application) -> None:
    members = (
        '"metadata": { "b":"2", "a":"\\u00e9" }, "temperature":0.70, "top_p":1, "x_own": {"z":1.0,"a":[null]}, '
        '"tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{"z":{},"a":{}}}}]'
    )
    body = f'{{"model":"m","input":"One",{members}}}'.encode()
    answer = await application.post(body)
    response_id = answer.json()["id"]
    for text in (answer.content, (await application.http.get(f"/v1/responses/{response_id}")).content):
        assert b'"metadata":{ "b":"2", "a":"\\u00e9" }' in text
        assert b'"temperature":0.70' in text
        assert b'"top_p":1,' in text
        assert b'"x_own":{"z":1.0,"a":[null]}' in text
        assert b'"parameters":{"type":"object","properties":{"z":{},"a":{}}}' in text
    assert b'"x_own":{"z":1.0,"a":[null]}' in application.mock.posts[0].body


@both_modes
async def test_what_is_shown_of_a_turn_does_not_change_with_time(application: Application, stream: bool) -> None:
    application.mock.replies = [reply(message("Hi."), stream=stream)]
    first = await application.turn(input="One", stream=stream)
    path = f"/v1/responses/{first['id']}"
    before = [(await application.http.get(path + rest)).content for rest in ("", "/input_items")]
    await application.turn(input="Two", previous_response_id=first["id"], stream=stream)
    assert [(await application.http.get(path + rest)).content for rest in ("", "/input_items")] == before


async def test_text_is_stored_as_text(application: Application, emptied_database_url: str) -> None:
    """In no type of Postgres that reorders, rewrites or refuses."""
    async with connected(emptied_database_url) as connection:
        types = await connection.fetch(
            "select distinct data_type from information_schema.columns"
            " where table_schema = 'public' and column_name in ('body', 'fidelity')"
        )
    assert [kind for (kind,) in types] == ["text"]


async def test_the_events_of_a_stream_keep_what_they_carry(application: Application) -> None:
    """What our stream does not number or name passes as it came."""
    frames = reply(message("Hi."), stream=True).sse_chunks or []
    frames[4] = frames[4].replace('"logprobs": []', r'"logprobs" :[ ],"x_own":1.0,"y":"\u0000"')
    application.mock.replies = [Reply(sse_chunks=frames)]
    answer = await application.post({"model": "m", "input": "One", "stream": True})
    assert frames[4].encode() in answer.content
    assert len(events_of(answer.content)) == 9
