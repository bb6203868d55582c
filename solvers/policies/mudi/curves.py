"""Latency curves of a service beside training jobs: what Mudi's tuner and selector read.

Owns one piecewise-linear curve per model, class of devices and batch, and how company steepens it. Where the profile
has points measured beside exactly these jobs, the curve is fitted to them; else the curve alone is steepened by the
jobs' pressure, and the pressure of a network that nobody measured is predicted from what it is made of.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import ProfilePoint
from solvers.domain.workload import ModelVariant
from solvers.models.options import Beliefs
from solvers.models.parts.curves import Ridge
from solvers.models.table import Grid
from solvers.policies.mudi.solo import Piecewise, fitted
from solvers.problems.fleet import DeviceClass
from solvers.problems.needs import Need

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
            self._beside[key] = {
                batch: measured.get(batch) or _steepened(curve, factor) for batch, curve in alone.items()
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
    """A curve for every measured batch."""
    share = grid.shares_pct / 100.0 / kind.sm_part
    found = {}
    for column, batch in enumerate(grid.batches):
        rows = grid.measured[:, column] & (share <= 1.0 + 1e-9)
        if rows.any():
            found[int(batch)] = fitted(share[rows], grid.latency_ms_tail[rows, column])
    return found


def _steepened(curve: Piecewise, factor: float) -> Piecewise:
    """Company slows every execution alike, so slopes grow as latency does."""
    return replace(curve, k1=curve.k1 * factor, k2=curve.k2 * factor, l0=curve.l0 * factor)


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
