"""InSS' trained actor: what it sees, its layers, the places and units it chooses, and its file, in numpy alone.

The order of the state's numbers and of the output's heads is shared by training and planning. A model has two heads:
its GPU, and its level of units. Asked units are projected onto whole GPUs (1a): whole units, at least one for
everybody, in proportion to what was asked, none lost.

A file holds weights, what they are for, and the record of their training, with a digest over it all (JSON; weights as
little-endian float32 in base64). Other files, other forms and content that is not what its digest says are refused. The
actors that come with the package are found by the networks and GPU types they were trained for; those are data of the
package, constant like its code. A user's own are installed like planners and models (`solvers.extensions`) and named
with their version, the beginning of their digest.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from solvers.errors import FieldError, InputError
from solvers.extensions import ACTORS, found


def project(wanted: Sequence[float], units: int, *, spread: bool) -> list[int]:
    """Units for everybody, not more than there are together; with `spread` all are given away, else only what is too
    much is taken. Raises ValueError where units do not suffice for one each.
    """
    if units < len(wanted):
        raise ValueError(f"{units} units do not suffice for {len(wanted)} replicas")
    asked = [max(1.0, each) for each in wanted]
    total = math.fsum(asked)
    if not asked or (total <= units and not spread):
        return [math.floor(each + 1e-9) for each in asked]
    # One each first; the rest in proportion to what is asked beyond, the largest remainders rounded up.
    beyond = [each - 1.0 for each in asked]
    weights = beyond if math.fsum(beyond) > 0 else [1.0] * len(asked)
    rest = units - len(asked)
    exact = [rest * each / math.fsum(weights) for each in weights]
    given = [math.floor(each + 1e-9) for each in exact]
    order = sorted(range(len(asked)), key=lambda at: (given[at] - exact[at], at))
    for at in order[: rest - sum(given)]:
        given[at] += 1
    return [1 + each for each in given]


# --- The actor


Vector = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Doubles = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Whole = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
NOWHERE = -1
QUEUE_MAX = 4.0
"""Queues beyond so many seconds of the highest rate look alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What an actor is made for: models with their highest rates, GPUs with their units and memory."""

    models: tuple[str, ...]
    rate_rps_max: tuple[float, ...]
    gpu_types: tuple[str, ...]
    units: tuple[int, ...]
    memory_mib: tuple[float, ...]

    @property
    def levels(self) -> int:
        """How many sizes a model can ask for: one to all units of the largest GPU."""
        return max(self.units)

    @property
    def state_size(self) -> int:
        """Used memory by GPU; rate, queue and place by model."""
        return len(self.gpu_types) + len(self.models) * (2 + len(self.gpu_types))

    @property
    def heads(self) -> tuple[int, ...]:
        """Sizes of all heads in their order: every model's GPU, then every model's level."""
        return (len(self.gpu_types),) * len(self.models) + (self.levels,) * len(self.models)

    def state(self, used_mib: Doubles, rates_rps: Doubles, queues: Doubles, places: Whole) -> Vector:
        """Everything as parts of what it can be; places one-hot, all zero for NOWHERE."""
        highest = np.array(self.rate_rps_max)
        where = (places[:, None] == np.arange(len(self.gpu_types))[None, :]).astype(np.float64)
        parts = (
            used_mib / np.array(self.memory_mib),
            rates_rps / highest,
            np.minimum(queues / highest, QUEUE_MAX),
            where.ravel(),
        )
        return np.concatenate(parts).astype(np.float32)

    def granted(self, places: Sequence[int], levels: Sequence[int]) -> list[int]:
        """Units by model: all of a GPU's given away in proportion to what is asked (level 0 asks for one unit)."""
        found = [0] * len(places)
        for gpu, units in enumerate(self.units):
            mine = [model for model, place in enumerate(places) if place == gpu]
            shares = project([levels[model] + 1.0 for model in mine], units, spread=True)
            for model, share in zip(mine, shares, strict=True):
                found[model] = share
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorLayer:
    """Rows by output, as training keeps them."""

    weights: Vector
    bias: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class InssActor:
    """Layers with rectifiers between them; the last one's outputs are the heads' logits."""

    layers: tuple[ActorLayer, ...]

    def logits(self, state: Vector) -> Vector:
        """Of one state, or of one a row."""
        flow = state
        for layer in self.layers[:-1]:
            flow = np.maximum(flow @ layer.weights.T + layer.bias, np.float32(0.0))
        last = self.layers[-1]
        return np.asarray(flow @ last.weights.T + last.bias)

    def choice(self, shape: Shape, state: Vector) -> tuple[list[int], list[int]]:
        logits, models = self.logits(state), len(shape.models)
        split = models * len(shape.gpu_types)
        places = np.argmax(logits[:split].reshape(models, -1), axis=1)
        levels = np.argmax(logits[split:].reshape(models, -1), axis=1)
        return [int(place) for place in places], [int(level) for level in levels]


# --- A trained actor as a file


FORM = 1
SHIPPED = ("six", "eight")
"""Settings whose actors come with the package."""
VERSION_DIGITS = 12
NAME = r"[a-z0-9][a-z0-9-]{0,62}"
REFERENCE = rf"{NAME}(@[0-9a-f]{{{VERSION_DIGITS}}})?"
_FLOAT32 = np.dtype("<f4")
Record = Mapping[str, Any]
"""Of a training: setting, hyper-parameters, seed, curve, updates, software. Told, never needed to plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    shape: Shape
    actor: InssActor
    record: Record
    digest: str

    @property
    def version(self) -> str:
        return self.digest[:VERSION_DIGITS]

    def told(self) -> str:
        """What it is for, in words."""
        gpus = Counter(self.shape.gpu_types)
        types = ", ".join(f"{count} x {name}" for name, count in sorted(gpus.items()))
        return f"{', '.join(self.shape.models)} on {types}"


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
        shape = Shape(**{name: tuple(item) for name, item in body["shape"].items()})
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


def deployed(reference: str) -> Artefact:
    """One by its name, the package's or an installed distribution's, and by its version where that is said. Raises
    InputError that says what is not there or is another one.
    """
    name, _, version = reference.partition("@")
    artefact = shipped(name) if name in SHIPPED else _installed(name)
    if version and artefact.version != version:
        raise InputError(f"the trained actor {name} that is installed is of version {artefact.version}, not {version}")
    return artefact


@cache
def _installed(name: str) -> Artefact:
    entry = found(ACTORS).get(name)
    if entry is None:
        raise InputError(f"no trained actor {name} is installed; there are {', '.join((*SHIPPED, *found(ACTORS)))}")
    try:
        text = entry.load()
    except Exception as error:
        raise InputError(f"the trained actor {name} cannot be loaded: {type(error).__name__}: {error}") from error
    return read(text)


def check_reference(reference: str) -> None:
    """Raises FieldError for what names no actor."""
    if reference and not re.fullmatch(REFERENCE, reference):
        said = f"a name, and a version where only that will do, as in edge@{'0' * VERSION_DIGITS}"
        raise FieldError("actor", f"actor must be {said}, got {reference!r}")


def fitting(artefact: Artefact, models: Sequence[str], gpu_types: Sequence[str]) -> bool:
    """Whether it was trained for exactly these networks (in any order) on exactly these GPUs."""
    shape = artefact.shape
    return sorted(shape.models) == sorted(models) and sorted(shape.gpu_types) == sorted(gpu_types)


def shipped_for(models: Sequence[str], gpu_types: Sequence[str]) -> Artefact | None:
    """The one of the package's that fits, or None."""
    return next((each for each in map(shipped, SHIPPED) if fitting(each, models, gpu_types)), None)


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _packed(array: Vector) -> dict[str, Any]:
    packed = base64.b64encode(np.ascontiguousarray(array, dtype=_FLOAT32).tobytes()).decode()
    return {"shape": list(array.shape), "float32": packed}


def _unpacked(held: Mapping[str, Any]) -> Vector:
    content = base64.b64decode(held["float32"], validate=True)
    return np.frombuffer(content, dtype=_FLOAT32).reshape(held["shape"]).astype(np.float32)
