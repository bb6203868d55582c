"""How fast the ledger is: roll up and account minutes of a large fleet, as the accounting loop does.

Fills a database of its own with reports every 5 s (written by SQL, not measured), accounts minute after minute and
prints seconds per minute and telemetry rows per second. Run: `python -m benchmarks.accounting --devices 1000`.
"""

from __future__ import annotations

import argparse
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

DEVICES_PER_NODE = 8
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
    generate_series(%(start)s::timestamptz + INTERVAL '5 s', %(end)s, INTERVAL '5 s') AS at
"""
DEVICE_ROWS = """
INSERT INTO device_samples
SELECT at, at, 'n' || d / %(per_node)s, 'boot-' || d / %(per_node)s, extract(epoch FROM at)::bigint, 5,
    'GPU-' || md5(d::text),
    150, 750, 60, 16000, 1400, 60, 90, '', true
FROM generate_series(0, %(devices)s - 1) AS d,
    generate_series(%(start)s::timestamptz + INTERVAL '5 s', %(end)s, INTERVAL '5 s') AS at
"""
REPLICA_ROWS = """
INSERT INTO replica_samples
SELECT at, at, 'n' || d / %(per_node)s, 'boot-' || d / %(per_node)s, extract(epoch FROM at)::bigint, 5,
    'p' || d %% 7 || '/s' || d %% 97 || '#' || d || '-' || r, 'service', 'p' || d %% 7 || '/s' || d %% 97,
        'p' || d %% 7,
    'resnet50', 'GPU-' || md5(d::text), 'ready', 20 + r, 16, 8192, 4000.5, 8, 5, 500, 500, 2, 0, 0, 4, 10, 20, 30, 150,
        NULL
FROM generate_series(0, %(devices)s - 1) AS d, generate_series(1, %(replicas)s) AS r,
    generate_series(%(start)s::timestamptz + INTERVAL '5 s', %(end)s, INTERVAL '5 s') AS at
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


def _fill(database: Database, devices: int, replicas: int, minutes: int) -> None:
    values = {
        "devices": devices,
        "replicas": replicas,
        "per_node": DEVICES_PER_NODE,
        "start": START,
        "end": START + timedelta(minutes=minutes),
    }
    with database.raw() as connection:
        for statement in (*FLEET.strip().split(";\n"), LOG, DEVICE_ROWS, REPLICA_ROWS):
            connection.execute(statement.rstrip(";\n "), values)
    with database.raw() as connection:
        connection.execute("ANALYZE")


def _account_minute(session: Session, minute: int) -> float:
    started = time.perf_counter()
    account(session, START + timedelta(minutes=minute, seconds=25), minutes_max=60)
    return time.perf_counter() - started


def main() -> None:
    """Fill, account, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--replicas", type=int, default=4, help="per device")
    parser.add_argument("--minutes", type=int, default=20)
    parser.add_argument("--url", help="an empty PostgreSQL database; default: an embedded server made for this run")
    options = parser.parse_args()
    rows = options.devices * (1 + options.replicas) * 12
    with _server(options.url) as url:
        migrate.upgrade(url)
        database = Database(url)
        print(f"{options.devices} devices x {options.replicas} replicas, {rows} telemetry rows a minute; filling")
        _fill(database, options.devices, options.replicas, options.minutes)
        times = []
        for minute in range(1, options.minutes + 1):
            with database.transaction() as session:
                times.append(_account_minute(session, minute))
        with database.reading() as session:
            ledger = session.execute(text("SELECT count(*) FROM ledger")).scalar_one()
            wrong = session.execute(text("SELECT count(*) FROM ledger_check WHERE difference_usd <> 0")).scalar_one()
        database.dispose()
    times.sort()
    median = times[len(times) // 2]
    print(f"one minute: median {median:.2f} s, worst {times[-1]:.2f} s; {rows / median:,.0f} telemetry rows/s")
    print(f"ledger rows written: {ledger}; hours whose ledger differs from the bill: {wrong}")


if __name__ == "__main__":
    main()
