"""What people and BI tools read: every query of docs/reference/sql.md, the views' own promises, and the read-only
role."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Row, text, update
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session

from app import kinds
from app.store import migrate, outcomes
from app.store.engine import Database
from app.store.ledger import Accounting, CostBy, CostQuery, account, cost_report, held_spans
from app.store.tables import TABLES
from solvers.domain.codec import to_plain
from solvers.domain.device import Node, PriceKind, PriceRow
from solvers.domain.ids import NodeId
from tests.integration.money.books import price, report_minutes
from tests.integration.money.telemetry import T0, Fleet, Holding, after, make_gpu_type, migrated
from tests.integration.postgres import Server
from tests.integration.store.samples import put, put_project, task

pytestmark = pytest.mark.integration

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "sql.md"
BLOCKS = re.findall(r"^### ([^\n]+)\n(?:(?!^###).)*?^```sql\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
QUERIES = dict(BLOCKS)
VIEWS = (
    "cost_by_service_hour", "cost_by_project_day", "cost_by_label_day", "idle_by_device_hour", "slo_by_service_hour",
    "slo_by_service_minute", "energy_by_device_hour", "ledger_check", "cost_focus", "prediction_error_by_model_hour",
    "outcome_by_verdict_hour", "task_outcomes", "task_error_by_model",
)  # fmt: skip
FOCUS_COLUMNS = {
    "BilledCost", "EffectiveCost", "ListCost", "ContractedCost", "BillingCurrency", "ConsumedQuantity", "ConsumedUnit",
    "PricingQuantity", "PricingUnit", "ListUnitPrice", "ContractedUnitPrice", "PricingCategory", "ChargeCategory",
    "ChargeClass", "ChargeDescription", "ChargeFrequency", "ChargePeriodStart", "ChargePeriodEnd", "BillingPeriodStart",
    "BillingPeriodEnd", "ResourceId", "ResourceName", "ResourceType", "ServiceCategory", "ServiceName",
    "ServiceSubcategory", "SkuId", "SkuMeter", "SkuPriceId", "SkuPriceDetails", "RegionId", "RegionName",
    "SubAccountId", "SubAccountName", "SubAccountType", "BillingAccountId", "BillingAccountName", "BillingAccountType",
    "ProviderName", "PublisherName", "InvoiceIssuerName", "Tags",
}  # fmt: skip


@pytest.fixture(scope="module")
def filled(server: Server) -> Iterator[Database]:
    """A database with two days of money in it."""
    with migrated(server, "spent") as database:
        with database.transaction() as session:
            _spend(session, Fleet(session))
        yield database


@pytest.fixture
def spent(filled: Database) -> Iterator[Session]:
    """That database as the read-only role sees it."""
    with filled.reading() as session:
        session.execute(text("SET LOCAL ROLE headroom_reader"))
        yield session


def _spend(session: Session, fleet: Fleet) -> None:
    """Since yesterday's midnight: two busy devices, an idle one, one that is silent, in reports of five minutes."""
    now: datetime = session.execute(text("SELECT date_trunc('minute', now())")).scalar_one()
    start = now.replace(hour=0, minute=0) - timedelta(days=1)
    kinds = [PriceRow(kind=kind, usd_per_h=usd) for kind, usd in ((PriceKind.ON_DEMAND, 3.6), (PriceKind.OWNED, 0.5))]
    fleet.policy(0.36, 1.5)
    fleet.gpu_type("v100", 32768, *kinds)
    fleet.node("n1")
    fleet.node("n2", price_kind=PriceKind.OWNED)
    for uuid, node in (("g1", "n1"), ("g2", "n1"), ("g3", "n2"), ("silent", "n2")):
        fleet.device(uuid, node=node, gpu_type="v100", memory_mib=32768, billed=(start, None))
    holdings = [
        _serving("vision/a#0", "g1", share_pct_sm=50, energy_j=9000),
        _serving("speech/b#0", "g1", share_pct_sm=30, energy_j=6000),
        _serving("speech/c#0", "g3", share_pct_sm=40, energy_j=6000),
        Holding(replica="train/d#0", uuid="g3", share_pct_sm=60, energy_j=30000, kind="job"),
    ]
    moment = start
    while moment + timedelta(minutes=5) <= now:
        moment += timedelta(minutes=5)
        fleet.report("n1", moment, {"g1": 30000.0, "g2": 9000.0}, holdings[:2], interval_s=300)
        fleet.report("n2", moment, {"g3": 45000.0}, holdings[2:], interval_s=300)
        fleet.edge(moment, {"vision/a": (3005.0, 5.0), "speech/b": (3000.0, 0.0)}, interval_s=300)
    fleet.write()
    outcomes.add_hours(session, [_hour(now, "admitted", predicted=40), _hour(now, "throttled", predicted=10)])
    _finish_task(session)
    while account(session, now + timedelta(seconds=30), minutes_max=720).behind:
        pass


def _finish_task(session: Session) -> None:
    """One that took ten seconds of its hour, 20 % slower than its plan believed."""
    put_project(session)
    put(session, kinds.TASK, task("night"))
    session.execute(text("UPDATE tasks SET created_at = now() - interval '10 seconds' WHERE name = 'night'"))
    session.execute(
        text(
            "INSERT INTO job_progress (kind, project, name, done, executions, executed_ms, begun_at, finished_at)"
            " VALUES ('task', 'vision', 'night', 10, 2, 200, now(), now())"
        )
    )
    place = {
        "replica": "vision/night#0", "kind": "task", "workload": "vision/night", "device": "g1", "batch": 8,
        "share_pct_sm": 20, "capacity_rps": 100.0,
    }  # fmt: skip
    session.execute(
        text(
            "INSERT INTO plans (id, lane, state, parent_generation, planner, document, cost_usd_per_h, created_by)"
            " VALUES ('p', 'act', 'promoted', 0, 'oltunes', :document, 1, 'test')"
        ),
        {"document": json.dumps({"assignments": [place]})},
    )
    session.execute(
        text(
            "INSERT INTO target_history (generation, plan_id, parent_generation, promoted_by, promoted_at)"
            " VALUES (1, 'p', 0, 'test', now() - interval '10 seconds')"
        )
    )


def _hour(now: datetime, verdict: str, predicted: int) -> outcomes.HourCounts:
    """Outcomes of this hour, all of them predicted 10 % too slow."""
    return outcomes.HourCounts(
        hour=now.replace(minute=0), model="resnet50", gpu_type="v100", verdict=verdict, outcomes=predicted,
        executions=100.0 * predicted, predicted=predicted, error_sum=0.1 * predicted, error_abs_sum=0.1 * predicted,
        error_square_sum=0.01 * predicted, error_abs_max=0.1, inside_80=predicted // 2, inside_95=predicted,
    )  # fmt: skip


def _serving(replica: str, uuid: str, *, share_pct_sm: int, energy_j: float) -> Holding:
    return Holding(
        replica=replica, uuid=uuid, share_pct_sm=share_pct_sm, energy_j=energy_j,
        arrived=3000, completed=2990, violated=15, dropped=10, latency_ms_p50=20, latency_ms_p95=50, latency_ms_p99=70,
    )  # fmt: skip


def rows(session: Session, title: str) -> Sequence[Row[Any]]:
    """What a query of the page answers."""
    return session.execute(text(QUERIES[title])).all()


def test_every_query_of_the_page_answers_sensibly(spent: Session) -> None:
    """Not empty, nothing negative, no column without any value; as the read-only role."""
    assert len(BLOCKS) == len(QUERIES) >= 10
    for title in QUERIES:
        found = rows(spent, title)
        assert found, title
        for column in zip(*found, strict=True):
            assert any(value is not None for value in column), (title, found)
            assert all(value >= 0 for value in column if isinstance(value, int | float | Decimal)), (title, found)


def test_what_became_of_tasks(spent: Session) -> None:
    """Eight inputs at 100/s are believed to take 80 ms; they took 100."""
    (found,) = rows(spent, "Which tasks kept their deadline?")
    assert (found.task_group, found.tasks, found.kept) == (["vision/night"], 1, 1)
    assert (found.took_s_mean, found.error_pct_mean) == (Decimal("10.0"), Decimal("20.0"))


def test_costs_of_yesterday(spent: Session) -> None:
    """24 h at $3.60 and $0.50, by share and by whole GPU."""
    by_service = {row.service: row for row in rows(spent, "What did each service cost yesterday?")}
    assert by_service["vision/a"].usd_share == Decimal("43.2000")
    assert by_service["vision/a"].usd_whole == Decimal("54.0000")
    assert by_service["train/d"].usd_share == Decimal("7.2000")
    assert by_service["train/d"].kind == "job"
    assert by_service["vision/a"].usd_memory == Decimal("2.7000")


def test_derived_figures(spent: Session) -> None:
    """Attainment, requests, energy, reserved memory, waste and check, each worked out by hand."""
    slo = {row.service: row for row in rows(spent, "Who keeps the SLO?")}
    assert slo["vision/a"].attainment_pct == pytest.approx(Decimal(100 * 2975) / 3005, abs=Decimal("0.01"))
    assert slo["speech/b"].worst_p99_ms == 70
    per_million = {row.service: row for row in rows(spent, "Dollars per million requests")}
    assert per_million["vision/a"].usd_share_per_million == pytest.approx(Decimal("50.17"), rel=Decimal("0.05"))
    energy = {row.service: row for row in rows(spent, "Energy per request, and carbon on a grid of 400 gCO2/kWh")}
    assert energy["speech/b"].joules_per_request == pytest.approx(Decimal("2.007"), rel=Decimal("0.05"))
    reserved = {row.service: row for row in rows(spent, "Used, reserved or occupied: one service under three rules")}
    assert reserved["vision/a"].usd_reserved == pytest.approx(2 * reserved["vision/a"].usd_used, rel=Decimal("0.001"))
    blind = {row.node_id: row for row in rows(spent, "What does flying blind cost?")}
    assert blind["n2"].observed_pct == pytest.approx(Decimal(50), abs=1)
    idle = {row.device_uuid: row.idle_pct for row in rows(spent, "What do we pay for nothing, by device?")}
    assert idle["g2"] == pytest.approx(Decimal(100), abs=1)
    assert idle["g3"] == 0
    (off,) = rows(spent, "How far off are predictions?")
    assert (off.outcomes, off.error_pct_mean, off.error_pct_max, off.coverage_95_pct) == (40, 10, 10, 100)
    reasons = {row.verdict: row.pct for row in rows(spent, "Why were measurements not learned from?")}
    assert reasons == {"admitted": 80, "throttled": 20}
    checks = rows(spent, "Does the ledger sum to the bill?")
    assert {row.accounting for row in checks} == {"memory", "share", "whole", "energy"}
    assert all(row.difference_usd_max == 0 and row.bill_usd == row.ledger_usd > 0 for row in checks)
    showback = rows(spent, "Showback: this and last month by project, idle shared out in proportion")
    assert {row.project for row in showback} == {"vision", "speech", "train"}


def test_every_grouping_sums_to_the_same_bill(spent: Session) -> None:
    """Projects with nobody's part, FOCUS rows, devices."""
    bill = spent.execute(text("SELECT sum(usd) FROM idle_by_device_hour")).scalar_one()
    for statement in (
        "SELECT sum(usd_share) FROM cost_by_project_day",
        "SELECT sum(usd_memory) FROM cost_by_project_day",
        'SELECT sum("BilledCost") FROM cost_focus',
        'SELECT sum("x_CostByWholeGpu") FROM cost_focus',
    ):
        assert spent.execute(text(statement)).scalar_one() == bill > 0


def test_focus_rows_have_the_columns_of_the_specification(spent: Session) -> None:
    """All columns are FOCUS 1.2's or start with x_; periods are whole hours; what nobody held has no sub-account."""
    found = spent.execute(text("SELECT * FROM cost_focus")).mappings().all()
    columns = {str(column) for column in found[0]}
    assert columns >= FOCUS_COLUMNS
    assert all(column.startswith("x_") for column in columns - FOCUS_COLUMNS)
    for row in found:
        assert row["ChargePeriodEnd"] - row["ChargePeriodStart"] == timedelta(hours=1)
        assert row["BillingPeriodStart"] <= row["ChargePeriodStart"] < row["BillingPeriodEnd"]
        assert row["BillingPeriodStart"].day == row["BillingPeriodEnd"].day == 1
        assert (row["SubAccountId"] is None) == (row["x_LedgerKind"] in ("idle", "unobserved"))
        assert row["Tags"]["kind"] == row["x_LedgerKind"]
        assert row["BilledCost"] == pytest.approx(row["PricingQuantity"] * row["ListUnitPrice"], abs=Decimal("1e-6"))


def test_an_hour_tells_before_from_after(session: Session, fleet: Fleet) -> None:
    """A minute on demand; one as spot, with another network; and one at another price of that. Open or closed, the hour
    says what its minutes say.
    """
    fleet.gpu_type("t4", 16384, price(3.6))
    fleet.node("n1")
    fleet.device("g1", billed=(T0, after(180)))
    paid = ((PriceKind.ON_DEMAND, 3.6), (PriceKind.SPOT, 1.2), (PriceKind.SPOT, 2.4))
    for minute, (kind, usd_per_h) in enumerate(paid):
        node = to_plain(Node(id=NodeId("n1"), price_kind=kind))
        gpu_type = to_plain(make_gpu_type("t4", 16384, [price(usd_per_h, kind)]))
        session.execute(update(TABLES[kinds.NODE]).values(spec=node))
        session.execute(update(TABLES[kinds.GPU_TYPE]).values(spec=gpu_type))
        model = "resnet50" if kind is PriceKind.ON_DEMAND else "vgg16"
        report_minutes(fleet, 1, [Holding(replica="p/a#0", uuid="g1", model=model)], start=after(60 * minute))
        account(session, after(60 * minute + 80))
    for _ in range(2):
        said = "price_kind, price_usd_per_h, billed_s, usd, idle_usd_share"
        assert _rows(session, f"SELECT {said} FROM idle_by_device_hour") == [
            ("on_demand", Decimal("3.6"), 60, Decimal("0.06"), Decimal("0.03")),
            ("spot", Decimal("1.8"), 120, Decimal("0.06"), Decimal("0.03")),
        ]
        query = CostQuery(by=CostBy.MODEL, accounting=Accounting.SHARE, start=T0, end=after(3600))
        costs = {row.key: row.usd for row in cost_report(session, query).rows}
        assert costs == {"(idle)": Decimal("0.06"), "resnet50": Decimal("0.03"), "vgg16": Decimal("0.03")}
        unlike = 'round("ListUnitPrice" * "ConsumedQuantity", 9) <> "BilledCost"'
        assert _rows(session, f"SELECT count(*), count(*) FILTER (WHERE {unlike}) FROM cost_focus") == [(4, 0)]
        assert _rows(session, "SELECT gpu_type, observed_s FROM energy_by_device_hour") == [("t4", 180)]
        (held,) = held_spans(session, ["g1"], T0, after(2 * 86_400))
        assert (held.share_pct_sm, held.start) == (50, T0)
        account(session, after(3600 + 1000), minutes_max=100)


def _rows(session: Session, statement: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in session.execute(text(f"{statement} ORDER BY 1"))]


def test_hours_do_not_move_with_the_readers_time_zone(spent: Session) -> None:
    """A reader in a zone of half hours sees the same hours."""
    statement = text("SELECT hour, sum(usd) FROM idle_by_device_hour GROUP BY hour ORDER BY hour")
    utc = spent.execute(statement).all()
    spent.execute(text("SET LOCAL timezone = 'Asia/Kolkata'"))
    assert spent.execute(statement).all() == utc


def test_the_reader_reads_the_views_and_nothing_else(session: Session) -> None:
    """No tokens, no telemetry, no ledger behind the views, no writing, no accounting."""
    session.execute(text("SET LOCAL ROLE headroom_reader"))
    for view in VIEWS:
        session.execute(text(f"SELECT * FROM {view} LIMIT 1"))
    refused = (
        "SELECT * FROM tokens",
        "SELECT * FROM ledger",
        "SELECT * FROM replica_samples",
        "SELECT * FROM services",
        "INSERT INTO slo_by_service_hour (hour, service) VALUES (now(), 'x')",
        "UPDATE slo_by_service_hour SET completed = 0",
        "DELETE FROM slo_by_service_minute",
        "CREATE TABLE mine (id integer)",
        "SELECT headroom_account_minutes(now() - INTERVAL '5 minutes', now(), true)",
        "SELECT headroom_drop_raw(now(), 1)",
    )
    for statement in refused:
        with pytest.raises(ProgrammingError, match="permission denied"), session.begin_nested():
            session.execute(text(statement))


def test_every_view_and_every_column_that_people_read_says_what_it_means(session: Session) -> None:
    """In the database, for tools that show it; every view of the schema, and the columns of those that are granted."""
    views = session.execute(
        text("""
            SELECT relname, obj_description(oid, 'pg_class') AS meaning, has_table_privilege('headroom_reader', oid,
                'SELECT') AS granted
            FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'v'""")
    ).all()
    assert {row.relname for row in views if row.granted} == set(VIEWS)
    assert [row.relname for row in views if not row.meaning] == []
    silent = session.execute(
        text("""
            SELECT attrelid::regclass::text, attname FROM pg_attribute
            WHERE attrelid::regclass::text = ANY(:views) AND attnum > 0
                AND coalesce(col_description(attrelid, attnum), '') = ''"""),
        {"views": list(VIEWS)},
    ).all()
    assert silent == []


def test_the_page_lists_every_view_and_grants_it() -> None:
    """In the table of views, and in what an administrator has to run where migrations may make no role."""
    page = DOCUMENT.read_text(encoding="utf-8")
    table = {name for row in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", page, re.MULTILINE) for name in row.split(", ")}
    assert {f"`{view}`" for view in VIEWS} <= table
    (granted,) = re.findall(r"GRANT SELECT ON ([\w,\s]+) TO headroom_reader", page)
    assert set(re.split(r",\s+", granted)) == set(VIEWS)


def test_only_the_owner_may_call_the_functions(session: Session) -> None:
    """Not one of them is left to PUBLIC, so none is left to the reader: the call itself is refused."""
    functions = "pg_proc WHERE pronamespace = 'public'::regnamespace AND starts_with(proname, 'headroom_')"
    names = set(session.execute(text(f"SELECT proname FROM {functions}")).scalars())
    assert {"headroom_account_minutes", "headroom_drop_raw", "headroom_ensure_partitions"} <= names
    callable_by_all = f"{functions} AND has_function_privilege('headroom_reader', oid, 'EXECUTE')"
    assert session.execute(text(f"SELECT proname FROM {callable_by_all}")).all() == []
    session.execute(text("SET LOCAL ROLE headroom_reader"))
    for call in ("headroom_heard(now(), now())", "headroom_ensure_partitions(1)"):
        with pytest.raises(ProgrammingError, match="permission denied for function"), session.begin_nested():
            session.execute(text(f"SELECT {call}"))


def test_an_ordinary_user_may_migrate(pg_server: Server) -> None:
    """Owning the database is enough: no right to make roles is needed."""
    url = pg_server.create("plain_owner")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE ROLE plain LOGIN NOSUPERUSER NOCREATEROLE")
        connection.execute("ALTER DATABASE plain_owner OWNER TO plain")
    migrate.upgrade(url.replace("headroom@", "plain@"))
    with psycopg.connect(url.replace("headroom@", "plain@")) as connection:
        assert connection.execute("SELECT current_user, count(*) FROM cost_focus").fetchone() == ("plain", 0)
    pg_server.drop("plain_owner")
    with psycopg.connect(pg_server.url("postgres"), autocommit=True) as connection:
        connection.execute("DROP ROLE plain")
