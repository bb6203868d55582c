"""A whole belief: one model of replicas alone and one of what neighbours do to them.

What `--model NAME` means, how the two parts combine into the latency beside neighbours, and how a suite becomes plain
data and comes back. Models are found by name among what is installed and imported when first asked for, because some of
them bring heavy libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from solvers.domain.codec import Plain
from solvers.errors import InputError
from solvers.extensions import INTERFERENCE_MODELS, SOLO_MODELS, SUITES, found
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

_OWN = {"headroom": ("headroom", "headroom")}


def suites() -> Mapping[str, tuple[str, str]]:
    """Name of every suite: its model alone and its model of interference."""
    known = dict(_OWN)
    for entry in found(SUITES).values():
        known |= entry.load()
    return known


def _part(group: str, name: str) -> Any:
    return found(group)[name].load()


def make_solo(name: str, facts: Facts, seed: int = 0) -> SoloModel:
    if name not in found(SOLO_MODELS):
        raise InputError(f"there is no model {name!r}; known are {', '.join(found(SOLO_MODELS))}")
    return cast("SoloModel", _part(SOLO_MODELS, name).make(facts, seed))


def load_solo(name: str, plain: Plain, facts: Facts) -> SoloModel:
    """What a model of replicas alone wrote by `dump`."""
    return cast("SoloModel", _part(SOLO_MODELS, name).load(plain, facts))


def make_interference(name: str, facts: Facts, seed: int = 0) -> InterferenceModel:
    if name not in found(INTERFERENCE_MODELS):
        known = ", ".join(found(INTERFERENCE_MODELS))
        raise InputError(f"there is no interference model {name!r}; known are {known}")
    return cast("InterferenceModel", _part(INTERFERENCE_MODELS, name).make(facts, seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A fitted (or fresh) belief. A value."""

    name: str
    solo: SoloModel
    interference: InterferenceModel

    @staticmethod
    def fresh(name: str, facts: Facts, seed: int = 0) -> Suite:
        """The unfitted suite of a name. Raises InputError for unknown names."""
        known = suites()
        if name not in known:
            raise InputError(f"there is no model {name!r}; known are {', '.join(known)}")
        solo, interference = known[name]
        return Suite(
            name=name, solo=make_solo(solo, facts, seed), interference=make_interference(interference, facts, seed)
        )

    def fit(self, samples: Samples, groups: GroupSamples | None = None) -> Suite:
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
        if not isinstance(name, str) or name not in suites():
            raise InputError("this fitted model has a name that is not known here")
        solo, interference = suites()[name]
        return Suite(
            name=name,
            solo=_loaded(SOLO_MODELS, solo, plain.get("solo"), facts),
            interference=_loaded(INTERFERENCE_MODELS, interference, plain.get("interference"), facts),
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


def _loaded(group: str, name: str, plain: Plain, facts: Facts) -> Any:
    module = _part(group, name)
    fresh = module.make(facts, 0)
    if not isinstance(plain, dict) or "state" not in plain or plain.get("version") != fresh.spec.version:
        raise InputError(f"the fitted model's part {name!r} is of another version; fit it again", version=name)
    return module.load(plain["state"], facts)
