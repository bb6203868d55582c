"""Trained actors as files: what is written is read, what is damaged is refused, what is shipped fits its setting."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lab.learning.settings import setting
from lab.learning.world import Truth
from solvers.errors import InputError
from solvers.policies.inss.actor import SHIPPED, ActorLayer, InssActor, Shape, curves, read, shipped, shipped_for, write

SHAPE = Shape(models=("a",), rate_rps_max=(10.0,), gpu_types=("x", "y"), units=(3, 2), memory_mib=(1.0, 2.0))
RECORD = {"seed": 3, "curve": {"reward": [1.0, 2.0]}}


def actor(outputs: int = 5, inputs: int = 6) -> InssActor:
    drawn = np.random.default_rng(0)
    weights = drawn.normal(size=(outputs, inputs)).astype(np.float32)
    return InssActor(layers=(ActorLayer(weights=weights, bias=np.arange(outputs, dtype=np.float32)),))


def test_what_is_written_is_read() -> None:
    text = write(SHAPE, actor(), RECORD)
    assert text == write(SHAPE, actor(), RECORD)
    found = read(text)
    assert found.shape == SHAPE
    assert found.record == RECORD
    assert (found.actor.layers[0].weights == actor().layers[0].weights).all()
    assert (found.actor.layers[0].bias == actor().layers[0].bias).all()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"digest": 1}', "nothing", "3"])
def test_what_is_no_artefact_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no trained actor"):
        read(text)


def test_damage_and_other_forms_are_refused() -> None:
    body = json.loads(write(SHAPE, actor(), RECORD))
    with pytest.raises(InputError, match="damaged"):
        read(json.dumps({**body, "record": {"seed": 4}}))
    with pytest.raises(InputError, match="form 9"):
        read(json.dumps({**body, "form": 9}))


@pytest.mark.parametrize(("outputs", "inputs"), [(4, 6), (5, 7)])
def test_layers_that_do_not_fit_are_refused(outputs: int, inputs: int) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read(write(SHAPE, actor(outputs, inputs), RECORD))


def test_weights_that_are_no_numbers_are_refused() -> None:
    wrong = actor()
    wrong.layers[0].bias[0] = np.nan
    with pytest.raises(InputError, match="finite"):
        read(write(SHAPE, wrong, RECORD))


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_shipped_fits_its_setting_and_tells_its_training(name: str) -> None:
    artefact, wanted = shipped(name), setting(name)
    assert artefact.shape == Truth.of(wanted).shape
    assert artefact.record["setting"] == name
    told = artefact.record["curve"]
    assert len(told["reward"]) == artefact.record["episodes"]
    assert {"python", "numpy", "torch"} <= set(artefact.record["software"])
    assert str(artefact.record["seed"]) in curves()[name]
    assert curves()[name][str(artefact.record["seed"])]["reward"] == pytest.approx(told["reward"], abs=0.006)


def test_an_actor_is_found_by_networks_and_gpus_in_any_order() -> None:
    shape = shipped("six").shape
    assert shipped_for(shape.models[::-1], shape.gpu_types[::-1]) is shipped("six")
    assert shipped_for(shape.models[1:], shape.gpu_types) is None
    assert shipped_for(shape.models, shape.gpu_types[1:]) is None
    with pytest.raises(InputError, match="six, eight"):
        shipped("seven")
