"""Beliefs around a learner: replicas alone, and what neighbours do to them; predictors by the name of their kind.

Latency and throughput are two targets of one learner (Bi-FM); slowdown is the one target of another. Logarithms make
errors relative and forbid negative answers; an answer's mean is therefore the median.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, Protocol, Self, TypeVar, cast

import numpy as np

from solvers.domain.arrays import Flags, Floats
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
from solvers.models.parts.seen import floats_of, part, read
from solvers.models.suite import load_solo, make_solo
from solvers.policies.oltunes.history import HistoryWindow, Nearness, Reach, alone, companies
from solvers.policies.oltunes.parameters import FM_FTRL, MF, RFR

# --- One learner for all that OLTunes compares: its factorisation machine, matrix factorisation, a random forest
#
# They differ in the regressor alone: logarithmic targets on a common scale, held-out rows that say how wrong it is, the
# running error of online learning, the window of latest rows and training again on it.
#
# The spread of an answer is that of held-out residuals, stretched so that 95 % of them lie within 1.96 of it; it grows
# towards that of companies of models held out whole as fewer configurations of the same company are known.

_HELD_OUT = 0.2
_COMPANIES_HELD_OUT = 0.1
_COMPANIES_MIN = 10
_GROUPS_MIN = 10
_COUNT_MAX = 100.0
_NORMAL_95 = 1.96
_STRETCH_BOUNDS = (0.5, 3.0)


class Regressor(Protocol):
    """Something that maps groups to standardised targets. A value."""

    @property
    def window_rows(self) -> int:
        """How many of the latest rows it needs when it learns on."""

    @property
    def knows_variance(self) -> bool:
        """Whether its predictions come with variances of their own."""

    def fitted(self, groups: Groups, targets: Floats, facts: Facts) -> Self:
        """Learn from these rows alone. Deterministic."""

    def after(self, new: HistoryWindow, window: HistoryWindow, facts: Facts) -> Self:
        """Learn on: `new` rows alone where it can, else the `window` that they are part of."""

    def retrained(self, window: HistoryWindow, facts: Facts) -> Self:
        """Learn the window again, keeping what it does not speak of where that is possible."""

    def predict(self, groups: Groups, facts: Facts) -> tuple[Floats, Floats | None]:
        """Targets of every row, and their variances where the regressor has its own."""

    def dump(self) -> Plain:
        """Everything needed to predict again, as JSON data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What turns logarithms into targets of mean 0 and deviation 1, one value per target."""

    mean: Floats
    std: Floats

    @staticmethod
    def of(logarithms: Floats) -> Scale:
        return Scale(mean=logarithms.mean(axis=0), std=np.maximum(logarithms.std(axis=0), 1e-3))

    def down(self, logarithms: Floats) -> Floats:
        return np.asarray((logarithms - self.mean) / self.std)

    def up(self, targets: Floats) -> Floats:
        """Logarithms of standardised targets."""
        return np.asarray(targets * self.std + self.mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Variances of residuals of logarithms, one value per target: of models met together, of others, after how many
    residuals, and the stretch that makes 1.96 of the deviation hold 95 % of them.
    """

    known: Floats
    unknown: Floats
    count: float
    stretch: Floats

    @staticmethod
    def wide(scale: Scale) -> Spread:
        """Before any residual: as wide as the targets themselves."""
        variance = np.square(scale.std)
        return Spread(known=variance, unknown=variance, count=3.0, stretch=np.ones_like(variance))

    def variance(self, near: Nearness) -> Floats:
        """Of every row, not stretched."""
        scarce = 1.0 / np.square(1.0 + near.points.astype(np.float64))[:, None]
        return np.asarray(self.known + self.unknown * scarce)

    def after(self, residuals: Floats, near: Nearness) -> Spread:
        """The running variance after progressive residuals of rows whose combination was known."""
        told = np.square(residuals[near.points > 0])
        if not len(told):
            return self
        count = self.count + len(told)
        known = (self.count * self.known + told.sum(axis=0)) / count
        return replace(self, known=known, count=min(count, _COUNT_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerBelief:
    """Logarithms of the targets, their deviations, and how near the rows are to what was met."""

    mean: Floats
    std: Floats
    near: Nearness


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """A regressor with scale, spread and memory. A value: learning gives a new one."""

    regressor: Regressor
    facts: Facts
    seed: int
    scale: Scale
    spread: Spread
    reach: Reach
    window: HistoryWindow

    @staticmethod
    def fresh(regressor: Regressor, facts: Facts, seed: int, usual: Scale) -> Learner:
        """Before anything was seen; `usual` is the scale that targets of this kind usually have."""
        return Learner(
            regressor=regressor,
            facts=facts,
            seed=seed,
            scale=usual,
            spread=Spread.wide(usual),
            reach=Reach(met={}),
            window=HistoryWindow.empty(len(usual.mean)),
        )

    def fit(self, groups: Groups, logarithms: Floats) -> Learner:
        if not len(groups):
            return self
        scale = Scale.of(logarithms)
        targets = scale.down(logarithms)
        latest = HistoryWindow.empty(len(scale.mean)).extended(
            HistoryWindow(groups=groups, targets=logarithms), self.regressor.window_rows
        )
        return replace(
            self,
            regressor=self.regressor.fitted(groups, targets, self.facts),
            scale=scale,
            spread=self._held_out(groups, targets, scale),
            reach=Reach(met={}).extended(groups, self.facts),
            window=latest,
        )

    def update(self, groups: Groups, logarithms: Floats) -> Learner:
        """Learn more rows; each is predicted before it is learned, which tells how wrong the learner is by now."""
        if not len(groups):
            return self
        belief = self.predict(groups)
        new = HistoryWindow(groups=groups, targets=logarithms)
        window = self.window.extended(new, self.regressor.window_rows)
        return replace(
            self,
            regressor=self.regressor.after(self._scaled(new), self._scaled(window), self.facts),
            spread=self.spread.after(logarithms - belief.mean, belief.near),
            reach=self.reach.extended(groups, self.facts),
            window=window,
        )

    def retrained(self) -> Learner:
        if not len(self.window.groups):
            return self
        return replace(self, regressor=self.regressor.retrained(self._scaled(self.window), self.facts))

    def predict(self, groups: Groups) -> LearnerBelief:
        targets, own_variance = self.regressor.predict(groups, self.facts)
        near = self.reach.of(groups, self.facts)
        if own_variance is None:
            std = self.spread.stretch * np.sqrt(self.spread.variance(near))
        else:
            std = self.scale.std * np.sqrt(own_variance)
        return LearnerBelief(mean=self.scale.up(targets), std=std, near=near)

    def _scaled(self, window: HistoryWindow) -> HistoryWindow:
        return replace(window, targets=self.scale.down(window.targets))

    def _held_out(self, groups: Groups, targets: Floats, scale: Scale) -> Spread:
        """Residuals of a regressor that has not seen some of the groups, nor any of some companies of models."""
        if self.regressor.knows_variance or int(groups.group[-1]) + 1 < _GROUPS_MIN:
            return Spread.wide(scale)
        out = _held_out(groups, np.random.default_rng((self.seed, len(groups))))
        hidden, hidden_rows = groups.take_groups(np.flatnonzero(out))
        shown, shown_rows = groups.take_groups(np.flatnonzero(~out))
        regressor = self.regressor.fitted(shown, targets[shown_rows], self.facts)
        residuals = scale.std * (regressor.predict(hidden, self.facts)[0] - targets[hidden_rows])
        near = Reach(met={}).extended(shown, self.facts).of(hidden, self.facts)
        known = near.points > 0
        wide = Spread.wide(scale)
        raw = replace(
            wide,
            known=np.square(residuals[known]).mean(axis=0) if known.any() else wide.known,
            unknown=np.square(residuals[~known]).mean(axis=0) if not known.all() else wide.unknown,
            count=float(min(known.sum(), _COUNT_MAX)),
        )
        if not known.any():
            return raw
        ratio = (np.abs(residuals) / np.sqrt(np.maximum(raw.variance(near), 1e-12)))[known]
        return replace(raw, stretch=np.clip(np.quantile(ratio, 0.95, axis=0) / _NORMAL_95, *_STRETCH_BOUNDS))

    def dump(self) -> Plain:
        spread = self.spread
        return {
            "regressor": self.regressor.dump(),
            "seed": self.seed,
            "scale": {"mean": self.scale.mean.tolist(), "std": self.scale.std.tolist()},
            "spread": {
                "known": spread.known.tolist(),
                "unknown": spread.unknown.tolist(),
                "stretch": spread.stretch.tolist(),
                "count": [spread.count],
            },
            "reach": self.reach.dump(),
            "window": self.window.dump(),
        }

    @staticmethod
    def load(plain: Plain, regressor: Regressor, facts: Facts) -> Learner:
        """From what `dump` wrote, with the regressor that the caller has read from it."""
        scale, spread = part(plain, "scale"), part(plain, "spread")
        known, unknown, stretch, count = (
            read(spread, name, floats_of) for name in ("known", "unknown", "stretch", "count")
        )
        return Learner(
            regressor=regressor,
            facts=facts,
            seed=cast("int", part(plain, "seed")),
            scale=Scale(mean=read(scale, "mean", floats_of), std=read(scale, "std", floats_of)),
            spread=Spread(known=known, unknown=unknown, stretch=stretch, count=float(count[0])),
            reach=Reach.load(part(plain, "reach")),
            window=HistoryWindow.load(part(plain, "window"), len(known)),
        )


def _held_out(groups: Groups, rng: np.random.Generator) -> Flags:
    """Which groups to hide: a fifth of them, and all of a tenth of the companies where there are many."""
    of_group = companies(groups)
    count, kinds = len(of_group), int(of_group.max()) + 1
    out = np.zeros(count, dtype=np.bool_)
    out[rng.permutation(count)[: max(2, round(_HELD_OUT * count))]] = True
    if kinds >= _COMPANIES_MIN:
        out |= np.isin(of_group, rng.permutation(kinds)[: max(1, round(_COMPANIES_HELD_OUT * kinds))])
    return out


# --- Beliefs around it

TARGETS = (Quantity.LATENCY_MS, Quantity.THROUGHPUT_RPS)
USUAL_SOLO = Scale(mean=np.log(np.array([20.0, 200.0])), std=np.array([1.3, 1.5]))
"""Of latency in ms and throughput per second, before any was seen."""
USUAL_SLOWDOWN = Scale(mean=np.array([0.1]), std=np.array([0.2]))


@dataclass(frozen=True, slots=True)
class _Learned:
    """What both have in common."""

    spec: ModelSpec
    learner: Learner

    def retrained(self) -> Self:
        return replace(self, learner=self.learner.retrained())

    def dump(self) -> Plain:
        return self.learner.dump()


@dataclass(frozen=True, slots=True)
class LearnedSolo(_Learned):
    """Latency and throughput of replicas alone."""

    def fit(self, samples: Samples) -> LearnedSolo:
        """Learn from these samples alone; rows without latency are passed over."""
        return replace(self, learner=self.learner.fit(*_solo_rows(samples)))

    def update(self, samples: Samples) -> LearnedSolo:
        return replace(self, learner=self.learner.update(*_solo_rows(samples)))

    def predict(self, queries: Queries, quantity: Quantity = Quantity.LATENCY_MS) -> Answer:
        refuse_quantity(self.spec, quantity)
        return self.predict_both(queries)[TARGETS.index(quantity)]

    def predict_both(self, queries: Queries) -> tuple[Answer, Answer]:
        """Latency and throughput of every row in one evaluation, as a task's candidates need them."""
        belief = self.learner.predict(alone(queries))
        first, second = (_answer(belief, target) for target in range(len(TARGETS)))
        return first, second


@dataclass(frozen=True, slots=True)
class LearnedInterference(_Learned):
    """Slowdowns of members of groups. A member without neighbours is not slowed down and teaches nothing."""

    def fit(self, samples: GroupSamples, solo: SoloModel, alone: Samples) -> LearnedInterference:  # noqa: ARG002
        """Learn slowdowns from these groups alone; utilisations of solo samples are no feature of this form."""
        return replace(self, learner=self.learner.fit(*_group_rows(samples, solo)))

    def update(self, samples: GroupSamples, solo: SoloModel) -> LearnedInterference:
        return replace(self, learner=self.learner.update(*_group_rows(samples, solo)))

    def predict(self, groups: Groups, solo: SoloModel) -> Answer:  # noqa: ARG002
        found = _answer(self.learner.predict(groups), 0)
        beside = groups.count_of_others() > 0
        return Answer(
            mean=np.where(beside, found.mean, 1.0),
            std=np.where(beside, found.std, 0.0),
            support=found.support | ~beside,
            distance=np.where(beside, found.distance, 0.0),
            origin=np.where(beside, found.origin, np.int8(Origin.MEASURED)),
        )


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


M = TypeVar("M")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedKind(Generic[M]):
    """Makes and reads models around one kind of regressor; what is found by name is one of these."""

    spec: ModelSpec
    model: Callable[[ModelSpec, Learner], M]
    """`LearnedSolo` or `LearnedInterference`."""
    fresh: Callable[[int], Regressor]
    """From a seed."""
    read: Callable[[Plain], Regressor]
    usual: Scale = USUAL_SOLO

    def make(self, facts: Facts, seed: int) -> M:
        return self.model(self.spec, Learner.fresh(self.fresh(seed), facts, seed, self.usual))

    def load(self, plain: Plain, facts: Facts) -> M:
        return self.model(self.spec, Learner.load(plain, self.read(part(plain, "regressor")), facts))


_MODELS = {FM_FTRL: "fm-ftrl", MF: "mf", RFR: "rf"}
"""Kinds of predictors, by the name of the model that is found among what is installed."""


def predictor(kind: str, facts: Facts, seed: int) -> LearnedSolo:
    """An untaught predictor of this kind. Raises InputError."""
    if kind not in _MODELS:
        raise InputError(f"no predictor is called {kind}; known are {', '.join(_MODELS)}")
    return cast("LearnedSolo", make_solo(_MODELS[kind], facts, seed))


def loaded(kind: str, plain: Plain, facts: Facts) -> LearnedSolo:
    return cast("LearnedSolo", load_solo(_MODELS[kind], plain, facts))
