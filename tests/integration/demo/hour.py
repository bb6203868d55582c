"""The arena's run of an hour on the fleet of a live picture: the same GPUs, services, profiles, policy, standing target
and rates that plans are made for, in the simulated world that contenders are compared in.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from lab.outcome import About, Better, RunContender, TuningSetting
from lab.world.arrivals import Steady
from lab.world.scenario import JobEntry, Level, Open, Rhythm, ScenarioFleet, Traffic, WorldScenario
from lab.world.world import World, outcome_of
from solvers.domain.snapshot import Snapshot
from solvers.planners import registry
from solvers.planners.base import Planner

HOUR_S = 3600.0
RHYTHM = Rhythm(cycle_s=120.0, stretch_s=10.0, governor_s=10.0)
"""Slow, so that an hour takes a few seconds: rates do not change."""


def made(name: str, settings: tuple[TuningSetting, ...]) -> Planner:
    """As the picture's policy tunes it."""
    return registry.create(name, {item.name: json.loads(item.value) for item in settings})


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaHour:
    usd_per_h: tuple[float, float]
    """When it cost least, and most."""
    failed_pct: float
    starts: float
    """Of processes, without those that stood."""


def arena_hour(picture: Snapshot, system: str) -> ArenaHour:
    """An hour under a system from what stood in a picture, judged as production judges."""
    # The highest of the lookback: a crowd is planned for as long as it is remembered.
    rates = {item.service: item.rate_rps_upper for item in picture.demands}
    scenario = WorldScenario(
        about=About(name="live", title="Live", kind="world", goal="cost_usd", better=Better.LOWER, by_pursuit=True),
        level=Level.FLUID,
        span_s=HOUR_S,
        fleet=ScenarioFleet(
            gpu_types=picture.gpu_types, nodes=picture.nodes, devices=picture.devices, power_caps=picture.power_caps
        ),
        models=picture.models,
        projects=picture.projects,
        traffic=tuple(
            Traffic(
                service=replace(service, rate_rps_declared=rates[service.id]),
                load=Open(pattern=Steady(rate_rps=rates[service.id])),
            )
            for service in picture.services
        ),
        jobs=tuple(JobEntry(job=job) for job in picture.jobs),
        policy=picture.policy,
        rhythm=RHYTHM,
        standing=replace(picture.target, promoted_at_s=0.0),
    )
    contender = RunContender(label=system, planners=picture.policy.planners)
    run = World(scenario).begin(contender, 1, made)
    run.observer.profiles = picture.profiles
    run.go(lambda _: None)
    outcome = outcome_of(run, contender)
    told = {item.name: item.value for item in outcome.metrics}
    costs = [window.usd_per_h for window in outcome.windows]
    return ArenaHour(
        usd_per_h=(min(costs), max(costs)),
        failed_pct=told["violation_pct"],
        starts=told["starts"] - len(picture.target.assignments),
    )
