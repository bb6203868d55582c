"""The fleet at a glance."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from app.api.answers import answer
from app.api.deps import services_of
from app.api.rules import SharedReader
from app.services.seen.status import FleetSummary

router = APIRouter(tags=["fleet"])


@router.get("/v1/fleet", operation_id="get_fleet", summary="The fleet at a glance", response_model=FleetSummary)
def fleet(request: Request, actor: SharedReader) -> Any:
    """Nodes, devices with their shares, services with SLO attainment of the last five minutes, dollars per hour."""
    return answer(services_of(request).status.fleet(actor.project))
