"""Answers to POSTs that may be sent again: the first request under a key does the work, repeats get its answer.

A key that comes back with another body is refused, and one whose first request is still running.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.errors import InProgressError, KeyReusedError
from app.store.sql import ago, changed
from app.store.tables import idempotency_keys as keys
from solvers.errors import InvariantError

IN_FLIGHT_MAX_S = 120.0
"""A reservation this old belongs to a request that died; the next one takes it over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What identifies a repeatable request."""

    token_id: str
    key: str
    method: str
    path: str
    body: bytes

    @property
    def body_hash(self) -> bytes:
        """Bodies are compared by this."""
        return hashlib.sha256(self.body).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """A finished response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def reserve(session: Session, request: Request) -> StoredAnswer | None:
    """Claim the key: None means go ahead and `finish`, an answer means it was done before.

    When called in the transaction that does the work, a concurrent repeat waits here for its end. Raises KeyReusedError
    for another request under the same key, InProgressError while the first one runs in a transaction of its own.
    """
    fresh = insert(keys).values(
        token_id=request.token_id,
        key=request.key,
        method=request.method,
        path=request.path,
        body_hash=request.body_hash,
    )
    if changed(session, fresh.on_conflict_do_nothing()):
        return None
    expired = (keys.c.reserved_at < ago(IN_FLIGHT_MAX_S)).label("expired")
    found = session.execute(select(keys, expired).where(*_is(request)).with_for_update()).one_or_none()
    if found is None:
        raise InProgressError("the first request under this Idempotency-Key was just given up; try again")
    if (found.method, found.path, bytes(found.body_hash)) != (request.method, request.path, request.body_hash):
        raise KeyReusedError("this Idempotency-Key was used for another request", key=request.key)
    if found.finished_at is not None:
        return StoredAnswer(status=found.status, headers=found.headers, body=bytes(found.body))
    if not found.expired:
        raise InProgressError("the first request under this Idempotency-Key is still running", key=request.key)
    session.execute(update(keys).where(*_is(request)).values(reserved_at=func.now()))
    return None


def finish(session: Session, request: Request, answer: StoredAnswer) -> None:
    """Keep the answer for repeats. Raises InvariantError when the key was never reserved."""
    statement = update(keys).where(*_is(request), keys.c.finished_at.is_(None))
    statement = statement.values(
        finished_at=func.now(), status=answer.status, headers=dict(answer.headers), body=answer.body
    )
    if not changed(session, statement):
        raise InvariantError("an idempotency key was finished that is not in flight", key=request.key)


def abandon(session: Session, request: Request) -> None:
    """Give an unfinished key back, so that a repeat may do the work after a failure."""
    session.execute(delete(keys).where(*_is(request), keys.c.finished_at.is_(None)))


def delete_older(session: Session, ttl_s: float) -> int:
    """Forget keys older than `ttl_s`; returns how many."""
    return changed(session, delete(keys).where(keys.c.reserved_at < ago(ttl_s)))


def _is(request: Request) -> tuple[ColumnElement[bool], ...]:
    return (keys.c.token_id == request.token_id, keys.c.key == request.key)
