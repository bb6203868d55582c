"""Which measurements would tell most about a model on a GPU type, given what is known.

The choice is greedy: of all configurations the optimiser may use, the one whose measurement lowers the expected squared
relative error over all of them most, then the next given that one, and so on. With little known the choice is averaged
over several shapes that may be true. It never proposes what was measured and needs nothing to be known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from solvers.domain.arrays import Flags, Floats
from solvers.domain.device import GpuType
from solvers.domain.value import POSITIVE, value, within
from solvers.domain.workload import ModelVariant
from solvers.models.base import Facts, Queries, SoloModel
from solvers.models.belief import curve as curves
from solvers.models.belief import intake, knowledge
from solvers.models.belief.curve import KERNEL_USUAL, Curve, noise
from solvers.models.belief.forms import LATENCY, weak_prior
from solvers.models.belief.intake import Points, coordinates
from solvers.models.belief.solo import HeadroomSolo
from solvers.models.library import gpu_key, spelled

BATCH_MAX = 64
SHARES_PCT = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
_CLOCK_PARTS = (0.6, 0.8)
_CLOCK_WEIGHT = 0.1
"""How much less configurations below the highest clock matter: most replicas run at the highest."""
_SHAPES = 7
_SETTLED_POINTS = 12
"""With so many points of its own, a model's shape is taken as known up to its covariance."""
_MEMORY_PART = 0.9
_CONTEXT_MIB = 450.0
"""What a process holds beside weights and inputs."""
_SAME = 0.02
"""Grid steps below which two configurations are one."""


@value
class Configuration:
    """What to measure next. `clock_mhz_sm` None: the highest. `std_pct` is how unsure the belief is there now, before
    this and the other proposed measurements.
    """

    batch: Annotated[int, POSITIVE]
    share_pct_sm: Annotated[int, within(1, 100)]
    clock_mhz_sm: Annotated[int | None, POSITIVE] = None
    std_pct: float = 0.0


def candidates_of(model: str, gpu_type: str, facts: Facts) -> tuple[Configuration, ...]:
    """What is worth asking about: batches that fit the memory, usual shares, the highest and two lower clocks."""
    known = {gpu_key(name): item for name, item in facts.gpu_types.items()}.get(gpu_key(gpu_type))
    network = spelled(model, facts.models)
    batches = _batches(facts.models[network] if network is not None else None, known)
    clocks = (None, *_lower_clocks(known)) if known is not None else (None,)
    return tuple(
        Configuration(batch=batch, share_pct_sm=share, clock_mhz_sm=clock)
        for clock in clocks
        for batch in batches
        for share in SHARES_PCT
    )


def _batches(variant: ModelVariant | None, gpu_type: GpuType | None) -> list[int]:
    most = float(BATCH_MAX)
    if variant is not None and gpu_type is not None and variant.memory_mib_per_input > 0:
        free_mib = _MEMORY_PART * gpu_type.memory_mib - variant.memory_mib_weights - _CONTEXT_MIB
        most = min(most, free_mib / variant.memory_mib_per_input)
    return [2**power for power in range(max(1, int(np.log2(max(most, 1.0))) + 1))]


def _lower_clocks(gpu_type: GpuType) -> list[int]:
    clocks = np.array(gpu_type.clocks_mhz_sm)
    wanted = {int(clocks[np.argmin(np.abs(clocks - part * clocks[-1]))]) for part in _CLOCK_PARTS}
    return sorted(wanted - {gpu_type.clock_mhz_sm_max}, reverse=True)


def next_points(
    solo: SoloModel,
    asked: tuple[str, str],
    facts: Facts,
    budget: int,
    candidates: Sequence[Configuration] | None = None,
) -> tuple[Configuration, ...]:
    """At most `budget` configurations of (model, GPU type) in the order in which to measure them. Deterministic."""
    model, gpu_type = asked
    listed = tuple(candidates) if candidates is not None else candidates_of(model, gpu_type, facts)
    if not listed or budget < 1:
        return ()
    place = _places(listed, _highest_clock(gpu_type, facts, listed))
    curve = _curve(solo, asked, facts)
    fresh = _fresh(solo, asked, listed, place, curve.points)
    seen = _seen(place, fresh) if not len(curve.points) else curve.points
    weights = np.where(place[2] > 1.0, _CLOCK_WEIGHT, 1.0)
    beliefs = [_Belief.of(shape, place, seen) for shape in _shapes(curve)]
    std = np.sqrt(np.mean([np.diag(belief.covariance) for belief in beliefs], axis=0))
    chosen: list[int] = []
    while len(chosen) < min(budget, int(fresh.sum())):
        gain = np.mean([belief.gain(weights) for belief in beliefs], axis=0)
        gain[~fresh] = -np.inf
        gain[chosen] = -np.inf
        best = int(np.argmax(np.round(gain, 12)))
        chosen.append(best)
        beliefs = [belief.after(best) for belief in beliefs]
    return tuple(replace(listed[row], std_pct=round(100.0 * float(std[row]), 2)) for row in chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Belief:
    """One possible shape's belief about all candidates: covariance of log latency, and scatter of measurements."""

    covariance: Floats
    scatter: Floats

    @staticmethod
    def of(curve: Curve, place: tuple[Floats, Floats, Floats], seen: Points) -> _Belief:
        """What is left to know after the points seen."""
        here = curves.sight(curve, place)
        covariance = here.covariance(here, curve.kernel)
        if len(seen):
            there = curves.sight(curve, seen.at)
            total = there.covariance(there, curve.kernel) + np.diag(there.scatter / seen.count)
            across = there.covariance(here, curve.kernel)
            covariance = covariance - across.T @ np.linalg.solve(total, across)
        return _Belief(covariance=covariance, scatter=noise(curve.kernel, here.places.weight))

    def gain(self, weights: Floats) -> Floats:
        """How much each candidate's measurement takes from the weighted variance of all, as a part of it."""
        lowered = (self.covariance**2 * weights[:, None]).sum(axis=0) / (np.diag(self.covariance) + self.scatter)
        return np.asarray(lowered / max(float(weights @ np.diag(self.covariance)), 1e-12))

    def after(self, row: int) -> _Belief:
        """The belief once this candidate is measured."""
        column = self.covariance[:, row]
        lowered = self.covariance - np.outer(column, column) / (column[row] + self.scatter[row])
        return replace(self, covariance=lowered)


def _curve(solo: SoloModel, asked: tuple[str, str], facts: Facts) -> Curve:
    """What is believed of the model: its own curve, else what its like say, else what holds of any model."""
    if not isinstance(solo, HeadroomSolo):
        solo = HeadroomSolo(background=knowledge.Background.of(facts), seed=0)
    measured = solo.known.curves.get((intake.LATENCY, asked))
    if measured is not None:
        return measured
    prior = knowledge.prior_of(solo.background, solo.known, intake.LATENCY, asked)
    kernel = solo.known.field(intake.LATENCY, asked[1]).kernel
    # The scale of latency does not matter to the choice, so any will do where none is known.
    return curves.prior_curve(LATENCY, prior or weak_prior(10.0), kernel if len(kernel) else KERNEL_USUAL)


def _shapes(curve: Curve) -> list[Curve]:
    """The curve, and while little is known others that may be true: drawn from its prior, the same every time."""
    if len(curve.points) >= _SETTLED_POINTS:
        return [curve]
    believed = knowledge.posterior(curve) if len(curve.points) else curve.prior
    drawn = np.random.default_rng(0).standard_normal((_SHAPES - 1, len(believed.mean)))
    root = np.linalg.cholesky(believed.covariance + 1e-9 * np.eye(len(believed.mean)))
    return [curve, *(replace(curve, parameters=believed.mean + root @ step) for step in drawn)]


def _highest_clock(gpu_type: str, facts: Facts, listed: Sequence[Configuration]) -> float:
    clocks = [item.clock_mhz_sm for item in listed if item.clock_mhz_sm is not None]
    return intake.listed_clocks(facts).get(gpu_key(gpu_type), float(max(clocks, default=1)))


def _places(listed: Sequence[Configuration], highest: float) -> tuple[Floats, Floats, Floats]:
    return (
        np.array([item.batch for item in listed], dtype=np.float64),
        np.array([item.share_pct_sm / 100.0 for item in listed]),
        np.array([highest / item.clock_mhz_sm if item.clock_mhz_sm else 1.0 for item in listed]),
    )


def _fresh(
    solo: SoloModel,
    asked: tuple[str, str],
    listed: Sequence[Configuration],
    place: tuple[Floats, Floats, Floats],
    points: Points,
) -> Flags:
    """Which candidates were not measured; models that are not ours tell by a distance of zero."""
    if len(points):
        apart = np.linalg.norm(coordinates(*place)[:, None, :] - coordinates(*points.at)[None, :, :], axis=2)
        return np.asarray(apart.min(axis=1) > _SAME)
    clock = [float(item.clock_mhz_sm or np.nan) for item in listed]
    answer = solo.predict(Queries.of(asked[0], asked[1], place[0], 100.0 * place[1], clock))
    return np.asarray(answer.distance > _SAME)


def _seen(place: tuple[Floats, Floats, Floats], fresh: Flags) -> Points:
    rows = np.flatnonzero(~fresh)
    batch, share, slowness = (axis[rows] for axis in place)
    nothing = np.zeros(len(rows))
    return Points(batch=batch, share=share, slowness=slowness, log_value=nothing, count=nothing + 1.0, spread=nothing)
