"""Requests to one server, and what they took of it and of time.

Whoever sends them shares the machine with what is measured, so that times say little; the CPU time of the server's own
processes says how much it worked.
"""

import asyncio
import contextlib
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import aiohttp
import msgspec

from tests.bench.consumption import cpu_s
from tests.bench.gateways import Gateway

REQUEST_MAX_S = 120
# Work that a server does behind its answer counts as well.
SETTLING_S = 0.2
AT_ONCE = 50
# As long as the streams take that are followed among others.
SPREAD_S = 1.0
HEADERS = {"content-type": "application/json", "authorization": "Bearer bench"}

Body = dict[str, Any]


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """CPU milliseconds per request, the median wait for a whole answer, and requests per second."""

    cpu_ms: float
    wait_ms: float
    per_s: float


def client() -> aiohttp.ClientSession:
    """Connections that are kept; as many as are wanted at once."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
        timeout=aiohttp.ClientTimeout(total=REQUEST_MAX_S),
        headers=HEADERS,
    )


async def post(session: aiohttp.ClientSession, url: str, body: Body) -> bytes:
    """The whole answer. RuntimeError for any that is not a 200: a refusal would be measured as a fast turn."""
    async with session.post(f"{url}/v1/responses", data=json.dumps(body).encode()) as reply:
        answer = await reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{url} answered {reply.status}: {answer[:300]!r}")
        return answer


def middle(costs: Sequence[Cost]) -> Cost:
    """The median of several rounds, each figure by itself."""
    return Cost(
        cpu_ms=statistics.median(one.cpu_ms for one in costs),
        wait_ms=statistics.median(one.wait_ms for one in costs),
        per_s=statistics.median(one.per_s for one in costs),
    )


async def cost(gateway: Gateway, bodies: Sequence[Body], clients: int) -> Cost:
    """What these requests cost, sent by `clients` at once, each of which waits for its answer before the next."""
    waits_s: list[float] = []
    waiting = iter(bodies)

    async def send() -> None:
        for body in waiting:
            sent_at_s = time.perf_counter()
            await post(session, gateway.url, body)
            waits_s.append(time.perf_counter() - sent_at_s)

    async with client() as session:
        before_s, began_at_s = cpu_s(gateway.pid), time.perf_counter()
        await asyncio.gather(*(send() for _ in range(clients)))
        took_s = time.perf_counter() - began_at_s
        await asyncio.sleep(SETTLING_S)
        used_s = cpu_s(gateway.pid) - before_s
    return Cost(
        cpu_ms=used_s / len(waits_s) * 1000, wait_ms=statistics.median(waits_s) * 1000, per_s=len(waits_s) / took_s
    )


async def first_byte_ms(url: str, body: Body, streams: int) -> float:
    """The median wait for the first byte of an answer, of streams that begin at once."""

    async def wait_s() -> float:
        sent_at_s = time.perf_counter()
        async with session.post(f"{url}/v1/responses", data=json.dumps(body).encode()) as reply:
            reply.raise_for_status()
            await reply.content.readany()
            waited_s = time.perf_counter() - sent_at_s
            await reply.read()
        return waited_s

    async with client() as session:
        # Once without a clock: connections are there afterwards, at the server's upstream too.
        await asyncio.gather(*(wait_s() for _ in range(streams)))
        return statistics.median(await asyncio.gather(*(wait_s() for _ in range(streams)))) * 1000


async def first_byte_among_others_ms(url: str, body: Body, streams: int, each: int) -> float:
    """The median wait for a first byte while so many streams are open: each client begins one when its last has ended.

    The first ones begin at any time within SPREAD_S, as people do.
    """
    waits_s: list[float] = []

    async def follow() -> None:
        await asyncio.sleep(random.uniform(0, SPREAD_S))
        for _ in range(each):
            sent_at_s = time.perf_counter()
            async with session.post(f"{url}/v1/responses", data=json.dumps(body).encode()) as reply:
                reply.raise_for_status()
                await reply.content.readany()
                waits_s.append(time.perf_counter() - sent_at_s)
                await reply.read()

    async with client() as session:
        await asyncio.gather(*(follow() for _ in range(streams)))
    return statistics.median(waits_s) * 1000


def continuing(previous: str | None, body: Body) -> Body:
    return body if previous is None else {**body, "previous_response_id": previous}


async def turns(url: str, bodies: Iterable[Body]) -> list[str]:
    """The response ids of these turns, made one after the other."""
    async with client() as session:
        return [str(json.loads(await post(session, url, body))["id"]) for body in bodies]


async def chain(url: str, bodies: Iterable[Body], previous: str | None = None) -> list[str]:
    """The response ids of turns of which each continues the one before, the first one `previous`."""
    made: list[str] = []
    for body in bodies:
        made += await turns(url, [continuing(made[-1] if made else previous, body)])
    return made


@contextlib.asynccontextmanager
async def open_streams(url: str, body: Body, streams: int) -> AsyncIterator[None]:
    """So many streams that have begun and stay open while this lasts. A few are opened at a time."""
    async with client() as session, contextlib.AsyncExitStack() as opened:

        async def open_one() -> None:
            post = session.post(f"{url}/v1/responses", data=json.dumps(body).encode())
            reply = await opened.enter_async_context(post)
            reply.raise_for_status()
            await reply.content.readany()

        for begun in range(0, streams, AT_ONCE):
            await asyncio.gather(*(open_one() for _ in range(min(AT_ONCE, streams - begun))))
        yield
