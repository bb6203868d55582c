"""Slowdowns in company as gpulet has them, linear in the L2 and DRAM use of members; and as a mean.

gpulet's coefficients are the published ones (of a 2080 Ti), refitted by least squares for every GPU type that has
enough measured groups. Use is that of the member alone at its own batch and share, as a fraction; whoever uses L2 and
DRAM alike is slowed alike. The constant slowdown, the mean of members of groups by GPU type, is the yardstick of
interference models: where slowdowns are narrow its mean error is small already, so a model is only as good as the
spread of slowdowns that it explains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from solvers.domain.arrays import Flags, Floats
from solvers.models.base import Facts, Groups, ModelSpec
from solvers.models.parts.disturbed import Company, DisturbedModel, utilisation
from solvers.models.parts.lattice import Lattice

DEFAULT = 1.1
"""Mean slowdown of pairs of networks on one data-centre GPU, to a tenth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mean:
    overall: float
    by_gpu_type: dict[str, float] = field(default_factory=dict)

    def slowdown(self, groups: Groups, _alone_ms: Floats) -> Floats:
        """The mean of the member's GPU type, else of all."""
        members = groups.members
        if not len(members):
            return np.zeros(0)
        means = np.array([self.by_gpu_type.get(name, self.overall) for name in members.gpu_types])
        return np.asarray(means[members.gpu_type])


def learn_constant(company: Company | None, _facts: Facts) -> _Mean:
    if company is None:
        return _Mean(overall=DEFAULT)
    rows, members = company.known(), company.groups.members
    found: dict[str, float] = {}
    for index, name in enumerate(members.gpu_types):
        here = rows & (members.gpu_type == index)
        if here.any():
            found[name] = float(company.slowdown[here].mean())
    return _Mean(overall=float(company.slowdown[rows].mean()), by_gpu_type=found)


PUBLISHED = (0.113, 0.716, 0.355, 0.088, 0.895)
"""L2 of oneself, L2 of the others, DRAM of oneself, DRAM of the others, constant."""
ROWS_MIN = 10
"""Twice the coefficients: with fewer measured members of a GPU type, those of all types count, or the published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Coefficients by GPU type."""

    table: Lattice | None
    overall: Floats
    by_gpu_type: Mapping[str, Floats] = field(default_factory=dict)

    def slowdown(self, groups: Groups, _alone_ms: Floats) -> Floats:
        """The linear form."""
        members = groups.members
        if not len(members):
            return np.zeros(0)
        factors = np.stack([self.by_gpu_type.get(name, self.overall) for name in members.gpu_types])
        return np.asarray(np.sum(features(groups, self.table) * factors[members.gpu_type], axis=1))


def features(groups: Groups, table: Lattice | None) -> Floats:
    """What the coefficients belong to, in their order."""
    l2, dram = utilisation(groups.members, table)
    return np.stack([l2, groups.sum_of_others(l2), dram, groups.sum_of_others(dram), np.ones(len(groups))], axis=1)


def learn(company: Company | None, _facts: Facts) -> Linear:
    """Coefficients of company."""
    published = np.array(PUBLISHED)
    if company is None:
        return Linear(table=None, overall=published)
    design = features(company.groups, company.table)
    rows, members = company.known(), company.groups.members

    def fitted(wanted: Flags, otherwise: Floats) -> Floats:
        if wanted.sum() < ROWS_MIN:
            return otherwise
        return np.asarray(np.linalg.lstsq(design[wanted], company.slowdown[wanted], rcond=1e-8)[0], dtype=np.float64)

    overall = fitted(rows, published)
    found = {name: fitted(rows & (members.gpu_type == index), overall) for index, name in enumerate(members.gpu_types)}
    return Linear(table=company.table, overall=overall, by_gpu_type=found)


CONSTANT = DisturbedModel(
    spec=ModelSpec(name="constant", version="1", formula="mean slowdown of all members of groups"), learn=learn_constant
)
GPULET = DisturbedModel(
    spec=ModelSpec(name="gpulet", version="1", formula="linear in L2 and DRAM use of both (gpulet)"), learn=learn
)
