"""Declarative documents as use cases: read, put and delete any kind, each write in one transaction with its checks
and its audit event.

Owns the order of things in a write. What a kind may refer to and what may refer to it is `references`; what a
document means is the domain's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from app import kinds
from app.kinds import Kind
from app.services.declared import references
from app.services.declared.actors import Deed
from app.services.declared.contradictions import read_estate
from app.services.declared.ownership import note_moves
from app.store import documents, events
from app.store.documents import Key, Precondition, PutResult, Stored
from app.store.engine import Database
from app.store.pages import StoredPage
from solvers.domain.codec import Plain, to_plain
from solvers.domain.device import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What of a list is wanted."""

    limit: int
    cursor: str | None = None
    project: str | None = None


class Documents:
    """Documents of every kind."""

    def __init__(self, database: Database, cluster: str) -> None:
        self._database = database
        self._cluster = cluster

    def get(self, kind: Kind, key: Key) -> Stored:
        """One document. Raises NotFoundError."""
        with self._database.reading() as session:
            return documents.get(session, kind, key)

    def page(self, kind: Kind, listing: Listing) -> StoredPage[Stored]:
        """A page of a kind. Raises FieldError for a foreign cursor."""
        with self._database.reading() as session:
            return documents.page(session, kind, limit=listing.limit, cursor=listing.cursor, project=listing.project)

    def put(self, kind: Kind, value: object, precondition: Precondition, deed: Deed) -> PutResult:
        """Create or replace a document. Raises PreconditionError, or FieldsError for references to nothing."""
        with self._database.transaction() as session:
            documents.lock_references(session, exclusive=False)
            references.check(session, kind, value, self._cluster)
            with _moves_noted(session, kind, value, deed):
                return put_audited(session, kind, value, precondition, deed)

    def delete(self, kind: Kind, key: Key, precondition: Precondition, deed: Deed) -> None:
        """Delete a document. Raises NotFoundError, PreconditionError, ReferencedError."""
        with self._database.transaction() as session:
            documents.lock_references(session, exclusive=True)
            before = documents.get(session, kind, key)
            references.check_unused(session, kind, key)
            references.release(session, kind, key)
            with _moves_noted(session, kind, None, deed):
                documents.delete(session, kind, key, precondition)
            facts: dict[str, Plain] = {"version_before": before.version}
            events.append(session, _event(kind, key, "deleted", facts, deed))


@contextmanager
def _moves_noted(session: Session, kind: Kind, value: object, deed: Deed) -> Iterator[None]:
    """Whoever writes what may change owners leaves an event of who owned and who owns. A node that goes takes its
    devices along, and nobody owns those.
    """
    node = value.id if isinstance(value, Node) else None
    if kind is not kinds.POLICY and node is None:
        yield
        return
    before = read_estate(session, node=node)
    yield
    note_moves(session, before, read_estate(session, node=node), deed)


def put_audited(session: Session, kind: Kind, value: object, precondition: Precondition, deed: Deed) -> PutResult:
    """Store a document and its audit event; an equal document leaves neither."""
    spec: Any = to_plain(value)
    before = documents.find(session, kind, documents.key_of(kind, spec))
    result = documents.put(session, kind, spec, precondition)
    if result.changed:
        facts: dict[str, Plain] = {
            "version_before": None if before is None or result.created else before.version,
            "version_after": result.stored.version,
        }
        verb = "created" if result.created else "updated"
        events.append(session, _event(kind, result.stored.key, verb, facts, deed))
    return result


def _event(kind: Kind, key: Key, verb: str, facts: Mapping[str, Plain], deed: Deed) -> events.Event:
    project = key[0] if kind.in_project or kind is kinds.PROJECT else None
    return events.Event(
        name=f"{kind.noun}.{verb}",
        actor=deed.actor,
        subject=f"{kind.plural}/{'/'.join(key)}",
        project=project,
        request_id=deed.request_id,
        facts=facts,
    )
