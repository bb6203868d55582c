"""Judging many patterns says exactly what judging each of them says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.planners.joint.solve.books import Books, Rows, rows_of
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import judge
from tests.unit.solvers.planners.joint.solve.scenes import BASES, scene


def drawn(problem: JointProblem, count: int, seed: int) -> Rows:
    """Random devices, on and off the grid's shares, lawful or not, members in no order."""
    rng = np.random.default_rng(seed)
    width = max(pool.clients for pool in problem.pools)
    variants = rng.integers(0, len(problem.variants), (count, width))
    shares = rng.integers(4, 45, (count, width)) * rng.choice([1, 2], (count, 1))
    stands = np.arange(width) < rng.integers(1, width + 1, (count, 1))
    return Rows(
        kind=rng.integers(0, problem.kinds, count),
        variants=np.where(stands, variants, -1),
        shares_pct=np.where(stands, shares, 0),
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("basis", BASES)
def test_equals_the_judgement_of_each(seed: int, basis: str) -> None:
    problem = scene(seed, basis=basis)
    rows = drawn(problem, 250, seed)
    books = Books(problem)
    verdicts = books.judge_many(rows)
    patterns = books.patterns(verdicts)
    seen = 0
    for row in range(len(rows)):
        stands = rows.variants[row] >= 0
        exact = judge(
            problem,
            int(rows.kind[row]),
            rows.variants[row][stands].tolist(),
            rows.shares_pct[row][stands].tolist(),
        )
        assert bool(verdicts.lawful[row]) == (exact is not None)
        if exact is None:
            continue
        seen += 1
        found = patterns[row]
        assert (found.key, found.batches) == (exact.key, exact.batches)
        for name in ("latency_ms", "capacity_rps", "power_w", "memory_mib", "usd_per_h", "draw_w"):
            assert getattr(found, name) == pytest.approx(getattr(exact, name), rel=1e-9)
    assert 20 < seen < 240


def test_tight_memory_takes_smaller_batches() -> None:
    problem = scene(4)
    generous = Books(replace(problem, memory_mib=problem.memory_mib * 0.01))
    rows = drawn(problem, 300, 9)
    tight = Books(problem).judge_many(rows)
    loose = generous.judge_many(rows)
    both = tight.lawful & loose.lawful
    assert np.all(tight.column[both] <= loose.column[both])
    assert np.any(tight.column[both] < loose.column[both])


def test_rows_of_patterns_come_back_as_they_were() -> None:
    problem = scene(5)
    books = Books(problem)
    verdicts = books.judge_many(drawn(problem, 100, 3))
    patterns = [item for item, fit in zip(books.patterns(verdicts), verdicts.lawful, strict=True) if fit]
    assert len(patterns) > 5
    again = books.judge_many(rows_of(patterns, books.width))
    assert again.lawful.all()
    assert books.patterns(again) == patterns
