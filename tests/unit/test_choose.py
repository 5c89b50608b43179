"""Which upstream serves a model, and which of its replicas a chain."""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from server import errors
from server.errors import ApiError
from server.protocol.profile import VLLM
from server.upstream.choose import DEAD_S, Upstream, Upstreams


class Client:
    """A replica that answers with its own URL, or can't be reached."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self.is_down = False
        self.tried = 0
        self.refusals: list[ApiError] = []

    async def create(self, path: str, body: bytes, model: str) -> bytes:
        self.tried += 1
        if self.refusals:
            raise self.refusals.pop()
        if self.is_down:
            raise errors.upstream_unreachable()
        return self.base_url.encode()

    @contextlib.asynccontextmanager
    async def passed(self, path: str, body: bytes, headers: dict[str, str]) -> AsyncIterator[str]:
        self.tried += 1
        yield self.base_url


def upstream(*clients: Client, now_s: Any = lambda: 0.0, **members: Any) -> Upstream:
    given = {"name": "u", "profile": VLLM, "replicas": clients or [Client("a")]}
    return Upstream(**(given | members), now_s=now_s)  # type: ignore[arg-type]


def chosen(model: str) -> str | None:
    upstreams = Upstreams(
        [
            upstream(name="exact", models=["qwen-7b"]),
            upstream(name="short", models=["q*"]),
            upstream(name="long", models=["qwen*", "llama*"]),
            upstream(name="default", models=[], is_default=True),
        ]
    )
    return upstreams.of(model).name


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("qwen-7b", "exact"),
        ("qwen-70b", "long"),
        ("qwe", "short"),
        ("llama", "long"),
        ("llama*", "long"),
        ("gpt", "default"),
        ("Qwen-7b", "default"),
    ],
)
def test_a_model_is_served_by_its_name_its_longest_beginning_or_the_default(model: str, name: str) -> None:
    assert chosen(model) == name


def test_a_model_that_nobody_serves_is_refused() -> None:
    with pytest.raises(ApiError) as refused:
        Upstreams([upstream(models=["a"])]).of("b")
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "model_not_found", "model")


async def test_a_chain_keeps_to_one_replica_and_chains_spread() -> None:
    clients = [Client(name) for name in "abc"]
    equal = upstream(*clients)
    first = [await equal.create([], "m", f"resp_{number}") for number in range(90)]
    assert first == [await equal.create([], "m", f"resp_{number}") for number in range(90)]
    assert min(Counter(first).values()) > 10


async def test_what_is_handed_on_unread_spreads_over_the_replicas() -> None:
    clients = [Client(name) for name in "abc"]
    equal = upstream(*clients)
    for _ in range(90):
        async with equal.passed("/embeddings", b"", {}):
            pass
    assert min(client.tried for client in clients) > 10


async def test_a_dead_replica_is_passed_over_and_only_its_chains_move() -> None:
    clients = [Client(name) for name in "abc"]
    now_s = [0.0]
    equal = upstream(*clients, now_s=lambda: now_s[0])
    chains = [f"resp_{number}" for number in range(60)]
    before = {chain: await equal.create([], "m", chain) for chain in chains}
    clients[0].is_down = True
    clients[0].tried = 0
    for chain in chains:
        served = await equal.create([], "m", chain)
        assert served == before[chain] if before[chain] != b"a" else served in (b"b", b"c")
    # Once it was found dead nobody waits for it again, for a while.
    assert clients[0].tried == 1
    now_s[0] = DEAD_S
    clients[0].is_down = False
    assert {chain: await equal.create([], "m", chain) for chain in chains} == before


async def test_when_all_are_dead_that_is_said() -> None:
    clients = [Client("a"), Client("b")]
    for client in clients:
        client.is_down = True
    with pytest.raises(ApiError) as refused:
        await upstream(*clients).create([], "m", "resp_1")
    assert (refused.value.status, [client.tried for client in clients]) == (503, [1, 1])


def busy(status: int = 503, after: str | None = "0") -> ApiError:
    return errors.upstream_refused(status, "busy", retry_after=after)


async def test_an_upstream_that_asks_to_wait_a_moment_is_asked_again() -> None:
    client = Client("a")
    client.refusals = [busy(), busy()]
    assert await upstream(client, retries_max=2).create([], "m", "resp_1") == b"a"
    assert client.tried == 3


@pytest.mark.parametrize("dead", ["a", "b"])
async def test_of_a_dead_replica_and_a_busy_one_the_busy_ones_answer_is_told(dead: str) -> None:
    clients = [Client("a"), Client("b")]
    for client in clients:
        client.is_down = client.base_url == dead
        client.refusals = [] if client.is_down else [busy(after="1")]
    with pytest.raises(ApiError) as refused:
        await upstream(*clients).create(b"", "m", "resp_1")
    assert (refused.value.message, refused.value.retry_after) == ("busy", "1")


async def test_another_replica_is_asked_first() -> None:
    clients = [Client("a"), Client("b")]
    for client in clients:
        client.refusals = [busy()]
    await upstream(*clients, retries_max=1).create([], "m", "resp_1")
    assert sorted(client.tried for client in clients) == [1, 2]


@pytest.mark.parametrize(
    "refusal",
    [
        busy(503, None),
        busy(503, "60"),
        busy(503, "soon"),
        busy(503, "\u00b2"),
        busy(503, "\u0661"),
        busy(429, "0"),
        busy(400),
        errors.upstream_broken("x"),
    ],
)
async def test_what_may_have_begun_or_is_no_moment_is_told_at_once(refusal: ApiError) -> None:
    client = Client("a")
    client.refusals = [refusal]
    with pytest.raises(ApiError) as refused:
        await upstream(client, retries_max=2).create([], "m", "resp_1")
    assert (refused.value, client.tried) == (refusal, 1)


async def test_retries_have_an_end() -> None:
    client = Client("a")
    client.is_down = True
    with pytest.raises(ApiError) as refused:
        await upstream(client, retries_max=2).create([], "m", "resp_1")
    assert (refused.value.status, client.tried) == (503, 3)
