"""What the server counts and measures: every metric by its name. Handed in with telemetry, a registry for each of them.

Rule of this file: a label has few values, and all of them are ours or the operator's: names of configured upstreams,
statuses, rules of replay, codes of `errors`. Nothing that a client or a model chose can become one.
"""

import contextlib
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE: Final = "text/plain; version=0.0.4"

# A model server begins within milliseconds where its cache holds the prompt, and after minutes where it has a queue.
_FIRST_EVENT_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_TURN_S: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1800)
_ITEMS: Final = (0, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)
_BYTES: Final = (0, 1_000, 4_000, 16_000, 64_000, 256_000, 1_000_000, 4_000_000, 16_000_000, 64_000_000)


@dataclass(frozen=True)
class Sources:
    """Where figures come from that are asked for when they are read: of turns, connections and prefixes."""

    open_turns: Callable[[], int]
    connections_in_use: Callable[[], int]
    connections_max: int
    prefixes: Mapping[str, int]


class Metrics:
    """Every metric of one application."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._sources: Sources | None = None
        self._turns = Counter(
            "rejoinder_turns", "Turns by how they ended", ["status", "upstream", "mode"], registry=registry
        )
        self._first_event_s = Histogram(
            "rejoinder_first_event_seconds",
            "From a streamed request to the first event that was sent for it",
            ["upstream"],
            buckets=_FIRST_EVENT_S,
            registry=registry,
        )
        self._turn_s = Histogram(
            "rejoinder_turn_seconds",
            "From a request to the end of its turn, however it ended",
            ["upstream", "mode"],
            buckets=_TURN_S,
            registry=registry,
        )
        self._history_items = Histogram(
            "rejoinder_history_items", "Items before the input of a turn", buckets=_ITEMS, registry=registry
        )
        self._history_bytes = Histogram(
            "rejoinder_history_bytes", "Bytes of these items, as stored", buckets=_BYTES, registry=registry
        )
        self._replayed = Counter(
            "rejoinder_replayed_items",
            "Items that a turn had to replay, by what became of them; remembered histories are not replayed again",
            ["action", "rule"],
            registry=registry,
        )
        self._tokens = {
            kind: Counter(f"rejoinder_{kind}_tokens", text, ["upstream"], registry=registry)
            for kind, text in (
                ("input", "Tokens of input, as upstreams count them"),
                ("cached_input", "Those among them that an upstream had in its prefix cache"),
                ("output", "Tokens of output, as upstreams count them"),
            )
        }
        self._errors = Counter(
            "rejoinder_errors",
            "Errors that clients were told, and faults that ended a stream",
            ["status", "code"],
            registry=registry,
        )
        registry.register(_Asked(self._asked))
        ProcessCollector(registry=registry)
        self._replayed_children: dict[tuple[str, str], Counter] = {}
        self._upstreams: dict[tuple[str, bool], _UpstreamMetrics] = {}

    @contextlib.contextmanager
    def asking(self, sources: Sources) -> Iterator[None]:
        """While this lasts there is something to be asked."""
        self._sources = sources
        try:
            yield
        finally:
            self._sources = None

    def turn_began(self, history_items: int, history_bytes: int, replayed: Iterable[tuple[str, str]]) -> None:
        """`replayed` are action and rule of each item that was replayed for it."""
        self._history_items.observe(history_items)
        self._history_bytes.observe(history_bytes)
        for decided, count in Counts(replayed).items():
            child = self._replayed_children.get(decided)
            if child is None:
                child = self._replayed_children[decided] = self._replayed.labels(*decided)
            child.inc(count)

    def turn_ended(
        self, status: str, upstream: str, *, stream: bool, duration_s: float, first_event_s: float | None
    ) -> None:
        """`status` is that of its response, or `refused` where it had none."""
        known = self._of_upstream(upstream, stream)
        known.turns(status).inc()
        known.turn_s.observe(duration_s)
        if stream and first_event_s is not None:
            known.first_event_s.observe(first_event_s)

    def tokens_used(self, upstream: str, *, input_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        known = self._of_upstream(upstream, False)
        for counter, count in zip(known.tokens, (input_tokens, cached_tokens, output_tokens), strict=True):
            counter.inc(count)

    def error_told(self, status: int, code: str | None) -> None:
        self._errors.labels(str(status), code or "none").inc()

    def text(self, worker: int | None = None) -> bytes:
        """All of it in Prometheus' text format; every line with the number of the worker, where there are several."""
        label = {} if worker is None else {"worker": str(worker)}
        return generate_latest(_Labelled(self._registry, label))

    def _of_upstream(self, upstream: str, stream: bool) -> "_UpstreamMetrics":
        known = self._upstreams.get((upstream, stream))
        if known is None:
            mode = "stream" if stream else "json"
            known = self._upstreams[upstream, stream] = _UpstreamMetrics(
                by_status=lambda status: self._turns.labels(status, upstream, mode),
                turn_s=self._turn_s.labels(upstream, mode),
                first_event_s=self._first_event_s.labels(upstream),
                tokens=tuple(counter.labels(upstream) for counter in self._tokens.values()),
            )
        return known

    def _asked(self) -> Iterator[Metric]:
        if self._sources is None:
            return
        for name, text, value in (
            ("open_turns", "Turns in flight, also those that go on without their client", self._sources.open_turns()),
            (
                "database_connections_in_use",
                "Connections of the pool that run a statement",
                self._sources.connections_in_use(),
            ),
            ("database_connections_max", "The size of the pool", self._sources.connections_max),
        ):
            yield GaugeMetricFamily(f"rejoinder_{name}", text, value)
        prefixes = CounterMetricFamily(
            "rejoinder_prefixes", "Turns by what became of the prefix that the turn before sent", labels=["prefix"]
        )
        for prefix, count in self._sources.prefixes.items():
            prefixes.add_metric([prefix], count)
        yield prefixes


class _UpstreamMetrics:
    """The metrics of one upstream in one mode, found once: to find them by their labels takes longer than to count."""

    def __init__(
        self,
        by_status: Callable[[str], Counter],
        turn_s: Histogram,
        first_event_s: Histogram,
        tokens: tuple[Counter, ...],
    ) -> None:
        self._by_status = by_status
        self._turns: dict[str, Counter] = {}
        self.turn_s = turn_s
        self.first_event_s = first_event_s
        self.tokens = tokens

    def turns(self, status: str) -> Counter:
        if status not in self._turns:
            self._turns[status] = self._by_status(status)
        return self._turns[status]


class _Asked(Collector):
    def __init__(self, asked: Callable[[], Iterator[Metric]]) -> None:
        self._ask = asked

    def collect(self) -> Iterable[Metric]:
        return self._ask()


class _Labelled(Collector):
    """What a registry collects, with a label more, and without the times at which its counters were made."""

    def __init__(self, registry: CollectorRegistry, label: Mapping[str, str]) -> None:
        self._registry = registry
        self._label = label

    def collect(self) -> Iterable[Metric]:
        for family in self._registry.collect():
            family.samples = [
                sample._replace(labels={**self._label, **sample.labels})
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
            yield family


def merged(texts: Iterable[bytes]) -> bytes:
    """The texts of several workers as one, in which each family of metrics stands together, as the format wants it."""
    families: dict[bytes, list[bytes]] = {}
    for text in texts:
        for family in text.split(b"# HELP ")[1:]:
            name = family.split(b" ", 1)[0]
            head, _, kind_and_samples = family.partition(b"\n")
            kind, _, samples = kind_and_samples.partition(b"\n")
            families.setdefault(name, [b"# HELP " + head + b"\n" + kind + b"\n"]).append(samples)
    return b"".join(part for family in families.values() for part in family)
