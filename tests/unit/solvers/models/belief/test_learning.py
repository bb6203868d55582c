"""Many models learned together: better than alone, with intervals that hold."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy.special import stdtrit

from solvers.models.belief.curve import Curve
from solvers.models.belief.forms import LATENCY, weak_prior
from solvers.models.belief.intake import Points
from solvers.models.belief.learning import COUNTS, Field, Lesson, Widening, best, learn
from solvers.models.belief.surface import compiled, lookup
from tests.unit.solvers.models.belief.alone import samples

MODELS = [f"m{index}" for index in range(5)]


def lessons(scatter: float) -> dict[str, Lesson]:
    told = samples(MODELS, scatter)
    return {
        model: Lesson(
            points=Points.of(
                told.queries.batch[rows], told.queries.share_pct[rows] / 100, np.ones(len(rows)), told.latency_ms[rows]
            ),
            priors=(weak_prior(8.0, 1.5),),
        )
        for (model, _), rows in told.queries.keys().items()
    }


def test_quantiles_written_out_are_students() -> None:
    found = np.array(Widening().inside) * 1.96 / 1.3
    assert found == pytest.approx(stdtrit(np.maximum(3, COUNTS), 0.975), rel=1e-12)


def test_a_newcomer_with_few_points_is_foretold_with_honest_intervals() -> None:
    every = lessons(0.02)
    newcomer = every.pop("m4").points
    field, found = learn(LATENCY, every, seed=0)
    assert sorted(found) == MODELS[:4]
    assert field.population is not None
    few = np.isin(np.arange(30), (1, 8, 17, 28))
    curve = best(LATENCY, newcomer.take(few), (field.population, weak_prior(8.0, 1.5)), field.kernel)
    answers = lookup(compiled(curve, field.widening.of(4), clocked=False), newcomer.take(~few).at)
    actual = np.exp(newcomer.take(~few).log_value)
    assert np.abs(answers[:, 0] / actual - 1).mean() < 0.06
    assert (np.abs(answers[:, 0] - actual) < 1.96 * answers[:, 1]).mean() > 0.85


def three() -> dict[str, Lesson]:
    every = lessons(0.02)
    return {name: every[name] for name in MODELS[:3]}


@cache
def learned() -> tuple[Field, dict[str, Curve]]:
    """What three models teach, for both tests that compare with it."""
    return learn(LATENCY, three(), seed=3)


def test_learning_is_deterministic_whatever_the_order() -> None:
    one, two = learned(), learn(LATENCY, dict(reversed(three().items())), seed=3)
    assert one[0].widening == two[0].widening
    for model in MODELS[:3]:
        np.testing.assert_array_equal(one[1][model].parameters, two[1][model].parameters)


def test_a_models_prior_does_not_contain_itself() -> None:
    changed = {**three(), "m0": lessons(0.02)["m4"]}
    first, second = learned()[1], learn(LATENCY, changed, seed=3)[1]
    np.testing.assert_array_equal(first["m0"].prior.mean, second["m0"].prior.mean)
    assert not np.array_equal(first["m1"].prior.mean, second["m1"].prior.mean)


def test_a_single_model_learns_from_what_may_always_hold() -> None:
    field, found = learn(LATENCY, {"m0": lessons(0.02)["m0"]}, seed=0)
    assert field.population is None
    assert found["m0"].prior.source == "any model"


def test_factors_between_the_rows_are_interpolated() -> None:
    widening = Widening(inside=tuple(float(index) for index in range(len(COUNTS))))
    assert widening.of(1)[0] == 0
    assert widening.of(4)[0] == 2
    assert 3 < widening.of(11)[0] < 4
    assert widening.of(10**6)[0] == len(COUNTS) - 1


def test_where_nobody_taught_more_few_measurements_promise_less_than_many() -> None:
    """As Student's distribution has it: the fewer, the wider; of very few, what is believed besides stands for some."""
    usual, taught = Widening(), learn(LATENCY, {"m0": lessons(0.02)["m0"]}, seed=0)[0].widening
    for factors, settled in ((usual.inside, 1.3), (usual.outside, 1.5)):
        assert list(factors) == sorted(factors, reverse=True)
        assert factors[2] / settled == pytest.approx(2.776 / 1.96, rel=1e-3)
        assert factors[-1] / settled == pytest.approx(1.0, abs=0.02)
        assert factors[0] == factors[1]
    assert taught.inside[6:] == usual.inside[6:]
