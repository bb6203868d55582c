"""Roll-ups by minute and hour: counts, weighted quantiles, attainment, energy, late rows, retention."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Row, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from agents.wire import Report
from app.store.ledger import account, drop_minutes, drop_raw_telemetry, kept_bytes, roll_hours, roll_minutes
from app.store.telemetry import TelemetryWindow, device_series, service_series
from solvers.domain.device import PriceKind, PriceRow
from tests.integration.money.telemetry import T0, Fleet, Holding, account_again, after
from tests.integration.store.samples import put_rows, put_samples

pytestmark = pytest.mark.integration


def one(session: Session, statement: str, **values: object) -> Row[Any]:
    """The single row of a query."""
    return session.execute(text(statement), values).one()


def count(session: Session, table: str) -> int:
    """Rows in a table."""
    return int(session.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def test_service_minute_counts_quantiles_and_attainment(session: Session, fleet: Fleet) -> None:
    """Quantiles weigh by what each replica answered; refused at the edge counts against the SLO."""
    fast = Holding(
        replica="p/a#0", uuid="g1", share_pct_sm=40, arrived=90, completed=90, violated=3, energy_j=200,
        latency_ms_p50=10, latency_ms_p95=20, latency_ms_p99=30,
    )  # fmt: skip
    slow = Holding(
        replica="p/a#1", uuid="g2", share_pct_sm=20, arrived=10, completed=10, violated=5, dropped=2, energy_j=100,
        latency_ms_p50=50, latency_ms_p95=60, latency_ms_p99=130,
    )  # fmt: skip
    silent = Holding(replica="p/b#0", uuid="g2", share_pct_sm=20)
    for nth in range(1, 13):
        fleet.report("n1", after(5 * nth), {"g1": 500.0, "g2": 100.0}, [fast, slow, silent])
        fleet.edge(after(5 * nth), {"p/a": (104.0, 4.0), "p/nobody": (3.0, 3.0)})
    fleet.write()
    assert roll_minutes(session, T0, after(60)) == 5
    row = one(session, "SELECT * FROM service_minutes WHERE service = 'p/a'")
    assert (row.minute, row.project) == (T0, "p")
    counts = (row.offered, row.unrouted, row.arrived, row.completed, row.violated, row.dropped)
    assert counts == pytest.approx((1248, 48, 1200, 1200, 96, 24))
    assert (row.latency_ms_p50, row.latency_ms_p95, row.latency_ms_p99) == pytest.approx((14, 24, 40))
    assert row.latency_ms_p99_max == 130
    assert (row.replicas_mean, row.share_pct_sm_mean, row.energy_j) == pytest.approx((2, 60, 3600))
    assert row.slo_attainment == pytest.approx((1200 - 96) / (1200 + 24 + 48))
    assert one(session, "SELECT slo_attainment, offered FROM service_minutes WHERE service = 'p/b'") == (None, None)
    assert one(session, "SELECT slo_attainment, offered FROM service_minutes WHERE service = 'p/nobody'") == (0, 36)
    device = one(session, "SELECT * FROM device_minutes WHERE device_uuid = 'g1'")
    assert (device.observed_s, device.energy_j, device.power_w_mean, device.share_pct_sm_mean) == pytest.approx(
        (60, 6000, 100, 40)
    )
    assert (device.node_id, device.reports, device.unhealthy_s) == ("n1", 12, 0)


def test_a_report_across_minutes_is_split_and_hours_add_up(session: Session, fleet: Fleet) -> None:
    """Half-minute reports that straddle every minute, across the top of an hour."""
    start = after(3600 - 75)
    holding = Holding(replica="p/a#0", uuid="g1", completed=30, violated=3, latency_ms_p99=20)
    for nth in range(1, 6):
        fleet.report("n1", after(30 * nth, start), {"g1": 3000.0}, [holding], interval_s=30)
    fleet.write()
    roll_minutes(session, after(3000), after(4200))
    roll_hours(session, after(3000), after(4200))
    minutes = session.execute(text("SELECT completed FROM service_minutes ORDER BY minute")).scalars().all()
    assert minutes == pytest.approx([15, 60, 60, 15])
    hours = session.execute(text("SELECT hour, completed, slo_attainment FROM service_hours ORDER BY hour")).all()
    assert [row.hour for row in hours] == [T0, after(3600)]
    assert [row.completed for row in hours] == pytest.approx([75, 75])
    assert [row.slo_attainment for row in hours] == pytest.approx([0.9, 0.9])
    energy = session.execute(text("SELECT energy_j FROM device_hours ORDER BY hour")).scalars().all()
    assert energy == pytest.approx([7500, 7500])


def test_rolling_again_replaces_and_takes_late_rows(session: Session, fleet: Fleet) -> None:
    """The same minutes twice give the same rows; a row that came late is in the second."""
    holding = Holding(replica="p/a#0", uuid="g1", completed=10, energy_j=1 / 3)
    for nth in range(1, 12):
        fleet.report("n1", after(5 * nth), {"g1": 0.1}, [holding])
    fleet.write()
    roll_minutes(session, T0, after(60))
    first = session.execute(text("SELECT * FROM service_minutes")).all()
    roll_minutes(session, T0, after(60))
    assert session.execute(text("SELECT * FROM service_minutes")).all() == first
    fleet.report("n1", after(61), {"g1": 0.1}, [holding], observed_at=after(60))
    fleet.write()
    roll_minutes(session, T0, after(60))
    assert one(session, "SELECT completed FROM service_minutes").completed == pytest.approx(120)


def test_retention_drops_only_what_is_closed_and_keeps_hours(session: Session, fleet: Fleet) -> None:
    """Three days; raw kept one day, minutes two; nothing before accounting has closed the hours."""
    day = 86_400.0
    fleet.gpu_type("t4", 16384, PriceRow(kind=PriceKind.ON_DEMAND, usd_per_h=3.6))
    fleet.node("n1")
    fleet.device("g1", billed=(T0, after(60)))
    for days in range(3):
        for nth in range(1, 13):
            fleet.report("n1", after(5 * nth + days * day), {"g1": 1.0}, [Holding(replica="p/a#0", uuid="g1")])
    fleet.write()
    now = after(3 * day)
    assert drop_raw_telemetry(session, now, 1) == 0
    assert count(session, "device_samples") == 36
    account(session, after(1000), minutes_max=30)
    drop_raw_telemetry(session, now, 1)
    assert count(session, "device_samples") == 36, "the hours of these rows are open"

    done = account(session, now, minutes_max=5000)
    assert not done.behind
    drop_raw_telemetry(session, now, 1)
    drop_minutes(session, now, 2)
    assert [count(session, table) for table in ("device_samples", "replica_samples", "report_log")] == [12] * 3
    assert count(session, "device_minutes") == 2
    assert count(session, "ledger") == 0
    assert count(session, "device_hours") == 3
    assert (
        one(session, "SELECT sum(usd_share) FROM ledger_hourly")[0]
        == one(session, "SELECT sum(usd) FROM device_bills_hourly")[0]
    )
    for again in (account_again, roll_minutes):
        with pytest.raises(OperationalError, match="has been dropped"), session.begin_nested():
            again(session, T0, after(60))


def test_retention_drops_whole_partitions(session: Session, fleet: Fleet) -> None:
    """Partitions of past days go as tables, not row by row."""
    today = one(session, "SELECT date_trunc('day', now())")[0]
    fleet.gpu_type("t4", 16384, PriceRow(kind=PriceKind.ON_DEMAND, usd_per_h=3.6))
    fleet.node("n1")
    fleet.device("g1", billed=(today, today + timedelta(minutes=1)))
    fleet.report("n1", today + timedelta(seconds=30), {"g1": 1.0})
    fleet.write()
    now = today + timedelta(days=2, hours=1)
    while account(session, now, minutes_max=3000).behind:
        pass
    # A day of two tables, and eight times three hours of two, as far as they lie in it.
    assert 2 + 2 <= drop_raw_telemetry(session, now, 1) <= 2 + 2 * 8
    assert count(session, "device_samples") == 0
    # The minute before the first report, which may have begun in it, is of yesterday: two days of two tables.
    assert drop_minutes(session, now, 1) == 4
    assert count(session, "device_bill_hours") == 1


def _busy_hours(session: Session, fleet: Fleet) -> datetime:
    """Nine hours that end now, accounted and closed but for the last: a minute of reports in each; when they end."""
    now: datetime = one(session, "SELECT date_trunc('hour', now())")[0]
    for back in range(1, 10):
        low = now - timedelta(hours=back)
        for parent in ("sample_shapes", "node_samples", "device_sample_rows", "replica_sample_rows"):
            covered = text("SELECT count(*) FROM headroom_partitions(:parent) WHERE start_at <= :low AND end_at > :low")
            if not session.execute(covered, {"parent": parent, "low": low}).scalar_one():
                start = low.replace(hour=low.hour // 3 * 3)
                session.execute(
                    text(
                        f"CREATE TABLE {parent}_p{start:%Y%m%d%H} PARTITION OF {parent}"
                        f" FOR VALUES FROM ('{start}') TO ('{start + timedelta(hours=3)}')"
                    )
                )
    fleet.gpu_type("t4", 16384, PriceRow(kind=PriceKind.ON_DEMAND, usd_per_h=3.6))
    fleet.node("n1")
    fleet.device("g1", billed=(now - timedelta(hours=9), None))
    for back in range(9, 0, -1):
        for nth in range(1, 13):
            at = now - timedelta(hours=back) + timedelta(seconds=5 * nth)
            fleet.report("n1", at, {"g1": 5.0 * back}, [Holding(replica="p/a#0", uuid="g1", completed=10 * back)])
    fleet.write()
    while account(session, now, minutes_max=3000).behind:
        pass
    return now


@pytest.mark.parametrize("store", [put_samples, put_rows])
def test_samples_go_by_the_hours_and_the_log_stays(
    session: Session, store: Callable[[Session, Report, datetime], None]
) -> None:
    """Those too that a release before stored by the row."""
    now = _busy_hours(session, Fleet(session, store))
    drop_raw_telemetry(session, now, 2, hours=6)
    kept = one(session, "SELECT at FROM accounting_marks WHERE name = 'raw_kept_from'")[0]
    assert now - timedelta(hours=9) <= kept <= now - timedelta(hours=6)
    for table in ("device_samples", "replica_samples"):
        assert one(session, f"SELECT min(received_at) FROM {table}")[0] >= kept
    assert count(session, "report_log") == 9 * 12
    # Minutes answer for what is gone, with the same energy.
    window = TelemetryWindow(since=now - timedelta(hours=9), until=now, step_s=3600.0)
    device = device_series(session, "g1", window)
    assert [point.energy_j for point in device] == pytest.approx([60.0 * back for back in range(9, 0, -1)])
    assert [point.power_w for point in device] == pytest.approx([1.0 * back for back in range(9, 0, -1)])
    service = service_series(session, "p/a", window)
    assert [point.replicas for point in service] == [1] * 9
    assert [point.completed_rps for point in service] == pytest.approx([2.0 * back for back in range(9, 0, -1)])


def test_retention_is_by_size_too_and_open_hours_stay(session: Session, fleet: Fleet) -> None:
    """The oldest go first, of samples and of ledger and bills, as long as an hour holds what they said."""
    now = _busy_hours(session, fleet)
    bills = one(session, "SELECT sum(usd) FROM device_bills")[0]
    before = kept_bytes(session)
    assert drop_raw_telemetry(session, now, 2, hours=24, bytes_max=before.raw) == 0
    assert drop_raw_telemetry(session, now, 2, hours=24, bytes_max=before.raw - 1) >= 2
    first = kept_bytes(session).raw
    assert 0 < first < before.raw
    assert count(session, "device_samples") < 9 * 12
    drop_raw_telemetry(session, now, 2, hours=24, bytes_max=1)
    kept = one(session, "SELECT at FROM accounting_marks WHERE name = 'raw_kept_from'")[0]
    closed = one(session, "SELECT at FROM accounting_marks WHERE name = 'closed_until'")[0]
    assert closed - timedelta(hours=4) < kept < closed
    assert one(session, "SELECT min(received_at) FROM device_samples")[0] >= kept
    assert one(session, "SELECT max(received_at) FROM device_samples")[0] > closed
    assert one(session, "SELECT sum(usd) FROM device_bills")[0] == bills
    drop_minutes(session, now, 90, bytes_max=1)
    # Of the day that is not over nothing goes.
    today = one(session, "SELECT date_trunc('day', at) FROM accounting_marks WHERE name = 'closed_until'")[0]
    assert one(session, "SELECT min(minute) FROM ledger")[0] >= today
    assert kept_bytes(session).minutes > 1
