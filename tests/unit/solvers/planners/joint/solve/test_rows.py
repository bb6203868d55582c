"""What a pattern owes to the rows, and what duals make of one more replica, are two sides of one table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.planners.joint.solve.master import Rows
from tests.unit.solvers.planners.joint.solve.oracle import every_pattern
from tests.unit.solvers.planners.joint.solve.scenes import BASES, scene


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("basis", BASES)
def test_reduced_costs_are_fixed_prices_less_the_members_values(seed: int, basis: str) -> None:
    problem = scene(seed, services=4, basis=basis)
    rows, rng = Rows(problem), np.random.default_rng(seed)
    duals = np.where(np.isfinite(rows.upper), -1.0, 1.0) * rng.uniform(0, 2, rows.count)
    judged = every_pattern(problem, 40)
    stands = judged.rows
    prices = rows.item_prices(duals)
    reduced = rows.columns(judged).reduced(duals)
    assert len(judged) > 100
    for row in rng.integers(0, len(judged), 60).tolist():
        pool = int(problem.kind_pool[stands.kind[row]])
        served = np.zeros(len(problem.workloads))
        worth = 0.0
        for place in np.flatnonzero(stands.variants[row] >= 0).tolist():
            work = int(problem.variant_workload[stands.variants[row, place]])
            served[work] += judged.capacity_rps[row, place] / problem.rate_rps[work]
            worth += prices.replica[pool, work] - prices.watt[pool] * judged.power_w[row, place]
            worth -= prices.share[pool, work] * stands.shares_pct[row, place]
            if basis == "memory":
                worth -= problem.held_usd(stands.kind[row], stands.variants[row, place], stands.shares_pct[row, place])
        worth += float(prices.pi @ np.minimum(served, 1.0))
        assert judged.power_w[row].sum() <= problem.pools[pool].limit_w - problem.pools[pool].idle_w
        assert reduced[row] == pytest.approx(prices.fixed[pool] - worth, abs=1e-9)


def test_what_is_taken_is_no_longer_asked() -> None:
    problem = scene(2, services=4)
    rows, judged = Rows(problem), every_pattern(problem, 50)
    counts = np.zeros(len(judged), dtype=np.int64)
    counts[:2] = 1
    taken = rows.activity(judged, counts)
    rest = Rows(problem, taken)
    left = np.clip(1 - taken[: rows.pool_at], 0, 1)
    assert (left < 1).any()
    assert rest.rate == pytest.approx(problem.rate_rps * left)
    assert rest.unserved_usd == pytest.approx(problem.unserved_usd * left)
    pools = slice(rows.pool_at, rows.cap_at)
    assert rest.upper[pools].sum() == rows.upper[pools].sum() - 2


@pytest.mark.parametrize("seed", range(4))
def test_what_one_replica_is_worth_is_paid_for_what_it_serves(seed: int) -> None:
    """Sides are worth the same, nothing more, and replicas that serve what others serve no longer pay."""
    problem, rng = scene(seed, services=4), np.random.default_rng(seed)
    works = tuple(replace(work, replicas_min=1 + place // 3) for place, work in enumerate(problem.workloads))
    problem = replace(problem, workloads=works)
    rows, judged = Rows(problem), every_pattern(problem, 50)
    duals = np.where(np.isfinite(rows.upper), -1.0, 1.0) * rng.uniform(0, 2, rows.count)
    rows.unserved_usd = duals[: rows.pool_at] + np.array([10.0, 0.5, 10.0, 10.0]) * duals[rows.fewest]
    moved = rows.on_demand(duals)
    left = moved[rows.fewest] / duals[rows.fewest]
    assert left == pytest.approx([0.0, 0.5, 0.0, 1.0], abs=1e-12)
    assert rows.sides(moved) == pytest.approx(rows.sides(duals))
    before, after = rows.columns(judged).reduced(duals), rows.columns(judged).reduced(moved)
    assert (after >= before - 1e-9).all()
    assert (after > before + 1e-3).any()
