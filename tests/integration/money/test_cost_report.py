"""Cost reports: every grouping sums to the bill, and a project sees its own costs only."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from app.store.budgets import forecasts, note_risks
from app.store.ledger import Accounting, CostBy, CostQuery, CostReport, account, cost_report, focus_csv, held_spans
from app.store.telemetry import TelemetryWindow, service_series
from tests.integration.money.books import price
from tests.integration.money.telemetry import T0, Fleet, Holding, after

pytestmark = pytest.mark.integration


@pytest.fixture
def spent(session: Session, fleet: Fleet) -> Session:
    """Two projects on one device for two minutes around the top of an hour, another device idle."""
    start = after(3540)
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1", billed=(start, after(3660)))
    fleet.device("g2", billed=(start, after(3660)))
    holdings = [
        Holding(replica="vision/a#0", uuid="g1", share_pct_sm=50),
        Holding(replica="speech/b#0", uuid="g1", share_pct_sm=25),
    ]
    for nth in range(1, 25):
        fleet.report("n1", after(5 * nth, start), {"g1": 500.0, "g2": 100.0}, holdings)
    fleet.write()
    account(session, after(3700))
    return session


def _report(
    session: Session, by: CostBy, project: str | None = None, start_s: int = 600, end_s: int = 3700, label: str = "team"
) -> CostReport:
    query = CostQuery(
        by=by,
        accounting=Accounting.SHARE,
        start=after(start_s),
        end=after(end_s),
        project=project,
        label=label if by is CostBy.LABEL else None,
    )
    return cost_report(session, query)


def _labelled(session: Session, table: str, spec: str, **key: str) -> None:
    names = ", ".join(key)
    values = ", ".join(f":{name}" for name in key)
    session.execute(
        text(f"INSERT INTO {table} ({names}, spec) VALUES ({values}, CAST(:spec AS jsonb))"), {**key, "spec": spec}
    )


def test_cost_report_groups_and_sums_to_the_bill(spent: Session) -> None:
    """Every grouping has the same total: $0.24 for four device-minutes."""
    for by in CostBy:
        assert _report(spent, by).usd == Decimal("0.24"), by
    by_service = _report(spent, CostBy.SERVICE)
    assert (by_service.start, by_service.end) == (after(600), after(3720))
    assert [(row.key, row.usd) for row in by_service.rows] == [
        ("(idle)", Decimal("0.15")),
        ("vision/a", Decimal("0.06")),
        ("speech/b", Decimal("0.03")),
    ]
    assert [(row.key, row.usd, row.usd_idle) for row in _report(spent, CostBy.HOUR).rows] == [
        ("2026-03-02T10:00Z", Decimal("0.12"), Decimal("0.075")),
        ("2026-03-02T11:00Z", Decimal("0.12"), Decimal("0.075")),
    ]


def test_cost_report_of_a_project_shows_its_own_costs_only(spent: Session) -> None:
    """No idle, no neighbour."""
    report = _report(spent, CostBy.DEVICE, project="speech")
    assert [(row.key, row.usd, row.usd_idle) for row in report.rows] == [("g1", Decimal("0.03"), Decimal(0))]
    assert report.rows[0].share_gpu_h == pytest.approx(Decimal(2) / 60 / 4)


def test_cost_report_is_of_the_span_that_was_asked_for(spent: Session) -> None:
    """To the minute, within an hour and across its end; whole hours where minutes are gone."""
    for start_s, end_s, usd in ((3540, 3600, "0.12"), (3540, 3660, "0.24"), (3600, 3660, "0.12"), (0, 3600, "0.12")):
        report = _report(spent, CostBy.NODE, start_s=start_s, end_s=end_s)
        if start_s >= 3540:
            assert (report.start, report.end) == (after(start_s), after(end_s))
        assert report.usd == Decimal(usd), (start_s, end_s)
    assert _report(spent, CostBy.NODE, start_s=3660, end_s=7200).usd == 0
    account(spent, after(7200))
    spent.execute(text("DELETE FROM ledger WHERE minute < :top"), {"top": after(3600)})
    report = _report(spent, CostBy.NODE, start_s=3570, end_s=3660)
    assert (report.start, report.end, report.usd) == (T0, after(3660), Decimal("0.24"))


def test_cost_report_says_up_to_when_it_is_accounted(spent: Session) -> None:
    assert _report(spent, CostBy.HOUR, end_s=7200).accounted_until == after(3660)
    account(spent, after(7200))
    assert _report(spent, CostBy.HOUR, end_s=7200).accounted_until == after(5460)
    spent.execute(text("DELETE FROM accounting_marks"))
    assert _report(spent, CostBy.HOUR, end_s=7200).accounted_until is None


def test_costs_are_summed_by_label_with_the_project_as_a_fallback(spent: Session) -> None:
    _labelled(spent, "projects", '{"labels": [{"key": "team", "value": "sight"}]}', name="vision")
    _labelled(spent, "projects", "{}", name="speech")
    found = {row.key: row.usd for row in _report(spent, CostBy.LABEL).rows}
    assert found == {"(idle)": Decimal("0.15"), "sight": Decimal("0.06"), "(none)": Decimal("0.03")}
    _labelled(spent, "services", '{"labels": [{"key": "team", "value": "own"}]}', project="vision", name="a")
    _labelled(spent, "services", '{"labels": [{"key": "team", "value": "ears"}]}', project="speech", name="b")
    spent.execute(text("DELETE FROM services WHERE project = 'speech'"))
    found = {row.key: row.usd for row in _report(spent, CostBy.LABEL).rows}
    assert found == {"(idle)": Decimal("0.15"), "own": Decimal("0.06"), "ears": Decimal("0.03")}
    assert {row.key for row in _report(spent, CostBy.LABEL, label="other").rows} == {"(idle)", "(none)"}
    days = spent.execute(text("SELECT label_value, sum(usd_share) FROM cost_by_label_day GROUP BY 1")).all()
    assert {row[0]: row[1] for row in days} == found
    spent.execute(text("UPDATE services SET spec = '{}' WHERE project = 'vision'"))
    assert {row.key for row in _report(spent, CostBy.LABEL).rows} == {"(idle)", "sight", "ears"}


def test_budgets_are_held_against_the_month(spent: Session) -> None:
    """Two minutes cost $0.24 of all and $0.06 of vision, and nothing since; the rate is what that time came to."""
    _labelled(spent, "projects", '{"labels": [{"key": "team", "value": "sight"}]}', name="vision")
    _labelled(spent, "budgets", '{"usd_per_month": 1, "project": "vision"}', name="b")
    _labelled(spent, "budgets", '{"usd_per_month": 1000, "label": {"key": "team", "value": "sight"}}', name="c")
    _labelled(spent, "budgets", '{"usd_per_month": 1}', name="a")
    now = after(7200)
    account(spent, now, minutes_max=60)
    found = forecasts(spent, now)
    assert [(item.budget, item.label, round(item.usd_spent, 6), item.at_risk) for item in found] == [
        ("a", None, 0.24, True), ("b", None, 0.06, True), ("c", "team=sight", 0.06, False),
    ]  # fmt: skip
    until = after(7140)
    left_h = (datetime(2026, 4, 1, tzinfo=UTC) - until).total_seconds() / 3600
    assert found[0].usd_per_h == pytest.approx(0.24)
    assert found[0].usd_forecast == pytest.approx(0.24 + 0.24 * left_h)
    assert note_risks(spent, now) == 2
    spent.execute(text("UPDATE events SET at = :now"), {"now": now})
    assert note_risks(spent, now) == 0
    spent.execute(text("UPDATE events SET at = :earlier"), {"earlier": now - timedelta(days=2)})
    assert note_risks(spent, now) == 2
    assert note_risks(spent, now + timedelta(days=30)) == 0


@pytest.mark.parametrize("now_s", [3700, 7200, 90_000])
def test_the_rate_of_a_budget_is_of_the_minutes_that_were_accounted_for(spent: Session, now_s: int) -> None:
    """Two minutes at $7.20 an hour, around the top of an hour: however long nothing is accounted, that is the rate."""
    _labelled(spent, "budgets", '{"usd_per_month": 5000}', name="b")
    (found,) = forecasts(spent, after(now_s))
    assert found.usd_per_h == pytest.approx(7.2)
    left_h = (datetime(2026, 4, 1, tzinfo=UTC) - after(3660)).total_seconds() / 3600
    assert found.usd_forecast == pytest.approx(0.24 + 7.2 * left_h)
    assert found.at_risk


def test_the_rate_of_a_budget_is_of_whole_hours_where_minutes_are_dropped(spent: Session) -> None:
    """The first hour cost $0.12 in one minute; that it was one is not kept."""
    account(spent, after(9000), minutes_max=90)
    spent.execute(text("DELETE FROM ledger WHERE minute < :top"), {"top": after(3600)})
    _labelled(spent, "budgets", '{"usd_per_month": 5000}', name="b")
    (found,) = forecasts(spent, after(9000))
    assert found.usd_per_h == pytest.approx(0.24 / (8940 / 3600))


def test_where_nothing_was_spent_yet_no_budget_is_at_risk(session: Session) -> None:
    _labelled(session, "budgets", '{"usd_per_month": 1}', name="b")
    (found,) = forecasts(session, after(0))
    assert (found.usd_spent, found.usd_per_h, found.usd_forecast, found.at_risk) == (0.0, 0.0, 0.0, False)


def _hours_read(session: Session) -> int:
    """Rows of closed hours that this transaction has read so far, by an index or without one."""
    told = (
        "SELECT coalesce(idx_tup_fetch, 0) + seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'ledger_hours'"
    )
    return int(session.execute(text(told)).scalar_one())


def _earlier(session: Session, hours: str) -> None:
    """Closed hours as they are now, so many hours before as well."""
    names = session.execute(text("SELECT * FROM ledger_hours LIMIT 0")).keys()
    shown = ", ".join("hour - nth * INTERVAL '1 hour'" if name == "hour" else name for name in names)
    session.execute(text(f"INSERT INTO ledger_hours SELECT {shown} FROM ledger_hours, {hours} AS nth"))


def test_budgets_read_the_hours_of_the_month_once(spent: Session) -> None:
    """However many budgets there are, and however much there was before."""
    spent.execute(text("SET LOCAL enable_seqscan = off"))
    account(spent, after(7200))
    # Hours are closed up to the last minute that was accounted for.
    spent.execute(text("UPDATE accounting_marks SET at = :now WHERE name = 'accounted_until'"), {"now": after(7200)})
    (closed,) = spent.execute(text("SELECT count(*) FROM ledger_hours")).scalars()
    _earlier(spent, "generate_series(1500, 2000)")
    for number in range(5):
        _labelled(spent, "budgets", '{"usd_per_month": 1}', name=f"b{number}")
    was = _hours_read(spent)
    found = forecasts(spent, after(7200))
    assert {round(item.usd_spent, 6) for item in found} == {0.24}
    assert {round(item.usd_per_h, 9) for item in found} == {round(0.24 / 168, 9)}
    # The first of all hours is looked for, too.
    assert _hours_read(spent) - was <= closed + 1


def test_the_rate_of_a_budget_leaves_no_part_of_an_hour_out(spent: Session) -> None:
    """A dollar in each hour until half an hour ago."""
    account(spent, after(7200))
    _earlier(spent, "generate_series(1, 500)")
    spent.execute(text("UPDATE ledger_hours SET usd_share = CASE WHEN subject = 'vision/a#0' THEN 1 ELSE 0 END"))
    spent.execute(text("DELETE FROM ledger"))
    _labelled(spent, "budgets", '{"usd_per_month": 1000}', name="b")
    (found,) = forecasts(spent, after(5400))
    assert found.usd_per_h == pytest.approx(168 / 168.5)


def test_a_budget_of_a_label_counts_what_has_it_and_of_a_project_what_is_its(spent: Session) -> None:
    """Of a workload its own value, else its project's; where both are asked for, both have to hold."""
    _labelled(spent, "projects", '{"labels": [{"key": "team", "value": "sight"}]}', name="vision")
    _labelled(spent, "projects", '{"labels": [{"key": "team", "value": "sight"}]}', name="speech")
    _labelled(spent, "services", '{"labels": [{"key": "team", "value": "ears"}]}', project="speech", name="b")
    label = '"label": {"key": "team", "value": "%s"}'
    for name, wanted in {
        "sight": label % "sight", "ears": label % "ears", "none": label % "nobody",
        "both": f'"project": "speech", {label % "ears"}', "neither": f'"project": "vision", {label % "ears"}',
    }.items():  # fmt: skip
        _labelled(spent, "budgets", f'{{"usd_per_month": 1, {wanted}}}', name=name)
    found = {item.budget: round(item.usd_spent, 6) for item in forecasts(spent, after(7200))}
    assert found == {"sight": 0.06, "ears": 0.03, "both": 0.03, "neither": 0.0, "none": 0.0}


def test_labels_are_among_the_tags_of_focus(spent: Session) -> None:
    both = '{"labels": [{"key": "team", "value": "sight"}, {"key": "site", "value": "north"}]}'
    _labelled(spent, "projects", both, name="vision")
    own = '{"labels": [{"key": "team", "value": "own"}, {"key": "kind", "value": "mine"}]}'
    _labelled(spent, "services", own, project="vision", name="a")
    bill = spent.execute(text('SELECT sum("BilledCost") FROM cost_focus')).scalar_one()
    assert float(bill) == pytest.approx(0.24)
    tags = spent.execute(text('SELECT "SubAccountId", "Tags" FROM cost_focus')).all()
    found = {(project, said["kind"]): said for project, said in tags}
    expected = {"team": "own", "site": "north", "project": "vision", "workload": "vision/a", "kind": "replica"}
    assert expected.items() <= found["vision", "replica"].items()
    assert all({"team", "site"}.isdisjoint(said) for (project, _), said in found.items() if project != "vision")


def test_focus_is_written_as_the_view_has_it(spent: Session) -> None:
    written = io.StringIO()
    focus_csv(spent, after(600), after(3700), "vision", written)
    (line,) = csv.DictReader(written.getvalue().splitlines())
    assert (line["SubAccountId"], line["ChargePeriodStart"]) == ("vision", "2026-03-02T11:00:00Z")
    assert float(line["BilledCost"]) == 0.03
    assert line["x_AccountedUntil"] == "2026-03-02T11:01:00Z"
    whole = io.StringIO()
    focus_csv(spent, after(0), after(3700), None, whole)
    columns = spent.execute(text("SELECT * FROM cost_focus LIMIT 0")).keys()
    assert whole.getvalue().splitlines()[0] == ",".join([*columns, "x_AccountedUntil"])
    assert sum(float(item["BilledCost"]) for item in csv.DictReader(whole.getvalue().splitlines())) == pytest.approx(
        0.24
    )


def test_who_held_what_is_told_by_minutes_and_of_closed_hours_by_hours(session: Session, fleet: Fleet) -> None:
    """A replica that grows begins another span, one that paused, too; so it is with hours, once those are closed."""
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1", billed=(T0, after(4 * 3600)))
    shares = {0: 50, 60: 50, 120: 75, 3600: 75}
    for begun, share in shares.items():
        for nth in range(1, 13):
            at = after(begun + 5 * nth)
            fleet.report("n1", at, {"g1": 500.0}, [Holding(replica="vision/a#0", uuid="g1", share_pct_sm=share)])
    fleet.write()
    while account(session, after(4 * 3600), minutes_max=3000).behind:
        pass

    def spans(start_s: float, end_s: float) -> list[tuple[int, int, int]]:
        found = held_spans(session, ["g1", "g2"], after(start_s), after(end_s))
        assert {item.subject for item in found} == {"vision/a#0"}
        return [
            (item.share_pct_sm, int((item.start - T0).total_seconds()), int((item.until - T0).total_seconds()))
            for item in found
        ]

    assert spans(0, 4 * 3600) == [(50, 0, 120), (75, 120, 180), (75, 3600, 3660)]
    assert spans(60, 3600) == [(50, 60, 120), (75, 120, 180), (75, 3600, 3660)]
    assert spans(-86_400, 3 * 3600) == [(58, 0, 3600), (75, 3600, 7200)]


def test_a_series_tells_dollars_as_the_ledger_does(spent: Session) -> None:
    """By minutes where the window is short, else by the part of each hour that is accounted."""
    for step_s in (60.0, 10.0, 120.0):
        window = TelemetryWindow(since=after(3540), until=after(3660), step_s=step_s)
        assert {point.usd_per_h for point in service_series(spent, "vision/a", window)} == {1.8}, step_s
    by_hours = service_series(spent, "vision/a", TelemetryWindow(since=T0, until=after(9000), step_s=3600.0))
    # A minute of the first hour, and one of the single minute that the second has come to.
    assert [point.usd_per_h for point in by_hours] == pytest.approx([0.03, 1.8], rel=1e-3)
