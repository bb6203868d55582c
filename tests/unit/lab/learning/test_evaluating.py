"""What an actor is compared with: the integer programme keeps every rule, and nothing earns more than the ceiling."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from lab.learning.evaluating import Ceiling, evaluate, optimum
from lab.learning.settings import setting
from lab.learning.world import Deployment, Environment, Truth
from solvers.policies.inss.actor import NOWHERE, ActorLayer, InssActor

SIX = setting("six")
SMALL = replace(SIX, served=SIX.served[:3], gpus=SIX.gpus[1:3])


@pytest.fixture(scope="module")
def small() -> Truth:
    return Truth.of(SMALL)


def test_the_ceiling_is_what_the_best_of_all_placements_earns(small: Truth) -> None:
    rates = [120.0, 140.0, 70.0]
    env = Environment.of(small, 100.0, np.random.default_rng(0))
    highest, earned = small.highest_rps(), list[float]()
    for places in product(range(2), repeat=3):
        for levels in product(range(0, 17, 2), repeat=3):
            deployed = Deployment.of(small, places, env.shape.granted(places, levels), rates)
            lost = sum(max(0.0, 1.0 - rps / rate) for rps, rate in zip(deployed.throughput_rps, rates, strict=True))
            ratio = sum(rps / high for rps, high in zip(deployed.throughput_rps, highest, strict=True))
            earned.append(ratio - 100.0 * lost)
    ceiling = Ceiling.of(small, rates, 100.0).most()
    assert ceiling >= max(earned) - 1e-9
    # Levels in twos reach nearly every division of the units.
    assert ceiling == pytest.approx(max(earned), rel=0.02)


def test_models_beyond_three_on_a_gpu_are_bounded_as_if_undisturbed() -> None:
    truth = Truth.of(replace(SIX, served=SIX.served[:4], gpus=SIX.gpus[:1]))
    rates = [100.0, 100.0, 50.0, 100.0]
    ceiling = Ceiling.of(truth, rates, 100.0).most()
    env = Environment.of(truth, 100.0, np.random.default_rng(0))
    drawn = np.random.default_rng(1)
    for _ in range(50):
        env.rates_rps = list(rates)
        assert env.step([0] * 4, drawn.integers(0, 17, 4).tolist()).reward <= ceiling


def test_the_programme_keeps_units_limits_and_rates(small: Truth) -> None:
    rates = [300.0, 150.0, 80.0]
    placed = optimum(small, rates, 1.2)
    assert NOWHERE not in placed.places
    for gpu, room in enumerate(small.shape.units):
        assert sum(units for place, units in zip(placed.places, placed.units, strict=True) if place == gpu) <= room
    deployed = Deployment.of(small, placed.places, placed.units, rates)
    assert all(deployed.served)
    crowded = optimum(small, [20_000.0, 150.0, 80.0], 1.2)
    assert crowded.places[0] == NOWHERE
    assert crowded.units[0] == 0


def test_an_actor_is_judged_by_its_likeliest_choices(small: Truth) -> None:
    shape = small.shape
    bias = np.zeros(sum(shape.heads), dtype=np.float32)
    bias[[1, 2, 5]] = 9.0  # the first network on the second GPU, the others on the first and the second
    weights = np.zeros((len(bias), shape.state_size), dtype=np.float32)
    actor = InssActor(layers=(ActorLayer(weights=weights, bias=bias),))
    score = evaluate(small, actor, 100.0, (1, 12), 5)
    again = evaluate(small, actor, 100.0, (1, 12), 5)
    assert score == again
    assert score.actor <= score.actor_places <= score.bound
    assert score.programme <= score.bound
