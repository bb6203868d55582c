"""Plans: what was proposed, by whom, what became of it; one plan as it differs from what stands, and what people decide
on it: approve, reject, go back.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from app.api.auth import CLUSTER_READ, CLUSTER_WRITE
from app.api.console.door import Looking, PageRoute, Visit, by_cookie
from app.api.console.glance import Plain, fleet_of, glances_of, homes_of, paints_of, segments
from app.api.console.overview import recent_cycles
from app.api.deps import context_of, deed_of
from app.api.forms import Comment
from app.api.problems import request_id_of
from app.api.routers.plans import COOLDOWN_S, COOLDOWN_S_MAX, PlanKey
from app.records import plain
from app.services.planning.deciding import Remark
from app.store.pages import PageOrder
from app.store.plans import PlanState
from solvers.cycle.record import Lane

router = APIRouter(include_in_schema=False, route_class=PageRoute)
Deciding = Annotated[Visit, Depends(by_cookie(CLUSTER_WRITE))]
Said = Annotated[Comment, Form()]
SHOWN = 50


@router.get("/plans", response_class=HTMLResponse)
def plans(
    visit: Looking, lane: str = "", state: str = "", cursor: Annotated[str, Query(max_length=2000)] = ""
) -> Response:
    """The newest first, by lane and state."""
    wanted = Lane(lane) if lane in set(Lane) else None, PlanState(state) if state in set(PlanState) else None
    order = PageOrder(limit=SHOWN, cursor=cursor or None)
    page = visit.services.plans.page(order, *wanted, visit.actor.project)
    oversees = visit.may(CLUSTER_READ)
    return visit.page(
        "plans.html",
        topics="cycles,fleet" if oversees else "",
        plans=page.items,
        next_cursor=page.next_cursor,
        waiting=() if cursor else visit.services.plans.waiting(visit.actor.project),
        lane=lane,
        state=state,
        lanes=list(Lane),
        states=list(PlanState),
        cycles=recent_cycles(visit, wanted[0]) if oversees else [],
        generation=fleet_of(visit)["generation"],
        held=visit.services.plans.hold() if oversees else None,
    )


@router.get("/plans/{plan_id}", response_class=HTMLResponse)
def one_plan(visit: Looking, plan_id: PlanKey) -> Response:
    """One plan as it differs from what stands; for a project's token, its own part of it."""
    fleet = fleet_of(visit)
    compared = visit.services.plans.diff(plan_id) if visit.may(CLUSTER_READ) else None
    diff = None if compared is None else plain(compared.diff)
    explained = plain(visit.services.plans.explain(plan_id, visit.actor.project, None))
    stored = visit.services.plans.get(plan_id, visit.actor.project)
    return visit.page(
        "plan.html",
        topics="",
        plan=plain(stored),
        stood_in=stored.answered is not None and stored.answered.stood_in,
        is_standing=fleet["plan"] is not None and fleet["plan"]["id"] == plan_id,
        generation=fleet["generation"],
        diff=diff,
        tag="" if compared is None else compared.tag,
        bars=_bars(diff, paints_of(fleet)) if diff else [],
        gaps=explained["unplaced"],
        homes=homes_of(fleet),
        prices=explained["insight"]["prices"],
        devices={device["id"]: device for device in fleet["devices"]},
    )


def _bars(diff: Plain, paints: dict[str, str]) -> list[Plain]:
    return [
        {**device, "bars": [segments(device[side], paints) for side in ("before", "after")]}
        for device in diff["devices"]
    ]


# --- What people decide


@router.post("/plans/{plan_id}/apply")
def approve(visit: Deciding, plan_id: PlanKey, comment: Said = "", tag: Annotated[str, Form()] = "") -> Response:
    """Exactly this plan, if what it was compared with still stands."""
    terms = _terms(visit, comment, tag)
    context_of(visit.request).planning.apply(plan_id, visit.actor.name, terms)
    return _decided(visit, f"/plans/{plan_id}")


@router.post("/plans/{plan_id}/reject")
def reject(visit: Deciding, plan_id: PlanKey, comment: Said = "") -> Response:
    """It is not proposed again unchanged."""
    visit.services.plans.reject(plan_id, comment, deed_of(visit.request, visit.actor))
    return _decided(visit, f"/plans/{plan_id}")


@router.post("/plans/back")
def roll_back(
    visit: Deciding,
    generation: Annotated[int | None, Form(ge=1, le=2**53)] = None,
    comment: Said = "",
    cooldown_s: Annotated[float, Form(ge=0, le=COOLDOWN_S_MAX, allow_inf_nan=False)] = COOLDOWN_S,
) -> Response:
    """To what stood at an earlier generation; planning by itself is held then for a while."""
    terms = _terms(visit, comment, "")
    done = context_of(visit.request).planning.rollback(generation, cooldown_s, visit.actor.name, terms)
    return _decided(visit, f"/plans/{done.plan_id}")


@router.post("/plans/resume")
def resume(visit: Deciding) -> Response:
    """End a hold."""
    visit.services.plans.resume(deed_of(visit.request, visit.actor))
    return _decided(visit, "/plans")


def _terms(visit: Visit, comment: str, tag: str) -> Remark:
    return Remark(request_id=request_id_of(visit.request.scope), comment=comment or None, standing=tag or None)


def _decided(visit: Visit, address: str) -> Response:
    # The next page shows what stands now.
    glances_of(visit).forget()
    return RedirectResponse(address, status_code=303)
