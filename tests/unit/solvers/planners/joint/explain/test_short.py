"""Ways out for who is short: each kind on a fleet so small that the answer is known, and shown to be one by planning
anew with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from solvers.domain.change import Target
from solvers.domain.device import PowerCap, PowerScope
from solvers.domain.evidence import Relaxation, Resource, SilentReporter
from solvers.domain.ids import Generation, GpuTypeName, WorkloadId
from solvers.domain.plan import Plan, Unplaced
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import SLO_MAX, Project, Service, Slo, SloKind, WorkloadKind
from solvers.planners.base import Budget
from solvers.planners.joint.explain.explaining import relaxations_of
from solvers.planners.joint.planner import Joint
from solvers.planners.joint.reading.formulation import read
from tests import builders, chats

BIG = builders.service("big", rate_rps_declared=400.0)
"""One T4 alone serves about 300 of it."""


ALONE = builders.policy(interference_margin=1.0)
"""Neighbours are no matter here, so that a device serves what it serves."""


def fleet(devices: int, services: Sequence[Service], **changes: Any) -> Snapshot:
    changes.setdefault("policy", ALONE)
    return builders.snapshot([builders.device("a", index, "t4") for index in range(devices)], services, **changes)


def planned(picture: Snapshot) -> tuple[Plan, tuple[Relaxation, ...]]:
    request = replace(builders.request(picture), budget=Budget(deadline_s=3600.0, work_units=60))
    proposal = Joint().propose(request, b"", SilentReporter())
    assert proposal.plan is not None
    assert proposal.insight is not None
    return proposal.plan, proposal.insight.relaxations


def short_of(picture: Snapshot, standing: Plan | None = None) -> set[str]:
    """Who is short in a plan made anew; with a plan standing, which may be kept, as ways out have it."""
    if standing is not None:
        target = Target(generation=Generation(1), assignments=standing.assignments, settings=standing.settings)
        picture = replace(picture, target=target, taken_at_s=1_000_150.0)
    plan, _ = planned(picture)
    return {item.workload for item in plan.unplaced}


def ways(found: Sequence[Relaxation], workload: str | None) -> dict[int, list[tuple[Resource, str, float, float]]]:
    told: dict[int, list[tuple[Resource, str, float, float]]] = {}
    for item in found:
        if item.workload == workload:
            told.setdefault(item.way, []).append((item.resource, item.subject, item.value_now, item.value_needed))
    return told


def test_who_is_served_needs_nothing() -> None:
    _, found = planned(fleet(2, [BIG]))
    assert found == ()


def test_one_gpu_short() -> None:
    plan, found = planned(fleet(1, [BIG]))
    assert [item.workload for item in plan.unplaced] == ["demo/big"]
    assert ways(found, "demo/big")[1] == [(Resource.GPU, "t4", 1.0, 2.0)]
    assert not short_of(fleet(2, [BIG]))
    ((resource, _, now, needed),) = ways(found, "demo/big")[2]
    # A longer promise, with larger batches, is enough too.
    assert (resource, now) == (Resource.LATENCY_MS, 60.0)
    assert not short_of(fleet(1, [replace(BIG, slo=builders.slo(needed))]))


def test_several_gpus_short() -> None:
    _, found = planned(fleet(1, [replace(BIG, rate_rps_declared=1000.0)]))
    (way,) = ways(found, "demo/big").values()
    (_, _, now, needed) = way[0]
    assert now == 1
    assert not short_of(fleet(int(needed), [replace(BIG, rate_rps_declared=1000.0)]))
    assert short_of(fleet(int(needed) - 1, [replace(BIG, rate_rps_declared=1000.0)]))


def test_a_promise_that_no_configuration_keeps() -> None:
    tight = builders.service("tight", slo=builders.slo(9.0), rate_rps_declared=5.0)
    _, found = planned(fleet(1, [tight]))
    ((resource, subject, now, needed),) = ways(found, "demo/tight")[1]
    assert (resource, subject, now) == (Resource.LATENCY_MS, "demo/tight", 9.0)
    # The least that the law allows is a batch of one on a whole T4, twice for waiting, with hardly any load.
    assert 9.0 < needed < 10.0
    assert not short_of(fleet(1, [replace(tight, slo=builders.slo(needed))]))
    assert short_of(fleet(1, [replace(tight, slo=builders.slo(needed * 0.99))]))


def test_a_promise_that_wants_more_gpus_even_when_longer() -> None:
    tight = builders.service("tight", slo=builders.slo(3.0))
    _, found = planned(fleet(1, [replace(BIG, priority=200), tight]))
    resources = [item[0] for item in ways(found, "demo/tight")[1]]
    assert resources == [Resource.LATENCY_MS, Resource.GPU]
    everybody = {(item[0], item[1]): item[3] for item in ways(found, None)[0]}
    promise = everybody[Resource.LATENCY_MS, "demo/tight"]
    gpus = int(everybody[Resource.GPU, "t4"])
    helped = replace(tight, slo=builders.slo(promise))
    assert not short_of(fleet(gpus, [replace(BIG, priority=200), helped]))


def test_a_quota() -> None:
    def with_quota(gpus: float) -> Snapshot:
        return fleet(3, [BIG], projects=(Project(name=BIG.project, quota_gpus=gpus),))

    plan, found = planned(with_quota(0.5))
    ((resource, subject, now, needed),) = ways(found, "demo/big")[1]
    assert (resource, subject, now) == (Resource.QUOTA_GPU, "demo", 0.5)
    assert 0.5 < needed <= 1.6
    assert not short_of(with_quota(needed), plan)


def test_a_budget() -> None:
    plan, found = planned(fleet(3, [replace(BIG, budget_usd_per_h=0.3)]))
    ((resource, subject, now, needed),) = ways(found, "demo/big")[1]
    assert (resource, subject, now) == (Resource.BUDGET_USD, "demo/big", 0.3)
    assert not short_of(fleet(3, [replace(BIG, budget_usd_per_h=needed)]), plan)


def test_a_bound_on_replicas() -> None:
    _, found = planned(fleet(3, [replace(BIG, replicas_max=1)]))
    assert ways(found, "demo/big")[1] == [(Resource.REPLICA, "demo/big", 1.0, 2.0)]
    assert not short_of(fleet(3, [replace(BIG, replicas_max=2)]))


def test_a_power_cap() -> None:
    def with_cap(limit_w: float) -> Snapshot:
        return fleet(3, [BIG], power_caps=(PowerCap(scope=PowerScope.CLUSTER, subject="lab", limit_w=limit_w),))

    plan, found = planned(with_cap(60.0))
    capped = [way for way in ways(found, "demo/big").values() if way[0][0] is Resource.POWER_W]
    ((_, subject, now, needed),) = capped[0]
    assert (subject, now) == ("cluster/lab", 60.0)
    assert needed > 60.0
    assert not short_of(with_cap(needed), plan)


def test_types_that_are_not_allowed() -> None:
    picky = replace(BIG, gpu_types_allowed=(GpuTypeName("t4"),), rate_rps_declared=900.0)
    _, found = planned(builders.lab([picky]))
    opened = [way for way in ways(found, "demo/big").values() if way[0][0] is Resource.GPU_TYPE]
    ((_, subject, now, needed),) = opened[0]
    assert (now, needed) == (0.0, 1.0)
    wider = replace(picky, gpu_types_allowed=(GpuTypeName("t4"), GpuTypeName(subject)))
    assert not short_of(builders.lab([wider]))


def test_memory_that_no_device_has() -> None:
    small = builders.gpu_type("t4", memory_mib=1400)
    device = builders.device("a", 0, "t4", memory_mib=1400)
    _, found = planned(builders.snapshot([device], [builders.service()], gpu_types=(small,)))
    ((resource, subject, now, needed),) = ways(found, "demo/vision")[1]
    assert (resource, subject) == (Resource.MEMORY_GIB, "t4")
    assert now < needed < 2.0


def test_two_things_at_once_where_neither_is_enough() -> None:
    both = replace(BIG, replicas_max=1, rate_rps_declared=700.0)
    _, found = planned(fleet(1, [both]))
    (way,) = ways(found, "demo/big").values()
    assert [item[0] for item in way] == [Resource.GPU, Resource.REPLICA]
    gpus, replicas = (int(item[3]) for item in way)
    assert not short_of(fleet(gpus, [replace(both, replicas_max=replicas)]))
    assert short_of(fleet(gpus, [both]))
    assert short_of(fleet(1, [replace(both, replicas_max=replicas)]))


def test_all_who_are_short_together_need_the_sum() -> None:
    one, two = replace(BIG, priority=200), builders.service("low", priority=10, rate_rps_declared=300.0)
    plan, found = planned(fleet(1, [one, two]))
    assert {item.workload for item in plan.unplaced} == {"demo/big", "demo/low"}
    assert ways(found, None) == {0: [(Resource.GPU, "t4", 1.0, 3.0)]}
    assert not short_of(fleet(3, [one, two]))


def test_who_has_a_lower_priority_is_named_as_who_could_yield() -> None:
    low = builders.service("low", priority=10, rate_rps_declared=250.0)
    urgent = builders.service("urgent", priority=900, rate_rps_declared=250.0)
    plan, _ = planned(fleet(1, [low]))
    gap = Unplaced(kind=WorkloadKind.SERVICE, workload=WorkloadId(urgent.id), rate_rps_short=250.0, reasons=())
    full = fleet(1, [low, urgent])
    found = relaxations_of(read(full, builders.everything_movable(full)), replace(plan, unplaced=(gap,)))
    yields = [item for item in found if item.resource is Resource.RATE_RPS]
    assert [(item.subject, item.value_now, item.value_needed) for item in yields] == [("demo/low", 250.0, 0.0)]
    equal = fleet(1, [replace(low, priority=900), urgent])
    found = relaxations_of(read(equal, builders.everything_movable(equal)), replace(plan, unplaced=(gap,)))
    assert {item.resource for item in found} == {Resource.GPU}


def test_a_service_that_promises_tokens_wants_whole_gpus() -> None:
    def with_gpus(devices: int) -> Snapshot:
        gpus = tuple(builders.device("a", index, "a100") for index in range(devices))
        return builders.snapshot(
            gpus,
            [chats.service(rate_rps_declared=20.0)],
            models=(chats.model(),),
            token_profiles=(chats.profile("a100"),),
        )

    plan, found = planned(with_gpus(1))
    assert plan.unplaced
    ((resource, subject, _, needed),) = ways(found, "demo/chat")[1]
    assert (resource, subject) == (Resource.GPU, "a100")
    assert not short_of(with_gpus(int(needed)))
    assert short_of(with_gpus(int(needed) - 1))


@pytest.mark.parametrize("slo", [Slo(latency_ms=SLO_MAX), Slo(kind=SloKind.DEADLINE, deadline_s=SLO_MAX)])
def test_the_longest_promise_that_may_be_asked_is_explained(slo: Slo) -> None:
    """Nothing can be longer."""
    plan, _ = planned(fleet(1, [replace(BIG, slo=slo, rate_rps_declared=9_000.0)]))
    assert [item.workload for item in plan.unplaced] == ["demo/big"]
