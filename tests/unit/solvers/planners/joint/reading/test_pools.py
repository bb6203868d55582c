"""Pools and the power domains over them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from solvers.domain.device import Device, PowerCap, PowerScope
from solvers.domain.ids import ProjectName, WorkloadId
from solvers.domain.snapshot import Snapshot
from solvers.planners.joint.reading.pools import Pools, pools_of
from solvers.problems.fleet import Seat, open_fleet
from tests import builders


def racked(**changes: Any) -> Snapshot:
    """Four nodes of two T4 each, two racks."""
    devices = [builders.device(name, index, "t4") for name in "abcd" for index in (0, 1)]
    nodes = [
        builders.node(name, rack="one" if name in "ab" else "two", failure_domain=f"zone-{name}") for name in "abcd"
    ]
    return builders.snapshot(devices, nodes=nodes, **changes)


def cap(scope: PowerScope, subject: str, limit_w: float) -> PowerCap:
    return PowerCap(scope=scope, subject=subject, limit_w=limit_w)


def of(picture: Snapshot, held: tuple[Device, ...] = (), *, by_failure_domain: bool = False) -> Pools:
    fleet = open_fleet(picture, {})
    for item in held:
        fleet.put(
            Seat(
                workload=WorkloadId("demo/fixed"),
                project=ProjectName("demo"),
                device=fleet.index[item.id],
                share_pct=50,
                memory_mib=1000,
                power_w=20.0,
            )
        )
    return pools_of(picture, fleet, {item.id for item in held}, by_failure_domain=by_failure_domain)


def test_like_nodes_with_caps_are_one_pool_and_one_cap() -> None:
    made = of(racked(power_caps=tuple(cap(PowerScope.NODE, name, 100.0) for name in "abcd")))
    assert [pool.devices for pool in made.pools] == [8]
    assert [(item.limit_w, item.devices) for item in made.caps] == [(400.0, (8,))]


def test_a_node_with_half_the_devices_and_watts_is_alike() -> None:
    picture = racked(power_caps=(cap(PowerScope.NODE, "a", 100.0), cap(PowerScope.NODE, "b", 50.0)))
    fewer = tuple(item for item in picture.devices if item.id != "GPU-b-1")
    made = of(replace(picture, devices=fewer))
    assert sorted(pool.devices for pool in made.pools) == [3, 4]
    assert [item.limit_w for item in made.caps] == [150.0]


def test_other_watts_are_other_pools() -> None:
    made = of(racked(power_caps=(cap(PowerScope.NODE, "a", 100.0), cap(PowerScope.NODE, "b", 90.0))))
    assert sorted(pool.devices for pool in made.pools) == [2, 2, 4]
    for item in made.caps:
        assert [count for count in item.devices if count] == [2]


def test_racks_with_a_cap_have_pools_of_their_own_and_the_cluster_covers_all() -> None:
    caps = (
        cap(PowerScope.RACK, "one", 200.0),
        cap(PowerScope.RACK, "two", 180.0),
        cap(PowerScope.CLUSTER, "lab", 300.0),
    )
    made = of(racked(power_caps=caps))
    assert [pool.devices for pool in made.pools] == [4, 4]
    assert sorted((item.limit_w, sum(item.devices)) for item in made.caps) == [(180.0, 4), (200.0, 4), (300.0, 8)]


def test_caps_that_cannot_bind_are_left_out() -> None:
    made = of(racked(power_caps=(cap(PowerScope.RACK, "one", 281.0), cap(PowerScope.NODE, "a", 140.0))))
    assert made.caps == ()
    assert len(made.pools) == 1


def test_what_others_draw_is_taken_off() -> None:
    picture = racked(power_caps=(cap(PowerScope.RACK, "one", 200.0),))
    made = of(picture, held=(builders.device("a", 0, "t4"),))
    assert sum(pool.devices for pool in made.pools) == 7
    assert [item.limit_w for item in made.caps] == [pytest.approx(200.0 - 30.0)]


def test_a_cap_on_a_device_is_its_limit_even_below_the_boards_lowest() -> None:
    caps = (cap(PowerScope.DEVICE, "GPU-a-0", 65.0), cap(PowerScope.DEVICE, "GPU-b-0", 40.0))
    made = of(racked(power_caps=caps))
    assert sorted((pool.devices, pool.limit_w) for pool in made.pools) == [(1, 40.0), (1, 65.0), (6, 70.0)]
    assert made.caps == ()


def test_failure_domains_count_only_when_asked_for() -> None:
    assert len(of(racked()).pools) == 1
    made = of(racked(), by_failure_domain=True)
    assert [pool.devices for pool in made.pools] == [2, 2, 2, 2]
    assert sorted(pool.failure_domain for pool in made.pools) == [0, 1, 2, 3]


def test_slices_are_pools_with_their_part_of_everything() -> None:
    whole = builders.device("m", 0, "a100")
    slices = [builders.mig_slice("m", index + 1, "a100", sevenths) for index, sevenths in enumerate((3, 3, 1))]
    made = of(builders.snapshot([whole, *slices]))
    parts = sorted((round(pool.gpu_part, 3), pool.devices) for pool in made.pools)
    assert parts == [(0.125, 1), (0.375, 2)]
    assert all(pool.limit_w == pytest.approx(400.0 * pool.gpu_part) for pool in made.pools)
