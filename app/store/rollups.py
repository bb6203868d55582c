"""Roll-ups of telemetry by minute and hour, where accounting stands, and retention: thin calls of SQL functions.

Owns the marks (`accounted_until`, `seen_until`, `closed_until`) and the question which minutes late reports have
touched. It refuses arithmetic: what a minute means is defined in the migrations and nowhere else. Functions take a
session first and never commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from app.store.sql import named

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
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
    found = {row.name: row.at for row in session.execute(named("marks"))}
    if "accounted_until" in found:
        return Marks(**{name: found[name] for name in ("accounted_until", "seen_until", "closed_until")})
    first = session.execute(named("first_moment"), {"now": now}).scalar_one()
    start = max(first, now - BACKLOG_MAX)
    return Marks(
        accounted_until=start.replace(second=0, microsecond=0),
        seen_until=now,
        closed_until=start.replace(minute=0, second=0, microsecond=0),
    )


def save_marks(session: Session, marks: Marks) -> None:
    """Remember where accounting stands."""
    for name in ("accounted_until", "seen_until", "closed_until"):
        session.execute(named("save_mark"), {"name": name, "at": getattr(marks, name)})


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


def drop_raw_telemetry(session: Session, now: datetime, days: int) -> int:
    """Drop raw telemetry older than `days` days whose hours are closed; answers the partitions dropped."""
    return int(session.execute(named("drop_raw"), {"now": now, "days": days}).scalar_one())


def drop_minutes(session: Session, now: datetime, days: int) -> int:
    """Drop minutes (roll-ups, bills, ledger) older than `days` days whose hours are closed; hours stay for good."""
    return int(session.execute(named("drop_minutes"), {"now": now, "days": days}).scalar_one())
