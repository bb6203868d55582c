"""The first tokens of a control plane, made beside the API because the API lets nobody in without one. Callers store
the secrets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict

from app.clock import new_id
from app.services.declared.tokens import Deed, TokenRequest, Tokens
from app.store.engine import Database
from app.store.migrate import require_schema
from app.store.tokens import TokenDraft, create, find_by_secrets, find_ended
from solvers.errors import InputError

ACTOR = "local:command-line"


def ensure_tokens(url: str, wanted: Mapping[str, TokenRequest], held: Mapping[str, str | None]) -> dict[str, str]:
    """A good secret for each wanted token: the one held where it still is, else of a new one. Raises TransientError."""
    with _database(url) as database:
        tokens = Tokens(database)
        return {name: _ensure(tokens, request, held.get(name)) for name, request in wanted.items()}


def issue_locally(url: str, request: TokenRequest) -> str:
    """The secret of a new token. Raises TransientError, FieldsError."""
    with _database(url) as database:
        return Tokens(database).issue(request, Deed(actor=ACTOR)).secret or ""


def store_given(url: str, given: Mapping[str, TokenRequest]) -> list[str]:
    """Make sure that tokens with exactly these secrets exist; the names of those made. Raises TransientError, and
    InputError where one with such a secret has ended.
    """
    with _database(url) as database, database.transaction() as session:
        held = find_by_secrets(session, given)
        missing = {secret: request for secret, request in given.items() if secret not in held}
        if ended := find_ended(session, missing):
            names = ", ".join(missing[secret].name for secret in ended)
            raise InputError(
                f"tokens with these secrets have ended, revoked or expired: {names}; choose another secret"
            )
        for secret, request in missing.items():
            create(session, TokenDraft(id=new_id(), created_by=ACTOR, **asdict(request)), secret)
        return [request.name for request in missing.values()]


@contextmanager
def _database(url: str) -> Iterator[Database]:
    database = Database(url, pool_size=1)
    try:
        database.read(require_schema)
        yield database
    finally:
        database.dispose()


def _ensure(tokens: Tokens, request: TokenRequest, secret: str | None) -> str:
    actor = tokens.actors_of([secret])[0] if secret else None
    if secret and actor is not None and (actor.role, actor.subject) == (request.role, request.subject):
        return secret
    return tokens.issue(request, Deed(actor=ACTOR)).secret or ""
