"""Profiles: what there is, import in bulk as JSON or CSV, delete."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse

from app.api.body import parse, read_body, require_media_type
from app.api.deps import deed_of, services_of
from app.api.idempotency import IdempotencyKey, Posted, once
from app.api.keys import Name
from app.api.openapi import request_body
from app.api.paging import Page, Paging, page_of
from app.api.rules import ClusterReader, ClusterWriter
from app.api.schemas.telemetry import Imported, ProfileLine
from app.services.profiles import read_csv
from solvers.domain.codec import to_plain
from solvers.domain.profile import Profile, ProfilePoint

router = APIRouter(tags=["profiles"])
JSON, CSV = "application/json", "text/csv"
_BODY = request_body(
    {
        JSON: {"schema": {"type": "array", "items": {"$ref": "#/components/schemas/ProfilePoint"}}},
        CSV: {"schema": {"type": "string", "description": "A header row, then one point in each row."}},
    }
)


@router.get("/v1/profiles", operation_id="list_profiles", summary="List profiles", response_model=Page[ProfileLine])
def list_profiles(request: Request, actor: ClusterReader, order: Paging) -> Any:  # noqa: ARG001 - the actor is the guard
    """What is known, by model and GPU type."""
    page = services_of(request).profiles.page(order.limit, order.cursor)
    return JSONResponse(page_of([jsonable_encoder(asdict(item)) for item in page.items], page.next_cursor))


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
    return JSONResponse(to_plain(services_of(request).profiles.get(model, gpu_type)))


@router.post(
    "/v1/profiles",
    operation_id="import_profiles",
    summary="Import profile points",
    response_model=Imported,
    openapi_extra=_BODY,
)
def import_profiles(
    request: Request, actor: ClusterWriter, idempotency_key: IdempotencyKey = None, body: bytes = Depends(read_body)
) -> Any:
    """All or nothing; a point of the same configuration replaces the older one."""
    if require_media_type(request, JSON, CSV) == CSV:
        points, places = read_csv(body)
    else:
        points = parse(tuple[ProfilePoint, ...], body)
        places = tuple(f"/{index}" for index in range(len(points)))

    def work() -> Response:
        written = services_of(request).profiles.import_points(points, places, deed_of(request, actor))
        return JSONResponse({"points": len(points), "configurations": written})

    return once(Posted(request, actor, idempotency_key, body), work)


@router.delete(
    "/v1/profiles/{model}/{gpu_type}",
    operation_id="delete_profile",
    summary="Delete a profile",
    status_code=204,
    response_class=Response,
)
def delete_profile(request: Request, actor: ClusterWriter, model: Name, gpu_type: Name) -> Response:
    """Forget all points of a model on a GPU type."""
    services_of(request).profiles.delete(model, gpu_type, deed_of(request, actor))
    return Response(status_code=204)
