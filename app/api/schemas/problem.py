"""The one shape of every error answer (RFC 9457)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from app.errors import Fault


class Problem(BaseModel):
    """Problem details. `code` is stable; `detail` is for people and may change."""

    model_config = ConfigDict(extra="forbid")

    type: str = Field(description="`/problems/` and the code.")
    title: str
    status: int
    detail: str
    code: str
    errors: list[Fault]
    request_id: str
