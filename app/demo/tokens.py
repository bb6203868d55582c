"""The first tokens of a control plane, made beside the API because the API lets nobody in without one.

Owns the check whether a stored secret is still good. It refuses to print or keep secrets: callers store them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.clock import new_id, new_secret
from app.store.engine import Database
from app.store.tokens import NewToken, Purpose, Role, create, find_by_secret

CREATED_BY = "headroom up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A token that must exist."""

    key: str
    name: str
    role: str
    purpose: str | None = None
    subject: str | None = None


def ensure_tokens(url: str, wanted: Sequence[Wanted], held: Mapping[str, str | None]) -> dict[str, str]:
    """A good secret for each wanted token: the one held where it still is, else of a new one. Raises TransientError."""
    database = Database(url, pool_size=1)
    try:
        with database.transaction() as session:
            secrets: dict[str, str] = {}
            for each in wanted:
                secret = held.get(each.key)
                known = find_by_secret(session, secret) if secret else None
                if secret is None or known is None or known.role.value != each.role:
                    secret = new_secret(each.role)
                    create(session, _new(each), secret)
                secrets[each.key] = secret
            return secrets
    finally:
        database.dispose()


def _new(wanted: Wanted) -> NewToken:
    return NewToken(
        id=new_id(),
        name=wanted.name,
        role=Role(wanted.role),
        created_by=CREATED_BY,
        purpose=Purpose(wanted.purpose) if wanted.purpose else None,
        subject=wanted.subject,
    )
