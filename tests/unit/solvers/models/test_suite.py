"""Whole suites: every name fits, answers what is possible and twice the same, and comes back from plain data."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pytest

from solvers.errors import InputError
from solvers.models.base import Answer, Groups, GroupSamples, Origin, Quantity, Queries, Samples, SoloModel
from solvers.models.suite import Suite, suites
from tests import laws

CLOCK_MHZ = 1380


def odd() -> tuple[Samples, GroupSamples]:
    """What a hurried user measures: one row, one batch, equal rows, contradictions, latency that falls with batch,
    latencies left out, odd names, a second GPU type, a model beside itself, pairs without anything alone.
    """
    rows: list[tuple[str, str, float, float, float, float]] = [
        *(("alex", "v100", b, s, np.nan, 1.0 + b * 50.0 / s) for b in (1, 4, 16) for s in (20, 50, 100)),
        ("one row", "v100", 4, 50, np.nan, 7.0),
        *(("one batch", "v100", 1, s, np.nan, 300.0 / s) for s in (20, 40, 80)),
        *(("equal", "v100", 8, 50, np.nan, 3.0) for _ in range(6)),
        *(("contrary", "v100", 4, 50, CLOCK_MHZ, latency) for latency in (1e-3, 1.0, 10.0, 1e4)),
        *(("falling", "v100", b, s, np.nan, 100.0 * s / b) for b in (1, 4, 16) for s in (20, 50, 100)),
        ('Größe, "q" 日本', "T 4 é", 3, 33.3, 700, 9.0),
        *(("alex", "a100", b, s, np.nan, 0.5 + b * 20.0 / s) for b in (1, 4, 16) for s in (20, 50, 100)),
        *(("no latency", "v100", b, 50, np.nan, np.nan) for b in (1, 2, 4)),
        ("extreme", "v100", 4096, 0.01, 100_000, 1e9),
        ("extreme", "v100", 1, 100, 1, 1e-6),
    ]
    models, gpu_types, *numbers = zip(*rows, strict=True)
    batch, share, clock, latency = (np.array(column, dtype=np.float64) for column in numbers)
    alone = Samples.of(Queries.of(models, gpu_types, batch, share, clock), latency, power_w=np.full(len(rows), 30.0))
    first = Queries.of(["alex", "alex", "stranger", "equal"], ["v100", "v100", "a100", "v100"], [4, 1, 2, 8], 50)
    second = Queries.of(["alex", "one row", "nobody", "contrary"], ["v100", "v100", "a100", "v100"], [4, 4, 2, 4], 50)
    beside = GroupSamples(
        groups=Groups.pairs(first, second),
        latency_ms=np.array([12.0, 12.0, 2.0, np.nan, 3.0, 30.0, 1e-6, 1e9]),
    )
    return laws.solo(models=("res",)).joined(alone), beside


def questions(samples: Samples) -> Queries:
    """Every model on every GPU type it was measured on and one more, far beyond what was measured."""
    names = [*samples.queries.models, "unmet"]
    cells = [
        (name, gpu_type, batch, share, clock)
        for name in names
        for gpu_type in ("v100", "unmet")
        for batch in (1, 3, 4096)
        for share in (0.01, 33.3, 100)
        for clock in (np.nan, 1.0, 100_000.0)
    ]
    return Queries.of(*zip(*cells, strict=True))


def check(answer: Answer, *, least: float) -> None:
    known = np.isfinite(answer.mean)
    assert (answer.mean[known] >= least).all()
    assert (answer.std[known] > 0).all()
    assert np.isfinite(answer.std[known]).all()
    assert np.isnan(answer.mean[~known]).all(), "an answer is infinite"
    assert not answer.support[~known].any()


@pytest.mark.parametrize("name", suites())
def test_odd_measurements_give_possible_answers_twice_the_same(name: str) -> None:
    samples, beside = odd()
    asked = questions(samples)
    pairs = Groups.pairs(asked, replace(asked, model=np.roll(asked.model, 40)))
    suite = Suite.fresh(name, laws.facts()).fit(samples, beside)
    text = json.dumps(suite.dump(), allow_nan=False)
    again = Suite.fresh(name, laws.facts()).fit(samples, beside)
    assert json.dumps(again.dump(), allow_nan=False) == text
    loaded = Suite.load(json.loads(text), laws.facts())
    for quantity in suite.solo.spec.quantities:
        found = suite.predict(asked, quantity)
        check(found, least=0.0 if quantity is Quantity.POWER_W else 1e-300)
    np.testing.assert_array_equal(suite.predict(asked).mean, loaded.predict(asked).mean)
    assert np.isfinite(suite.predict(samples.queries).mean[: len(laws.BATCHES) * len(laws.SHARES)]).all()
    together = suite.predict_groups(pairs)
    check(together, least=1e-300)
    np.testing.assert_array_equal(together.mean, loaded.predict_groups(pairs).mean)


@dataclass(frozen=True, slots=True)
class Astray:
    """A formula gone astray: it answers 0, less, and too much."""

    solo: SoloModel

    @property
    def spec(self) -> object:
        return self.solo.spec

    def predict(self, queries: Queries, _quantity: Quantity = Quantity.LATENCY_MS) -> Answer:
        count = len(queries)
        mean = np.array([2.0, 0.0, -1.0, np.inf, np.nan])[:count]
        return Answer(
            mean=mean,
            std=np.abs(mean),
            support=np.ones(count, dtype=np.bool_),
            distance=np.zeros(count),
            origin=np.zeros(count, dtype=np.int8),
        )


def test_what_is_not_possible_is_not_known() -> None:
    suite = Suite.fresh("hetsev", laws.facts())
    suite = replace(suite, solo=cast("SoloModel", Astray(suite.solo)))
    latency = suite.predict(Queries.of("res", "v100", [1, 2, 4, 8, 16], 50))
    assert np.isfinite(latency.mean).tolist() == [True, False, False, False, False]
    assert (
        np.isfinite(latency.std).tolist()
        == np.isfinite(latency.distance).tolist()
        == np.isfinite(latency.mean).tolist()
    )
    assert latency.support.tolist() == [True, False, False, False, False]
    assert latency.origin.tolist() == [Origin.MEASURED, *(Origin.SCALED for _ in range(4))]
    power = suite.predict(Queries.of("res", "v100", [1, 2, 4], 50), Quantity.POWER_W)
    assert np.isfinite(power.mean).tolist() == [True, True, False], "an idle replica may take no power"
    two = Queries.of("res", "v100", [1], 50)
    assert np.isfinite(suite.predict_groups(Groups.pairs(two, two)).mean).tolist() == [True, False]


def test_unknown_suites_are_refused() -> None:
    with pytest.raises(InputError, match="known are headroom"):
        Suite.fresh("oracle", laws.facts())
    with pytest.raises(InputError, match="format"):
        Suite.load({"format": 99}, laws.facts())
