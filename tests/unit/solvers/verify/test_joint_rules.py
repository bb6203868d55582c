"""Interference between actual neighbours, variants, offers, bounds and what a plan costs by either basis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from solvers.domain.codec import digest
from solvers.domain.device import Offer, PowerCap, PowerScope, PriceKind, PriceRow
from solvers.domain.evidence import FindingCode, Severity
from solvers.domain.ids import DeviceId, GpuTypeName, ModelName, ProjectName
from solvers.domain.plan import Assignment, DeviceSetting, Plan
from solvers.domain.policy import CostBasis, Objective
from solvers.domain.profile import Interference
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Affinity, AntiAffinity, Project, WorkloadKind
from solvers.models.worth import worth_of
from solvers.verify.bounds import execution, slowdown
from solvers.verify.checks import verify
from solvers.verify.picture import Picture
from tests import builders

T4 = builders.device("a", 0, "t4")
FREE = Affinity(anti_affinity=AntiAffinity.OFF)
KNOWN = Interference(pressure=0.4, sensitivity=0.5)


def replica(name: str = "demo/vision#0", **changes: Any) -> Assignment:
    """Half a T4 at batch 8, honest about its power."""
    return builders.assignment(name, T4, **changes)


def world(*services: str, interference: Interference | None = KNOWN, **changes: Any) -> Snapshot:
    offered = [builders.service(name, affinity=FREE, rate_rps_declared=10.0) for name in services or ("vision",)]
    picture = builders.snapshot([T4], offered, **changes)
    return replace(picture, profiles=tuple(replace(each, interference=interference) for each in picture.profiles))


def plan_of(picture: Snapshot, *assignments: Assignment, **changes: Any) -> Plan:
    """The plan of these assignments, its cost right."""
    settings = changes.get("settings", ())
    movable = builders.everything_movable(picture)
    ordered = tuple(sorted(assignments, key=lambda item: item.replica))
    made = Plan(
        snapshot=digest(picture),
        parent=picture.target.generation,
        planner="hand",
        planner_version="1",
        seed=1,
        assignments=ordered,
        settings=(),
        unplaced=(),
        objective=worth_of(picture, movable, ordered, settings).objective,
    )
    return replace(made, **changes)


def codes(picture: Snapshot, plan: Plan) -> set[FindingCode]:
    return {item.code for item in verify(picture, plan) if item.severity is Severity.FATAL}


class TestSlowdown:
    def factor(self, picture: Snapshot, item: Assignment, *others: Assignment) -> float:
        seen = Picture(picture, plan_of(picture, item, *others), ())
        return slowdown(seen, item, T4)

    def test_alone_there_is_none(self) -> None:
        assert self.factor(world(), replica()) == 1.0
        assert self.factor(world(interference=None), replica()) == 1.0

    def test_it_is_the_sum_of_the_neighbours_pressures(self) -> None:
        second = replica("demo/vision#1", share_pct_sm=20)
        third = replica("demo/vision#2", share_pct_sm=25)
        expected = 1 + 0.5 * 0.4 * (0.2**0.5 + 0.25**0.5)
        assert self.factor(world(), replica(), second, third) == pytest.approx(expected)

    def test_replicas_elsewhere_do_not_press(self) -> None:
        elsewhere = replica("demo/vision#1", device=DeviceId("GPU-b-0"))
        assert self.factor(world(), replica(), elsewhere) == 1.0

    def test_where_nobody_knows_the_margin_stands_for_neighbours(self) -> None:
        picture = world(interference=None)
        assert self.factor(picture, replica(), replica("demo/vision#1")) == picture.policy.interference_margin

    def test_one_unknown_neighbour_brings_the_margin_to_both(self) -> None:
        picture = world()
        stranger = replica("demo/vision#1", model=ModelName("strange"))
        margin = picture.policy.interference_margin
        assert self.factor(picture, replica(), stranger) == margin
        assert self.factor(picture, stranger, replica()) == margin

    def test_a_training_job_brings_the_margin(self) -> None:
        job = replica("demo/train#0", kind=WorkloadKind.JOB)
        assert self.factor(world(), replica(), job) == world().policy.interference_margin

    def test_a_slice_presses_with_its_part_of_the_gpu(self) -> None:
        on = builders.mig_slice("c", 1, "a100", 2)
        picture = builders.snapshot([on], [builders.service(affinity=FREE)])
        picture = replace(picture, profiles=tuple(replace(each, interference=KNOWN) for each in picture.profiles))
        pair = [builders.assignment(f"demo/vision#{index}", on) for index in range(2)]
        seen = Picture(picture, plan_of(picture, *pair), ())
        assert slowdown(seen, pair[0], on) == pytest.approx(1 + 0.5 * 0.4 * (0.5 * 28 / 108) ** 0.5)

    def test_the_bound_is_slowed_by_it(self) -> None:
        picture = world()
        alone = execution(Picture(picture, plan_of(picture, replica()), ()), replica(), T4, 8)
        pair = plan_of(picture, replica(), replica("demo/vision#1"))
        both = execution(Picture(picture, pair, ()), replica(), T4, 8)
        assert alone is not None
        assert both is not None
        factor = 1 + 0.5 * 0.4 * 0.5**0.5
        assert (both.mean_ms, both.tail_ms) == pytest.approx((factor * alone.mean_ms, factor * alone.tail_ms))

    def test_a_promise_kept_alone_may_break_beside_a_neighbour(self) -> None:
        # Batch 8 on half a T4 takes 28 ms alone; an end-to-end promise leaves two executions.
        services = [builders.service(affinity=FREE, rate_rps_declared=10.0, slo=builders.slo(59.0))]
        picture = replace(world(), services=tuple(services))
        item = replica(capacity_rps=10.0)
        assert codes(picture, plan_of(picture, item)) == set()
        beside = plan_of(picture, item, replica("demo/vision#1", capacity_rps=0.0))
        assert codes(picture, beside) == {FindingCode.LATENCY_EXCEEDED, FindingCode.CAPACITY_SHORT}


class TestVariants:
    def variant(self, accuracy_pct: float | None, floor: float | None) -> set[FindingCode]:
        picture = world()
        service = replace(picture.services[0], alternatives=(ModelName("small"),), accuracy_pct_min=floor)
        small = builders.model("small", accuracy_pct=accuracy_pct)
        profiles = (*picture.profiles, builders.profile("small", "t4", work=0.5))
        picture = replace(picture, services=(service,), models=(*picture.models, small), profiles=profiles)
        return codes(picture, plan_of(picture, replica(model=ModelName("small"), capacity_rps=10.0)))

    @pytest.mark.parametrize(("accuracy", "floor"), [(71.0, 70.0), (70.0, 70.0), (50.0, None), (None, None)])
    def test_an_alternative_that_is_accurate_enough_is_fine(self, accuracy: float | None, floor: float | None) -> None:
        assert self.variant(accuracy, floor) == set()

    @pytest.mark.parametrize("accuracy", [69.9, None])
    def test_one_that_is_not_known_to_be_is_not(self, accuracy: float | None) -> None:
        assert self.variant(accuracy, 70.0) == {FindingCode.ACCURACY_TOO_LOW}

    def test_the_owner_chose_his_own_model_whatever_its_accuracy(self) -> None:
        picture = world()
        service = replace(picture.services[0], accuracy_pct_min=99.0)
        picture = replace(picture, services=(service,))
        assert codes(picture, plan_of(picture, replica(capacity_rps=10.0))) == set()


class TestOffers:
    OFFER = Offer(name="more", gpu_type=GpuTypeName("t4"), count_max=2)
    OFFERED = DeviceId("offer.more.000001.gpu-0")

    def test_an_offered_gpu_is_there_to_be_used(self) -> None:
        picture = replace(world(), offers=(self.OFFER,))
        item = replica(device=self.OFFERED, capacity_rps=10.0)
        assert codes(picture, plan_of(picture, item)) == set()
        assert codes(replace(picture, offers=()), plan_of(replace(picture, offers=()), item)) >= {
            FindingCode.UNKNOWN_DEVICE
        }

    def test_it_draws_nothing_until_it_is_used(self) -> None:
        cap = PowerCap(scope=PowerScope.CLUSTER, subject="lab", limit_w=35.0)
        picture = replace(world(), offers=(self.OFFER,), power_caps=(cap,))
        assert codes(picture, plan_of(picture, replica(capacity_rps=10.0))) == set()
        rented = plan_of(picture, replica(device=self.OFFERED, capacity_rps=10.0))
        assert codes(picture, rented) == {FindingCode.POWER_CAP_EXCEEDED}

    def test_its_price_is_that_of_the_offer(self) -> None:
        rows = (
            PriceRow(kind=PriceKind.ON_DEMAND, usd_per_h=0.35),
            PriceRow(kind=PriceKind.SPOT, usd_per_h=0.1, interruptions_per_h=0.05),
        )
        policy = builders.policy(cost_basis=CostBasis.SHARE, interruption_usd=2.0)
        picture = replace(
            world(policy=policy),
            gpu_types=(builders.gpu_type("t4", prices=rows),),
            offers=(replace(self.OFFER, price_kind=PriceKind.SPOT),),
        )
        plan = plan_of(picture, replica(device=self.OFFERED, capacity_rps=10.0))
        assert plan.objective.cost_usd_per_h == pytest.approx(0.5 * (0.1 + 0.05 * 2.0))
        assert codes(picture, plan) == set()


class TestCost:
    def judged(self, usd_per_h: float, *assignments: Assignment, **changes: Any) -> set[FindingCode]:
        picture = world("vision", "other", policy=builders.policy(cost_basis=CostBasis.DEVICE))
        plan = plan_of(picture, *assignments)
        plan = replace(plan, objective=Objective(cost_usd_per_h=usd_per_h), **changes)
        return {FindingCode.COST_WRONG} & codes(picture, plan)

    USD_PER_WH = 0.12 * 1.3 / 1000

    def test_a_device_costs_its_whole_price_and_its_energy_once(self) -> None:
        pair = replica(), replica("demo/other#0", power_w_planned=25.0)
        assert self.judged(0.35 + self.USD_PER_WH * (10 + 20 + 25), *pair) == set()
        assert self.judged(0.35, *pair) == {FindingCode.COST_WRONG}
        assert self.judged(0.35 + self.USD_PER_WH * (10 + 20), *pair) == {FindingCode.COST_WRONG}

    def test_no_device_draws_more_than_its_limit(self) -> None:
        pair = replica(power_w_planned=50.0), replica("demo/other#0", power_w_planned=45.0)
        assert self.judged(0.35 + self.USD_PER_WH * 70, *pair) == set()
        limited = (DeviceSetting(device=T4.id, power_limit_w=60.0),)
        assert self.judged(0.35 + self.USD_PER_WH * 60, *pair, settings=limited) == set()

    def test_a_limit_below_what_is_drawn_is_refuted(self) -> None:
        """Nobody measured what it does to latencies."""
        picture = world("vision", "other")
        pair = replica(power_w_planned=30.0), replica("demo/other#0", power_w_planned=25.0)
        found = {
            limit_w: codes(
                picture, plan_of(picture, *pair, settings=(DeviceSetting(device=T4.id, power_limit_w=limit_w),))
            )
            for limit_w in (64.0, 65.0, 70.0)
        }
        refuted = {limit_w for limit_w, listed in found.items() if FindingCode.POWER_LIMIT_TOO_LOW in listed}
        assert refuted == {64.0}

    def test_nothing_in_use_costs_nothing(self) -> None:
        assert self.judged(0.0) == set()

    def test_energy_has_the_price_of_its_hour_and_of_its_carbon(self) -> None:
        hours = tuple(float(hour) for hour in range(24))
        policy = builders.policy(
            cost_basis=CostBasis.DEVICE,
            energy_usd_per_kwh_by_hour=hours,
            carbon_g_per_kwh=500.0,
            carbon_usd_per_t=100.0,
            power_usage_effectiveness=2.0,
        )
        picture = replace(world(policy=policy), taken_at_s=5 * 3600.0 + 60)
        plan = plan_of(picture, replica(capacity_rps=10.0))
        assert plan.objective.cost_usd_per_h == pytest.approx(0.35 + 30 / 1000 * (5 + 0.05) * 2)
        assert codes(picture, plan) == set()


USED_MIB = builders.memory_mib(replica().batch)


class TestCostByMemory:
    @pytest.mark.parametrize(
        ("share_pct", "part"), [(50, USED_MIB / T4.memory_mib), (99, USED_MIB / T4.memory_mib), (100, 1.0)]
    )
    def test_it_is_the_memory_that_batches_use_and_all_of_it_for_the_whole_share(
        self, share_pct: int, part: float
    ) -> None:
        picture = world(policy=builders.policy(cost_basis=CostBasis.MEMORY))
        plan = plan_of(picture, replica(share_pct_sm=share_pct, memory_mib_limit=2048, capacity_rps=10.0))
        assert plan.objective.cost_usd_per_h == pytest.approx(0.35 * part)
        for usd, wrong in ((0.35 * part, False), (0.35 * part + 0.01, True), (0.35 * 0.5, True)):
            said = replace(plan, objective=replace(plan.objective, cost_usd_per_h=usd))
            assert (FindingCode.COST_WRONG in codes(picture, said)) is wrong


class TestBound:
    def test_a_bound_up_to_the_cost_is_possible(self) -> None:
        picture = world()
        plan = plan_of(picture, replica(capacity_rps=10.0))
        cost = plan.objective.cost_usd_per_h
        assert codes(picture, replace(plan, bound_usd_per_h=cost)) == set()
        assert codes(picture, replace(plan, bound_usd_per_h=-1.0)) == set()
        assert codes(picture, replace(plan, bound_usd_per_h=cost + 0.01)) == {FindingCode.BOUND_WRONG}


def test_a_budget_is_about_the_bill_by_share_whatever_the_plan_is_said_to_cost() -> None:
    picture = world(policy=builders.policy(cost_basis=CostBasis.DEVICE))
    service = replace(picture.services[0], budget_usd_per_h=0.18)
    picture = replace(picture, services=(service,), projects=(Project(name=ProjectName("demo"), quota_gpus=0.5),))
    assert codes(picture, plan_of(picture, replica(capacity_rps=10.0))) == set()
    dearer = replace(picture, services=(replace(service, budget_usd_per_h=0.17),))
    assert codes(dearer, plan_of(dearer, replica(capacity_rps=10.0))) == {FindingCode.BUDGET_EXCEEDED}
