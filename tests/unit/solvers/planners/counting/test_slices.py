"""Slices by counts cost what a binary for every slice costs, and cannot be had cheaper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.engines.base import Limits
from solvers.engines.deadline import Deadline
from solvers.engines.registry import create
from solvers.planners.counting.rows import Rows
from solvers.planners.counting.slices import slice_up
from solvers.problems.counts import Slices


def drawn(seed: int, buckets: int = 5, types: int = 3) -> Slices:
    rng = np.random.default_rng(seed)
    power = rng.uniform(1, 4, types)
    load = rng.uniform(0.05, 0.4, (buckets, 1)) / power * rng.uniform(0.8, 1.2, (buckets, types))
    load[0, 0] = np.inf
    return Slices(load=load, slices=np.full(buckets, 3), usd=power * rng.uniform(0.8, 1.2, types))


def one_by_one(problem: Slices) -> float:
    """Melange's own form: a binary for every slice and type."""
    rows = Rows()
    buckets, types = problem.load.shape
    gpus = rows.add_columns(problem.usd, np.full(types, np.inf))
    room = rows.add_rows(np.full(types, -np.inf), np.zeros(types))
    rows.enter(room, gpus, -1.0)
    for bucket in range(buckets):
        for _ in range(int(problem.slices[bucket])):
            able = np.nonzero(np.isfinite(problem.load[bucket]))[0]
            where = rows.add_columns(np.zeros(len(able)), np.ones(len(able)))
            placed = rows.add_rows(np.ones(1), np.ones(1))
            rows.enter(placed, where, 1.0)
            rows.enter(room[able], where, problem.load[bucket, able])
    answer = create("highs").solve(rows.program(), Limits(time_s=20))
    assert answer.gap < 1e-6
    return answer.objective


@pytest.mark.parametrize("seed", range(4))
def test_counts_cost_what_binaries_cost(seed: int) -> None:
    problem = drawn(seed)
    found = slice_up(problem, create("highs"), Deadline(seconds=10))
    assert found.counts is not None
    assert problem.feasible(found.counts)
    assert found.objective == pytest.approx(one_by_one(problem), abs=1e-6)
    assert found.bound <= found.objective + 1e-9
    assert found.gap < 1e-6


def test_types_that_cannot_serve_a_bucket_get_none_of_it() -> None:
    problem = drawn(2)
    found = slice_up(problem, create("highs"), Deadline(seconds=10))
    assert found.counts is not None
    assert found.counts[0, 0] == 0
    wrong = found.counts.copy()
    wrong[0, 0], wrong[0, 1:] = 3, 0
    assert not problem.feasible(wrong)


def test_too_few_gpus_are_no_plan() -> None:
    problem = replace(drawn(1), gpus_max=np.zeros(3, dtype=np.int64))
    found = slice_up(problem, create("highs"), Deadline(seconds=5))
    assert found.counts is None
    assert found.gap == np.inf
