"""Plan a recorded cycle again: the same planner on the same snapshot with the same seed, budget and state must give the
same plan. A planner whose budget is time may stop elsewhere on another day; one whose work is counted may not.

Owns the reconstruction of the request from the record; where several policies planned, each part is planned again by
the planner that made it, and what a gate held stays as it stood. It refuses to judge: comparing the digests is the
caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from solvers.cycle.attempts import Asking
from solvers.cycle.dividing import Division
from solvers.cycle.merging import SettledPart
from solvers.cycle.parts import standing, whole_plan
from solvers.cycle.record import CycleRecord
from solvers.domain.codec import digest
from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import Digest, PolicyName
from solvers.domain.plan import Plan, Proposal
from solvers.errors import EngineError, InputError
from solvers.planners import registry
from solvers.planners.base import PlanRequest
from solvers.planners.chain import SPEC as KEEP
from solvers.verify.checks import verify

Propose = Callable[[str, PlanRequest, bytes | None], Proposal]


def replay(
    record: CycleRecord,
    propose: Propose = registry.propose,
    state: bytes | None = None,
    states: Mapping[PolicyName, bytes] | None = None,
) -> Digest:
    """Digest of the plan that the recorded planner makes now, handed `state` (that of the record's `state_digest`), or
    each policy's planner its part of `states`.

    Raises InputError when the cycle had no plan.
    """
    if record.proposal is None or record.plan is None:
        raise InputError(f"cycle {record.id} has no plan to repeat", cycle=record.id)
    request = PlanRequest(snapshot=record.snapshot, movable=record.movable, budget=record.budget, seed=record.seed)
    if record.plan.parts:
        plan: Plan | None = _in_parts(record.plan, request, propose, states or {})
    else:
        plan = propose(record.proposal.planner, request, state).plan
    if plan is None:
        raise EngineError(f"planner {record.proposal.planner} has no plan this time", cycle=record.id)
    return digest(plan)


def _in_parts(plan: Plan, request: PlanRequest, propose: Propose, states: Mapping[PolicyName, bytes]) -> Plan | None:
    lines = {line.policy: line for line in plan.parts}
    division = Division.of(request.snapshot, request.movable)
    asking = Asking(
        propose=lambda planner, asked: propose(planner, asked, None), verify=verify, reporter=SilentReporter()
    )
    settled: list[SettledPart] = []
    for policy in division.policies:
        part, line = division.part(policy), lines[policy.name]
        if line.planner == KEEP.name:
            item = SettledPart(part=part, plan=standing(part, request.seed, asking), held=line.held)
        else:
            proposal = propose(line.planner, part.request(request.seed), states.get(policy.name))
            if proposal.plan is None:
                return None
            item = SettledPart(part=part, plan=proposal.plan, proposal=proposal)
        division.settle(part, item.plan)
        settled.append(item)
    return whole_plan(asking, request, tuple(settled)).plan
