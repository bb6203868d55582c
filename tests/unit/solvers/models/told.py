"""Outcomes for the tests of online learning, and a belief that is a formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.codec import Plain
from solvers.models.base import (
    Answer,
    Groups,
    GroupSamples,
    ModelSpec,
    Origin,
    Quantity,
    Queries,
    Samples,
    SoloModel,
    slowdowns,
)
from solvers.models.online.monitor import Learned, Monitor, Seen, Trigger, step
from solvers.models.online.outcomes import Configuration, Forecast, Outcome, Point
from solvers.models.suite import Suite

TRIGGER = Trigger()
OUTCOME = Outcome(
    model="resnet50",
    gpu_type="t4",
    batch=8.0,
    share_pct_sm=50,
    clock_mhz_sm=1590.0,
    latency_ms=20.0,
    executions=500.0,
    seconds=60.0,
    at_s=0.0,
    clock_mhz_asked=1590.0,
    sm_count=20,
    sm_count_asked=20,
)


def outcome(**changes: object) -> Outcome:
    """An outcome beyond reproach, but for what a test says."""
    return replace(OUTCOME, **changes)  # type: ignore[arg-type]


def forecast_of(mean_ms: float, relative: float) -> Forecast:
    """A forecast with this relative standard deviation."""
    return Forecast(mean_ms=mean_ms, std_ms=mean_ms * relative)


@dataclass
class Learner:
    """Feeds outcomes to one model on one GPU type, as the service does."""

    monitor: Monitor
    points: dict[Configuration, Point]

    @staticmethod
    def new() -> Learner:
        return Learner(Monitor(model="resnet50", gpu_type="t4"), {})

    def hear(self, seen: Outcome, said: Forecast | None) -> Learned:
        """One outcome of a configuration whose point has the same conditions."""
        name = seen.configuration()
        learned = step(
            self.monitor, self.points.get(name), Seen(outcome=seen, forecast=said, forecast_first=said), TRIGGER
        )
        self.monitor = learned.monitor
        if learned.point is not None:
            self.points[name] = learned.point
        return learned


@dataclass(frozen=True)
class Formula:
    """Time is (fixed + batch) over the share; each neighbour adds a part of it. Names it does not know get NaN."""

    known: Sequence[str] = ("resnet50", "bert-base")
    fixed_ms: float = 2.0
    alone_relative: float = 0.05
    slowdown: float = 0.2
    beside_relative: float = 0.05

    def predict(self, queries: Queries) -> Answer:
        known = np.isin(np.array(queries.models)[queries.model], self.known)
        mean = np.where(known, (self.fixed_ms + queries.batch) * 100.0 / queries.share_pct, np.nan)
        return _answer(mean, self.alone_relative)

    def predict_groups(self, groups: Groups) -> Answer:
        alone = self.predict(groups.members).mean
        mean = alone * (1.0 + self.slowdown * groups.count_of_others())
        return _answer(mean, float(np.hypot(self.alone_relative, self.beside_relative)))


def _answer(mean: Floats, relative: float) -> Answer:
    return Answer(
        mean=mean,
        std=mean * relative,
        support=np.isfinite(mean),
        distance=np.zeros(len(mean)),
        origin=np.full(len(mean), Origin.LIBRARY, dtype=np.int8),
    )


SPEC = ModelSpec(name="formula", version="1", formula="told by a test")


@dataclass(frozen=True)
class Remembering:
    """A model alone that believes the newest sample of a configuration, else its formula."""

    formula: Formula
    seen: tuple[tuple[tuple[float, float], float], ...] = ()
    spec: ModelSpec = SPEC

    def fit(self, samples: Samples) -> Remembering:
        return Remembering(self.formula).update(samples)

    def update(self, samples: Samples) -> Remembering:
        queries = samples.queries
        keys = zip(queries.batch.tolist(), queries.share_pct.tolist(), strict=True)
        return replace(self, seen=(*self.seen, *zip(keys, samples.latency_ms.tolist(), strict=True)))

    def predict(self, queries: Queries, quantity: Quantity = Quantity.LATENCY_MS) -> Answer:
        answer = self.formula.predict(queries)
        known = dict(self.seen)
        keys = zip(queries.batch.tolist(), queries.share_pct.tolist(), strict=True)
        mean = np.array([known.get(key, old) for key, old in zip(keys, answer.mean.tolist(), strict=True)])
        return replace(answer, mean=mean)

    def dump(self) -> Plain:
        return None


@dataclass(frozen=True)
class Slowed:
    """Every neighbour adds the same part, until groups teach another slowdown."""

    formula: Formula
    learned: float | None = None
    spec: ModelSpec = SPEC

    def fit(self, samples: GroupSamples, solo: SoloModel, alone: Samples) -> Slowed:
        return self.update(samples, solo)

    def update(self, samples: GroupSamples, solo: SoloModel) -> Slowed:
        return replace(self, learned=float(np.nanmean(slowdowns(samples, solo))))

    def predict(self, groups: Groups, solo: SoloModel) -> Answer:
        usual = 1.0 + self.formula.slowdown * groups.count_of_others()
        mean = usual if self.learned is None else np.where(usual > 1.0, self.learned, 1.0)
        return _answer(mean, self.formula.beside_relative)

    def dump(self) -> Plain:
        return None


def suite_of(formula: Formula) -> Suite:
    """A whole belief that starts from a formula and can learn."""
    return Suite(name="told", solo=Remembering(formula), interference=Slowed(formula))
