"""Access tokens as use cases (find whose a secret is, issue, revoke, seed the first one), and who acts: the identity
behind a request or a process, as services and audit events see it. Secrets are shown once and stored as hashes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app import kinds
from app.clock import new_id, new_secret
from app.errors import Fault, FieldsError
from app.records import record, with_more
from app.store import documents, events, tokens
from app.store.engine import Database
from app.store.pages import PageOrder, StoredPage
from app.store.tokens import Purpose, Role, Token, TokenDraft
from solvers.errors import HeadroomError


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """The token behind a request.

    `project` None is the whole cluster; `subject` is the node or gateway of an agent token.
    """

    token_id: str
    role: Role
    purpose: Purpose | None = None
    project: str | None = None
    subject: str | None = None

    @property
    def name(self) -> str:
        """How audit events call it."""
        return f"token:{self.token_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """Who does something, and in which request: what every audit event needs."""

    actor: str
    request_id: str | None = None


SECRET_PREFIX = "hr"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """A token somebody wants."""

    name: str
    role: Role
    purpose: Purpose | None = None
    project: str | None = None
    subject: str | None = None
    ttl_s: float | None = None


@record
class IssuedToken(Token):
    """A fresh token. `secret` is shown this once; a repeat under the same Idempotency-Key answers null in its place."""

    secret: str | None


class Tokens:
    """Tokens of the cluster."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._on_revoked: list[Callable[[], None]] = []

    def when_revoked(self, hear: Callable[[], None]) -> None:
        """Have `hear` called after every revocation made here, so that caches can forget."""
        self._on_revoked.append(hear)

    def actor_of(self, secret: str) -> Actor | None:
        """Whose secret this is; None when nobody's who may still come in."""
        with self._database.transaction() as session:
            token = tokens.find_by_secret(session, secret)
            if token is None:
                return None
            tokens.touch(session, token.id)
            return Actor(
                token_id=token.id,
                role=token.role,
                purpose=token.purpose,
                project=token.project,
                subject=token.subject,
            )

    def get(self, token_id: str) -> Token:
        """One token. Raises NotFoundError."""
        with self._database.reading() as session:
            return tokens.get(session, token_id)

    def page(self, order: PageOrder) -> StoredPage[Token]:
        """A page of tokens, revoked ones too."""
        with self._database.reading() as session:
            return tokens.page(session, order)

    def issue(self, request: TokenRequest, deed: Deed) -> IssuedToken:
        """Make a token. Raises FieldsError for a combination that makes no sense or a project that does not exist."""
        _check(request)
        secret = new_secret(SECRET_PREFIX)
        with self._database.transaction() as session:
            if request.project is not None and documents.find(session, kinds.PROJECT, (request.project,)) is None:
                raise _fault("/project", "reference-unknown", f"there is no project {request.project}")
            token = tokens.create(
                session,
                TokenDraft(
                    id=new_id(),
                    name=request.name,
                    role=request.role,
                    created_by=deed.actor,
                    purpose=request.purpose,
                    project=request.project,
                    subject=request.subject,
                    ttl_s=request.ttl_s,
                ),
                secret,
            )
            events.append(session, _event("token.created", token, deed))
        return with_more(IssuedToken, token, secret=secret)

    def revoke(self, token_id: str, deed: Deed) -> None:
        """End a token. Raises NotFoundError; ending it twice is no error and leaves no second event."""
        with self._database.transaction() as session:
            before = tokens.get(session, token_id)
            token = tokens.revoke(session, token_id)
            if before.revoked_at is None:
                events.append(session, _event("token.revoked", token, deed))
        for hear in self._on_revoked:
            hear()


def _event(name: str, token: Token, deed: Deed) -> events.Event:
    return events.Event(
        name=name,
        actor=deed.actor,
        subject=f"tokens/{token.id}",
        project=token.project,
        request_id=deed.request_id,
        facts={"name": token.name, "role": token.role.value},
    )


def _check(request: TokenRequest) -> None:
    """Raise FieldsError unless the fields fit together."""
    if request.role is Role.AGENT:
        if request.purpose is None:
            raise _fault("/purpose", "missing", "an agent token needs a purpose: join, node or gateway")
        if request.project is not None:
            raise _fault("/project", "value-invalid", "an agent token belongs to no project")
        if request.purpose is not Purpose.JOIN and request.subject is None:
            raise _fault("/subject", "missing", f"a {request.purpose.value} token names its {request.purpose.value}")
        return
    if request.purpose is not None:
        raise _fault("/purpose", "value-invalid", f"a token with role {request.role.value} has no purpose")
    if request.subject is not None:
        raise _fault("/subject", "value-invalid", f"a token with role {request.role.value} has no subject")
    if request.role is Role.ADMIN and request.project is not None:
        raise _fault("/project", "value-invalid", "an admin token is for the whole cluster")


def _fault(pointer: str, code: str, detail: str) -> HeadroomError:
    return FieldsError((Fault(pointer=pointer, code=code, detail=detail),))
