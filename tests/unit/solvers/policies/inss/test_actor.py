"""The actor's arithmetic in numpy is torch's, and what it asks for fits its GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.policies.inss.actor import NOWHERE, ActorLayer, InssActor, Shape

STORED = Path(__file__).with_name("actor_of_torch.json")
"""Weights, states and what torch made of them: written by `tests/rl`, which compares anew."""
SHAPE = Shape(
    models=("a", "b", "c"),
    rate_rps_max=(100.0, 200.0, 50.0),
    gpu_types=("large", "small"),
    units=(9, 5),
    memory_mib=(8000.0, 4000.0),
)


def test_the_outputs_are_those_of_torch() -> None:
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    layers = tuple(
        ActorLayer(weights=np.array(each["weights"], np.float32), bias=np.array(each["bias"], np.float32))
        for each in stored["layers"]
    )
    actor = InssActor(layers=layers)
    assert len(layers) == 3
    states, outputs = np.array(stored["states"], np.float32), np.array(stored["outputs"], np.float32)
    assert actor.logits(states) == pytest.approx(outputs, abs=1e-5)
    for state, output in zip(states, outputs, strict=True):
        places, levels = actor.choice(SHAPE, state)
        assert places == output[:6].reshape(3, 2).argmax(axis=1).tolist()
        assert levels == output[6:].reshape(3, 9).argmax(axis=1).tolist()


def test_the_state_has_its_order() -> None:
    places = np.array([1, NOWHERE, 0])
    state = SHAPE.state(np.array([4000.0, 1000.0]), np.array([50.0, 50.0, 50.0]), np.array([0.0, 1e6, 25.0]), places)
    assert state.tolist() == [0.5, 0.25, 0.5, 0.25, 1.0, 0.0, 4.0, 0.5, 0, 1, 0, 0, 1, 0]
    assert len(state) == SHAPE.state_size
    assert SHAPE.heads == (2, 2, 2, 9, 9, 9)


@given(st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 8)), min_size=3, max_size=3))
def test_all_units_are_given_away_and_everybody_placed_has_one(asked: list[tuple[int, int]]) -> None:
    places, levels = [place for place, _ in asked], [level for _, level in asked]
    granted = SHAPE.granted(places, levels)
    for gpu, units in enumerate(SHAPE.units):
        mine = [given for given, place in zip(granted, places, strict=True) if place == gpu]
        assert sum(mine) == (units if mine else 0)
        assert all(given >= 1 for given in mine)
    assert all(given == 0 for given, place in zip(granted, places, strict=True) if place == NOWHERE)
