"""Lodging whole workloads: everybody served, by everybody's rules, on no more devices than need be; or no answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.instances.family import family_problem
from solvers.planners.counting.lodging import lodge
from solvers.problems.joint import JointProblem, Pool, Workload
from solvers.problems.layout import Layout


def small(seed: int = 1, part: float = 0.04) -> JointProblem:
    """A family instance whose rates are so low that one replica serves each."""
    problem = family_problem(64, 20, seed)
    works = tuple(
        replace(work, rate_rps=work.rate_rps * part, rate_least_rps=work.rate_rps * part) for work in problem.workloads
    )
    return replace(problem, workloads=works)


def lodged(problem: JointProblem) -> Layout:
    layout = lodge(problem)
    assert layout is not None
    return layout


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_everybody_is_served_by_one_replica(seed: int) -> None:
    problem = small(seed)
    layout = lodged(problem)
    assert (layout.served_rps(problem) >= problem.rate_rps * (1 - 1e-6)).all()
    variants = [
        variant
        for pattern, count in zip(layout.patterns, layout.counts, strict=True)
        for variant in pattern.variants * count
    ]
    assert sorted(variants) == list(range(20))
    assert all(sum(pattern.shares_pct) <= 100 and len(pattern.variants) <= 7 for pattern in layout.patterns)
    used = layout.devices(problem)
    assert (used <= problem.pool_devices).all()
    assert (used > 0).sum() == 1, "pools are not mixed"


def test_two_that_fit_one_device_take_one() -> None:
    problem = small()
    few = replace(problem, workloads=problem.workloads[:2], variants=problem.variants[:2])
    cut = replace(
        few, mean_ms=few.mean_ms[:, :2], tail_ms=few.tail_ms[:, :2], power_w=few.power_w[:, :2],
        memory_mib=few.memory_mib[:, :2], pressure=few.pressure[:, :2], exponent=few.exponent[:, :2],
        sensitivity=few.sensitivity[:, :2], crowd=few.crowd[:, :2], allowed=few.allowed[:, :2],
    )  # fmt: skip
    assert sum(lodged(cut).counts) == 1
    apart = replace(cut, workloads=(replace(cut.workloads[0], dedicated=True), cut.workloads[1]))
    assert sum(lodged(apart).counts) == 2


def changed(problem: JointProblem, **changes: object) -> JointProblem:
    return replace(problem, workloads=(replace(problem.workloads[0], **changes), *problem.workloads[1:]))


def test_what_it_cannot_answer_is_no_answer() -> None:
    problem = small()
    assert lodge(problem) is not None
    assert lodge(changed(problem, rate_rps=1e9)) is None
    assert lodge(changed(problem, replicas_min=2)) is None
    assert lodge(changed(problem, budget_usd_per_h=1.0)) is None
    assert lodge(replace(problem, quotas=((problem.workloads[0].project, 0.01),))) is None
    assert lodge(replace(problem, pools=tuple(_one_device(pool) for pool in problem.pools))) is None
    dark = tuple(replace(cap, limit_w=1.0) for cap in problem.caps)
    assert lodge(replace(problem, caps=dark)) is None
    assert lodge(replace(problem, allowed=np.zeros_like(problem.allowed))) is None


def _one_device(pool: Pool) -> Pool:
    return replace(pool, devices=1)


def test_workloads_without_a_rate_need_no_place() -> None:
    problem = small()
    idle: tuple[Workload, ...] = (replace(problem.workloads[0], rate_rps=0.0), *problem.workloads[1:])
    layout = lodged(replace(problem, workloads=idle))
    assert all(0 not in pattern.variants for pattern in layout.patterns)
