"""`fm-ftrl` for replicas alone: OLTunes' Bi-FM of latency and throughput.

The hyper-parameters were found on other models than those its claims are checked on.
"""

from __future__ import annotations

from functools import partial

from solvers.models.base import ModelSpec
from solvers.policies.oltunes.learned import TARGETS, LearnedKind, LearnedSolo
from solvers.policies.oltunes.machine import MachineRegressor, MachineSettings

SPEC = ModelSpec(
    name="fm-ftrl",
    version="1",
    formula="OLTunes: factorisation machine, FTRL-Proximal",
    quantities=TARGETS,
    online=True,
)
SETTINGS = MachineSettings()
KIND = LearnedKind(
    model=LearnedSolo,
    spec=SPEC,
    fresh=lambda seed: MachineRegressor.fresh(targets=len(TARGETS), roles=1, settings=SETTINGS, seed=seed),
    read=partial(MachineRegressor.load, settings=SETTINGS),
)
make, load = KIND.make, KIND.load
