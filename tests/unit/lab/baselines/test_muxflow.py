"""MuxFlow: one job to a GPU in what inference leaves, matched by speed, and evicted with back-off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.baselines.muxflow import MuxFlow, MuxflowMemory, MuxflowParameters
from solvers.domain.device import Device
from solvers.domain.plan import Assignment, Plan
from solvers.domain.telemetry import ReplicaTelemetry
from solvers.domain.workload import TrainingJob, WorkloadKind
from solvers.planners.base import recalled
from tests import builders
from tests.unit.lab.baselines.course import Course

V100, T4 = builders.device("v", 0, "v100"), builders.device("t", 0, "t4")


def course(devices: list[Device], *jobs: TrainingJob, **settings: float) -> Course:
    picture = builders.snapshot(devices, [builders.service()], jobs=jobs)
    planner = MuxFlow(parameters=MuxflowParameters(**settings)) if settings else None
    return Course("muxflow", picture, planner)


def split(plan: Plan) -> tuple[list[Assignment], list[Assignment]]:
    jobs = [item for item in plan.assignments if item.kind is WorkloadKind.JOB]
    return [item for item in plan.assignments if item.kind is not WorkloadKind.JOB], jobs


def late(course: Course, part: float) -> None:
    """The service's replicas tell so."""
    served = [item for item in course.picture.target.assignments if item.kind is WorkloadKind.SERVICE]
    course.picture = replace(
        course.picture,
        replica_telemetry=tuple(
            ReplicaTelemetry(
                replica=item.replica,
                rate_rps=100,
                latency_ms_p50=20,
                latency_ms_p99=90,
                queue_length=0,
                batch_mean=4,
                violation_fraction=part,
                age_s=1,
            )
            for item in served
        ),
    )


def remembered(state: bytes) -> MuxflowMemory:
    found = recalled(MuxflowMemory, state)
    assert found is not None
    return found


def test_a_gpu_takes_one_job_and_it_gets_what_inference_leaves() -> None:
    plan = course([V100], builders.job("one"), builders.job("two")).step(vision=100)
    (served,), (job,) = split(plan)
    assert job.share_pct_sm == 100 - served.share_pct_sm
    assert [item.workload for item in plan.unplaced] == ["demo/two"]


def test_inference_has_the_share_that_is_busy_at_the_busiest_moment() -> None:
    shares = [split(course([V100]).step(vision=rate))[0][0].share_pct_sm for rate in (20, 200, 400)]
    assert shares == sorted(shares)
    assert shares[0] < shares[-1]


def test_jobs_and_gpus_are_matched_together() -> None:
    # The faster GPU is better for both; only a whole T4 is enough for one of them.
    modest, greedy = builders.job("a-modest"), builders.job("b-greedy", memory_mib=15_000)
    plan = course([V100, T4], modest, greedy).step(vision=5)
    places = {item.workload: item.device for item in split(plan)[1]}
    assert places == {"demo/a-modest": T4.id, "demo/b-greedy": V100.id}


def test_training_memory_is_capped() -> None:
    large = builders.job(memory_mib=12_000)
    assert len(split(course([V100], large).step(vision=5))[1]) == 1
    assert not split(course([V100], large, memory_part=0.3).step(vision=5))[1]


@pytest.mark.parametrize(("part", "stays"), [(0.005, True), (0.2, False)])
def test_a_job_goes_when_inference_is_late(part: float, stays: bool) -> None:
    made = course([V100], builders.job())
    assert split(made.step(vision=100))[1]
    late(made, part)
    assert bool(split(made.step(vision=100))[1]) is stays


def test_it_stays_away_twice_as_long_each_time() -> None:
    made = course([V100], builders.job())
    waits = []
    for _ in range(3):
        assert split(made.step(vision=100))[1]
        late(made, 0.2)
        assert not split(made.step(vision=100))[1]
        (backoff,) = remembered(made.state).backoffs
        waits.append(backoff.until_s - made.picture.taken_at_s + 15.0)
        late(made, 0.0)
        made.picture = replace(made.picture, taken_at_s=backoff.until_s + 1.0)
    assert waits == [60.0, 120.0, 240.0]


def test_who_was_good_for_long_begins_anew() -> None:
    made = course([V100], builders.job())
    made.step(vision=100)
    late(made, 0.2)
    made.step(vision=100)
    late(made, 0.0)
    made.picture = replace(made.picture, taken_at_s=made.picture.taken_at_s + 5000.0)
    made.step(vision=100)
    assert remembered(made.state).backoffs == ()
