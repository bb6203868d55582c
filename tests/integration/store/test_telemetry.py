"""Partitions are there before their day, late rows move in, and series add up what was reported."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from app.clock import SystemClock
from app.settings import Settings
from app.store import ingest, nodes, telemetry
from app.store.engine import Database
from app.store.sql import driven, named
from app.store.telemetry import TelemetryWindow
from app.workers.scheduler import Housekeeping
from solvers.errors import FieldError, TransientError
from tests.integration.store.samples import device_report, edge_report, put_node, replica_report, report
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

PARENTS = ("node_samples", "rate_samples", "report_log", "sample_shapes")
PARTITIONS = """
SELECT child.relname FROM pg_inherits
JOIN pg_class child ON child.oid = inhrelid JOIN pg_class parent ON parent.oid = inhparent
WHERE parent.relname = :parent ORDER BY child.relname
"""
LOG_ROW = """
INSERT INTO report_log (received_at, source, boot_id, sequence, observed_at, interval_s, rows)
VALUES (:at, 'node/n1', 'b', :sequence, :at, 5, 0)
"""


def _today() -> datetime:
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def _partitions(session: Session, parent: str) -> list[str]:
    return list(session.execute(text(PARTITIONS), {"parent": parent}).scalars())


def _log(session: Session, *times: datetime) -> None:
    for sequence, at in enumerate(times):
        session.execute(text(LOG_ROW), {"at": at, "sequence": sequence})


def _homes(session: Session) -> list[str]:
    query = "SELECT tableoid::regclass::text FROM report_log ORDER BY received_at, sequence"
    return list(session.execute(text(query)).scalars())


def test_partitions_of_the_coming_days_are_made_once(database: Database) -> None:
    with database.transaction() as session:
        telemetry.ensure_partitions(session, 9)
        assert telemetry.ensure_partitions(session, 9) == 0
        days = [_today() + timedelta(days=ahead) for ahead in range(10)]
        for parent in PARENTS:
            expected = {f"{parent}_p{day:%Y%m%d}" for day in days} | {f"{parent}_default"}
            made = set(_partitions(session, parent))
            assert expected <= made or "sample" in parent
        covered = session.execute(
            text(
                "SELECT parent, min(start_at) <= now() AND max(end_at) >= now() + interval '36 hours'"
                " AND sum(end_at - start_at) = max(end_at) - min(start_at), max(end_at - start_at) = interval '3 hours'"
                " FROM unnest(CAST(:parents AS text[])) AS parent, headroom_partitions(parent) GROUP BY 1 ORDER BY 1"
            ),
            {"parents": list(PARENTS)},
        ).all()
        assert [tuple(row) for row in covered] == [
            ("node_samples", True, True),
            ("rate_samples", True, False),
            ("report_log", True, False),
            ("sample_shapes", True, True),
        ]


def test_rows_on_both_sides_of_midnight_go_to_their_day(database: Database) -> None:
    midnight = _today() + timedelta(days=1)
    around = (midnight - timedelta(microseconds=1), midnight, midnight + timedelta(days=1))
    with database.transaction() as session:
        telemetry.ensure_partitions(session, 3)
        _log(session, *around)
        days = [_today() + timedelta(days=ahead) for ahead in (0, 1, 2)]
        assert _homes(session) == [f"report_log_p{day:%Y%m%d}" for day in days]


def test_days_are_utc_days_whatever_the_session_thinks(database: Database) -> None:
    midnight = _today() + timedelta(days=1)
    with database.transaction() as session:
        # What became due since the database was made, which others may have done hours ago.
        telemetry.ensure_partitions(session, 7)
        session.execute(text("SET LOCAL timezone = 'Asia/Kolkata'"))
        session.execute(text(f"DROP TABLE report_log_p{midnight:%Y%m%d}"))
        assert telemetry.ensure_partitions(session, 7) == 1
        _log(session, midnight - timedelta(seconds=1), midnight)
        assert _homes(session) == [f"report_log_p{_today():%Y%m%d}", f"report_log_p{midnight:%Y%m%d}"]


def test_rows_without_a_partition_wait_and_move_in_when_it_is_made(database: Database) -> None:
    late = _today() + timedelta(days=12, hours=6)
    later = _today() + timedelta(days=40)
    with database.transaction() as session:
        _log(session, late, later)
        assert _homes(session) == ["report_log_default", "report_log_default"]
    with database.transaction() as session:
        telemetry.ensure_partitions(session, 12)
        assert _homes(session) == [f"report_log_p{late:%Y%m%d}", "report_log_default"]


def _waits(database: Database) -> bool:
    with database.reading() as session:
        return bool(session.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one())


def test_a_row_that_waits_while_its_partition_is_made_is_to_be_sent_again(database: Database) -> None:
    """It was on its way to the default partition, which must not hold it any more; no rule of ours refuses it."""
    late = _today() + timedelta(days=12, hours=6)

    def store() -> None:
        with database.transaction() as session:
            _log(session, late)

    with ThreadPoolExecutor(1) as pool:
        with database.transaction() as session:
            telemetry.ensure_partitions(session, 12)
            storing = pool.submit(store)
            wait_until(lambda: _waits(database))
        with pytest.raises(TransientError):
            storing.result()
    store()
    with database.reading() as session:
        assert _homes(session) == [f"report_log_p{late:%Y%m%d}"]


def test_rows_that_move_in_are_seen_by_who_looks_for_them_meanwhile(database: Database) -> None:
    """Else a report that is sent again would be stored again."""
    late = _today() + timedelta(days=12, hours=6)
    with database.transaction() as session:
        _log(session, late)

    def logged() -> list[tuple[str, str, int]]:
        with database.raw() as connection:
            wanted = {"sources": ["node/n1"], "boots": ["b"], "sequences": [0]}
            return connection.execute(driven(named("logged_reports")), wanted).fetchall()

    with ThreadPoolExecutor(1) as pool:
        with database.transaction() as session:
            telemetry.ensure_partitions(session, 12)
            looking = pool.submit(logged)
            wait_until(lambda: _waits(database))
        assert looking.result() == [("node/n1", "b", 0)]
    with database.reading() as session:
        assert _homes(session) == [f"report_log_p{late:%Y%m%d}"]


def test_making_partitions_waits_for_nobody_who_waits_for_it(database: Database) -> None:
    """Whoever reads a table and then another one, as accounting does, is let through in between."""
    with database.transaction() as session:
        for parent in ("node_samples", "report_log"):
            parts = session.execute(text("SELECT part FROM headroom_partitions(:parent)"), {"parent": parent}).scalars()
            session.execute(text(f"DROP TABLE {list(parts)[-1]}"))
    retain = partial(Housekeeping(database, Settings(cluster="test"), SystemClock()).retain, lambda: None)
    with ThreadPoolExecutor(1) as pool:
        with database.transaction() as session:
            session.execute(text("SELECT count(*) FROM report_log"))
            retaining = pool.submit(retain)
            wait_until(lambda: _waits(database))
            session.execute(text("SELECT count(*) FROM device_samples"))
        retaining.result()


def _send(database: Database) -> None:
    with database.transaction() as session:
        put_node(session, "n1")
    both = [
        replica_report("vision/a#0", "GPU-1"),
        replica_report("vision/a#1", "GPU-2", completed=0.0, latency_ms_p50=None),
    ]
    devices = [device_report("GPU-1", 50.0), device_report("GPU-2", 30.0)]
    with database.raw() as connection:
        ingest.ingest(connection, [report("n1", 1, devices=devices, replicas=both)])
    devices = [device_report("GPU-1", 100.0)]
    with database.raw() as connection:
        ingest.ingest(connection, [report("n1", 2, generation=4, devices=devices, replicas=both[:1])])
        rates = [edge_report(1, {"vision/a": 20.0, "vision/b": 1.0}), edge_report(2, {"vision/a": 40.0})]
        ingest.ingest(connection, [*rates, edge_report(1, {"vision/a": 5.0}, gateway="other")])


def _window(step_s: float = 3600.0) -> TelemetryWindow:
    now = datetime.now(UTC)
    return TelemetryWindow(since=now - timedelta(minutes=30), until=now + timedelta(minutes=30), step_s=step_s)


def test_a_device_series_averages_over_time(database: Database) -> None:
    _send(database)
    with database.reading() as session:
        (point,) = telemetry.device_series(session, "GPU-1", _window())
        assert (point.power_w, point.energy_j, point.clock_mhz_sm, point.healthy) == (75.0, 750.0, 1590.0, True)
        assert telemetry.device_series(session, "GPU-none", _window()) == ()


def test_a_service_series_sums_replicas_and_gateways(database: Database) -> None:
    _send(database)
    with database.reading() as session:
        (point,) = telemetry.service_series(session, "vision/a", _window())
        assert (point.offered_rps, point.unrouted_rps) == (35.0, 0.0)
        assert (point.arrived_rps, point.completed_rps, point.replicas) == (20.0, 10.0, 2)
        assert (point.latency_ms_p50, point.latency_ms_p99, point.violation_fraction) == (20.0, 60.0, 0.03)
        # Three intervals kept all but one of 50, one of them served none; 100 J each.
        assert (point.slo_attainment, point.energy_j_per_request) == (0.97, 3.0)
        (unserved,) = telemetry.service_series(session, "vision/b", _window())
        assert (unserved.offered_rps, unserved.completed_rps, unserved.replicas) == (1.0, None, 0)
        assert (unserved.slo_attainment, unserved.energy_j_per_request, unserved.usd_per_h) == (None, None, None)


def test_series_are_cut_into_steps(database: Database) -> None:
    since = _today() + timedelta(hours=1)
    with database.transaction() as session:
        for minute in (0, 0.5, 1, 3):
            session.execute(
                text("INSERT INTO rate_samples VALUES (:at, :at, 'edge', 'b', 1, 'vision/a', 'vision', 60, 1, 0)"),
                {"at": since + timedelta(minutes=minute)},
            )
        window = TelemetryWindow(since=since, until=since + timedelta(minutes=3), step_s=60.0)
        points = telemetry.service_series(session, "vision/a", window)
    assert [point.at for point in points] == [since, since + timedelta(minutes=1)]
    assert [point.offered_rps for point in points] == [60.0, 60.0]


@pytest.mark.parametrize(("seconds", "step_s"), [(60.0, 0.0), (60.0, -5.0), (0.0, 1.0), (-60.0, 1.0), (1e6, 1.0)])
def test_windows_that_make_no_sense_are_refused(seconds: float, step_s: float) -> None:
    since = datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(FieldError):
        TelemetryWindow(since=since, until=since + timedelta(seconds=seconds), step_s=step_s)


LONG_AGO = """
CREATE TABLE {parent}_p2020010100 PARTITION OF {parent}
FOR VALUES FROM ('2020-01-01 00:00+00') TO ('2020-01-01 03:00+00')
"""


@pytest.mark.parametrize("name", ["newest_of_devices", "newest_of_replicas", "metered_ready", "fleet_counts"])
def test_what_is_newest_is_not_looked_for_in_samples_of_hours_ago(database: Database, name: str) -> None:
    with database.raw() as connection, connection.transaction(force_rollback=True):
        for parent in ("sample_shapes", "node_samples"):
            connection.execute(LONG_AGO.format(parent=parent).encode())
        found = connection.execute(b"EXPLAIN " + driven(named(name)), {"silent_s": 60.0, "cluster": "main"}).fetchall()
    plan = "\n".join(line for (line,) in found)
    assert "node_samples_p" in plan
    assert "node_samples_p2020010100" not in plan, plan


ASKED = "EXPLAIN SELECT max({column}) FROM {view} WHERE received_at > {since} AND node_id = 'n1'"


@pytest.mark.parametrize("since", ["now() - INTERVAL '5 minutes'", "date_trunc('minute', now())"])
@pytest.mark.parametrize(
    ("view", "rows", "column"),
    [("device_samples", "device_sample_rows", "power_w"), ("replica_samples", "replica_sample_rows", "energy_j")],
)
def test_who_names_times_and_a_node_reads_no_more(
    database: Database, view: str, rows: str, column: str, since: str
) -> None:
    """By the names of the views, whatever lies under them."""
    with database.raw() as connection, connection.transaction(force_rollback=True):
        for parent in ("sample_shapes", "node_samples", rows):
            connection.execute(LONG_AGO.format(parent=parent).encode())
        # Of so few rows the database would rather read all.
        connection.execute("SET LOCAL enable_seqscan = off")
        found = connection.execute(ASKED.format(view=view, column=column, since=since).encode()).fetchall()
    plan = "\n".join(line for (line,) in found)
    assert "node_samples_p" in plan
    assert "node_samples_p2020010100" not in plan, plan
    assert f"{rows}_p2020010100" not in plan, plan
    assert "Index Cond: ((node_id = 'n1'::text) AND (received_at >" in plan, plan


def test_autovacuum_reads_no_telemetry_that_goes_with_its_partition(database: Database) -> None:
    with database.reading() as session:
        read = session.execute(
            text(
                "SELECT part::text FROM unnest(CAST(:parents AS text[])) AS parent, headroom_partitions(parent)"
                " JOIN pg_class ON pg_class.oid = part"
                " WHERE NOT coalesce(reloptions, '{}') @> '{autovacuum_vacuum_insert_threshold=-1}'"
            ),
            {"parents": list(PARENTS)},
        ).scalars()
        assert list(read) == []


def test_planning_sees_only_each_nodes_newest_report(database: Database) -> None:
    _send(database)
    with database.reading() as session:
        assert [(row.uuid, row.power_w) for row in telemetry.devices(session, 60.0)] == [("GPU-1", 100.0)]
        assert [row.replica for row in telemetry.replicas(session, 60.0)] == ["vision/a#0"]
        node = nodes.get(session, "n1")
        assert node.generation_applied == 4
        assert node.age_s is not None
        assert 0 <= node.age_s < 60
        seen = telemetry.demand(session, window_s=60.0, lookback_s=180.0, bin_s=10.0)
        demand = {row.service: row.rate_rps_mean for row in seen}
        assert demand == {"vision/a": 35.0, "vision/b": 1.0}
