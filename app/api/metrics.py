"""What the API tells Prometheus: its own requests, and the state of the fleet as the database has it when it is
scraped.

Names have base units and `headroom_` in front; labels are bounded: routes by template, no tokens, no paths. The
registry is the application's, never the process-wide default one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.store.ingest import OutcomeKind, ReportOutcome
from app.store.replica import Reads
from app.store.telemetry import FleetCounts
from solvers.errors import HeadroomError

_LATENCY_BUCKETS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class RequestMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "headroom_http_requests", "Requests answered.", ("method", "route", "status"), registry=registry
        )
        self._latency = Histogram(
            "headroom_http_request_duration_seconds",
            "Time to the first byte of the answer.",
            ("method", "route"),
            buckets=_LATENCY_BUCKETS_S,
            registry=registry,
        )

    def observe(self, method: str, route: str, status: int, duration_s: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._latency.labels(method, route).observe(duration_s)


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


_GAUGES = (
    ("generation", "headroom_target_generation", "Current generation of the target."),
    ("nodes_up", "headroom_nodes_up", "Nodes that reported lately."),
    ("nodes_known", "headroom_nodes", "Registered nodes."),
    ("devices", "headroom_devices", "Registered devices."),
    ("replicas_ready", "headroom_replicas_ready", "Replicas that reported ready lately."),
    ("replicas_planned", "headroom_replicas_planned", "Replicas of the current target."),
    ("plan_cost_usd_per_h", "headroom_plan_cost_usd_per_hour", "Cost of the current plan, US dollars per hour."),
    ("plan_bound_usd_per_h", "headroom_plan_bound_usd_per_hour", "What serving as much costs at least, when planned."),
    ("plan_age_s", "headroom_plan_age_seconds", "Age of the newest plan, promoted or not."),
    ("cycles_last_hour", "headroom_cycles_last_hour", "Planning cycles begun in the last hour."),
    (
        "cycles_stood_in_last_hour",
        "headroom_cycles_stood_in_last_hour",
        "Of these, with a planner that failed or was stopped, or another than the first one's plan.",
    ),
    ("measurements_unlearned", "headroom_measurements_unlearned", "Measurements that plans do not know yet."),
    ("raw_bytes", "headroom_raw_telemetry_bytes", "What raw telemetry takes on disk."),
    ("minute_bytes", "headroom_minute_bytes", "What the minutes of ledger and bills take on disk."),
    ("ledger_age_s", "headroom_ledger_age_seconds", "Age of the newest minute in the ledger."),
)
_DATABASE_UP = ("headroom_database_up", "Whether PostgreSQL answered this scrape.")
_COUNTS = (
    ("outcomes_admitted", "headroom_outcomes_admitted", "Measured executions that beliefs learned from."),
    ("outcomes_rejected", "headroom_outcomes_rejected", "Measured executions that the gate turned away."),
    ("beliefs_rebuilt", "headroom_beliefs_rebuilt", "Beliefs built anew because of errors or drift."),
)


class FleetCollector(Collector):
    """Asks for the fleet's state at every scrape, so that nothing is kept in memory that the database knows better."""

    def __init__(self, read: Callable[[], FleetCounts]) -> None:
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """Names without values: registering must not touch the database."""
        return self._metrics(None)

    def collect(self) -> Iterator[Metric]:
        """All gauges and counts but those without a value; with the database away, only that it is."""
        try:
            counts = self._read()
        except HeadroomError:
            yield GaugeMetricFamily(*_DATABASE_UP, value=0.0)
            return
        for metric in self._metrics(counts):
            if metric.samples:
                yield metric

    @staticmethod
    def _metrics(counts: FleetCounts | None) -> Iterator[Metric]:
        yield GaugeMetricFamily(*_DATABASE_UP, value=None if counts is None else 1.0)
        for field, name, text in _GAUGES:
            yield GaugeMetricFamily(name, text, value=_value(counts, field))
        for field, name, text in _COUNTS:
            yield CounterMetricFamily(name, text, value=_value(counts, field))


def _value(counts: FleetCounts | None, field: str) -> float | None:
    value: float | None = None if counts is None else getattr(counts, field)
    return None if value is None else float(value)
