"""What stays although it keeps no promise: only where it slows nobody more than was planned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solvers.domain.profile import Interference, ProfileOrigin
from solvers.domain.snapshot import Snapshot
from solvers.planners import registry
from solvers.verify.checks import is_fatal, verify
from tests import builders

PLANNERS = ("best_single_type", "gpulet", "greedy", "gslice", "hetsev", "igniter", "parvagpu")
"""Those that let services share a GPU and settle one workload after the other."""


def beside_the_hopeless(pressure: float) -> Snapshot:
    """One GPU. A replica that is much too slow for its limit stands on it; another service asks for room beside it."""
    services = [
        builders.service("hopeless", model="bert", slo=builders.slo(0.5)),
        builders.service("vision", rate_rps_declared=100.0),
    ]
    host, card = builders.node("n0"), builders.device("n0", 0, "v100")
    presses = Interference(pressure=pressure, exponent=0.0, sensitivity=0.9, origin=ProfileOrigin.MEASURED)
    profiles = tuple(replace(builders.profile(model, "v100"), interference=presses) for model in ("bert", "resnet50"))
    stands = builders.assignment("demo/hopeless#0", card, model="bert", share_pct_sm=10)
    return builders.snapshot((card,), services, nodes=(host,), profiles=profiles, target=builders.target((stands,)))


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("pressure", [0.01, 1.5])
def test_a_last_resort_slows_nobody_more_than_was_planned(name: str, pressure: float) -> None:
    picture = beside_the_hopeless(pressure)
    plan = registry.propose(name, builders.request(picture)).plan
    assert plan is not None
    assert not is_fatal(verify(picture, plan, builders.everything_movable(picture)))
    kept = {item.workload for item in plan.assignments}
    assert kept == ({"demo/hopeless", "demo/vision"} if pressure < 0.1 else {"demo/vision"})
