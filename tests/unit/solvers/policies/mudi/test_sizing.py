"""The tuner of batches."""

from __future__ import annotations

import math

import numpy as np
import pytest

from solvers.planners.case import Case
from solvers.planners.draft import Draft
from solvers.policies.mudi.curves import MudiCurves, MudiParameters
from solvers.policies.mudi.sizing import MudiMemory, Sizer, beta, bounds, tune
from solvers.problems.needs import Need
from tests import builders

BATCHES = tuple(range(1, 65))


def valley(batch: int) -> float:
    return 5.0 + (math.log2(batch) - 4.0) ** 2


def test_it_finds_the_best_batch_in_a_few_evaluations() -> None:
    found = tune(BATCHES, valley, 1, MudiParameters())
    assert found.evaluations <= 25
    assert valley(found.batch) <= 1.01 * valley(16)
    assert found.value == valley(found.batch)


def test_it_evaluates_no_more_than_it_may_and_no_batch_twice() -> None:
    seen: list[int] = []

    def noted(batch: int) -> float:
        seen.append(batch)
        return valley(batch)

    tune(BATCHES, noted, 64, MudiParameters(iterations=5))
    assert len(seen) == 5
    assert len(set(seen)) == 5
    assert seen[0] == 64


def test_it_passes_over_what_is_impossible() -> None:
    found = tune((1, 2, 4, 8, 16, 32), lambda batch: valley(batch) if batch < 8 else 1e6, 32, MudiParameters())
    assert found.batch == 4


def test_a_single_candidate_needs_one_evaluation() -> None:
    found = tune((4,), valley, 4, MudiParameters())
    assert (found.batch, found.evaluations) == (4, 1)


def test_the_bound_is_wide_where_nothing_was_seen() -> None:
    places = np.log2(np.array([1.0, 2.0, 64.0]))
    low = bounds(places, {0: 1.0, 1: 1.2}, beta(3, 2, 0.1))
    assert low[2] < low[0]
    assert low[0] == pytest.approx(1.0, abs=0.05)
    assert beta(3, 4, 0.1) > beta(3, 2, 0.1) > beta(3, 2, 0.5)


def sizer_of(rate_rps: float) -> tuple[Sizer, Need]:
    picture = builders.snapshot([builders.device("a", 0, "a100")], [builders.service(rate_rps_declared=rate_rps)])
    request = builders.request(picture)
    case = Case.of(request)
    curves = MudiCurves(beliefs=case.beliefs, models=case.snapshot.models_by_name())
    draft = Draft.of(request, case)
    return Sizer(draft=draft, curves=curves, memory=MudiMemory(), parameters=MudiParameters()), draft.needs[0]


def test_replicas_divide_a_rate() -> None:
    sizer, need = sizer_of(600.0)
    half, half_need = sizer_of(300.0)
    two, one = sizer.size(need, 0, 2, None), half.size(half_need, 0, 1, None)
    whole = sizer.size(need, 0, 1, None)
    assert two is not None
    assert one is not None
    assert whole is not None
    assert (two.option.share_pct, two.option.batch) == (one.option.share_pct, one.option.batch)
    assert two.option.share_pct < whole.option.share_pct


def test_the_referee_takes_the_next_measured_share_that_serves_and_is_not_below_the_least() -> None:
    sizer, need = sizer_of(100.0)
    options = sizer.draft.options(need)
    mine = np.arange(len(options))
    batch = int(options.batch.min())
    shares = np.unique(options.share_pct[options.batch == batch])
    for least, found in ((shares[1] / 100.0, shares[1]), (shares[1] / 100.0 + 0.001, shares[2])):
        at = sizer._refereed(options, mine, batch, float(least), 0.0)
        assert at is not None
        assert options.share_pct[at] == found
    enough = float(options.capacity_rps[(options.batch == batch) & (options.share_pct == shares[3])][0])
    at = sizer._refereed(options, mine, batch, 0.01, enough)
    assert at is not None
    assert options.share_pct[at] == shares[3]
    assert sizer._refereed(options, mine, batch, None, 0.0) is None
