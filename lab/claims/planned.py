"""Pictures that a planner plans cycle after cycle, for claims about plans: what the farms of several systems share.

Owns the way from one cycle to the next (the plan becomes the standing target, the planner's state is kept) and the
plainest devices and networks.
"""

from __future__ import annotations

from dataclasses import replace

from solvers.cycle.target import next_target
from solvers.domain.device import Device, GpuType
from solvers.domain.evidence import Finding, SilentReporter
from solvers.domain.ids import DeviceId, ModelName, NodeId, WorkloadId
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import ModelVariant
from solvers.planners.base import Budget, Planner, PlanRequest
from solvers.planners.registry import think
from solvers.verify.checks import verify

CYCLE_S = 15.0


class Planned:
    """A picture under a planner."""

    def __init__(self, planner: Planner, snapshot: Snapshot, seed: int = 1) -> None:
        self.planner, self.snapshot, self.seed = planner, snapshot, seed
        self._state = planner.first_state()

    def plan(self, picture: Snapshot) -> tuple[Plan, list[Finding]]:
        """Plan this picture, and let a cycle pass; the plan with what the verifier finds in it."""
        ids = [*(item.id for item in picture.services), *(item.id for item in picture.jobs)]
        movable = tuple(sorted(WorkloadId(item) for item in ids))
        budget = Budget(deadline_s=60.0, work_units=2000)
        request = PlanRequest(snapshot=picture, movable=movable, budget=budget, seed=self.seed)
        thought = think(self.planner, request, self._state, SilentReporter())
        plan = thought.proposal.plan
        assert plan is not None, thought.proposal
        self._state = thought.state or self._state
        target = next_target(picture.target, plan, picture.taken_at_s)
        self.snapshot = replace(picture, target=target, taken_at_s=picture.taken_at_s + CYCLE_S)
        return plan, list(verify(picture, plan, movable))


def devices_of(node: NodeId, kind: GpuType, count: int) -> list[Device]:
    """Whole GPUs of a node."""
    return [
        Device(
            id=DeviceId(f"GPU-{node}-{index}"),
            node=node,
            gpu_type=kind.name,
            index=index,
            memory_mib=kind.memory_mib,
            sm_count=kind.sm_count,
        )
        for index in range(count)
    ]


def model_of(name: str) -> ModelVariant:
    """A network of middling size."""
    return ModelVariant(name=ModelName(name), family=name, parameters_million=25.0, memory_mib_weights=100.0)
