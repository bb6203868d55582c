"""The objective of what stands, by today's snapshot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.domain.device import DeviceMode, Offer, PriceKind, PriceRow
from solvers.domain.ids import ModelName, WorkloadId
from solvers.domain.plan import Assignment, DeviceSetting
from solvers.domain.policy import CostBasis, Objective, Policy, Term
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import WorkloadKind
from solvers.models.worth import billed_part, worth_of
from tests import builders
from tests.unit.solvers.models.test_options import GOOD, T4

VISION = (WorkloadId("demo/vision"),)


BY_SHARE = builders.policy(cost_basis=CostBasis.SHARE)


def world(rate_rps: float = 100.0, policy: Policy = BY_SHARE, **changes: object) -> Snapshot:
    return builders.snapshot([T4], [builders.service(rate_rps_declared=rate_rps)], policy=policy, **changes)


def objective(picture: Snapshot, *assignments: object) -> Objective:
    return worth_of(picture, VISION, tuple(assignments)).objective  # type: ignore[arg-type]


def test_nothing_stands() -> None:
    found = objective(world())
    # 100 requests/s and one replica missing, at priority 100.
    assert found == Objective(unserved=100 * (100.0 + 1))


def test_enough_stands() -> None:
    picture = world(target=builders.target([GOOD]))
    found = objective(picture, GOOD)
    assert found == Objective(cost_usd_per_h=pytest.approx(0.175))


def test_too_little_stands() -> None:
    able = replace(GOOD, capacity_rps=1000.0)
    (shortage,) = worth_of(world(1000.0), VISION, (able,)).shortages
    assert 0 < shortage.rate_rps_short < 1000.0
    assert shortage.replicas_missing == 0
    assert objective(world(1000.0), able).unserved == pytest.approx(100 * shortage.rate_rps_short)


def test_what_claims_less_than_it_could_serve_is_short_of_what_it_does_not_claim() -> None:
    (shortage,) = worth_of(world(60.0), VISION, (replace(GOOD, capacity_rps=50.0),)).shortages
    assert shortage.rate_rps_short == pytest.approx(objective(world(60.0)).unserved / 100 - 1 - 50.0)
    assert objective(world(60.0), GOOD).unserved == 0.0


def test_a_broken_promise_is_a_risk_and_serves_nothing() -> None:
    slow = replace(GOOD, share_pct_sm=10)
    found = objective(world(), slow)
    assert (found.slo_risk, found.unserved) == (100.0, 10_000.0)


def test_replicas_on_unusable_devices_serve_nothing_but_cost() -> None:
    silent = replace(world(), node_statuses=())
    found = objective(silent, GOOD)
    assert found.unserved == 100 * (100.0 + 1)
    assert found.cost_usd_per_h == pytest.approx(0.175)


def test_an_unknown_device_costs_nothing() -> None:
    assert objective(world(), replace(GOOD, device="GPU-nowhere")).cost_usd_per_h == 0.0


def test_churn_is_the_launch_time_of_what_must_start() -> None:
    models = (builders.model(launch_s=7.0),)
    target = builders.target([GOOD])
    picture = world(models=models, target=target)
    assert objective(picture, GOOD).churn == 0.0
    assert objective(picture, replace(GOOD, batch=2)).churn == 0.0
    assert objective(picture, replace(GOOD, share_pct_sm=60)).churn == 7.0
    assert objective(replace(picture, target=builders.target([])), GOOD).churn == 7.0


def test_a_waiting_job_counts_what_it_is_worth() -> None:
    picture = builders.snapshot([T4], jobs=(builders.job(priority=10, value_usd_per_h=0.8),))
    found = worth_of(picture, builders.everything_movable(picture), ())
    assert (found.objective.unserved, found.objective.waiting_usd_per_h) == (0.0, 0.8)
    assert found.objective.key((Term.COST,)) == (0.8,)


@pytest.mark.parametrize(
    "policy",
    [builders.policy(objective=(Term.UNSERVED, Term.TRAINING)), builders.policy(cost_basis=CostBasis.SHARE)],
    ids=["training", "share"],
)
def test_a_waiting_job_that_must_run_is_unserved(policy: Policy) -> None:
    picture = builders.snapshot([T4], jobs=(builders.job(priority=10, value_usd_per_h=0.8),), policy=policy)
    found = worth_of(picture, builders.everything_movable(picture), ())
    assert (found.objective.unserved, found.objective.waiting_usd_per_h) == (10.0, 0.0)


def test_workloads_that_may_not_move_are_not_judged() -> None:
    assert worth_of(world(), (), ()).objective == Objective()


def test_imbalance_is_between_devices_in_use() -> None:
    other = replace(GOOD, replica="demo/vision#1", device="GPU-a-1", share_pct_sm=20)
    assert objective(world(), GOOD, other).imbalance == pytest.approx(0.3)


class TestRising:
    NAMED = builders.policy(objective=(Term.UNSERVED, Term.CAPACITY, Term.TRAINING))

    def test_full_batches_count_whatever_the_promise_grants(self) -> None:
        found = objective(world(policy=self.NAMED), GOOD)
        assert found.capacity_rps == pytest.approx(
            1000 * GOOD.batch / builders.latency_ms("t4", GOOD.batch, 50), rel=1e-3
        )

    def test_larger_batches_and_more_copies_carry_more(self) -> None:
        picture = world(policy=self.NAMED)
        other = replace(GOOD, replica="demo/vision#1", device="GPU-a-1")
        one = objective(picture, GOOD).capacity_rps
        assert objective(picture, replace(GOOD, batch=1)).capacity_rps < one
        assert objective(picture, GOOD, other).capacity_rps == one

    def test_who_breaks_its_promise_carries_nothing(self) -> None:
        assert objective(world(policy=self.NAMED), replace(GOOD, share_pct_sm=10)).capacity_rps == 0.0

    def test_it_is_told_only_where_the_policy_names_it(self) -> None:
        found = objective(world(), GOOD)
        assert (found.capacity_rps, found.training_rate) == (0.0, 0.0)

    def test_jobs_run_by_share_and_peak_and_less_beside_others(self) -> None:
        job = builders.job()
        picture = builders.snapshot([T4], jobs=(job,), policy=self.NAMED)
        item = builders.assignment(
            f"{job.id}#0", T4, kind=WorkloadKind.JOB, workload=WorkloadId(job.id), model=job.model, share_pct_sm=40
        )
        movable = builders.everything_movable(picture)
        alone = worth_of(picture, movable, (item,)).objective.training_rate
        # Its reference is a type that nobody knows here, so this one stands for it.
        assert alone == pytest.approx(0.4)
        beside = worth_of(picture, movable, (item, GOOD)).objective.training_rate
        assert beside == pytest.approx(alone / picture.policy.interference_margin)
        assert worth_of(picture, (), (item,)).objective.training_rate == 0.0


class TestCostByDevice:
    USD_PER_WH = 0.12 * 1.3 / 1000

    def picture(self, **policy: object) -> Snapshot:
        return world(policy=builders.policy(cost_basis=CostBasis.DEVICE, **policy))

    def test_a_device_in_use_is_paid_whole_and_once(self) -> None:
        pair = GOOD, replace(GOOD, replica="demo/vision#1", share_pct_sm=20, power_w_planned=5.0)
        found = objective(self.picture(), *pair).cost_usd_per_h
        assert found == pytest.approx(0.35 + self.USD_PER_WH * (10 + 20 + 5))

    def test_it_draws_no_more_than_its_limit(self) -> None:
        hungry = replace(GOOD, power_w_planned=500.0)
        assert objective(self.picture(), hungry).cost_usd_per_h == pytest.approx(0.35 + self.USD_PER_WH * 70)
        limited = (DeviceSetting(device=T4.id, power_limit_w=60.0),)
        found = worth_of(self.picture(), VISION, (hungry,), limited).objective.cost_usd_per_h
        assert found == pytest.approx(0.35 + self.USD_PER_WH * 60)

    def test_a_slice_has_its_part_of_price_and_idle_power(self) -> None:
        on = builders.mig_slice("c", 1, "a100", 4)
        picture = replace(builders.snapshot([on]), policy=self.picture().policy)
        found = objective(picture, builders.assignment("demo/vision#0", on)).cost_usd_per_h
        assert found == pytest.approx(0.5 * 2.9 + self.USD_PER_WH * (0.5 * 50 + 20))

    def test_nothing_in_use_costs_nothing(self) -> None:
        assert objective(self.picture()).cost_usd_per_h == 0.0


class TestCostByMemory:
    PAIR = GOOD, replace(GOOD, replica="demo/vision#1", share_pct_sm=20, memory_mib_limit=3000)

    def usd(self, *assignments: Assignment, settings: tuple[DeviceSetting, ...] = ()) -> float:
        picture = world(policy=builders.policy(cost_basis=CostBasis.MEMORY))
        return worth_of(picture, VISION, assignments, settings).objective.cost_usd_per_h

    def test_everybody_pays_for_the_memory_that_his_batch_uses_and_for_no_energy(self) -> None:
        used_mib = builders.memory_mib(GOOD.batch)
        assert used_mib < GOOD.memory_mib_limit
        assert self.usd(*self.PAIR) == pytest.approx(0.35 * 2 * used_mib / T4.memory_mib)
        assert self.usd(replace(GOOD, share_pct_sm=99)) == self.usd(GOOD)
        assert self.usd(replace(GOOD, batch=1)) < self.usd(GOOD)

    def test_for_no_more_than_he_may_use_and_for_that_where_nothing_was_measured(self) -> None:
        tight = replace(GOOD, memory_mib_limit=700)
        assert self.usd(tight) == pytest.approx(0.35 * 700 / T4.memory_mib)
        unknown = replace(GOOD, model=ModelName("unheard-of"))
        assert self.usd(unknown) == pytest.approx(0.35 * GOOD.memory_mib_limit / T4.memory_mib)

    def test_who_has_the_whole_share_pays_for_the_whole_device(self) -> None:
        assert self.usd(replace(GOOD, share_pct_sm=100)) == pytest.approx(0.35)

    def test_but_not_where_shares_are_nobodys_own(self) -> None:
        sliced = (DeviceSetting(device=T4.id, mode=DeviceMode.TIME_SLICED),)
        found = self.usd(replace(GOOD, share_pct_sm=100), settings=sliced)
        assert found == pytest.approx(self.usd(GOOD))

    def test_a_device_is_paid_once_at_most(self) -> None:
        greedy = replace(GOOD, memory_mib_limit=T4.memory_mib, model=ModelName("unheard-of"))
        assert self.usd(greedy, self.PAIR[1]) == pytest.approx(0.35)


@pytest.mark.parametrize(("basis", "part"), [(CostBasis.SHARE, 0.5), (CostBasis.DEVICE, 1.0)])
def test_interruptions_are_in_the_price(basis: CostBasis, part: float) -> None:
    rows = (PriceRow(kind=PriceKind.SPOT, usd_per_h=0.1, interruptions_per_h=0.2),)
    policy = builders.policy(cost_basis=basis, price_kind=PriceKind.SPOT, interruption_usd=0.5, energy_usd_per_kwh=0.0)
    picture = world(policy=policy, gpu_types=(builders.gpu_type("t4", prices=rows),))
    assert objective(picture, GOOD).cost_usd_per_h == pytest.approx(part * (0.1 + 0.2 * 0.5))


def test_offered_gpus_serve_and_cost() -> None:
    picture = world(offers=(Offer(name="more", gpu_type=T4.gpu_type, count_max=1),))
    found = objective(picture, replace(GOOD, device="offer.more.000000.gpu-0"))
    assert (found.unserved, found.slo_risk) == (0.0, 0.0)
    assert found.cost_usd_per_h == pytest.approx(0.175)


def test_shares_beyond_the_whole_device_are_not_paid_twice() -> None:
    slices = DeviceSetting(device=T4.id, mode=DeviceMode.TIME_SLICED)
    both = (replace(GOOD, share_pct_sm=100), replace(GOOD, replica="demo/vision#1", share_pct_sm=100))
    for basis, part in ((CostBasis.SHARE, 1.0), (CostBasis.DEVICE, 1.0)):
        assert billed_part(T4, slices, both, basis, {}) == part
    parts = (replace(GOOD, share_pct_sm=40),) * 2
    assert billed_part(T4, None, parts, CostBasis.SHARE, {}) == pytest.approx(0.8)
    assert billed_part(T4, None, parts, CostBasis.DEVICE, {}) == 1.0


def test_jobs_run_with_their_clock() -> None:
    job = builders.job()
    policy = builders.policy(objective=(Term.UNSERVED, Term.TRAINING))
    picture = builders.snapshot([T4], jobs=(job,), policy=policy)
    item = builders.assignment(
        f"{job.id}#0", T4, kind=WorkloadKind.JOB, workload=WorkloadId(job.id), model=job.model, share_pct_sm=40
    )
    movable = builders.everything_movable(picture)
    top = picture.gpu_types[0].clock_mhz_sm_max
    low = DeviceSetting(device=T4.id, clock_mhz_sm=top - 600)
    rates = [worth_of(picture, movable, (item,), some).objective.training_rate for some in ((), (low,))]
    assert rates[1] == pytest.approx(rates[0] * (top - 600) / top)
