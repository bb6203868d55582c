"""Rows of telemetry as binary COPY takes them: columns with their types, and the values of a report in that order.

Owns the speed of ingest. It refuses whole numbers that the driver would silently cut down to their columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import psycopg

from agents.wire import Report

Row = tuple[Any, ...]
DEVICE_TYPES = {
    "uuid": "text",
    "power_w": "float8",
    "energy_j": "float8",
    "utilisation_pct": "float8",
    "memory_mib_used": "float8",
    "clock_mhz_sm": "int4",
    "temperature_c": "float8",
    "share_pct_sm_total": "int4",
    "throttle": "text",
    "healthy": "bool",
}
REPLICA_TYPES = {
    "replica": "text",
    "kind": "text",
    "workload": "text",
    "project": "text",
    "model": "text",
    "uuid": "text",
    "state": "text",
    "share_pct_sm": "int4",
    "sm_count": "int4",
    "memory_mib_limit": "int4",
    "memory_mib_used": "float8",
    "batch": "int4",
    "held_s": "float8",
    "arrived": "float8",
    "completed": "float8",
    "violated": "float8",
    "dropped": "float8",
    "queue_length": "float8",
    "batch_mean": "float8",
    "latency_ms_p50": "float8",
    "latency_ms_p95": "float8",
    "latency_ms_p99": "float8",
    "energy_j": "float8",
    "iterations_done": "int8",
    "executions": "float8",
    "execution_ms_mean": "float8",
}
NODE_TYPES = {
    "observed_at": "timestamptz",
    "node_id": "text",
    "boot_id": "text",
    "sequence": "int8",
    "interval_s": "float8",
}
RATE_TYPES = {
    "observed_at": "timestamptz",
    "gateway": "text",
    "boot_id": "text",
    "sequence": "int8",
    "service": "text",
    "project": "text",
    "arrived": "float8",
    "interval_s": "float8",
    "unrouted": "float8",
}
LOG_TYPES = {
    "source": "text",
    "boot_id": "text",
    "sequence": "int8",
    "observed_at": "timestamptz",
    "interval_s": "float8",
    "rows": "int4",
}
device_values = attrgetter(*DEVICE_TYPES)
replica_values = attrgetter(*REPLICA_TYPES)
_device_int4s = attrgetter(*(name for name, kind in DEVICE_TYPES.items() if kind == "int4"))
_replica_int4s = attrgetter(*(name for name, kind in REPLICA_TYPES.items() if kind == "int4"))
INT4_MAX = 2**31 - 1


def copy(connection: psycopg.Connection, table: str, types: Mapping[str, str], rows: Sequence[Row]) -> None:
    """Binary COPY: the driver packs whole tuples, the server parses nothing."""
    if not rows:
        return
    statement = f"COPY {table} ({', '.join(types)}) FROM STDIN (FORMAT binary)"
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as stream:
        stream.set_types(list(types.values()))
        for row in rows:
            stream.write_row(row)


def check_int4s(report: Report) -> None:
    """Raise OverflowError for whole numbers too large for their columns, which the driver would cut down silently."""
    numbers = [number for device in report.devices for number in _device_int4s(device)]
    numbers += [number for replica in report.replicas for number in _replica_int4s(replica)]
    if numbers and not -INT4_MAX <= min(numbers) <= max(numbers) <= INT4_MAX:
        raise OverflowError("a whole number does not fit into its column")
