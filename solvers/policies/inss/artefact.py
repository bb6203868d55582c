"""A trained actor as a file: weights, what they are for, and the record of their training, with a digest over it all.

Owns the form (JSON; weights as little-endian float32 in base64), its strict reading, and the actors that come with the
package, each found by the networks and GPU types it was trained for. Those are data of the package, constant like its
code. It refuses other files, other forms and content that is not what its digest says.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from solvers.errors import InputError
from solvers.policies.inss.actor import ActorLayer, InssActor, Shape, Vector

FORM = 1
SHIPPED = ("six", "eight")
"""Settings whose actors come with the package."""
_FLOAT32 = np.dtype("<f4")
Record = Mapping[str, Any]
"""Of a training: setting, hyper-parameters, seed, curve, updates, software. Told, never needed to plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """An actor with what it is for."""

    shape: Shape
    actor: InssActor
    record: Record
    digest: str


def write(shape: Shape, actor: InssActor, record: Record) -> str:
    """The file's text; the same content always gives the same text."""
    layers = [{"weights": _packed(layer.weights), "bias": _packed(layer.bias)} for layer in actor.layers]
    body = {"form": FORM, "shape": asdict(shape), "record": dict(record), "layers": layers}
    return json.dumps({**body, "digest": _digest(body)}, indent=1, sort_keys=True) + "\n"


def read(text: str) -> Artefact:
    """A file's content. Raises InputError that says what is wrong with it."""
    try:
        body = json.loads(text)
        digest = body.pop("digest")
        form = body["form"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError("this is no trained actor: it is not the JSON that `headroom train` writes") from None
    if form != FORM:
        raise InputError(f"this trained actor has form {form}; known is {FORM}")
    if digest != _digest(body):
        raise InputError("this trained actor is damaged: its content is not what its digest says")
    try:
        shape = Shape(**{name: _frozen(item) for name, item in body["shape"].items()})
        layers = tuple(
            ActorLayer(weights=_unpacked(one["weights"]), bias=_unpacked(one["bias"])) for one in body["layers"]
        )
        actor = InssActor(layers=layers)
        _check(shape, actor)
        return Artefact(shape=shape, actor=actor, record=body["record"], digest=digest)
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
        raise InputError(f"this trained actor cannot be read: {error}") from error


def _check(shape: Shape, actor: InssActor) -> None:
    """Raises ValueError where the layers do not fit each other, or not what the actor is for."""
    if len({len(shape.models), len(shape.rate_rps_max)}) > 1 or not shape.models:
        raise ValueError("models and highest rates do not match")
    if len({len(shape.gpu_types), len(shape.units), len(shape.memory_mib)}) > 1 or not shape.gpu_types:
        raise ValueError("GPU types, units and memory do not match")
    flows = shape.state_size
    for layer in actor.layers:
        if layer.weights.ndim != 2 or layer.weights.shape != (len(layer.bias), flows):
            raise ValueError(f"a layer of {layer.weights.shape} cannot follow {flows} numbers")
        if not (np.isfinite(layer.weights).all() and np.isfinite(layer.bias).all()):
            raise ValueError("weights are not finite")
        flows = len(layer.bias)
    if flows != sum(shape.heads):
        raise ValueError(f"{flows} outputs for {sum(shape.heads)} choices")


@cache
def shipped(name: str) -> Artefact:
    """One that comes with the package, by the name of its setting. Raises InputError."""
    if name not in SHIPPED:
        raise InputError(f"no trained actor {name!r} comes with headroom; there are {', '.join(SHIPPED)}")
    place = files("solvers.policies.inss").joinpath("artefacts", f"{name}.json")
    return read(place.read_text(encoding="utf-8"))


@cache
def curves() -> Mapping[str, Mapping[str, Record]]:
    """Of all trainings behind what comes with the package: columns of a curve by setting and seed."""
    place = files("solvers.policies.inss").joinpath("artefacts", "curves.json")
    found: Mapping[str, Mapping[str, Record]] = json.loads(place.read_text(encoding="utf-8"))
    return found


def shipped_for(models: Sequence[str], gpu_types: Sequence[str]) -> Artefact | None:
    """The one trained for exactly these networks (in any order) on exactly these GPUs, or None."""
    for name in SHIPPED:
        artefact = shipped(name)
        same = sorted(artefact.shape.models) == sorted(models)
        if same and sorted(artefact.shape.gpu_types) == sorted(gpu_types):
            return artefact
    return None


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _frozen(item: Any) -> Any:
    return tuple(item) if isinstance(item, list) else item


def _packed(array: Vector) -> dict[str, Any]:
    packed = base64.b64encode(np.ascontiguousarray(array, dtype=_FLOAT32).tobytes()).decode()
    return {"shape": list(array.shape), "float32": packed}


def _unpacked(held: Mapping[str, Any]) -> Vector:
    content = base64.b64decode(held["float32"], validate=True)
    return np.frombuffer(content, dtype=_FLOAT32).reshape(held["shape"]).astype(np.float32)
