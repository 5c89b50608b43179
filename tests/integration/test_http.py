"""HTTP as odd clients speak it: offers of other protocols, and ids that are paths of their own."""

import asyncio
import json
import re
from typing import Any

import openai
import pytest

from tests.application import Application, reply

BODY = json.dumps({"metadata": {"a": "b"}, "items": [{"role": "user", "content": "keep me"}]}).encode()
OFFERS = {
    "curl's": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
    "Java's": b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAA\r\nUpgrade: h2c\r\n",
    "a WebSocket's": b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n",
}


async def exchanged(application: Application, *pieces: bytes) -> tuple[int, dict[str, Any]]:
    """The status and body of the answer to a request that is sent in these pieces."""
    reader, writer = await asyncio.open_connection("127.0.0.1", application.port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.02)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    length = next(
        int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    body = json.loads(await reader.readexactly(length))
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), body


def head(path: str, offer: bytes, framing: bytes) -> bytes:
    line = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode()
    return line + offer + framing + b"\r\n"


@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS.keys())
@pytest.mark.parametrize("cut", ["whole", "body apart", "in pieces"])
@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_a_client_that_offers_another_protocol_is_heard(
    application: Application, offer: bytes, cut: str, framing: str
) -> None:
    body = BODY if framing == "length" else b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    how = b"Content-Length: %d\r\n" % len(BODY) if framing == "length" else b"Transfer-Encoding: chunked\r\n"
    first = head("/v1/conversations", offer, how)
    pieces = {
        "whole": [first + body],
        "body apart": [first, body],
        "in pieces": [first[:50], first[50:] + body[:10], body[10:40], body[40:]],
    }[cut]
    status, conversation = await exchanged(application, *pieces)
    assert (status, conversation["metadata"]) == (200, {"a": "b"})
    [item] = await application.conversed(conversation["id"])
    assert item["content"] == [{"type": "input_text", "text": "keep me"}]


async def test_an_offer_may_come_with_every_request_of_a_connection(application: Application) -> None:
    application.mock.replies = [reply(stream=False)]
    body = b'{"model":"m","input":"a"}'
    request = head("/v1/responses", OFFERS["curl's"], b"Content-Length: %d\r\n" % len(body)) + body
    reader, writer = await asyncio.open_connection("127.0.0.1", application.port)
    for _ in range(3):
        writer.write(request)
        answered = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert answered.startswith(b"HTTP/1.1 200 ")
        length = re.search(rb"content-length: (\d+)", answered)
        assert length is not None
        await asyncio.wait_for(reader.readexactly(int(length[1])), 5)
    writer.close()
    assert len(application.mock.posts) == 3


# --- ids in a path

ODD_IDS = ["x/", "/x", "a/b", "//", "a%2Fb", "a b", "é", "?", "a#b"]


async def test_an_items_id_is_a_path_of_its_own(application: Application) -> None:
    conversation_id = await application.converse(
        *({"role": "user", "content": item_id, "id": item_id} for item_id in ["x", *ODD_IDS])
    )
    items = application.client.conversations.items
    for item_id in ODD_IDS:
        found = await items.retrieve(item_id, conversation_id=conversation_id)
        assert found.to_dict()["content"] == [{"type": "input_text", "text": item_id}]
    for number, item_id in enumerate(ODD_IDS):
        await items.delete(item_id, conversation_id=conversation_id)
        assert [item["id"] for item in await application.conversed(conversation_id)] == ["x", *ODD_IDS[number + 1 :]]


async def test_what_is_behind_a_slash_is_no_part_of_a_responses_id(application: Application) -> None:
    turn = await application.turn(input="One")
    for odd in (f"{turn['id']}/", f"/{turn['id']}"):
        for call in (application.client.responses.retrieve, application.client.responses.delete):
            with pytest.raises(openai.NotFoundError):
                await call(odd)
    assert (await application.client.responses.retrieve(turn["id"])).id == turn["id"]


async def test_what_is_behind_a_slash_is_no_part_of_a_conversations_id(application: Application) -> None:
    conversation_id = await application.converse()
    for odd in (f"{conversation_id}/", f"/{conversation_id}"):
        with pytest.raises(openai.NotFoundError):
            await application.client.conversations.delete(odd)
    assert (await application.client.conversations.retrieve(conversation_id)).id == conversation_id
