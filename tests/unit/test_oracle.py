"""The oracle itself, against the integer programme over the same patterns: two ways with little in common."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.engines.base import EngineStatus, Limits
from solvers.engines.highs import Highs
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout
from tests.oracle import optimum, patterns, worth
from tests.property.tiny import permuted, tiny
from tests.unit.solvers.engines.programmes import INF, program
from tests.unit.solvers.planners.joint.solve.scenes import check_layout


def by_programme(problem: JointProblem) -> float:
    """min cost of counts of patterns, missing parts of rates and missing replicas."""
    every, works = patterns(problem), problem.workloads
    size, number = len(every), len(works)
    served, replicas, bills = (np.zeros((number, size + 2 * number)) for _ in range(3))
    others = []
    for pool, item in enumerate(problem.pools):
        held = [float(problem.kind_pool[pattern.kind] == pool) for pattern in every]
        others.append((-INF, [*held, *[0.0] * 2 * number], float(item.devices)))
    idle = np.array([pool.idle_w for pool in problem.pools])
    for cap in problem.caps:
        pools = [int(problem.kind_pool[pattern.kind]) for pattern in every]
        watts = [
            (pattern.draw_w - idle[pool]) * (cap.devices[pool] > 0) for pattern, pool in zip(every, pools, strict=True)
        ]
        others.append((-INF, [*watts, *[0.0] * 2 * number], cap.limit_w - float(np.array(cap.devices) @ idle)))
    quotas = np.zeros((len(problem.quotas), size + 2 * number))
    for column, pattern in enumerate(every):
        pool = problem.pools[int(problem.kind_pool[pattern.kind])]
        for variant, share, rate in zip(pattern.variants, pattern.shares_pct, pattern.capacity_rps, strict=True):
            work = problem.variants[variant].workload
            served[work, column] += rate / works[work].rate_rps
            replicas[work, column] += 1
            bills[work, column] += share / 100 * pool.usd_per_h
            for place, (project, _) in enumerate(problem.quotas):
                quotas[place, column] += share / 100 * pool.gpu_part * (project == works[work].project)
    fewest = replicas.copy()
    for work in range(number):
        served[work, size + work] = 1
        fewest[work, size + number + work] = max(1, works[work].replicas_min)
    asked = program(
        [*(pattern.usd_per_h for pattern in every), *problem.unserved_usd, *problem.unserved_usd],
        [
            *((1.0, row.tolist(), INF) for row in served),
            *((float(work.replicas_min), row.tolist(), INF) for work, row in zip(works, fewest, strict=True)),
            *((-INF, row.tolist(), float(work.replicas_max)) for work, row in zip(works, replicas, strict=True)),
            *((-INF, row.tolist(), work.budget_usd_per_h) for work, row in zip(works, bills, strict=True)),
            *((-INF, row.tolist(), gpus) for row, (_, gpus) in zip(quotas, problem.quotas, strict=True)),
            *others,
        ],
        integer=[True] * size + [False] * 2 * number,
    )
    answer = Highs().solve(asked, Limits(time_s=30.0))
    assert answer.status is EngineStatus.OPTIMAL
    return answer.objective


@pytest.mark.parametrize("seed", range(10))
def test_the_oracle_is_right(seed: int) -> None:
    problem = tiny(seed)
    found = optimum(problem)
    check_layout(problem, found.layout)
    assert worth(problem, found.layout) == pytest.approx(found.usd_per_h)
    # The engine may be better by what its tolerances allow.
    assert found.usd_per_h == pytest.approx(by_programme(problem), rel=1e-5)


def test_problems_are_worth_solving() -> None:
    """Some serve everything and some cannot, devices are shared, and the rules over all of them bind somewhere."""
    problems = [tiny(seed) for seed in range(12)]
    found = [optimum(problem) for problem in problems]
    assert any(best.usd_per_h > 20 for best in found)
    assert any(best.usd_per_h < 5 for best in found)
    assert sum(any(len(pattern.variants) > 1 for pattern in best.layout.patterns) for best in found) > 4
    loosened = [replace(problem, caps=(), quotas=()) for problem in problems]
    gains = [best.usd_per_h - optimum(free).usd_per_h for best, free in zip(found, loosened, strict=True)]
    assert min(gains) >= -1e-9
    assert max(gains) > 1e-3


def test_nothing_is_an_answer() -> None:
    problem = tiny(0)
    nothing = Layout(patterns=(), counts=())
    floors = [float(work.replicas_min > 0) for work in problem.workloads]
    assert worth(problem, nothing) == pytest.approx(float(problem.unserved_usd @ (1 + np.array(floors))))
    nobody = replace(problem, pools=tuple(replace(pool, devices=0) for pool in problem.pools), caps=())
    assert optimum(nobody).usd_per_h == pytest.approx(worth(problem, nothing))


def test_order_does_not_matter() -> None:
    for seed in range(6):
        assert optimum(permuted(tiny(seed), seed)).usd_per_h == pytest.approx(optimum(tiny(seed)).usd_per_h, rel=1e-12)
