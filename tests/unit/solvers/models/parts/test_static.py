"""The static profile: look-up of every quantity, with what it cannot know named."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.errors import InputError
from solvers.models.base import Origin, Quantity, Queries, Samples, SoloModel
from solvers.models.parts import static
from tests import laws


def fitted() -> SoloModel:
    return static.make(laws.facts(), 0).fit(laws.solo())


@pytest.mark.parametrize("quantity", list(Quantity))
def test_measured_cells_come_back_for_every_quantity(quantity: Quantity) -> None:
    samples = laws.solo()
    answer = fitted().predict(samples.queries, quantity)
    np.testing.assert_allclose(answer.mean, samples.column(quantity), rtol=1e-9)
    assert (answer.origin == Origin.MEASURED).all()
    assert (answer.std > 0).all()


def test_unseen_cells_are_close_and_less_sure() -> None:
    asked = Queries.of("vgg", laws.GPU, [6, 12, 24], [30, 50, 70])
    model = fitted()
    answer = model.predict(asked)
    np.testing.assert_allclose(answer.mean, laws.latency_ms(asked), rtol=0.02)
    measured = model.predict(Queries.of("vgg", laws.GPU, 8, 40))
    assert (answer.std / answer.mean >= measured.std / measured.mean).all()
    assert answer.support.all()


def test_spread_grows_beyond_what_was_measured() -> None:
    answer = fitted().predict(Queries.of("vgg", laws.GPU, [32, 64, 256], 100))
    assert answer.support.tolist() == [True, False, False]
    assert (np.diff(answer.std) > 0).all()
    assert answer.mean[2] == pytest.approx(answer.mean[0])


def test_a_lower_clock_takes_more_cycles_worth_of_time() -> None:
    answer = fitted().predict(Queries.of("res", laws.GPU, 4, 40, [np.nan, 1530.0, 765.0]))
    assert answer.mean[1] == pytest.approx(answer.mean[0])
    assert answer.mean[2] == pytest.approx(2.0 * answer.mean[0])
    assert answer.support.tolist() == [True, True, False]


def test_what_was_never_measured_is_unknown() -> None:
    answer = fitted().predict(Queries.of(["gpt", "res"], [laws.GPU, "t4"], 1, 50))
    assert np.isnan(answer.mean).all()
    assert np.isinf(answer.distance).all()
    assert not answer.support.any()
    bare = Samples.of(Queries.of("res", laws.GPU, 1, 50), [2.0])
    power = static.make(laws.facts(), 0).fit(bare).predict(bare.queries, Quantity.POWER_W)
    assert np.isnan(power.mean).all()
    assert np.isinf(power.distance).all()


def test_repeated_points_tell_the_noise() -> None:
    queries = Queries.of("res", laws.GPU, np.repeat([1, 2, 4, 8], 50), 50)
    noise = np.random.default_rng(0).normal(1.0, 0.1, len(queries))
    samples = Samples.of(queries, laws.latency_ms(queries) * noise)
    answer = static.make(laws.facts(), 0).fit(samples).predict(Queries.of("res", laws.GPU, 2, 50))
    assert answer.std[0] / answer.mean[0] == pytest.approx(0.1, rel=0.2)


def test_rows_without_latency_do_not_count() -> None:
    samples = Samples.of(Queries.of(["res", "vgg"], laws.GPU, 1, 50), [2.0, np.nan])
    answer = static.make(laws.facts(), 0).fit(samples).predict(samples.queries)
    assert np.isnan(answer.mean).tolist() == [False, True]


def test_an_unfitted_table_knows_nothing_and_refuses_no_quantity() -> None:
    answer = static.make(laws.facts(), 0).predict(Queries.of("res", laws.GPU, 1, 50))
    assert np.isnan(answer.mean).all()


def test_a_broken_dump_is_refused() -> None:
    with pytest.raises(InputError):
        static.load({"queries": []}, laws.facts())
