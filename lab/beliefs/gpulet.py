"""gpulet's interference: linear in the L2 and DRAM use of the member and of the others.

Owns the published coefficients (of a 2080 Ti), and their refit by least squares for every GPU type that has enough
measured groups. Use is that of the member alone at its own batch and share, as a fraction. It refuses any other
feature, so whoever uses L2 and DRAM alike is slowed alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from solvers.domain.arrays import Flags, Floats
from solvers.models.base import Facts, Groups, ModelSpec, Queries
from solvers.models.parts.disturbed import DRAM_PER_SHARE, L2_PER_SHARE, Company, DisturbedModel
from solvers.models.parts.lattice import Lattice

SPEC = ModelSpec(name="gpulet", version="1", formula="linear in L2 and DRAM use of both (gpulet)")
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
        members = groups.members
        if not len(members):
            return np.zeros(0)
        factors = np.stack([self.by_gpu_type.get(name, self.overall) for name in members.gpu_types])
        return np.asarray(np.sum(features(groups, self.table) * factors[members.gpu_type], axis=1))


def utilisation(members: Queries, table: Lattice | None) -> tuple[Floats, Floats]:
    """Utilisation of L2 and DRAM by every member alone, as fractions; assumed from the share where never measured."""
    share = members.share_pct / 100.0
    if table is None:
        return L2_PER_SHARE * share, DRAM_PER_SHARE * share
    places = table.places(members)
    l2, dram = table.column(places, "l2"), table.column(places, "dram")
    return np.where(np.isnan(l2), L2_PER_SHARE * share, l2), np.where(np.isnan(dram), DRAM_PER_SHARE * share, dram)


def features(groups: Groups, table: Lattice | None) -> Floats:
    """What the coefficients belong to, in their order."""
    l2, dram = utilisation(groups.members, table)
    return np.stack([l2, groups.sum_of_others(l2), dram, groups.sum_of_others(dram), np.ones(len(groups))], axis=1)


def learn(company: Company | None, _facts: Facts) -> Linear:
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


MODEL = DisturbedModel(spec=SPEC, learn=learn)
make, load = MODEL.make, MODEL.load
