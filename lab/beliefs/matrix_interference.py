"""`mf` for slowdowns: matrix factorisation of how much slower members of groups run than alone.

Owns its name and the choice of hyper-parameters, found on other models than those it is compared on. It refuses
everything else.
"""

from __future__ import annotations

from lab.beliefs.matrix import MatrixRegressor, MatrixSettings
from solvers.domain.codec import Plain
from solvers.models.base import Facts, ModelSpec
from solvers.models.parts.seen import part
from solvers.policies.oltunes.learned import USUAL_SLOWDOWN, LearnedInterference
from solvers.policies.oltunes.learner import Learner

SPEC = ModelSpec(name="mf", version="1", formula="matrix factorisation with biases")
SETTINGS = MatrixSettings()


def make(facts: Facts, seed: int) -> LearnedInterference:
    """An unfitted model."""
    regressor = MatrixRegressor.fresh(targets=1, settings=SETTINGS, seed=seed)
    return LearnedInterference(spec=SPEC, learner=Learner.fresh(regressor, facts, seed, USUAL_SLOWDOWN))


def load(plain: Plain, facts: Facts) -> LearnedInterference:
    """From what `dump` wrote."""
    regressor = MatrixRegressor.load(part(plain, "regressor"), SETTINGS)
    return LearnedInterference(spec=SPEC, learner=Learner.load(plain, regressor, facts))
