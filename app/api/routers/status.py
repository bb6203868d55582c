"""The fleet at a glance, and where requests may go."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from app.api.conditional import HeldTag, etag, tagged
from app.api.deps import services_of
from app.api.rules import RoutesReader, SharedReader
from app.api.schemas.fleet import FleetSummary, Routes

router = APIRouter(tags=["fleet"])


@router.get("/v1/fleet", operation_id="get_fleet", summary="The fleet at a glance", response_model=FleetSummary)
def fleet(request: Request, actor: SharedReader) -> Any:
    """Nodes, devices with their shares, services with SLO attainment of the last five minutes, dollars per hour."""
    return JSONResponse(services_of(request).status.fleet(actor.project))


@router.get(
    "/v1/routes",
    operation_id="get_routes",
    summary="Ready replicas and their weights",
    response_model=Routes,
    responses={304: {"description": "Nothing changed."}},
)
def routes(
    request: Request,
    actor: RoutesReader,
    if_none_match: HeldTag = None,  # noqa: ARG001 - read by `tagged`, declared for the description
) -> Any:
    """For gateways. Replicas of the standing target that report ready, with planned capacity as weight."""
    body = {"items": services_of(request).status.routes(actor.project)}
    tag = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:24]
    return tagged(request, body, etag(tag))
