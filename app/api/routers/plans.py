"""Plans: look at them, ask for one, apply one, and ask why."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from app.api.answers import answer
from app.api.auth import visible_project
from app.api.body import parse, read_body, require_media_type
from app.api.deps import context_of, deed_of, services_of
from app.api.idempotency import IdempotencyKey, Posted, once
from app.api.keys import PlanKey
from app.api.openapi import json_body
from app.api.paging import Page, Paging
from app.api.rules import ClusterWriter, SharedReader
from app.api.schemas.plans import Applied, ApplyRequest, ProposeRequest
from app.services.explaining.solves import ExplainQuestion
from app.services.planning.plans import Explanation
from app.store.plans import PlanState, PlanSummary, StoredPlan
from solvers.cycle.record import Lane
from solvers.domain.value import NAME_PATTERN

router = APIRouter(tags=["plans"])
Workload = Annotated[
    str | None,
    Query(pattern=r"^[a-z0-9._-]{1,63}/[a-z0-9._-]{1,63}$", description="Only this workload: `project/name`."),
]
WhyNotType = Annotated[
    str | None,
    Query(pattern=NAME_PATTERN, description="Why is the workload not on this GPU type? Goes with `workload`."),
]


@router.get("/v1/plans", operation_id="list_plans", summary="List plans", response_model=Page[PlanSummary])
def list_plans(
    request: Request,
    actor: SharedReader,  # noqa: ARG001 - the actor is the guard
    order: Paging,
    lane: Lane | None = None,
    state: PlanState | None = None,
) -> Any:
    """Newest first."""
    page = services_of(request).plans.page(order, lane, state)
    return answer(page)


@router.get("/v1/plans/{plan_id}", operation_id="get_plan", summary="Get a plan", response_model=StoredPlan)
def get_plan(request: Request, actor: SharedReader, plan_id: PlanKey) -> Any:
    """A project's token sees its own assignments."""
    return answer(services_of(request).plans.get(plan_id, actor.project))


@router.get(
    "/v1/plans/{plan_id}/explain",
    operation_id="explain_plan",
    summary="Why is the plan as it is?",
    response_model=Explanation,
)
def explain_plan(
    request: Request, actor: SharedReader, plan_id: PlanKey, workload: Workload = None, why_not: WhyNotType = None
) -> Any:
    """Per assignment: why there, and why not on other GPU types; per gap: what blocks it and what would have to give;
    what binds and what more of it is worth; with `why_not`, why the workload is not on that GPU type.

    404 for a GPU type that does not exist, and for a workload that neither exists nor has a part in the plan. 422 for
    `why_not` without `workload`.
    """
    visible_project(actor, workload.partition("/")[0] if workload is not None else None)
    return answer(services_of(request).plans.explain(plan_id, actor.project, workload, why_not))


@router.post(
    "/v1/plans/{plan_id}/explain",
    operation_id="explain_plan_anew",
    summary="Why not there, and what does the SLO cost?",
    response_model=Explanation,
    openapi_extra=json_body(ExplainQuestion),
)
def explain_plan_anew(
    request: Request, actor: ClusterWriter, plan_id: PlanKey, body: bytes = Depends(read_body)
) -> Any:
    """The explanation of one service, and what plans made of the fleet as it is now say beside it: with `why_not`, of a
    GPU type that the plan's planner did not look at, and what everything costs with the service on that type only
    (`forced`); with `slo_curve`, what everything costs at 0.5 to 2 times its SLO. Nothing is stored.

    404 for a service or GPU type that does not exist; 422 for a workload without a latency to price, and where all
    plans together could take longer than ten minutes; 503 when too many questions are being answered.
    """
    require_media_type(request, "application/json")
    asked = parse(ExplainQuestion, body)
    services = services_of(request)
    found = services.plans.explain(plan_id, actor.project, asked.workload, asked.why_not)
    anew = services.simulations.explain(asked, found.why_not)
    return answer(replace(found, why_not=anew.why_not, forced=anew.forced, slo_curve=anew.slo_curve))


@router.post(
    "/v1/plans",
    operation_id="propose_plan",
    summary="Plan now",
    status_code=201,
    response_model=StoredPlan,
    openapi_extra=json_body(ProposeRequest),
)
def propose_plan(
    request: Request, actor: ClusterWriter, idempotency_key: IdempotencyKey = None, body: bytes = Depends(read_body)
) -> Any:
    """One cycle that changes nothing: the plan is stored and may be applied."""
    require_media_type(request, "application/json")
    wanted = parse(ProposeRequest, body)

    def work() -> Response:
        plan_id = context_of(request).planning.propose(wanted.lane, actor.name)
        services_of(request).plans.note_proposal(plan_id, wanted.lane, deed_of(request, actor))
        return answer(services_of(request).plans.get(plan_id, None), 201, {"Location": f"/v1/plans/{plan_id}"})

    return once(Posted(request, actor, idempotency_key, body), work)


@router.post(
    "/v1/plans/{plan_id}/apply",
    operation_id="apply_plan",
    summary="Make a plan the target",
    response_model=Applied,
    openapi_extra=json_body(ApplyRequest),
)
def apply_plan(
    request: Request,
    actor: ClusterWriter,
    plan_id: PlanKey,
    idempotency_key: IdempotencyKey = None,
    body: bytes = Depends(read_body),
) -> Any:
    """Works while the plan's parent generation is still current; otherwise 409, and a new plan is needed."""
    require_media_type(request, "application/json")
    if body.strip():
        parse(ApplyRequest, body)

    def work() -> Response:
        generation = context_of(request).planning.apply(plan_id, actor.name)
        return answer(Applied(plan_id=plan_id, generation=generation))

    return once(Posted(request, actor, idempotency_key, body), work)
