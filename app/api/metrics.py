"""What the API tells Prometheus: its own requests, and the state of the fleet as the database has it when it is
scraped.

Owns the registry (never the process-wide default one) and the metric names: base units, `headroom_` in front. It
refuses labels without a bound: routes by template, no tokens, no paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_LATENCY_BUCKETS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class RequestMetrics:
    """Counts and times requests."""

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
        """One answered request."""
        self._requests.labels(method, route, str(status)).inc()
        self._latency.labels(method, route).observe(duration_s)


class IngestMetrics:
    """Counts what agents deliver."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reports = Counter("headroom_ingest_reports", "Reports by outcome.", ("outcome",), registry=registry)
        self.rows = Counter("headroom_ingest_rows", "Telemetry rows stored.", registry=registry)
        self.batch = Histogram(
            "headroom_ingest_batch_reports", "Reports per commit.", buckets=_BATCH_BUCKETS, registry=registry
        )


@dataclass(frozen=True, slots=True)
class StreamMetrics:
    """Watches one kind of endless streams: how many are open, how often there was news for them."""

    connections: Gauge
    rings: Counter


def doorbell_metrics(registry: CollectorRegistry) -> StreamMetrics:
    """Watches the doorbell."""
    return StreamMetrics(
        Gauge("headroom_doorbell_connections", "Open doorbell streams.", registry=registry),
        Counter("headroom_doorbell_rings", "Generations announced.", registry=registry),
    )


def route_metrics(registry: CollectorRegistry) -> StreamMetrics:
    """Watches the streams of routes."""
    return StreamMetrics(
        Gauge("headroom_route_streams", "Open streams of routes.", registry=registry),
        Counter("headroom_route_changes", "Changes of routes seen while somebody watched.", registry=registry),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetGauges:
    """State of the fleet at a scrape; what is not known is left out."""

    database_up: bool
    generation: int | None = None
    nodes_up: int | None = None
    nodes_known: int | None = None
    devices: int | None = None
    replicas_ready: int | None = None
    replicas_planned: int | None = None
    plan_cost_usd_per_h: float | None = None
    ledger_age_s: float | None = None
    outcomes_admitted: int | None = None
    outcomes_rejected: int | None = None
    beliefs_rebuilt: int | None = None


_GAUGES = (
    ("generation", "headroom_target_generation", "Current generation of the target."),
    ("nodes_up", "headroom_nodes_up", "Nodes that reported lately."),
    ("nodes_known", "headroom_nodes", "Registered nodes."),
    ("devices", "headroom_devices", "Registered devices."),
    ("replicas_ready", "headroom_replicas_ready", "Replicas that reported ready lately."),
    ("replicas_planned", "headroom_replicas_planned", "Replicas of the current target."),
    ("plan_cost_usd_per_h", "headroom_plan_cost_usd_per_hour", "Cost of the current plan, US dollars per hour."),
    ("ledger_age_s", "headroom_ledger_age_seconds", "Age of the newest minute in the ledger."),
    ("database_up", "headroom_database_up", "Whether PostgreSQL answered this scrape."),
)
_COUNTS = (
    ("outcomes_admitted", "headroom_outcomes_admitted", "Measured executions that beliefs learned from."),
    ("outcomes_rejected", "headroom_outcomes_rejected", "Measured executions that the gate turned away."),
    ("beliefs_rebuilt", "headroom_beliefs_rebuilt", "Beliefs built anew because of errors or drift."),
)


class FleetCollector(Collector):
    """Asks for the fleet's state at every scrape, so that nothing is kept in memory that the database knows better."""

    def __init__(self, read: Callable[[], FleetGauges]) -> None:
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """Names without values: registering must not touch the database."""
        for _, name, text in _GAUGES:
            yield GaugeMetricFamily(name, text)
        for _, name, text in _COUNTS:
            yield CounterMetricFamily(name, text)

    def collect(self) -> Iterator[Metric]:
        """All gauges and counts; those without a value are left out."""
        gauges = self._read()
        for field, name, text in _GAUGES:
            value: float | None = getattr(gauges, field)
            if value is not None:
                yield GaugeMetricFamily(name, text, value=float(value))
        for field, name, text in _COUNTS:
            count: int | None = getattr(gauges, field)
            if count is not None:
                yield CounterMetricFamily(name, text, value=float(count))
