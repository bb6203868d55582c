"""Tasks beside services in a small world that OLTunes plans: deadlines are kept, promises are kept, and it learns."""

from __future__ import annotations

from dataclasses import replace

from lab.world.scenario import Level, ScenarioFleet, TaskEntry, WorldScenario
from solvers.domain.device import Node
from solvers.domain.ids import ModelName, NodeId, ProjectName
from solvers.domain.workload import OfflineTask, QualityClass, Slo, SloKind
from tests.simulation.small_world import checked_run, contender, devices, model, real_type, scenario, traffic

DEADLINE_S = 150.0


def entry(number: int) -> TaskEntry:
    """One of several that come one after the other, of both models, one of them urgent."""
    task = OfflineTask(
        project=ProjectName("demo"),
        name=f"task-{number}",
        model=ModelName("resnet50-trt" if number % 2 else "vgg19-trt"),
        inputs_total=4_000,
        slo=Slo(kind=SloKind.DEADLINE, deadline_s=DEADLINE_S),
        class_lambda=0.8 if number == 3 else 0.3,
    )
    return TaskEntry(task=task, at_s=10.0 * number)


def world() -> WorldScenario:
    """Three GPUs, a service, six tasks."""
    fleet = ScenarioFleet(
        gpu_types=(real_type("t4"), real_type("v100")),
        nodes=(Node(id=NodeId("n1")), Node(id=NodeId("n2"))),
        devices=(*devices("t4", "n1", 2), *devices("v100", "n2", 1)),
    )
    return scenario(
        span_s=240.0,
        level=Level.FLUID,
        fleet=fleet,
        models=(
            replace(model("resnet50-trt"), compute_memory_ratio=0.6, quality_class=QualityClass.LOW),
            replace(model("vgg19-trt"), compute_memory_ratio=2.5),
        ),
        traffic=(traffic("resnet50-trt", 100.0),),
        tasks=tuple(entry(number) for number in range(6)),
    )


def test_tasks_end_by_their_deadlines_beside_a_service() -> None:
    found = checked_run(world(), contender("oltunes"))
    assert len(found.jobs) == 6
    assert all(job.done_part == 1.0 and job.took_s is not None and job.took_s <= DEADLINE_S for job in found.jobs)
    assert {name: found.metric(name) for name in ("violation_pct", "unsound_plans", "planner_failures")} == {
        "violation_pct": 0.0,
        "unsound_plans": 0.0,
        "planner_failures": 0.0,
    }
    assert all(job.evictions == 0 for job in found.jobs)


def crowded() -> WorldScenario:
    """Eight GPUs that two services nearly fill before two dozen tasks come."""
    quiet = world()
    fleet = replace(quiet.fleet, devices=(*devices("t4", "n1", 4), *devices("v100", "n2", 4)))
    entries = tuple(entry(number) for number in range(24))
    tasks = tuple(
        replace(item, at_s=40.0 + number, task=replace(item.task, slo=Slo(kind=SloKind.DEADLINE, deadline_s=400.0)))
        for number, item in enumerate(entries)
    )
    busy = (traffic("resnet50-trt", 1000.0), traffic("vgg19-trt", 250.0))
    return replace(quiet, span_s=500.0, fleet=fleet, traffic=busy, tasks=tasks)


def test_tasks_get_through_where_services_nearly_fill_the_fleet() -> None:
    found = checked_run(crowded(), contender("oltunes"))
    assert [job.done_part for job in found.jobs] == [1.0] * 24
    assert all(job.took_s is not None and job.took_s <= 400.0 for job in found.jobs)
    assert found.metric("violation_pct") == 0.0


def test_the_same_seed_gives_the_same_course() -> None:
    first, again = (checked_run(world(), contender("oltunes")) for _ in range(2))
    assert repr(first) == repr(again)
