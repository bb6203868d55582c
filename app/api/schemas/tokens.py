"""Tokens on the wire."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from app.store.tokens import Purpose, Role
from solvers.domain.value import NAME_PATTERN

Word = Annotated[str, Field(pattern=NAME_PATTERN, max_length=63)]
TTL_S_MAX = 10 * 365 * 86_400.0


class NewToken(BaseModel):
    """A token somebody wants. Agent tokens have a purpose, and a subject unless they are for joining."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")
    role: Role
    purpose: Purpose | None = None
    project: Word | None = Field(default=None, description="Only this project; null is the whole cluster.")
    subject: Word | None = Field(default=None, description="The node or gateway an agent token speaks for.")
    ttl_s: float | None = Field(default=None, ge=1, le=TTL_S_MAX, description="Seconds until it expires; null: never.")
