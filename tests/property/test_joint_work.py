"""More work never leads to a dearer plan: whoever has more repeats what others do, and goes on from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.instances.family_snapshot import family_snapshot
from benchmarks.instances.small import small
from solvers.cycle.ports import movable_workloads
from solvers.cycle.record import Lane
from solvers.domain.codec import from_json
from solvers.domain.evidence import SilentReporter
from solvers.domain.snapshot import Snapshot
from solvers.planners.base import Budget, PlanRequest
from solvers.planners.joint.planner import Joint

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "cases"
PICTURES = {
    "too-small-fleet": lambda: from_json(Snapshot, (GOLDEN / "too-small-fleet.snapshot.json").read_bytes()),
    "16 x 10": lambda: family_snapshot(16, 10, 21),
    "24 x 12": lambda: family_snapshot(24, 12, 21),
    **{f"small {seed}": lambda seed=seed: small(seed) for seed in (8, 31, 47)},
}
WORK = (40, 100, 300, 700)
DEAR = {"too-small-fleet": (WORK[1], WORK[3]), "16 x 10": WORK[:3], "24 x 12": WORK[1:3]}
"""Where much work takes long: each of these finds another plan than the one before."""
CENT = 1e-6


@pytest.mark.parametrize("name", PICTURES)
def test_more_work_never_gives_a_dearer_plan(name: str) -> None:
    picture = PICTURES[name]()
    movable, best = movable_workloads(picture, Lane.ACT), (float("inf"), float("inf"))
    for units in DEAR.get(name, WORK):
        budget = Budget(deadline_s=600.0, work_units=units)
        request = PlanRequest(snapshot=picture, movable=movable, budget=budget, seed=1)
        plan = Joint().think(request, b"", SilentReporter()).proposal.plan
        assert plan is not None
        found = round(plan.objective.unserved, 2), plan.objective.net_usd_per_h
        assert found <= (best[0], best[1] + CENT), units
        best = found
