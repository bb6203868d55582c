"""Requests about plans on the wire."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from app.records import record
from solvers.cycle.record import Lane


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ProposeRequest(_Closed):
    """Which lane to plan in. `act` moves services on auto, `approve` also those on approve, `shadow` all but off."""

    lane: Lane = Lane.ACT


class ApplyRequest(_Closed):
    """Nothing to say; the body may also be left out."""


@record
class Applied:
    """The plan is the target."""

    plan_id: str
    generation: int
