"""`fm-ftrl` for slowdowns: the same machine over features of a replica and of its neighbours.

The hyper-parameters were found on other models than those its claims are checked on.
"""

from __future__ import annotations

from functools import partial

from solvers.models.base import ModelSpec
from solvers.policies.oltunes.learned import USUAL_SLOWDOWN, LearnedInterference, LearnedKind
from solvers.policies.oltunes.machine import FtrlSettings, MachineRegressor, MachineSettings

SPEC = ModelSpec(name="fm-ftrl", version="1", formula="OLTunes: factorisation machine, FTRL-Proximal", online=True)
SETTINGS = MachineSettings(ftrl=FtrlSettings(eta=0.1, zeta=1.0, lambda_1=1.0, lambda_2=1.0))
"""Slowdowns vary little and are noisy, so they are held back more than latencies."""
KIND = LearnedKind(
    model=LearnedInterference,
    usual=USUAL_SLOWDOWN,
    spec=SPEC,
    fresh=lambda seed: MachineRegressor.fresh(targets=1, roles=2, settings=SETTINGS, seed=seed),
    read=partial(MachineRegressor.load, settings=SETTINGS),
)
make, load = KIND.make, KIND.load
