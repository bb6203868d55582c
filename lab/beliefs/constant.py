"""Constant slowdown: everybody in company is as much slower as members of groups were on average.

The yardstick of interference models: where slowdowns are narrow its mean error is small already, so a model is only as
good as the spread of slowdowns that it explains. Owns the mean and the spread by GPU type.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from solvers.domain.arrays import Floats
from solvers.models.base import Facts, Groups, ModelSpec
from solvers.models.parts.disturbed import Company, DisturbedModel

SPEC = ModelSpec(name="constant", version="1", formula="mean slowdown of all members of groups")
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


def _learn(company: Company | None, _facts: Facts) -> _Mean:
    if company is None:
        return _Mean(overall=DEFAULT)
    rows, members = company.known(), company.groups.members
    found: dict[str, float] = {}
    for index, name in enumerate(members.gpu_types):
        here = rows & (members.gpu_type == index)
        if here.any():
            found[name] = float(company.slowdown[here].mean())
    return _Mean(overall=float(company.slowdown[rows].mean()), by_gpu_type=found)


MODEL = DisturbedModel(spec=SPEC, learn=_learn)
make, load = MODEL.make, MODEL.load
