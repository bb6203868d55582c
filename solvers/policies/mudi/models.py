"""Mudi's models: latency over share as two lines with a knee, and how company changes them by what it is made of.

L(D) = k1 (D - D0) + l0 up to the knee D0 and k2 (D - D0) + l0 beyond, with k1 <= k2 <= 0 (steep, then flat), D the
share as a fraction; least squares on relative errors with the knee found by search; and the smallest share that keeps a
target, in closed form. There is one such curve for every measured batch. Batches with too few shares take their shape
from one joint fit (every part affine in batch, one knee) and their level from their own samples; between batches
latency is interpolated, beyond them the joint fit tells how it grows. Time follows the clock.

Beside neighbours a regression leads from the layers of everybody else on the device (kinds and counts; parameters and
GFLOPs where some layers are not known), their batches and share, and the own batch, to the parts of the member's curve:
latency on the whole device, flat slope, steep slope, and knee (to first order). As the curve is linear in these, one
ridge regression of measured slowdowns finds all of them at once; each service has its own level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.domain.workload import ModelVariant
from solvers.models.base import Facts, Groups, ModelSpec, Quantity, Queries
from solvers.models.parts.curves import CurveModel, Fits, Ridge, Rows, fits, not_negative
from solvers.models.parts.disturbed import Company, DisturbedModel

# --- Two lines with a knee


KNEES = 12
FINER = 7
"""Places that the search for the knee tries between the lowest and the highest measured share, then around the best."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piecewise:
    """One curve. Slopes in ms per whole device."""

    k1: float
    k2: float
    knee: float
    l0: float

    def __call__(self, share: Floats) -> Floats:
        return self.l0 + np.where(share <= self.knee, self.k1, self.k2) * (share - self.knee)

    def minimal_share(self, target_ms: float, share_min: float = 0.0) -> float | None:
        """The smallest share with a latency of at most `target_ms`; None where even the whole device is too slow."""
        if target_ms >= self.l0:
            share = self.knee + (target_ms - self.l0) / self.k1 if self.k1 < 0 else 0.0
            return min(max(share, share_min), 1.0)
        if self.k2 >= 0:
            return None
        share = self.knee + (target_ms - self.l0) / self.k2
        return None if share > 1.0 else max(share, share_min)


def of_parts(parts: Floats, knee: float) -> Piecewise:
    """Curve of what the whole device takes, the slope everywhere and the slope that is added below the knee."""
    whole, flat, steep = (float(part) for part in parts)
    return Piecewise(k1=-flat - steep, k2=-flat, knee=knee, l0=whole + flat * (1.0 - knee))


def parts_at(share: Floats, knee: float) -> Floats:
    """What the three parts weigh at a share, by row: all at least 0, so parts of at least 0 keep the form."""
    return np.stack([np.ones(len(share)), 1.0 - share, np.maximum(knee - share, 0.0)], axis=1)


def best_knee(share: Floats, fit: Callable[[float], tuple[float, T]]) -> T:
    """What `fit` gives (after its error) at the knee with the least error."""
    low, high = float(share.min()), float(share.max())
    if high <= low:
        return fit(low)[1]
    places = np.linspace(low, high, KNEES + 2)
    tried = [(float(knee), fit(float(knee))) for knee in places[1:-1]]
    place, best = min(tried, key=lambda item: item[1][0])
    step = float(places[1] - places[0])
    for knee in np.linspace(place - step, place + step, FINER + 2)[1:-1]:
        found = fit(float(knee))
        best = found if found[0] < best[0] else best
    return best[1]


def fitted(share: Floats, latency_ms: Floats, weights: Floats | None = None) -> Piecewise:
    """The curve of least squared relative errors. `weights` are of rows; none: all alike."""
    weight = np.ones(len(share)) if weights is None else np.sqrt(weights)

    def fit(knee: float) -> tuple[float, Piecewise]:
        design = parts_at(share, knee) * (weight / latency_ms)[:, None]
        parts = not_negative(design, weight)
        return float(np.sum((design @ parts - weight) ** 2)), of_parts(parts, knee)

    return best_knee(share, fit)


# --- Curves of all batches


SPEC_ALONE = ModelSpec(
    name="mudi",
    version="1",
    formula="piecewise linear latency over share, per batch (Mudi)",
    quantities=tuple(Quantity),
)
ASSUMED_WEIGHT = 0.2
"""Of a share that a batch was not measured at, when its own curve is fitted."""
SHARES_MIN = 4
"""Distinct shares that a batch needs for a curve of its own."""
_FEW = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class JointCurve:
    """One curve for all batches: parts that grow with batch (constant, then per input), and a knee."""

    constant: Floats
    per_input: Floats
    knee: float

    def parts(self, batch: Floats) -> Floats:
        return self.constant + batch[:, None] * self.per_input

    def __call__(self, batch: Floats, share: Floats) -> Floats:
        return np.asarray(np.sum(self.parts(batch) * parts_at(share, self.knee), axis=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCurves:
    joint: JointCurve
    batches: Floats
    curves: tuple[Piecewise, ...]

    def __call__(self, batch: Floats, share_pct: Floats, cycle: Floats) -> Floats:
        share = share_pct / 100.0
        held = np.clip(batch, self.batches[0], self.batches[-1])
        base = self.joint(held, share)
        # Where the joint fit leaves nothing at all, it cannot tell how anything grows.
        grown = np.divide(self.joint(batch, share), base, out=np.ones(len(batch)), where=(batch != held) & (base > 0))
        return self.mixed(held, lambda curve: curve(share)) * grown * cycle

    def parts(self, batch: Floats) -> tuple[Floats, Floats]:
        """Parts (by row) and knee of the curve at every batch."""
        known = [(each.l0 + each.k2 * (1 - each.knee), -each.k2, each.k2 - each.k1, each.knee) for each in self.curves]
        weights = self.weights(np.clip(batch, self.batches[0], self.batches[-1]))
        found = np.sum(weights[:, :, None] * np.array(known), axis=1)
        return found[:, :3], found[:, 3]

    def mixed(self, batch: Floats, value: Callable[[Piecewise], Floats]) -> Floats:
        """What the curves of the two neighbouring batches say, mixed by where the batch lies between them."""
        total = np.zeros(len(batch))
        for weight, curve in zip(self.weights(batch).T, self.curves, strict=True):
            if weight.any():
                total += weight * value(curve)
        return total

    def weights(self, batch: Floats) -> Floats:
        """Of every curve, by row."""
        numbers = np.arange(len(self.batches), dtype=np.float64)
        return np.maximum(1.0 - np.abs(np.interp(batch, self.batches, numbers)[:, None] - numbers), 0.0)


def learn_alone(rows: Rows) -> BatchCurves:
    share, latency = rows.share_pct / 100.0, rows.value / rows.cycle
    joint = _joint(rows.batch, share, latency)
    batches = np.unique(rows.batch)
    usual = np.unique(share)
    curves = []
    for batch in batches:
        here = rows.batch == batch
        level = float(np.exp(np.mean(np.log(latency[here] / joint(rows.batch[here], share[here])))))
        # Where a batch lacks a share that others know, the joint curve speaks for it, with little weight.
        assumed = level * joint(np.full(len(usual), batch), usual)
        weights = np.concatenate([np.ones(int(here.sum())), np.full(len(usual), ASSUMED_WEIGHT)])
        own = np.concatenate([share[here], usual]), np.concatenate([latency[here], assumed])
        enough = len(np.unique(share[here])) >= SHARES_MIN
        parts = level * joint.parts(np.array([batch]))[0]
        curves.append(fitted(*own, weights) if enough else of_parts(parts, joint.knee))
    return BatchCurves(joint=joint, batches=batches, curves=tuple(curves))


def _joint(batch: Floats, share: Floats, latency: Floats) -> JointCurve:
    # With a row or two, latency is taken for work over share: what two lines make of 1/D between 0.1 and 1.
    work = float(np.median(latency * share / batch))
    usual = work * np.array([0.0, 0.0, 0.0, 1.0, 2.5, 22.0])

    def fit(knee: float) -> tuple[float, JointCurve]:
        parts = parts_at(share, knee)
        design = np.concatenate([parts, parts * batch[:, None]], axis=1) / latency[:, None]
        found = not_negative(design, np.ones(len(batch)), usual, _FEW / len(batch))
        wrong = float(np.sum((design @ found - 1.0) ** 2))
        return wrong, JointCurve(constant=found[:3], per_input=found[3:], knee=knee)

    return best_knee(share, fit)


ALONE = CurveModel(spec=SPEC_ALONE, learn=learn_alone)


# --- Beside neighbours


SPEC_BESIDE = ModelSpec(name="mudi", version="1", formula="slopes from the layers of the company (Mudi)")
KINDS_MAX = 8
USUAL = 1.1
"""Slowdown beside anybody when nothing was measured in company."""
ROWS_MIN = 4
_PARTS = 4

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What is known of a company by what its networks are made of. `kinds`: counted layers; none: sizes instead."""

    variants: Mapping[str, ModelVariant]
    kinds: tuple[str, ...]

    @staticmethod
    def of(names: tuple[str, ...], facts: Facts) -> Architecture:
        """Layers count when all of these networks have them."""
        known = [facts.models[name] for name in names if name in facts.models]
        counts: dict[str, int] = {}
        for variant in known:
            for layer in variant.layers:
                counts[layer.kind] = counts.get(layer.kind, 0) + layer.count
        complete = len(known) == len(names) and all(variant.layers for variant in known)
        kinds = sorted(counts, key=lambda kind: (-counts[kind], kind))[:KINDS_MAX] if complete else []
        return Architecture(variants=facts.models, kinds=tuple(kinds))

    def described(self, name: str) -> list[float]:
        variant = self.variants.get(name)
        if variant is None:
            return [0.0] * max(len(self.kinds), 2)
        if self.kinds:
            counts = {layer.kind: layer.count for layer in variant.layers}
            return [float(counts.get(kind, 0)) for kind in self.kinds]
        return [variant.parameters_million, variant.gflop_per_input or 0.0]

    def features(self, groups: Groups) -> Floats:
        """Of every member's company: a constant, its own batch, the others' batch and share, what the others are."""
        members = groups.members
        table = np.array([self.described(name) for name in members.models]).reshape(len(members.models), -1)
        own = table[members.model]
        columns = [
            np.ones(len(groups)),
            np.log2(members.batch),
            np.log2(np.maximum(groups.sum_of_others(members.batch), 1.0)),
            groups.sum_of_others(members.share_pct) / 100.0,
            *(np.log1p(groups.sum_of_others(own[:, column])) for column in range(own.shape[1])),
        ]
        return np.stack(columns, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MudiSlopes:
    """The regression over (part, feature) and services. `curves` are those of the members alone."""

    curves: Fits
    architecture: Architecture
    services: tuple[Key, ...] = ()
    ridge: Ridge | None = None
    worst: float = np.inf
    """The largest slowdown that was learned from."""

    def slowdown(self, groups: Groups, _alone_ms: Floats) -> Floats:
        return self.slowed(groups, np.arange(len(groups)))

    def slowed(self, groups: Groups, asked: Whole) -> Floats:
        """The slowdown of these members alone."""
        if self.ridge is None:
            return np.full(len(asked), USUAL)
        return np.asarray(1.0 + self.ridge(self.design(groups, asked)))

    def design(self, groups: Groups, asked: Whole) -> Floats:
        """Of these members every part's weight in the latency alone times every feature, then the services."""
        members = groups.members.take(asked)
        weights, features = part_weights(members, self.curves), self.architecture.features(groups)[asked]
        own = np.zeros((len(asked), len(self.services)))
        for key, rows in members.keys().items():
            if key in self.services:
                own[rows, self.services.index(key)] = 1.0
        crossed = weights[:, :, None] * features[:, None, :]
        return np.concatenate([crossed.reshape(len(asked), -1), own], axis=1)


def part_weights(members: Queries, curves: Fits) -> Floats:
    """Share of every member's latency alone that each part makes up; the last is what moving the knee would change.
    Members without a curve: all of it is latency on the whole device.
    """
    weights = np.zeros((len(members), _PARTS))
    weights[:, 0] = 1.0
    for key, rows in members.keys().items():
        curve = curves.get(key)
        if not isinstance(curve, BatchCurves):
            continue
        share = members.share_pct[rows] / 100.0
        parts, knee = curve.parts(members.batch[rows])
        here = parts * np.concatenate([parts_at(share, 0.0)[:, :2], np.maximum(knee - share, 0.0)[:, None]], axis=1)
        moved = parts[:, 2] * (share < knee)
        whole = here.sum(axis=1)
        some = whole > 0
        weights[rows[some]] = np.concatenate([here, moved[:, None]], axis=1)[some] / whole[some, None]
    return weights


def learn_beside(company: Company | None, facts: Facts) -> MudiSlopes:
    """From company, with curves of what was measured of its members alone."""
    curves = {} if company is None else fits(company.alone, company.alone.latency_ms, facts, learn_alone)
    return learn_slopes(company, facts, curves)


def learn_slopes(company: Company | None, facts: Facts, curves: Fits) -> MudiSlopes:
    """The same with curves of the members alone that are known already."""
    if company is None or company.known().sum() < ROWS_MIN:
        return MudiSlopes(curves={}, architecture=Architecture.of((), facts))
    rows, members = company.known(), company.groups.members
    seen = members.take(rows)
    blank = MudiSlopes(
        curves=curves,
        architecture=Architecture.of(tuple(sorted({members.models[index] for index in members.model})), facts),
        services=tuple(seen.keys()),
    )
    ridge = Ridge.of(blank.design(company.groups, np.flatnonzero(rows)), company.slowdown[rows] - 1.0)
    return replace(blank, ridge=ridge, worst=float(company.slowdown[rows].max()))


BESIDE = DisturbedModel(spec=SPEC_BESIDE, learn=learn_beside)
