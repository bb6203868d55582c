"""Every plan has a bound, whoever made it and whatever is pinned, and none is above what serving as much can cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from math import inf

import numpy as np
import pytest

from benchmarks.instances.family import family_problem
from benchmarks.instances.family_snapshot import family_snapshot
from solvers.domain.change import Target
from solvers.domain.device import DeviceMode
from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import Generation
from solvers.domain.plan import Destination, Plan
from solvers.domain.policy import CostBasis, Term
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Affinity
from solvers.engines.deadline import Deadline
from solvers.models.worth import worth_of
from solvers.planners.base import Budget, Thought
from solvers.planners.joint import certificate, planner
from solvers.planners.joint.attempt import Kept, named, prices_of, recall, remember
from solvers.planners.joint.certificate import Certificate, branched, loosened
from solvers.planners.joint.planner import Joint
from solvers.planners.joint.solve.branch import Leaves
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Rows
from solvers.planners.joint.solve.pricing import Look, Pricing
from solvers.planners.joint.solve.solve import SolveOrder, solve
from solvers.planners.registry import propose, think
from solvers.problems.joint import Cap, JointProblem
from solvers.problems.patterns import Pattern
from tests import builders

BASES = pytest.mark.parametrize("basis", list(CostBasis))


def lab(basis: CostBasis = CostBasis.DEVICE, rate_rps: float = 100.0) -> Snapshot:
    services = (builders.service(rate_rps_declared=rate_rps), builders.service("other"), builders.service("third"))
    return builders.lab(services, policy=builders.policy(cost_basis=basis))


def planned(picture: Snapshot, movable: tuple[str, ...] | None = None, planner: str = "joint") -> Plan:
    request = replace(builders.request(picture, movable), budget=Budget(work_units=100))
    plan = propose(planner, request).plan
    assert plan is not None
    return plan


def glance(picture: Snapshot, movable: tuple[str, ...] | None = None) -> Certificate:
    request = builders.request(picture, movable)
    return Certificate.of(loosened(picture, request.movable), None, Deadline(1.0, 0))


def standing(picture: Snapshot, plan: Plan) -> Snapshot:
    target = Target(generation=Generation(1), assignments=plan.assignments, settings=plan.settings)
    return replace(picture, target=target)


@BASES
def test_without_any_prices_something_is_proven_of_everybodys_plan(basis: CostBasis) -> None:
    picture = lab(basis)
    best = planned(picture).objective.cost_usd_per_h
    bound = glance(picture).bound(planned(picture, planner="greedy"))
    assert 0.5 * best < bound <= best * (1 + 1e-6)


@BASES
def test_any_prices_prove_no_more_than_the_best_plan_costs(basis: CostBasis) -> None:
    picture, rng = lab(basis), np.random.default_rng(5)
    plan = planned(picture)
    request = builders.request(picture)
    loose = loosened(picture, request.movable)
    rows = Rows(loose.problem)
    for scale in (0.1, 1.0, 10.0):
        duals = np.where(np.isfinite(rows.upper), -1.0, 1.0) * rng.uniform(0, scale, rows.count)
        found = Certificate.of(loose, rows.prices(duals), Deadline(10.0, 100))
        for proof in (found.proof, found.at_a_glance):
            alone = replace(found, proof=proof)
            assert alone.bound(plan) <= plan.objective.cost_usd_per_h
            # What is shown is true of each proof by itself, not only of those that a plan does not disprove.
            dear = replace(plan, objective=replace(plan.objective, cost_usd_per_h=1e9))
            assert alone.bound(dear) <= plan.objective.cost_usd_per_h * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_what_contents_are_worth_at_most_goes_on_to_hold_at_other_rates(seed: int) -> None:
    problem, rng = replace(family_problem(8, 6, seed), caps=()), np.random.default_rng(seed)
    found = solve(problem, SolveOrder(), Deadline(60.0, 300))
    assert found.prices is not None
    assert found.prices.worth_usd is not None
    state = remember(problem, Kept(prices=found.prices, full_at_s=1.0))
    times = np.where(rng.random(6) < 0.5, 1.0, rng.uniform(0.05, 20.0, 6)).tolist()
    works = [
        replace(work, rate_rps=part * work.rate_rps, rate_least_rps=part * work.rate_least_rps)
        for part, work in zip(times, problem.workloads, strict=True)
    ]
    later = replace(problem, workloads=tuple(works))
    prices = recall(state, later).prices
    assert prices is not None
    assert prices.worth_usd is not None
    judge, rows = Judge(later), Rows(later)
    ceilings = Pricing(judge, rows, judge.width).price(
        rows.duals(prices), Look(part=1e-4, step_pct=1, repeats=4), Deadline(60.0, 5000), 0.0
    )
    judged = judge.judge(ceilings.rows)
    worth = -rows.columns(judged).reduced(rows.duals(prices))
    assert (worth <= prices.worth_usd[later.kind_pool[judged.rows.kind]] + 1e-6).all()
    other = replace(later, pools=(replace(later.pools[0], usd_per_h=9.0), *later.pools[1:]))
    assert recall(state, other).prices.worth_usd is None


@pytest.mark.parametrize("seed", range(2))
def test_what_was_shown_where_watts_were_scarce_says_nothing_where_they_are_not(seed: int) -> None:
    problem = family_problem(8, 6, seed)
    devices = tuple(pool.devices for pool in problem.pools)
    problem = replace(problem, caps=(Cap(name="all", limit_w=1e4, devices=devices),))
    rows = Rows(replace(problem, caps=(replace(problem.caps[0], limit_w=1.0),)))
    scarce, duals = rows.problem, np.zeros(rows.count)
    duals[: rows.pool_at], duals[rows.cap_at] = 1.0, -0.001 * rows.cap_unit[0]
    state = remember(scarce, Kept(prices=rows.prices(duals, np.ones(len(problem.pools))), full_at_s=1.0))
    shown = recall(state, scarce).prices
    assert shown is not None
    assert shown.worth_usd is not None
    wider = replace(scarce, caps=(replace(scarce.caps[0], limit_w=2.0),))
    elsewhere = replace(scarce, caps=(replace(scarce.caps[0], devices=(devices[0], *(0 for _ in devices[1:]))),))
    for caps, holds in ((wider.caps, True), (elsewhere.caps, False), ((), False)):
        prices = recall(state, replace(problem, caps=caps)).prices
        assert prices is not None
        assert (prices.worth_usd is not None) == holds


@pytest.mark.parametrize("movable", [("demo/vision",), ("demo/other", "demo/third")])
@BASES
def test_beside_pinned_replicas_there_is_a_bound_too(basis: CostBasis, movable: tuple[str, ...]) -> None:
    picture = lab(basis)
    later = standing(picture, planned(picture))
    plan = planned(later, movable)
    assert plan.bound_usd_per_h is not None
    assert 0 < plan.bound_usd_per_h <= plan.objective.cost_usd_per_h


def test_room_beside_pinned_replicas_may_be_used_by_the_best_plan() -> None:
    """The bound of a plan that wastes it is below a plan that does not."""
    picture = builders.lab(
        (builders.service("big", rate_rps_declared=30.0), builders.service("small", rate_rps_declared=1.0)),
        policy=builders.policy(cost_basis=CostBasis.DEVICE),
    )
    whole = planned(picture)
    assert max(Counter(item.device for item in whole.assignments).values()) == 2
    later = standing(
        picture, replace(whole, assignments=tuple(i for i in whole.assignments if i.workload == "demo/big"))
    )
    best = planned(later, ("demo/small",))
    free = sorted({device.id for device in picture.devices} - {item.device for item in best.assignments})
    apart = tuple(replace(item, device=free[0]) if item.workload == "demo/small" else item for item in best.assignments)
    dear = replace(best, assignments=apart, objective=replace(best.objective, cost_usd_per_h=1e9))
    assert glance(later, ("demo/small",)).bound(dear) <= best.objective.cost_usd_per_h * (1 + 1e-6)


def test_what_a_device_at_its_limit_draws_for_those_who_stay_is_billed_once() -> None:
    picture = builders.lab(
        (builders.service("big", rate_rps_declared=30.0), builders.service("small", rate_rps_declared=1.0)),
        policy=builders.policy(cost_basis=CostBasis.DEVICE, energy_usd_per_kwh=20.0),
    )
    whole = planned(picture)
    (stays,) = (item for item in whole.assignments if item.workload == "demo/big")
    (small,) = (item for item in whole.assignments if item.workload == "demo/small")
    limit_w = max(item.power_limit_w_max for item in picture.gpu_types)
    stays = replace(stays, power_w_planned=limit_w)
    later = standing(picture, replace(whole, assignments=(stays,)))
    beside = replace(whole, assignments=(stays, replace(small, device=stays.device)))
    cost = worth_of(later, ("demo/small",), beside.assignments, beside.settings).objective.cost_usd_per_h
    dear = replace(beside, objective=replace(beside.objective, cost_usd_per_h=1e9))
    assert glance(later, ("demo/small",)).bound(dear) <= cost * (1 + 1e-6)
    loose = loosened(later, ("demo/small",))
    rows = Rows(loose.problem)
    duals = np.where(np.arange(rows.count) < rows.pool_at, 1e3, 0.0)
    found = Certificate.of(loose, rows.prices(duals), Deadline(10.0, 100))
    assert found.bound(dear) <= cost * (1 + 1e-6)


@pytest.mark.parametrize("dedicated", [False, True])
def test_all_of_a_device_in_time_slices_is_billed_by_its_memory_but_for_who_is_there_alone(dedicated: bool) -> None:
    """Alone it is no longer in time slices."""
    sliced = builders.device("a", 0, "t4", mode=DeviceMode.TIME_SLICED)
    service = builders.service(rate_rps_declared=20.0, affinity=Affinity(dedicated=dedicated))
    policy = builders.policy(cost_basis=CostBasis.MEMORY)
    picture = builders.snapshot([sliced, builders.device("b", 0, "v100")], [service], policy=policy)
    plan = planned(picture)
    assert {item.device for item in plan.assignments} == {sliced.id}
    assert plan.bound_usd_per_h == pytest.approx(plan.objective.cost_usd_per_h, rel=1e-6)
    assert (plan.objective.cost_usd_per_h == builders.gpu_type("t4").prices[0].usd_per_h) == dedicated


def test_what_is_left_unserved_counts_off() -> None:
    picture = lab()
    plan = planned(picture)
    left = tuple(item for item in plan.assignments if item.workload != "demo/other")
    certificate = glance(picture)
    assert certificate.bound(replace(plan, assignments=left)) < certificate.bound(plan)
    assert certificate.bound(replace(plan, assignments=())) == 0.0


def test_where_capacity_counts_before_cost_nobody_branches_for_a_nearer_bound() -> None:
    picture = lab()
    plan, deadline = replace(planned(picture), bound_usd_per_h=None), Deadline(60.0, 500)
    after = replace(picture, policy=builders.policy(objective=(Term.COST, Term.CAPACITY)))
    before = replace(picture, policy=builders.policy(objective=(Term.CAPACITY, Term.COST)))
    assert glance(after).closer(plan, None, deadline)[1] is not None
    assert glance(before).closer(plan, None, deadline) == (plan, None)
    assert glance(before).bound(plan) > 0.0


def test_what_branching_showed_goes_on_to_hold_for_whoever_serves_as_much() -> None:
    picture = lab()
    plan = replace(planned(picture), bound_usd_per_h=None)
    certificate, problem = glance(picture), loosened(picture, builders.request(picture).movable).problem
    nearer, shown = certificate.closer(plan, None, Deadline(60.0, 500))
    assert shown is not None
    assert nearer.bound_usd_per_h == min(shown.usd_per_h, plan.objective.cost_usd_per_h)
    kept = recall(remember(problem, Kept(shown=shown)), problem).shown
    assert kept == shown
    assert kept is not None
    assert None not in (kept.leaves, shown.leaves)
    for item in fields(Leaves):
        assert np.array_equal(getattr(kept.leaves, item.name), getattr(shown.leaves, item.name)), item.name
    none = Deadline(60.0, 0)
    assert certificate.closer(plan, kept, none)[0] == nearer
    # Who serves less, or on another fleet, has to be looked at anew.
    less = replace(plan, assignments=plan.assignments[1:])
    assert certificate.closer(less, kept, none)[0].bound_usd_per_h is None
    assert certificate.closer(plan, replace(shown, fleet="other"), none)[0].bound_usd_per_h is None
    # Who serves a good deal more is looked at anew, where what was shown is not near what it costs.
    poor = certificate.closer(less, None, Deadline(60.0, 500))[1]
    assert poor is not None
    assert poor.usd_per_h < 0.9 * shown.usd_per_h
    again = certificate.closer(plan, poor, Deadline(60.0, 500))[1]
    assert again is not None
    assert again.usd_per_h == pytest.approx(shown.usd_per_h, rel=certificate.near)
    assert certificate.closer(plan, poor, none)[0].bound_usd_per_h == poor.usd_per_h


def test_nobody_proves_more_of_what_a_layout_is_known_to_do_for_less() -> None:
    """As where what stands is dear, and all that is cheaper would interrupt too much."""
    picture = lab()
    plan, deadline = replace(planned(picture), bound_usd_per_h=None), Deadline(60.0, 500)
    certificate, cost = glance(picture), plan.objective.cost_usd_per_h
    shown = certificate.closer(plan, None, deadline)[1]
    assert shown is not None
    dear = replace(plan, objective=replace(plan.objective, cost_usd_per_h=1.5 * cost))
    served = {item.id: plan.served_rps[item.id] for item in certificate.problem.problem.workloads}
    poor = replace(shown, usd_per_h=0.9 * cost, effort=0.0)
    had = replace(poor, had=served, had_usd=0.9 * cost)
    assert certificate.closer(dear, had, deadline)[1] == had
    again = certificate.closer(dear, poor, deadline)[1]
    assert again is not None
    assert again.usd_per_h > 0.95 * cost
    # It is of no more than it serves, and on its fleet.
    less = replace(had, had=dict.fromkeys(served, 1e-3))
    assert certificate.closer(dear, less, deadline)[1] != less
    elsewhere = certificate.closer(dear, replace(had, fleet="other"), deadline)[1]
    assert elsewhere is not None
    assert elsewhere.had_usd == inf


def test_what_branching_showed_in_little_time_or_for_a_wide_gap_is_looked_at_anew() -> None:
    picture, deadline = lab(), Deadline(60.0, 500)
    easy = replace(picture, policy=replace(picture.policy, gap_pct_target=30.0))
    plan, certificate = replace(planned(picture), bound_usd_per_h=None), glance(picture)
    whole = certificate.closer(plan, None, deadline)[1]
    hasty, wide = certificate.closer(plan, None, Deadline(60.0, 1))[1], glance(easy).closer(plan, None, deadline)[1]
    assert None not in (whole, hasty, wide)
    for known in (hasty, wide):
        assert known is not None
        assert known.usd_per_h < 0.99 * plan.objective.cost_usd_per_h
        assert whole is not None
        again = certificate.closer(plan, known, deadline)[1]
        assert again is not None
        assert again.usd_per_h == pytest.approx(whole.usd_per_h, rel=certificate.near)
        # But not again and again with what was not enough.
        tried = replace(known, effort=whole.effort)
        assert certificate.closer(plan, tried, deadline)[1] == tried


@pytest.mark.parametrize("lost", [False, True])
def test_who_begins_anew_is_given_more_than_who_goes_on(lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was proven before is little to go on with where rates fell, and stated gaps would stay wide for minutes."""
    picture, given = lab(), list[tuple[bool, float]]()

    def spied(
        problem: JointProblem,
        usd: float,
        deadline: Deadline,
        warm: Sequence[Pattern],
        near: float,
        begin: Leaves | None,
    ) -> tuple[float, Leaves | None]:
        given.append((begin is not None, deadline.units_until(0.0)))
        return branched(problem, usd, deadline, tuple(warm), near, begin)

    plan, loose = replace(planned(picture), bound_usd_per_h=None), glance(picture)
    cost, shown = plan.objective.cost_usd_per_h, loose.closer(plan, None, Deadline(60.0, 500))[1]
    assert shown is not None
    assert shown.leaves is not None
    leaves = replace(shown.leaves, duals=0 * shown.leaves.duals, each=0 * shown.leaves.each)
    leaves = replace(leaves, bound=np.full(len(leaves.bound), 0.5 * cost), rates=(1 + 0.02 * lost) * leaves.rates)
    monkeypatch.setattr(certificate, "branched", spied)
    found, again = loose.closer(
        plan, replace(shown, usd_per_h=0.5 * cost, effort=0.0, leaves=leaves), Deadline(60.0, 400)
    )
    assert given == [(False, 400.0) if lost else (True, 150.0)]
    if lost:
        assert again is not None
        assert found.bound_usd_per_h == pytest.approx(shown.usd_per_h, rel=loose.near)


def test_a_stopover_is_bounded_where_it_leads_by_what_is_served_there() -> None:
    picture = lab()
    plan = replace(planned(picture), bound_usd_per_h=None)
    less = replace(plan, assignments=plan.assignments[1:])
    dear = replace(plan.objective, cost_usd_per_h=9 * plan.objective.cost_usd_per_h)
    certificate = glance(picture)
    for way, to in ((plan, less), (less, plan)):
        there = Destination(assignments=to.assignments, settings=plan.settings, unplaced=(), objective=plan.objective)
        found = certificate.closer(replace(way, objective=dear, toward=there), None, Deadline(60.0, 500))[0]
        assert found.arrived.bound_usd_per_h == certificate.closer(to, None, Deadline(60.0, 500))[0].bound_usd_per_h
        assert found.bound_usd_per_h is None


def test_what_stands_with_less_headroom_is_held_against_plans_that_have_it() -> None:
    roomy = replace(lab().policy, demand_headroom=2.0)
    picture = replace(lab(rate_rps=300.0), policy=roomy)
    plan = replace(planned(picture), bound_usd_per_h=None)
    problem = loosened(picture, builders.request(picture).movable).problem
    certificate = glance(picture)
    whole = certificate.closer(plan, None, Deadline(60.0, 500))[0].bound_usd_per_h
    work = next(item for item in problem.workloads if item.rate_least_rps < 0.9 * item.rate_rps)
    served = sum(item.capacity_rps for item in plan.assignments if item.workload == work.id)

    def serving_rps(rate: float) -> Plan:
        parts = ((item, rate / served if item.workload == work.id else 1.0) for item in plan.assignments)
        return replace(plan, assignments=tuple(replace(i, capacity_rps=i.capacity_rps * part) for i, part in parts))

    tight, short = serving_rps(1.01 * work.rate_least_rps), serving_rps(0.5 * work.rate_least_rps)
    assert certificate.closer(tight, None, Deadline(60.0, 500))[0].bound_usd_per_h == whole
    # It is no headroom that lacks; or nobody can have it.
    less = certificate.closer(short, None, Deadline(60.0, 500))[0].bound_usd_per_h
    held = {item.device for item in plan.assignments}
    full = replace(picture, devices=tuple(item for item in picture.devices if item.id in held))
    crowded = glance(replace(full, policy=replace(roomy, demand_headroom=10.0)))
    little = crowded.closer(tight, None, Deadline(60.0, 500))[0].bound_usd_per_h
    assert None not in (whole, little, less)
    assert (less or 0) < (little or 0) < (whole or 0)
    # What stands may be cheaper than all that is planned anew, what serves as much may not.
    cheap = replace(plan.objective, cost_usd_per_h=0.9 * (whole or 0))
    assert certificate.closer(replace(tight, objective=cheap), None, Deadline(60.0, 500))[0].gap_pct == 0.0
    assert certificate.closer(replace(plan, objective=cheap), None, Deadline(60.0, 500))[0].bound_usd_per_h is None


def test_prices_are_read_by_another_problem_of_the_same_names() -> None:
    picture = lab()
    request = builders.request(picture)
    problem = loosened(picture, request.movable).problem
    prices = Rows(problem).prices(np.arange(1.0, Rows(problem).count + 1))
    again = prices_of(problem, named(problem, prices))
    assert again.demand_usd == pytest.approx(prices.demand_usd)
    assert again.worth_usd is None
    more = replace(problem, workloads=tuple(replace(item, rate_rps=2 * item.rate_rps) for item in problem.workloads))
    assert prices_of(more, named(problem, prices)).demand_usd == pytest.approx(2 * prices.demand_usd)


def test_prices_of_before_are_settled_anew_where_they_prove_little_of_many_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some rates rise and what stands is patched: its gap is told by prices of today, and so are those that follow."""
    picture = family_snapshot(64, 20, 3)
    first = thought(picture, b"")
    stands = standing(picture, plan_of(first))
    risen = tuple(
        replace(item, rate_rps_declared=2.0 * (item.rate_rps_declared or 0.0)) if number % 7 == 0 else item
        for number, item in enumerate(picture.services)
    )
    later = replace(stands, services=risen, taken_at_s=picture.taken_at_s + 10.0)
    monkeypatch.setattr(planner, "WIDE_PCT", 1.0)
    told = thought(later, first.state)
    patched = plan_of(told)
    with monkeypatch.context() as patch:
        patch.setattr(planner, "WIDE_PCT", inf)
        by_those_of_before = plan_of(thought(later, first.state))
    assert patched.assignments == by_those_of_before.assignments
    assert (patched.gap_pct or inf) < 0.7 * (by_those_of_before.gap_pct or inf)
    again = replace(standing(later, patched), taken_at_s=later.taken_at_s + 10.0)
    monkeypatch.setattr(Certificate, "renewed", lambda self, _: self)
    assert plan_of(thought(again, told.state)).bound_usd_per_h == pytest.approx(patched.bound_usd_per_h, rel=0.01)


def thought(picture: Snapshot, state: bytes) -> Thought:
    return think(
        Joint(),
        replace(builders.request(picture), budget=Budget(deadline_s=600.0, work_units=600)),
        state,
        SilentReporter(),
    )


def plan_of(thought: Thought) -> Plan:
    assert thought.proposal.plan is not None
    return thought.proposal.plan
