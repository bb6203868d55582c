"""A planner cycle after cycle: what it plans stands in the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import Generation
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import Service
from solvers.planners.base import Planner
from solvers.planners.registry import create, think
from solvers.verify.checks import is_fatal, verify
from tests import builders


class Course:
    """One planner and the world it plans for."""

    def __init__(self, name: str, picture: Snapshot, planner: Planner | None = None) -> None:
        self.picture, self.state = picture, b""
        self.planner = create(name) if planner is None else planner

    def step(self, seconds: float = 15.0, **rates_rps: float) -> Plan:
        """Plan for these rates (services of project `demo`), then let so much time pass."""
        demands = tuple(builders.demand(f"demo/{name}", rate) for name, rate in sorted(rates_rps.items()))
        self.picture = replace(self.picture, demands=demands or self.picture.demands)
        request = builders.request(self.picture)
        thought = think(self.planner, request, self.state, SilentReporter())
        plan = thought.proposal.plan
        assert plan is not None
        assert not is_fatal(verify(self.picture, plan, request.movable))
        self.state = self.state if thought.state is None else thought.state
        generation = Generation(self.picture.target.generation + 1)
        target = builders.target(plan.assignments, settings=plan.settings, generation=generation)
        self.picture = replace(self.picture, target=target, taken_at_s=self.picture.taken_at_s + seconds)
        return plan


def farm(*services: Service, **changes: Any) -> Snapshot:
    """Four V100 and four T4, one in each node."""
    devices = [builders.device(f"v{at}", 0, "v100") for at in range(4)]
    devices += [builders.device(f"t{at}", 0, "t4") for at in range(4)]
    return builders.snapshot(devices, services, **changes)


def types_of(plan: Plan) -> set[str]:
    """GPU types in use, by the names that `farm` gives its nodes."""
    return {"v100" if "-v" in item.device else "t4" for item in plan.assignments}
