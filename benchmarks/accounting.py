"""Internals: how fast the ledger is: roll up and account minutes of a large fleet, as the accounting loop does.

Fills a database of its own with reports every 5 s (written by SQL, not measured), minute after minute, and accounts
each when the next has come, as a planner finds it: with a log of twenty minutes behind it. Prints seconds of the wall
and of PostgreSQL's processor. Run: `python -m benchmarks.accounting --devices 1000`; with `--revision 0049` it is the
functions of then that are measured, up to 0051 on a row for each sample.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.store import migrate
from app.store.embedded import embedded_url, stop_embedded
from app.store.engine import Database
from app.store.ledger import account
from benchmarks.stack import processor_s

DEVICES_PER_NODE = 8
REPORTS_PER_MINUTE = 12
HISTORY_MIN = 20
"""Minutes of which the log is there before the first one is accounted: placing reports looks back as far."""
START = datetime(2026, 3, 2, 10, tzinfo=UTC)

FLEET = """
INSERT INTO gpu_types (name, spec) VALUES ('v100',
    '{"memory_mib" : 32768, "prices" : [{"kind" : "on_demand", "region" : "default", "usd_per_h" : 3.06}]}');
INSERT INTO nodes (id, spec) SELECT 'n' || n, '{"region" : "default", "price_kind" : "on_demand"}'
    FROM generate_series(0, (%(devices)s - 1) / %(per_node)s) AS n;
INSERT INTO devices (uuid, node_id, gpu_type, spec, billed_from)
    SELECT 'GPU-' || md5(d::text), 'n' || d / %(per_node)s, 'v100', '{"memory_mib" : 32768}', %(start)s
    FROM generate_series(0, %(devices)s - 1) AS d;
"""
LOG = """
INSERT INTO report_log SELECT at, 'node/n' || n, 'boot-' || n, extract(epoch FROM at)::bigint, at, 5, 40
FROM generate_series(0, (%(devices)s - 1) / %(per_node)s) AS n,
    generate_series(%(from)s::timestamptz + INTERVAL '5 s', %(to)s, INTERVAL '5 s') AS at
"""
DEVICE_ROWS = """
INSERT INTO device_samples
SELECT at, at, 'n' || d / %(per_node)s, 'boot-' || d / %(per_node)s, extract(epoch FROM at)::bigint, 5,
    'GPU-' || md5(d::text),
    150, 750, 60, 16000, 1400, 60, 90, '', true
FROM generate_series(0, %(devices)s - 1) AS d,
    generate_series(%(from)s::timestamptz + INTERVAL '5 s', %(to)s, INTERVAL '5 s') AS at
"""
REPLICA_ROWS = """
INSERT INTO replica_samples
SELECT at, at, 'n' || d / %(per_node)s, 'boot-' || d / %(per_node)s, extract(epoch FROM at)::bigint, 5,
    'p' || d %% 7 || '/s' || d %% 97 || '#' || d || '-' || r, 'service', 'p' || d %% 7 || '/s' || d %% 97,
        'p' || d %% 7,
    'resnet50', 'GPU-' || md5(d::text), 'ready', 20 + r, 16, 8192, 4000.5, 8, 5, 500, 500, 2, 0, 0, 4, 10, 20, 30, 150,
        NULL
FROM generate_series(0, %(devices)s - 1) AS d, generate_series(1, %(replicas)s) AS r,
    generate_series(%(from)s::timestamptz + INTERVAL '5 s', %(to)s, INTERVAL '5 s') AS at
"""
SHAPES = """
INSERT INTO sample_shapes
SELECT date_bin('3 hours', %(from)s, '2000-01-01Z'), md5('boot-' || n)::uuid, 'n' || n, boards.uuids, names,
    array_fill('service'::text, size), services, projects, array_fill('resnet50'::text, size), processes.uuids,
    shares, array_fill(16, size), array_fill(8192, size), array_fill(8, size)
FROM generate_series(0, (%(devices)s - 1) / %(per_node)s) AS n
CROSS JOIN LATERAL (
    SELECT array_agg('GPU-' || md5(d::text) ORDER BY d) AS uuids
    FROM generate_series(n * %(per_node)s, least((n + 1) * %(per_node)s, %(devices)s) - 1) AS d) AS boards
CROSS JOIN LATERAL (
    SELECT array_agg('p' || d %% 7 || '/s' || d %% 97 || '#' || d || '-' || r ORDER BY d, r) AS names,
        array_agg('p' || d %% 7 || '/s' || d %% 97 ORDER BY d, r) AS services,
        array_agg('p' || d %% 7 ORDER BY d, r) AS projects, array_agg('GPU-' || md5(d::text) ORDER BY d, r) AS uuids,
        array_agg(20 + r ORDER BY d, r) AS shares, ARRAY[count(*)::integer] AS size
    FROM generate_series(n * %(per_node)s, least((n + 1) * %(per_node)s, %(devices)s) - 1) AS d,
        generate_series(1, %(replicas)s) AS r) AS processes
ON CONFLICT DO NOTHING
"""
REPORT_ROWS = """
INSERT INTO node_samples
SELECT at, date_bin('3 hours', at, '2000-01-01Z'), md5('boot-' || n)::uuid, at, 'n' || n, 'boot-' || n,
    extract(epoch FROM at)::bigint, 5,
    array_fill(150::float8, boards), array_fill(750::float8, boards), array_fill(60::float8, boards),
    array_fill(16000::float8, boards), array_fill(1400, boards), array_fill(90, boards), array_fill(60::float8, boards),
    NULL, NULL, NULL, array_fill(4000.5::float8, processes), array_fill(5::float8, processes),
    array_fill(500::float8, processes), array_fill(500::float8, processes), array_fill(2::float8, processes),
    array_fill(0::float8, processes), array_fill(0::float8, processes), array_fill(4::float8, processes),
    array_fill(150::float8, processes), array_fill(0::float8, processes), array_fill(10::float8, processes),
    array_fill(20::float8, processes), array_fill(30::float8, processes), NULL, NULL
FROM (
    SELECT n, ARRAY[count(*)::integer] AS boards, ARRAY[count(*)::integer * %(replicas)s] AS processes
    FROM generate_series(0, %(devices)s - 1) AS d, LATERAL (SELECT d / %(per_node)s AS n) AS node GROUP BY n) AS nodes,
    generate_series(%(from)s::timestamptz + INTERVAL '5 s', %(to)s, INTERVAL '5 s') AS at
"""


@contextmanager
def _server(url: str | None) -> Iterator[str]:
    """The given database, or an embedded server that is gone afterwards."""
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="headroom-bench-") as home:
        yield embedded_url(Path(home))
        stop_embedded(Path(home))


def _values(devices: int, replicas: int, first: int, minutes: int) -> dict[str, object]:
    start = START + timedelta(minutes=first)
    return {
        "devices": devices,
        "replicas": replicas,
        "per_node": DEVICES_PER_NODE,
        "start": START,
        "from": start,
        "to": start + timedelta(minutes=minutes),
    }


def _begin(database: Database, devices: int) -> None:
    values = _values(devices, 0, -HISTORY_MIN, HISTORY_MIN)
    with database.raw() as connection:
        for statement in (*FLEET.strip().split(";\n"), LOG):
            connection.execute(statement.rstrip(";\n "), values)


def _fill(database: Database, devices: int, replicas: int, minute: int, *, packs: bool) -> None:
    values = _values(devices, replicas, minute, 1)
    with database.raw() as connection:
        for statement in (LOG, SHAPES, REPORT_ROWS) if packs else (LOG, DEVICE_ROWS, REPLICA_ROWS):
            connection.execute(statement, values)
    if minute == 0:
        with database.raw() as connection:
            connection.execute("ANALYZE")


def _account_minute(session: Session, minute: int) -> tuple[float, float]:
    """Seconds of the wall and of the processor of the process that serves this session."""
    pid = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
    started, spent_s = time.perf_counter(), processor_s(pid)
    account(session, START + timedelta(minutes=minute, seconds=25), minutes_max=60)
    return time.perf_counter() - started, processor_s(pid) - spent_s


def main() -> None:
    """Fill, account, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--replicas", type=int, default=4, help="per device")
    parser.add_argument("--minutes", type=int, default=20)
    parser.add_argument("--revision", default="head", help="of the schema, whose functions are measured")
    parser.add_argument("--url", help="an empty PostgreSQL database; default: an embedded server made for this run")
    options = parser.parse_args()
    rows = options.devices * (1 + options.replicas) * REPORTS_PER_MINUTE
    reports = -(-options.devices // DEVICES_PER_NODE) * REPORTS_PER_MINUTE
    with _server(options.url) as url:
        migrate.upgrade(url, options.revision)
        database = Database(url)
        print(f"{options.devices} devices x {options.replicas} replicas, {rows} telemetry rows a minute")
        _begin(database, options.devices)
        packs = options.revision == "head" or options.revision >= "0052"
        _fill(database, options.devices, options.replicas, 0, packs=packs)
        times = []
        for minute in range(1, options.minutes + 1):
            _fill(database, options.devices, options.replicas, minute, packs=packs)
            with database.transaction() as session:
                times.append(_account_minute(session, minute))
        with database.reading() as session:
            ledger = session.execute(text("SELECT count(*) FROM ledger")).scalar_one()
            wrong = session.execute(text("SELECT count(*) FROM ledger_check WHERE difference_usd <> 0")).scalar_one()
        database.dispose()
    walls, spent = (statistics.median(column) for column in zip(*times, strict=True))
    print(
        f"one minute: median {walls:.2f} s, worst {max(wall for wall, _ in times):.2f} s; {rows / walls:,.0f} telemetry"
        f" rows/s; {spent:.2f} s of processor, {1000 * spent / reports:.3f} ms a report"
    )
    print(f"ledger rows written: {ledger}; hours whose ledger differs from the bill: {wrong}")


if __name__ == "__main__":
    main()
