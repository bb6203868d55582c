"""Answers to POSTs that may be sent again: the first request under a key does the work, repeats get its answer.

The key, the work and the answer are one transaction: a request that dies leaves nothing, and its repeat does the work.
A key that comes back with another body is refused, and one whose first request is still running.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from app.errors import InProgressError, KeyReusedError
from app.store.sql import ago, changed, put_over
from app.store.tables import idempotency_keys as keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
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
    status: int
    headers: Mapping[str, str]
    body: bytes


def answered(session: Session, request: Request) -> StoredAnswer | None:
    """The answer to an earlier request under the key; None means go ahead and `keep`, in this very transaction.

    Raises KeyReusedError for another request under the same key, InProgressError while the first one runs.
    """
    name = func.hashtextextended(f"{request.token_id} {request.key}", 0)
    if not session.execute(select(func.pg_try_advisory_xact_lock(name))).scalar_one():
        raise InProgressError("the first request under this Idempotency-Key is still running", key=request.key)
    mine = (keys.c.token_id == request.token_id, keys.c.key == request.key, keys.c.finished_at.is_not(None))
    found = session.execute(select(keys).where(*mine)).one_or_none()
    if found is None:
        return None
    if (found.method, found.path, bytes(found.body_hash)) != (request.method, request.path, request.body_hash):
        raise KeyReusedError("this Idempotency-Key was used for another request", key=request.key)
    return StoredAnswer(status=found.status, headers=found.headers, body=bytes(found.body))


def keep(session: Session, request: Request, answer: StoredAnswer) -> None:
    """Keep the answer for repeats, in the transaction that did the work."""
    rows = {name: getattr(request, name) for name in ("token_id", "key", "method", "path", "body_hash")}
    rows |= {"status": answer.status, "headers": dict(answer.headers), "body": answer.body}
    rows |= {"reserved_at": func.now(), "finished_at": func.now()}
    session.execute(put_over(keys, rows, ("token_id", "key")))


def delete_older(session: Session, ttl_s: float) -> int:
    """Forget keys older than `ttl_s`; returns how many."""
    return changed(session, delete(keys).where(keys.c.reserved_at < ago(ttl_s)))
