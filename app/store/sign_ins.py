"""Who is signed in at the console, and links that sign in once. Of their secrets only hashes are kept."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from app.records import record
from app.store.sql import named, one, records
from app.store.tokens import secret_hash
from solvers.errors import NotFoundError


@record
class SignIn:
    """Somebody who is signed in, until when, and with which browser."""

    id: str
    token_id: str
    browser: str
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcAttempt:
    """What a browser that was sent to an identity provider has to come back with, and where it wanted to go."""

    nonce: str
    verifier: str
    back: str


def begin(session: Session, secret: str, **told: object) -> SignIn:
    """Keep a sign-in: its `id`, `token_id`, `browser` and `ttl_s`."""
    (made,) = records(session, SignIn, named("begin_sign_in"), secret_hash=secret_hash(secret), **told)
    return made


def find(session: Session, secret: str) -> SignIn | None:
    return one(session, SignIn, named("find_sign_in"), secret_hash=secret_hash(secret))


def of_token(session: Session, token_id: str) -> tuple[SignIn, ...]:
    return records(session, SignIn, named("sign_ins_of_token"), token_id=token_id)


def end(session: Session, sign_in: str, token_id: str) -> None:
    """Raises NotFoundError for one that is over already, or is another token's."""
    if session.execute(named("end_sign_in"), {"id": sign_in, "token_id": token_id}).one_or_none() is None:
        raise NotFoundError("there is no such sign-in", sign_in=sign_in)


def keep_link(session: Session, secret: str, token_id: str, ttl_s: float) -> datetime:
    """Keep a link; until when it is good."""
    told = {"secret_hash": secret_hash(secret), "token_id": token_id, "ttl_s": ttl_s}
    until: datetime = session.execute(named("keep_sign_in_link"), told).scalar_one()
    return until


def use_link(session: Session, secret: str) -> str | None:
    """Take a link: whose token it stands for. None: it was taken, its time is over, or there never was one."""
    told = {"secret_hash": secret_hash(secret)}
    return session.execute(named("use_sign_in_link"), told).scalar_one_or_none()


def keep_attempt(session: Session, secret: str, attempt: OidcAttempt, ttl_s: float, most: int) -> None:
    """Keep it beside the newest of the others, `most` in all."""
    told = {"secret_hash": secret_hash(secret), "ttl_s": ttl_s, "most": most, **asdict(attempt)}
    session.execute(named("keep_oidc_attempt"), told)


def take_attempt(session: Session, secret: str) -> OidcAttempt | None:
    """What was kept under a secret, once. None: it was taken, its time is over, or there never was one."""
    return one(session, OidcAttempt, named("take_oidc_attempt"), secret_hash=secret_hash(secret))
