"""Budgets held against the ledger: what was spent this month, and what it comes to at the month's end."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from app.records import record
from app.store import events
from app.store.events import Event
from app.store.sql import named, records

AT_RISK = "budget.at_risk"


@record
class BudgetForecast:
    """A budget of the running month (UTC), by SM share held. `usd_forecast`: what was spent, and the rest of the month
    at the rate of the last seven days.
    """

    budget: str
    project: str | None
    label: str | None
    """The label that the budget is of, as `key=value`; null for all."""
    month: datetime
    usd_per_month: float
    usd_spent: float
    usd_per_h: float
    usd_forecast: float
    at_risk: bool
    """The forecast is above the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingSpan:
    """The time that a rate of spending is of; `hours`: as long as there was a ledger."""

    start: datetime
    until: datetime
    hours: float


def spending_span(session: Session, now: datetime) -> SpendingSpan:
    """The last seven days."""
    (found,) = records(session, SpendingSpan, named("spending_span"), now=now)
    return found


def forecasts(session: Session, now: datetime) -> tuple[BudgetForecast, ...]:
    """All budgets by name."""
    span = spending_span(session, now)
    return records(session, BudgetForecast, named("budget_forecasts"), now=now, **asdict(span))


def note_risks(session: Session, now: datetime) -> int:
    """Leave an event for each budget that is going to be broken, one a month; returns how many."""
    found = [item for item in forecasts(session, now) if item.at_risk]
    noted = {row.subject for row in session.execute(named("budgets_noted"), {"now": now, "event": AT_RISK})}
    fresh = [item for item in found if f"budgets/{item.budget}" not in noted]
    for item in fresh:
        facts = {name: getattr(item, name) for name in ("usd_per_month", "usd_spent", "usd_forecast")}
        subject = f"budgets/{item.budget}"
        events.append(session, Event(name=AT_RISK, actor="ledger", subject=subject, project=item.project, facts=facts))
    return len(fresh)
