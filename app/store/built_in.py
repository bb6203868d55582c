"""Built-in documents: which were offered already. Each is made once, and never again after somebody deleted it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.kinds import Kind
from app.store import documents
from app.store.documents import Spec
from app.store.tables.profiles import library_documents as offered


def offer(session: Session, kind: Kind, specs: Sequence[Spec]) -> int:
    """Make what was never offered before and is not there; returns how many documents that were."""
    known = set(session.execute(select(offered.c.name).where(offered.c.kind == kind.plural)).scalars())
    fresh = [spec for spec in specs if spec["name"] not in known]
    if not fresh:
        return 0
    rows = [{"kind": kind.plural, "name": spec["name"]} for spec in fresh]
    session.execute(insert(offered).values(rows).on_conflict_do_nothing())
    return documents.put_absent(session, kind, fresh)
