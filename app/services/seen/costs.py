"""Cost reports as a use case: the ledger's hours, grouped, for the cluster or one project."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

from app.records import record
from app.store import ledger
from app.store.engine import Database
from app.store.ledger import Accounting, CostBy, CostQuery, CostRow
from solvers.errors import FieldError

SPAN_DAYS_MAX = 3700
DIGITS = 6
"""After the point, of US dollars and all else in a report."""


@record
class CostLine:
    """Cost of one group."""

    key: str
    usd: float
    usd_idle: float
    """Part of `usd` that nobody held."""
    usd_unobserved: float
    """Part of `usd` about which no report came."""
    usd_energy: float
    """Energy beside the price of the devices."""
    held_h: float
    share_gpu_h: float
    memory_gib_h: float
    energy_kwh: float


@record
class Costs:
    """A cost report of the whole hours from `start` up to `end`."""

    by: CostBy
    accounting: Accounting
    start: datetime
    end: datetime
    project: str | None
    usd: float
    items: tuple[CostLine, ...]


class CostReports:
    """Reads the ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def report(self, query: CostQuery) -> Costs:
        """Costs by one key. Raises FieldError for a span that is empty or longer than ten years."""
        check_span(query.start, query.end)
        with self._database.reading() as session:
            report = ledger.cost_report(session, query)
        return Costs(
            by=report.by,
            accounting=report.accounting,
            start=report.start,
            end=report.end,
            project=report.project,
            usd=round(float(report.usd), DIGITS),
            items=tuple(_line(row) for row in report.rows),
        )


def _line(row: CostRow) -> CostLine:
    """Rounded; the exact sums are in the database's views."""
    sums = {name: round(float(part), DIGITS) for name, part in asdict(row).items() if name != "key"}
    return CostLine(key=row.key, **sums)


def check_span(start: datetime, end: datetime) -> None:
    """Raise FieldError unless the span has a length that makes sense."""
    if start >= end:
        raise FieldError("query:from", "`from` must lie before `to`")
    if (end - start).days > SPAN_DAYS_MAX:
        raise FieldError("query:from", f"a span may cover {SPAN_DAYS_MAX} days at most")
