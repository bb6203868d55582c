"""Who acts: the identity behind a request or a process, as services and audit events see it. Knows nothing about
HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.store.tokens import Purpose, Role


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
