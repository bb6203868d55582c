"""Access tokens. Only the SHA-256 of a secret is stored; the secret is shown once, when it is made.

What a role may do is decided at the edge.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    LargeBinary,
    and_,
    any_,
    bindparam,
    case,
    delete,
    func,
    insert,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from app.records import record, record_of
from app.store.pages import Listing, PageOrder, StoredPage, read_page
from app.store.sql import DAY_S, ago, changed, from_row, interval, named, one, records
from app.store.tables import events, join_uses, tokens
from solvers.errors import NotFoundError

LAST_USED_PRECISION_S = 60.0
PLANNER = re.compile(r"[^:]+:\d+:[0-9a-f]{8}")
"""Who holds the lease: host, process, and what tells its starts apart."""


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
    uses_max: int | None = None
    """So many nodes may join with it; None: any number."""


class TokenState(StrEnum):
    """What became of a token."""

    GOOD = "good"
    USED = "used"
    """As many nodes as may have joined with it."""
    EXPIRED = "expired"
    REVOKED = "revoked"


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
    uses_max: int | None
    """Of a join token: so many nodes may join with it; null: any number."""
    uses: int
    state: TokenState
    """Whether somebody who comes with it is let in."""


@record
class _WithSecret(Token):
    secret_hash: bytes


_STATE = case(
    (tokens.c.revoked_at.is_not(None), TokenState.REVOKED.value),
    (tokens.c.expires_at <= func.now(), TokenState.EXPIRED.value),
    (tokens.c.uses >= tokens.c.uses_max, TokenState.USED.value),
    else_=TokenState.GOOD.value,
)
_COLUMNS = [*(column for column in tokens.c if column.name != "secret_hash"), _STATE.label("state")]
_LISTING = Listing(name="tokens", by=(tokens.c.id,), made=partial(from_row, Token))


def secret_hash(secret: str) -> bytes:
    """What is stored of a secret. Secrets carry 256 random bits, so a plain hash cannot be guessed back."""
    return hashlib.sha256(secret.encode()).digest()


def create(session: Session, new: TokenDraft, secret: str) -> Token:
    values = asdict(new)
    ttl_s = values.pop("ttl_s")
    expires_at = None if ttl_s is None else func.now() + interval(ttl_s)
    statement = insert(tokens).values(**values, secret_hash=secret_hash(secret), expires_at=expires_at)
    (token,) = records(session, Token, statement.returning(*_COLUMNS))
    return token


def find_by_secrets(session: Session, secrets: Collection[str]) -> dict[str, Token]:
    """The live tokens with these secrets; without what is unknown, expired or revoked."""
    return _with_secrets(session, secrets, _live())


def find_ended(session: Session, secrets: Collection[str]) -> dict[str, Token]:
    """The tokens with these secrets that are expired or revoked: nobody is let in with such a secret again."""
    return _with_secrets(session, secrets, not_(_live()))


def find_live(session: Session, token_id: str) -> Token | None:
    """The token, unless it is expired or revoked."""
    return one(session, Token, select(*_COLUMNS).where(tokens.c.id == token_id, _live()))


def find_expired_joins(session: Session, secrets: Collection[str]) -> dict[str, Token]:
    """The join tokens with these secrets whose time alone ended them."""
    over = and_(tokens.c.purpose == Purpose.JOIN, tokens.c.revoked_at.is_(None), tokens.c.expires_at <= func.now())
    return _with_secrets(session, secrets, over)


def _with_secrets(session: Session, secrets: Collection[str], which: ColumnElement[bool]) -> dict[str, Token]:
    if not secrets:
        return {}
    hashes = {secret_hash(secret): secret for secret in secrets}
    these = tokens.c.secret_hash == any_(bindparam("hashes", list(hashes), ARRAY(LargeBinary)))
    found = records(session, _WithSecret, select(*_COLUMNS, tokens.c.secret_hash).where(these, which))
    return {hashes[each.secret_hash]: record_of(Token, each) for each in found}


def use(session: Session, token_id: str, node: str, bound: str) -> str | None:
    """Count that a node joins with a token; why it may not: `ended`, `used`. Who joined with it before, as whom
    `bound` says, may again, since an answer may be lost. Others wait until this transaction has ended.
    """
    left = select(tokens.c.uses < tokens.c.uses_max).where(tokens.c.id == token_id, _live()).with_for_update()
    free = session.execute(left).scalar_one_or_none()
    if free is None:
        return "ended"
    row = {"token_id": token_id, "node_id": node, "bound": bound}
    if session.execute(select(join_uses.c.used_at).filter_by(**row)).first() is not None:
        return None
    if not free:
        return "used"
    session.execute(insert(join_uses).values(**row))
    session.execute(update(tokens).where(tokens.c.id == token_id).values(uses=tokens.c.uses + 1))
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldToken:
    """What somebody is taken for: a live token of this role and project, with a node's keys, or signed in with it."""

    id: str
    role: str
    project: str | None = None
    keys: str | None = None
    sign_in: str | None = None


def ended(session: Session, held: Sequence[HeldToken]) -> set[HeldToken]:
    """Which of these do not hold any more."""
    names = {"ids": "id", "roles": "role", "projects": "project", "keys": "keys", "sign_ins": "sign_in"}
    columns = {name: [getattr(item, field) for item in held] for name, field in names.items()}
    return {held[number - 1] for number in session.execute(named("ended_tokens"), columns).scalars()}


def get(session: Session, token_id: str) -> Token:
    """One token, dead or alive. Raises NotFoundError."""
    return _known(token_id, one(session, Token, select(*_COLUMNS).where(tokens.c.id == token_id)))


def page(session: Session, order: PageOrder) -> StoredPage[Token]:
    return read_page(session, _LISTING, select(*_COLUMNS), order)


def revoke(session: Session, token_id: str) -> Token:
    """End a token now; revoking twice keeps the first time. Raises NotFoundError."""
    statement = update(tokens).where(tokens.c.id == token_id)
    statement = statement.values(revoked_at=func.coalesce(tokens.c.revoked_at, func.now()))
    return _known(token_id, one(session, Token, statement.returning(*_COLUMNS)))


def live_of_project(session: Session, project: str) -> tuple[str, ...]:
    """Their names."""
    mine = select(tokens.c.name).where(tokens.c.project == project, _live())
    return tuple(session.execute(mine.order_by(tokens.c.id)).scalars())


def name_of(session: Session, actor: str) -> str:
    """Who did something, as people know them: by their token's name, which stays in the audit trail when the token is
    forgotten, and not its id; planners by their host.
    """
    kind, _, token_id = actor.partition(":")
    if PLANNER.fullmatch(actor):
        return f"planner on {kind}"
    if kind != "token":
        return actor
    mine = select(tokens.c.name).where(tokens.c.id == token_id)
    made = select(events.c.facts["name"].astext).where(
        events.c.subject == f"tokens/{token_id}", events.c.name == "token.created"
    )
    return session.scalar(mine) or session.scalar(made.limit(1)) or actor


def revoke_of_subject(session: Session, purpose: Purpose, subject: str, *, keep: str | None = None) -> int:
    """End every live token of a node or gateway but `keep`; returns how many."""
    statement = update(tokens).where(tokens.c.purpose == purpose, tokens.c.subject == subject, _live())
    if keep is not None:
        statement = statement.where(tokens.c.id != keep)
    return changed(session, statement.values(revoked_at=func.now()))


def delete_older(session: Session, days: float) -> int:
    """Forget tokens that ended longer ago, with who joined or signed in with them; returns how many."""
    over = func.least(tokens.c.expires_at, tokens.c.revoked_at) < ago(days * DAY_S)
    return changed(session, delete(tokens).where(over))


def touch(session: Session, ids: Sequence[str]) -> int:
    """Remember that tokens were used, at most once a minute; tells how many it wrote."""
    return len(session.execute(named("touch_tokens"), {"ids": ids, "precision_s": LAST_USED_PRECISION_S}).all())


def _live() -> ColumnElement[bool]:
    return and_(tokens.c.revoked_at.is_(None), or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > func.now()))


def _known(token_id: str, found: Token | None) -> Token:
    if found is None:
        raise NotFoundError(f"no token {token_id}", token=token_id)
    return found
