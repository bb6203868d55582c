"""No bound is above the best of all that a plan may have: odd steps, energy, and batches where memory or watts lack."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.engines.deadline import Deadline
from solvers.planners.joint import certificate
from solvers.planners.joint.certificate import Certificate, Loosened, branched
from solvers.planners.joint.solve.listing import solved_whole
from solvers.planners.joint.solve.solve import SolveOrder, solve
from solvers.problems import joint
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import EMPTY
from tests.oracle import optimum as tried
from tests.property.tiny import tiniest
from tests.unit.solvers.planners.joint.solve.oracle import every_choice, optimum
from tests.unit.solvers.planners.joint.solve.scenes import BASES, scene

SEEDS = pytest.mark.parametrize("seed", range(12))
CENT = 1e-5
SURELY_USD = 1e6


def hard(seed: int) -> JointProblem:
    """A device of each type for two services that must be served."""
    rng, basis = np.random.default_rng(seed), BASES[seed % 2]
    made = scene(seed, services=2, devices=1, basis=basis)
    pools = (
        replace(
            pool,
            memory_mib=float(rng.choice([2500.0, 4000.0, 12_000.0])),
            clients=int(rng.integers(1, 3)),
            capped=bool(rng.random() < 0.3),
            limit_w=float(rng.choice([90.0, 150.0])),
        )
        for pool in made.pools
    )
    works = (
        replace(work, rate_rps=rng.uniform(0.1, 0.5) * work.rate_rps, unserved_usd=SURELY_USD, budget_usd_per_h=np.inf)
        for work in made.workloads
    )
    growing = made.batches ** rng.uniform(0.0, 0.5, (len(made.variants), 1))
    return replace(
        made,
        pools=tuple(pools),
        workloads=tuple(works),
        memory_mib=made.memory_mib * growing,
        power_w=made.power_w * growing[None, :, None, :] / growing.max(),
        share_step_pct=int(rng.choice([30, 40, 60])),
        usd_per_wh=float(rng.choice([0.0002, 0.01])),
    )


def loose(problem: JointProblem) -> Loosened:
    pools = len(problem.pools)
    return Loosened(
        snapshot=None,  # type: ignore[arg-type]
        fleet=None,  # type: ignore[arg-type]
        problem=problem,
        pinned=(),
        room_pct=np.full(pools, 100.0),
        paid=np.zeros(pools, dtype=np.bool_),
    )


@SEEDS
def test_what_listing_proves(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = hard(seed)
    best = optimum(problem, every_choice(problem))
    for most in (joint.LISTED_MAX, problem.patterns_most):
        monkeypatch.setattr(joint, "LISTED_MAX", most)
        found = solved_whole(replace(problem), EMPTY, 0.0, Deadline(60.0, 1000))
        assert found is not None
        assert found.bound_usd_per_h is not None
        assert found.bound_usd_per_h <= best * (1 + CENT)
        # It is no less than that where batches are variants meanwhile.
        assert most == problem.patterns_most or found.bound_usd_per_h >= best * (1 - CENT)


@SEEDS
def test_what_pricing_and_branching_prove(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = hard(seed)
    best = optimum(problem, every_choice(problem))
    monkeypatch.setattr(joint, "LISTED_MAX", 0)
    found = solve(replace(problem), SolveOrder(gap=0.0), Deadline(60.0, 200)).bound_usd_per_h
    assert found is not None
    assert found <= best * (1 + CENT)
    asked = replace(problem, workloads=tuple(replace(item, replicas_min=0) for item in problem.workloads))
    best = optimum(asked, every_choice(asked))
    assert branched(asked, best, Deadline(60.0, 200))[0] <= best * (1 + CENT)


@SEEDS
@pytest.mark.parametrize("singles", [0, certificate.SINGLES_MAX])
def test_what_is_proven_at_a_glance(seed: int, singles: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One small service, alone wherever it stands, that keeps its promise with no less than some share."""
    basis = BASES[seed % 3]
    made, least_pct = scene(seed, services=1, devices=1, basis=basis), 30.5 + seed
    limit_ms = np.interp(least_pct, made.shares_pct[1:], made.tail_ms[-1, 0, 1:, 0]).item()
    pools = tuple(replace(pool, clients=1, capped=seed % 4 == 3, limit_w=90.0) for pool in made.pools)
    (work,) = made.workloads
    work = replace(work, rate_rps=1.0, unserved_usd=SURELY_USD, replicas_min=0, limit_ms=limit_ms, end_to_end=False)
    problem = replace(made, pools=pools, workloads=(work,), share_step_pct=[1, 7, 15, 60][seed // 3], usd_per_wh=0.01)
    best = optimum(problem, every_choice(problem))
    monkeypatch.setattr(certificate, "SINGLES_MAX", singles)
    found = Certificate.of(loose(problem), None, Deadline(1.0, 0)).at_a_glance
    assert found is not None
    assert found.usd_per_h <= best * (1 + CENT)
    assert found.usd_per_h > 0.5 * best or basis == "device"


@pytest.mark.parametrize("seed", range(4))
def test_whatever_batches_are_tried_one_by_one(seed: int) -> None:
    """The enumeration that the others are held against, by one that shares no code with it."""
    made = tiniest(seed)
    problem = replace(made, memory_mib=made.memory_mib * [0.7, 2.0], usd_per_wh=0.005, power_w=made.power_w * [0.5, 1])
    problem = replace(problem, workloads=tuple(replace(item, domains_min=1) for item in problem.workloads))
    best = tried(problem, any_batch=True).usd_per_h
    assert optimum(problem, every_choice(problem)) == pytest.approx(best, rel=1e-5)
    assert best <= tried(problem).usd_per_h + CENT
