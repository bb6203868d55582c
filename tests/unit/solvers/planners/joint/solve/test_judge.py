"""Judging many patterns at once says exactly what judging each of them says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.planners.joint.solve.judge import Judge
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import CHARGE_DEVICES, Layout, Patterns, ordered
from tests.judgement import judge
from tests.unit.solvers.planners.joint.solve.oracle import keys_of
from tests.unit.solvers.planners.joint.solve.scenes import BASES, scene


def drawn(problem: JointProblem, count: int, seed: int) -> Patterns:
    """Random devices, on and off the grid's shares, lawful or not, members in no order."""
    rng = np.random.default_rng(seed)
    width = max(pool.clients for pool in problem.pools)
    variants = rng.integers(0, len(problem.variants), (count, width))
    shares = rng.integers(4, 45, (count, width)) * rng.choice([1, 2], (count, 1))
    stands = np.arange(width) < rng.integers(1, width + 1, (count, 1))
    return Patterns(
        kind=rng.integers(0, problem.kinds, count),
        variants=np.where(stands, variants, -1),
        shares_pct=np.where(stands, shares, 0),
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("basis", BASES)
def test_equals_the_judgement_of_each(seed: int, basis: str) -> None:
    problem = scene(seed, basis=basis)
    many = Judge(problem)
    judged = many.judge(drawn(problem, 250, seed))
    patterns = many.patterns(judged)
    exact = [judge(problem, *key) for key in keys_of(judged.rows)]
    assert [item is not None for item in exact] == judged.lawful.tolist()
    assert 20 < judged.lawful.sum() < 240
    for found, item in zip(patterns, exact, strict=True):
        if item is None:
            continue
        assert (found.key, found.batches) == (item.key, item.batches)
        for name in ("latency_ms", "capacity_rps", "power_w", "memory_mib", "usd_per_h", "draw_w"):
            assert getattr(found, name) == pytest.approx(getattr(item, name), rel=1e-9)


def test_a_device_without_members_is_judged_alike_too() -> None:
    problem = scene(1)
    judged = Judge(problem).judge(Patterns.chained([Patterns.none(3), Patterns.of([], 3)]))
    assert len(judged) == len(judged.rows) == 0
    empty = Patterns(kind=np.array([0]), variants=np.full((1, 3), -1), shares_pct=np.zeros((1, 3), dtype=np.int64))
    judged, exact = Judge(problem).judge(empty), judge(problem, 0, (), ())
    assert exact is not None
    assert bool(judged.lawful[0])
    assert (judged.usd_per_h[0], judged.draw_w[0]) == pytest.approx((exact.usd_per_h, exact.draw_w))


def test_tight_memory_takes_smaller_batches() -> None:
    problem = scene(4)
    generous = Judge(replace(problem, memory_mib=problem.memory_mib * 0.01))
    rows = drawn(problem, 300, 9)
    tight = Judge(problem).judge(rows)
    loose = generous.judge(rows)
    both = tight.lawful & loose.lawful
    assert np.all(tight.column[both] <= loose.column[both])
    assert np.any(tight.column[both] < loose.column[both])


def test_the_eager_choose_batches_that_carry_more_when_full() -> None:
    problem = scene(7)
    problem = replace(problem, memory_mib=problem.memory_mib * 0.01)
    rows = drawn(problem, 300, 9)
    careful, eager = Judge(problem).judge(rows), Judge(problem, eager=True).judge(rows)
    both = careful.lawful
    assert np.array_equal(both, eager.lawful)
    assert np.any(eager.column[both] != careful.column[both])
    assert np.all(eager.full_rps[both] >= careful.full_rps[both])
    assert np.all(eager.capacity_rps[both] <= careful.capacity_rps[both])
    assert np.all(careful.full_rps[both] >= careful.capacity_rps[both])


def test_patterns_come_back_as_they_were() -> None:
    problem = scene(5)
    many = Judge(problem)
    judged = many.judge(drawn(problem, 100, 3))
    patterns = [item for item, fit in zip(many.patterns(judged), judged.lawful, strict=True) if fit]
    assert len(patterns) > 5
    again = many.judge(Patterns.of(patterns, many.width))
    assert again.lawful.all()
    assert many.patterns(again) == patterns


def test_members_are_put_in_order_wherever_they_stood() -> None:
    rows = Patterns(kind=np.array([2]), variants=np.array([[3, -1, 1, 1]]), shares_pct=np.array([[10, 0, 30, 20]]))
    assert keys_of(ordered(rows)) == [(2, (1, 1, 3), (20, 30, 10))]
    assert scene(1).members_max <= 10


def test_layouts_are_compared_with_the_replicas_that_they_lack() -> None:
    problem, nothing = scene(3), Layout(patterns=(), counts=())
    fewest = np.array([work.replicas_min > 0 for work in problem.workloads])
    assert fewest.any()
    assert (nothing.fewer(problem) > 0).tolist() == fewest.tolist()
    missing_usd = float(problem.unserved_usd @ nothing.fewer(problem))
    short = CHARGE_DEVICES * problem.dearest_usd * len(problem.workloads)
    assert nothing.value(problem) == pytest.approx(float(problem.unserved_usd.sum()))
    assert nothing.judged_usd(problem) == pytest.approx(nothing.value(problem) + missing_usd + short)
