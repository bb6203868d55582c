"""Fleets that a planner plans cycle after cycle, for claims about plans.

A plan becomes the standing target of the next cycle, and the planner's state is kept. What is claimed of plans holds
for any law of latency, so an invented one is profiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from app.library import load_gpu_types
from lab.world.targets import next_target
from solvers.domain.device import Device, GpuType, Node
from solvers.domain.evidence import Finding, SilentReporter
from solvers.domain.ids import ClusterName, DeviceId, ModelName, NodeId, ProjectName, WorkloadId
from solvers.domain.plan import Plan
from solvers.domain.policy import Policy
from solvers.domain.profile import Profile, ProfilePoint
from solvers.domain.snapshot import NodeStatus, Snapshot
from solvers.domain.workload import ModelVariant, Project
from solvers.planners.base import Budget, Planner, PlanRequest
from solvers.planners.registry import think
from solvers.verify.checks import verify

CYCLE_S = 15.0
PROJECT = ProjectName("claims")
WORK_MS = {
    "resnet50": 1.0, "inception-v3": 1.4, "ssd-resnet50": 4.0, "bert": 4.0, "transformer": 6.0,
}  # fmt: skip
"""How heavy an input of each network is."""


class Planned:
    def __init__(self, planner: Planner, snapshot: Snapshot, seed: int = 1) -> None:
        self.planner, self.snapshot, self.seed = planner, snapshot, seed
        self._state = planner.first_state()

    def plan(self, picture: Snapshot) -> tuple[Plan, list[Finding]]:
        """Plan this picture, and let a cycle pass; the plan with what the verifier finds in it."""
        request = request_of(picture, self.seed)
        thought = think(self.planner, request, self._state, SilentReporter())
        plan = thought.proposal.plan
        assert plan is not None, thought.proposal
        self._state = thought.state or self._state
        target = next_target(picture.target, plan, picture.taken_at_s)
        self.snapshot = replace(picture, target=target, taken_at_s=picture.taken_at_s + CYCLE_S)
        return plan, list(verify(picture, plan, request.movable))


def request_of(picture: Snapshot, seed: int) -> PlanRequest:
    """What a planner is asked that may move everything; counted work ends its search, not time."""
    ids = [*(item.id for item in picture.services), *(item.id for item in picture.jobs)]
    budget = Budget(deadline_s=600.0, work_units=2000)
    return PlanRequest(snapshot=picture, movable=tuple(sorted(map(WorkloadId, ids))), budget=budget, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class InventedLaw:
    """An invented law of latency, that of a batch of a network on a share of a GPU, and where it is profiled."""

    latency_ms: Callable[[str, str, int, int], float]
    """By network, GPU type, batch and share in percent."""
    shares_pct: Sequence[int]
    batches: Sequence[int]

    def profile(self, model: str, kind: GpuType) -> Profile:
        points = tuple(
            ProfilePoint(
                model=ModelName(model),
                gpu_type=kind.name,
                batch=batch,
                share_pct_sm=share,
                clock_mhz_sm=kind.clock_mhz_sm_max,
                latency_ms_mean=self.latency_ms(model, kind.name, batch, share),
                memory_mib=900.0 + 40.0 * batch * WORK_MS[model],
                power_w=0.5 * share,
            )
            for share in self.shares_pct
            for batch in self.batches
        )
        return Profile(model=ModelName(model), gpu_type=kind.name, points=points)


def gpu_types(*names: str) -> dict[str, GpuType]:
    return {item.name: item for item in load_gpu_types() if item.name in names}


def fleet(policy: Policy, servers: Sequence[GpuType], gpus: int, models: Sequence[str], law: InventedLaw) -> Snapshot:
    """Servers with so many whole GPUs each, and networks of middling size that are profiled on all of them."""
    kinds = {kind.name: kind for kind in servers}
    nodes = [NodeId(f"server-{number}") for number in range(len(servers))]
    devices = [
        Device(
            id=DeviceId(f"GPU-{node}-{index}"),
            node=node,
            gpu_type=kind.name,
            index=index,
            memory_mib=kind.memory_mib,
            sm_count=kind.sm_count,
        )
        for node, kind in zip(nodes, servers, strict=True)
        for index in range(gpus)
    ]
    return Snapshot(
        cluster=ClusterName("claims"),
        taken_at_s=0.0,
        policy=policy,
        projects=(Project(name=PROJECT),),
        gpu_types=tuple(kinds[name] for name in sorted(kinds)),
        nodes=tuple(Node(id=name) for name in nodes),
        node_statuses=tuple(NodeStatus(node=name, age_s=1.0, generation_applied=0) for name in nodes),
        devices=tuple(sorted(devices, key=lambda item: item.id)),
        models=tuple(
            ModelVariant(name=ModelName(name), family=name, parameters_million=25.0, memory_mib_weights=100.0)
            for name in sorted(models)
        ),
        profiles=tuple(law.profile(name, kinds[kind]) for name in sorted(models) for kind in sorted(kinds)),
    )
