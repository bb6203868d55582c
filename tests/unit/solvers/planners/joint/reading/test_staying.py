"""What is left of devices where something stays is used, as far as those who stay bear it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from solvers.domain.device import PowerCap, PowerScope
from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import ModelName, WorkloadId
from solvers.domain.plan import Plan
from solvers.domain.policy import CostBasis
from solvers.domain.profile import Interference
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Affinity
from solvers.planners.base import Budget
from solvers.planners.joint.planner import Joint
from solvers.planners.joint.reading.formulation import Reading, read
from solvers.problems.patterns import Pattern
from solvers.verify.checks import verify
from solvers.verify.picture import is_fatal
from tests import builders
from tests.judgement import judge

HOST = builders.device("a", 0, "v100")
MOVES = (WorkloadId("demo/new"),)
POLICY = builders.policy(cost_basis=CostBasis.DEVICE)
KNOWN = Interference(pressure=0.2, exponent=1.0, sensitivity=0.5)


def world(*, share_pct: int = 50, interference: Interference | None = KNOWN, **changes: Any) -> Snapshot:
    """One device with a pinned replica on it, and a newcomer."""
    changes = {"policy": POLICY, **changes}
    new = changes.pop("new", builders.service("new", rate_rps_declared=40.0))
    old = builders.service("old", rate_rps_declared=100.0, slo=builders.slo(changes.pop("slo_ms", 200.0)))
    empty = builders.snapshot([HOST, *changes.pop("more", ())], [new, old], **changes)
    told = tuple(replace(item, interference=interference) for item in empty.profiles)
    stays = builders.assignment("demo/old#0", HOST, share_pct_sm=share_pct, batch=4, capacity_rps=100.0)
    return replace(empty, profiles=told, target=builders.target([stays]))


def rest_of(picture: Snapshot) -> tuple[Reading, int | None]:
    reading = read(picture, MOVES)
    found = [number for number, pool in enumerate(reading.problem.pools) if pool.rest]
    assert len(found) <= 1
    return reading, (found[0] if found else None)


def joined(picture: Snapshot, share_pct: int) -> Pattern | None:
    reading, pool = rest_of(picture)
    if pool is None or not reading.problem.variants:
        return None
    (kind,) = reading.problem.like(pool, int(reading.problem.kind_clock_mhz[-1]))
    return judge(reading.problem, kind, (0,), (share_pct,))


def planned(picture: Snapshot) -> Plan:
    """The joint planner's own plan, whoever would be better."""
    request = replace(builders.request(picture, MOVES), budget=Budget(deadline_s=3600.0, work_units=200))
    proposal = Joint().propose(request, b"", SilentReporter())
    assert proposal.plan is not None
    assert proposal.insight is not None
    assert not is_fatal(verify(picture, proposal.plan, MOVES))
    own = next(item for item in proposal.insight.contenders if item.name == "joint")
    assert own.objective.unserved == proposal.plan.objective.unserved
    return proposal.plan


def test_the_rest_is_a_pool_of_its_own_that_costs_nothing_more() -> None:
    reading, number = rest_of(world())
    assert number is not None
    pool = reading.problem.pools[number]
    assert (pool.devices, pool.clients, pool.usd_per_h, pool.idle_w) == (1, 1, 0.0, 0.0)
    assert pool.memory_mib < builders.gpu_type("v100").memory_mib - reading.pinned[0].memory_mib_limit + 1
    assert pool.limit_w == builders.gpu_type("v100").power_limit_w_max - 25 - reading.pinned[0].power_w_planned
    assert reading.pool_devices[number] == (HOST.id,)
    assert reading.standing == {}


def test_only_the_share_that_is_left_is_handed_out() -> None:
    assert joined(world(), 50) is not None
    assert joined(world(), 60) is None
    assert joined(world(share_pct=90), 20) is None
    assert rest_of(world(share_pct=100))[1] is None


def test_who_joins_is_slowed_by_those_who_stay() -> None:
    slowed, alone = joined(world(), 40), joined(world(interference=Interference(pressure=0.0, sensitivity=0.0)), 40)
    careful = joined(world(interference=None), 40)
    assert slowed is not None
    assert alone is not None
    assert careful is not None
    # Pressure 0.2 at half the device, sensitivity 0.5.
    assert alone.capacity_rps[0] / slowed.capacity_rps[0] == pytest.approx(1 + 0.5 * 0.2 * 0.5)
    assert alone.capacity_rps[0] / careful.capacity_rps[0] == pytest.approx(POLICY.interference_margin)


def test_those_who_stay_are_slowed_no_more_than_they_bear() -> None:
    heavy = Interference(pressure=2.0, exponent=1.0, sensitivity=2.0)
    new = builders.service("new", slo=builders.slo(2_000.0))
    tight, loose = (world(interference=heavy, slo_ms=limit_ms, new=new) for limit_ms in (60.0, 400.0))
    assert joined(tight, 50) is None
    assert joined(tight, 20) is not None
    assert joined(loose, 50) is not None
    # Nor may they serve less than is counted on.
    busy = replace(loose.target.assignments[0], capacity_rps=1_000.0)
    assert joined(replace(loose, target=builders.target([busy])), 50) is None


def test_a_broken_promise_is_no_company_for_anybody() -> None:
    assert rest_of(world(slo_ms=5.0))[1] is None


@pytest.mark.parametrize(
    "new",
    [
        builders.service("new", affinity=Affinity(dedicated=True)),
        builders.service("new", affinity=Affinity(avoid_services=(builders.service("old").id,))),
        builders.service("new", budget_usd_per_h=1.0),
    ],
    ids=["dedicated", "avoids", "budget"],
)
def test_rules_hold_beside_those_who_stay(new: Any) -> None:
    assert joined(world(new=new), 50) is None
    if new.budget_usd_per_h is not None:
        shares = builders.policy(cost_basis=CostBasis.SHARE)
        assert joined(world(new=new, policy=shares), 50) is not None


def test_a_plan_opens_no_device_where_a_rest_will_do() -> None:
    more = [builders.device("b", 0, "v100")]
    picture = world(more=more)
    plan = planned(picture)
    assert {item.device for item in plan.assignments} == {HOST.id}
    assert plan.bound_usd_per_h is not None
    assert 0 < plan.bound_usd_per_h <= plan.objective.cost_usd_per_h
    # The other device is taken where nothing is left.
    full = planned(world(more=more, share_pct=100))
    assert {item.device for item in full.assignments} == {HOST.id, more[0].id}


def test_a_rest_serves_where_there_is_nothing_else() -> None:
    plan = planned(world())
    assert not plan.unplaced
    assert [item.replica for item in plan.assignments] == ["demo/new#0", "demo/old#0"]


def test_a_rest_draws_within_the_caps_over_its_device() -> None:
    idle_w, stays_w = 25.0, 20.0
    for scope, subject in ((PowerScope.NODE, "a"), (PowerScope.DEVICE, HOST.id), (PowerScope.CLUSTER, "lab")):
        plan = planned(world(power_caps=(PowerCap(scope=scope, subject=subject, limit_w=100.0),)))
        drawn_w = idle_w + sum(item.power_w_planned for item in plan.assignments)
        assert idle_w + stays_w <= drawn_w <= 100.0


def test_another_network_that_nobody_knows_of_joins_only_where_the_margin_is_borne() -> None:
    odd = builders.service("new", model=ModelName("other"), rate_rps_declared=40.0)
    picture = world(new=odd)
    strange = replace(
        picture,
        profiles=tuple(
            replace(item, interference=None) if item.model == "other" else item for item in picture.profiles
        ),
    )
    assert joined(strange, 40) is not None
    tight = world(new=odd, slo_ms=60.0)
    busy = replace(tight.target.assignments[0], capacity_rps=1_000.0)
    tight = replace(tight, profiles=strange.profiles, target=builders.target([busy]))
    assert joined(tight, 40) is None


def test_only_the_largest_rests_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = [builders.device("a", index, "v100") for index in range(4)]
    services = [builders.service("new"), builders.service("old", slo=builders.slo(200.0))]
    stays = [
        builders.assignment(f"demo/old#{index}", device, share_pct_sm=share, batch=4, capacity_rps=50.0)
        for index, (device, share) in enumerate(zip(fleet, (80, 40, 60, 40), strict=True))
    ]
    picture = replace(builders.snapshot(fleet, services, policy=POLICY), target=builders.target(stays))

    def rests() -> list[tuple[str, ...]]:
        reading = read(picture, MOVES)
        return [reading.pool_devices[number] for number, pool in enumerate(reading.problem.pools) if pool.rest]

    alike = (fleet[1].id, fleet[3].id)
    assert rests() == [alike, (fleet[2].id,), (fleet[0].id,)]
    monkeypatch.setattr("solvers.planners.joint.reading.pools.POOLS_MAX", 2)
    assert rests() == [alike, (fleet[2].id,)]
    monkeypatch.setattr("solvers.planners.joint.reading.pools.DEVICES_MAX", 1)
    assert rests() == [(fleet[1].id,)]
