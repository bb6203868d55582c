"""The one shape of every error answer (RFC 9457)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Fault(BaseModel):
    """One offending field."""

    model_config = ConfigDict(extra="forbid")

    pointer: str = Field(description="JSON pointer into the body, or `query:name`, `path:name`, `header:name`.")
    code: str
    detail: str


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
