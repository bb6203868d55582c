"""`mf` for replicas alone: matrix factorisation of latency and throughput.

Owns its name and the choice of hyper-parameters, found on other models than those it is compared on. It refuses
everything else.
"""

from __future__ import annotations

from lab.beliefs.matrix import MatrixRegressor, MatrixSettings
from solvers.domain.codec import Plain
from solvers.models.base import Facts, ModelSpec
from solvers.models.parts.seen import part
from solvers.policies.oltunes.learned import TARGETS, USUAL_SOLO, LearnedSolo
from solvers.policies.oltunes.learner import Learner

SPEC = ModelSpec(name="mf", version="1", formula="matrix factorisation with biases", quantities=TARGETS)
SETTINGS = MatrixSettings()


def make(facts: Facts, seed: int) -> LearnedSolo:
    """An unfitted model."""
    regressor = MatrixRegressor.fresh(targets=len(TARGETS), settings=SETTINGS, seed=seed)
    return LearnedSolo(spec=SPEC, learner=Learner.fresh(regressor, facts, seed, USUAL_SOLO))


def load(plain: Plain, facts: Facts) -> LearnedSolo:
    """From what `dump` wrote."""
    regressor = MatrixRegressor.load(part(plain, "regressor"), SETTINGS)
    return LearnedSolo(spec=SPEC, learner=Learner.load(plain, regressor, facts))
