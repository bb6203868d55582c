"""Telemetry that comes late, minutes accounted again, and the minute at midnight: nothing is lost or counted twice."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.store import ledger as books
from app.store.ledger import account
from tests.integration.money.books import FULL, assert_sums, ledger, only, price, report_minutes
from tests.integration.money.telemetry import T0, Fleet, Holding, account_again, after

pytestmark = pytest.mark.integration


def test_reports_resent_after_an_outage_land_where_they_were_measured(session: Session, fleet: Fleet) -> None:
    """A node cut off for two minutes sends its buffer at once; its clock is 100 s ahead all the while."""
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1")
    for nth in range(1, 13):
        fleet.report("n1", after(5 * nth), {"g1": 500.0}, [FULL], observed_at=after(5 * nth + 100))
    fleet.write()
    assert account(session, after(205)).minutes_late == 0
    assert [only(ledger(session, after(60 * nth))).kind for nth in (1, 2)] == ["unobserved"] * 2
    for nth in range(13, 37):
        fleet.report("n1", after(206), {"g1": 500.0}, [FULL], observed_at=after(5 * nth + 100))
    fleet.write()
    done = account(session, after(265))
    assert (done.minutes_late, done.minutes_new, done.accounted_until) == (2, 1, after(240))
    assert [only(ledger(session, after(60 * nth))).kind for nth in (0, 1, 2)] == ["replica"] * 3
    assert only(ledger(session, after(180))).kind == "unobserved"
    assert_sums(session)
    energy = session.execute(text("SELECT sum(energy_j) FROM device_minutes WHERE device_uuid = 'g1'")).scalar_one()
    assert energy == pytest.approx(36 * 500.0)


def _drained(fleet: Fleet, kept: list[float], *, clock_s: float, start_s: float, boot_id: str = "boot-1") -> None:
    """What was kept comes in requests of fifty, the oldest first, seven seconds apart."""
    for nth, begun in enumerate(range(0, len(kept), 50)):
        for at in kept[begun : begun + 50]:
            received_at, observed_at = after(start_s + 7 * nth), after(at + clock_s)
            fleet.report("n1", received_at, {"g1": 500.0}, [FULL], observed_at=observed_at, boot_id=boot_id)


@pytest.mark.parametrize("clock_s", [0, -100, 100], ids=["right", "slow", "fast"])
@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies"])
def test_what_was_kept_for_long_lands_where_it_was_measured(
    session: Session, fleet: Fleet, clock_s: float, dies: bool
) -> None:
    """Forty minutes without a way to the control plane. An agent that began anew meanwhile speaks for itself first."""
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1", billed=(T0, None))
    for nth in range(1, 61):
        fleet.report("n1", after(5 * nth), {"g1": 500.0}, [FULL], observed_at=after(5 * nth + clock_s))
    fleet.write()
    account(session, after(2700), minutes_max=60)
    kept, living = [5.0 * nth for nth in range(61, 563)], "boot-1"
    if dies:
        kept, living = [at for at in kept if at < 2735.0], "boot-2"
        _drained(fleet, [2735.0], clock_s=clock_s, start_s=2735.0, boot_id=living)
    _drained(fleet, kept, clock_s=clock_s, start_s=2740.0)
    since = [5.0 * nth for nth in range(548, 563)] if dies else []
    _drained(fleet, since, clock_s=clock_s, start_s=2810.0, boot_id=living)
    for nth in range(563, 610):
        _drained(fleet, [5.0 * nth], clock_s=clock_s, start_s=5.0 * nth, boot_id=living)
    fleet.write()
    for passed_s in (2780, 2840, 3045):
        account(session, after(passed_s), minutes_max=60)
    unseen = text("SELECT minute, seconds FROM ledger WHERE kind = 'unobserved' AND seconds > 0.001 AND minute < :end")
    assert session.execute(unseen, {"end": after(2940)}).all() == []
    energy = text("SELECT sum(energy_j) FROM device_minutes WHERE minute < :end")
    assert session.execute(energy, {"end": after(2700)}).scalar_one() == pytest.approx(540 * 500.0)
    assert_sums(session)


def test_a_report_committed_after_accounting_looked_is_not_lost(session: Session, fleet: Fleet) -> None:
    """Its arrival time lies before the last run, but it became visible only afterwards."""
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1")
    report_minutes(fleet, 1, [FULL])
    assert account(session, after(142)).accounted_until == after(120)
    assert only(ledger(session, after(60))).kind == "unobserved"
    fleet.report("n1", after(138), {"g1": 6000.0}, [FULL], interval_s=30, observed_at=after(120))
    fleet.write()
    assert account(session, after(150)).minutes_late == 1
    assert only(ledger(session, after(60)), kind="replica").seconds == 30
    assert account(session, after(165)).minutes_late == 0


def test_accounting_again_changes_nothing(session: Session, fleet: Fleet) -> None:
    """Not a row, not a digit, whether the hour is open or closed; and only on request once it is closed."""
    fleet.gpu_type("t4", 16384, price(1.0))
    fleet.node("n1")
    fleet.device("g1", billed=(T0, after(600)))
    report_minutes(fleet, 10, [Holding(replica="p/a#0", uuid="g1", share_pct_sm=37, energy_j=71.0)])
    done = account(session, after(700))
    assert (done.accounted_until, done.behind) == (after(660), False)
    before = _everything(session)
    assert len(before["ledger"]) == 20
    account(session, after(700))
    account_again(session, T0, after(600))
    assert _everything(session) == before

    done = account(session, after(3600 + 900 + 60), minutes_max=600)
    assert done.closed_until == after(3600)
    hours = session.execute(text("SELECT sum(usd_share) FROM ledger_hours")).scalar_one()
    assert hours == session.execute(text("SELECT sum(usd) FROM device_bills")).scalar_one()
    with pytest.raises(OperationalError, match="is closed"), session.begin_nested():
        session.execute(text("SELECT headroom_account_minutes(:a, :b)"), {"a": T0, "b": after(60)})
    account_again(session, T0, after(60))
    assert session.execute(text("SELECT sum(usd_share) FROM ledger_hours")).scalar_one() == hours
    after_all = _everything(session)
    assert after_all["ledger"][:20] == before["ledger"]


def _everything(session: Session) -> dict[str, list[tuple[Any, ...]]]:
    return {
        table: [tuple(row) for row in session.execute(text(f"SELECT * FROM {table} ORDER BY 1, 2, 3, 4"))]
        for table in ("ledger", "device_bills", "device_minutes", "service_minutes", "device_hours", "service_hours")
    }


def test_the_minute_at_midnight_belongs_to_both_days(session: Session, fleet: Fleet) -> None:
    """Reports received just after midnight UTC count in the last minute of the day before, in another partition."""
    midnight = datetime(2026, 3, 3, tzinfo=T0.tzinfo)
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1", billed=(midnight - timedelta(minutes=2), midnight + timedelta(minutes=2)))
    full = [Holding(replica="p/a#0", uuid="g1", share_pct_sm=100, memory_mib_used=16384, energy_j=1000, completed=10)]
    for nth in range(25):
        fleet.report("n1", midnight + timedelta(seconds=10 * nth - 117), {"g1": 1000.0}, full, interval_s=10)
    fleet.write()
    account(session, midnight + timedelta(minutes=3))
    assert_sums(session)
    rows = session.execute(text("SELECT minute, kind, seconds FROM ledger ORDER BY 1, 2")).all()
    assert [(row.kind, row.seconds) for row in rows] == [("replica", 60)] * 4
    parts = session.execute(text("SELECT DISTINCT tableoid::regclass::text FROM ledger ORDER BY 1")).scalars().all()
    assert parts == ["ledger_p20260302", "ledger_p20260303"]
    answered = session.execute(text("SELECT sum(completed) FROM service_minutes")).scalar_one()
    assert answered == pytest.approx(250 - 10 * 0.3)


def samples_read(session: Session) -> int:
    """By this transaction so far, by an index or without one."""
    told = text("""
        SELECT sum(coalesce(idx_tup_fetch, 0) + seq_tup_read) FROM pg_stat_xact_user_tables
        WHERE relname ~ '^node_samples'""")
    return int(session.execute(told).scalar_one())


@pytest.mark.parametrize("function", ["headroom_write_ledger", "headroom_roll_minutes"])
def test_a_minute_is_made_of_what_was_heard_however_much_came_since(
    session: Session, fleet: Fleet, function: str
) -> None:
    """Of so few rows the database would rather read all."""
    session.execute(text("SET LOCAL enable_seqscan = off"))
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1")
    report_minutes(fleet, 30, [FULL])
    account(session, after(1825))
    # So that it knows how few, whenever the server has last counted on its own.
    session.execute(text("ANALYZE node_samples, sample_shapes"))
    before, was = samples_read(session), _everything(session)
    session.execute(text(f"SELECT {function}(:start, :end)"), {"start": after(60), "end": after(120)})
    # Thirteen reports are of that minute, the last one partly; what devices and what replicas say is read for itself.
    assert 0 < samples_read(session) - before < 40
    assert _everything(session) == was


def test_a_clock_is_judged_by_this_minute_and_fifteen_before(session: Session, fleet: Fleet) -> None:
    """The first report came at once, all others two seconds late, like those of a host whose clock is slow."""
    for nth in range(1, 12 * 17 + 1):
        fleet.report("n1", after(5 * nth - 1), {}, observed_at=after(5 * nth - (1 if nth == 1 else 3)))
    fleet.write()
    behind = text("""
        SELECT date_trunc('minute', h.received_at) AS minute, min(h.end_at - l.observed_at),
            max(h.end_at - l.observed_at)
        FROM headroom_heard(:start, :end) h JOIN report_log l USING (source, boot_id, sequence, received_at)
        GROUP BY 1 ORDER BY 1""")
    found = session.execute(behind, {"start": after(14 * 60), "end": after(17 * 60)}).all()
    in_step, late = timedelta(0), timedelta(seconds=2)
    assert [tuple(row) for row in found] == [
        (after(14 * 60), in_step, in_step), (after(15 * 60), in_step, in_step), (after(16 * 60), late, late),
    ]  # fmt: skip
    # Whoever asks for less of it is told the same.
    again = session.execute(behind, {"start": after(15 * 60 + 7), "end": after(17 * 60)}).all()
    assert [tuple(row) for row in again] == [(after(15 * 60), in_step, in_step), (after(16 * 60), late, late)]


def test_a_large_fleet_catches_up_in_statements_that_end_in_time(
    session: Session, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books, "CHUNK_DEVICE_MINUTES", 4)
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    for uuid in ("g1", "g2"):
        fleet.device(uuid)
    report_minutes(fleet, 5, [FULL])
    spans: list[timedelta] = []

    def note(_connection: object, _cursor: object, statement: str, told: dict[str, datetime], *_: object) -> None:
        if "headroom_account_minutes" in statement:
            spans.append(told["end"] - told["start"])

    event.listen(session.connection(), "before_cursor_execute", note)
    done = account(session, after(325))
    assert (done.minutes_new, done.behind) == (6, False)
    assert [span.total_seconds() for span in spans] == [120, 120, 120]
    assert_sums(session)
