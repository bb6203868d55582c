"""Greedy plans beside neighbours whose pressure is known: proven, dense, and stable."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from solvers.domain.device import Offer, PowerCap, PowerScope
from solvers.domain.evidence import ReasonCode, SilentReporter
from solvers.domain.ids import GpuTypeName
from solvers.domain.plan import DeviceSetting, Envelope, Plan
from solvers.domain.profile import Interference
from solvers.domain.snapshot import Snapshot
from solvers.planners.base import Budget, PlanRequest
from solvers.planners.greedy import Greedy
from solvers.verify.checks import verify
from solvers.verify.picture import is_fatal
from tests import builders


def pressing(picture: Snapshot, pressure: float, sensitivity: float) -> Snapshot:
    known = Interference(pressure=pressure, exponent=0.0, sensitivity=sensitivity)
    return replace(picture, profiles=tuple(replace(item, interference=known) for item in picture.profiles))


def planned(picture: Snapshot) -> Plan:
    request = PlanRequest(snapshot=picture, movable=builders.everything_movable(picture), budget=Budget(), seed=1)
    proposal = Greedy().propose(request, b"", SilentReporter())
    assert proposal.plan is not None
    assert not is_fatal(verify(picture, proposal.plan, request.movable))
    return proposal.plan


def fleet(count: int, services: int, **changes: Any) -> Snapshot:
    devices = [builders.device(f"n{index}", 0, "v100") for index in range(count)]
    wanted = [builders.service(f"s{index}", rate_rps_declared=20.0) for index in range(services)]
    return builders.snapshot(devices, wanted, **changes)


def test_light_neighbours_share_a_device_and_heavy_ones_do_not() -> None:
    light = planned(pressing(fleet(3, 3), pressure=0.1, sensitivity=0.5))
    heavy = planned(pressing(fleet(3, 3), pressure=0.9, sensitivity=0.9))
    assert len({item.device for item in light.assignments}) == 1
    assert len({item.device for item in heavy.assignments}) == 3
    assert not light.unplaced
    assert not heavy.unplaced


def test_what_pressure_keeps_out_says_so() -> None:
    plan = planned(pressing(fleet(1, 2), pressure=0.9, sensitivity=0.9))
    (left_out,) = plan.unplaced
    assert ReasonCode.NEIGHBOURS_PRESSURE in {reason.code for reason in left_out.reasons}


def test_insensitive_replicas_are_planned_with_the_margin_only() -> None:
    picture = fleet(1, 1)
    assert planned(pressing(picture, 0.9, 0.0)).assignments[0].capacity_rps == pytest.approx(
        planned(picture).assignments[0].capacity_rps
    )


def test_a_job_fills_spare_share_beside_a_known_replica_but_not_beside_two() -> None:
    picture = replace(pressing(fleet(1, 1), 0.2, 0.5), jobs=(builders.job(),))
    assert {item.kind.value for item in planned(picture).assignments} == {"service", "job"}
    crowded = replace(pressing(fleet(1, 2), 0.2, 0.5), jobs=(builders.job(),))
    assert {item.kind.value for item in planned(crowded).assignments} == {"service"}


def test_what_stands_closer_than_greed_would_put_it_is_held() -> None:
    """A replica alone on its device keeps a promise that it would break with a margin for neighbours."""
    on = builders.device("n0", 0, "v100")
    limit = builders.service("s0", rate_rps_declared=5.0, slo=builders.slo(17.0))
    clock = builders.gpu_type("v100").clock_mhz_sm_max
    picture = builders.snapshot((on, builders.device("n1", 0, "v100")), [limit])
    tight = builders.assignment(
        "demo/s0#0",
        on,
        share_pct_sm=30,
        batch=2,
        capacity_rps=5.0,
        envelope=Envelope(batch_min=1, batch_max=2, clock_mhz_sm_min=clock, clock_mhz_sm_max=clock),
    )
    plan = planned(replace(picture, target=builders.target([tight])))
    assert [(item.replica, item.device, item.share_pct_sm) for item in plan.assignments] == [("demo/s0#0", on.id, 30)]
    assert plan.assignments[0].reasons[0].code is ReasonCode.KEPT_STANDING


def test_a_clock_that_stands_stays_and_newcomers_live_with_it() -> None:
    top = builders.gpu_type("v100").clock_mhz_sm_max
    on = builders.device("n0", 0, "v100")
    services = [builders.service("s0", rate_rps_declared=20.0), builders.service("s1", rate_rps_declared=20.0)]
    profiles = [builders.profile(type_name="v100", clocks=(top - 300, top))]
    standing = builders.assignment(
        "demo/s0#0",
        on,
        capacity_rps=20.0,
        batch=4,
        envelope=Envelope(batch_min=1, batch_max=4, clock_mhz_sm_min=top - 300, clock_mhz_sm_max=top - 300),
    )
    target = builders.target([standing], settings=(DeviceSetting(device=on.id, clock_mhz_sm=top - 300),))
    plan = planned(builders.snapshot((on,), services, profiles=profiles, target=target))
    assert [item.clock_mhz_sm for item in plan.settings] == [top - 300]
    assert {item.workload for item in plan.assignments} == {"demo/s0", "demo/s1"}
    assert {item.envelope.clock_mhz_sm_max for item in plan.assignments} == {top - 300}


def test_offered_gpus_are_planned_on_and_draw_nothing_before() -> None:
    cap = PowerCap(scope=PowerScope.CLUSTER, subject="lab", limit_w=700.0)
    picture = fleet(1, 3, power_caps=(cap,))
    heavy = pressing(picture, 0.9, 0.9)
    plan = planned(replace(heavy, offers=(Offer(name="more", gpu_type=GpuTypeName("v100"), count_max=40),)))
    assert not plan.unplaced
    assert sum(item.device.startswith("offer.more") for item in plan.assignments) == 2
