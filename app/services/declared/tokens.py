"""Access tokens as use cases (find whose a secret is, issue, revoke, seed the first one), and who acts: the identity
behind a request or a process, as services and audit events see it. Secrets are shown once and stored as hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from app import kinds
from app.clock import new_id, new_secret
from app.errors import FieldsError, JoinTokenExpiredError
from app.records import record, record_of
from app.store import documents, events, nodes, sign_ins, tokens
from app.store.engine import Database
from app.store.pages import PageOrder, StoredPage
from app.store.tokens import Purpose, Role, Token, TokenDraft
from solvers.domain.codec import Plain
from solvers.domain.value import check_shown

BY_TOKEN = "token:"
"""So the names of those begin who come with a token."""


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
    uses_max: int | None = None
    """Of a join token that is counted."""
    has_expired: bool = False
    """It was a join token, and is told so."""
    keys: tuple[str, ...] | None = None
    """Of a node: it shows one of them, by its digest; None: it never had any."""
    sign_in: str | None = None
    """Of a browser that is signed in with the token: the sign-in."""

    @property
    def name(self) -> str:
        return f"{BY_TOKEN}{self.token_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """Who does something, and in which request: what every audit event needs."""

    actor: str
    request_id: str | None = None
    every_s: float = 0.0
    """Of events with one name, subject and code, one in so many seconds is left."""

    def note(
        self, session: Session, name: str, subject: str, facts: Mapping[str, Plain], project: str | None = None
    ) -> None:
        event = events.Event(
            name=name, actor=self.actor, subject=subject, project=project, request_id=self.request_id, facts=facts
        )
        if self.every_s:
            events.append_rarely(session, event, self.every_s)
        else:
            events.append(session, event)


SECRET_PREFIX = "hr"
SIGN_IN_PREFIX = "hrs"
JOIN_TTL_S = 3600.0
REFUSED = "join.refused"
REFUSED_EVERY_S = 3600.0
NAMES_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    name: str
    role: Role
    purpose: Purpose | None = None
    project: str | None = None
    subject: str | None = None
    ttl_s: float | None = None
    uses_max: int | None = None

    @staticmethod
    def counted(request: TokenRequest) -> TokenRequest:
        """The same; a join token that says no more is for one node and for an hour. Raises FieldsError when one for
        many does not say until when.
        """
        if request.purpose is not Purpose.JOIN:
            return request
        if request.ttl_s is None and (request.uses_max or 1) > 1:
            raise FieldsError.of("/ttl_s", "a join token for several nodes says how long it is good for", "missing")
        return replace(request, uses_max=request.uses_max or 1, ttl_s=request.ttl_s or JOIN_TTL_S)


@record
class IssuedToken(Token):
    """A fresh token. `secret` is shown this once; a repeat under the same Idempotency-Key answers null in its place."""

    secret: str | None


class Tokens:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._on_revoked: list[Callable[[], None]] = []
        self._names: dict[str, str] = {}

    def name_of(self, actor: str) -> str:
        """As the store has it, which is asked once."""
        if actor not in self._names:
            if len(self._names) >= NAMES_MAX:
                self._names.clear()
            self._names[actor] = self._database.read(tokens.name_of, actor)
        return self._names[actor]

    def when_revoked(self, hear: Callable[[], None]) -> None:
        """Have `hear` called after every revocation made here, so that caches can forget."""
        self._on_revoked.append(hear)

    def actors_of(self, secrets: Sequence[str]) -> tuple[Actor | None, ...]:
        """Whose these secrets are; None when nobody's who may still come in."""
        with self._database.transaction() as session:
            live = tokens.find_by_secrets(session, secrets)
            tokens.touch(session, sorted(token.id for token in live.values()))
            of_nodes = [str(token.subject) for token in live.values() if token.purpose is Purpose.NODE]
            keys = nodes.keys_of(session, of_nodes) if of_nodes else {}
            found: dict[str, Actor | None] = {
                secret: record_of(
                    Actor,
                    token,
                    token_id=token.id,
                    keys=keys.get(str(token.subject)) if token.purpose is Purpose.NODE else None,
                )
                for secret, token in live.items()
            }
            expired = tokens.find_expired_joins(session, [secret for secret in secrets if secret not in live])
            for secret, token in expired.items():
                found[secret] = actor = record_of(Actor, token, token_id=token.id, has_expired=True)
                note_refusal(session, actor, actor.subject, JoinTokenExpiredError.code)
            found |= {
                secret: _signed_in(session, secret) for secret in secrets if secret.startswith(f"{SIGN_IN_PREFIX}_")
            }
            return tuple(map(found.get, secrets))

    def ended(self, actors: Sequence[Actor]) -> tuple[Actor, ...]:
        """Those who may not come in any more, or not as who they were."""
        return self._database.read(_ended, actors)

    def ended_of_used(self, actors: Sequence[Actor]) -> tuple[Actor, ...]:
        """Likewise of those who came of late, which is remembered."""
        with self._database.transaction() as session:
            tokens.touch(session, [actor.token_id for actor in actors])
            return _ended(session, actors)

    def get(self, token_id: str) -> Token:
        """One token. Raises NotFoundError."""
        return self._database.read(tokens.get, token_id)

    def page(self, order: PageOrder) -> StoredPage[Token]:
        return self._database.read(tokens.page, order)

    def issue(self, request: TokenRequest, deed: Deed) -> IssuedToken:
        """Make a token. Raises FieldError, and FieldsError for a combination that makes no sense or a project that does
        not exist.
        """
        _check(request)
        secret = new_secret(SECRET_PREFIX)
        with self._database.transaction() as session:
            # So that the project does not go meanwhile: who made one of its name later would let the token in.
            documents.lock_references(session, exclusive=False)
            if request.project is not None and documents.find(session, kinds.PROJECT, (request.project,)) is None:
                raise FieldsError.unknown("/project", f"there is no project {request.project}")
            draft = record_of(TokenDraft, request, id=new_id(), created_by=deed.actor)
            token = tokens.create(session, draft, secret)
            note_token(session, "token.created", token, deed)
        return record_of(IssuedToken, token, secret=secret)

    def revoke(self, token_id: str, deed: Deed) -> None:
        """End a token. Raises NotFoundError; ending it twice is no error and leaves no second event."""
        with self._database.transaction() as session:
            before = tokens.get(session, token_id)
            token = tokens.revoke(session, token_id)
            if before.revoked_at is None:
                note_token(session, "token.revoked", token, deed)
        for hear in self._on_revoked:
            hear()


def note_refusal(session: Session, actor: Actor, node: str | None, code: str) -> None:
    """Leave an audit event that a node was not let in, one an hour for each token or node and code."""
    subject = f"tokens/{actor.token_id}" if actor.purpose is Purpose.JOIN else f"nodes/{node}"
    event = events.Event(name=REFUSED, actor=actor.name, subject=subject, facts={"code": code, "node": node})
    events.append_rarely(session, event, REFUSED_EVERY_S)


def _signed_in(session: Session, secret: str) -> Actor | None:
    found = sign_ins.find(session, secret)
    token = None if found is None else tokens.find_live(session, found.token_id)
    if found is None or token is None:
        return None
    tokens.touch(session, [token.id])
    return record_of(Actor, token, token_id=token.id, sign_in=found.id)


def _ended(session: Session, actors: Sequence[Actor]) -> tuple[Actor, ...]:
    held = [
        tokens.HeldToken(
            id=actor.token_id,
            role=actor.role.value,
            project=actor.project,
            keys=None if actor.keys is None else ",".join(actor.keys),
            sign_in=actor.sign_in,
        )
        for actor in actors
    ]
    over = tokens.ended(session, held)
    return tuple(actor for actor, mine in zip(actors, held, strict=True) if mine in over)


def note_token(session: Session, name: str, token: Token, deed: Deed) -> None:
    """Leave an audit event of a token: the trail knows its name when the token is forgotten."""
    deed.note(session, name, f"tokens/{token.id}", {"name": token.name, "role": token.role.value}, token.project)


def _check(request: TokenRequest) -> None:
    """Raise FieldError for a name that people would not see as it is, FieldsError unless the fields fit together."""
    check_shown("name", request.name)
    role, purpose = request.role, request.purpose
    if request.uses_max is not None and purpose is not Purpose.JOIN:
        raise FieldsError.of("/uses_max", "only uses of join tokens are counted")
    if role is Role.AGENT:
        if purpose is None:
            raise FieldsError.of("/purpose", "an agent token needs a purpose: join, node or gateway", "missing")
        if request.project is not None:
            raise FieldsError.of("/project", "an agent token belongs to no project")
        if purpose is not Purpose.JOIN and request.subject is None:
            raise FieldsError.of("/subject", f"a {purpose.value} token names its {purpose.value}", "missing")
        return
    if purpose is not None:
        raise FieldsError.of("/purpose", f"a token with role {role.value} has no purpose")
    if request.subject is not None:
        raise FieldsError.of("/subject", f"a token with role {role.value} has no subject")
    if role is Role.ADMIN and request.project is not None:
        raise FieldsError.of("/project", "an admin token is for the whole cluster")
