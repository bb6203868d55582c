"""Declarative documents: one repository for every kind of thing that users and agents declare.

A document's spec is the plain form of its domain value, already checked by whoever puts it; lost updates and dangling
references are refused here. Built-in documents are made once, and never again after somebody deleted them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from psycopg import errors as postgres
from sqlalchemy import delete as delete_from
from sqlalchemy import func, insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.engine import Row
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app import kinds
from app.errors import PreconditionError, ReferencedError
from app.kinds import Kind
from app.store.pages import Listing, PageOrder, StoredPage, read_page
from app.store.sql import changed
from app.store.tables import TABLES
from app.store.tables import library_documents as offered
from solvers.domain.codec import Plain, from_plain
from solvers.errors import InputError, NotFoundError

T = TypeVar("T")
Key = tuple[str, ...]
Spec = Mapping[str, Plain]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A document as it is stored. The version never repeats for a key, not even across a deletion."""

    key: Key
    spec: dict[str, Any]
    version: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Precondition:
    """What must hold for a write: the current version, that there is one, or that nothing is there yet."""

    version: int | None = None
    present: bool = False
    absent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PutResult:
    """What a put left, and whether it made or changed it. Putting an equal spec changes nothing."""

    stored: Stored
    created: bool
    changed: bool


ANY = Precondition()


def key_of(kind: Kind, spec: Spec) -> Key:
    return tuple(str(spec[field]) for field in kind.key)


def get(session: Session, kind: Kind, key: Key) -> Stored:
    """One document. Raises NotFoundError."""
    found = find(session, kind, key)
    if found is None:
        raise NotFoundError(f"there is no {kind.words} {'/'.join(key)}", kind=kind.plural, key="/".join(key))
    return found


def require_project(session: Session, project: str | None, *, there: bool) -> None:
    """Raise NotFoundError for a project of which nothing is there, where that neither is."""
    if project is not None and not there:
        get(session, kinds.PROJECT, (project,))


def find(session: Session, kind: Kind, key: Key, *, lock: bool = False) -> Stored | None:
    query = select(*_selected(kind)).where(*_matches(kind, key))
    row = session.execute(query.with_for_update() if lock else query).one_or_none()
    return None if row is None else _stored(kind, row)


def page(
    session: Session, kind: Kind, order: PageOrder, project: str | None = None, labels: Sequence[str] = ()
) -> StoredPage[Stored]:
    """Documents by key; of one project only when named (the kind must be in projects, or be the projects themselves),
    and with all of these labels, `key=value` or `key` alone. Raises FieldError for a foreign cursor.
    """
    columns = _key_columns(kind)
    listing = Listing(name=kind.plural, by=columns, made=partial(_stored, kind))
    wanted = [dict(zip(("key", "value"), label.split("=", 1), strict=False)) for label in labels]
    query = select(*_selected(kind))
    if wanted:
        query = query.where(TABLES[kind].c.spec["labels"].contains(wanted))
    return read_page(session, listing, query, order, {columns[0]: project})


def all_specs(session: Session, kind: Kind, project: str | None = None, **where: str) -> list[Stored]:
    """All documents of a kind by key; of one project only when named, and with these columns."""
    query = select(*_selected(kind)).order_by(*_key_columns(kind)).filter_by(**where)
    if project is not None:
        query = query.where(TABLES[kind].c.project == project)
    return [_stored(kind, row) for row in session.execute(query)]


def values(session: Session, kind: Kind, cls: type[T]) -> tuple[T, ...]:
    """The values of all documents of a kind, by key. Sorted here: the database may sort by a locale's rules, and equal
    worlds must have equal digests everywhere.
    """
    found = sorted(all_specs(session, kind), key=lambda stored: stored.key)
    return tuple(from_plain(cls, stored.spec) for stored in found)


def names(session: Session, kind: Kind) -> list[str]:
    """Last parts of all keys of a kind."""
    return list(session.execute(select(_key_columns(kind)[-1])).scalars())


def saying(session: Session, kind: Kind, **said: Plain) -> list[Key]:
    """Keys of the documents of a kind whose fields say this."""
    query = select(*_key_columns(kind)).where(TABLES[kind].c.spec.contains(said))
    return [tuple(row) for row in session.execute(query)]


def by_name(session: Session, kind: Kind, field: str) -> dict[str, str]:
    return {stored.key[0]: str(stored.spec[field]) for stored in all_specs(session, kind)}


def state(session: Session, kind: Kind) -> tuple[int, int]:
    """How many documents of a kind there are and the newest version: changes whenever one of them does."""
    table = TABLES[kind]
    row = session.execute(select(func.count(), func.coalesce(func.max(table.c.version), 0))).one()
    return int(row[0]), int(row[1])


def put(session: Session, kind: Kind, spec: Spec, precondition: Precondition = ANY) -> PutResult:
    """Store a spec under its own key. Raises PreconditionError when the stored version is another one (context
    `version`, None when nothing is stored), InputError when it names a project, node or GPU type that does not exist.
    """
    key = key_of(kind, spec)
    before = find(session, kind, key, lock=True)
    if before is None:
        if precondition.version is not None or precondition.present:
            raise _precondition_failed(kind, key, None)
        after = _insert(session, kind, key, spec)
        if after is not None:
            return PutResult(stored=after, created=True, changed=True)
        # Somebody made it between our look and our insert.
        before = find(session, kind, key, lock=True)
        if before is None:
            raise _precondition_failed(kind, key, None)
    if precondition.absent or precondition.version not in (None, before.version):
        raise _precondition_failed(kind, key, before.version)
    if before.spec == spec:
        return PutResult(stored=before, created=False, changed=False)
    return PutResult(stored=_update(session, kind, key, spec), created=False, changed=True)


def put_absent(session: Session, kind: Kind, specs: Sequence[Spec]) -> int:
    """Store those specs under whose keys nothing is stored; returns how many."""
    rows = [_values(kind, key_of(kind, spec), spec) for spec in specs]
    if not rows:
        return 0
    return changed(session, upsert(TABLES[kind]).values(rows).on_conflict_do_nothing())


def offer(session: Session, kind: Kind, specs: Sequence[Spec]) -> int:
    """Make those built-in documents that were never offered before and are not there; returns how many that were."""
    known = set(session.execute(select(offered.c.name).where(offered.c.kind == kind.plural)).scalars())
    fresh = [spec for spec in specs if spec["name"] not in known]
    if not fresh:
        return 0
    rows = [{"kind": kind.plural, "name": spec["name"]} for spec in fresh]
    session.execute(upsert(offered).values(rows).on_conflict_do_nothing())
    return put_absent(session, kind, fresh)


def delete(session: Session, kind: Kind, key: Key, precondition: Precondition = ANY) -> Stored:
    """Delete a document and return what it was. Raises NotFoundError, PreconditionError, and ReferencedError while
    others refer to it.
    """
    before = find(session, kind, key, lock=True)
    if before is None:
        raise NotFoundError(f"there is no {kind.words} {'/'.join(key)}", kind=kind.plural, key="/".join(key))
    if precondition.version not in (None, before.version):
        raise _precondition_failed(kind, key, before.version)
    try:
        with session.begin_nested():
            session.execute(delete_from(TABLES[kind]).where(*_matches(kind, key)))
    except IntegrityError as error:
        if not isinstance(error.orig, postgres.ForeignKeyViolation | postgres.RestrictViolation):
            raise
        user = error.orig.diag.table_name or "something"
        raise ReferencedError(f"{kind.plural} {'/'.join(key)} is still used by {user}", used_by=user) from error
    return before


def lock_references(session: Session, *, exclusive: bool) -> None:
    """Until the transaction ends: writes that rely on other documents go side by side, a deletion goes alone. So that
    nothing can be deleted between the look at it and the commit of what names it.
    """
    lock = func.pg_advisory_xact_lock if exclusive else func.pg_advisory_xact_lock_shared
    session.execute(select(lock(func.hashtext("headroom document references"))))


def lock_name(session: Session, key: Key) -> None:
    """Until the transaction ends nobody else makes a workload of this name, of whatever kind."""
    name = "/".join(("headroom workload", *key))
    session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(name, 0))))


def _insert(session: Session, kind: Kind, key: Key, spec: Spec) -> Stored | None:
    try:
        with session.begin_nested():
            row = session.execute(
                insert(TABLES[kind]).values(**_values(kind, key, spec)).returning(*_selected(kind))
            ).one()
    except IntegrityError as error:
        if isinstance(error.orig, postgres.UniqueViolation):
            return None
        raise _dangling(kind, error) from error
    return _stored(kind, row)


def _update(session: Session, kind: Kind, key: Key, spec: Spec) -> Stored:
    values = _values(kind, key, spec)
    statement = update(TABLES[kind]).where(*_matches(kind, key))
    statement = statement.values(**values, version=func.nextval(text("'document_versions'")), updated_at=func.now())
    try:
        with session.begin_nested():
            return _stored(kind, session.execute(statement.returning(*_selected(kind))).one())
    except IntegrityError as error:
        raise _dangling(kind, error) from error


def _values(kind: Kind, key: Key, spec: Spec) -> dict[str, Any]:
    copied = {column: spec[field] for column, field in kind.copied.items()}
    return {**dict(zip(kind.column_key, key, strict=True)), **copied, "spec": dict(spec)}


def _key_columns(kind: Kind) -> list[Any]:
    return [TABLES[kind].c[name] for name in kind.column_key]


def _selected(kind: Kind) -> list[Any]:
    return [*_key_columns(kind), *(TABLES[kind].c[name] for name in ("spec", "version", "created_at", "updated_at"))]


def _matches(kind: Kind, key: Key) -> list[Any]:
    return [column == part for column, part in zip(_key_columns(kind), key, strict=True)]


def _stored(kind: Kind, row: Row[Any]) -> Stored:
    width = len(kind.key)
    spec, version, created_at, updated_at = row[width:]
    return Stored(key=tuple(row[:width]), spec=spec, version=version, created_at=created_at, updated_at=updated_at)


def _precondition_failed(kind: Kind, key: Key, version: int | None) -> PreconditionError:
    now = "there is none" if version is None else f"the stored version is {version}"
    return PreconditionError(f"{kind.plural} {'/'.join(key)}: {now}", version=version)


def _dangling(kind: Kind, error: IntegrityError) -> Exception:
    if not isinstance(error.orig, postgres.ForeignKeyViolation):
        return error
    missing = error.orig.diag.message_detail or "it names something that does not exist"
    return InputError(f"{kind.plural}: {missing}", constraint=error.orig.diag.constraint_name)
