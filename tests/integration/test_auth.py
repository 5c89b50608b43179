"""API keys and tenants through the running server: who is let in, what he may see, and what goes upstream for him."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import httpx
import openai
import pytest

from server.protocol import keys
from server.store.database import Database
from server.store.keys import ApiKeys, TenantLimits
from tests.application import (
    UPSTREAM_API_KEY,
    Application,
    both_modes,
    events_of,
    message,
    reasoning,
    reply,
    running,
    stored_rows,
)
from tests.harness import until
from tests.postgres import connected, until_true
from tests.test_compatibility import served_routes

WITHOUT_KEY = {
    "GET /healthz",
    "GET /health",
    "GET /readyz",
    "GET /metrics",
    "GET /openapi.json",
}
NO_KEY_MESSAGE = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
    "(i.e. Authorization: Bearer YOUR_KEY)."
)


class Tenants:
    """A running server and the keys that it knows: `ada` and `bob` are two tenants', each as headers."""

    def __init__(self, application: Application, api_keys: ApiKeys) -> None:
        self.application = application
        self._api_keys = api_keys
        self.ada: dict[str, str] = {}
        self.bob: dict[str, str] = {}

    async def key(self, tenant: str, limits: TenantLimits | None = None) -> dict[str, str]:
        key = keys.new_key()
        assert await self._api_keys.create(key, tenant)
        assert await self._api_keys.limit(tenant, limits or TenantLimits())
        await self.application.read_keys()
        return {"authorization": f"Bearer {key}"}

    async def turn(self, headers: dict[str, str], **members: Any) -> dict[str, Any]:
        answer = await self.application.post({"model": "m", **members}, **headers)
        assert answer.status_code == 200, answer.text
        if members.get("stream"):
            response: dict[str, Any] = events_of(answer.content)[-1]["response"]
            return response
        whole: dict[str, Any] = answer.json()
        return whole


@pytest.fixture
async def tenants(database_url: str, database: Database) -> AsyncIterator[Tenants]:
    async with running(database_url) as application:
        made = Tenants(application, ApiKeys(database))
        made.ada, made.bob = await made.key("ada"), await made.key("bob")
        yield made


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    return error


# --- who is let in


async def test_without_a_key_everybody_is_the_one_tenant(application: Application, emptied_database_url: str) -> None:
    application.mock.replies = [reply(message("Hi."), stream=False)]
    made = await application.turn(input="One")
    for headers in ({}, {"authorization": "Bearer sk-anything"}, {"authorization": "nonsense"}):
        answer = await application.http.get(f"/v1/responses/{made['id']}", headers=headers)
        assert answer.status_code == 200
    assert {row["tenant_id"] for row in (await stored_rows(emptied_database_url))["responses"]} == {1}


@pytest.mark.parametrize("given", ["none", "empty", "basic", "unknown", "prefix", "half", "revoked"])
async def test_who_has_no_good_key_is_refused(tenants: Tenants, database: Database, given: str) -> None:
    good = tenants.ada["authorization"]
    if given == "revoked":
        assert await ApiKeys(database).revoke(keys.prefix_of(good.removeprefix("Bearer ")))
        await tenants.application.read_keys()
    headers = {
        "none": {},
        "empty": {"authorization": ""},
        "basic": {"authorization": good.replace("Bearer", "Basic")},
        "unknown": {"authorization": f"Bearer {keys.new_key()}"},
        "prefix": {"authorization": good[: len("Bearer ") + keys.PREFIX_LENGTH]},
        "half": {"authorization": good[:-10] + "0123456789"},
        "revoked": {"authorization": good},
    }[given]
    has_key = given in ("unknown", "prefix", "half", "revoked")
    for answer in (
        await tenants.application.post({"model": "m", "input": "q"}, **headers),
        await tenants.application.http.get("/v1/responses/resp_1", headers=headers),
    ):
        assert answer.status_code == 401
        assert answer.json() == {
            "error": {
                "message": "Incorrect API key provided." if has_key else NO_KEY_MESSAGE,
                "type": "invalid_request_error",
                "param": None,
                "code": "invalid_api_key",
            }
        }
        assert answer.headers["www-authenticate"] == ('Bearer error="invalid_token"' if has_key else "Bearer")
        assert answer.headers["x-request-id"]
    assert tenants.application.mock.received == []


async def test_every_route_asks_for_a_key_but_those_of_operation(tenants: Tenants) -> None:
    for route in sorted(served_routes()):
        method, path = route.split(" ")
        filled = re.sub(r"\{\w+}", "x", path)
        answer = await tenants.application.http.request(method, filled)
        assert (answer.status_code == 401) is (route not in WITHOUT_KEY), route
        if method == "GET":
            assert (await tenants.application.http.head(filled)).status_code == answer.status_code


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/conversations"])
async def test_a_body_without_a_key_is_not_waited_for(tenants: Tenants, path: str) -> None:
    """However large it says it is."""
    reader, writer = await asyncio.open_connection("127.0.0.1", tenants.application.port)
    writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 60000000\r\n\r\n".encode())
    async with asyncio.timeout(10):
        assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
    writer.close()


async def test_the_official_client_raises_its_own_error(tenants: Tenants) -> None:
    with pytest.raises(openai.AuthenticationError) as raised:
        await tenants.application.client.responses.create(model="m", input="q")
    assert raised.value.code == "invalid_api_key"


async def test_when_a_key_was_used_last_is_known(tenants: Tenants, database_url: str) -> None:
    await tenants.turn(tenants.ada, input="One")
    prefix = keys.prefix_of(tenants.ada["authorization"].removeprefix("Bearer "))
    async with connected(database_url) as connection:
        await until_true(connection, "select last_used_at is not null from api_keys where prefix = $1", prefix)
        assert await connection.fetchval("select count(*) from api_keys where last_used_at is not null") == 1


async def test_a_request_says_whose_it_is_in_its_line(tenants: Tenants) -> None:
    await tenants.turn(tenants.bob, input="One")
    await tenants.application.post({"model": "m", "input": "q"})
    lines = [json.loads(line) for line in tenants.application.log.splitlines()]
    told = [(line["status"], line.get("tenant_id")) for line in lines if line["event"] == "request"]
    # The open tenant is the first.
    assert told == [(200, 3), (401, None)]
    for headers in (tenants.ada, tenants.bob):
        assert headers["authorization"].removeprefix("Bearer ") not in tenants.application.log


# --- what he may see


Ids = dict[str, str]


@pytest.fixture
async def adas(tenants: Tenants) -> Ids:
    """The ids of all that there can be of a tenant."""
    application, ada = tenants.application, tenants.ada
    application.mock.replies = [reply(reasoning("Hm."), message("Hi."), stream=False)]
    first = await tenants.turn(ada, input="One")
    second = await tenants.turn(ada, input="Two", previous_response_id=first["id"])
    made = await application.http.post(
        "/v1/conversations", json={"items": [{"role": "user", "content": "c"}]}, headers=ada
    )
    conversation_id = made.json()["id"]
    listed = await application.http.get(f"/v1/conversations/{conversation_id}/items", headers=ada)
    return {
        "response_id": second["id"],
        "ancestor_id": first["id"],
        "conversation_id": conversation_id,
        "item_id": listed.json()["data"][0]["id"],
        "output_id": second["output"][1]["id"],
    }


# Each names one id: of which kind, the method, the path and the body. OWN is a conversation of whoever asks.
ASKED: dict[str, tuple[str, str, str, Callable[[str], Any]]] = {
    "response": ("response_id", "GET", "/v1/responses/{}", lambda _: None),
    "input items": ("response_id", "GET", "/v1/responses/{}/input_items", lambda _: None),
    "cancel": ("response_id", "POST", "/v1/responses/{}/cancel", lambda _: None),
    "operation": ("response_id", "POST", "/v1/responses/{}", lambda _: {}),
    "preview of a deletion": ("response_id", "DELETE", "/v1/responses/{}?cascade=true&dry_run=true", lambda _: None),
    "continued": (
        "response_id",
        "POST",
        "/v1/responses",
        lambda one: {"model": "m", "input": "q", "previous_response_id": one},
    ),
    "continued and not stored": (
        "response_id",
        "POST",
        "/v1/responses",
        lambda one: {"model": "m", "input": "q", "previous_response_id": one, "store": False},
    ),
    "continued as a stream": (
        "response_id",
        "POST",
        "/v1/responses",
        lambda one: {"model": "m", "input": "q", "previous_response_id": one, "stream": True},
    ),
    "replayed": ("response_id", "POST", "/v1/responses/replay", lambda one: {"response_id": one}),
    "tried": (
        "response_id",
        "POST",
        "/v1/responses/replay",
        lambda one: {"model": "m", "input": "q", "previous_response_id": one},
    ),
    "referred to": (
        "output_id",
        "POST",
        "/v1/responses",
        lambda one: {"model": "m", "input": [{"type": "item_reference", "id": one}]},
    ),
    "referred to in a list": (
        "item_id",
        "POST",
        "/v1/conversations",
        lambda one: {"items": [{"type": "item_reference", "id": one}]},
    ),
    "conversation": ("conversation_id", "GET", "/v1/conversations/{}", lambda _: None),
    "metadata": ("conversation_id", "POST", "/v1/conversations/{}", lambda _: {"metadata": {}}),
    "items": ("conversation_id", "GET", "/v1/conversations/{}/items", lambda _: None),
    "more items": (
        "conversation_id",
        "POST",
        "/v1/conversations/{}/items",
        lambda _: {"items": [{"role": "user", "content": "x"}]},
    ),
    "said in": (
        "conversation_id",
        "POST",
        "/v1/responses",
        lambda one: {"model": "m", "input": "q", "conversation": one},
    ),
    "said in and not stored": (
        "conversation_id",
        "POST",
        "/v1/responses",
        lambda one: {"model": "m", "input": "q", "conversation": {"id": one}, "store": False},
    ),
    "item": ("item_id", "GET", "/v1/conversations/OWN/items/{}", lambda _: None),
    "removal of an item": ("item_id", "DELETE", "/v1/conversations/OWN/items/{}", lambda _: None),
    "a page behind an item": ("item_id", "GET", "/v1/conversations/OWN/items?after={}", lambda _: None),
    # Last, since they would end what the others ask for.
    "deletion": ("response_id", "DELETE", "/v1/responses/{}", lambda _: None),
    "deletion of all behind": ("ancestor_id", "DELETE", "/v1/responses/{}?cascade=true", lambda _: None),
    "deletion of a conversation": ("conversation_id", "DELETE", "/v1/conversations/{}", lambda _: None),
}
UNKNOWN = {
    "response_id": "resp_" + "0" * 48,
    "ancestor_id": "resp_" + "1" * 48,
    "conversation_id": "conv_" + "0" * 48,
    "item_id": "msg_" + "0" * 48,
    "output_id": "msg_" + "1" * 48,
}


async def test_what_is_anothers_is_answered_like_what_does_not_exist(tenants: Tenants, adas: Ids) -> None:
    application = tenants.application
    made = await application.http.post("/v1/conversations", json={}, headers=tenants.bob)
    own = made.json()["id"]
    before, turns = await everything_of(tenants, adas), len(application.mock.posts)

    async def answer(name: str, one: str, headers: dict[str, str]) -> tuple[int, str, set[str]]:
        _, method, path, body = ASKED[name]
        url = path.replace("OWN", own).format(one)
        got = await application.http.request(method, url, json=body(one), headers=headers)
        return got.status_code, got.text.replace(one, "ID"), set(got.headers)

    for name, (kind, *_) in ASKED.items():
        theirs = await answer(name, adas[kind], tenants.bob)
        unknown = await answer(name, UNKNOWN[kind], tenants.bob)
        assert theirs == unknown, name
        assert theirs[0] in (400, 404, 501), (name, theirs)
    assert await everything_of(tenants, adas) == before
    assert len(application.mock.posts) == turns


def test_every_route_with_an_id_is_walked() -> None:
    walked = {f"{method} {path.split('?')[0]}" for _, method, path, _ in ASKED.values()}
    generic = {re.sub(r"\{\w*}|OWN", "{}", one) for one in walked}
    with_id = {re.sub(r"\{\w+}", "{}", route) for route in served_routes() if "{" in route}
    # Models are everybody's.
    assert with_id - generic == {"GET /v1/models/{}"}


async def everything_of(tenants: Tenants, adas: Ids) -> list[Any]:
    """What the owner of these ids reads of them."""
    urls = (
        f"/v1/responses/{adas['response_id']}",
        f"/v1/responses/{adas['ancestor_id']}",
        f"/v1/responses/{adas['response_id']}/input_items",
        f"/v1/conversations/{adas['conversation_id']}",
        f"/v1/conversations/{adas['conversation_id']}/items",
    )
    answers = [await tenants.application.http.get(url, headers=tenants.ada) for url in urls]
    assert [answer.status_code for answer in answers] == [200] * len(urls)
    return [answer.json() for answer in answers]


@both_modes
async def test_a_remembered_history_is_its_tenants_only(tenants: Tenants, adas: Ids, stream: bool) -> None:
    """Once more, when the history is in memory: the owner has just gone on with it."""
    tenants.application.mock.replies = [reply(message("Hi."), stream=stream)]
    asked = {"input": "q", "stream": stream, "previous_response_id": adas["response_id"]}
    await tenants.turn(tenants.ada, **asked)
    answer = await tenants.application.post({"model": "m", **asked}, **tenants.bob)
    assert (answer.status_code, error_of(answer)["code"]) == (400, "previous_response_not_found")


async def test_tenants_may_have_the_same_item_ids(tenants: Tenants) -> None:
    listed = []
    for name, headers in (("ada", tenants.ada), ("bob", tenants.bob)):
        item = {"type": "message", "id": "msg_same", "role": "user", "content": name}
        answer = await tenants.application.http.post("/v1/conversations", json={"items": [item]}, headers=headers)
        asked = {"model": "m", "input": [{"type": "item_reference", "id": "msg_same"}], "conversation": None}
        tenants.application.mock.replies = [reply(message("Hi."), stream=False)]
        assert answer.status_code == 200
        assert (await tenants.application.post(asked, **headers)).status_code == 200
        listed.append(tenants.application.sent()["input"][0]["content"])
    assert listed == ["ada", "bob"]


async def test_two_tenants_may_use_one_idempotency_key(tenants: Tenants) -> None:
    tenants.application.mock.replies = [reply(message("Hi."), stream=False)]
    asked = {"model": "m", "input": "q"}
    made = [
        (await tenants.application.post(asked, **{"idempotency-key": "same"}, **headers)).json()["id"]
        for headers in (tenants.ada, tenants.bob, tenants.ada, tenants.bob)
    ]
    assert made[0] != made[1]
    assert made[:2] == made[2:]
    assert len(tenants.application.mock.posts) == 2


async def test_two_keys_of_a_tenant_see_the_same(tenants: Tenants, adas: Ids) -> None:
    other = await tenants.key("ada")
    answer = await tenants.application.http.get(f"/v1/responses/{adas['response_id']}", headers=other)
    assert answer.status_code == 200


async def test_what_was_stored_before_the_first_key_is_the_default_tenants(
    database_url: str, database: Database
) -> None:
    async with running(database_url, [reply(message("Hi."), stream=False)]) as application:
        made = await application.turn(input="One")
        tenants = Tenants(application, ApiKeys(database))
        default, other = await tenants.key("default"), await tenants.key("other")
        url = f"/v1/responses/{made['id']}"
        statuses = [(await application.http.get(url, headers=headers)).status_code for headers in ({}, default, other)]
        assert statuses == [401, 200, 404]
        await tenants.turn(default, input="Two", previous_response_id=made["id"])


# --- what goes upstream for him


UPSTREAMS = """
[[upstreams]]
name = "keeps"
urls = ["URL"]
profile = "vllm"
models = ["keeps"]
api_key = "upstream-key-that-nobody-may-see"

[[upstreams]]
name = "forwards"
urls = ["URL"]
profile = "openai"
models = ["forwards"]
forward_authorization = true
api_key = "upstream-key-that-nobody-may-see"
"""


@both_modes
@pytest.mark.parametrize("is_passed", [False, True], ids=["turn", "passed through"])
async def test_a_clients_key_is_sent_on_only_where_the_upstream_says_so(
    database_url: str, database: Database, stream: bool, is_passed: bool
) -> None:
    settings = {"pass_through": "/v1/embeddings"}
    async with running(
        database_url, [reply(message("Hi."), stream=stream)], upstreams=UPSTREAMS, **settings
    ) as application:
        ada = await Tenants(application, ApiKeys(database)).key("ada")
        sent = {}
        for model in ("keeps", "forwards"):
            path = "/v1/embeddings" if is_passed else "/v1/responses"
            asked = {"model": model, "input": "q", "stream": stream}
            assert (await application.http.post(path, json=asked, headers=ada)).status_code == 200
            sent[model] = application.mock.posts[-1].headers["authorization"]
    assert sent == {"keeps": f"Bearer {UPSTREAM_API_KEY}", "forwards": ada["authorization"]}


async def test_each_of_several_tenants_has_a_cache_salt_of_its_own(database_url: str, database: Database) -> None:
    async with running(database_url, [reply(message("Hi."), stream=False)]) as application:
        tenants = Tenants(application, ApiKeys(database))
        default = await tenants.key("default")
        await tenants.turn(default, input="One")
        assert "cache_salt" not in application.sent()
        ada = await tenants.key("ada")
        salts = []
        for headers in (default, ada, ada):
            await tenants.turn(headers, input="One")
            salts.append(application.sent()["cache_salt"])
        assert salts[0] != salts[1] == salts[2]
        assert all(isinstance(salt, str) and len(salt) >= 32 for salt in salts)
        # A client's own would set him apart from himself, or put him beside another.
        await tenants.turn(ada, input="One", cache_salt=salts[0])
        assert application.sent()["cache_salt"] == salts[1]
        assert salts[1] not in application.log


async def test_other_model_servers_get_no_cache_salt(database_url: str, database: Database) -> None:
    async with running(database_url, [reply(message("Hi."), stream=False)], upstreams=UPSTREAMS) as application:
        tenants = Tenants(application, ApiKeys(database))
        await tenants.key("default")
        ada = await tenants.key("ada")
        answer = await application.post({"model": "forwards", "input": "q"}, **ada)
        assert answer.status_code == 200
        assert "cache_salt" not in application.sent()


# --- how much he may ask for


@pytest.mark.parametrize(
    ("minute", "requests", "total"),
    [(100, 2, 5), (99, 2, 5), (101, 2, 2), (98, 2, 2), (40, 2, 2)],
    ids=["the same", "a clock a little behind", "the next", "far ahead before", "an hour ahead before"],
)
async def test_requests_of_a_minute_are_added(database: Database, minute: int, requests: int, total: int) -> None:
    """What a clock that was far ahead has left does not lock a key out until that minute comes."""
    keys_of, prefix = ApiKeys(database), f"rj-{uuid4().hex[:9]}"
    assert await keys_of.count(1, prefix, 100, 3) == 3
    assert await keys_of.count(1, prefix, minute, requests) == total
    # And so in the minute that it is now.
    assert await keys_of.count(1, prefix, max(minute, 100) if minute >= 99 else minute, 1) == total + 1


async def test_a_request_too_many_is_told_when_to_come_back(tenants: Tenants) -> None:
    limited = await tenants.key("carol", TenantLimits(requests_per_minute=3))
    http = tenants.application.http
    # A minute may begin in between, in which there are three again.
    statuses = [(await http.get("/v1/responses/resp_1", headers=limited)).status_code for _ in range(7)]
    assert statuses.count(429) in (1, 4)
    tenants.application.mock.replies = [reply(message("Hi."), stream=False)]
    answers = [await tenants.application.post({"model": "m", "input": "q"}, **limited) for _ in range(4)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    for answer in refused:
        error = error_of(answer)
        assert (error["type"], error["param"], error["code"]) == ("rate_limit_error", None, "rate_limit_exceeded")
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert "3 requests per minute" in error["message"]
    # Nobody else is held up by it.
    assert (await tenants.application.post({"model": "m", "input": "q"}, **tenants.ada)).status_code == 200


@both_modes
async def test_turns_of_a_key_that_are_open_are_bounded(tenants: Tenants, stream: bool) -> None:
    limited = await tenants.key("carol", TenantLimits(open_turns_max=2))
    application = tenants.application
    application.mock.replies = [reply(message("Hi."), stream=stream)]
    asked = {"model": "m", "input": "q", "stream": stream}
    with application.upstream_held():
        open_turns = [asyncio.create_task(application.post(asked, **limited)) for _ in range(2)]
        await until(lambda: len(application.mock.posts) == 2)
        refused = await application.post(asked, **limited)
        assert (refused.status_code, error_of(refused)["code"]) == (429, "rate_limit_exceeded")
        assert refused.headers["retry-after"] == "1"
        other = asyncio.create_task(application.post(asked, **tenants.ada))
        await until(lambda: len(application.mock.posts) == 3)
    answers = await asyncio.gather(*open_turns, other)
    assert [answer.status_code for answer in answers] == [200] * 3
    assert (await application.post(asked, **limited)).status_code == 200


async def test_a_tenants_budget_narrows_that_of_its_upstream(database_url: str, database: Database) -> None:
    settings = {"output_tokens_max": 100, "history_items_max": 50}
    async with running(database_url, [reply(message("Hi."), stream=False)], **settings) as application:
        tenants = Tenants(application, ApiKeys(database))
        free = await tenants.key("free")
        narrow = await tenants.key("narrow", TenantLimits(output_tokens_max=20, history_items_max=3))
        wide = await tenants.key("wide", TenantLimits(output_tokens=30, output_tokens_max=500))
        asked = {"model": "m", "input": "q"}
        for headers, tokens, is_taken in (
            (free, 100, True),
            (free, 101, False),
            (narrow, 20, True),
            (narrow, 21, False),
            (wide, 100, True),
            (wide, 101, False),
        ):
            answer = await application.post({**asked, "max_output_tokens": tokens}, **headers)
            assert answer.status_code == (200 if is_taken else 400), (tokens, answer.text)
            if not is_taken:
                assert error_of(answer)["param"] == "max_output_tokens"
        for headers, tokens in ((free, 100), (narrow, 20), (wide, 30)):
            await tenants.turn(headers, input="q")
            assert application.sent()["max_output_tokens"] == tokens
        first = await tenants.turn(narrow, input="q")
        second = await application.post({**asked, "previous_response_id": first["id"]}, **narrow)
        third = await application.post({**asked, "previous_response_id": second.json()["id"]}, **narrow)
        assert [second.status_code, third.status_code] == [200, 400]
        assert error_of(third)["code"] == "context_length_exceeded"
        assert "3 items" in error_of(third)["message"]


async def test_the_rounds_of_a_tenants_turn_cost_at_most_what_it_may(database_url: str, database: Database) -> None:
    usage = {"input_tokens": 30, "output_tokens": 20, "total_tokens": 50}
    upstreams = UPSTREAMS.replace('models = ["keeps"]', 'models = ["keeps"]\ncontinue_reasoning_only = 5')
    replies = [reply(reasoning("Hm."), stream=False, usage=usage)]
    async with running(database_url, replies, upstreams=upstreams) as application:
        tenants = Tenants(application, ApiKeys(database))
        narrow = await tenants.key("narrow", TenantLimits(total_tokens_max=50))
        answer = await application.post({"model": "keeps", "input": "q"}, **narrow)
        assert (answer.status_code, len(application.mock.posts)) == (502, 1)
        assert "Its 50 tokens are used up" in error_of(answer)["message"]
        free = await tenants.key("free")
        await application.post({"model": "keeps", "input": "q"}, **free)
        assert len(application.mock.posts) == 1 + 6
