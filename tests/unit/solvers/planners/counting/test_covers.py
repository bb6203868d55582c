"""Covers: mixtures are the cheapest there are, plans equal the exact optimum of small problems, bounds hold."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from solvers.engines.base import Limits, ProgrammeRows, create
from solvers.engines.deadline import Deadline
from solvers.planners.counting import covers
from solvers.planners.counting.covers import Covered, KnapsackBoard, cheapest, cover
from solvers.planners.counting.demands import Covers


def drawn(seed: int, demands: int = 5, units: int = 14) -> Covers:
    rng = np.random.default_rng(seed)
    each = 4
    owner = np.repeat(np.arange(demands), each)
    rate = rng.uniform(2, 12, demands * each)
    return Covers(
        demand=rng.uniform(8, 30, demands),
        unserved_usd=np.full(demands, 500.0),
        option_demand=owner,
        option_rate=rate,
        option_usd=rate * rng.uniform(0.5, 1.5, demands * each),
        option_resource=rng.integers(0, 3, demands * each),
        option_units=rng.integers(1, 3, demands * each),
        units=np.full(3, units),
    )


def exact(problem: Covers) -> float:
    """By the plain programme: whole counts, a binary for every demand that goes without."""
    rows = ProgrammeRows()
    demands = len(problem.demand)
    leave = rows.add_columns(problem.unserved_usd, np.ones(demands))
    counts = rows.add_columns(problem.option_usd, problem.replicas_alone.astype(np.float64))
    covered = rows.add_rows(problem.demand, np.full(demands, np.inf))
    rows.enter(covered, leave, problem.demand)
    rows.enter(covered[problem.option_demand], counts, problem.option_rate)
    room = rows.add_rows(np.full(len(problem.units), -np.inf), problem.units.astype(np.float64))
    rows.enter(room[problem.option_resource], counts, problem.option_units.astype(np.float64))
    answer = create("highs").solve(rows.program(), Limits(time_s=20))
    assert answer.gap < 1e-6
    return answer.objective


def plan(problem: Covers) -> Covered:
    return cover(problem, create("highs"), Deadline(seconds=10), gap=0.0)


@pytest.mark.parametrize("seed", range(6))
def test_the_cheapest_mixture_is_the_cheapest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    price, rate, demand = rng.uniform(1, 5, 3), rng.uniform(1, 4, 3), 9.0
    tried = min(
        price @ counts for counts in map(np.array, itertools.product(range(11), repeat=3)) if rate @ counts >= demand
    )
    found = cheapest(price.tolist(), rate.tolist(), demand)
    assert found.price == pytest.approx(tried)
    assert found.bound == pytest.approx(tried)
    assert sum(rate[place] * count for place, count in zip(found.places, found.counts, strict=True)) >= demand - 1e-6


def test_a_search_cut_off_still_bounds_from_below(monkeypatch: pytest.MonkeyPatch) -> None:
    price, rate = [3.0, 5.0, 7.1], [2.0, 3.1, 4.3]
    whole = cheapest(price, rate, 17.0)
    monkeypatch.setattr(covers, "NODES_MAX", 1)
    cut_off = cheapest(price, rate, 17.0)
    assert cut_off.bound <= whole.price <= cut_off.price


def test_mixtures_of_two_cover_the_demand_at_the_price_they_say() -> None:
    problem = drawn(3)
    board = KnapsackBoard.of(problem)
    price = problem.option_usd[board.option]
    duos = board.duos(price, 3)
    for demand, rank in itertools.product(range(len(problem.demand)), range(3)):
        first, second = duos.first[demand, rank], duos.second[demand, rank]
        some, others = duos.first_count[demand, rank], duos.second_count[demand, rank]
        assert some * board.rate[demand, first] + others * board.rate[demand, second] >= 1 - 1e-6
        told = some * price[demand, first] + others * price[demand, second]
        assert duos.price[demand, rank] == pytest.approx(told)


@pytest.mark.parametrize("units", [5, 9, 60])
@pytest.mark.parametrize("seed", [1, 2])
def test_plans_are_near_the_optimum_and_bounds_below_it(seed: int, units: int) -> None:
    problem = drawn(seed, units=units)
    best, found = exact(problem), plan(problem)
    assert problem.feasible(found.counts)
    assert found.objective == pytest.approx(problem.objective(found.counts))
    assert found.bound <= best + 1e-6
    assert best - 1e-6 <= found.objective <= best * 1.02 + 1e-6
    assert int((~problem.served(found.counts)).sum()) >= found.unserved_least


def test_who_must_go_without_is_told_by_what_it_counts() -> None:
    problem = drawn(1, units=4)
    assert plan(problem).unserved_least >= 1
    dear = Covers(
        **{
            name: getattr(problem, name)
            for name in (
                "demand",
                "option_demand",
                "option_rate",
                "option_usd",
                "option_resource",
                "option_units",
                "units",
            )
        },
        unserved_usd=np.where(np.arange(len(problem.demand)) == 0, 5000.0, 500.0),
    )
    assert dear.served(plan(dear).counts)[0]


@pytest.mark.parametrize("seed", range(5))
def test_no_time_at_all_still_serves_what_fits(seed: int) -> None:
    """One demand after the other: nothing is proven, and nobody goes without while there is room for all."""
    ample, scarce = drawn(seed, units=1000), drawn(seed, units=6)
    for problem in (ample, scarce):
        found = cover(problem, create("highs"), Deadline(seconds=0.0))
        assert problem.feasible(found.counts)
        assert found.counts.any()
        assert found.objective == problem.objective(found.counts) >= plan(problem).objective - 1e-9
        assert (found.bound, found.unserved_least) == (-np.inf, 0)
    assert ample.served(cover(ample, create("highs"), Deadline(seconds=0.0)).counts).all()
