"""Stored plans and why they are as they are.

Owns what a project may see of a plan (its own assignments and nothing else) and the shape of an explanation; the
wording is `sentences`. Making and applying plans is `planning`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from app.services.actors import Deed
from app.services.sentences import sentence
from app.store import documents, events, plans
from app.store.documents import Kind
from app.store.engine import Database
from app.store.pages import Page
from app.store.plans import PlanState, PlanSummary
from solvers.cycle.record import Lane
from solvers.domain.evidence import Reason, ReasonCode
from solvers.domain.plan import Assignment, Plan

_FOR = frozenset(
    {
        ReasonCode.CHEAPEST_FEASIBLE,
        ReasonCode.KEPT_STANDING,
        ReasonCode.PINNED_BY_MODE,
        ReasonCode.FILLS_SPARE_SHARE,
        ReasonCode.REPLICAS_MIN,
    }
)
"""Reasons that speak for a choice; the others say why something else was not chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A reason with its sentence."""

    reason: Reason
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One assignment: where it went, why, and why not elsewhere."""

    assignment: Assignment
    gpu_type: str | None
    why: tuple[Told, ...]
    alternatives: tuple[Told, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedGap:
    """A workload that found no place, or not enough of it."""

    workload: str
    kind: str
    rate_rps_short: float
    why: tuple[Told, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a plan is as it is."""

    summary: PlanSummary
    assignments: tuple[Explained, ...]
    unplaced: tuple[ExplainedGap, ...]


class Plans:
    """Reads stored plans."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(self, limit: int, cursor: str | None, lane: Lane | None, state: PlanState | None) -> Page[PlanSummary]:
        """Plans, newest first."""
        with self._database.reading() as session:
            return plans.page(session, limit=limit, cursor=cursor, lane=lane, state=state)

    def get(self, plan_id: str, project: str | None) -> tuple[PlanSummary, Plan]:
        """A plan, of one project's point of view where named. Raises NotFoundError."""
        with self._database.reading() as session:
            return plans.get(session, plan_id), seen_by(plans.load(session, plan_id), project)

    def note_proposal(self, plan_id: str, lane: Lane, deed: Deed) -> None:
        """Write into the audit trail that somebody asked for a plan and got this one."""
        event = events.Event(
            name="plan.proposed",
            actor=deed.actor,
            subject=f"plans/{plan_id}",
            request_id=deed.request_id,
            facts={"lane": lane.value},
        )
        with self._database.transaction() as session:
            events.append(session, event)

    def explain(self, plan_id: str, project: str | None, workload: str | None) -> Explanation:
        """Why a plan is as it is, of one workload where named. Raises NotFoundError."""
        with self._database.reading() as session:
            summary = plans.get(session, plan_id)
            plan = seen_by(plans.load(session, plan_id), project)
            gpu_types = _gpu_types(session)
        wanted = [item for item in plan.assignments if workload in (None, item.workload)]
        gaps = [item for item in plan.unplaced if workload in (None, item.workload)]
        return Explanation(
            summary=summary,
            assignments=tuple(_explained(item, gpu_types.get(item.device)) for item in wanted),
            unplaced=tuple(
                ExplainedGap(
                    workload=item.workload,
                    kind=item.kind.value,
                    rate_rps_short=item.rate_rps_short,
                    why=_told(item.reasons),
                )
                for item in gaps
            ),
        )


def seen_by(plan: Plan, project: str | None) -> Plan:
    """The plan as a project may see it: its own workloads; device settings and the whole's objective stay out."""
    if project is None:
        return plan
    prefix = f"{project}/"
    return replace(
        plan,
        assignments=tuple(item for item in plan.assignments if item.workload.startswith(prefix)),
        unplaced=tuple(item for item in plan.unplaced if item.workload.startswith(prefix)),
        settings=(),
    )


def _gpu_types(session: Session) -> dict[str, str]:
    return {stored.key[0]: str(stored.spec["gpu_type"]) for stored in documents.all_specs(session, Kind.DEVICE)}


def _explained(item: Assignment, gpu_type: str | None) -> Explained:
    told = _told(item.reasons)
    return Explained(
        assignment=item,
        gpu_type=gpu_type,
        why=tuple(each for each in told if each.reason.code in _FOR),
        alternatives=tuple(each for each in told if each.reason.code not in _FOR),
    )


def _told(reasons: Iterable[Reason]) -> tuple[Told, ...]:
    return tuple(Told(reason=reason, sentence=sentence(reason)) for reason in reasons)
