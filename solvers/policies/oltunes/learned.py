"""Beliefs around a learner: replicas alone, and what neighbours do to them; predictors by the name of their kind.

Latency and throughput are two targets of one learner (Bi-FM); slowdown is the one target of another. Logarithms make
errors relative and forbid negative answers; an answer's mean is therefore the median.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.codec import Plain
from solvers.errors import InputError
from solvers.models.base import (
    Answer,
    Facts,
    Groups,
    GroupSamples,
    ModelSpec,
    Origin,
    Quantity,
    Queries,
    Samples,
    SoloModel,
    refuse_quantity,
    slowdowns,
)
from solvers.models.parts.seen import part
from solvers.models.suite import load_solo, make_solo
from solvers.policies.oltunes.history import alone
from solvers.policies.oltunes.learner import Learner, LearnerBelief, Regressor, Scale
from solvers.policies.oltunes.parameters import FM_FTRL, MF, RFR

TARGETS = (Quantity.LATENCY_MS, Quantity.THROUGHPUT_RPS)
USUAL_SOLO = Scale(mean=np.log(np.array([20.0, 200.0])), std=np.array([1.3, 1.5]))
"""Of latency in ms and throughput per second, before any was seen."""
USUAL_SLOWDOWN = Scale(mean=np.array([0.1]), std=np.array([0.2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedSolo:
    """Latency and throughput of replicas alone."""

    spec: ModelSpec
    learner: Learner

    def fit(self, samples: Samples) -> LearnedSolo:
        """Learn from these samples alone; rows without latency are passed over."""
        return replace(self, learner=self.learner.fit(*_solo_rows(samples)))

    def update(self, samples: Samples) -> LearnedSolo:
        """Learn more samples."""
        return replace(self, learner=self.learner.update(*_solo_rows(samples)))

    def retrained(self) -> LearnedSolo:
        """Learn the latest window again."""
        return replace(self, learner=self.learner.retrained())

    def predict(self, queries: Queries, quantity: Quantity = Quantity.LATENCY_MS) -> Answer:
        """Answer every row."""
        refuse_quantity(self.spec, quantity)
        return self.predict_both(queries)[TARGETS.index(quantity)]

    def predict_both(self, queries: Queries) -> tuple[Answer, Answer]:
        """Latency and throughput of every row in one evaluation, as a task's candidates need them."""
        belief = self.learner.predict(alone(queries))
        first, second = (_answer(belief, target) for target in range(len(TARGETS)))
        return first, second

    def dump(self) -> Plain:
        """As JSON data."""
        return self.learner.dump()


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedInterference:
    """Slowdowns of members of groups. A member without neighbours is not slowed down and teaches nothing."""

    spec: ModelSpec
    learner: Learner

    def fit(self, samples: GroupSamples, solo: SoloModel, alone: Samples) -> LearnedInterference:  # noqa: ARG002
        """Learn slowdowns from these groups alone; utilisations of solo samples are no feature of this form."""
        return replace(self, learner=self.learner.fit(*_group_rows(samples, solo)))

    def update(self, samples: GroupSamples, solo: SoloModel) -> LearnedInterference:
        """Learn more groups."""
        return replace(self, learner=self.learner.update(*_group_rows(samples, solo)))

    def retrained(self) -> LearnedInterference:
        """Learn the latest window again."""
        return replace(self, learner=self.learner.retrained())

    def predict(self, groups: Groups, solo: SoloModel) -> Answer:  # noqa: ARG002
        """Slowdown of every member."""
        found = _answer(self.learner.predict(groups), 0)
        beside = groups.count_of_others() > 0
        return Answer(
            mean=np.where(beside, found.mean, 1.0),
            std=np.where(beside, found.std, 0.0),
            support=found.support | ~beside,
            distance=np.where(beside, found.distance, 0.0),
            origin=np.where(beside, found.origin, np.int8(Origin.MEASURED)),
        )

    def dump(self) -> Plain:
        """As JSON data."""
        return self.learner.dump()


def _solo_rows(samples: Samples) -> tuple[Groups, Floats]:
    latency, throughput = (samples.column(quantity) for quantity in TARGETS)
    kept = np.isfinite(latency) & (latency > 0.0) & np.isfinite(throughput) & (throughput > 0.0)
    logarithms = np.log(np.stack([latency[kept], throughput[kept]], axis=1))
    return alone(samples.queries.take(kept)), logarithms


def _group_rows(samples: GroupSamples, solo: SoloModel) -> tuple[Groups, Floats]:
    """Groups of two and more in which every member's slowdown is known."""
    groups = samples.groups
    slowdown = slowdowns(samples, solo)
    missing = ~(np.isfinite(slowdown) & (slowdown > 0.0)) | (groups.count_of_others() == 0)
    kept, rows = groups.take_groups(np.setdiff1d(groups.group, groups.group[missing]))
    return kept, np.log(slowdown[rows])[:, None]


def _answer(belief: LearnerBelief, target: int) -> Answer:
    mean = np.exp(belief.mean[:, target])
    return Answer(
        mean=mean,
        std=mean * belief.std[:, target],
        support=belief.near.support,
        distance=belief.near.distance,
        origin=np.where(belief.near.points > 0, Origin.MEASURED, Origin.SCALED).astype(np.int8),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedSoloKind:
    """Makes and reads models of replicas alone around one kind of regressor; what is found by name is one of these."""

    spec: ModelSpec
    fresh: Callable[[int], Regressor]
    """From a seed."""
    read: Callable[[Plain], Regressor]

    def make(self, facts: Facts, seed: int) -> LearnedSolo:
        """An unfitted model."""
        return LearnedSolo(spec=self.spec, learner=Learner.fresh(self.fresh(seed), facts, seed, USUAL_SOLO))

    def load(self, plain: Plain, facts: Facts) -> LearnedSolo:
        """From what `dump` wrote."""
        return LearnedSolo(spec=self.spec, learner=Learner.load(plain, self.read(part(plain, "regressor")), facts))


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedInterferenceKind:
    """The same for slowdowns."""

    spec: ModelSpec
    fresh: Callable[[int], Regressor]
    read: Callable[[Plain], Regressor]

    def make(self, facts: Facts, seed: int) -> LearnedInterference:
        """An unfitted model."""
        return LearnedInterference(spec=self.spec, learner=Learner.fresh(self.fresh(seed), facts, seed, USUAL_SLOWDOWN))

    def load(self, plain: Plain, facts: Facts) -> LearnedInterference:
        """From what `dump` wrote."""
        regressor = self.read(part(plain, "regressor"))
        return LearnedInterference(spec=self.spec, learner=Learner.load(plain, regressor, facts))


_MODELS = {FM_FTRL: "fm-ftrl", MF: "mf", RFR: "rf"}
"""Kinds of predictors, by the name of the model that is found among what is installed."""


def predictor(kind: str, facts: Facts, seed: int) -> LearnedSolo:
    """An untaught predictor of this kind. Raises InputError."""
    if kind not in _MODELS:
        raise InputError(f"no predictor is called {kind}; known are {', '.join(_MODELS)}")
    return cast("LearnedSolo", make_solo(_MODELS[kind], facts, seed))


def taught(kind: str, facts: Facts, seed: int, samples: Samples) -> LearnedSolo:
    """One that has learned what was profiled offline."""
    return predictor(kind, facts, seed).fit(samples)


def loaded(kind: str, plain: Plain, facts: Facts) -> LearnedSolo:
    """One that was written down by its `dump`."""
    return cast("LearnedSolo", load_solo(_MODELS[kind], plain, facts))
