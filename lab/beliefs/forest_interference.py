"""`rf` for slowdowns: a random forest of how much slower members of groups run than alone.

Owns its name. It refuses everything else.
"""

from __future__ import annotations

from lab.beliefs.forest import ForestRegressor
from solvers.domain.codec import Plain
from solvers.models.base import Facts, ModelSpec
from solvers.models.parts.seen import part
from solvers.policies.oltunes.features import Vocabulary
from solvers.policies.oltunes.learned import USUAL_SLOWDOWN, LearnedInterference
from solvers.policies.oltunes.learner import Learner

SPEC = ModelSpec(name="rf", version="1", formula="random forest of 100 trees")


def make(facts: Facts, seed: int) -> LearnedInterference:
    """An unfitted model."""
    regressor = ForestRegressor(seed=seed, targets=1, vocabulary=Vocabulary(roles=2))
    return LearnedInterference(spec=SPEC, learner=Learner.fresh(regressor, facts, seed, USUAL_SLOWDOWN))


def load(plain: Plain, facts: Facts) -> LearnedInterference:
    """From what `dump` wrote."""
    regressor = ForestRegressor.load(part(plain, "regressor"))
    return LearnedInterference(spec=SPEC, learner=Learner.load(plain, regressor, facts))
