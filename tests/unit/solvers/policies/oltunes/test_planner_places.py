"""Who gets a place from OLTunes as a planner: everybody for whom there is room, services before tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.instances.family_snapshot import PROJECT, family_snapshot
from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import ModelName
from solvers.domain.plan import Assignment, Plan
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import OfflineTask, Slo, SloKind, WorkloadKind
from solvers.planners.draft import Draft
from solvers.policies.oltunes.groups import GroupBooks, Newcomer, WaitingWork
from solvers.policies.oltunes.parameters import OltunesParameters
from solvers.policies.oltunes.planner import Oltunes
from solvers.policies.oltunes.queues import Queues
from solvers.verify.checks import is_fatal, verify
from tests import builders
from tests.unit.lab.benches.tasks.course import Course, of, picture, task

UNTAUGHT: dict[str, Any] = {"samples_max": 0}
"""Where many pictures are planned: who scores does not matter, and teaching takes longer than planning."""


def crowded(room_pct: list[int]) -> tuple[Assignment, ...]:
    """A standing replica of one service on each T4, which leaves so much of it."""
    found = []
    for index, free in enumerate(room_pct):
        share = 100 - free
        latency_ms = builders.latency_ms("t4", 1, share)
        found.append(
            builders.assignment(
                f"demo/vision#{index}",
                builders.device("a", index, "t4"),
                share_pct_sm=share,
                batch=1,
                envelope=builders.Envelope(batch_min=1, batch_max=1, clock_mhz_sm_min=1590, clock_mhz_sm_max=1590),
                latency_ms_planned=latency_ms,
                capacity_rps=1.0,
            )
        )
    return tuple(found)


def short_of(plan: Plan, kind: WorkloadKind) -> dict[str, float]:
    return {str(item.workload): item.rate_rps_short for item in plan.unplaced if item.kind is kind}


@settings(max_examples=25, deadline=None)
@given(
    devices=st.lists(st.sampled_from(("t4", "v100")), min_size=1, max_size=8),
    tasks=st.lists(
        st.tuples(
            st.sampled_from(("resnet50", "bert", "gpt")),
            st.sampled_from((0.1, 0.3, 0.6, 0.9)),
            st.sampled_from((300.0, 3_000.0, 30_000.0)),
            st.sampled_from((20_000, 3_000, 60)),
        ),
        max_size=8,
    ),
    strict=st.booleans(),
    group_max=st.integers(1, 4),
)
def test_as_many_tasks_as_empty_gpus_all_get_a_place(
    devices: list[str], tasks: list[tuple[str, float, float, int]], strict: bool, group_max: int
) -> None:
    work = [
        task(f"t{number}", model, deadline_s, class_lambda=weight, inputs_total=inputs)
        for number, (model, weight, deadline_s, inputs) in enumerate(tasks[: len(devices)])
    ]
    plan = Course(picture(work, tuple(devices)), affinity_strict=strict, group_max=group_max, **UNTAUGHT).cycle()
    assert plan.unplaced == ()
    assert {item.workload for item in plan.assignments} == {item.id for item in work}


@settings(max_examples=20, deadline=None)
@given(room_pct=st.lists(st.sampled_from((10, 20, 30, 40)), min_size=1, max_size=6), data=st.data())
def test_tasks_that_need_little_fit_into_what_services_leave(room_pct: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(room_pct)))
    services = [builders.service("vision", rate_rps_declared=1.0, replicas_min=len(room_pct), replicas_max=8)]
    work = [task(f"t{number}", deadline_s=6000.0) for number in range(count)]
    course = Course(picture(work, ("t4",) * len(room_pct), services=services), **UNTAUGHT)
    course.picture = replace(course.picture, target=builders.target(crowded(room_pct)))
    plan = course.cycle()
    assert plan.unplaced == ()
    assert len([item for item in plan.assignments if item.kind is WorkloadKind.SERVICE]) == len(room_pct)


def test_many_tasks_that_must_go_elsewhere_do_not_stand_in_the_way() -> None:
    far = [
        task(f"far{number:02}", deadline_s=600.0, gpu_types_allowed=(builders.GpuTypeName("v100"),))
        for number in range(70)
    ]
    here = task("here", deadline_s=60_000.0, gpu_types_allowed=(builders.GpuTypeName("t4"),))
    plan = Course(picture([*far, here], ("t4", "v100")), affinity_strict=True).cycle()
    assert of(plan, "here").device == builders.device("a", 0, "t4").id


def test_spare_room_is_for_those_who_wait_before_it_is_for_tuning() -> None:
    work = [task(name, "bert", class_lambda=0.9, deadline_s=60_000.0) for name in ("one", "two", "six")]
    plan = Course(picture(work, ("t4",))).cycle()
    assert {item.workload for item in plan.assignments} == {item.id for item in work}


def test_a_task_too_large_for_one_gpu_takes_what_can_do_it() -> None:
    """Sixteen replicas are the most, and on a fifth of a T4 they would be too slow."""
    large = task("large", deadline_s=600.0, inputs_total=2_400_000)
    plan = Course(picture([large], ("t4",) * 20)).cycle()
    assert plan.unplaced == ()
    assert sum(item.capacity_rps for item in plan.assignments) >= 4000.0


@pytest.mark.parametrize(("group_max", "placed"), [(1, 2), (2, 3)])
def test_groups_keep_their_largest_size_however_many_wait(group_max: int, placed: int) -> None:
    work = [task(f"t{number}", deadline_s=60_000.0) for number in range(3)]
    plan = Course(picture(work), group_max=group_max).cycle()
    assert len(plan.assignments) == placed


@settings(max_examples=15, deadline=None)
@given(rates=st.lists(st.sampled_from((20.0, 150.0, 400.0, 900.0)), min_size=1, max_size=4), patient=st.booleans())
def test_tasks_take_nothing_from_services(rates: list[float], patient: bool) -> None:
    services = [
        builders.service(
            f"s{number}", rate_rps_declared=rate, class_lambda=0.3 if patient else 0.9, replicas_max=8, replicas_min=0
        )
        for number, rate in enumerate(rates)
    ]
    work = [task(f"t{number}", class_lambda=0.9, deadline_s=400.0) for number in range(6)]
    devices = ("t4", "t4", "v100")
    alone = Course(picture([], devices, services=services), **UNTAUGHT).cycle()
    beside = Course(picture(work, devices, services=services), **UNTAUGHT).cycle()
    less = sum(short_of(alone, WorkloadKind.SERVICE).values())
    assert sum(short_of(beside, WorkloadKind.SERVICE).values()) <= less + 1e-6


def family(gpus: int, services: int, tasks: int, seed: int) -> Snapshot:
    """A mixed fleet that its services need nearly all of, and small tasks."""
    drawn = family_snapshot(gpus, services, seed)
    work = tuple(
        OfflineTask(
            project=PROJECT,
            name=f"task-{number:03d}",
            model=ModelName(f"net-{number % services:05d}"),
            inputs_total=200_000,
            slo=Slo(kind=SloKind.DEADLINE, deadline_s=7200.0),
            class_lambda=0.8 if number % 5 == 0 else 0.3,
        )
        for number in range(tasks)
    )
    return replace(drawn, tasks=work)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_fleet_that_services_nearly_fill_has_room_for_a_hundred_tasks(seed: int) -> None:
    before = family(256, 60, 100, seed)
    request = builders.request(before)
    plan = Oltunes(parameters=OltunesParameters()).think(request, b"", SilentReporter()).proposal.plan
    assert plan is not None
    assert not is_fatal(verify(before, plan, request.movable))
    assert plan.unplaced == ()


def test_who_fits_in_none_of_the_kept_configurations_waits_where_that_is_wanted() -> None:
    services = [builders.service("vision", rate_rps_declared=1.0)]
    before = picture([task("one", deadline_s=6000.0)], ("t4",), services=services)
    before = replace(before, target=builders.target(crowded([10])))
    strict = Course(before, kept_strict=True).cycle()
    assert set(short_of(strict, WorkloadKind.TASK)) == {"demo/one"}
    assert Course(before).cycle().unplaced == ()


def test_slices_of_a_gpu_are_places_of_their_own() -> None:
    before = picture([task("one", "bert"), task("two", "bert")], ("v100",))
    slices = tuple(builders.mig_slice("a", index, "v100", 3) for index in (1, 2))
    plan = Course(replace(before, devices=(*before.devices, *slices)), affinity_strict=True).cycle()
    assert {item.device for item in plan.assignments} == {item.id for item in slices}


def test_thrifty_services_leave_room_for_tasks_that_come_later() -> None:
    def stood(**changes: bool) -> float:
        services = [builders.service(f"s{number}", rate_rps_declared=60.0) for number in range(3)]
        plan = Course(picture([], ("t4", "t4", "v100"), services=services), **changes, **UNTAUGHT).cycle()
        assert plan.unplaced == ()
        return plan.objective.cost_usd_per_h

    assert stood(services_thrifty=True) < 0.8 * stood()


def test_nobody_is_squeezed_where_all_have_room() -> None:
    """The paper's own passes answer alone: a patient task gets its largest batch and no more than a group's part."""
    plan = Course(picture([task("alone", deadline_s=60_000.0)], ("v100",))).cycle()
    assert of(plan, "alone").batch == max(builders.BATCHES)


class Roomy(GroupBooks):
    """Room for everybody: size and affinity alone decide."""

    def fitting(self, task: WaitingWork, place: int) -> list[int]:
        return [0]

    def join(self, task: WaitingWork, place: int, configurations: Sequence[int]) -> Newcomer:
        return cast(Newcomer, SimpleNamespace(waiting=task))

    def served(self, task: WaitingWork) -> bool:
        return True


def books(**of_fleet: list[float]) -> Roomy:
    """Of devices of which only this is known; nobody sits anywhere."""
    count = len(of_fleet["utilisation"])
    fleet = SimpleNamespace(occupants=np.zeros(count), unrented=np.array(of_fleet.get("unrented", [0.0] * count)))
    return Roomy(
        draft=cast(Draft, SimpleNamespace(fleet=fleet)),
        parameters=OltunesParameters(),
        group_max=3,
        affinity_min=OltunesParameters().threshold_affinity,
        models={},
        utilisation=np.array(of_fleet["utilisation"]),
        first_group=0,
        tasks=np.array(of_fleet["tasks"], dtype=np.int64),
    )


def test_the_least_utilised_device_without_tasks_gets_the_next_group() -> None:
    made = books(utilisation=[50.0, 20.0, 70.0, 10.0, 0.0], tasks=[0, 0, 0, 1, 0], unrented=[0, 0, 0, 0, 1])
    assert made._order() == [1, 0, 2, 4, 3]


def test_a_full_group_admits_no_task_and_its_size_is_no_matter_of_services() -> None:
    task, service = (
        cast(WaitingWork, SimpleNamespace(need=SimpleNamespace(kind=kind, model="resnet50"), name=kind))
        for kind in (WorkloadKind.TASK, WorkloadKind.SERVICE)
    )

    made = books(utilisation=[0.0, 0.0], tasks=[2, 3])

    def joins(item: WaitingWork, device: int, *, anybody: bool) -> bool:
        """Whether it joins, where everything but size and affinity lets it."""
        line = cast("Queues[WaitingWork]", SimpleNamespace(first=lambda *_: [item], take=lambda _: None))
        return bool(made.group(line, device, anybody=anybody))

    assert [joins(task, device, anybody=False) for device in (0, 1)] == [True, False]
    assert [joins(service, device, anybody=False) for device in (0, 1)] == [True, True]
    assert not joins(task, 1, anybody=True)
    # Whoever sits there is of the same kind: affinity 25, which only orders in the last round.
    made.seat(0, ModelName("resnet50"), WorkloadKind.SERVICE)
    assert [joins(task, 0, anybody=anybody) for anybody in (False, True)] == [False, True]
