"""No interference: whatever stands together is as fast as alone.

What planners assume that only look at profiles, and the `-ni` variant of InSS. It learns how wrong that is (the spread
is the distance of measured slowdowns from 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats
from solvers.models.base import Facts, Groups, ModelSpec
from solvers.models.parts.disturbed import Company, DisturbedModel

SPEC = ModelSpec(name="none", version="1", formula="no interference: slowdown 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class _One:
    def slowdown(self, groups: Groups, _alone_ms: Floats) -> Floats:
        """Always 1."""
        return np.ones(len(groups))


def _learn(_company: Company | None, _facts: Facts) -> _One:
    return _One()


MODEL = DisturbedModel(spec=SPEC, learn=_learn)
make, load = MODEL.make, MODEL.load
