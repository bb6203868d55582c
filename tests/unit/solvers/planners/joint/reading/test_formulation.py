"""From snapshot to joint problem: what is in it, what stays out, and why."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from solvers.domain.change import Target
from solvers.domain.device import ColocationClass, DeviceMode, Offer, PowerCap, PowerScope, PriceKind, PriceRow, Taint
from solvers.domain.evidence import ReasonCode
from solvers.domain.ids import GpuTypeName, ModelName, ProjectName, WorkloadId
from solvers.domain.plan import DeviceSetting
from solvers.domain.policy import CostBasis
from solvers.domain.profile import Interference
from solvers.domain.snapshot import JobStatus, Snapshot
from solvers.domain.workload import Affinity, AntiAffinity, Project, Slo, SloKind, SloScope
from solvers.planners.joint.reading.formulation import Reading, read
from solvers.problems.patterns import Pattern
from tests import builders
from tests.judgement import judge

VISION = WorkloadId("demo/vision")


def of(picture: Snapshot, *movable: str) -> Reading:
    return read(picture, tuple(WorkloadId(item) for item in movable) or builders.everything_movable(picture))


def pool_of(reading: Reading, gpu_type: str) -> int:
    return next(index for index, pool in enumerate(reading.problem.pools) if pool.gpu_type == gpu_type)


def test_a_plain_fleet_has_one_pool_per_type_and_one_kind_each() -> None:
    reading = of(builders.lab([builders.service()]))
    problem = reading.problem
    assert [(pool.gpu_type, pool.devices) for pool in problem.pools] == [("t4", 2), ("l4", 1), ("v100", 2), ("a100", 1)]
    assert [len(devices) for devices in reading.pool_devices] == [2, 1, 2, 1]
    assert problem.kind_pool.tolist() == [0, 1, 2, 3]
    assert problem.kind_clock_mhz.tolist() == [
        builders.gpu_type(pool.gpu_type).clock_mhz_sm_max for pool in problem.pools
    ]
    assert problem.allowed.all()
    assert reading.refusals == {}


def test_a_workload_carries_its_promise_and_rules() -> None:
    affinity = Affinity(anti_affinity=AntiAffinity.SOFT, failure_domains_min=2)
    service = builders.service(affinity=affinity, budget_usd_per_h=3.0, replicas_max=5)
    execution = builders.service("bare", slo=builders.slo(40.0, scope=SloScope.EXECUTION))
    policy = builders.policy(demand_headroom=1.5)
    problem = of(builders.lab([service, execution], policy=policy)).problem
    work = {item.id: item for item in problem.workloads}
    vision, bare = work[VISION], work[WorkloadId("demo/bare")]
    assert (vision.rate_rps, vision.rate_least_rps) == (150.0, 100.0)
    assert (vision.limit_ms, vision.burst, vision.end_to_end) == (60.0, pytest.approx(math.log(100)), True)
    assert (vision.replicas_min, vision.replicas_max, vision.domains_min) == (2, 5, 2)
    assert vision.per_device_max == policy.replicas_per_device_max
    assert vision.budget_usd_per_h == 3.0
    assert (bare.limit_ms, bare.burst, bare.end_to_end, bare.per_device_max) == (40.0, 0.0, False, 1)


def test_unserved_counts_by_priority_and_far_above_cost() -> None:
    services = [builders.service("low", priority=10), builders.service("high", priority=500)]
    problem = of(builders.lab(services)).problem
    usd = {item.id: item.unserved_usd for item in problem.workloads}
    assert usd[WorkloadId("demo/high")] > 10 * usd[WorkloadId("demo/low")]
    assert min(usd.values()) > 10 * max(pool.usd_per_h for pool in problem.pools)


def test_types_taints_and_colocation_are_read_per_pool() -> None:
    taint = Taint(key="gpu")
    devices = (
        builders.device("a", 0, "t4", taints=(taint,)),
        builders.device("a", 1, "t4"),
        builders.device("b", 0, "v100", colocation=ColocationClass.TRAINING),
    )
    services = [
        builders.service("bold", tolerations=(taint,)),
        builders.service("shy"),
        builders.service("picky", gpu_types_allowed=(GpuTypeName("v100"),)),
    ]
    reading = of(builders.snapshot(devices, services))
    problem = reading.problem
    assert len(problem.pools) == 3
    column = {problem.workloads[item.workload].id: index for index, item in enumerate(problem.variants)}
    tainted = next(row for row, ids in enumerate(reading.pool_devices) if devices[0].id in ids)
    assert problem.allowed[tainted, column[WorkloadId("demo/bold")]]
    assert not problem.allowed[tainted, column[WorkloadId("demo/shy")]]
    assert WorkloadId("demo/picky") not in column
    codes = {key: reason.code for key, reason in reading.refusals.items()}
    assert codes[WorkloadId("demo/picky"), GpuTypeName("t4")] is ReasonCode.TYPE_NOT_ALLOWED
    assert codes[WorkloadId("demo/picky"), GpuTypeName("v100")] is ReasonCode.ANTI_AFFINITY


def test_what_cannot_serve_is_refused_with_the_nearest_miss() -> None:
    services = [
        builders.service("fast", slo=builders.slo(0.5)),
        builders.service("unknown", model=ModelName("nobody")),
        builders.service("words", slo=Slo(kind=SloKind.TOKENS, first_token_ms=100.0, inter_token_ms=10.0)),
        builders.service(),
    ]
    small = builders.device("a", 0, "t4", memory_mib=1024)
    profiles = [builders.profile(type_name=name) for name in ("t4", "v100")]
    picture = builders.snapshot((small, builders.device("b", 0, "v100")), services, profiles=profiles)
    reading = of(picture)
    assert [item.id for item in reading.problem.workloads] == [VISION]
    codes = {(key[0].partition("/")[2], key[1]): reason for key, reason in reading.refusals.items()}
    assert codes["fast", GpuTypeName("v100")].code is ReasonCode.SLO_UNREACHABLE
    assert codes["unknown", GpuTypeName("v100")].code is ReasonCode.NO_PROFILE
    assert codes["vision", GpuTypeName("t4")].code is ReasonCode.NO_MEMORY_LEFT
    assert {fact.name: fact.value for fact in codes["fast", GpuTypeName("v100")].facts}["latency_ms_limit"] == 0.5
    assert ("words", GpuTypeName("t4")) in codes


def test_alternatives_are_variants_when_accurate_enough() -> None:
    service = builders.service(
        alternatives=(ModelName("small"), ModelName("crude"), ModelName("untold")), accuracy_pct_min=70.0
    )
    picture = builders.lab([service])
    models = [
        *picture.models,
        builders.model("small", accuracy_pct=75.0, launch_s=3.0),
        builders.model("crude", accuracy_pct=60.0),
        builders.model("untold"),
    ]
    profiles = [*picture.profiles, *(builders.profile(name, "t4") for name in ("small", "crude", "untold"))]
    reading = of(replace(picture, models=tuple(models), profiles=tuple(profiles)))
    assert [(item.model, item.workload) for item in reading.problem.variants] == [("resnet50", 0), ("small", 0)]
    assert reading.problem.variants[1].launch_s == 3.0
    refused = reading.needs[0].alternatives_refused
    assert {(item.subject, item.code) for item in refused} == {
        ("crude", ReasonCode.ACCURACY_TOO_LOW),
        ("untold", ReasonCode.ACCURACY_TOO_LOW),
    }


def test_a_job_is_worth_its_value_for_all_its_progress() -> None:
    job = builders.job(share_pct_sm_min=20, share_pct_sm_max=60, value_usd_per_h=2.5)
    reading = of(builders.lab([], jobs=(job,)))
    (work,) = reading.problem.workloads
    # On 60 % of an A100 it does 1.44 of what a whole V100 does, which is its reference.
    assert (work.unserved_usd, work.replicas_max, work.replicas_min) == (pytest.approx(2.5 * 1.44), 1, 0)
    v100, a100 = (pool_of(reading, name) for name in ("v100", "a100"))
    half = judge(reading.problem, v100, (0,), (40,))
    assert half is not None
    assert half.capacity_rps == pytest.approx((10.0 * 0.4,))
    fastest = judge(reading.problem, a100, (0,), (60,))
    assert fastest is not None
    assert fastest.capacity_rps[0] == pytest.approx(work.rate_rps)
    assert judge(reading.problem, v100, (0,), (10,)) is None
    assert judge(reading.problem, v100, (0,), (80,)) is None


def test_devices_with_pinned_replicas_stay_out_and_what_stands_beside_them_counts() -> None:
    one, two = builders.device("a", 0, "v100"), builders.device("b", 0, "v100")
    services = [builders.service("fixed"), builders.service(replicas_max=3, rate_rps_declared=900.0)]
    standing = builders.target(
        [
            builders.assignment("demo/fixed#0", one, share_pct_sm=30, batch=4),
            builders.assignment("demo/vision#0", one, share_pct_sm=60),
            builders.assignment("demo/vision#1", two, share_pct_sm=60),
        ]
    )
    reading = of(builders.snapshot((one, two), services, target=standing), "demo/vision")
    assert reading.pool_devices[0] == (two.id,)
    assert [pool.rest for pool in reading.problem.pools] == [False, True]
    assert [item.replica for item in reading.pinned] == ["demo/fixed#0"]
    assert [item.replica for item in reading.kept] == ["demo/vision#0"]
    (work,) = reading.problem.workloads
    assert 0 < work.rate_rps < 900.0
    assert work.replicas_max == 2
    assert [item.assignment.replica for item in reading.standing[two.id]] == ["demo/vision#1"]
    ((stands, devices),) = reading.stands.pairs
    assert (devices, stands.shares_pct) == (1, (60,))


def test_a_job_evicted_too_often_stays_where_it_is() -> None:
    on = builders.device("a", 0, "v100")
    job = builders.job(evictions_max=2)
    standing = builders.target([builders.assignment("demo/train#0", on, share_pct_sm=50, memory_mib_limit=4032)])
    picture = builders.snapshot((on, builders.device("b", 0, "v100")), jobs=(job,), target=standing)
    statuses = (JobStatus(workload=WorkloadId(job.id), done=1, evictions=2),)
    assert len(of(picture).problem.workloads) == 1
    reading = of(replace(picture, job_statuses=statuses))
    assert [item.workload for item in reading.pinned] == [job.id]
    assert reading.problem.workloads == ()
    assert reading.pool_devices[0] == ("GPU-b-0",)
    assert [pool.rest for pool in reading.problem.pools] == [False, True]
    capped = PowerCap(scope=PowerScope.DEVICE, subject=on.id, limit_w=30.0)
    moved = of(replace(picture, job_statuses=statuses, power_caps=(capped,)))
    assert moved.pinned == ()
    assert len(moved.problem.workloads) == 1


def test_what_stands_beside_pinned_replicas_stays_only_by_todays_rules() -> None:
    on = builders.device("a", 0, "v100")
    standing = builders.target(
        [
            builders.assignment("demo/fixed#0", on, share_pct_sm=30, batch=4),
            builders.assignment("demo/vision#0", on, share_pct_sm=60),
        ]
    )

    def kept(**changes: Any) -> tuple[str, ...]:
        services = [builders.service("fixed"), builders.service(**changes)]
        devices = (on, builders.device("b", 0, "v100"))
        return tuple(item.replica for item in of(builders.snapshot(devices, services, target=standing), VISION).kept)

    assert kept() == ("demo/vision#0",)
    assert kept(budget_usd_per_h=0.5) == ()
    assert kept(gpu_types_allowed=(GpuTypeName("t4"),)) == ()
    assert kept(affinity=Affinity(dedicated=True)) == ()
    assert kept(slo=builders.slo(5.0)) == ()


def test_what_stays_claims_no_more_than_the_promise_it_is_shown_to_keep() -> None:
    """It may have been planned before the promise was tightened."""
    on = builders.device("a", 0, "v100")
    fixed = builders.assignment("demo/fixed#0", on, share_pct_sm=30, batch=4)

    def claimed(planned_ms: float) -> float | None:
        stays = builders.assignment("demo/vision#0", on, share_pct_sm=60, latency_ms_planned=planned_ms)
        services = [builders.service("fixed"), builders.service(slo=builders.slo(60.0))]
        picture = builders.snapshot((on,), services, target=builders.target([fixed, stays]))
        (item,) = of(picture, VISION).kept
        return item.latency_ms_planned

    assert (claimed(45.0), claimed(90.0)) == (45.0, 60.0)


def test_offers_are_pools_of_their_own_and_prices_carry_interruptions() -> None:
    spot = PriceRow(kind=PriceKind.SPOT, usd_per_h=0.5, interruptions_per_h=0.1)
    types = (builders.gpu_type("v100", prices=(*builders.gpu_type("v100").prices, spot)),)
    offer = Offer(name="more", gpu_type=GpuTypeName("v100"), count_max=7, price_kind=PriceKind.SPOT)
    picture = builders.snapshot((builders.device("a", 0, "v100"),), [builders.service()], gpu_types=types)
    picture = replace(picture, offers=(offer,), policy=builders.policy(interruption_usd=2.0))
    reading = of(picture)
    assert sorted((pool.devices, pool.usd_per_h) for pool in reading.problem.pools) == [
        (1, 1.15),
        (7, pytest.approx(0.7)),
    ]


def test_costs_quotas_and_steps_follow_the_policy() -> None:
    policy = builders.policy(cost_basis=CostBasis.DEVICE, share_step_pct=10)
    projects = (Project(name=ProjectName("demo"), quota_gpus=2.5),)
    problem = of(builders.lab([builders.service()], policy=policy, projects=projects)).problem
    assert (problem.by_share, problem.share_step_pct) == (False, 10)
    assert problem.quotas == ((ProjectName("demo"), 2.5),)
    assert problem.usd_per_wh == pytest.approx(0.12 * 1.3 / 1000)


def test_known_interference_replaces_the_margin_unless_somebody_is_unknown() -> None:
    known = Interference(pressure=0.3, sensitivity=0.5)
    picture = builders.lab([builders.service(), builders.service("other", model=ModelName("other"))])
    told = tuple(replace(item, interference=known) for item in picture.profiles)
    assert (of(replace(picture, profiles=told)).problem.crowd == 1.0).all()
    assert (of(picture).problem.crowd == picture.policy.interference_margin).all()


def half_known(picture: Snapshot) -> Snapshot:
    """Of one network alone it is known how it presses."""
    known = Interference(pressure=0.1, sensitivity=0.2)
    told = tuple(replace(item, interference=known) if item.model == "resnet50" else item for item in picture.profiles)
    return replace(picture, profiles=told)


def rate(pattern: Pattern | None, variant: int) -> float:
    assert pattern is not None
    return pattern.capacity_rps[pattern.variants.index(variant)]


def test_the_margin_is_borne_only_beside_those_nobody_knows_of() -> None:
    services = [builders.service("one"), builders.service("two"), builders.service("odd", model=ModelName("other"))]
    picture = half_known(builders.snapshot([builders.device("a", 0, "v100")], services))
    problem = of(picture).problem
    known, everybody = problem.like(0, int(problem.kind_clock_mhz[0]))
    assert problem.kinds == 2
    by_id = {work.id: number for number, work in enumerate(problem.workloads)}
    odd, one, two = (by_id[WorkloadId(f"demo/{name}")] for name in ("odd", "one", "two"))
    assert judge(problem, known, (odd,), (40,)) is None
    alone = [judge(problem, kind, (one,), (40,)) for kind in (known, everybody)]
    apart, careful = (judge(problem, kind, (one, two), (40, 40)) for kind in (known, everybody))
    beside = judge(problem, everybody, (one, odd), (40, 40))
    assert rate(alone[0], one) == rate(alone[1], one)
    assert rate(alone[0], one) > rate(apart, one) > rate(careful, one) > 0
    assert rate(alone[0], one) / rate(beside, one) == pytest.approx(picture.policy.interference_margin, rel=0.3)


def test_what_stands_is_read_without_the_margin_where_all_are_known() -> None:
    services = [builders.service("one"), builders.service("two"), builders.service("odd", model=ModelName("other"))]
    device = builders.device("a", 0, "v100")
    stands = [
        builders.assignment(f"demo/{name}#0", device, share_pct_sm=40, batch=4, model=ModelName(model))
        for name, model in (("one", "resnet50"), ("two", "resnet50"))
    ]
    picture = half_known(builders.snapshot([device], services))
    (together,) = of(replace(picture, target=builders.target(stands))).stands.patterns
    assert together.kind == 0
    odd = builders.assignment("demo/odd#0", device, share_pct_sm=20, batch=1, model=ModelName("other"))
    (careful,) = of(replace(picture, target=builders.target([*stands, odd]))).stands.patterns
    assert careful.kind == 1


def test_dedicated_devices_are_taken_whole() -> None:
    alone = builders.service("alone", affinity=Affinity(dedicated=True))
    devices = (builders.device("a", 0, "v100"), builders.device("b", 0, "v100", mode=DeviceMode.DEDICATED))
    problem = of(builders.snapshot(devices, [alone, builders.service()])).problem
    by_id = {work.id: index for index, work in enumerate(problem.workloads)}
    (column,) = (index for index, item in enumerate(problem.variants) if item.workload == by_id[WorkloadId(alone.id)])
    shared = next(row for row, pool in enumerate(problem.pools) if pool.clients > 1)
    single = next(row for row, pool in enumerate(problem.pools) if pool.clients == 1)
    kinds = {int(pool): kind for kind, pool in enumerate(problem.kind_pool)}
    assert judge(problem, kinds[shared], (column,), (100,)) is not None
    assert judge(problem, kinds[shared], (column,), (80,)) is None
    assert judge(problem, kinds[single], (1 - column,), (80,)) is None
    assert judge(problem, kinds[single], (1 - column,), (100,)) is not None


def test_lower_clocks_that_were_measured_are_kinds() -> None:
    top = builders.gpu_type("v100").clock_mhz_sm_max
    profiles = [builders.profile(type_name="v100", clocks=(top - 300, top))]
    picture = builders.snapshot((builders.device("a", 0, "v100"),), [builders.service()], profiles=profiles)
    setting = DeviceSetting(device=picture.devices[0].id, clock_mhz_sm=top - 300)
    slow = builders.assignment("demo/vision#0", picture.devices[0], share_pct_sm=80, batch=4)
    reading = of(replace(picture, target=builders.target([slow], settings=(setting,))))
    assert reading.problem.kind_clock_mhz.tolist() == [top - 300, top]
    patterns = [judge(reading.problem, kind, (0,), (80,)) for kind in (0, 1)]
    rates = [0.0 if item is None else item.capacity_rps[0] for item in patterns]
    assert 0 < rates[0] < rates[1]
    assert [item.kind for item in reading.stands.patterns] == [0]


def test_an_empty_world_is_an_empty_problem() -> None:
    nothing = of(builders.lab([]))
    assert nothing.problem.workloads == ()
    assert nothing.problem.mean_ms.shape[1] == 0
    no_devices = replace(builders.lab([builders.service()]), devices=(), target=Target())
    reading = of(no_devices)
    assert reading.problem.pools == ()
    assert {reason.code for reason in reading.refusals.values()} == {ReasonCode.NO_DEVICE_OF_TYPE}
    assert len(reading.problem.kind_pool) == 0


def test_reading_does_not_depend_on_the_order_of_devices_and_services() -> None:
    services = [builders.service("one"), builders.service("two", rate_rps_declared=30.0)]
    caps = (PowerCap(scope=PowerScope.NODE, subject="b", limit_w=200.0),)
    picture = builders.lab(services, power_caps=caps)
    turned = replace(picture, devices=picture.devices[::-1], services=picture.services[::-1])
    one, other = of(picture), of(turned)
    assert one.pool_devices == other.pool_devices
    assert one.problem.workloads == other.problem.workloads
    assert one.problem.caps == other.problem.caps
    assert np.array_equal(one.problem.mean_ms, other.problem.mean_ms)
