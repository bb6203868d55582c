"""Plan a recorded cycle again: the same planner on the same snapshot with the same seed, budget and state must give the
same plan. A planner whose budget is time may stop elsewhere on another day; one whose work is counted may not.

Owns the reconstruction of the request from the record. It refuses to judge: comparing the digests is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable

from solvers.cycle.record import CycleRecord
from solvers.domain.codec import digest
from solvers.domain.ids import Digest
from solvers.domain.plan import Proposal
from solvers.errors import EngineError, InputError
from solvers.planners import registry
from solvers.planners.base import PlanRequest

Propose = Callable[[str, PlanRequest, bytes | None], Proposal]


def replay(record: CycleRecord, propose: Propose = registry.propose, state: bytes | None = None) -> Digest:
    """Digest of the plan that the recorded planner makes now, handed `state` (that of the record's `state_digest`).

    Raises InputError when the cycle had no plan.
    """
    if record.proposal is None or record.plan is None:
        raise InputError(f"cycle {record.id} has no plan to repeat", cycle=record.id)
    request = PlanRequest(snapshot=record.snapshot, movable=record.movable, budget=record.budget, seed=record.seed)
    plan = propose(record.proposal.planner, request, state).plan
    if plan is None:
        raise EngineError(f"planner {record.proposal.planner} has no plan this time", cycle=record.id)
    return digest(plan)
