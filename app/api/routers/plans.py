"""Plans: look at them, ask for one, apply one, ask why; the picture of the fleet that they are made from; and what
would be if it were another.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import Depends, Query, Request, Response

from app.api.auth import ClusterReader, ClusterWriter, SharedReader, visible_project
from app.api.body import RequestBody, json_of, parse, require_media_type
from app.api.deps import context_of, deed_of, services_of
from app.api.forms import Page, Paging, PlanKey, Posting, answer, once
from app.api.openapi import json_body, router_of
from app.records import record
from app.services.explaining.solves import ExplainQuestion
from app.services.planning.plans import Explanation
from app.services.whatif.question import WhatIf, WhatIfQuestion
from app.store.plans import PlanState, PlanSummary, StoredPlan
from solvers.cycle.record import Lane
from solvers.domain.codec import canonical_json
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import NAME_PATTERN


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


plans_router = router_of("plans")
WorkloadFilter = Annotated[
    str | None,
    Query(pattern=r"^[a-z0-9._-]{1,63}/[a-z0-9._-]{1,63}$", description="Only this workload: `project/name`."),
]
WhyNotType = Annotated[
    str | None,
    Query(pattern=NAME_PATTERN, description="Why is the workload not on this GPU type? Goes with `workload`."),
]


@plans_router.get("/v1/plans", summary="List plans", response_model=Page[PlanSummary])
def list_plans(
    request: Request, actor: SharedReader, order: Paging, lane: Lane | None = None, state: PlanState | None = None
) -> Any:
    """Newest first."""
    return answer(services_of(request).plans.page(order, lane, state))


@plans_router.get("/v1/plans/{plan_id}", summary="Get a plan", response_model=StoredPlan)
def get_plan(request: Request, actor: SharedReader, plan_id: PlanKey) -> Any:
    """A project's token sees its own assignments."""
    return answer(services_of(request).plans.get(plan_id, actor.project))


@plans_router.get("/v1/plans/{plan_id}/explain", summary="Why is the plan as it is?", response_model=Explanation)
def explain_plan(
    request: Request, actor: SharedReader, plan_id: PlanKey, workload: WorkloadFilter = None, why_not: WhyNotType = None
) -> Any:
    """Per assignment: why there, and why not on other GPU types; per gap: what blocks it and what would have to give;
    what binds and what more of it is worth; with `why_not`, why the workload is not on that GPU type.

    404 for a GPU type that does not exist, and for a workload that neither exists nor has a part in the plan. 422 for
    `why_not` without `workload`.
    """
    visible_project(actor, workload.partition("/")[0] if workload is not None else None)
    return answer(services_of(request).plans.explain(plan_id, actor.project, workload, why_not))


@plans_router.post(
    "/v1/plans/{plan_id}/explain",
    summary="Why not there, and what does the SLO cost?",
    response_model=Explanation,
    openapi_extra=json_body(ExplainQuestion),
)
def explain_plan_anew(
    request: Request,
    actor: ClusterWriter,
    plan_id: PlanKey,
    asked: Annotated[ExplainQuestion, Depends(json_of(ExplainQuestion))],
) -> Any:
    """The explanation of one service, and what plans made of the fleet as it is now say beside it: with `why_not`, of a
    GPU type that the plan's planner did not look at, and what everything costs with the service on that type only
    (`forced`); with `slo_curve`, what everything costs at 0.5 to 2 times its SLO. Nothing is stored.

    404 for a service or GPU type that does not exist; 422 for a workload without a latency to price, and where all
    plans together could take longer than ten minutes; 503 when too many questions are being answered.
    """
    services = services_of(request)
    found = services.plans.explain(plan_id, actor.project, asked.workload, asked.why_not)
    anew = services.simulations.explain(asked, found.why_not)
    return answer(replace(found, why_not=anew.why_not, forced=anew.forced, slo_curve=anew.slo_curve))


@plans_router.post(
    "/v1/plans", summary="Plan now", status_code=201, response_model=StoredPlan, openapi_extra=json_body(ProposeRequest)
)
def propose_plan(
    request: Request,
    actor: ClusterWriter,
    posted: Posting,
    wanted: Annotated[ProposeRequest, Depends(json_of(ProposeRequest))],
) -> Any:
    """One cycle that changes nothing: the plan is stored and may be applied."""

    def work() -> Response:
        plan_id = context_of(request).planning.propose(wanted.lane, actor.name)
        services_of(request).plans.note_proposal(plan_id, wanted.lane, deed_of(request, actor))
        return answer(services_of(request).plans.get(plan_id, None), 201, {"Location": f"/v1/plans/{plan_id}"})

    # A cycle thinks for long and stores only what changes nothing; one whose answer was lost is run anew.
    return once(posted, work, apart=True)


@plans_router.post(
    "/v1/plans/{plan_id}/apply",
    summary="Make a plan the target",
    response_model=Applied,
    openapi_extra=json_body(ApplyRequest),
)
def apply_plan(request: Request, actor: ClusterWriter, plan_id: PlanKey, posted: Posting) -> Any:
    """Works while the plan's parent generation is still current; otherwise 409, and a new plan is needed."""
    require_media_type(request, "application/json")
    if posted.body.strip():
        parse(ApplyRequest, posted.body)

    def work() -> Response:
        generation = context_of(request).planning.apply(plan_id, actor.name)
        return answer(Applied(plan_id=plan_id, generation=generation))

    return once(posted, work)


# --- Simulations. Nothing is stored and nothing changes


simulations_router = router_of("simulations")


@simulations_router.get(
    "/v1/snapshot", summary="The picture that a plan would be made from now", response_model=Snapshot
)
def get_snapshot(request: Request, actor: ClusterReader) -> Any:
    """In its canonical form: its SHA-256 is the snapshot's digest in plans and records. A plan made of it with the same
    planner, seed and work units has the same digest anywhere.
    """
    return Response(canonical_json(services_of(request).simulations.snapshot()), media_type="application/json")


@simulations_router.post(
    "/v1/simulations", summary="Ask what would be if", response_model=WhatIf, openapi_extra=json_body(WhatIfQuestion)
)
def simulate(
    request: Request, actor: ClusterWriter, question: Annotated[WhatIfQuestion, Depends(json_of(WhatIfQuestion))]
) -> Any:
    """Plan the fleet as it is and as the changes say, and answer the difference; with `advise`, also which GPU types to
    add next. Nothing is stored and nothing changes. 422 points to changes that name what does not exist; 503 when too
    many are asked at once.
    """
    return answer(services_of(request).simulations.answer(question))


ROUTERS = (plans_router, simulations_router)
