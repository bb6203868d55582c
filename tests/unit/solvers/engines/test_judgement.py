"""A claim is worth what can be checked of it."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.engines.base import EngineAnswer, EngineStatus, Limits, Program
from solvers.engines.highs import Highs
from solvers.engines.judgement import LibraryClaim, told_apart, verdict, weak_bound
from tests.unit.solvers.engines.programmes import INF, program

LIMITS = Limits()
SWITCHED = program([10, 1], [(-INF, [-100, 1], 0), (60, [0, 1], INF)], upper=[5, 500], integer=[True, False])


def values(*numbers: float) -> np.ndarray:
    return np.array(numbers, dtype=np.float64)


def lp(rest: Program) -> EngineAnswer:
    return Highs().solve(rest, LIMITS)


def judged(asked: Program, claim: LibraryClaim, hint: np.ndarray | None = None) -> EngineAnswer:
    return verdict(asked, LIMITS, claim, hint, lp)


def test_optimal_is_derived_from_the_bound() -> None:
    asked = program([1], [(2, [1], INF)], upper=9.0)
    proven = judged(asked, LibraryClaim(otherwise=EngineStatus.NO_SOLUTION, values=values(2), bound=2))
    boasted = judged(asked, LibraryClaim(otherwise=EngineStatus.OPTIMAL, values=values(3), bound=-INF))
    assert proven.status is EngineStatus.OPTIMAL
    assert boasted.status is EngineStatus.FEASIBLE
    assert boasted.gap == INF


def test_rounded_up_when_nearly_whole() -> None:
    asked = program([1], [(2, [1], INF)], upper=9.0)
    answer = judged(asked, LibraryClaim(values=values(2.0000004), bound=1.9999999))
    assert answer.values is not None
    assert answer.values.tolist() == [2.0]
    assert answer.objective == 2.0


def test_a_broken_rounding_is_repaired_by_the_rest() -> None:
    answer = judged(SWITCHED, LibraryClaim(values=values(0.9, 90.0), bound=-INF))
    assert answer.values is not None
    assert answer.values.tolist() == pytest.approx([1, 90])
    broken = judged(SWITCHED, LibraryClaim(values=values(1.4, 140.0), bound=-INF))
    assert broken.values is not None
    assert broken.values.tolist() == pytest.approx([1, 60])


def test_a_rounding_beyond_repair_is_no_solution() -> None:
    claim = LibraryClaim(otherwise=EngineStatus.OPTIMAL, values=values(0.4, 60.0), bound=14)
    failed = judged(SWITCHED, claim)
    assert failed.status is EngineStatus.FAILED
    assert failed.bound == -INF
    assert "whole" in failed.note
    cut_off = judged(SWITCHED, LibraryClaim(otherwise=EngineStatus.NO_SOLUTION, values=values(0.4, 60.0), bound=14))
    assert cut_off.status is EngineStatus.NO_SOLUTION
    assert cut_off.bound == 14
    all_whole = program([1, 1], [(3, [2, 2], 3.2)], upper=5.0)
    assert judged(all_whole, LibraryClaim(otherwise=EngineStatus.OPTIMAL, values=values(0.75, 0.75))).values is None


def test_values_that_are_no_numbers_are_none() -> None:
    asked = program([1], [(2, [1], INF)], upper=9.0)
    for broken in (values(np.nan), values(INF), values(1, 2)):
        answer = judged(asked, LibraryClaim(otherwise=EngineStatus.OPTIMAL, values=broken, bound=2))
        assert answer.status is EngineStatus.FAILED


def test_a_solution_refutes_infeasible() -> None:
    asked = program([1], [(2, [1], INF)], upper=9.0)
    answer = judged(asked, LibraryClaim(otherwise=EngineStatus.INFEASIBLE), values(4))
    assert answer.status is EngineStatus.FEASIBLE
    assert answer.objective == 4
    assert "wrongly" in answer.note
    assert judged(asked, LibraryClaim(otherwise=EngineStatus.INFEASIBLE), values(1)).status is EngineStatus.INFEASIBLE


def test_bounds_above_a_solution_are_cut_back() -> None:
    asked = program([1], [(2, [1], INF)], upper=9.0)
    answer = judged(asked, LibraryClaim(values=values(2), bound=2.5))
    assert answer.bound == answer.objective == 2


def test_unbounded_needs_a_solution() -> None:
    asked = program([-1], [(2, [1], INF)])
    claim = LibraryClaim(otherwise=EngineStatus.UNBOUNDED, values=values(5), bound=0)
    found = told_apart(asked, claim, lambda anything: LibraryClaim(values=anything.lower + 2))
    assert (found.otherwise, found.values, found.bound) == (EngineStatus.UNBOUNDED, None, -INF)
    none = told_apart(asked, claim, lambda anything: LibraryClaim(otherwise=EngineStatus.INFEASIBLE))
    assert none.otherwise is EngineStatus.INFEASIBLE


def test_any_duals_bound() -> None:
    asked = program([2, 3], [(4, [1, 1], INF), (-INF, [1, 0], 3)], upper=10.0, integer=False, offset=1.0)
    best = 1 + 9
    rng = np.random.default_rng(3)
    bounds = [weak_bound(asked, rng.normal(0, 3, 2)) for _ in range(200)]
    assert max(bounds) <= best
    assert weak_bound(asked, values(3, -1)) == pytest.approx(best)
    assert weak_bound(program([1], [(2, [1], INF)], integer=False), values(2)) == -INF
