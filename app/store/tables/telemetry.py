"""Raw telemetry, partitioned by day of arrival, and the newest report of every source."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Double, Integer, Table, Text

from app.store.tables.metadata import metadata, moment


def _from_node() -> list[Column[Any]]:
    """Which report of which node a sample came with."""
    return [
        moment("received_at", default_now=True),
        moment("observed_at"),
        Column("node_id", Text, nullable=False),
        Column("boot_id", Text, nullable=False),
        Column("sequence", BigInteger, nullable=False),
        Column("interval_s", Double, nullable=False),
    ]


device_samples = Table(
    "device_samples",
    metadata,
    *_from_node(),
    Column("uuid", Text, nullable=False),
    Column("power_w", Double, nullable=False),
    Column("energy_j", Double, nullable=False),
    Column("utilisation_pct", Double, nullable=False),
    Column("memory_mib_used", Double, nullable=False),
    Column("clock_mhz_sm", Integer, nullable=False),
    Column("temperature_c", Double),
    Column("share_pct_sm_total", Integer, nullable=False),
    Column("throttle", Text, nullable=False),
    Column("healthy", Boolean, nullable=False),
)
replica_samples = Table(
    "replica_samples",
    metadata,
    *_from_node(),
    Column("replica", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("workload", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("uuid", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("share_pct_sm", Integer, nullable=False),
    Column("sm_count", Integer, nullable=False),
    Column("memory_mib_limit", Integer, nullable=False),
    Column("memory_mib_used", Double, nullable=False),
    Column("batch", Integer, nullable=False),
    Column("held_s", Double, nullable=False),
    Column("arrived", Double, nullable=False),
    Column("completed", Double, nullable=False),
    Column("violated", Double, nullable=False),
    Column("dropped", Double, nullable=False),
    Column("queue_length", Double, nullable=False),
    Column("batch_mean", Double, nullable=False),
    Column("latency_ms_p50", Double),
    Column("latency_ms_p95", Double),
    Column("latency_ms_p99", Double),
    Column("energy_j", Double, nullable=False),
    Column("iterations_done", BigInteger),
    Column("executions", Double, nullable=False, server_default="0"),
    Column("execution_ms_mean", Double),
)
rate_samples = Table(
    "rate_samples",
    metadata,
    moment("received_at", default_now=True),
    moment("observed_at"),
    Column("gateway", Text, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("service", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("arrived", Double, nullable=False),
    Column("interval_s", Double, nullable=False),
    Column("unrouted", Double, nullable=False),
)
report_log = Table(
    "report_log",
    metadata,
    moment("received_at", default_now=True),
    Column("source", Text, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    moment("observed_at"),
    Column("interval_s", Double, nullable=False),
    Column("rows", Integer, nullable=False),
)
report_heads = Table(
    "report_heads",
    metadata,
    Column("source", Text, primary_key=True),
    Column("boot_id", Text, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    moment("observed_at"),
    moment("received_at", default_now=True),
)
