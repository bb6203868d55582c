"""Frozen SQL: every view over a small recorded week that spans two months, and the names of what stands in the schema.

Owns the week: a GPU for every day, billed while it is busy, with a gateway, a late report, a lost one, a task and
outcomes of predictions, drawn from a seed. All of it stays in one transaction that is given up.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from app import kinds
from app.store import outcomes
from app.store.ledger import account
from benchmarks.same.frozen import Case, Taken
from solvers.domain.device import PriceKind, PriceRow
from tests.integration.money.telemetry import Fleet, Holding, migrated
from tests.integration.postgres import embedded_binaries, running
from tests.integration.store.samples import put, put_project, task

BEGIN = datetime(2026, 2, 26, 9, tzinfo=UTC)
DAYS = 7
BUSY_MIN = 40
REPORT_S = 60
SEED = 7
MINUTES_A_RUN = 720
DIGITS = 12
VIEWS = "SELECT table_name FROM information_schema.views WHERE table_schema = 'public' ORDER BY 1"
COLUMNS = """
SELECT c.relname, string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attnum)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
GROUP BY 1 ORDER BY 1
"""
FUNCTIONS = """
SELECT proname || '(' || pg_get_function_arguments(oid) || ') ' || pg_get_function_result(oid)
FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1
"""


@dataclass(slots=True)
class _Story:
    """Writes the week."""

    session: Session
    fleet: Fleet
    draws: random.Random

    def tell(self) -> None:
        """All of it, accounted."""
        self._documents()
        for day in range(DAYS):
            self._day(BEGIN + timedelta(days=day), f"g{day}", f"n{day % 2}")
        self.fleet.write()
        end = BEGIN + timedelta(days=DAYS)
        outcomes.add_hours(self.session, [_hour(BEGIN, "admitted", 40), _hour(BEGIN, "throttled", 10)])
        _finish_task(self.session, BEGIN + timedelta(minutes=5))
        while account(self.session, end, minutes_max=MINUTES_A_RUN).behind:
            pass
        self._late(end)
        while account(self.session, end + timedelta(minutes=2), minutes_max=MINUTES_A_RUN).behind:
            pass

    def _documents(self) -> None:
        kinds = ((PriceKind.ON_DEMAND, 3.6), (PriceKind.OWNED, 0.5))
        self.fleet.policy(0.36, 1.5)
        self.fleet.gpu_type("v100", 32768, *(PriceRow(kind=kind, usd_per_h=usd) for kind, usd in kinds))
        self.fleet.gpu_type("t4", 16384, PriceRow(kind=PriceKind.ON_DEMAND, usd_per_h=0.35))
        self.fleet.node("n0")
        self.fleet.node("n1", price_kind=PriceKind.OWNED)
        for day in range(DAYS):
            start = BEGIN + timedelta(days=day)
            kind, memory_mib = ("t4", 16384) if day == 2 else ("v100", 32768)
            billed = (start, start + timedelta(minutes=BUSY_MIN))
            self.fleet.device(f"g{day}", node=f"n{day % 2}", gpu_type=kind, memory_mib=memory_mib, billed=billed)

    def _day(self, start: datetime, uuid: str, node: str) -> None:
        """Two services and a job on one GPU; the third day nobody holds anything, the fifth loses reports."""
        for nth in range(1, BUSY_MIN + 1):
            moment = start + timedelta(seconds=REPORT_S * nth)
            if uuid == "g4" and nth % 5 == 0:
                self.fleet.lose_report()
                continue
            holdings = () if uuid == "g2" else self._holdings(uuid)
            energy_j = float(self.draws.randrange(3_000, 15_000))
            self.fleet.report(node, moment, {uuid: energy_j}, holdings, interval_s=REPORT_S)
            offered = {"vision/a": (float(self.draws.randrange(500, 700)), float(self.draws.randrange(3)))}
            self.fleet.edge(moment, offered, interval_s=REPORT_S)

    def _holdings(self, uuid: str) -> Sequence[Holding]:
        completed = float(self.draws.randrange(400, 600))
        served = Holding(
            replica="vision/a#0", uuid=uuid, share_pct_sm=self.draws.randrange(20, 60), energy_j=1500.0,
            memory_mib_used=float(self.draws.randrange(1_000, 9_000)), arrived=completed + 5.0, completed=completed,
            violated=float(self.draws.randrange(20)), dropped=2.0, latency_ms_p50=20.0, latency_ms_p95=50.0,
            latency_ms_p99=float(self.draws.randrange(60, 90)),
        )  # fmt: skip
        other = replace(served, replica="speech/b#0", share_pct_sm=30, energy_j=900.0)
        job = Holding(replica="train/d#0", uuid=uuid, share_pct_sm=20, energy_j=600.0, kind="job")
        return (served, other, job) if self.draws.randrange(3) else (served, job)

    def _late(self, end: datetime) -> None:
        """A report of the last day arrives after its minutes were accounted."""
        observed_at = end - timedelta(days=1) + timedelta(minutes=BUSY_MIN)
        self.fleet.report(
            "n0", end + timedelta(seconds=30), {"g6": 4000.0}, self._holdings("g6"), interval_s=REPORT_S,
            observed_at=observed_at,
        )  # fmt: skip
        self.fleet.write()


def cases() -> Iterator[Case]:
    """Every view, and the schema's names, while the server runs."""
    with _recorded() as session:
        yield Case(key="tables and views", take=partial(_listed, session, COLUMNS))
        yield Case(key="functions", take=partial(_listed, session, FUNCTIONS))
        for view in session.execute(text(VIEWS)).scalars().all():
            yield Case(key=f"view {view}", take=partial(_rows, session, view))


@contextmanager
def _recorded() -> Iterator[Session]:
    with (
        running(embedded_binaries(), migrated=True) as server,
        migrated(server, "week") as database,
        database.transaction() as session,
    ):
        session.execute(text("SET LOCAL timezone = 'UTC'"))
        session.execute(text("SET LOCAL max_parallel_workers_per_gather = 0"))
        _Story(session, Fleet(session), random.Random(SEED)).tell()
        yield session
        session.rollback()


def _listed(session: Session, query: str) -> Taken:
    found = [": ".join(map(str, row)) for row in session.execute(text(query))]
    return Taken(text="\n".join(found), numbers={"lines": len(found)})


def _rows(session: Session, view: str) -> Taken:
    answer = session.execute(text(f'SELECT * FROM "{view}"'))
    names = list(answer.keys())
    found = sorted(json.dumps([_plain(item) for item in row]) for row in answer)
    return Taken(text="\n".join([", ".join(names), *found]), numbers={"rows": len(found), "columns": len(names)})


def _plain(item: Any) -> object:
    """Floats lose their last digits, which the order of a sum decides."""
    if isinstance(item, float):
        return f"{item:.{DIGITS}g}"
    return [_plain(each) for each in item] if isinstance(item, list) else str(item)


def _hour(hour: datetime, verdict: str, predicted: int) -> outcomes.HourCounts:
    return outcomes.HourCounts(
        hour=hour, model="resnet50", gpu_type="v100", verdict=verdict, outcomes=predicted,
        executions=100.0 * predicted, predicted=predicted, error_sum=0.1 * predicted, error_abs_sum=0.1 * predicted,
        error_square_sum=0.01 * predicted, error_abs_max=0.1, inside_80=predicted // 2, inside_95=predicted,
    )  # fmt: skip


def _finish_task(session: Session, at: datetime) -> None:
    """One that took ten seconds, slower than its plan believed."""
    put_project(session)
    put(session, kinds.TASK, task("night"))
    place = {
        "replica": "vision/night#0", "kind": "task", "workload": "vision/night", "device": "g0", "batch": 8,
        "share_pct_sm": 20, "capacity_rps": 100.0,
    }  # fmt: skip
    values = {"at": at, "before": at - timedelta(seconds=10), "document": json.dumps({"assignments": [place]})}
    for statement in (
        "UPDATE tasks SET created_at = :before WHERE name = 'night'",
        "INSERT INTO job_progress (kind, project, name, done, executions, executed_ms, begun_at, finished_at)"
        " VALUES ('task', 'vision', 'night', 10, 2, 200, :before, :at)",
        "INSERT INTO plans (id, lane, state, parent_generation, planner, document, cost_usd_per_h, created_by)"
        " VALUES ('p', 'act', 'promoted', 0, 'oltunes', :document, 1, 'week')",
        "INSERT INTO target_history (generation, plan_id, parent_generation, promoted_by, promoted_at)"
        " VALUES (1, 'p', 0, 'week', :before)",
    ):
        session.execute(text(statement), values)
