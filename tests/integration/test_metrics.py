"""What `/metrics` tells of turns: figures that can be counted by hand, under names and labels that are ours."""

import asyncio
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from server.mock import Reply
from tests.application import Application, both_modes, function_call, message, reasoning, reply, running
from tests.harness import until


class Figures:
    """What a scrape gave: `figures("turns_total", status="completed")` adds up the samples that have these labels."""

    def __init__(self, text: str) -> None:
        self.samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float:
        found = [
            sample.value
            for sample in self.samples
            if sample.name == f"rejoinder_{name}" and labels.items() <= sample.labels.items()
        ]
        return sum(found)

    def labels(self, name: str) -> list[dict[str, str]]:
        return [sample.labels for sample in self.samples if sample.name == f"rejoinder_{name}"]


async def read(application: Application) -> Figures:
    answer = await application.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Figures(answer.text)


def counted(input_tokens: int, cached_tokens: int, output_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": cached_tokens},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input_tokens + output_tokens,
    }


@both_modes
async def test_a_chain_is_counted(emptied_database_url: str, stream: bool) -> None:
    mode = "stream" if stream else "json"
    replies = [
        reply(
            reasoning("Hm.", encrypted_content="sealed"), function_call("f"), stream=stream, usage=counted(100, 0, 7)
        ),
        reply(message("Yes."), stream=stream, usage=counted(130, 96, 5)),
    ]
    async with running(emptied_database_url, replies) as application:
        first = await application.turn(input="q", stream=stream)
        output = {"type": "function_call_output", "call_id": "call_1", "output": "4"}
        await application.turn(input=[output], previous_response_id=first["id"], stream=stream)
        figures = await read(application)
    assert figures.labels("turns_total") == [{"status": "completed", "upstream": "default", "mode": mode}]
    assert figures("turns_total") == 2
    assert figures("turn_seconds_count", upstream="default", mode=mode) == 2
    assert figures("first_event_seconds_count", upstream="default") == (2 if stream else 0)
    assert 0 < figures("turn_seconds_sum") < 60
    # The second turn's history are the question, the reasoning and the call.
    assert figures("history_items_count") == 2
    assert figures("history_items_sum") == 3
    assert figures("history_items_bucket", le="0.0") == 1
    assert figures("history_items_bucket", le="5.0") == 2
    # At least the twenty bytes that each of the three has, at most the few hundred that they have.
    assert 60 < figures("history_bytes_sum") < 1000
    # The question of the first turn is remembered as replayed, or replayed again: that is the cache's affair.
    assert figures("replayed_items_total", action="changed", rule="encrypted_state_left_out") == 1
    assert figures("replayed_items_total", action="kept", rule="call") == 1
    assert figures("replayed_items_total", action="kept", rule="output") == 1
    assert figures("replayed_items_total", action="kept", rule="message") in (1, 2)
    assert figures("input_tokens_total", upstream="default") == 230
    assert figures("cached_input_tokens_total", upstream="default") == 96
    assert figures("output_tokens_total", upstream="default") == 12
    assert figures("prefixes_total", prefix="first") == 1
    assert figures("prefixes_total", prefix="kept") == 1
    assert figures("open_turns") == 0
    assert figures("database_connections_max") == 8
    assert figures("database_connections_in_use") == 0
    assert figures.labels("errors_total") == []


@both_modes
async def test_every_end_of_a_turn_has_its_status(emptied_database_url: str, stream: bool) -> None:
    mode = "stream" if stream else "json"
    replies = [
        reply(message("Cut"), stream=stream, status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
        reply(message("No."), stream=stream, status="failed", error={"code": "server_error", "message": "m"}),
        Reply(status=500, text="gone"),
    ]
    async with running(emptied_database_url, replies) as application:
        for status in (200, 200, 502):
            assert (await application.post({"model": "m", "input": "q", "stream": stream})).status_code == status
        figures = await read(application)
    assert {(labels["status"], labels["mode"]) for labels in figures.labels("turns_total")} == {
        ("incomplete", mode),
        ("failed", mode),
        ("refused", mode),
    }
    assert figures("turns_total") == 3
    assert figures.labels("errors_total") == [{"status": "502", "code": "none"}]


async def test_errors_are_counted_by_status_and_by_our_code(application: Application) -> None:
    before = await read(application)
    told = {"message": "m", "type": "t", "code": "THEIR-CODE", "param": None}
    application.mock.replies = [Reply(status=429, json={"error": told})]
    answers = [
        await application.post({"model": "m", "input": "q"}),
        await application.post({"input": "q"}),
        await application.http.get("/v1/responses/resp_unknown"),
        await application.http.get("/v1/nothing"),
        await application.http.put("/v1/responses"),
        await application.http.get("/v1/conversations"),
        await application.post({"model": "m", "input": "q", "previous_response_id": "resp_unknown"}),
    ]
    assert [answer.status_code for answer in answers] == [429, 400, 404, 404, 405, 405, 400]
    after = await read(application)
    grown = {
        (labels["status"], labels["code"]): after("errors_total", **labels) - before("errors_total", **labels)
        for labels in after.labels("errors_total")
    }
    assert {labels: count for labels, count in grown.items() if count} == {
        ("429", "rate_limit_exceeded"): 1,
        ("400", "missing_required_parameter"): 1,
        ("404", "none"): 2,
        ("405", "none"): 2,
        ("400", "previous_response_not_found"): 1,
    }


async def test_a_stream_that_breaks_is_an_error_too(emptied_database_url: str) -> None:
    broken = Reply(sse=(reply(stream=True).sse_chunks or [])[0], close=True)
    async with running(emptied_database_url, [broken]) as application:
        answer = await application.post({"model": "m", "input": "q", "stream": True})
        figures = await read(application)
    assert answer.status_code == 200
    assert b"response.failed" in answer.content
    assert figures("turns_total", status="failed", mode="stream") == 1
    assert figures.labels("errors_total") == [{"status": "502", "code": "none"}]


async def test_turns_in_flight_are_told_while_they_are(emptied_database_url: str) -> None:
    async with running(emptied_database_url) as application:
        with application.upstream_held():
            turn = asyncio.create_task(application.turn(input="q"))
            await until(lambda: bool(application.mock.posts))
            assert (await read(application))("open_turns") == 1
        await turn
        assert (await read(application))("open_turns") == 0


async def test_nobody_chooses_a_label(emptied_database_url: str) -> None:
    """A client that asks for a thousand models, or for paths that are none, makes no more of them."""
    upstreams = '[[upstreams]]\nname = "gpu"\nurls = ["URL"]\ndefault = true\n'
    async with running(emptied_database_url, upstreams=upstreams) as application:
        for number in range(3):
            await application.turn(model=f"MARK-{number}", input=f"MARK-{number}", user="MARK")
            await application.http.get(f"/v1/MARK-{number}")
            await application.post({"model": "m", "input": [{"type": "MARK", "role": "MARK"}]})
        answer = await application.http.get("/metrics")
    assert "MARK" not in answer.text
    assert {labels["upstream"] for labels in Figures(answer.text).labels("turns_total")} == {"gpu"}


async def test_each_application_has_figures_of_its_own(emptied_database_url: str) -> None:
    async with running(emptied_database_url) as one, running(emptied_database_url) as other:
        await one.turn(input="q")
        assert (await read(one))("turns_total") == 1
        assert (await read(other))("turns_total") == 0


async def test_figures_need_no_database(emptied_database_url: str) -> None:
    async with running(emptied_database_url) as application:
        await application.database.close()
        assert (await application.http.get("/v1/responses/resp_x")).status_code == 503
        assert (await read(application))("errors_total", status="503", code="none") == 1
