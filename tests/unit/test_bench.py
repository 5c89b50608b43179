"""What `make bench` relies on: the upstream's streams, the count of statements, the median, the plot."""

from xml.etree import ElementTree

import pytest

from tests.bench import upstream
from tests.bench.gateways import OURS, PEER
from tests.bench.load import Cost, middle
from tests.bench.plot import cost_by_depth
from tests.bench.wiretap import Wiretap
from tests.grammar import events_in


def cost(cpu_ms: float, wait_ms: float = 1, per_s: float = 1) -> Cost:
    return Cost(cpu_ms=cpu_ms, wait_ms=wait_ms, per_s=per_s)


def test_the_upstream_streams_one_message_of_so_many_deltas() -> None:
    events = events_in(b"".join(upstream.stream(3)) + b"data: [DONE]\n\n")
    assert [event["sequence_number"] for event in events] == list(range(11))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.delta", "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert "".join(event["delta"] for event in events[4:7]) == events[7]["text"] == "tok0 tok1 tok2 "
    assert events[10]["response"]["output"] == [events[9]["item"]]


@pytest.mark.parametrize(
    ("kind", "content", "counted"),
    [
        (b"Q", b"select 1\0", 1),
        (b"E", b"\0\0\0\0\0", 1),
        (b"Q", b" begin isolation level read committed\0", 0),
        (b"Q", b"COMMIT\0", 0),
        (b"P", b"name\0select 1\0\0\0", 0),
        (b"B", b"", 0),
        (b"S", b"", 0),
        (b"", b"\0\3\0\0user\0me\0\0", 0),
    ],
)
def test_an_execution_is_a_statement_and_transaction_control_is_none(kind: bytes, content: bytes, counted: int) -> None:
    wiretap = Wiretap("postgresql://127.0.0.1/any")
    wiretap.count(kind, content)
    assert wiretap.statements == counted


def test_the_median_is_that_of_each_figure() -> None:
    assert middle([cost(1, 9, 5), cost(3, 8, 4), cost(2, 7, 6)]) == cost(2, 8, 5)


def test_the_plot_has_a_line_a_server_and_a_point_a_depth() -> None:
    depths = {0: {OURS: cost(1)}, 1: {OURS: cost(1), PEER: cost(2)}, 100: {OURS: cost(1), PEER: cost(8)}}
    plot = ElementTree.fromstring(cost_by_depth(depths))
    lines = [line.attrib["points"].split() for line in plot.findall(".//{*}polyline")]
    [flat] = [line for line in lines if line[0].split(",")[1] == line[1].split(",")[1]]
    [rising] = [line for line in lines if line is not flat]
    # On the page, what is higher has the smaller number.
    assert float(rising[1].split(",")[1]) < float(rising[0].split(",")[1]) < float(flat[0].split(",")[1])
    assert {OURS, PEER} <= {text.text for text in plot.findall(".//{*}text")}
