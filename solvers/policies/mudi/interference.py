"""Mudi beside neighbours: what networks are made of tells how their company changes a latency curve.

Owns the regression from the layers of everybody else on the device (kinds and counts; parameters and GFLOPs where some
layers are not known), their batches and share, and the own batch, to the parts of the member's curve: latency on the
whole device, flat slope, steep slope, and knee (to first order). As the curve is linear in these, one ridge regression
of measured slowdowns finds all of them at once; each service has its own level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.workload import ModelVariant
from solvers.models.base import Facts, Groups, ModelSpec, Queries
from solvers.models.parts.curves import Fits, Ridge, fits
from solvers.models.parts.disturbed import Company, DisturbedModel
from solvers.policies.mudi import solo
from solvers.policies.mudi.solo import parts_at

SPEC = ModelSpec(name="mudi", version="1", formula="slopes from the layers of the company (Mudi)")
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
        """One network: what company adds up."""
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

    def slowdown(self, groups: Groups, _alone_ms: Floats) -> Floats:
        """The changed curve over the one alone."""
        if self.ridge is None:
            return np.full(len(groups), USUAL)
        return np.asarray(1.0 + self.ridge(self.design(groups)))

    def design(self, groups: Groups) -> Floats:
        """Every part's weight in the latency alone times every feature, then the services."""
        weights = part_weights(groups.members, self.curves)
        features = self.architecture.features(groups)
        own = np.zeros((len(groups), len(self.services)))
        for key, rows in groups.members.keys().items():
            if key in self.services:
                own[rows, self.services.index(key)] = 1.0
        crossed = weights[:, :, None] * features[:, None, :]
        return np.concatenate([crossed.reshape(len(groups), -1), own], axis=1)


def part_weights(members: Queries, curves: Fits) -> Floats:
    """Share of every member's latency alone that each part makes up; the last is what moving the knee would change.
    Members without a curve: all of it is latency on the whole device.
    """
    weights = np.zeros((len(members), _PARTS))
    weights[:, 0] = 1.0
    for key, rows in members.keys().items():
        curve = curves.get(key)
        if not isinstance(curve, solo.BatchCurves):
            continue
        share = members.share_pct[rows] / 100.0
        parts, knee = curve.parts(members.batch[rows])
        here = parts * np.concatenate([parts_at(share, 0.0)[:, :2], np.maximum(knee - share, 0.0)[:, None]], axis=1)
        moved = parts[:, 2] * (share < knee)
        whole = here.sum(axis=1)
        some = whole > 0
        weights[rows[some]] = np.concatenate([here, moved[:, None]], axis=1)[some] / whole[some, None]
    return weights


def learn(company: Company | None, facts: Facts) -> MudiSlopes:
    """The regression of company."""
    if company is None or company.known().sum() < ROWS_MIN:
        return MudiSlopes(curves={}, architecture=Architecture.of((), facts))
    rows, members = company.known(), company.groups.members
    alone = company.alone
    seen = members.take(rows)
    blank = MudiSlopes(
        curves=fits(alone, alone.latency_ms, facts, solo.learn),
        architecture=Architecture.of(tuple(sorted({members.models[index] for index in members.model})), facts),
        services=tuple(seen.keys()),
    )
    ridge = Ridge.of(blank.design(company.groups)[rows], company.slowdown[rows] - 1.0)
    return MudiSlopes(curves=blank.curves, architecture=blank.architecture, services=blank.services, ridge=ridge)


MODEL = DisturbedModel(spec=SPEC, learn=learn)
make, load = MODEL.make, MODEL.load
