"""A device under a cap of its own is planned as it runs there: at a clock, and with shares, whose draw fits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.domain.device import Device, PowerCap, PowerScope
from solvers.domain.evidence import SilentReporter
from solvers.domain.plan import Plan
from solvers.domain.policy import CostBasis
from solvers.domain.profile import Profile
from solvers.domain.snapshot import NodeStatus, Snapshot
from solvers.domain.workload import Slo, SloScope
from solvers.planners.base import Budget
from solvers.planners.joint.planner import Joint
from solvers.planners.joint.reading.formulation import read
from solvers.planners.joint.solve.judge import Judge
from solvers.verify.checks import verify
from solvers.verify.picture import is_fatal
from tests import builders
from tests.judgement import judge
from tests.unit.solvers.planners.joint.solve.oracle import keys_of
from tests.unit.solvers.planners.joint.solve.scenes import scene
from tests.unit.solvers.planners.joint.solve.test_judge import drawn

V100 = builders.gpu_type("v100")
TOP = V100.clock_mhz_sm_max
LOW = TOP - 300
DEVICE = builders.device("a", 0, "v100")
CAP_W = 150.0


def clocked(*clocks: int) -> Profile:
    """Measured at these clocks; the low one draws well less than half."""
    made = builders.profile(type_name="v100", clocks=clocks)
    points = tuple(
        replace(point, power_w=0.4 * (point.power_w or 0.0)) if point.clock_mhz_sm == LOW else point
        for point in made.points
    )
    return replace(made, points=points)


def world(limit_w: float, *clocks: int) -> Snapshot:
    caps = (PowerCap(scope=PowerScope.DEVICE, subject=DEVICE.id, limit_w=limit_w),)
    return builders.snapshot(
        [DEVICE],
        [builders.service("big", rate_rps_declared=5_000.0, slo=builders.slo(200.0))],
        profiles=[clocked(*clocks)],
        power_caps=caps,
        policy=builders.policy(cost_basis=CostBasis.DEVICE),
    )


def planned(picture: Snapshot) -> Plan:
    request = replace(builders.request(picture), budget=Budget(deadline_s=3600.0, work_units=200))
    plan = Joint().propose(request, b"", SilentReporter()).plan
    assert plan is not None
    assert not is_fatal(verify(picture, plan, request.movable))
    return plan


def draw_w(plan: Plan) -> float:
    return V100.idle_w + sum(item.power_w_planned for item in plan.assignments)


def test_the_clock_that_fits_under_the_limit_is_planned_with_its_own_latency() -> None:
    capped, free = planned(world(CAP_W, LOW, TOP)), planned(world(V100.power_limit_w_max, LOW, TOP))
    (setting,) = capped.settings
    assert (setting.clock_mhz_sm, setting.power_limit_w) == (LOW, CAP_W)
    assert free.settings[0].clock_mhz_sm is None
    assert draw_w(capped) <= CAP_W
    assert draw_w(free) > CAP_W
    assert capped.objective.unserved > free.objective.unserved


def test_where_no_lower_clock_was_measured_less_is_handed_out() -> None:
    plan = planned(world(CAP_W, TOP))
    assert 0 < draw_w(plan) <= CAP_W
    assert sum(item.share_pct_sm for item in plan.assignments) < 100
    assert plan.objective.unserved > planned(world(CAP_W, LOW, TOP)).objective.unserved


@pytest.mark.parametrize("slo", [builders.slo(200.0), builders.slo(200.0, scope=SloScope.EXECUTION)])
def test_a_cap_below_the_boards_lowest_limit_is_kept_by_what_is_planned(slo: Slo) -> None:
    limit_w = 0.9 * V100.power_limit_w_min
    offered = builders.service("big", rate_rps_declared=50.0, slo=slo)
    picture = replace(world(limit_w, LOW, TOP), services=(offered,))
    assert len(read(picture, builders.everything_movable(picture)).problem.pools) == 1
    plan = planned(picture)
    assert not plan.unplaced
    assert draw_w(plan) <= limit_w
    assert [item.power_limit_w for item in plan.settings] == [V100.power_limit_w_min]
    # No controller may seek what the board cannot hold.
    assert all(item.envelope.clock_mhz_sm_min == item.envelope.clock_mhz_sm_max for item in plan.assignments)


def test_a_slice_keeps_its_cap_by_what_is_planned() -> None:
    piece = builders.mig_slice("a", 0, "a100", 3)
    caps = (PowerCap(scope=PowerScope.DEVICE, subject=piece.id, limit_w=120.0),)
    picture = builders.snapshot([piece], [builders.service(rate_rps_declared=50.0)], power_caps=caps)
    assert len(read(picture, builders.everything_movable(picture)).problem.pools) == 1
    plan = planned(picture)
    assert [item.device for item in plan.assignments] == [piece.id]
    assert not plan.unplaced


def test_a_pool_knows_whether_its_limit_is_a_plans() -> None:
    for limit_w, capped in ((CAP_W, True), (V100.power_limit_w_max, False), (1_000.0, False)):
        picture = world(limit_w, TOP)
        (pool,) = read(picture, builders.everything_movable(picture)).problem.pools
        assert pool.capped is capped


def test_what_stands_with_a_hungrier_batch_goes_on_with_less() -> None:
    """What stands was planned before there was a cap."""
    before = planned(world(V100.power_limit_w_max, TOP))
    after = world(CAP_W, TOP)
    stands = replace(after, target=builders.target(before.assignments, settings=before.settings))
    assert draw_w(planned(stands)) <= CAP_W


@pytest.mark.parametrize("seed", [1, 2])
def test_both_judges_refuse_the_same(seed: int) -> None:
    free = scene(seed)
    limit_w = [pool.idle_w + 0.3 * (pool.limit_w - pool.idle_w) for pool in free.pools]
    problem = replace(
        free,
        pools=tuple(replace(pool, limit_w=w, capped=True) for pool, w in zip(free.pools, limit_w, strict=True)),
    )
    judged = Judge(problem).judge(drawn(problem, 200, seed))
    refused = 0
    for row, key in enumerate(keys_of(judged.rows)):
        exact, without = judge(problem, *key), judge(free, *key)
        assert bool(judged.lawful[row]) == (exact is not None)
        refused += exact is None and without is not None
        if exact is not None:
            assert exact.draw_w == pytest.approx(
                problem.pools[int(problem.kind_pool[exact.kind])].idle_w + sum(exact.power_w)
            )
    assert refused > 5
    assert np.count_nonzero(judged.lawful) > 5


@pytest.mark.parametrize("more", [(), (builders.device("b", 0, "t4"),)], ids=["alone", "beside others"])
def test_a_device_on_which_nothing_fits_below_its_limit_stays_empty(more: tuple[Device, ...]) -> None:
    picture = world(CAP_W, TOP)
    hungry = tuple(
        replace(item, points=tuple(replace(point, power_w=200.0) for point in item.points)) for item in picture.profiles
    )
    nodes = tuple(builders.node(name) for name in ("a", *(item.node for item in more)))
    fleet = replace(
        picture,
        gpu_types=(builders.gpu_type("t4"), V100),
        nodes=nodes,
        node_statuses=tuple(NodeStatus(node=item.id, age_s=1.0, generation_applied=0) for item in nodes),
        devices=(DEVICE, *more),
        profiles=(*(builders.profile() for _ in more), *hungry),
    )
    plan = planned(fleet)
    assert {item.device for item in plan.assignments} == {item.id for item in more}
    assert [item.workload for item in plan.unplaced] == ["demo/big"]
