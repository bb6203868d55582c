"""Measured profiles on the wire: what was imported and what there is."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.problem import Fault
from app.services.beliefs.predictions import NextPoint


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Imported(_Closed):
    """Points and pairs read, configurations written, rows left out."""

    points: int
    pairs: int
    configurations: int
    skipped: list[Fault] = Field(description="Why rows were left out, the first of them.")
    skipped_count: int


class ProfileLine(_Closed):
    """What there is about a model on a GPU type."""

    model: str
    gpu_type: str
    points: int
    imported_at: datetime


class NextPoints(_Closed):
    """What to measure next, the most useful first."""

    items: list[NextPoint]
