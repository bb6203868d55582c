"""Profiles: what there is, import in bulk as JSON or any CSV of measurements, delete."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from app.api.answers import answer
from app.api.body import parse, read_body, require_media_type
from app.api.deps import deed_of, services_of
from app.api.idempotency import IdempotencyKey, Posted, once
from app.api.keys import Name
from app.api.openapi import request_body
from app.api.paging import Page, Paging
from app.api.progress import BELIEF_HEADER, belief_header
from app.api.rules import ClusterReader, ClusterWriter
from app.services.beliefs.predictions import NextPoints
from app.services.profiles.profiles import Imported, read_csv, read_list
from app.store.profiles import ProfileLine
from solvers.domain.profile import PairPoint, Profile, ProfilePoint

router = APIRouter(tags=["profiles"])
Budget = Annotated[int, Query(ge=1, le=256, description="How many measurements at most.")]
SkipBad = Annotated[bool, Query(description="Leave bad rows out, and say which, instead of refusing all.")]
JSON, CSV = "application/json", "text/csv"
_BODY = request_body(
    {
        JSON: {"schema": {"type": "array", "items": {"$ref": "#/components/schemas/ProfilePoint"}}},
        CSV: {
            "schema": {
                "type": "string",
                "description": "A header row, then in each row one point (by a point's fields), one measurement of a "
                "model alone (model, gpu_type, batch, share_pct_sm, clock_mhz_sm, latency_ms, …) or one of a pair "
                "(gpu_type, model_a, batch_a, share_pct_a, …).",
            }
        },
    }
)


@router.get("/v1/profiles", operation_id="list_profiles", summary="List profiles", response_model=Page[ProfileLine])
def list_profiles(request: Request, actor: ClusterReader, order: Paging) -> Any:  # noqa: ARG001 - the actor is the guard
    """What is known, by model and GPU type."""
    page = services_of(request).profiles.page(order)
    return answer(page)


@router.get(
    "/v1/profiles/{model}/{gpu_type}", operation_id="get_profile", summary="Get a profile", response_model=Profile
)
def get_profile(
    request: Request,
    actor: ClusterReader,  # noqa: ARG001 - the actor is the guard
    model: Name,
    gpu_type: Name,
) -> Any:
    """All points of a model on a GPU type."""
    return answer(services_of(request).profiles.get(model, gpu_type))


@router.get(
    "/v1/profiles/{model}/{gpu_type}/pairs",
    operation_id="list_profile_pairs",
    summary="List measured pairs",
    response_model=Page[PairPoint],
)
def list_pairs(
    request: Request,
    actor: ClusterReader,  # noqa: ARG001 - the actor is the guard
    model: Name,
    gpu_type: Name,
    order: Paging,
) -> Any:
    """What was measured of a model beside another one on the same GPU; members stand in rising order."""
    page = services_of(request).profiles.pairs(model, gpu_type, order)
    return answer(page)


@router.get(
    "/v1/profiles/{model}/{gpu_type}/next-points",
    operation_id="list_next_points",
    summary="Propose measurements",
    response_model=NextPoints,
    responses={200: {"headers": BELIEF_HEADER}},
)
def list_next_points(
    request: Request,
    actor: ClusterReader,  # noqa: ARG001 - the actor is the guard
    model: Name,
    gpu_type: Name,
    budget: Budget = 16,
) -> Any:
    """The configurations whose measurement would tell most about a model on a GPU type, in the order in which to
    measure them. Nothing need be known of the model yet.
    """
    found = services_of(request).predictions.next_points(model, gpu_type, budget)
    return answer(NextPoints(items=found.what), headers=belief_header(found.progress))


@router.post(
    "/v1/profiles",
    operation_id="import_profiles",
    summary="Import profile points",
    response_model=Imported,
    openapi_extra=_BODY,
)
def import_profiles(
    request: Request,
    actor: ClusterWriter,
    skip_bad: SkipBad = False,
    idempotency_key: IdempotencyKey = None,
    body: bytes = Depends(read_body),
) -> Any:
    """All or nothing, unless bad rows may be skipped; a point of the same configuration replaces the older one."""
    is_csv = require_media_type(request, JSON, CSV) == CSV
    reading = read_csv(body) if is_csv else read_list(parse(tuple[ProfilePoint, ...], body))

    def work() -> Response:
        return answer(services_of(request).profiles.import_points(reading, deed_of(request, actor), skip_bad=skip_bad))

    return once(Posted(request, actor, idempotency_key, body), work)


@router.delete(
    "/v1/profiles/{model}/{gpu_type}",
    operation_id="delete_profile",
    summary="Delete a profile",
    status_code=204,
    response_class=Response,
)
def delete_profile(request: Request, actor: ClusterWriter, model: Name, gpu_type: Name) -> Response:
    """Forget all points of a model on a GPU type and the pairs it is part of there."""
    services_of(request).profiles.delete(model, gpu_type, deed_of(request, actor))
    return Response(status_code=204)
