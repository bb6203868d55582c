"""The verifier's own latency formula grants what the planners' grants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solvers.domain.workload import Slo, SloScope
from solvers.problems.promise import Promise, settle
from solvers.verify.bounds import Execution, capacity_rps, keeps_promise
from solvers.verify.picture import Picture
from tests import builders
from tests.unit.solvers.verify.test_unlimited import plan_of

UTILISATION_MAX = 0.6
DEVICE = builders.device("a", 0, "t4")


@pytest.mark.parametrize("scope", list(SloScope))
def test_two_formulas_written_apart_agree(scope: SloScope) -> None:
    policy = builders.policy(utilisation_max=UTILISATION_MAX)
    picture = builders.snapshot([DEVICE], [builders.service("vision")], policy=policy)
    seen = Picture(picture, plan_of(picture, ()), ())
    rng = np.random.default_rng(1)
    kept = 0
    for _ in range(300):
        batch, mean_ms = int(rng.integers(1, 65)), float(rng.uniform(1, 100))
        tail_ms = mean_ms * float(rng.uniform(1, 2))
        slo = replace(builders.slo(float(rng.uniform(5, 600))), percentile=float(rng.uniform(50, 100)), scope=scope)
        ours = granted(slo, batch, mean_ms, tail_ms)
        bound = Execution(mean_ms=mean_ms, tail_ms=tail_ms)
        item = builders.assignment("demo/vision#0", DEVICE, batch=batch)
        assert keeps_promise(slo, bound, batch) == (ours > 0)
        assert capacity_rps(seen, item, slo, bound) == pytest.approx(ours, rel=1e-9)
        kept += ours > 0
    assert 60 < kept < 290


def granted(slo: Slo, batch: int, mean_ms: float, tail_ms: float) -> float:
    """By the planners' formula; an execution that is promised alone may keep its server busy all the time."""
    waits = slo.scope is not SloScope.EXECUTION
    promise = Promise(
        limit_ms=slo.latency_ms,
        percentile=slo.percentile,
        end_to_end=waits,
        utilisation_max=UTILISATION_MAX if waits else 1.0,
    )
    outcome = settle(promise, np.array([float(batch)]), np.array([mean_ms]), np.array([tail_ms]))
    return float(outcome.capacity_rps[0]) if outcome.feasible[0] else 0.0
