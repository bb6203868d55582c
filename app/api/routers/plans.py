"""Plans: look at them, ask for one, apply one, ask why; the picture of the fleet that they are made from; and what
would be if it were another.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import Depends, Query, Request, Response
from pydantic import Field

from app.api.auth import ClusterReader, ClusterWriter, SharedReader, visible_project
from app.api.body import RequestBody, json_of
from app.api.deps import context_of, deed_of, services_of
from app.api.forms import Comment, IfMatch, Page, Paging, PlanText, Posting, answer, demands_any, etag, once, said
from app.api.openapi import json_body, router_of
from app.api.problems import request_id_of
from app.records import record
from app.services.explaining.solves import ExplainQuestion
from app.services.planning.deciding import Remark, RolledBack
from app.services.planning.plans import Explanation
from app.services.planning.reviewing import PlanDiff
from app.services.whatif.question import WhatIf, WhatIfQuestion
from app.store.plans import PlanState, PlanSummary, StoredPlan
from app.store.targets import Hold
from solvers.cycle.record import Lane
from solvers.domain.codec import canonical_json
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import NAME_PATTERN

_TAG_HEADER = {"ETag": {"description": "Of the target it is compared with.", "schema": {"type": "string"}}}


class ProposeRequest(RequestBody):
    """Which lane to plan in. `act` moves services on auto, `approve` also those on approve, `shadow` all but off."""

    lane: Lane = Lane.ACT


COOLDOWN_S, COOLDOWN_S_MAX = 900.0, 7 * 86_400.0


class ApplyRequest(RequestBody):
    """Why, for those who read the audit later; the body may also be left out."""

    comment: Comment | None = None


class RejectRequest(RequestBody):
    """Why not."""

    comment: Comment = ""


class RollbackRequest(RequestBody):
    """Where to, and for how long nobody but people may change it."""

    generation: int | None = Field(None, ge=1, le=2**53, description="Without: the one before what stands.")
    cooldown_s: float = Field(
        COOLDOWN_S, ge=0, le=COOLDOWN_S_MAX, allow_inf_nan=False, description="Automatic planning is held for so long."
    )
    comment: Comment | None = None


class ResumeRequest(RequestBody):
    """Nothing to say; the body may also be left out."""


@record
class Applied:
    """The plan is the target."""

    plan_id: str
    generation: int


@record
class PlanningHeld:
    """Whether the planner may change the target by itself."""

    held: Hold | None
    """Null: it may."""


def plan_key(request: Request, plan_id: PlanText) -> str:
    """The whole id of what is named in the path."""
    return services_of(request).plans.full_id(plan_id)


PlanKey = Annotated[str, Depends(plan_key)]
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
    request: Request,
    actor: SharedReader,
    order: Paging,
    lane: Annotated[Lane | None, Query(description="Only of this lane.")] = None,
    state: Annotated[PlanState | None, Query(description="Only what has become so.")] = None,
) -> Any:
    """Newest first."""
    return answer(services_of(request).plans.page(order, lane, state, actor.project))


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


@plans_router.get(
    "/v1/plans/{plan_id}/diff",
    summary="What would a plan change?",
    response_model=PlanDiff,
    responses={200: {"headers": _TAG_HEADER}},
)
def diff_plan(request: Request, actor: ClusterReader, plan_id: PlanKey) -> Any:
    """Against what stands now, by the fleet and the demand of now: cost, power, each workload before and after, each
    device, and the steps in the order in which agents make them; and whether it could be approved.
    """
    found = services_of(request).plans.diff(plan_id)
    return answer(found.diff, headers={"ETag": etag(found.tag)})


@plans_router.post(
    "/v1/plans/{plan_id}/apply",
    summary="Approve a plan: make it the target",
    response_model=Applied,
    openapi_extra=json_body(ApplyRequest),
)
def apply_plan(
    request: Request, actor: ClusterWriter, plan_id: PlanKey, posted: Posting, if_match: IfMatch = None
) -> Any:
    """Exactly this plan, if it still fits the fleet as it is: otherwise 409 with every reason. 409 also names who
    decided before. With If-Match, the tag of `diff` or of the current target: 412 when something else stands by now.
    """
    wish = said(request, posted, ApplyRequest)
    terms = _terms(request, wish.comment, if_match)

    def work() -> Response:
        generation = context_of(request).planning.apply(plan_id, actor.name, terms)
        return answer(Applied(plan_id=plan_id, generation=generation))

    return once(posted, work)


@plans_router.post(
    "/v1/plans/{plan_id}/reject",
    summary="Reject a plan",
    response_model=PlanSummary,
    openapi_extra=json_body(RejectRequest),
)
def reject_plan(request: Request, actor: ClusterWriter, plan_id: PlanKey, posted: Posting) -> Any:
    """It is not proposed again unchanged: not before documents of workloads on approve, or what it does with them,
    differ. 409 names who decided before.
    """
    wish = said(request, posted, RejectRequest)
    deed = deed_of(request, actor)
    return once(posted, lambda: answer(services_of(request).plans.reject(plan_id, wish.comment, deed)))


@plans_router.post(
    "/v1/rollback",
    summary="Go back to what stood before",
    response_model=RolledBack,
    openapi_extra=json_body(RollbackRequest),
)
def roll_back(request: Request, actor: ClusterWriter, posted: Posting, if_match: IfMatch = None) -> Any:
    """The plan of an earlier generation becomes the target again, as a new generation, and automatic planning is held
    for `cooldown_s`. 409 with every reason when devices are gone or it does not verify any more; If-Match as above.
    """
    wish = said(request, posted, RollbackRequest)
    terms = _terms(request, wish.comment, if_match)

    def work() -> Response:
        return answer(context_of(request).planning.rollback(wish.generation, wish.cooldown_s, actor.name, terms))

    return once(posted, work)


@plans_router.get("/v1/planning", summary="May the planner act by itself?", response_model=PlanningHeld)
def get_planning(request: Request, actor: ClusterReader) -> Any:
    """Who holds it since a rollback, and until when."""
    return answer(PlanningHeld(held=services_of(request).plans.hold()))


@plans_router.post(
    "/v1/planning/resume",
    summary="Let the planner act again",
    response_model=PlanningHeld,
    openapi_extra=json_body(ResumeRequest),
)
def resume_planning(request: Request, actor: ClusterWriter, posted: Posting) -> Any:
    """Ends what a rollback holds, before its time is over. Answers what was held, null where nothing was."""
    said(request, posted, ResumeRequest)
    deed = deed_of(request, actor)
    return once(posted, lambda: answer(PlanningHeld(held=services_of(request).plans.resume(deed))))


def _terms(request: Request, comment: str | None, if_match: str | None) -> Remark:
    tag = None if if_match is None or demands_any(if_match) else if_match.strip().strip('"')
    return Remark(request_id=request_id_of(request.scope), comment=comment, standing=tag)


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
