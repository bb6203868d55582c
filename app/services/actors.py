"""Who acts: the identity behind a request or a process, as services and audit events see it. Owns roles and purposes
and nothing about HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a token may do. admin ⊃ operator ⊃ viewer; reporter and agent stand beside them."""

    ADMIN = "admin"
    OPERATOR = "operator"
    VIEWER = "viewer"
    REPORTER = "reporter"
    AGENT = "agent"


class Purpose(StrEnum):
    """What an agent token is for: to join, to be one node, to report the load at an edge."""

    JOIN = "join"
    NODE = "node"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """The token behind a request. `project` None is the whole cluster; `subject` is the node or gateway of an agent
    token.
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
