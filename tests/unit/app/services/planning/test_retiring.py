"""What may go on for a while after a promotion, for how long, and where it fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from agents.wire import NodeTarget
from app.services.planning.rollout import going_on, node_targets, still_leaving, with_leaving
from solvers.cycle.target import FORGOTTEN_S, LAUNCHES, REPLACED_S_MAX, REPLACED_S_MIN
from solvers.domain.change import Target
from solvers.domain.codec import digest
from solvers.domain.device import DeviceMode
from solvers.domain.ids import DeviceId, Generation
from solvers.domain.plan import Assignment, DeviceSetting, Plan
from solvers.domain.policy import Objective
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import WorkloadKind
from tests.unit.app.services.whatif.small_fleet import assignment, model, snapshot

LABELS = "vision/labels"


def standing(*assignments: Assignment, launch_s: float = 0.5) -> Snapshot:
    target = Target(generation=Generation(6), promoted_at_s=999_990.0, assignments=assignments)
    return replace(snapshot(), target=target, models=(replace(model(), launch_s=launch_s),))


def targets_of(
    world: Snapshot, *planned: Assignment, settings: tuple[DeviceSetting, ...] = (), overlapping: tuple[str, ...] = ()
) -> tuple[NodeTarget, ...]:
    plan = Plan(
        snapshot=digest(world),
        parent=Generation(6),
        planner="test",
        planner_version="1",
        seed=1,
        assignments=planned,
        settings=settings,
        unplaced=(),
        objective=Objective(),
    )
    wanted = node_targets(plan, digest(plan), world, Generation(7))
    return with_leaving(wanted, going_on(plan, world), world, overlapping)


def going(targets: tuple[NodeTarget, ...]) -> dict[tuple[str, str], float]:
    def found() -> Iterator[tuple[tuple[str, str], float]]:
        for target in targets:
            for device in target.devices:
                for each in device.replicas:
                    if each.retire_after_s is not None:
                        yield (device.uuid, each.replica), each.retire_after_s

    return dict(found())


def test_what_stays_or_moves_within_its_node_is_the_agents_business() -> None:
    world = standing(assignment(LABELS, "GPU-a0"), assignment(LABELS, "GPU-a0", ordinal=1))
    moved = assignment(LABELS, "GPU-a1", ordinal=1)
    assert going(targets_of(world, assignment(LABELS, "GPU-a0", share_pct_sm=50), moved)) == {}


def test_a_replica_that_ends_for_good_goes_on_until_the_routes_have_forgotten_it() -> None:
    world = standing(assignment(LABELS, "GPU-a0"), assignment(LABELS, "GPU-b0", ordinal=1))
    assert going(targets_of(world, assignment(LABELS, "GPU-a0"))) == {("GPU-b0", "vision/labels#1"): FORGOTTEN_S}


@pytest.mark.parametrize(
    ("launch_s", "expected_s"), [(0.5, REPLACED_S_MIN), (10.0, 10.0 * LAUNCHES), (600.0, REPLACED_S_MAX)]
)
def test_a_replica_that_moves_to_another_node_goes_on_as_long_as_its_successor_may_take(
    launch_s: float, expected_s: float
) -> None:
    world = standing(assignment(LABELS, "GPU-a0"), launch_s=launch_s)
    assert going(targets_of(world, assignment(LABELS, "GPU-b0"))) == {("GPU-a0", "vision/labels#0"): expected_s}


def test_many_small_ones_go_on_while_the_large_one_starts() -> None:
    small = [assignment(LABELS, "GPU-a0", ordinal=ordinal) for ordinal in range(3)]
    found = going(targets_of(standing(*small), assignment(LABELS, "GPU-b0", share_pct_sm=100)))
    assert found == {("GPU-a0", f"vision/labels#{ordinal}"): REPLACED_S_MIN for ordinal in range(3)}


def test_jobs_and_deleted_services_end_at_once() -> None:
    gone = assignment("vision/deleted", "GPU-a0")
    world = standing(gone, assignment("vision/train", "GPU-a0", WorkloadKind.JOB))
    assert going(targets_of(world)) == {}


def test_nothing_goes_on_where_the_plan_needs_the_room() -> None:
    leaver = replace(assignment(LABELS, "GPU-a0", share_pct_sm=50), memory_mib_limit=8000)
    moved = assignment(LABELS, "GPU-b0")
    crowded = assignment("vision/search", "GPU-a0", share_pct_sm=51)
    assert going(targets_of(standing(leaver), moved, crowded)) == {}
    shared = going(targets_of(standing(leaver), moved, crowded, overlapping=("GPU-a0",)))
    assert shared == {("GPU-a0", "vision/labels#0"): REPLACED_S_MIN}
    filled = replace(assignment("vision/search", "GPU-a0", share_pct_sm=50), memory_mib_limit=8000)
    assert going(targets_of(standing(leaver), moved, filled)) == {}
    beside = replace(filled, memory_mib_limit=7000)
    assert going(targets_of(standing(leaver), moved, beside)) == {("GPU-a0", "vision/labels#0"): REPLACED_S_MIN}
    alone = DeviceSetting(device=DeviceId("GPU-a0"), mode=DeviceMode.DEDICATED)
    assert going(targets_of(standing(leaver), moved, settings=(alone,))) == {}


def test_what_an_earlier_target_let_go_on_keeps_the_rest_of_its_time() -> None:
    world = standing(assignment(LABELS, "GPU-a0"))
    first = targets_of(world, assignment(LABELS, "GPU-b0"))
    later = dict(still_leaving(first, 12.0))
    assert {uuid: each.retire_after_s for uuid, each in later.items()} == {"GPU-a0": REPLACED_S_MIN - 12.0}
    assert dict(still_leaving(first, REPLACED_S_MIN)) == {}
    back = node_targets_with(world, assignment(LABELS, "GPU-a0"))
    assert going(with_leaving(back, later.items(), world)) == {}


def node_targets_with(world: Snapshot, *planned: Assignment) -> tuple[NodeTarget, ...]:
    return targets_of(replace(world, target=Target()), *planned)
