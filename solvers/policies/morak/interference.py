"""Morak beside neighbours: only how many run together matters.

L_int(n), the slowdown of each of n models, is straight in n, with a slope that can only grow from n = 2 on, and fitted
for every GPU type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from solvers.domain.arrays import Floats
from solvers.models.base import Facts, Groups, ModelSpec
from solvers.models.parts.curves import not_negative
from solvers.models.parts.disturbed import Company, DisturbedModel

SPEC = ModelSpec(name="morak", version="1", formula="slowdown by the number of models (Morak)")
USUAL = (0.1, 0.0)
"""What a second model costs, and what every further one costs beyond that, where nothing was measured."""


def company_factor(count: Floats, slope: float, extra: float) -> Floats:
    """L_int(n): 1 alone, `slope` more with every model, `extra` more with every one from the third on."""
    return 1.0 + slope * np.maximum(count - 1.0, 0.0) + extra * np.maximum(count - 2.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountOnly:
    """Slope and extra slope, by GPU type and of all."""

    overall: tuple[float, float] = USUAL
    by_gpu_type: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def slowdown(self, groups: Groups, _alone_ms: Floats) -> Floats:
        """L_int of every member's group."""
        members, total = groups.members, np.ones(len(groups))
        count = groups.count_of_others() + 1.0
        for index, name in enumerate(members.gpu_types):
            here = members.gpu_type == index
            total[here] = company_factor(count[here], *self.by_gpu_type.get(name, self.overall))
        return total


def learn(company: Company | None, _facts: Facts) -> CountOnly:
    """Slopes of company."""
    if company is None:
        return CountOnly()
    rows, members = company.known(), company.groups.members
    others = company.groups.count_of_others()
    design = np.stack([others, np.maximum(others - 1.0, 0.0)], axis=1)
    found: dict[str, tuple[float, float]] = {}
    for index, name in enumerate(members.gpu_types):
        here = rows & (members.gpu_type == index)
        if here.any():
            slope, extra = not_negative(design[here], company.slowdown[here] - 1.0)
            found[name] = float(slope), float(extra)
    slope, extra = not_negative(design[rows], company.slowdown[rows] - 1.0)
    return CountOnly(overall=(float(slope), float(extra)), by_gpu_type=found)


MODEL = DisturbedModel(spec=SPEC, learn=learn)
make, load = MODEL.make, MODEL.load
