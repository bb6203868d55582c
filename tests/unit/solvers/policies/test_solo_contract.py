"""What every published model of replicas alone owes: it learns, dumps, comes back, adds up, and stays within reason."""

from __future__ import annotations

import json

import numpy as np
import pytest

from solvers.models import suite
from solvers.models.base import Quantity, Queries, Samples
from tests import laws

NAMES = ("static", "inss", "mudi", "morak", "igniter")
PARTS = {"static": 0.05, "inss": 0.08, "mudi": 0.30, "morak": 0.06, "igniter": 0.05}
"""Largest error of any held-out cell of the invented law. Two lines are far from work over share."""


def held_out() -> tuple[Samples, Samples]:
    samples = laws.solo(batches=(1, 2, 4, 8, 12, 16, 24, 32), shares=(10, 20, 30, 40, 50, 60, 80, 100))
    queries = samples.queries
    out = np.isin(queries.batch, (4, 24)) & np.isin(queries.share_pct, (30, 60))
    return samples.take(~out), samples.take(out)


@pytest.mark.parametrize("name", NAMES)
def test_cells_held_out_are_met(name: str) -> None:
    known, asked = held_out()
    answer = suite.make_solo(name, laws.facts()).fit(known).predict(asked.queries)
    assert np.abs(answer.mean / asked.latency_ms - 1.0).max() <= PARTS[name]
    assert (answer.std > 0).all()
    assert answer.support.all()


@pytest.mark.parametrize("name", NAMES)
def test_a_dump_answers_the_same(name: str) -> None:
    known, asked = held_out()
    facts = laws.facts()
    model = suite.make_solo(name, facts).fit(known)
    plain = json.loads(json.dumps(model.dump(), allow_nan=False))
    back = suite.load_solo(name, plain, facts)
    for quantity in model.spec.quantities:
        np.testing.assert_array_equal(
            back.predict(asked.queries, quantity).mean, model.predict(asked.queries, quantity).mean
        )
    np.testing.assert_array_equal(back.predict(asked.queries).std, model.predict(asked.queries).std)


@pytest.mark.parametrize("name", NAMES)
def test_updating_is_fitting_to_all(name: str) -> None:
    samples = laws.solo(["res", "vgg"])
    half = np.arange(len(samples)) < len(samples) // 3
    fresh = suite.make_solo(name, laws.facts())
    grown = fresh.fit(samples.take(half)).update(samples.take(~half))
    np.testing.assert_array_equal(grown.predict(samples.queries).mean, fresh.fit(samples).predict(samples.queries).mean)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "inss"])
def test_latency_rises_with_neither_share_nor_clock(name: str) -> None:
    model = suite.make_solo(name, laws.facts()).fit(laws.solo())
    shares = np.arange(10.0, 101.0)
    latency = model.predict(Queries.of("vgg", laws.GPU, 8, shares)).mean
    assert (np.diff(latency) <= 1e-9).all()
    clocks = model.predict(Queries.of("vgg", laws.GPU, 8, 50, np.linspace(600.0, 1530.0, 9))).mean
    assert (np.diff(clocks) <= 1e-9).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_a_few_rows_give_positive_finite_answers(name: str, rows: int) -> None:
    samples = laws.solo(["res"])
    some = samples.take(np.random.default_rng(rows).permutation(len(samples))[:rows])
    answer = suite.make_solo(name, laws.facts()).fit(some).predict(samples.queries)
    assert np.isfinite(answer.mean).all()
    assert (answer.mean > 0).all()
    assert np.isfinite(answer.std).all()


@pytest.mark.parametrize("name", NAMES)
def test_what_was_never_measured_is_unknown(name: str) -> None:
    model = suite.make_solo(name, laws.facts()).fit(laws.solo(["res"]))
    answer = model.predict(Queries.of(["vgg", "res"], [laws.GPU, "t4"], 4, 50))
    assert np.isnan(answer.mean).all()
    assert np.isinf(answer.distance).all()
    unfitted = suite.make_solo(name, laws.facts()).predict(Queries.of("res", laws.GPU, 4, 50))
    assert np.isnan(unfitted.mean).all()


@pytest.mark.parametrize("name", NAMES)
def test_throughput_is_batches_back_to_back(name: str) -> None:
    samples = laws.solo()
    model = suite.make_solo(name, laws.facts()).fit(samples)
    latency = model.predict(samples.queries).mean
    throughput = model.predict(samples.queries, Quantity.THROUGHPUT_RPS).mean
    np.testing.assert_allclose(throughput, 1000.0 * samples.queries.batch / latency)
