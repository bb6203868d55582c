"""Signing in at the console as use cases: by a token, or by a link that somebody with a token asked for. What the
browser then holds is a secret of its own, good for this alone and no longer than the token.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from app.clock import new_id, new_secret
from app.errors import ForbiddenError, UnauthenticatedError
from app.records import record
from app.services.declared.tokens import BY_TOKEN, SIGN_IN_PREFIX, Actor, Deed
from app.store import sign_ins, tokens
from app.store.engine import Database
from app.store.sign_ins import SignIn
from app.store.tokens import Role

LINK_PREFIX = "hrl"
SIGN_IN_S = 12 * 3600.0
LINK_S = 60.0
BROWSER_LENGTH_MAX = 200
WHO_MAY = (Role.ADMIN, Role.OPERATOR, Role.VIEWER)


@record
class SignInLink:
    """Signs in once, in whatever browser opens it first."""

    path: str | None
    """Behind the server's address; a repeat under the same Idempotency-Key answers null in its place."""
    expires_at: datetime


@record
class SignedIn:
    """Somebody who has just signed in, and the secret for the cookie."""

    secret: str
    sign_in: SignIn


class SignIns:
    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, actor: Actor, browser: str, request_id: str | None) -> SignedIn:
        """Sign in with a token. Raises ForbiddenError for a token that may not look."""
        require_person(actor)
        with self._database.transaction() as session:
            return _begin(session, actor.token_id, browser, request_id)

    def begin_by_link(self, secret: str, browser: str, request_id: str | None) -> SignedIn:
        """Sign in with a link, which is used up. Raises UnauthenticatedError."""
        with self._database.transaction() as session:
            token_id = sign_ins.use_link(session, secret)
            if token_id is None or tokens.find_live(session, token_id) is None:
                raise UnauthenticatedError("this link was used already or is older than a minute; ask for a new one")
            return _begin(session, token_id, browser, request_id)

    def begin_with(self, token_id: str, browser: str, request_id: str | None) -> SignedIn:
        """Sign in with a token that was made for this."""
        with self._database.transaction() as session:
            return _begin(session, token_id, browser, request_id)

    def link(self, actor: Actor) -> SignInLink:
        """A link that signs in as whoever asks for it. Raises ForbiddenError for a token that may not look."""
        require_person(actor)
        secret = new_secret(LINK_PREFIX)
        with self._database.transaction() as session:
            until = sign_ins.keep_link(session, secret, actor.token_id, LINK_S)
        return SignInLink(path=f"/session/link?code={secret}", expires_at=until)

    def of(self, actor: Actor) -> tuple[SignIn, ...]:
        """Who is signed in with the same token."""
        return self._database.read(sign_ins.of_token, actor.token_id)

    def end(self, sign_in: str, actor: Actor, request_id: str | None) -> None:
        """End one with the same token. Raises NotFoundError."""
        with self._database.transaction() as session:
            sign_ins.end(session, sign_in, actor.token_id)
            _note(session, "token.signed_out", actor.token_id, sign_in, request_id)


def require_person(actor: Actor) -> None:
    """Raise ForbiddenError for tokens that are not for people who look around."""
    if actor.role not in WHO_MAY:
        raise ForbiddenError(f"a token with role {actor.role.value} may not use the console")


def _begin(session: Session, token_id: str, browser: str, request_id: str | None) -> SignedIn:
    secret = new_secret(SIGN_IN_PREFIX)
    told = {"id": new_id(), "token_id": token_id, "browser": browser[:BROWSER_LENGTH_MAX], "ttl_s": SIGN_IN_S}
    made = sign_ins.begin(session, secret, **told)
    _note(session, "token.signed_in", token_id, made.id, request_id)
    return SignedIn(secret=secret, sign_in=made)


def _note(session: Session, name: str, token_id: str, sign_in: str, request_id: str | None) -> None:
    deed = Deed(actor=f"{BY_TOKEN}{token_id}", request_id=request_id)
    deed.note(session, name, f"tokens/{token_id}", {"sign_in": sign_in})
