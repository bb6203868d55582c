"""Access tokens. Only the SHA-256 of a secret is stored; the secret is shown once, when it is made.

Owns finding, expiry and revocation. What a role may do is decided at the edge.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, and_, func, insert, or_, select, text, update
from sqlalchemy.engine import Row
from sqlalchemy.orm import Session

from app.records import record
from app.store.pages import StoredPage, cut, decode_cursor
from app.store.tables.edge import tokens
from solvers.errors import NotFoundError

LISTING = "tokens"
LAST_USED_PRECISION = text("interval '1 minute'")


class Role(StrEnum):
    """What a token may do, widest first; reporter and agent stand apart from the ladder."""

    ADMIN = "admin"
    OPERATOR = "operator"
    VIEWER = "viewer"
    REPORTER = "reporter"
    AGENT = "agent"


class Purpose(StrEnum):
    """What an agent token is for: joining, acting as one node, reporting offered load as one gateway."""

    JOIN = "join"
    NODE = "node"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDraft:
    """A token to be made.

    `subject` is the node or gateway an agent token speaks for; project None means the whole cluster.
    """

    id: str
    name: str
    role: Role
    created_by: str
    purpose: Purpose | None = None
    project: str | None = None
    subject: str | None = None
    ttl_s: float | None = None
    """Seconds until it expires, by the database's clock; None: never."""


@record
class Token:
    """A token without its secret."""

    id: str
    name: str
    role: Role
    purpose: Purpose | None
    project: str | None
    subject: str | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


def secret_hash(secret: str) -> bytes:
    """What is stored of a secret. Secrets carry 256 random bits, so a plain hash cannot be guessed back."""
    return hashlib.sha256(secret.encode()).digest()


def create(session: Session, new: TokenDraft, secret: str) -> Token:
    """Store a token under its secret's hash."""
    expires_at = None if new.ttl_s is None else func.now() + func.make_interval(0, 0, 0, 0, 0, 0, new.ttl_s)
    statement = insert(tokens).values(
        id=new.id,
        name=new.name,
        role=new.role.value,
        purpose=None if new.purpose is None else new.purpose.value,
        project=new.project,
        subject=new.subject,
        secret_hash=secret_hash(secret),
        created_by=new.created_by,
        expires_at=expires_at,
    )
    return _token(session.execute(statement.returning(*_COLUMNS)).one())


def find_by_secret(session: Session, secret: str) -> Token | None:
    """The live token with this secret; None when there is none or it is expired or revoked."""
    row = session.execute(select(*_COLUMNS).where(tokens.c.secret_hash == secret_hash(secret), _live())).one_or_none()
    return None if row is None else _token(row)


def get(session: Session, token_id: str) -> Token:
    """One token, dead or alive. Raises NotFoundError."""
    row = session.execute(select(*_COLUMNS).where(tokens.c.id == token_id)).one_or_none()
    if row is None:
        raise NotFoundError(f"no token {token_id}", token=token_id)
    return _token(row)


def page(session: Session, *, limit: int, cursor: str | None = None) -> StoredPage[Token]:
    """All tokens, dead ones too, by id."""
    query = select(*_COLUMNS).order_by(tokens.c.id).limit(limit + 1)
    if cursor is not None:
        (after,) = decode_cursor(LISTING, cursor, (str,))
        query = query.where(tokens.c.id > after)
    return cut(LISTING, [_token(row) for row in session.execute(query)], limit, lambda token: (token.id,))


def revoke(session: Session, token_id: str) -> Token:
    """End a token now; revoking twice keeps the first time. Raises NotFoundError."""
    statement = update(tokens).where(tokens.c.id == token_id)
    statement = statement.values(revoked_at=func.coalesce(tokens.c.revoked_at, func.now()))
    row = session.execute(statement.returning(*_COLUMNS)).one_or_none()
    if row is None:
        raise NotFoundError(f"no token {token_id}", token=token_id)
    return _token(row)


def revoke_of_subject(session: Session, purpose: Purpose, subject: str, *, keep: str | None = None) -> int:
    """End every live token of a node or gateway but `keep`; returns how many."""
    statement = update(tokens).where(tokens.c.purpose == purpose.value, tokens.c.subject == subject, _live())
    if keep is not None:
        statement = statement.where(tokens.c.id != keep)
    return len(session.execute(statement.values(revoked_at=func.now()).returning(tokens.c.id)).all())


def touch(session: Session, token_id: str) -> bool:
    """Remember that a token was used, at most once a minute; tells whether it wrote."""
    statement = update(tokens).where(
        tokens.c.id == token_id,
        or_(tokens.c.last_used_at.is_(None), tokens.c.last_used_at < func.now() - LAST_USED_PRECISION),
    )
    return session.execute(statement.values(last_used_at=func.now()).returning(tokens.c.id)).one_or_none() is not None


def _live() -> ColumnElement[bool]:
    return and_(tokens.c.revoked_at.is_(None), or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > func.now()))


_COLUMNS = [column for column in tokens.c if column.name != "secret_hash"]


def _token(row: Row[Any]) -> Token:
    return Token(
        id=row.id,
        name=row.name,
        role=Role(row.role),
        purpose=None if row.purpose is None else Purpose(row.purpose),
        project=row.project,
        subject=row.subject,
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
    )
