"""The ledger from Python: bring it up to date, correct it, read it.

Owns the order of one accounting run (late minutes, new minutes, hours, closing) and the grouping of cost reports. It
refuses to know prices or how a minute is split: that is SQL. Functions take a session first and never commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from sqlalchemy.orm import Session

from app.store.rollups import (
    HOUR,
    MINUTE,
    Marks,
    MinuteSpan,
    late_spans,
    load_marks,
    lock_accounting,
    roll_hours,
    roll_minutes,
    save_marks,
)
from app.store.sql import named

CHUNK = 5 * MINUTE
"""Minutes per SQL statement, far below the statement timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountReport:
    """What one accounting run did. `behind` asks for another run soon."""

    accounted_until: datetime
    closed_until: datetime
    minutes_new: int
    minutes_late: int
    ledger_rows: int
    behind: bool


class Accounting(StrEnum):
    """How a device's bill is split: by memory used, by SM share held, or all of it among those who hold any of it."""

    MEMORY = "memory"
    SHARE = "share"
    WHOLE = "whole"


class CostBy(StrEnum):
    """What a cost report groups by."""

    SERVICE = "service"
    PROJECT = "project"
    DEVICE = "device"
    NODE = "node"
    GPU_TYPE = "gpu_type"
    HOUR = "hour"
    DAY = "day"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """Cost of one group. `usd_idle` and `usd_unobserved` are the parts of `usd` that nobody held and nobody saw."""

    key: str
    usd: Decimal
    usd_idle: Decimal
    usd_unobserved: Decimal
    usd_energy: Decimal
    held_h: Decimal
    share_gpu_h: Decimal
    memory_gib_h: Decimal
    energy_kwh: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class CostQuery:
    """A cost report to make of the hours that [start, end) touches.

    With a project: its own costs only, without what idled or went unobserved.
    """

    by: CostBy
    accounting: Accounting
    start: datetime
    end: datetime
    project: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    """Costs of the whole hours [start, end), dearest group first (times: in order)."""

    by: CostBy
    accounting: Accounting
    start: datetime
    end: datetime
    project: str | None
    usd: Decimal
    rows: tuple[CostRow, ...]


def account(
    session: Session,
    now: datetime,
    settle_s: float = 20.0,
    *,
    close_after_s: float = 900.0,
    minutes_max: int = 30,
) -> AccountReport:
    """Bring roll-ups, bills and ledger up to the last minute that ended `settle_s` ago, `minutes_max` new ones at most.

    Open minutes that late reports touched are made again. An hour is closed `close_after_s` after its end and stays as
    it is from then on.
    """
    lock_accounting(session)
    marks = load_marks(session, now)
    settled = (now - timedelta(seconds=settle_s)).replace(second=0, microsecond=0)
    until = max(marks.accounted_until, min(settled, marks.accounted_until + minutes_max * MINUTE))
    late = late_spans(session, marks, now)
    rows = sum(_account_span(session, span) for span in late)
    rows += _account_span(session, MinuteSpan(start=marks.accounted_until, end=until))
    closable = (min(now - timedelta(seconds=close_after_s), until)).replace(minute=0, second=0, microsecond=0)
    closed = max(marks.closed_until, closable)
    session.execute(named("close_hours"), {"start": marks.closed_until, "end": closed})
    # A report may commit a little after its arrival time: the last half of the settling time is looked at again.
    seen = now - timedelta(seconds=settle_s / 2)
    save_marks(session, Marks(accounted_until=until, seen_until=seen, closed_until=closed))
    return AccountReport(
        accounted_until=until,
        closed_until=closed,
        minutes_new=(until - marks.accounted_until) // MINUTE,
        minutes_late=sum((span.end - span.start) // MINUTE for span in late),
        ledger_rows=rows,
        behind=until < settled,
    )


def account_again(session: Session, start: datetime, end: datetime, *, reprice: bool = False) -> int:
    """Account [start, end) again even where its hours are closed; `reprice` takes the prices of now.

    Answers the number of ledger rows. Minutes whose telemetry was dropped cannot be accounted again: the database
    refuses.
    """
    lock_accounting(session)
    return _account_span(session, MinuteSpan(start=start, end=end), force=True, reprice=reprice)


def _account_span(session: Session, span: MinuteSpan, *, force: bool = False, reprice: bool = False) -> int:
    rows = 0
    for chunk in _chunks(span):
        roll_minutes(session, chunk.start, chunk.end)
        rows += session.execute(
            named("account_minutes"),
            {"start": chunk.start, "end": chunk.end, "force": force, "reprice": reprice},
        ).scalar_one()
    if span.start < span.end:
        roll_hours(session, span.start, span.end)
    return rows


def _chunks(span: MinuteSpan) -> Iterator[MinuteSpan]:
    start = span.start
    while start < span.end:
        end = min(start + CHUNK, span.end)
        yield MinuteSpan(start=start, end=end)
        start = end


def cost_report(session: Session, query: CostQuery) -> CostReport:
    """What was spent, from the ledger's hours (the running one included)."""
    start = _hour_of(query.start)
    end = query.end if query.end == _hour_of(query.end) else _hour_of(query.end) + HOUR
    found = session.execute(
        named("cost_report"),
        {
            "by": query.by.value,
            "accounting": query.accounting.value,
            "start": start,
            "end": end,
            "project": query.project,
        },
    )
    rows = tuple(CostRow(**row._mapping) for row in found)
    return CostReport(
        by=query.by,
        accounting=query.accounting,
        start=start,
        end=end,
        project=query.project,
        usd=sum((row.usd for row in rows), Decimal(0)),
        rows=rows,
    )


def _hour_of(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
