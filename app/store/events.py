"""The audit trail: who did what to what, appended in the transaction that did it and never changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.engine import Row
from sqlalchemy.orm import Session

from app.records import record
from app.store.pages import StoredPage, cut, decode_cursor
from app.store.tables.edge import events
from solvers.domain.codec import Plain

LISTING = "events"


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
    subject: str
    project: str | None
    request_id: str | None
    facts: dict[str, Any]


def append(session: Session, event: Event) -> int:
    """Add to the trail; returns the event's id."""
    statement = insert(events).values(
        name=event.name,
        actor=event.actor,
        subject=event.subject,
        project=event.project,
        request_id=event.request_id,
        facts=dict(event.facts),
    )
    return int(session.execute(statement.returning(events.c.id)).scalar_one())


def page(
    session: Session, *, limit: int, cursor: str | None = None, subject: str | None = None, project: str | None = None
) -> StoredPage[EventLine]:
    """Events, newest first, of one subject or project where named."""
    query = select(events).order_by(events.c.id.desc()).limit(limit + 1)
    if subject is not None:
        query = query.where(events.c.subject == subject)
    if project is not None:
        query = query.where(events.c.project == project)
    if cursor is not None:
        (before,) = decode_cursor(LISTING, cursor, (int,))
        query = query.where(events.c.id < before)
    return cut(LISTING, [_stored(row) for row in session.execute(query)], limit, lambda stored: (stored.id,))


def _stored(row: Row[Any]) -> EventLine:
    return EventLine(**row._mapping)
