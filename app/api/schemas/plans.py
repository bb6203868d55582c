"""Requests about plans on the wire."""

from __future__ import annotations

from app.api.schemas import RequestBody
from app.records import record
from solvers.cycle.record import Lane


class ProposeRequest(RequestBody):
    """Which lane to plan in. `act` moves services on auto, `approve` also those on approve, `shadow` all but off."""

    lane: Lane = Lane.ACT


class ApplyRequest(RequestBody):
    """Nothing to say; the body may also be left out."""


@record
class Applied:
    """The plan is the target."""

    plan_id: str
    generation: int
