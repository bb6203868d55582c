"""Trained actors as files: what is written is read, what is damaged is refused, what is shipped fits its setting.

Shares fit the GPU, and everybody has a unit. The actor's arithmetic in numpy is torch's, and what it asks for fits its
GPUs.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.claims.inss.worlds import curves
from lab.learning.settings import setting
from lab.learning.world import Truth
from solvers.errors import InputError
from solvers.policies.inss.actor import (
    NOWHERE,
    SHIPPED,
    ActorLayer,
    InssActor,
    Shape,
    project,
    read,
    shipped,
    shipped_for,
    write,
)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12), st.integers(12, 100), st.booleans())
def test_everybody_has_a_unit_and_none_is_made_up(wanted: list[float], units: int, spread: bool) -> None:
    given_away = project(wanted, units, spread=spread)
    assert min(given_away) >= 1
    assert sum(given_away) <= units
    assert not spread or sum(given_away) == units


def test_what_fits_stays_unless_all_is_given_away() -> None:
    assert project([30.0, 20.0], 100, spread=False) == [30, 20]
    assert project([30.0, 30.0], 100, spread=True) == [50, 50]


def test_too_few_units_are_refused() -> None:
    with pytest.raises(ValueError, match="do not suffice"):
        project([1.0, 1.0], 1, spread=True)


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


FILED = Shape(models=("a",), rate_rps_max=(10.0,), gpu_types=("x", "y"), units=(3, 2), memory_mib=(1.0, 2.0))
RECORD = {"seed": 3, "curve": {"reward": [1.0, 2.0]}}


def actor(outputs: int = 5, inputs: int = 6) -> InssActor:
    drawn = np.random.default_rng(0)
    weights = drawn.normal(size=(outputs, inputs)).astype(np.float32)
    return InssActor(layers=(ActorLayer(weights=weights, bias=np.arange(outputs, dtype=np.float32)),))


def test_what_is_written_is_read() -> None:
    text = write(FILED, actor(), RECORD)
    assert text == write(FILED, actor(), RECORD)
    found = read(text)
    assert found.shape == FILED
    assert found.record == RECORD
    assert (found.actor.layers[0].weights == actor().layers[0].weights).all()
    assert (found.actor.layers[0].bias == actor().layers[0].bias).all()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"digest": 1}', "nothing", "3"])
def test_what_is_no_artefact_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no trained actor"):
        read(text)


def test_damage_and_other_forms_are_refused() -> None:
    body = json.loads(write(FILED, actor(), RECORD))
    with pytest.raises(InputError, match="damaged"):
        read(json.dumps({**body, "record": {"seed": 4}}))
    with pytest.raises(InputError, match="form 9"):
        read(json.dumps({**body, "form": 9}))


@pytest.mark.parametrize(("outputs", "inputs"), [(4, 6), (5, 7)])
def test_layers_that_do_not_fit_are_refused(outputs: int, inputs: int) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read(write(FILED, actor(outputs, inputs), RECORD))


def test_weights_that_are_no_numbers_are_refused() -> None:
    wrong = actor()
    wrong.layers[0].bias[0] = np.nan
    with pytest.raises(InputError, match="finite"):
        read(write(FILED, wrong, RECORD))


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_shipped_fits_its_setting_and_tells_its_training(name: str) -> None:
    artefact, wanted = shipped(name), setting(name)
    assert artefact.shape == Truth.of(wanted).shape
    assert artefact.record["setting"] == name
    told = artefact.record["curve"]
    assert len(told["reward"]) == artefact.record["episodes"]
    assert {"python", "numpy", "torch"} <= set(artefact.record["software"])
    assert str(artefact.record["seed"]) in curves(name)
    assert curves(name)[str(artefact.record["seed"])] == pytest.approx(told["reward"], abs=0.006)


def test_an_actor_is_found_by_networks_and_gpus_in_any_order() -> None:
    shape = shipped("six").shape
    assert shipped_for(shape.models[::-1], shape.gpu_types[::-1]) is shipped("six")
    assert shipped_for(shape.models[1:], shape.gpu_types) is None
    assert shipped_for(shape.models, shape.gpu_types[1:]) is None
    with pytest.raises(InputError, match="six, eight"):
        shipped("seven")
