"""What an API process tells Prometheus of itself. What it tells of the fleet is `exposition`'s.

Names have base units and `headroom_` in front; labels are bounded: routes by template, no tokens, no paths. The
registry is the application's, never the process-wide default one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.store.ingest import OutcomeKind, ReportOutcome
from app.store.replica import Reads

_LATENCY_BUCKETS_S = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


_READS = frozenset({"GET", "HEAD", "OPTIONS"})


class RequestMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        requests = Counter(
            "headroom_http_requests", "Requests answered.", ("method", "route", "status"), registry=registry
        )
        latency = Histogram(
            "headroom_http_request_duration_seconds",
            "Time to the first byte of the answer: of agents' calls, of other reads and writes.",
            ("kind",),
            buckets=_LATENCY_BUCKETS_S,
            registry=registry,
        )
        seconds = Counter(
            "headroom_http_route_seconds", "Time to first bytes, by route.", ("method", "route"), registry=registry
        )
        # To look a series up costs more than to count, and who is turned away costs little else.
        self._requests, self._latency = cache(requests.labels), cache(latency.labels)
        self._seconds = cache(seconds.labels)

    def observe(self, method: str, route: str, status: int, duration_s: float) -> None:
        self._requests(method, route, str(status)).inc()
        self._seconds(method, route).inc(duration_s)
        kind = "agent" if route.startswith("/v1/agent/") else "read" if method in _READS else "write"
        self._latency(kind).observe(duration_s)


class IngestMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._reports = Counter("headroom_ingest_reports", "Reports by outcome.", ("outcome",), registry=registry)
        self._rows = Counter("headroom_ingest_rows", "Telemetry rows stored.", registry=registry)
        self._batch = Histogram(
            "headroom_ingest_batch_reports", "Reports per commit.", buckets=_BATCH_BUCKETS, registry=registry
        )

    def stored(self, batch: Sequence[tuple[int, ReportOutcome]]) -> None:
        self._batch.observe(len(batch))
        for rows, outcome in batch:
            self._reports.labels(outcome.kind.value).inc()
            if outcome.kind is OutcomeKind.ACCEPTED:
                self._rows.inc(rows)


@dataclass(frozen=True, slots=True)
class StreamMetrics:
    """Watches one kind of endless streams: how many are open, how often there was news for them."""

    connections: Gauge
    rings: Counter


def doorbell_metrics(registry: CollectorRegistry) -> StreamMetrics:
    return StreamMetrics(
        Gauge("headroom_doorbell_connections", "Open doorbell streams.", registry=registry),
        Counter("headroom_doorbell_rings", "Generations announced.", registry=registry),
    )


def live_metrics(registry: CollectorRegistry) -> StreamMetrics:
    return StreamMetrics(
        Gauge("headroom_event_streams", "Open streams of what changes.", registry=registry),
        Counter("headroom_event_rings", "Readings that told streams something new.", registry=registry),
    )


def log_metrics(registry: CollectorRegistry) -> StreamMetrics:
    return StreamMetrics(
        Gauge("headroom_log_streams", "Open streams of what workers write.", registry=registry),
        Counter("headroom_log_readings", "How often somebody began to read what workers write.", registry=registry),
    )


def route_metrics(registry: CollectorRegistry) -> StreamMetrics:
    return StreamMetrics(
        Gauge("headroom_route_streams", "Open streams of routes.", registry=registry),
        Counter("headroom_route_changes", "Changes of routes seen while somebody watched.", registry=registry),
    )


class ReplicaCollector(Collector):
    """How far the replica is behind from which history is read, and how often it was passed over."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads

    def collect(self) -> Iterator[Metric]:
        lag = "Seconds that the read replica is behind; infinite while it does not answer."
        yield GaugeMetricFamily("headroom_read_replica_lag_seconds", lag, value=self._reads.lag_s)
        passed_over = "Reads of history that the primary answered in its place."
        yield CounterMetricFamily("headroom_read_replica_passed_over", passed_over, value=self._reads.passed_over)


class QueueCollector(Collector):
    """How long the oldest request of each lane has been here."""

    def __init__(self, ages_s: Callable[[], Mapping[str, float]]) -> None:
        self._ages_s = ages_s

    def collect(self) -> Iterator[Metric]:
        told = "How long the oldest request of a lane has been here, waiting or worked on."
        family = GaugeMetricFamily("headroom_lane_age_seconds", told, labels=("lane",))
        for lane, age_s in self._ages_s().items():
            family.add_metric((lane,), age_s)
        yield family
