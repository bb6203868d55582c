"""The ledger from Python: roll-ups of telemetry by minute and hour, accounting, correction, cost reports, retention.

One run accounts late minutes, then new ones, then hours, and closes what is old enough. What a minute means, prices,
and how a bill is split are SQL in the migrations and nowhere else. Functions take a session first and never commit.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TextIO

from sqlalchemy.orm import Session

from app.records import record_of
from app.store.sql import named, records

# --- Roll-ups, how far accounting has come, and retention


MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
CHUNK_DEVICE_MINUTES = 5_000
"""What one SQL statement accounts at most, but a minute at least: some three seconds of a processor, far below the
statement timeout."""
SETTLES_AFTER = timedelta(seconds=20)
"""So long after its end a minute is accounted."""
CLOSES_AFTER = timedelta(minutes=15)
"""So long after its end an hour is closed."""
BACKLOG_MAX = timedelta(days=7)
"""How far back the very first accounting reaches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteSpan:
    """Minutes [start, end)."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """How far accounting has come: minutes written, reports looked at (by arrival), hours closed."""

    accounted_until: datetime
    seen_until: datetime
    closed_until: datetime


def lock_accounting(session: Session) -> None:
    """Wait until no other transaction rolls up, accounts or drops; held until this transaction ends."""
    session.execute(named("lock_accounting"))


def roll_minutes(session: Session, start: datetime, end: datetime) -> int:
    """Make the minutes of [start, end) again from telemetry; answers the number of rows."""
    return int(session.execute(named("roll_minutes"), {"start": start, "end": end}).scalar_one())


def roll_hours(session: Session, start: datetime, end: datetime) -> int:
    """Make every hour that [start, end) touches again from its minutes; answers the rows."""
    return int(session.execute(named("roll_hours"), {"start": start, "end": end}).scalar_one())


def load_marks(session: Session, now: datetime) -> Marks:
    """Where accounting stands; before the first run, where it begins: the first report or bill, a week ago at most."""
    found = _marks(session)
    if "accounted_until" in found:
        return Marks(**{name: found[name] for name in ("accounted_until", "seen_until", "closed_until")})
    first = session.execute(named("first_moment"), {"now": now}).scalar_one()
    start = max(first, now - BACKLOG_MAX)
    return Marks(
        accounted_until=start.replace(second=0, microsecond=0),
        seen_until=now,
        closed_until=start.replace(minute=0, second=0, microsecond=0),
    )


def _marks(session: Session) -> dict[str, datetime]:
    return {row.name: row.at for row in session.execute(named("marks"))}


def accounted_until(session: Session) -> datetime | None:
    """Up to when bills are made; None before the first."""
    return _marks(session).get("accounted_until")


def late_spans(session: Session, marks: Marks, now: datetime) -> list[MinuteSpan]:
    """Accounted minutes of open hours that reports arriving since `seen_until` cover; neighbours are joined."""
    minutes = session.execute(
        named("late_minutes"),
        {"seen": marks.seen_until, "now": now, "closed": marks.closed_until, "accounted": marks.accounted_until},
    ).scalars()
    spans: list[MinuteSpan] = []
    for minute in minutes:
        if spans and spans[-1].end == minute:
            spans[-1] = MinuteSpan(start=spans[-1].start, end=minute + MINUTE)
        else:
            spans.append(MinuteSpan(start=minute, end=minute + MINUTE))
    return spans


def drop_raw_telemetry(
    session: Session, now: datetime, days: int, *, hours: int | None = None, bytes_max: int = 0
) -> int:
    """Drop raw telemetry older than `days` days, of samples than `hours`, and the oldest samples beyond `bytes_max` (0:
    no bound) of all. Of open hours nothing goes. Answers the partitions dropped.
    """
    limits = {"now": now, "days": days, "hours": hours, "bytes": bytes_max}
    return int(session.execute(named("drop_raw"), limits).scalar_one())


def drop_minutes(session: Session, now: datetime, days: int, *, bytes_max: int = 0) -> int:
    """Drop minutes (roll-ups, bills, ledger) older than `days` days, and the oldest where ledger and bills are larger
    than `bytes_max` (0: no bound). Of open hours nothing goes; hours stay for good.
    """
    return int(session.execute(named("drop_minutes"), {"now": now, "days": days, "bytes": bytes_max}).scalar_one())


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBytes:
    """What raw telemetry and the minutes of ledger and bills take on disk."""

    raw: int
    minutes: int


def kept_bytes(session: Session) -> KeptBytes:
    (found,) = records(session, KeptBytes, named("kept_bytes"))
    return found


# --- Accounting and cost reports


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
    SERVICE = "service"
    PROJECT = "project"
    DEVICE = "device"
    NODE = "node"
    GPU_TYPE = "gpu_type"
    MODEL = "model"
    LABEL = "label"
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


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
    """A cost report to make of [start, end), by whole minutes where minutes are kept, else by whole hours.

    With a project: its own costs only, without what idled or went unobserved. `label`: the key to group by.
    """

    by: CostBy
    accounting: Accounting
    start: datetime
    end: datetime
    project: str | None = None
    label: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport(CostQuery):
    """Costs of [start, end), dearest group first (times: in order), as far as they are accounted; None: not at all."""

    accounted_until: datetime | None
    usd: Decimal
    rows: tuple[CostRow, ...]


def account(session: Session, now: datetime, *, minutes_max: int = 30) -> AccountReport:
    """Bring roll-ups, bills and ledger up to the last minute that has settled, `minutes_max` new ones at most. Open
    minutes that late reports touched are made again. An hour that was closed stays as it is.
    """
    lock_accounting(session)
    marks = load_marks(session, now)
    settled = (now - SETTLES_AFTER).replace(second=0, microsecond=0)
    until = max(marks.accounted_until, min(settled, marks.accounted_until + minutes_max * MINUTE))
    late = late_spans(session, marks, now)
    rows = sum(_account_span(session, span) for span in late)
    rows += _account_span(session, MinuteSpan(start=marks.accounted_until, end=until))
    closable = (min(now - CLOSES_AFTER, until)).replace(minute=0, second=0, microsecond=0)
    closed = max(marks.closed_until, closable)
    session.execute(named("close_hours"), {"start": marks.closed_until, "end": closed})
    # A report may commit a little after its arrival time: the last half of the settling time is looked at again.
    seen = now - SETTLES_AFTER / 2
    for name, at in {"accounted_until": until, "seen_until": seen, "closed_until": closed}.items():
        session.execute(named("save_mark"), {"name": name, "at": at})
    return AccountReport(
        accounted_until=until,
        closed_until=closed,
        minutes_new=(until - marks.accounted_until) // MINUTE,
        minutes_late=sum((span.end - span.start) // MINUTE for span in late),
        ledger_rows=rows,
        behind=until < settled,
    )


def _account_span(session: Session, span: MinuteSpan) -> int:
    rows = 0
    devices = max(1, session.execute(named("devices_billed")).scalar_one())
    for chunk in _chunks(span, max(1, CHUNK_DEVICE_MINUTES // devices) * MINUTE):
        roll_minutes(session, chunk.start, chunk.end)
        rows += session.execute(named("account_minutes"), {"start": chunk.start, "end": chunk.end}).scalar_one()
    if span.start < span.end:
        roll_hours(session, span.start, span.end)
    return rows


def _chunks(span: MinuteSpan, step: timedelta) -> Iterator[MinuteSpan]:
    start = span.start
    while start < span.end:
        end = min(start + step, span.end)
        yield MinuteSpan(start=start, end=end)
        start = end


def cost_report(session: Session, query: CostQuery) -> CostReport:
    """What was spent, from the ledger's hours (the running one included)."""
    kept = session.execute(named("minutes_since")).scalar_one()
    start, end = _edge(query.start, kept), _edge(query.end, kept, up=True)
    rows = records(
        session, CostRow, named("cost_report"), **{**asdict(query), "start": start, "end": end, "whole": _hour_of(end)}
    )
    usd = sum((row.usd for row in rows), Decimal(0))
    until = accounted_until(session)
    return record_of(CostReport, replace(query, start=start, end=end), accounted_until=until, usd=usd, rows=rows)


def _edge(moment: datetime, kept: datetime | None, *, up: bool = False) -> datetime:
    """The minute of a moment where minutes of its hour are kept, else its hour; or the end of that."""
    hour = _hour_of(moment)
    unit = HOUR if kept is not None and hour < kept else MINUTE
    floor = hour if unit is HOUR else moment.replace(second=0, microsecond=0)
    return floor + unit if up and floor < moment else floor


def _hour_of(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSpan:
    """A replica held so much of a device from `start` to `until`; by minutes, of older days by hours."""

    device_uuid: str
    kind: str
    subject: str
    workload: str
    share_pct_sm: int
    start: datetime
    until: datetime


def held_spans(session: Session, uuids: Sequence[str], start: datetime, end: datetime) -> tuple[HeldSpan, ...]:
    """Who held these devices when, in order; as far as it is accounted."""
    return records(session, HeldSpan, named("held_spans"), uuids=list(uuids), start=start, end=end)


def focus_csv(session: Session, start: datetime, end: datetime, project: str | None, text: TextIO) -> None:
    """Write the rows of FOCUS as CSV, a header first."""
    found = session.execute(named("focus"), {"start": start, "end": end, "project": project})
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(found.keys())
    writer.writerows([_focus_cell(cell) for cell in row] for row in found.yield_per(1000))


def _focus_cell(cell: object) -> object:
    if isinstance(cell, datetime):
        return cell.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(cell, Decimal):
        return f"{cell:f}"
    return json.dumps(cell, sort_keys=True) if isinstance(cell, dict) else cell
