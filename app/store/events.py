"""The audit trail: who did what to what, appended in the transaction that did it and never changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from app import kinds
from app.records import record
from app.store.pages import Listing, PageOrder, StoredPage, read_page
from app.store.sql import ago, from_row
from app.store.tables import events
from solvers.domain.codec import Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened; `name` is `noun.past_verb`, `actor` a token or process, `subject` a path or an id."""

    name: str
    actor: str
    subject: str
    project: str | None = None
    request_id: str | None = None
    facts: Mapping[str, Plain]


@record
class EventLine:
    """One entry of the audit trail."""

    id: int
    at: datetime
    name: str
    actor: str
    actor_name: str = ""
    """The name of that token, or of the planner."""
    subject: str
    project: str | None
    request_id: str | None
    facts: dict[str, Any]


_OTHERS = {
    "belief": "drifted miscalibrated retrained",
    "budget": "at_risk",
    "certificate": "refused",
    "device": "slow steady",
    "epoch": "began",
    "job": "refused",
    "join": "refused",
    "library": "loaded",
    "node": "certified clock_ahead drained joined lost returned revoked spoke_of_others uncordoned",
    "oidc": "refused",
    "outcome": "rejected",
    "ownership": "moved",
    "plan": "awaits_approval promoted proposed rejected superseded",
    "planner": "recovered stood_in",
    "planning": "resumed",
    "profile": "deleted imported",
    "profile_run": "cancelled done failed ordered",
    "service": "refused",
    "slo": "at_risk kept",
    "task": "refused",
    "token": "created revoked signed_in signed_out",
}
"""By noun what else is told than of documents that were created, updated and deleted."""


def names() -> frozenset[str]:
    """What events are called."""
    written = (f"{kind.noun}.{verb}" for kind in kinds.KINDS for verb in ("created", "updated", "deleted"))
    others = (f"{noun}.{verb}" for noun, verbs in _OTHERS.items() for verb in verbs.split())
    return frozenset((*written, *others))


_LISTING = Listing(name="events", by=(events.c.id,), made=partial(from_row, EventLine), newest_first=True)


def append(session: Session, event: Event) -> int:
    """Add to the trail; returns the event's id."""
    statement = insert(events).values(**asdict(event))
    return int(session.execute(statement.returning(events.c.id)).scalar_one())


def append_rarely(session: Session, event: Event, every_s: float) -> None:
    """Add to the trail, unless one of that name, subject and code is younger than so many seconds."""
    same = (events.c.name == event.name, events.c.subject == event.subject, events.c.at > ago(every_s))
    code = events.c.facts["code"].astext == str(event.facts["code"])
    if session.execute(select(events.c.id).where(*same, code).limit(1)).first() is None:
        append(session, event)


def page(
    session: Session, order: PageOrder, *, subject: str | None = None, project: str | None = None
) -> StoredPage[EventLine]:
    """Events, newest first, of one subject or project where named."""
    where = {events.c.subject: subject, events.c.project: project}
    return read_page(session, _LISTING, select(events), order, where)
