"""Remembers cycles: the Journal of production, one for the leader's cycles and one for those that somebody asked for.

Owns when a cycle and its plan are written and which state the plan ends in. It refuses to promote: that is the
Actuator's.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.store import cycles, plans
from app.store.cycles import NewCycle
from app.store.engine import Database
from app.store.plans import NewPlan, PlanState
from solvers.cycle.record import CycleRecord, CycleStep, HoldReason, Lane
from solvers.domain.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The process that plans by itself, and its fencing token."""

    holder: str
    fencing: int


class LeaderJournal:
    """Writes a cycle as it goes, so that a dead leader's successor sees how far it came."""

    def __init__(self, database: Database, cycle: NewCycle) -> None:
        self._database = database
        self._cycle = cycle
        self._begun = False

    def step(self, step: CycleStep) -> None:
        """Open the cycle at its first step, note every step. Raises LeaseLostError once a newer leader aborted it."""
        with self._database.transaction() as session:
            if not self._begun:
                cycles.begin(session, self._cycle)
            cycles.note_step(session, self._cycle.id, step)
        self._begun = True

    def draft(self, record: CycleRecord) -> None:
        """Keep record and plan, before the plan may become the target."""
        with self._database.transaction() as session:
            cycles.draft(session, record)
            if record.plan is not None:
                plans.put(session, _new_plan(record, record.plan, PlanState.PROPOSED, self._cycle.holder))

    def close(self, record: CycleRecord) -> None:
        """Keep the finished record and settle the plan's state."""
        with self._database.transaction() as session:
            cycles.close(session, record)
            if record.plan is not None and record.generation is None and _is_news(record):
                self._settle(session, record, record.plan)

    def _settle(self, session: Session, record: CycleRecord, plan: Plan) -> None:
        holder, end = self._cycle.holder, _end_state(record)
        if end in (PlanState.SHADOW, PlanState.AWAITING_APPROVAL) and _stands_already(session, record, plan, end):
            return
        stored = plans.put(session, _new_plan(record, plan, PlanState.PROPOSED, holder))
        if stored.state is not PlanState.PROPOSED:
            return  # a newer generation has set it aside already
        plans.decide(session, stored.id, end, holder, among=(PlanState.PROPOSED,))
        if end is PlanState.AWAITING_APPROVAL:
            plans.supersede_awaiting(session, stored.id, holder)


class RequestJournal:
    """Writes a cycle that was asked for once it is over: nothing of it can be left half-way."""

    def __init__(self, database: Database, cycle: NewCycle, actor: str) -> None:
        self._database = database
        self._cycle = cycle
        self._actor = actor

    def step(self, step: CycleStep) -> None:
        """Nothing to note: whoever asked waits for the end."""

    def draft(self, record: CycleRecord) -> None:
        """Nothing to keep yet: such a cycle never acts."""

    def close(self, record: CycleRecord) -> None:
        """Keep record and plan at once."""
        state = PlanState.SHADOW if record.lane is Lane.SHADOW else PlanState.PROPOSED
        with self._database.transaction() as session:
            cycles.begin(session, self._cycle)
            cycles.close(session, record)
            if record.plan is not None:
                plans.put(session, _new_plan(record, record.plan, state, self._actor))


def _new_plan(record: CycleRecord, plan: Plan, state: PlanState, created_by: str) -> NewPlan:
    return NewPlan(
        plan=plan,
        lane=record.lane,
        state=state,
        created_by=created_by,
        cycle_id=record.id,
        policy=record.snapshot.policy.name,
        insight=record.proposal.insight if record.proposal is not None else None,
    )


def _is_news(record: CycleRecord) -> bool:
    """Whether the plan differs from what stands; others live on in the record alone, or they would bury those."""
    return record.decision is None or HoldReason.NOTHING_TO_CHANGE not in record.decision.reasons


def _end_state(record: CycleRecord) -> PlanState:
    """Where a plan ends that its own cycle did not promote."""
    reasons = record.decision.reasons if record.decision is not None else ()
    if record.lane is Lane.SHADOW:
        return PlanState.SHADOW
    if HoldReason.SUPERSEDED in reasons:
        return PlanState.SUPERSEDED
    return PlanState.AWAITING_APPROVAL if reasons == (HoldReason.AWAITING_APPROVAL,) else PlanState.REJECTED


def _stands_already(session: Session, record: CycleRecord, plan: Plan, state: PlanState) -> bool:
    """Whether the lane's newest plan wishes the very same: it stays, so that people can approve what they read."""
    newest = next(iter(plans.page(session, limit=1, lane=record.lane).items), None)
    if newest is None or newest.state is not state or newest.parent_generation != plan.parent:
        return False
    standing = plans.load(session, newest.id)
    return _wish(standing) == _wish(plan)


def _wish(plan: Plan) -> object:
    """What a plan asks for, without why and at what moment."""
    assignments = tuple(
        (each.replica, each.device, each.model, each.share_pct_sm, each.memory_mib_limit, each.batch, each.envelope)
        for each in plan.assignments
    )
    return assignments, plan.settings
