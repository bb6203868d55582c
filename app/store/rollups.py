"""Roll-ups of telemetry by minute and hour, where accounting stands, and retention: thin calls of SQL functions.

Owns the marks (`accounted_until`, `seen_until`, `closed_until`) and the question which minutes late reports have
touched. It refuses arithmetic: what a minute means is defined in the migrations and nowhere else. Functions take a
session first and never commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
BACKLOG_MAX = timedelta(days=7)
"""How far back the very first accounting reaches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
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
    session.execute(text("SELECT pg_advisory_xact_lock(hashtext('headroom_account'))"))


def roll_minutes(session: Session, start: datetime, end: datetime) -> int:
    """Make the minutes of [start, end) again from telemetry; answers the number of rows."""
    return int(session.execute(text("SELECT headroom_roll_minutes(:a, :b)"), {"a": start, "b": end}).scalar_one())


def roll_hours(session: Session, start: datetime, end: datetime) -> int:
    """Make every hour that [start, end) touches again from its minutes; answers the rows."""
    return int(session.execute(text("SELECT headroom_roll_hours(:a, :b)"), {"a": start, "b": end}).scalar_one())


def load_marks(session: Session, now: datetime) -> Marks:
    """Where accounting stands; before the first run, where it begins: the first report or bill, a week ago at most."""
    found = {row.name: row.at for row in session.execute(text("SELECT name, at FROM accounting_marks"))}
    if "accounted_until" in found:
        return Marks(**{name: found[name] for name in ("accounted_until", "seen_until", "closed_until")})
    first = session.execute(
        text("SELECT least((SELECT min(received_at) - INTERVAL '1 minute' FROM report_log),"
             " (SELECT min(billed_from) FROM billable_devices), :now)"),
        {"now": now},
    ).scalar_one()  # fmt: skip
    start = max(first, now - BACKLOG_MAX)
    return Marks(
        accounted_until=start.replace(second=0, microsecond=0),
        seen_until=now,
        closed_until=start.replace(minute=0, second=0, microsecond=0),
    )


def save_marks(session: Session, marks: Marks) -> None:
    """Remember where accounting stands."""
    for name in ("accounted_until", "seen_until", "closed_until"):
        session.execute(
            text("INSERT INTO accounting_marks VALUES (:name, :at) ON CONFLICT (name) DO UPDATE SET at = excluded.at"),
            {"name": name, "at": getattr(marks, name)},
        )


def late_spans(session: Session, marks: Marks, now: datetime) -> list[Span]:
    """Accounted minutes of open hours that reports arriving since `seen_until` cover; neighbours are joined."""
    minutes = session.execute(
        text("SELECT DISTINCT m.minute FROM headroom_heard(:seen, :now) h"
             " CROSS JOIN LATERAL generate_series(date_trunc('minute', greatest(h.start_at, :closed)),"
             " least(h.end_at, :accounted) - INTERVAL '1 microsecond', INTERVAL '1 minute') AS m (minute) ORDER BY 1"),
        {"seen": marks.seen_until, "now": now, "closed": marks.closed_until, "accounted": marks.accounted_until},
    ).scalars()  # fmt: skip
    spans: list[Span] = []
    for minute in minutes:
        if spans and spans[-1].end == minute:
            spans[-1] = Span(start=spans[-1].start, end=minute + MINUTE)
        else:
            spans.append(Span(start=minute, end=minute + MINUTE))
    return spans


def drop_raw_telemetry(session: Session, now: datetime, days: int) -> int:
    """Drop raw telemetry older than `days` days whose hours are closed; answers the partitions dropped."""
    return int(session.execute(text("SELECT headroom_drop_raw(:now, :days)"), {"now": now, "days": days}).scalar_one())


def drop_minutes(session: Session, now: datetime, days: int) -> int:
    """Drop minutes (roll-ups, bills, ledger) older than `days` days whose hours are closed; hours stay for good."""
    return int(
        session.execute(text("SELECT headroom_drop_minutes(:now, :days)"), {"now": now, "days": days}).scalar_one()
    )
