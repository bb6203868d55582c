"""`fm-ftrl` for slowdowns: the same machine over features of a replica and of its neighbours.

Owns its name and the choice of hyper-parameters, found on other models than those its claims are checked on. It refuses
everything else.
"""

from __future__ import annotations

from solvers.domain.codec import Plain
from solvers.models.base import Facts, ModelSpec
from solvers.models.parts.seen import part
from solvers.policies.oltunes.ftrl import FtrlSettings
from solvers.policies.oltunes.learned import USUAL_SLOWDOWN, LearnedInterference
from solvers.policies.oltunes.learner import Learner
from solvers.policies.oltunes.machine import MachineRegressor, MachineSettings

SPEC = ModelSpec(
    name="fm-ftrl",
    version="1",
    formula="OLTunes: factorisation machine, FTRL-Proximal",
    online=True,
)
SETTINGS = MachineSettings(ftrl=FtrlSettings(eta=0.1, zeta=1.0, lambda_1=1.0, lambda_2=1.0))
"""Slowdowns vary little and are noisy, so they are held back more than latencies."""


def make(facts: Facts, seed: int) -> LearnedInterference:
    """An unfitted model."""
    regressor = MachineRegressor.fresh(targets=1, roles=2, settings=SETTINGS, seed=seed)
    return LearnedInterference(spec=SPEC, learner=Learner.fresh(regressor, facts, seed, USUAL_SLOWDOWN))


def load(plain: Plain, facts: Facts) -> LearnedInterference:
    """From what `dump` wrote."""
    regressor = MachineRegressor.load(part(plain, "regressor"), SETTINGS)
    return LearnedInterference(spec=SPEC, learner=Learner.load(plain, regressor, facts))
