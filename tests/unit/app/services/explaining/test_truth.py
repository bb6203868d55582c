"""Sentences of explanations against the numbers: drawn fleets are planned, and whatever is said of a workload has to be
so in its picture and its plan.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import pytest

from app.services.explaining.explaining import choices, gaps
from solvers.domain.device import Taint
from solvers.domain.evidence import Insight, Reason
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Project, Service
from solvers.planners import registry
from tests import builders

LARGE = 4000.0
"""A network so many times as large as the usual one fits on no GPU of the drawn fleets."""
TYPES = ("t4", "l4", "v100", "a100")


@dataclass(frozen=True)
class Said:
    """A sentence about a workload, and what it is to be held against."""

    picture: Snapshot
    plan: Plan
    workload: str
    reason: Reason
    sentence: str

    @property
    def number(self) -> Mapping[str, float]:
        return {fact.name: fact.value for fact in self.reason.facts if not isinstance(fact.value, str)}

    @property
    def dearer(self) -> bool:
        """Than what was chosen, by what the planner chooses by."""
        return self.number["room_usd_per_h"] >= self.number["chosen_room_usd_per_h"]

    @property
    def replicas(self) -> int:
        return [str(item.workload) for item in self.plan.assignments].count(self.workload)


def drawn(seed: int) -> Snapshot:
    """Some devices and services; some that cannot be served, for one reason or several."""
    draw = random.Random(seed)
    devices = [
        builders.device(node, index, draw.choice(TYPES), schedulable=draw.random() > 0.1)
        for node in ("a", "b")
        for index in range(draw.randint(1, 3))
    ]
    if draw.random() < 0.3:
        devices[0] = replace(devices[0], taints=(Taint(key="held"),))
    services = [_service(draw, number) for number in range(draw.randint(1, 4))]
    models = {str(item.model) for item in services}
    types = {str(item.gpu_type) for item in devices}
    profiles = [builders.profile(name, gpu, work=LARGE if name == "large" else 1.0) for name in models for gpu in types]
    if draw.random() < 0.3:
        services[0] = replace(services[0], budget_usd_per_h=draw.choice((0.05, 0.3, 5.0)))
    quota_gpus = draw.choice((None, None, 0.2, 1.0, 8.0))
    projects = (Project(name=builders.service().project, quota_gpus=quota_gpus),)
    return builders.snapshot(devices, services, profiles=profiles, projects=projects)


def _service(draw: random.Random, number: int) -> Service:
    name = draw.choice(("usual", "usual", "usual", "hasty", "large"))
    return builders.service(
        f"{name}{number}",
        model=ModelName("large" if name == "large" else "resnet50"),
        slo=builders.slo({"hasty": 0.5, "large": 1e8}.get(name, 60.0)),
        rate_rps_declared=draw.choice((1.0, 100.0, 4000.0)),
        replicas_min=draw.choice((0, 1, 2)),
        gpu_types_allowed=draw.choice(((), (), (GpuTypeName("t4"),), (GpuTypeName("v100"), GpuTypeName("l4")))),
    )


def _usable(said: Said) -> list[str]:
    return [str(item.gpu_type) for item in said.picture.devices if item.schedulable]


def _service_of(said: Said) -> Service:
    return next(item for item in said.picture.services if item.id == said.workload)


def _largest_mib(said: Said) -> int:
    return max(item.memory_mib for item in said.picture.devices if item.gpu_type == said.reason.subject)


def _stands(said: Said) -> bool:
    return any(item.workload == said.workload for item in said.picture.target.assignments)


def _needs(said: Said) -> bool:
    needed, there = map(float, re.findall(r"(\d+) MiB", said.sentence)[:2])
    return needed > there and there <= _largest_mib(said)


def _left(said: Said, name: str, left: float) -> bool:
    """Whether so much is needed as is not left by the plan, and no less was left than is."""
    return said.number[name] > left - 1e-5 and said.number[f"{OF[name]}_left"] >= left - 1e-5


OF = {"gpus_needed": "quota_gpus", "usd_per_h": "budget_usd_per_h"}


def _beyond_quota(said: Said) -> bool:
    quota = said.picture.projects[0].quota_gpus
    assert quota is not None
    return _left(said, "gpus_needed", quota - sum(item.share_pct_sm for item in said.plan.assignments) / 100)


def _beyond_budget(said: Said) -> bool:
    budget, types = _service_of(said).budget_usd_per_h, {item.name: item for item in said.picture.gpu_types}
    assert budget is not None
    devices = said.picture.devices_by_id()
    spent = sum(
        types[devices[item.device].gpu_type].prices[0].usd_per_h * item.share_pct_sm / 100
        for item in said.plan.assignments
        if item.workload == said.workload
    )
    return _left(said, "usd_per_h", budget - spent)


def _has_room(said: Said) -> bool:
    """Whether a whole device of the type is free, which nothing but a rule would keep from a service alone."""
    held = {item.device for item in said.plan.assignments}
    return any(
        item.gpu_type == said.reason.subject and item.id not in held and item.schedulable and not item.taints
        for item in said.picture.devices
    )


TRUE: Mapping[str, Callable[[Said], bool]] = {
    "has fewer replicas than it must have": lambda said: said.replicas < _service_of(said).replicas_min,
    "has more replicas than its load needs": lambda said: said.replicas > 0,
    "has no usable device of type": lambda said: said.reason.subject not in _usable(said),
    "one replica needs": _needs,
    "is not among the GPU types allowed": lambda said: (
        GpuTypeName(said.reason.subject) not in _service_of(said).gpu_types_allowed
    ),
    "would keep the SLO but costs more": lambda said: (
        said.number["room_usd_per_h"] >= said.number["chosen_room_usd_per_h"]
    ),
    "it takes no less room": lambda said: said.number["room_usd_per_h"] >= said.number["chosen_room_usd_per_h"],
    "there was no room for all of its": lambda said: (
        said.number["room_usd_per_h"] < said.number["chosen_room_usd_per_h"]
    ),
    "it would serve too little": lambda said: said.number["rate_rps_short"] > 0,
    "what stands is left only": _stands,
    "is the cheapest choice": lambda said: said.replicas > 0,
    "stays as it is": _stands,
    "quota stands in the way": _beyond_quota,
    "the budget of": _beyond_budget,
    "too little SM share left": lambda said: not _has_room(said),
    "cannot keep the SLO": lambda said: said.number.get("latency_ms_best", 1e9) > _service_of(said).slo.latency_ms,
}
"""What a sentence says, and when it is so."""


@cache
def _planned(seed: int, planner: str) -> tuple[Snapshot, Plan, Insight | None]:
    picture = drawn(seed)
    if seed % 3 == 0:
        first = registry.propose(planner, builders.request(picture), b"").plan
        assert first is not None
        doubled = tuple(replace(item, rate_rps_declared=item.rate_rps_declared * 2) for item in picture.services)
        target = builders.target(first.assignments, settings=first.settings)
        picture = replace(picture, services=doubled, target=target)
    proposal = registry.propose(planner, builders.request(picture), None)
    assert proposal.plan is not None
    return picture, proposal.plan, proposal.insight


def _said(seed: int, planner: str) -> list[Said]:
    picture, plan, _ = _planned(seed, planner)
    types = {str(item.id): str(item.gpu_type) for item in picture.devices}
    told = [
        (str(item.assignment.workload), each)
        for item in choices(plan, types, None)
        for each in (*item.why, *item.alternatives)
    ]
    told += [(item.workload, each) for item in gaps(plan.unplaced, None) for each in item.why]
    return [Said(picture, plan, workload, each.reason, each.sentence) for workload, each in told]


@pytest.mark.parametrize("planner", ["greedy", "joint"])
def test_what_is_said_is_so(planner: str) -> None:
    seen: set[str] = set()
    for seed in range(60 if planner == "greedy" else 8):
        for said in _said(seed, planner):
            for words, holds in TRUE.items():
                if words in said.sentence:
                    seen.add(words)
                    assert holds(said), (seed, said.workload, said.sentence)
    assert len(seen) >= (8 if planner == "greedy" else 4), seen


def test_who_fits_nowhere_is_told_of_memory_first() -> None:
    met = 0
    for seed in range(60):
        picture, plan, _ = _planned(seed, "joint" if seed < 8 else "greedy")
        for gap in gaps(plan.unplaced, None):
            service = next(item for item in picture.services if item.id == gap.workload)
            allowed = service.gpu_types_allowed or tuple(item.gpu_type for item in picture.devices)
            if service.model == "large" and any(
                item.gpu_type in allowed for item in picture.devices if item.schedulable and not item.taints
            ):
                met += 1
                assert "MiB" in gap.why[0].sentence or "memory" in gap.why[0].sentence, (seed, gap.why[0].sentence)
    assert met > 5
