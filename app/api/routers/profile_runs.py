"""Profile runs: order one, look, cancel; and what the node that carries it out asks and tells."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.responses import JSONResponse

from agents.wire import ProfilePointAsked, encode
from app.api.answers import answer
from app.api.body import parse, read_body, require_media_type
from app.api.deps import deed_of, services_of
from app.api.idempotency import IdempotencyKey, Posted, once
from app.api.openapi import json_body
from app.api.paging import Page, Paging
from app.api.rules import ClusterReader, ClusterWriter, NodeAgent
from app.api.schemas.profile_runs import (
    NewProfileRun,
    PointsAsked,
    ProfileOrders,
    RunGoesOn,
    RunNews,
)
from app.errors import ForbiddenError
from app.services.profiles.profiles import ReadPoints, placed
from app.services.profiles.runs import WantedProfileRun
from app.store.profile_runs import ProfileRunLine, ProfileRunProgress

router = APIRouter(tags=["profile-runs"])
POINTS_ASKED = 16
RunKey = Annotated[int, Path(ge=1, le=2**63 - 1, description="Id of the run.")]


@router.get(
    "/v1/profile-runs",
    operation_id="list_profile_runs",
    summary="List profile runs",
    response_model=Page[ProfileRunLine],
)
def list_profile_runs(
    request: Request,
    actor: ClusterReader,  # noqa: ARG001 - the actor is the guard
    order: Paging,
) -> Any:
    """The newest first."""
    page = services_of(request).profile_runs.page(order)
    return answer(page)


@router.get(
    "/v1/profile-runs/{run}",
    operation_id="get_profile_run",
    summary="Get a profile run",
    response_model=ProfileRunLine,
)
def get_profile_run(
    request: Request,
    actor: ClusterReader,  # noqa: ARG001 - the actor is the guard
    run: RunKey,
) -> Any:
    """One run and how it goes."""
    return answer(services_of(request).profile_runs.get(run))


@router.post(
    "/v1/profile-runs",
    operation_id="create_profile_run",
    summary="Order a profile run",
    status_code=201,
    response_model=ProfileRunLine,
    openapi_extra=json_body(NewProfileRun),
)
def create_profile_run(
    request: Request, actor: ClusterWriter, idempotency_key: IdempotencyKey = None, body: bytes = Depends(read_body)
) -> Any:
    """Nothing is planned on the device until the run has ended. Its node begins within half a minute."""
    require_media_type(request, "application/json")
    found = parse(NewProfileRun, body)
    wanted = WantedProfileRun(
        service=found.service,
        node=found.node,
        budget_s=found.budget_s,
        uuid=found.device,
        beside=found.beside,
        drain=found.drain,
    )

    def work() -> Response:
        run = services_of(request).profile_runs.order(wanted, deed_of(request, actor))
        return answer(run, 201, {"Location": f"/v1/profile-runs/{run.id}"})

    return once(Posted(request, actor, idempotency_key, body), work)


@router.delete(
    "/v1/profile-runs/{run}",
    operation_id="delete_profile_run",
    summary="Cancel a profile run",
    status_code=204,
    response_class=Response,
)
def delete_profile_run(request: Request, actor: ClusterWriter, run: RunKey) -> Response:
    """The device is free for plans at once; what was measured stays."""
    services_of(request).profile_runs.cancel(run, deed_of(request, actor))
    return Response(status_code=204)


@router.get(
    "/v1/agent/profile-runs",
    operation_id="list_node_profile_runs",
    summary="What this node has to measure",
    response_model=ProfileOrders,
    tags=["agent"],
)
def list_node_profile_runs(request: Request, actor: NodeAgent) -> Any:
    """Orders of the token's own node, the oldest first."""
    orders = services_of(request).profile_runs.orders_of(_node(actor.subject))
    return JSONResponse({"items": [encode(order) for order in orders]})


@router.get(
    "/v1/agent/profile-runs/{run}/points",
    operation_id="list_profile_run_points",
    summary="What a run shall measure next",
    response_model=PointsAsked,
    tags=["agent"],
)
def list_profile_run_points(request: Request, actor: NodeAgent, run: RunKey) -> Any:
    """The most useful first, knowing everything that was handed in."""
    services = services_of(request)
    model, gpu_type = services.profile_runs.asked_about(_node(actor.subject), run)
    found = services.predictions.next_points(model, gpu_type, POINTS_ASKED)
    points = [
        ProfilePointAsked(batch=item.batch, share_pct_sm=item.share_pct_sm, clock_mhz_sm=item.clock_mhz_sm)
        for item in found.what
    ]
    return JSONResponse({"items": [encode(point) for point in points]})


@router.post(
    "/v1/agent/profile-runs/{run}",
    operation_id="tell_profile_run",
    summary="Tell of a profile run",
    response_model=RunGoesOn,
    openapi_extra=json_body(RunNews),
    tags=["agent"],
)
def tell_profile_run(request: Request, actor: NodeAgent, run: RunKey, body: bytes = Depends(read_body)) -> Any:
    """How far the node got, with what it measured since. The answer says whether to go on."""
    require_media_type(request, "application/json")
    news, node = parse(RunNews, body), _node(actor.subject)
    services, deed = services_of(request), deed_of(request, actor)
    services.profile_runs.check_handed_in(node, run, tuple(news.points), tuple(news.pairs))
    if news.points or news.pairs:
        services.profiles.import_points(lambda _: _points(news), deed)
    told = ProfileRunProgress(state=news.state, measured=news.measured, doubtful=news.doubtful, detail=news.detail)
    return answer(RunGoesOn(going_on=services.profile_runs.hear(node, run, told, deed)))


def _points(news: RunNews) -> ReadPoints:
    return ReadPoints(rows=placed(news.points, "/points") + placed(news.pairs, "/pairs"))


def _node(subject: str | None) -> str:
    if subject is None:
        raise ForbiddenError("this token is for no node")
    return subject
