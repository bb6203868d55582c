"""A whole belief: one model of replicas alone and one of what neighbours do to them.

Owns the table of named suites (what `--model NAME` means), how the two parts combine into the latency beside neighbours
and how a suite becomes plain data and comes back. Modules of models are imported when first asked for, because some of
them bring heavy libraries. It refuses to know formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, cast

import numpy as np

from solvers.domain.codec import Plain
from solvers.errors import InputError
from solvers.models.base import (
    Answer,
    Facts,
    Groups,
    GroupSamples,
    InterferenceModel,
    KnowsAlone,
    Origin,
    Quantity,
    Queries,
    Samples,
    SoloModel,
)

FORMAT = 1
"""Of dumped suites; other numbers are refused."""

# Where `make(facts, seed)` and `load(plain, facts)` of each part live.
_SOLO = {
    "headroom": "solvers.models.belief.solo",
    "static": "solvers.models.papers.hetsev",
    "inss": "solvers.models.papers.inss_solo",
    "mudi": "solvers.models.papers.mudi",
    "morak": "solvers.models.papers.morak",
    "igniter": "solvers.models.papers.igniter_solo",
    "fm-ftrl": "solvers.models.papers.oltunes_solo",
    "mf": "solvers.models.baselines.matrix_solo",
    "rf": "solvers.models.baselines.forest_solo",
}
_INTERFERENCE = {
    "headroom": "solvers.models.belief.interference",
    "none": "solvers.models.baselines.undisturbed",
    "constant": "solvers.models.baselines.constant",
    "gpulet": "solvers.models.baselines.gpulet",
    "inss": "solvers.models.papers.inss_interference",
    "mudi": "solvers.models.papers.mudi_interference",
    "morak": "solvers.models.papers.morak_interference",
    "igniter": "solvers.models.papers.igniter_interference",
    "fm-ftrl": "solvers.models.papers.oltunes_interference",
    "mf": "solvers.models.baselines.matrix_interference",
    "rf": "solvers.models.baselines.forest_interference",
}
SUITES: dict[str, tuple[str, str]] = {
    "headroom": ("headroom", "headroom"),
    "fm-ftrl": ("fm-ftrl", "fm-ftrl"),
    "mf": ("mf", "mf"),
    "rf": ("rf", "rf"),
    "inss": ("inss", "inss"),
    "inss-ni": ("inss", "none"),
    "mudi": ("mudi", "mudi"),
    "morak": ("morak", "morak"),
    "hetsev": ("static", "none"),
    "constant": ("static", "constant"),
    "gpulet": ("static", "gpulet"),
    "igniter": ("igniter", "igniter"),
}
"""Name of a suite: its model alone and its model of interference."""


def _part(table: dict[str, str], name: str) -> Any:
    return import_module(table[name])


def make_solo(name: str, facts: Facts, seed: int = 0) -> SoloModel:
    """An unfitted model of replicas alone."""
    if name not in _SOLO:
        raise InputError(f"there is no model {name!r}; known are {', '.join(_SOLO)}")
    return cast("SoloModel", _part(_SOLO, name).make(facts, seed))


def make_interference(name: str, facts: Facts, seed: int = 0) -> InterferenceModel:
    """An unfitted model of interference."""
    if name not in _INTERFERENCE:
        raise InputError(f"there is no interference model {name!r}; known are {', '.join(_INTERFERENCE)}")
    return cast("InterferenceModel", _part(_INTERFERENCE, name).make(facts, seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A fitted (or fresh) belief. A value."""

    name: str
    solo: SoloModel
    interference: InterferenceModel

    @staticmethod
    def fresh(name: str, facts: Facts, seed: int = 0) -> Suite:
        """The unfitted suite of a name. Raises InputError for unknown names."""
        if name not in SUITES:
            raise InputError(f"there is no model {name!r}; known are {', '.join(SUITES)}")
        solo, interference = SUITES[name]
        return Suite(
            name=name, solo=make_solo(solo, facts, seed), interference=make_interference(interference, facts, seed)
        )

    def fit(self, samples: Samples, groups: GroupSamples | None = None) -> Suite:
        """Learn both parts."""
        solo = self.solo.fit(samples)
        if groups is None or not len(groups.groups):
            return replace(self, solo=solo)
        return replace(self, solo=solo, interference=self.interference.fit(groups, solo, samples))

    def predict(self, queries: Queries, quantity: Quantity = Quantity.LATENCY_MS) -> Answer:
        """Replicas alone; what is not possible (a latency of zero, from a formula led astray) is not known."""
        return _possible(self.solo.predict(queries, quantity), above_zero=quantity is not Quantity.POWER_W)

    def predict_groups(self, groups: Groups) -> Answer:
        """Latency in ms of every member beside the others of its group; relative errors of the parts add in squares."""
        if isinstance(self.interference, KnowsAlone):
            alone = self.interference.latency_alone(groups, self.solo)
        else:
            alone = self.solo.predict(groups.members)
        slowdown = self.interference.predict(groups, self.solo)
        alone = _possible(alone, above_zero=True)
        mean = alone.mean * slowdown.mean
        relative = np.hypot(alone.std / alone.mean, slowdown.std / slowdown.mean)
        return Answer(
            mean=mean,
            std=mean * relative,
            support=alone.support & slowdown.support,
            distance=np.maximum(alone.distance, slowdown.distance),
            origin=np.maximum(alone.origin, slowdown.origin),
        )

    def dump(self) -> Plain:
        """The suite as JSON data."""
        return {
            "format": FORMAT,
            "name": self.name,
            "solo": {"version": self.solo.spec.version, "state": self.solo.dump()},
            "interference": {"version": self.interference.spec.version, "state": self.interference.dump()},
        }

    @staticmethod
    def load(plain: Plain, facts: Facts) -> Suite:
        """The suite that was dumped. Raises InputError when it is none or of another version."""
        if not isinstance(plain, dict) or plain.get("format") != FORMAT:
            raise InputError("this is no fitted model of a format known here")
        name = plain.get("name")
        if not isinstance(name, str) or name not in SUITES:
            raise InputError("this fitted model has a name that is not known here")
        solo, interference = SUITES[name]
        return Suite(
            name=name,
            solo=_loaded(_SOLO, solo, plain.get("solo"), facts),
            interference=_loaded(_INTERFERENCE, interference, plain.get("interference"), facts),
        )


def _possible(answer: Answer, *, above_zero: bool) -> Answer:
    mean = answer.mean
    possible = (mean > 0) if above_zero else (mean >= 0)
    possible &= mean < np.inf
    if possible.all():
        return answer
    return Answer(
        mean=np.where(possible, mean, np.nan),
        std=np.where(possible, answer.std, np.nan),
        support=answer.support & possible,
        distance=np.where(possible, answer.distance, np.inf),
        origin=np.where(possible, answer.origin, Origin.SCALED).astype(np.int8),
    )


def _loaded(table: dict[str, str], name: str, plain: Plain, facts: Facts) -> Any:
    module = _part(table, name)
    fresh = module.make(facts, 0)
    if not isinstance(plain, dict) or "state" not in plain or plain.get("version") != fresh.spec.version:
        raise InputError(f"the fitted model's part {name!r} is of another version; fit it again", version=name)
    return module.load(plain["state"], facts)


def names() -> Sequence[str]:
    """The suites there are."""
    return tuple(SUITES)
