"""The end of every chain of planners: what stands, restated, which is always possible, so that there is always an
answer.
"""

from __future__ import annotations

from collections.abc import Collection

from solvers.domain.codec import picture_digest
from solvers.domain.evidence import Fact, Reason, ReasonCode, Reporter
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Plan, Proposal, ProposalStatus, Unplaced
from solvers.models.worth import Shortage, worth_of
from solvers.planners.base import PlannerSpec, PlanRequest, Stateless

SPEC = PlannerSpec(name="keep-target", about="what stands, unchanged", version="1", knobs=(), needs_profiles=False)


class KeepTarget(Stateless):
    """Restates the standing target, judged by the present snapshot."""

    @property
    def spec(self) -> PlannerSpec:
        return SPEC

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:  # noqa: ARG002 - no state, no story
        snapshot = request.snapshot
        worth = worth_of(snapshot, request.movable, snapshot.target.assignments, snapshot.target.settings)
        there = {item.workload for item in snapshot.target.assignments}
        plan = Plan(
            snapshot=picture_digest(snapshot),
            parent=snapshot.target.generation,
            planner=SPEC.name,
            planner_version=SPEC.version,
            seed=request.seed,
            assignments=tuple(sorted(snapshot.target.assignments, key=lambda item: item.replica)),
            settings=tuple(sorted(snapshot.target.settings, key=lambda item: item.device)),
            unplaced=tuple(
                sorted(
                    (_unplaced(item, there) for item in worth.shortages), key=lambda item: (item.kind, item.workload)
                )
            ),
            objective=worth.objective,
        )
        return Proposal(status=ProposalStatus.FEASIBLE, planner=SPEC.name, plan=plan)


def _unplaced(shortage: Shortage, there: Collection[WorkloadId]) -> Unplaced:
    facts: tuple[Fact, ...] = (Fact(name="replicas_missing", value=float(shortage.replicas_missing)),)
    for name, number in (
        ("failure_domains_missing", shortage.failure_domains_missing),
        ("replicas_at_risk", shortage.replicas_at_risk),
    ):
        if number:
            facts = (*facts, Fact(name=name, value=float(number)))
    code = ReasonCode.KEPT_AT_RISK if shortage.need.workload in there else ReasonCode.WAITS_IN_LINE
    return Unplaced(
        kind=shortage.need.kind,
        workload=shortage.need.workload,
        rate_rps_short=shortage.rate_rps_short,
        reasons=(Reason(code=code, subject=shortage.need.workload, facts=facts),),
    )
