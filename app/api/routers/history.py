"""Targets, receipts, cycles, audit events: what happened, newest first."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from app.api.answers import answer
from app.api.conditional import HeldTag, etag, tagged
from app.api.deps import services_of
from app.api.keys import Opaque
from app.api.paging import Page, Paging
from app.api.rules import ClusterReader
from app.store.cycles import CycleState, CycleSummary, StoredCycle
from app.store.events import EventLine
from app.store.nodes import ReceiptLine
from app.store.targets import TargetLine
from solvers.cycle.record import Lane
from solvers.domain.change import Target
from solvers.domain.value import NAME_PATTERN

router = APIRouter(tags=["history"])
INT8_MAX = 2**63 - 1
NodeFilter = Annotated[str | None, Query(pattern=NAME_PATTERN, max_length=63, description="Only of this node.")]
ProjectFilter = Annotated[str | None, Query(pattern=NAME_PATTERN, max_length=63, description="Only of this project.")]
SubjectFilter = Annotated[
    str | None, Query(pattern=r"^[\x21-\x7e]+$", max_length=256, description="Only of this, such as `nodes/node-1`.")
]
GenerationFilter = Annotated[int | None, Query(ge=0, le=INT8_MAX, description="Only of this generation.")]


@router.get("/v1/targets", operation_id="list_targets", summary="List targets", response_model=Page[TargetLine])
def list_targets(request: Request, actor: ClusterReader, order: Paging) -> Any:  # noqa: ARG001 - the actor is the guard
    """Every generation there was."""
    page = services_of(request).history.targets(order)
    return answer(page)


@router.get(
    "/v1/targets/current",
    operation_id="get_current_target",
    summary="What the fleet must hold now",
    response_model=Target,
    responses={304: {"description": "You hold this generation."}},
)
def current_target(
    request: Request,
    actor: ClusterReader,  # noqa: ARG001 - the actor is the guard
    if_none_match: HeldTag = None,  # noqa: ARG001 - read by `tagged`, declared for the description
) -> Any:
    """Generation 0 is the empty target before the first plan."""
    target = services_of(request).history.target()
    return tagged(request, target, etag(target.generation))


@router.get("/v1/receipts", operation_id="list_receipts", summary="List receipts", response_model=Page[ReceiptLine])
def list_receipts(
    request: Request,
    actor: ClusterReader,  # noqa: ARG001 - the actor is the guard
    order: Paging,
    node: NodeFilter = None,
    generation: GenerationFilter = None,
) -> Any:
    """What nodes read back after applying a target."""
    page = services_of(request).history.receipts(order, node, generation)
    return answer(page)


@router.get("/v1/cycles", operation_id="list_cycles", summary="List cycles", response_model=Page[CycleSummary])
def list_cycles(
    request: Request,
    actor: ClusterReader,  # noqa: ARG001 - the actor is the guard
    order: Paging,
    lane: Lane | None = None,
    state: CycleState | None = None,
) -> Any:
    """Planning cycles with their decisions."""
    page = services_of(request).history.cycles(order, lane, state)
    return answer(page)


@router.get("/v1/cycles/{cycle_id}", operation_id="get_cycle", summary="Get a cycle", response_model=StoredCycle)
def get_cycle(request: Request, actor: ClusterReader, cycle_id: Opaque) -> Any:  # noqa: ARG001 - the actor is the guard
    """Snapshot, attempts, findings, transition, decision: all that is needed to replay it."""
    return answer(services_of(request).history.cycle(cycle_id))


@router.get("/v1/events", operation_id="list_events", summary="List audit events", response_model=Page[EventLine])
def list_events(
    request: Request,
    actor: ClusterReader,  # noqa: ARG001 - the actor is the guard
    order: Paging,
    subject: SubjectFilter = None,
    project: ProjectFilter = None,
) -> Any:
    """Who did what to what."""
    page = services_of(request).history.events(order, subject, project)
    return answer(page)
