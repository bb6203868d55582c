"""How Mudi is tuned, its latency curves of a service beside training jobs, and the least share that they ask for.

The parameters are the paper's values, and defaults of our reading where it states none.

There is one piecewise-linear curve per model, class of devices and batch, which company steepens. Where the profile has
points measured beside exactly these jobs, the curve is fitted to them; else the curve alone is steepened by the jobs'
pressure, and the pressure of a network that nobody measured is predicted from what it is made of.

The least share: how fast a batch has to be for its window (T = window / batches of it, with the limit and stability as
its ceilings), and the smallest share at which it is, by the closed form or by the convex programme. What the programme
cannot solve (a curve that is not convex, a solver that gives up) goes to the closed form. Tails and queues are not
known here: the promise of the profile is the referee after it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import ProfilePoint
from solvers.domain.value import value
from solvers.domain.workload import ModelVariant
from solvers.engines.least_share import LeastShare, least_shares
from solvers.errors import EngineError
from solvers.models.options import Beliefs
from solvers.models.parts.curves import Ridge
from solvers.models.table import Grid
from solvers.planners.tuning import Tune, TunedRecord
from solvers.policies.mudi.models import Piecewise, fitted
from solvers.problems.fleet import DeviceClass
from solvers.problems.needs import Need


class Selector(StrEnum):
    """Which device a training job goes to, of those with room."""

    SLOPE = "slope"
    """Where taking share away costs the service least, as printed."""
    SPREAD = "spread"
    """The same among devices with the fewest training jobs: the paper minimises iteration times, and two jobs on a
    device take twice as long.
    """
    OPTIMAL = "optimal"
    """Where the iteration times of all jobs together become least, by looking at every way to spread up to six waiting
    jobs: the paper's reference, for small fleets.
    """
    RANDOM = "random"
    """Anywhere, all alike: the paper's reference for what choosing is worth."""


class Rounding(StrEnum):
    """How many batches the requests of a window make."""

    CEIL = "ceil"
    RATIO = "ratio"
    """As printed: parts of a batch count as parts."""


class ShareEngine(StrEnum):
    """Who solves for the least share."""

    CLOSED = "closed"
    CONVEX = "convex"


@value
class MudiParameters(TunedRecord):
    selector: Annotated[Selector, Tune("which device a training job goes to")] = Selector.SPREAD
    jobs_per_device: Annotated[int, Tune("training jobs on one device at most", 1, 16)] = 3
    iterations: Annotated[int, Tune("batches that the tuner tries at most", 1, 200)] = 25
    gain_least: Annotated[float, Tune("tuning ends when the bound promises less than this part", 0, 1)] = 0.01
    delta: Annotated[float, Tune("how likely the bound may be wrong; wide bounds explore", 0.000001, 0.999999)] = 0.1
    window_part: Annotated[float, Tune("control window in parts of the latency limit", 0.01, 100)] = 1.0
    rounding: Annotated[Rounding, Tune("how many batches a window's requests make")] = Rounding.CEIL
    share_engine: Annotated[ShareEngine, Tune("who solves for the least share; both give the same")] = (
        ShareEngine.CLOSED
    )
    share_pct_least: Annotated[float, Tune("least share of inference: one pair of SMs", 0.1, 100)] = 1.0
    keep_pct: Annotated[float, Tune("a standing share that is larger by less than this stays", 0, 100)] = 10.0
    job_step_pct: Annotated[float, Tune("a job's share is not raised by less than this", 0, 100)] = 10.0
    penalty: Annotated[float, Tune("what a batch counts at which all requests were late, in iteration times", 0)] = 10.0
    host_mib_per_device: Annotated[
        float, Tune("memory of jobs that can do without, of one device, that may stand on its host", 0)
    ] = 65536.0
    heed: Annotated[float, Tune("weight of the newest reading among those remembered of a batch", 0.01, 1)] = 0.3


# --- The least share


def target_ms(limit_ms: float, rate_rps: float, batch: int, parameters: MudiParameters) -> float:
    """Longest execution of one batch with which a replica at this rate finishes a window's requests within it."""
    stable_ms = 1000.0 * batch / rate_rps if rate_rps > 0 else math.inf
    if math.isinf(limit_ms):
        return stable_ms
    window_ms = limit_ms * parameters.window_part
    batches = window_target_batches(rate_rps * window_ms / 1000.0, batch, parameters.rounding)
    return min(limit_ms, stable_ms, window_ms / batches if batches > 0 else math.inf)


def window_target_batches(requests: float, batch: int, rounding: Rounding) -> float:
    return requests / batch if rounding is Rounding.RATIO else float(math.ceil(requests / batch - 1e-9))


def least_share(curve: Piecewise, target: float, parameters: MudiParameters) -> float | None:
    """The smallest share within the target; None where even the whole device is too slow."""
    return least_shares_of([curve], [target], parameters)[0]


def least_shares_of(
    curves: Sequence[Piecewise], targets: Sequence[float], parameters: MudiParameters
) -> list[float | None]:
    """The same for many at once."""
    floor = parameters.share_pct_least / 100.0
    finite = all(math.isfinite(target) and target > 0 for target in targets)
    if parameters.share_engine is ShareEngine.CONVEX and finite and curves:
        try:
            found = least_shares(programme(curves, targets, floor))
        except EngineError:
            pass
        else:
            return [float(share) if np.isfinite(share) else None for share in found]
    return [curve.minimal_share(target, floor) for curve, target in zip(curves, targets, strict=True)]


def programme(curves: Sequence[Piecewise], targets: Sequence[float], floor: float) -> LeastShare:
    return LeastShare(
        steep=np.array([curve.k1 for curve in curves]),
        flat=np.array([curve.k2 for curve in curves]),
        knee=np.array([curve.knee for curve in curves]),
        at_knee_ms=np.array([curve.l0 for curve in curves]),
        target_ms=np.array(targets, dtype=np.float64),
        floor=floor,
    )


# --- Curves of services


KNOWN_MIN = 4
"""Networks of known pressure that a prediction from layers needs."""
PAIRS_MIN = 3
"""Shares that a curve beside measured company needs."""
KINDS_MAX = 6

Company = tuple[ModelName, ...]
"""Models of the jobs on a device, sorted."""


@dataclass(slots=True, kw_only=True)
class MudiCurves:
    """Curves of one request, made when first asked for."""

    beliefs: Beliefs
    models: Mapping[ModelName, ModelVariant]
    _alone: dict[tuple[ModelName, int], dict[int, Piecewise]] = field(default_factory=dict)
    _beside: dict[tuple[ModelName, int, Company], dict[int, Piecewise]] = field(default_factory=dict)
    _pressures: dict[GpuTypeName, dict[ModelName, float]] = field(default_factory=dict)

    def beside(self, need: Need, number: int, company: Company) -> dict[int, Piecewise]:
        """Curve by batch on devices of a class beside these jobs."""
        key = (need.model, number, company)
        if key not in self._beside:
            kind = self.beliefs.classes[number]
            factor = 1.0 + self.slowing(need, kind, company)
            measured = self._measured(need, kind, company) if company else {}
            alone = self._curves(need, number)
            # Company slows every execution alike, so slopes grow as latency does.
            self._beside[key] = {
                batch: measured.get(batch)
                or replace(each, k1=each.k1 * factor, k2=each.k2 * factor, l0=each.l0 * factor)
                for batch, each in alone.items()
            }
        return self._beside[key]

    def slowing(self, need: Need, kind: DeviceClass, company: Company) -> float:
        """By how much of its latency alone a service is slowed beside these jobs, they on a half of the device."""
        if not company:
            return 0.0
        profile = self.beliefs.profiles.get((need.model, kind.gpu_type))
        known = None if profile is None else profile.interference
        pressures = self._pressures_on(kind)
        if known is None or any(name not in pressures for name in company):
            return (self.beliefs.policy.interference_margin - 1.0) * len(company)
        return known.sensitivity * sum(pressures[name] for name in company) * math.sqrt(0.5 / len(company))

    def _curves(self, need: Need, number: int) -> dict[int, Piecewise]:
        key = (need.model, number)
        if key not in self._alone:
            kind = self.beliefs.classes[number]
            grid = None if need.tokens is not None else self.beliefs.grid(need.model, kind)
            self._alone[key] = {} if grid is None else _fitted(grid, kind)
        return self._alone[key]

    def _measured(self, need: Need, kind: DeviceClass, company: Company) -> dict[int, Piecewise]:
        """Curves fitted to points beside exactly these jobs."""
        profile = self.beliefs.profiles.get((need.model, kind.gpu_type))
        wanted = Counter(company)
        points: dict[int, list[ProfilePoint]] = {}
        for point in () if profile is None else profile.points:
            if point.neighbours and Counter(point.neighbours) == wanted and point.clock_mhz_sm == kind.clock_mhz_sm:
                points.setdefault(point.batch, []).append(point)
        found = {}
        for batch, rows in points.items():
            share = np.array([row.share_pct_sm for row in rows]) / 100.0 / kind.sm_part
            if len(np.unique(share)) >= PAIRS_MIN:
                latency = np.array([row.latency_ms_p99 or row.latency_ms_mean for row in rows])
                found[batch] = fitted(share, latency)
        return found

    def _pressures_on(self, kind: DeviceClass) -> dict[ModelName, float]:
        """Pressure of every network on a GPU type, predicted from layers where nobody measured it."""
        if kind.gpu_type not in self._pressures:
            known = {
                model: item.interference.pressure
                for (model, gpu_type), item in self.beliefs.profiles.items()
                if gpu_type == kind.gpu_type and item.interference is not None
            }
            self._pressures[kind.gpu_type] = {**_predicted(known, self.models), **known}
        return self._pressures[kind.gpu_type]


def _fitted(grid: Grid, kind: DeviceClass) -> dict[int, Piecewise]:
    share = grid.shares_pct / 100.0 / kind.sm_part
    found = {}
    for column, batch in enumerate(grid.batches):
        rows = grid.measured[:, column] & (share <= 1.0 + 1e-9)
        if rows.any():
            found[int(batch)] = fitted(share[rows], grid.latency_ms_tail[rows, column])
    return found


def _predicted(known: Mapping[ModelName, float], models: Mapping[ModelName, ModelVariant]) -> dict[ModelName, float]:
    """Pressures of the other networks by ridge regression on their layers, or on their sizes where layers lack."""
    taught = sorted(name for name in known if name in models)
    others = sorted(name for name in models if name not in known)
    if len(taught) < KNOWN_MIN or not others:
        return {}
    kinds = _kinds([models[name] for name in (*taught, *others)])
    ridge = Ridge.of(_described(taught, models, kinds), np.array([known[name] for name in taught]))
    values = np.asarray(ridge(_described(others, models, kinds)))
    low, high = min(known[name] for name in taught), max(known[name] for name in taught)
    return {name: float(value) for name, value in zip(others, np.clip(values, low, high), strict=True)}


def _kinds(variants: list[ModelVariant]) -> tuple[str, ...]:
    """Kinds of layers, the most frequent first; none unless all networks have their layers listed."""
    if not all(variant.layers for variant in variants):
        return ()
    counts: Counter[str] = Counter()
    for variant in variants:
        counts.update({layer.kind: layer.count for layer in variant.layers})
    return tuple(sorted(counts, key=lambda kind: (-counts[kind], kind))[:KINDS_MAX])


def _described(names: list[ModelName], models: Mapping[ModelName, ModelVariant], kinds: tuple[str, ...]) -> Floats:
    rows = []
    for name in names:
        variant = models[name]
        layers = Counter({layer.kind: layer.count for layer in variant.layers})
        size = [variant.parameters_million, variant.gflop_per_input or 0.0]
        rows.append([1.0, *np.log1p([float(layers[kind]) for kind in kinds] if kinds else size)])
    return np.array(rows)
