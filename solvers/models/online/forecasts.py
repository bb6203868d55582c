"""What a belief says of conditions as they really were, and what outcomes teach it in the terms it learns in.

The step between both worlds: beliefs speak of replicas alone and of neighbours that never rest, telemetry of neighbours
that are busy part of the time. Between alone and beside, time is taken to grow in proportion to the neighbours' mean
busy part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from solvers.domain.arrays import Floats
from solvers.models.base import Answer, Groups, GroupSamples, Queries, Samples
from solvers.models.online.outcomes import TAUGHT, Forecast, Neighbour, Outcome, Point
from solvers.models.suite import Suite

BESIDE_PART_MIN = 0.05
"""A smaller part of a surprise than this is not worth a lesson about neighbours."""


class Belief(Protocol):
    """What is asked here of a suite."""

    def predict(self, queries: Queries) -> Answer: ...

    def predict_groups(self, groups: Groups) -> Answer:
        """Latency of every member beside the others, all of them never resting."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """A belief's means in ms and relative standard deviations, for each outcome's conditions alone and beside."""

    alone_ms: Floats
    alone_spread: Floats
    beside_ms: Floats
    beside_spread: Floats
    busy: Floats

    def mean_ms(self) -> Floats:
        return self.alone_ms + self.busy * (self.beside_ms - self.alone_ms)

    def spread(self) -> Floats:
        return self.alone_spread + self.busy * (self.beside_spread - self.alone_spread)


def forecasts(asked: Sequence[Outcome], belief: Belief) -> tuple[Forecast | None, ...]:
    """What the belief says of each; None where it knows nothing."""
    if not asked:
        return ()
    said = _ask(asked, belief)
    return tuple(
        Forecast(mean_ms=mean_ms, std_ms=mean_ms * spread)
        if 0.0 < mean_ms < math.inf and 0.0 < spread < math.inf
        else None
        for mean_ms, spread in zip(said.mean_ms().tolist(), said.spread().tolist(), strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """What points teach, as samples a belief can learn on top of what it was fitted to."""

    alone: Samples
    beside: GroupSamples


def lessons(points: Sequence[Point], base: Belief) -> Lessons:
    """Points as samples, in the terms of the belief that is to learn them.

    What a point beside neighbours differs by from the belief is split between the replica alone and its neighbours in
    proportion to how unsure the belief is of each, so that a changed model is not blamed on its neighbours. Where the
    belief knows nothing, the value stands as it was measured.
    """
    taught = [point for point in points if len(point.values) >= TAUGHT]
    firsts = [point.first for point in taught]
    measured_ms = np.exp(np.array([point.log_ms for point in taught], dtype=np.float64))
    said = _ask(firsts, base)
    ratio = measured_ms / said.mean_ms()
    unsure_beside = said.busy**2 * np.maximum(0.0, said.beside_spread**2 - said.alone_spread**2)
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.where(said.busy > 0.0, said.alone_spread**2 / (said.alone_spread**2 + unsure_beside), 1.0)
    part = np.where(np.isfinite(part), part, 1.0)
    known = np.isfinite(ratio)
    alone_ms = np.where(known, said.alone_ms * np.where(known, ratio, 1.0) ** part, measured_ms)
    alone_rows = known | np.array([not first.neighbours for first in firsts], dtype=np.bool_)
    beside_rows = np.array(
        [bool(first.neighbours) for first in firsts], dtype=np.bool_
    ) & (~known | (1.0 - part >= BESIDE_PART_MIN))  # fmt: skip
    chosen = [first for first, wanted in zip(firsts, beside_rows.tolist(), strict=True) if wanted]
    groups, own = _groups(chosen)
    beside_ms = np.full(len(groups), np.nan)
    beside_ms[own] = np.where(known, said.beside_ms * np.where(known, ratio, 1.0), measured_ms)[beside_rows]
    return Lessons(
        alone=Samples.of(_queries(firsts), alone_ms).take(alone_rows),
        beside=GroupSamples(groups=groups, latency_ms=beside_ms),
    )


def taught(suite: Suite, points: Sequence[Point]) -> Suite:
    """The suite with everything learned that these points teach."""
    found = lessons(points, suite)
    if len(found.alone):
        suite = replace(suite, solo=suite.solo.update(found.alone))
    if len(found.beside.groups):
        suite = replace(suite, interference=suite.interference.update(found.beside, suite.solo))
    return suite


def _ask(asked: Sequence[Outcome], belief: Belief) -> _Said:
    alone = belief.predict(_queries(asked))
    beside_ms, beside_std = alone.mean.copy(), alone.std.copy()
    rows = np.array([index for index, each in enumerate(asked) if each.neighbours], dtype=np.intp)
    if len(rows):
        groups, own = _groups([asked[index] for index in rows])
        answer = belief.predict_groups(groups)
        beside_ms[rows], beside_std[rows] = answer.mean[own], answer.std[own]
    return _Said(
        alone_ms=alone.mean,
        alone_spread=alone.std / alone.mean,
        beside_ms=beside_ms,
        beside_spread=beside_std / beside_ms,
        busy=np.array([each.busy_others for each in asked], dtype=np.float64),
    )


def _queries(asked: Sequence[Outcome]) -> Queries:
    return _of([(each, each) for each in asked])


def _groups(asked: Sequence[Outcome]) -> tuple[Groups, NDArray[np.intp]]:
    """A group for each, and the rows of the replicas that were measured: each stands before its neighbours."""
    members = _of([(each, replica) for each in asked for replica in _together(each)])
    sizes = np.array([1 + len(each.neighbours) for each in asked], dtype=np.int64)
    groups = Groups(members=members, group=np.repeat(np.arange(len(asked), dtype=np.int64), sizes))
    return groups, np.asarray(np.cumsum(sizes) - sizes, dtype=np.intp)


def _together(outcome: Outcome) -> tuple[Outcome | Neighbour, ...]:
    return (outcome, *outcome.neighbours)


def _of(placed: Sequence[tuple[Outcome, Outcome | Neighbour]]) -> Queries:
    """Replicas on the devices of outcomes."""
    return Queries.of(
        [replica.model for _, replica in placed],
        [outcome.gpu_type for outcome, _ in placed],
        [replica.batch for _, replica in placed],
        [replica.share_pct_sm for _, replica in placed],
        [outcome.clock_mhz_sm for outcome, _ in placed],
    )
