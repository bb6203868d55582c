"""What every published system that plans in production owes an owner who wants failure domains: to spread where there
is room, however dear, and not to give up a domain for a GPU.
"""

from __future__ import annotations

import pytest

from solvers.domain.evidence import SilentReporter
from solvers.domain.plan import Assignment, Envelope, Plan
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Affinity, AntiAffinity
from solvers.planners import registry
from tests import builders

POLICIES = ("hetsev", "inss", "morak", "mudi", "oltunes")
APART = Affinity(anti_affinity=AntiAffinity.HARD, failure_domains_min=2)
NODES = (builders.node("a", failure_domain="zone-a"), builders.node("b", failure_domain="zone-b"))
NEAR = tuple(builders.device("a", index, "t4") for index in range(3))
"""The cheap GPUs, all in one domain."""


def plan_of(name: str, picture: Snapshot) -> Plan:
    found = registry.think(registry.create(name), builders.request(picture), None, SilentReporter())
    assert found.proposal.plan is not None
    return found.proposal.plan


def domains_of(picture: Snapshot, plan: Plan) -> set[str]:
    zones = {node.id: node.failure_domain for node in picture.nodes}
    where = {device.id: zones[device.node] for device in picture.devices}
    return {where[item.device] for item in plan.assignments if item.workload == "demo/vision"}


@pytest.mark.parametrize("name", POLICIES)
def test_a_service_is_spread_where_only_another_gpu_type_is_in_the_other_domain(name: str) -> None:
    devices = (*NEAR, builders.device("b", 0, "a100"))
    service = builders.service(rate_rps_declared=20.0, affinity=APART)
    picture = builders.snapshot(devices, [service], nodes=NODES)
    plan = plan_of(name, picture)
    assert domains_of(picture, plan) == {"zone-a", "zone-b"}
    assert not plan.unplaced


def standing(*places: tuple[str, int, str, int]) -> tuple[Assignment, ...]:
    """Replicas as they serve alone, by node, index, type and share."""
    found = []
    for number, (node, index, gpu_type, share_pct) in enumerate(places):
        latency_ms = builders.latency_ms(gpu_type, 1, share_pct)
        device = builders.device(node, index, gpu_type)
        clock = builders.gpu_type(gpu_type).clock_mhz_sm_max
        item = builders.assignment(
            f"demo/vision#{number}",
            device,
            share_pct_sm=share_pct,
            batch=1,
            envelope=Envelope(batch_min=1, batch_max=1, clock_mhz_sm_min=clock, clock_mhz_sm_max=clock),
            latency_ms_planned=latency_ms,
            capacity_rps=0.5 * 1000 / latency_ms,
        )
        found.append(item)
    return tuple(found)


@pytest.mark.parametrize("name", POLICIES)
def test_fewer_replicas_do_not_leave_a_domain(name: str) -> None:
    """The rate fell, and the one that is alone in its domain serves least."""
    devices = (*NEAR, builders.device("b", 0, "t4"))
    service = builders.service(rate_rps_declared=5.0, affinity=APART)
    before = standing(("a", 0, "t4", 60), ("a", 1, "t4", 60), ("b", 0, "t4", 40))
    picture = builders.snapshot(devices, [service], nodes=NODES, target=builders.target(before))
    assert domains_of(picture, plan_of(name, picture)) == {"zone-a", "zone-b"}


@pytest.mark.parametrize("name", ["oltunes"])
def test_a_domain_that_is_there_again_is_used(name: str) -> None:
    devices = (*NEAR, builders.device("b", 0, "t4"))
    service = builders.service(rate_rps_declared=5.0, affinity=APART)
    before = standing(("a", 0, "t4", 60), ("a", 1, "t4", 60))
    picture = builders.snapshot(devices, [service], nodes=NODES, target=builders.target(before))
    plan = plan_of(name, picture)
    assert domains_of(picture, plan) == {"zone-a", "zone-b"}
    assert not plan.unplaced
