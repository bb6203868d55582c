"""`rf` for replicas alone: a random forest of latency and throughput.

Owns its name. It refuses everything else.
"""

from __future__ import annotations

from lab.beliefs.forest import ForestRegressor
from solvers.domain.codec import Plain
from solvers.models.base import Facts, ModelSpec
from solvers.models.parts.seen import part
from solvers.policies.oltunes.features import Vocabulary
from solvers.policies.oltunes.learned import TARGETS, USUAL_SOLO, LearnedSolo
from solvers.policies.oltunes.learner import Learner

SPEC = ModelSpec(name="rf", version="1", formula="random forest of 100 trees", quantities=TARGETS)


def make(facts: Facts, seed: int) -> LearnedSolo:
    """An unfitted model."""
    regressor = ForestRegressor(seed=seed, targets=len(TARGETS), vocabulary=Vocabulary(roles=1))
    return LearnedSolo(spec=SPEC, learner=Learner.fresh(regressor, facts, seed, USUAL_SOLO))


def load(plain: Plain, facts: Facts) -> LearnedSolo:
    """From what `dump` wrote."""
    regressor = ForestRegressor.load(part(plain, "regressor"))
    return LearnedSolo(spec=SPEC, learner=Learner.load(plain, regressor, facts))
