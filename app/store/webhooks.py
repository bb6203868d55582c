"""Alarms that stand, and what webhooks are to be told: a line for each of them, in the order of the events."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.records import record
from app.store import events
from app.store.events import Event
from app.store.pages import Listing, PageOrder, StoredPage, read_page
from app.store.sql import from_row, named, one, records
from app.store.tables import webhook_deliveries
from solvers.domain.codec import Plain
from solvers.domain.webhook import Webhook

WAITING_MAX = 1_000
"""Of one webhook; where more wait, the oldest go."""
KEPT_DAYS = 7
CALM_S = 60.0
"""An alarm that did not stand for so long is over."""
WINDOW_S = 300.0
"""A service's objective is judged over the same minutes as in its status."""
ENDS = {"node.lost": "node.returned", "slo.at_risk": "slo.kept", "planner.stood_in": "planner.recovered"}
"""What is told when an alarm is over; of others nothing."""


class DeliveryState(StrEnum):
    WAITING = "waiting"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"
    DROPPED = "dropped"
    """Too many waited."""


@record
class Delivery:
    """An event on its way to a webhook. `status` and `error` are of the newest attempt."""

    id: int
    event_id: int
    state: DeliveryState
    attempts: int
    created_at: datetime
    next_at: datetime
    ended_at: datetime | None
    status: int | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingAlarm:
    name: str
    subject: str
    project: str | None
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDelivery:
    """A delivery that is this process's to try, with what it tells and where."""

    id: int
    attempts: int
    spec: Webhook
    event_id: int
    at: datetime
    name: str
    actor: str
    subject: str
    project: str | None
    facts: dict[str, Any]


_LISTING = Listing(
    name="deliveries", by=(webhook_deliveries.c.id,), made=partial(from_row, Delivery), newest_first=True
)
_SHOWN = [column for column in webhook_deliveries.c if column.name != "webhook"]


def raise_alarms(session: Session, actor: str, lost_s: float, *, returning: bool) -> None:
    """Leave an event for every alarm that is new, and for what is over. While nodes may be `returning` from where they
    could not be heard, none is lost that was not lost before.
    """
    spans = {"lost_s": lost_s, "window_s": WINDOW_S, "returning": returning}
    for alarm in records(session, StandingAlarm, named("alarms_standing"), **spans):
        of = {"name": alarm.name, "subject": alarm.subject, "project": alarm.project}
        if session.execute(named("alarms_keep"), of).scalar_one():
            event = Event(name=alarm.name, actor=actor, subject=alarm.subject, project=alarm.project, facts=alarm.facts)
            events.append(session, event)
    for over in session.execute(named("alarms_end"), {"calm_s": CALM_S}):
        if over.name in ENDS:
            facts: dict[str, Plain] = {"gone": True} if over.gone else {}
            event = Event(name=ENDS[over.name], actor=actor, subject=over.subject, project=over.project, facts=facts)
            events.append(session, event)


def enqueue(session: Session) -> None:
    """Put new events in line for whoever wants them."""
    session.execute(named("deliveries_enqueue"))
    session.execute(named("deliveries_mark"))
    session.execute(named("deliveries_bound"), {"most": WAITING_MAX})


def due(session: Session) -> tuple[str, ...]:
    """Webhooks that may be told something now."""
    return tuple(session.execute(named("deliveries_due")).scalars())


def claim(session: Session, webhook: str, hold_s: float) -> ClaimedDelivery | None:
    """Take what a webhook is told next; None: nothing is due, or another process has it."""
    return one(session, ClaimedDelivery, named("deliveries_claim"), webhook=webhook, hold_s=hold_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryOutcome:
    """What came of an attempt; `pause_s` until the next one."""

    state: DeliveryState
    status: int | None = None
    error: str | None = None
    pause_s: float = 0.0


def settle(session: Session, claimed: ClaimedDelivery, came: DeliveryOutcome) -> None:
    values = {"state": came.state.value, "status": came.status, "error": came.error, "pause_s": came.pause_s}
    session.execute(named("deliveries_settle"), {"id": claimed.id, "attempts": claimed.attempts, **values})


def forget(session: Session) -> int:
    """Delete what ended long ago; how many."""
    return len(session.execute(named("deliveries_forget"), {"days": KEPT_DAYS}).all())


def page(session: Session, order: PageOrder, webhook: str) -> StoredPage[Delivery]:
    """A webhook's deliveries, newest first."""
    return read_page(session, _LISTING, select(*_SHOWN), order, {webhook_deliveries.c.webhook: webhook})
