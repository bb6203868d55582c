"""No interference: whatever stands together is as fast as alone.

What planners assume that only look at profiles, and the `-ni` variant of InSS. It learns how wrong that is (the spread
is the distance of measured slowdowns from 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.codec import Plain
from solvers.models.base import Facts, Groups, ModelSpec
from solvers.models.parts.company import Company
from solvers.models.parts.disturbed import Disturbed

SPEC = ModelSpec(name="none", version="1", formula="no interference: slowdown 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class _One:
    def slowdown(self, groups: Groups, _alone_ms: Floats) -> Floats:
        """Always 1."""
        return np.ones(len(groups))


def _learn(_company: Company | None, _facts: Facts) -> _One:
    return _One()


def make(facts: Facts, _seed: int = 0) -> Disturbed:
    """The model."""
    return Disturbed.unlearned(SPEC, _learn, facts)


def load(plain: Plain, facts: Facts) -> Disturbed:
    """The model that was dumped."""
    return make(facts).loaded(plain)
