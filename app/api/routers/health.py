"""Whether this process lives, whether it can serve, what it is, and its metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.security import HTTPAuthorizationCredentials
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from app.api.answers import answer
from app.api.auth import bearer, identify
from app.api.deps import context_of, services_of
from app.api.rules import SHARED_READ
from app.errors import ForbiddenError
from app.records import record

router = APIRouter(tags=["health"])


@record
class Health:
    """The process answers."""

    status: str


@record
class Version:
    """What runs here."""

    version: str
    cluster: str


@router.get("/v1/health", operation_id="get_health", summary="Is the process alive?", response_model=Health)
def health() -> Any:
    """Touches nothing outside the process."""
    return answer(Health(status="ok"))


@router.get("/v1/ready", operation_id="get_ready", summary="Can it serve?", response_model=Health)
def ready(request: Request) -> Any:
    """200 when the database answers and carries the schema this release needs; 503 otherwise."""
    services_of(request).fleet.require_ready()
    return answer(Health(status="ok"))


@router.get("/v1/version", operation_id="get_version", summary="What runs here?", response_model=Version)
def version(request: Request) -> Any:
    """Release and cluster."""
    return answer(Version(version=request.app.version, cluster=context_of(request).settings.cluster))


async def _allowed(request: Request, credentials: HTTPAuthorizationCredentials | None = Depends(bearer)) -> None:
    if context_of(request).settings.metrics_public:
        return
    actor = await identify(request, credentials)
    if not SHARED_READ.admits(actor):
        raise ForbiddenError(f"a token with role {actor.role.value} may not read metrics")


@router.get(
    "/metrics",
    operation_id="get_metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    dependencies=[Depends(_allowed)],
)
def metrics(request: Request) -> Response:
    """Base units; public unless `HEADROOM_METRICS_PUBLIC` is off."""
    registry: CollectorRegistry = request.app.state.metrics
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
