"""The picture of the fleet, and what-if questions about it: nothing is stored and nothing changes."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from app.api.answers import answer
from app.api.body import parse, read_body, require_media_type
from app.api.deps import services_of
from app.api.openapi import json_body
from app.api.rules import ClusterReader, ClusterWriter
from app.services.whatif.question import WhatIf, WhatIfQuestion
from solvers.domain.codec import canonical_json
from solvers.domain.snapshot import Snapshot

router = APIRouter(tags=["simulations"])


@router.get(
    "/v1/snapshot",
    operation_id="get_snapshot",
    summary="The picture that a plan would be made from now",
    response_model=Snapshot,
)
def get_snapshot(request: Request, actor: ClusterReader) -> Any:  # noqa: ARG001 - the actor is the guard
    """In its canonical form: its SHA-256 is the snapshot's digest in plans and records. A plan made of it with the same
    planner, seed and work units has the same digest anywhere.
    """
    return Response(canonical_json(services_of(request).simulations.snapshot()), media_type="application/json")


@router.post(
    "/v1/simulations",
    operation_id="simulate",
    summary="Ask what would be if",
    response_model=WhatIf,
    openapi_extra=json_body(WhatIfQuestion),
)
def simulate(request: Request, actor: ClusterWriter, body: bytes = Depends(read_body)) -> Any:  # noqa: ARG001 - the actor is the guard
    """Plan the fleet as it is and as the changes say, and answer the difference; with `advise`, also which GPU types to
    add next. Nothing is stored and nothing changes. 422 points to changes that name what does not exist; 503 when too
    many are asked at once.
    """
    require_media_type(request, "application/json")
    return answer(services_of(request).simulations.answer(parse(WhatIfQuestion, body)))
