"""`fm-ftrl` for replicas alone: OLTunes' Bi-FM of latency and throughput.

Owns its name and the choice of hyper-parameters, found on other models than those its claims are checked on. It refuses
everything else.
"""

from __future__ import annotations

from solvers.domain.codec import Plain
from solvers.models.base import Facts, ModelSpec
from solvers.models.parts.seen import part
from solvers.policies.oltunes.learned import TARGETS, USUAL_SOLO, LearnedSolo
from solvers.policies.oltunes.learner import Learner
from solvers.policies.oltunes.machine import MachineRegressor, MachineSettings

SPEC = ModelSpec(
    name="fm-ftrl",
    version="1",
    formula="OLTunes: factorisation machine, FTRL-Proximal",
    quantities=TARGETS,
    online=True,
)
SETTINGS = MachineSettings()


def make(facts: Facts, seed: int) -> LearnedSolo:
    """An unfitted model."""
    regressor = MachineRegressor.fresh(targets=len(TARGETS), roles=1, settings=SETTINGS, seed=seed)
    return LearnedSolo(spec=SPEC, learner=Learner.fresh(regressor, facts, seed, USUAL_SOLO))


def load(plain: Plain, facts: Facts) -> LearnedSolo:
    """From what `dump` wrote."""
    regressor = MachineRegressor.load(part(plain, "regressor"), SETTINGS)
    return LearnedSolo(spec=SPEC, learner=Learner.load(plain, regressor, facts))
