"""Plans and cycle records for the store's tests."""

from __future__ import annotations

from sqlalchemy.orm import Session

from app.store import plans, targets
from app.store.plans import NewPlan, PlanState
from app.store.targets import Promotion
from solvers.cycle.record import Attempt, CycleRecord, CycleStep, Decision, HoldReason, Lane, Timing
from solvers.domain.codec import Plain, digest
from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import CycleId, Digest, Generation, WorkloadId
from solvers.domain.plan import Assignment, DeviceSetting, Plan, Proposal, ProposalStatus, Unplaced
from solvers.domain.policy import Objective
from solvers.domain.workload import WorkloadKind
from solvers.planners.base import Budget
from tests.builders import assignment, device, lab, service

CLUSTER = "lab"


def plan(parent: int = 0, seed: int = 1, share_pct_sm: int = 30) -> Plan:
    """A plan with one assignment, one setting and one thing unplaced; parent and seed make it another one."""
    on = device("a", 0, "t4")
    return Plan(
        snapshot=Digest("sha256:" + "0" * 64),
        parent=Generation(parent),
        planner="greedy",
        planner_version="1",
        seed=seed,
        assignments=(assignment("demo/vision#0", on, share_pct_sm=share_pct_sm, latency_ms_planned=12.345678901),),
        settings=(DeviceSetting(device=on.id, clock_mhz_sm=1290, power_limit_w=65.5),),
        unplaced=(
            Unplaced(
                kind=WorkloadKind.SERVICE,
                workload=WorkloadId("demo/speech"),
                rate_rps_short=1e-7,
                reasons=(
                    Reason(code=ReasonCode.NO_PROFILE, subject="demo/speech", facts=(Fact(name="x", value=0.1),)),
                ),
            ),
        ),
        objective=Objective(cost_usd_per_h=0.35),
        bound_usd_per_h=None,
    )


def record(cycle_id: str = "cycle-1", lane: Lane = Lane.ACT) -> CycleRecord:
    """A finished cycle that held its plan back."""
    picture = lab([service()])
    chosen = plan()
    return CycleRecord(
        id=CycleId(cycle_id),
        lane=lane,
        started_at_s=1_000_000.25,
        seed=7,
        budget=Budget(deadline_s=2.5),
        movable=(WorkloadId("demo/vision"),),
        software_version="0.1.0",
        snapshot=picture,
        snapshot_digest=digest(picture),
        attempts=(Attempt(planner="greedy", status="feasible"),),
        proposal=Proposal(status=ProposalStatus.FEASIBLE, planner="greedy", plan=chosen),
        plan_digest=digest(chosen),
        decision=Decision(promote=False, reasons=(HoldReason.COOLDOWN,), facts=(Fact(name="age_s", value=3.0),)),
        timings=(Timing(step=CycleStep.OBSERVE, elapsed_ms=1.5), Timing(step=CycleStep.PROPOSE, elapsed_ms=20.25)),
    )


def keep(session: Session, chosen: Plan, *, lane: Lane = Lane.ACT, state: PlanState = PlanState.PROPOSED) -> Digest:
    """Store a plan and return its id."""
    return plans.put(session, NewPlan(plan=chosen, lane=lane, state=state, created_by="planner", cycle_id="cycle-1")).id


def promote(session: Session, chosen: Plan, *, token: int | None = None, nodes: tuple[str, ...] = ("a",)) -> Generation:
    """Store a plan and make it the target."""
    generation = chosen.parent + 1
    told = [{"uuid": item.device, "replicas": [_told(item)]} for item in chosen.assignments]
    wish = Promotion(
        cluster=CLUSTER,
        plan_id=keep(session, chosen),
        parent_generation=chosen.parent,
        promoted_by="somebody",
        fencing_token=token,
        node_documents={
            name: {
                "node": name,
                "generation": generation,
                "plan": digest(chosen),
                "devices": told if name == "a" else [],
            }
            for name in nodes
        },
    )
    return targets.promote(session, wish)


def _told(item: Assignment) -> dict[str, Plain]:
    """What targets say of a replica, as far as the store reads it."""
    said = {name: str(getattr(item, name)) for name in ("replica", "kind", "workload", "model")}
    return {**said, "share_pct_sm": item.share_pct_sm, "memory_mib_limit": item.memory_mib_limit}
