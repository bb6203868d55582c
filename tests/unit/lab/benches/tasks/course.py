"""Pictures of tasks on a few GPUs, and OLTunes planning one after the other: each plan is verified, and stands next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lab.world.targets import next_target
from solvers.domain.device import Device
from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Assignment, Plan
from solvers.domain.snapshot import JobStatus, Snapshot
from solvers.domain.workload import OfflineTask, QualityClass, Slo, SloKind
from solvers.planners.base import Thought
from solvers.policies.oltunes.memory import OltunesMemory
from solvers.policies.oltunes.parameters import OltunesParameters
from solvers.policies.oltunes.planner import Oltunes
from solvers.policies.oltunes.queues import WindowPace
from solvers.verify.checks import is_fatal, verify
from tests import builders

HIGH, LOW = QualityClass.HIGH, QualityClass.LOW
MODELS = (
    builders.model("resnet50", quality_class=LOW, compute_memory_ratio=0.5),
    builders.model("bert", quality_class=HIGH, compute_memory_ratio=0.5),
    builders.model("gpt", quality_class=HIGH, compute_memory_ratio=3.0),
)
PROFILES = tuple(builders.profile(item.name, kind) for item in MODELS for kind in ("t4", "v100"))


def task(name: str, model: str = "resnet50", deadline_s: float = 600.0, **changes: Any) -> OfflineTask:
    slo = Slo(kind=SloKind.DEADLINE, deadline_s=deadline_s)
    return builders.task(name, model=model, slo=slo, **{"inputs_total": 6_000, **changes})


def picture(tasks: Iterable[OfflineTask], devices: tuple[str, ...] = ("t4", "t4"), **changes: Any) -> Snapshot:
    found: tuple[Device, ...] = tuple(builders.device("a", index, kind) for index, kind in enumerate(devices))
    made = builders.snapshot(found, changes.pop("services", ()), profiles=PROFILES, **changes)
    return replace(made, models=MODELS, tasks=tuple(sorted(tasks, key=lambda item: item.id)))


class Course:
    """A planner that plans picture after picture; each plan stands in the next."""

    def __init__(self, first: Snapshot, **settings: Any) -> None:
        self.planner = Oltunes(parameters=OltunesParameters(**settings))
        self.picture = first
        self.state = b""
        self.last: Thought | None = None

    def cycle(self, done: dict[str, int] | None = None, after_s: float = 15.0) -> Plan:
        """Plan; the next picture is taken later, with so much done."""
        request = builders.request(self.picture)
        self.last = self.planner.think(request, self.state, SilentReporter())
        plan = self.last.proposal.plan
        assert plan is not None
        assert not is_fatal(verify(self.picture, plan, request.movable))
        self.state = self.last.state or b""
        statuses = tuple(
            JobStatus(workload=WorkloadId(f"demo/{name}"), done=amount) for name, amount in (done or {}).items()
        )
        self.picture = replace(
            self.picture,
            target=next_target(self.picture.target, plan, self.picture.taken_at_s),
            taken_at_s=self.picture.taken_at_s + after_s,
            job_statuses=statuses,
        )
        return plan

    @property
    def memory(self) -> OltunesMemory:
        """What it keeps."""
        parameters = self.planner.parameters
        return OltunesMemory.of(self.state, parameters.predictor, WindowPace.first(parameters))


def of(plan: Plan, name: str) -> Assignment:
    return next(item for item in plan.assignments if item.workload == f"demo/{name}")


def facts(item: Assignment) -> dict[str, float | str]:
    return {fact.name: fact.value for fact in item.reasons[0].facts}
