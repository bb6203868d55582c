"""Stored plans and why they are as they are.

A project sees its own assignments of a plan and nothing else. The wording of an explanation is `sentences`'; making and
applying plans is `planning`'s.
"""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy.orm import Session

from app import kinds
from app.records import record, record_of
from app.services.declared.ownership import read_owners
from app.services.declared.tokens import Deed
from app.services.explaining.explaining import (
    ExplainedAssignment,
    ExplainedGap,
    ToldInsight,
    Types,
    WhyNot,
    choices,
    gaps,
    told,
    why_not,
)
from app.services.explaining.sentences import mode_sentence, owner_sentences, places_of
from app.services.explaining.solves import Forced, SloPoint
from app.store import documents, plans
from app.store.engine import Database
from app.store.pages import PageOrder, StoredPage
from app.store.plans import PlanState, PlanSummary, StoredPlan
from solvers.cycle.owners import StandingOwners
from solvers.cycle.record import Lane
from solvers.domain.device import Device
from solvers.domain.plan import Plan
from solvers.domain.workload import ServiceMode
from solvers.errors import FieldError, NotFoundError


@record
class Waiting:
    """Why a workload does not move by itself: its mode, and the plan that would move it."""

    mode: ServiceMode
    plan_id: str | None
    sentence: str


@record
class Explanation:
    """Why a plan is as it is. `waiting` is only told where one workload is asked about and its mode holds it back,
    `why_not` where a GPU type is asked about; `forced` and `slo_curve` only where plans were to be made for them.
    """

    summary: PlanSummary
    assignments: tuple[ExplainedAssignment, ...]
    unplaced: tuple[ExplainedGap, ...]
    waiting: Waiting | None
    insight: ToldInsight
    owners: tuple[str, ...]
    """Who owns which knob on the devices of the one workload asked about."""
    why_not: WhyNot | None
    forced: Forced | None
    slo_curve: tuple[SloPoint, ...] | None


class Plans:
    """Reads stored plans."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(self, order: PageOrder, lane: Lane | None, state: PlanState | None) -> StoredPage[PlanSummary]:
        """Plans, newest first."""
        with self._database.reading() as session:
            return plans.page(session, order, lane=lane, state=state)

    def get(self, plan_id: str, project: str | None) -> StoredPlan:
        """A plan, of one project's point of view where named. Raises NotFoundError."""
        with self._database.reading() as session:
            plan = seen_by(plans.load(session, plan_id), project)
            return record_of(StoredPlan, plans.get(session, plan_id), plan=plan)

    def note_proposal(self, plan_id: str, lane: Lane, deed: Deed) -> None:
        """Write into the audit trail that somebody asked for a plan and got this one."""
        with self._database.transaction() as session:
            deed.note(session, "plan.proposed", f"plans/{plan_id}", {"lane": lane.value})

    def explain(
        self, plan_id: str, project: str | None, workload: str | None, gpu_type: str | None = None
    ) -> Explanation:
        """Why a plan is as it is, of one workload where named, and why that is not on a GPU type where named.

        Raises NotFoundError, also for a GPU type that does not exist and a workload that neither exists nor has a part
        in the plan; FieldError for a GPU type without a workload.
        """
        if gpu_type is not None and workload is None:
            raise FieldError("query:workload", "say for which workload")
        with self._database.reading() as session:
            summary = plans.get(session, plan_id)
            whole = plans.load(session, plan_id)
            plan = seen_by(whole, project)
            insight = plans.load_insight(session, plan_id, workload)
            gpu_types = documents.by_name(session, kinds.DEVICE, "gpu_type")
            known = documents.by_name(session, kinds.GPU_TYPE, "name") if gpu_type else {}
            types = Types(known=frozenset(known), there=frozenset(gpu_types.values()))
            mode = _mode(session, workload) if workload is not None else None
            owners = _owners(session, whole, workload) if workload is not None else ()
            waiting = _waiting(session, workload, mode) if workload is not None and mode is not None else None
        wanted, missing = choices(plan, gpu_types, workload), gaps(plan, workload)
        if workload is not None and mode is None and not wanted and not missing:
            raise NotFoundError(f"there is no workload {workload}", workload=workload)
        return Explanation(
            summary=summary,
            assignments=wanted,
            unplaced=missing,
            waiting=waiting,
            insight=told(insight, project, workload),
            owners=owners,
            why_not=why_not(plan, insight, (workload, gpu_type), types) if workload and gpu_type else None,
            forced=None,
            slo_curve=None,
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
        parts=(),
    )


def _mode(session: Session, workload: str) -> ServiceMode | None:
    """The mode of a workload; None when there is no such document."""
    key = tuple(workload.split("/"))
    found = (documents.find(session, kind, key) for kind in kinds.workloads())
    return next((ServiceMode(str(stored.spec["mode"])) for stored in found if stored is not None), None)


_WAITS_AS = {ServiceMode.APPROVE: PlanState.AWAITING_APPROVAL, ServiceMode.SHADOW: PlanState.SHADOW}
"""In which state the plans wait that a mode holds back."""


def _waiting(session: Session, workload: str, mode: ServiceMode) -> Waiting | None:
    plan_id = None
    if mode in _WAITS_AS:
        newest = plans.page(session, PageOrder(limit=1), state=_WAITS_AS[mode]).items
        plan_id = next((plan.id for plan in newest if _has_part(plans.load(session, plan.id), workload)), None)
    sentence = mode_sentence(workload, mode, plan_id)
    return Waiting(mode=mode, plan_id=plan_id, sentence=sentence) if sentence is not None else None


def _has_part(plan: Plan, workload: str) -> bool:
    return workload in {item.workload for item in plan.assignments} | {item.workload for item in plan.unplaced}


def _owners(session: Session, plan: Plan, workload: str) -> tuple[str, ...]:
    """Told by the policies of now; a plan says which of their planners made it."""
    devices = documents.values(session, kinds.DEVICE, Device)
    names = places_of(devices)
    standing = StandingOwners.of(plan.assignments, plan.planner, plan.parts)
    return tuple(owner_sentences(read_owners(session), standing, workload, names))
