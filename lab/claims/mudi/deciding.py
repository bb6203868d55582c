"""How long Mudi takes to place one job: the fleet of a scenario at work, with a job on most GPUs, and more that come.

Owns the measuring that the claim and the benchmark share: processor milliseconds of the decision alone (device, tuning
of the service there by the whole tuner, division of what is left), of the same decision with nothing kept and every
device scored by itself, and of a whole plan. It refuses to judge.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from app.demo.examples import examples_path
from lab.arena.contenders import PlannersOf, entry_of
from lab.arena.loading import load
from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import WorkloadId
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import TrainingJob, WorkloadKind
from solvers.errors import InputError
from solvers.planners.base import Budget, PlanRequest
from solvers.planners.case import Case
from solvers.policies.mudi.parameters import MudiParameters
from solvers.policies.mudi.planner import Mudi, Round
from solvers.policies.mudi.remembering import MudiMemory
from solvers.policies.mudi.selecting import Slack
from solvers.problems.needs import Need
from solvers.sim.world.promoting import next_target
from solvers.sim.world.world import World

SEED = 1000
STANDING = 1.5
"""Jobs for each device that are there already, where as many come."""
COMING = 40

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciding:
    """Of one fleet, in milliseconds of the processor."""

    devices: int
    jobs: int
    decisions_ms: tuple[float, ...]
    """Of each job that came and found a place."""
    scored_singly_ms: float
    """Mean of the same with every device scored by itself and nothing kept."""
    plan_ms: float
    """One whole plan for all of them."""
    evaluations_most: int
    """Batches that any tuning looked at."""


def deciding(scenario: str) -> Deciding:
    """Measure it on a built-in scenario. Raises InputError where there is no such world."""
    bench = load(examples_path() / "scenarios" / f"{scenario}.yaml", None)
    if not isinstance(bench, World):
        raise InputError(f"{scenario} is no world")
    picture, jobs = _picture(bench)
    count = min(int(STANDING * len(picture.devices)), len(jobs) - COMING)
    standing, coming = jobs[:count], jobs[count : count + COMING]
    planner = Mudi()
    picture = replace(picture, jobs=tuple(sorted(standing, key=lambda job: job.id)))
    thought = planner.think(_request(picture), planner.first_state(), SilentReporter())
    assert thought.proposal.plan is not None
    target = next_target(picture.target, thought.proposal.plan, picture.taken_at_s)
    picture = replace(picture, target=target, jobs=tuple(sorted((*standing, *coming), key=lambda job: job.id)))
    state = thought.state or planner.first_state()
    request = _request(picture)
    plan_ms, _ = _timed(lambda: planner.think(request, state, SilentReporter()))
    slack, needs = _opened(request, state, {str(job.id) for job in coming})
    decisions, singly, evaluations = [], [], 0
    for job in coming:
        need = needs[WorkloadId(job.id)]
        alone_ms = _timed(partial(_scored_singly, slack, need, job))[0]
        took_ms, tried = _timed(partial(_placed, slack, need, job))
        if tried is not None:
            decisions.append(took_ms)
            singly.append(alone_ms)
            evaluations = max(evaluations, tried)
    return Deciding(
        devices=len(picture.devices),
        jobs=count,
        decisions_ms=tuple(decisions),
        scored_singly_ms=float(np.mean(singly)),
        plan_ms=plan_ms,
        evaluations_most=evaluations,
    )


def _picture(bench: World) -> tuple[Snapshot, tuple[TrainingJob, ...]]:
    """The world before anything happens, and all jobs that will come, by time."""
    entry = entry_of("mudi")
    run = bench.begin(entry.contender, SEED, PlannersOf(entry.own))
    run.observer.report()
    ordered = sorted(bench.scenario.jobs, key=lambda each: (each.at_s, each.job.id))
    return run.observer.observe(), tuple(each.job for each in ordered)


def _request(picture: Snapshot) -> PlanRequest:
    movable = sorted((*(item.id for item in picture.services), *(item.id for item in picture.jobs)))
    budget = Budget(deadline_s=600.0, work_units=2000)
    return PlanRequest(snapshot=picture, movable=tuple(map(WorkloadId, movable)), budget=budget, seed=SEED)


def _opened(request: PlanRequest, state: bytes, coming: Collection[str]) -> tuple[Slack, dict[WorkloadId, Need]]:
    """The planner's books with everything that stands, and the needs of those that come."""
    made = Round.of(request, Case.of(request), MudiMemory.of(state), MudiParameters())
    made.serve()
    jobs = [need for need in made.draft.case.needs if need.kind is WorkloadKind.JOB]
    made.slack.seat_standing([need for need in jobs if need.workload not in coming])
    return made.slack, {need.workload: need for need in jobs}


def _scored_singly(slack: Slack, need: Need, job: TrainingJob) -> float:
    """Every device that has room scored by itself."""
    places, _ = slack.room(need, job)
    least = math.inf
    for place in places:
        device = int(place)
        kind, hosts, present = slack.scores.load_of(device)
        company = tuple(sorted((*present, job.model)))
        least = min(least, sum(slack.scores.flatness(host, kind, company) for host in hosts))
    return least


def _placed(slack: Slack, need: Need, job: TrainingJob) -> int | None:
    """Place it, and ask the whole tuner on its device even where what runs is enough: how many batches it tried."""
    decision = slack.place(need, job)
    if decision is None:
        return None
    sizer, most = slack.coordinator.sizer, 0
    company = slack.company(decision.device)
    for host in decision.hosts:
        option = host.placed.option
        if option is not None:
            tuned = sizer.size(host.need, option.device_class, host.replicas, option.batch, company)
            most = max(most, 0 if tuned is None else tuned.evaluations)
    return most


def _timed(run: Callable[[], T]) -> tuple[float, T]:
    """Processor milliseconds, so that others on the machine do not count."""
    begun = time.process_time()
    found = run()
    return 1000.0 * (time.process_time() - begun), found
