"""iGniter: its published batches, least shares, and neighbours that grow."""

from __future__ import annotations

import pytest

from lab.baselines.igniter import batch_for
from solvers.planners.registry import create
from tests import builders
from tests.unit.lab.baselines.course import Course, farm


@pytest.mark.parametrize(("limit", "rate", "batch"), [(15, 500, 4), (40, 400, 8), (60, 200, 6)])
def test_published_batches(limit: float, rate: float, batch: int) -> None:
    assert batch_for(limit, rate, 10.0, 0.602) == batch


def test_a_slow_bus_makes_smaller_batches() -> None:
    assert batch_for(60, 400, 0.05, 0.602) < batch_for(60, 400, 16.0, 0.602) == 12
    assert batch_for(10, 1, 16.0, 0.602) == 1


def test_it_opens_no_gpu_that_it_can_do_without() -> None:
    services = [builders.service(name, model=name, rate_rps_declared=20.0) for name in ("a", "b", "c")]
    plan = Course("igniter", farm(*services)).step()
    assert not plan.unplaced
    assert len({item.device for item in plan.assignments}) == 1
    assert len(plan.assignments) == 3


def test_neighbours_grow_until_all_keep_half_their_promise() -> None:
    """Alone a service needs less share than beside others that slow it."""
    fast = {"slo": builders.slo(20.0), "rate_rps_declared": 20.0}
    alone = Course("igniter", builders.snapshot([builders.device("v", 0, "v100")], [builders.service("a", **fast)]))
    least = alone.step().assignments[0].share_pct_sm
    services = [builders.service(name, model=name, **fast) for name in ("a", "b", "c")]
    course = Course("igniter", builders.snapshot([builders.device("v", 0, "v100")], services))
    plan = course.step()
    shares = [item.share_pct_sm for item in plan.assignments if item.workload == "demo/a"]
    assert shares
    assert shares[0] >= least


def test_a_rate_beyond_one_gpu_is_split() -> None:
    plan = Course("igniter", farm(builders.service())).step(vision=2000)
    assert not plan.unplaced
    assert len(plan.assignments) > 1


@pytest.mark.parametrize("name", ["igniter", "gpulet"])
def test_busy_replicas_count_for_more_than_proven_ones(name: str) -> None:
    """The papers' count, batch over time, needs less share for the same rate."""
    proven, busy = (
        Course(name, farm(builders.service()), create(name, {"counting": counting})).step(vision=100)
        for counting in ("proven", "busy")
    )
    shares = [sum(item.share_pct_sm for item in plan.assignments) for plan in (proven, busy)]
    assert shares[1] < shares[0]
