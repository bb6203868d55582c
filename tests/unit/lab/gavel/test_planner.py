"""Gavel as a planner: who trains where, with what it has seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lab.gavel.planner import packed
from lab.gavel.rounds import GavelMemory, GavelParameters, JobPlace, Speed
from solvers.domain.device import Device
from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import JobId, ModelName, WorkloadId
from solvers.domain.plan import Plan
from solvers.domain.snapshot import JobStatus, Replica, ReplicaState, Snapshot
from solvers.domain.workload import WorkloadKind
from solvers.planners import registry
from solvers.planners.base import kept
from tests import builders

V100 = builders.device("b", 0, "v100")


def alone_on(*devices: Device, **changes: Any) -> Snapshot:
    jobs = tuple(builders.job(f"train-{number}") for number in range(3))
    return builders.snapshot(devices, jobs=jobs, nodes=(builders.node("b"),), **changes)


def plan_of(name: str, picture: Snapshot, memory: GavelMemory | None = None) -> Plan:
    planner = registry.create(name)
    state = planner.first_state() if memory is None else kept(memory)
    plan = planner.propose(builders.request(picture), state, SilentReporter()).plan
    assert plan is not None
    return plan


def seen(part: float) -> GavelMemory:
    beside = JobPlace(kind="v100", beside="resnet50")
    return GavelMemory(speeds=(Speed(model=ModelName("resnet50"), place=beside, part=part),))


@pytest.mark.parametrize(
    ("name", "part", "shares"), [("gavel", 0.8, [100]), ("gavel_packed", 0.8, [50, 50]), ("gavel_packed", 0.4, [100])]
)
def test_two_jobs_share_a_gpu_where_that_was_seen_to_gain(name: str, part: float, shares: list[int]) -> None:
    plan = plan_of(name, alone_on(V100), seen(part))
    assert [item.share_pct_sm for item in plan.assignments] == shares


def test_a_network_that_was_seen_to_crawl_on_a_type_goes_to_the_other() -> None:
    jobs = (builders.job("small", model=ModelName("alexnet")), builders.job("large"))
    devices = (V100, builders.device("b", 1, "t4"))
    crawls = Speed(model=ModelName("alexnet"), place=JobPlace(kind="t4"), part=0.01)
    models = tuple(builders.model(ModelName(name)) for name in ("alexnet", "resnet50"))
    picture = replace(alone_on(*devices), jobs=tuple(sorted(jobs, key=lambda job: job.id)), models=models)
    plan = plan_of("gavel", picture, GavelMemory(speeds=(crawls,)))
    assert {item.workload: item.device for item in plan.assignments} == {
        "demo/small": devices[0].id,
        "demo/large": devices[1].id,
    }


def standing(picture: Snapshot, done: int) -> Snapshot:
    """The same with its first job on the first device, so far."""
    item = builders.assignment(
        "demo/train-0#0",
        V100,
        kind=WorkloadKind.JOB,
        workload=WorkloadId("demo/train-0"),
        share_pct_sm=100,
        memory_mib_limit=4032,
        batch=1,
    )
    replica = Replica(
        id=item.replica,
        kind=item.kind,
        workload=item.workload,
        model=item.model,
        device=item.device,
        share_pct_sm=100,
        memory_mib_limit=4032,
        batch=1,
        state=ReplicaState.READY,
    )
    statuses = (JobStatus(workload=WorkloadId(JobId("demo/train-0")), done=done),)
    return replace(picture, target=builders.target([item]), replicas=(replica,), job_statuses=statuses)


def test_progress_is_read_as_speed_and_time_held_is_counted() -> None:
    picture = alone_on(V100)
    first = GavelMemory().heard(standing(picture, 0), GavelParameters())
    later = replace(standing(picture, 500), taken_at_s=picture.taken_at_s + 100.0)
    memory = first.heard(later, GavelParameters())
    # 10 iterations a second are believed, 5 were seen.
    assert memory.speed(ModelName("resnet50"), JobPlace(kind="v100")) == pytest.approx(0.5)
    assert [(item.job, item.seconds) for item in memory.given] == [("demo/train-0", 100.0)]


def test_between_rounds_who_stands_stays_and_after_one_another_has_a_turn() -> None:
    planner, picture = packed(), alone_on(V100)
    state = planner.first_state()
    jobs = []
    for at_s in (0.0, 100.0, 500.0):
        now = replace(standing(picture, 0), taken_at_s=picture.taken_at_s + at_s)
        thought = planner.think(builders.request(now), kept(_slow(state)), SilentReporter())
        assert thought.proposal.plan is not None
        assert thought.state is not None
        state = thought.state
        jobs.append([item.workload for item in thought.proposal.plan.assignments])
    assert jobs[1] == ["demo/train-0"]
    assert jobs[2] != ["demo/train-0"]
    assert len(jobs[2]) == 1


def _slow(state: bytes) -> GavelMemory:
    """With couples that lose, so that a GPU holds one job."""
    return replace(GavelMemory.of(state), speeds=seen(0.3).speeds)
