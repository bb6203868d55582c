"""Branching proves no more than is true, and nearly all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.instances.family import family_problem
from solvers.engines.deadline import Deadline
from solvers.engines.planes import Box
from solvers.planners.joint.certificate import branched, most_on_a_device, serving
from solvers.planners.joint.solve import branch
from solvers.planners.joint.solve.branch import NEAR, NODE_UNITS, Alike, Leaves, Node, Tree, few_devices
from solvers.planners.joint.solve.generate import Pace, generate, singles
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Master, Rows
from solvers.planners.joint.solve.solve import SolveOrder, solve
from solvers.problems.joint import Floors, JointProblem
from tests.oracle import optimum
from tests.property.tiny import spread, tiny
from tests.unit.solvers.planners.joint.solve.scenes import check_layout

CENT = 1e-5
UNITS = 2000


def tree_of(problem: JointProblem, usd: float, *, counting: bool = True) -> Tree:
    """From patterns that one solve priced, where the best layout costs so much."""
    master = Master(problem, Judge(problem))
    master.offer(singles(problem, master.width))
    assert generate(master, Deadline(60.0, UNITS), Pace(gap=0.01)) is not None
    return Tree(search=master, usd=usd, deadline=Deadline(60.0, UNITS), counting=counting)


@pytest.mark.parametrize("problem", [*map(tiny, (1, 3, 5, 9, 10)), *map(spread, range(4))])
def test_the_truth_is_above_the_bound_and_near(problem: JointProblem) -> None:
    truth = optimum(problem).usd_per_h
    assert truth * 0.99 <= tree_of(problem, truth).run() <= truth + CENT
    for counting in (False, True):
        assert tree_of(problem, 2 * truth, counting=counting).run() <= truth + CENT


def test_a_few_devices_are_proven() -> None:
    """Before, 5.13 $/h at best, and at most 29 % above the optimum."""
    problem = family_problem(8, 5, 3)
    assert few_devices(problem)
    found = solve(problem, SolveOrder(seed=1), Deadline(600.0, 1500))
    check_layout(problem, found)
    assert found.value(problem) <= 4.45
    assert found.value(problem) <= branched(problem, found.value(problem), Deadline(600.0, 1000))[0] * 1.004


def at_rates(problem: JointProblem, factors: Sequence[float]) -> JointProblem:
    """The same, asked for so many times as much, by workload."""
    pairs = zip(problem.workloads, factors, strict=True)
    works = (
        replace(item, rate_rps=item.rate_rps * factor, rate_least_rps=item.rate_least_rps * factor)
        for item, factor in pairs
    )
    return replace(problem, workloads=tuple(works))


def carried(problem: JointProblem, leaves: Leaves) -> Leaves:
    """At its rates."""
    return leaves.at(problem.rate_rps, most_on_a_device(problem, problem.rate_rps > leaves.rates))


@pytest.mark.parametrize("seed", [0, 1, 3, 4, 5, 10, 12, 18, 20, 22])
def test_what_was_proven_at_some_rates_proves_no_more_than_is_true_at_others(seed: int) -> None:
    """Of few devices, counted and not, with cuts and without, after little work and after much."""
    rng = np.random.default_rng(seed)
    problem = (tiny, spread)[seed % 2](seed)
    truth = optimum(problem).usd_per_h
    shown, leaves = branched(problem, truth, Deadline(60.0, int(rng.choice([5, 60, 600]))))
    assert leaves is not None
    assert leaves.usd(problem) <= shown + CENT
    for _ in range(3):
        other = at_rates(problem, np.exp(rng.uniform(-0.3, 0.3, len(problem.workloads))).tolist())
        there = optimum(other).usd_per_h
        begin = carried(other, leaves)
        assert begin.usd(other) <= there + CENT
        assert branched(other, there, Deadline(60.0, 40), begin=begin)[0] <= there + CENT


def test_where_rates_hardly_change_most_of_a_proof_holds() -> None:
    """Cuts of a rate that fell say nothing any more."""
    problem = family_problem(8, 5, 1)
    shown, leaves = branched(problem, 6.542, Deadline(600.0, 1500))
    assert leaves is not None
    assert shown >= 0.99 * 6.542
    for factor, least in ((1.0, 1.0), (1.005, 0.999), (0.995, 0.8)):
        other = at_rates(problem, [factor] * len(problem.workloads))
        assert carried(other, leaves).usd(other) >= least * shown * (1 - CENT)


def test_a_proof_goes_on_where_it_ended() -> None:
    """A little at a time proves more than as little again and again, and nearly what all at once does."""
    problem, units, bounds, leaves = family_problem(8, 5, 1), 100, list[float](), None
    for _ in range(12):
        shown, leaves = branched(problem, 6.542, Deadline(600.0, units), begin=leaves)
        bounds.append(shown)
    assert bounds[0] == branched(problem, 6.542, Deadline(600.0, units))[0]
    assert bounds[0] * 1.02 <= max(bounds) <= 6.542 * (1 + 1e-3)
    assert max(bounds) >= 0.98 * branched(problem, 6.542, Deadline(600.0, 12 * units))[0]


@pytest.mark.parametrize(("seed", "usd_per_h"), [(1, 6.542), (3, 4.44)])
def test_what_a_solve_found_lets_little_work_prove_more(seed: int, usd_per_h: float) -> None:
    problem = family_problem(8, 5, seed)
    found = solve(problem, SolveOrder(), Deadline(600.0, 250))
    warm = branched(problem, usd_per_h, Deadline(600.0, 60), (*found.patterns, *found.columns))[0]
    assert branched(problem, usd_per_h, Deadline(600.0, 60))[0] < warm <= usd_per_h


def test_whole_numbers_of_devices_prove_what_parts_of_them_hide() -> None:
    """The relaxed optimum is 13.306 $/h; a layout costs 13.880."""
    assert 13.7 <= branched(family_problem(16, 10, 23), 13.880, Deadline(600.0, 400))[0] <= 13.8786


def test_they_are_proven_of_more_devices_than_replicas_are_counted_of() -> None:
    problem = family_problem(32, 12, 1)
    assert not few_devices(problem)
    found = solve(problem, SolveOrder(), Deadline(600.0, 2500))
    assert found.facts["relaxed_usd_per_h"] * 1.01 <= (found.bound_usd_per_h or 0.0) <= found.value(problem)


def test_a_proof_that_leans_on_a_side_says_nothing_where_there_is_none() -> None:
    """It did: 5.516 $/h were proven of what costs 5.149, by duals of a node that had fewer replicas."""
    rows = Rows(family_problem(8, 5, 2), floors=Floors.of(family_problem(8, 5, 2), counting=True))
    devices = Box(least=np.zeros(rows.cap_at - rows.pool_at), most=rows.upper[rows.pool_at : rows.cap_at])
    root, duals = Node(devices=devices, lower=rows.lower, upper=rows.upper), np.zeros(rows.count)
    duals[rows.floor_at + 1] = -1.0
    assert root.sides(rows, duals).sum() == -np.inf
    most = rows.upper.copy()
    most[rows.floor_at + 1] = 2.0
    assert replace(root, upper=most).sides(rows, duals).sum() == -2.0


def test_replicas_are_asked_about_when_devices_are_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each number of replicas is asked about with every number of devices; nor does one node take all there is."""
    relaxed, seen = Tree._relaxed, list[tuple[bool, bool, int]]()

    def noted(tree: Tree, node: Node, *, closely: bool = False) -> Node:
        rows = tree.master.rows
        floors = slice(rows.floor_at, rows.base)
        of_replicas = bool((node.lower[floors] > rows.lower[floors]).any() or np.isfinite(node.upper[floors]).any())
        before = tree.deadline.units_until(0.0)
        found = relaxed(tree, node, closely=closely)
        seen.append((of_replicas, node.devices.point, 0 if closely else round(before - tree.deadline.units_until(0.0))))
        return found

    monkeypatch.setattr(Tree, "_relaxed", noted)
    branched(family_problem(8, 5, 3), 4.45, Deadline(600.0, 3000))[0]
    assert any(of_replicas for of_replicas, _, _ in seen)
    assert all(settled for of_replicas, settled, _ in seen if of_replicas)
    assert max(units for _, _, units in seen[1:]) <= NODE_UNITS + 1


def test_nothing_is_asked_of_others_once_the_least_has_nothing_more_to_ask() -> None:
    """They are no part of what is proven, and take the time from who asks about replicas."""
    tree = tree_of(family_problem(12, 8, 2), 9.89, counting=False)
    tree.deadline = Deadline(600.0, 2_000)
    assert tree.run() < 9.89 * (1 - NEAR)
    assert tree.deadline.left_part > 0.5


@pytest.mark.parametrize("seed", range(20, 40))
def test_what_serving_as_much_costs_is_never_overstated(seed: int) -> None:
    """Nor far understated: of what a plan serves, not of what is asked for."""
    problem = tiny(seed)
    layout = optimum(problem).layout
    rates = layout.served_rps(problem) * np.random.default_rng(seed).uniform(0.3, 1.0, len(problem.workloads))
    asked = serving(problem, {work.id: float(rate) for work, rate in zip(problem.workloads, rates, strict=True)})
    assert all(work.rate_rps <= rate for work, rate in zip(asked.workloads, rates.tolist(), strict=True))
    truth = optimum(asked).usd_per_h
    assert 0.97 * truth <= branched(asked, truth, Deadline(60.0, UNITS))[0] <= truth + CENT


def test_pools_that_differ_in_domains_alone_are_one_where_they_are_many() -> None:
    problem = replace(spread(1), workloads=tuple(replace(item, domains_min=1) for item in spread(1).workloads))
    apart, one = Alike.of(problem, by_domain=True), Alike.of(problem)
    for found in (apart, one):
        assert found.problem.pool_devices.sum() == problem.pool_devices.sum()
        types = [[each.pools[pool].gpu_type for pool in each.kind_pool] for each in (problem, found.problem)]
        assert types[0] == [types[1][kind] for kind in found.kind]
        assert (found.problem.kind_clock_mhz[found.kind] == problem.kind_clock_mhz).all()
    assert optimum(one.problem).usd_per_h <= optimum(problem).usd_per_h + CENT


def test_numbers_to_branch_on_are_counted_as_they_are_branched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    one = family_problem(8, 5, 3)
    there = (replace(item, failure_domain=1, devices=1) for item in one.pools)
    both = replace(
        one,
        pools=(*one.pools, *there),
        kind_pool=np.concatenate([one.kind_pool, len(one.pools) + one.kind_pool]),
        kind_clock_mhz=np.tile(one.kind_clock_mhz, 2),
        kind_table=np.tile(one.kind_table, 2),
        allowed=np.tile(one.allowed, (2, 1)),
        caps=(),
    )
    monkeypatch.setattr(branch, "COUNTS_MAX", len(one.pools) * (1 + len(one.workloads)))
    assert few_devices(both)
