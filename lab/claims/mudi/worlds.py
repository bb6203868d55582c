"""Mudi against its baselines in simulated worlds: which scenario stands for which number, and what is read of it.

Owns the runs (twelve GPUs with few and with many training jobs, a thousand GPUs, rising rates, six GPUs for the
comparison with the exact selector) and the readings: completion times in which a job that did not end counts until the
end of the run, which flatters whoever finishes less; and the load at which five minutes in a row are more than one
percent late. It refuses to judge: that is `mudi_runs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean

from app.demo.examples import examples_path
from lab.arena.contenders import ContenderEntry, entry_of, tuned_entries
from lab.arena.loading import load
from lab.arena.loads import scaled
from lab.claims.base import Effort
from lab.claims.runs import Outcomes, mean_metric, outcomes
from solvers.errors import InputError
from solvers.sim.outcome import Bench, JobOutcome, RunOutcome
from solvers.sim.world.world import World

BASELINES = ("gslice", "muxflow", "gpulet")
FEW_JOBS, MANY_JOBS, LARGE, RISING = "mudi-small", "mudi-busy", "mudi-large", "mudi-rising"
LOADS = (FEW_JOBS, MANY_JOBS)
SIX = "lab.claims.mudi.worlds:six_devices"
PART = 0.5
RISES_TO = 12.0
LATE_MOST = 0.01
MINUTES = 5


def selecting(selector: str) -> ContenderEntry:
    """Mudi with another selector."""
    return tuned_entries([entry_of("mudi")], [f"mudi.selector={selector}"], [])[0]


def six_devices(path: Path, data: Path) -> Bench:
    """A scenario on its first six GPUs, with half of its rates and every other job."""
    bench = load(path, data)
    if not isinstance(bench, World):
        raise InputError(f"{path} is no world")
    scenario = bench.scenario
    traffic = tuple(replace(each, load=scaled(each.load, PART)) for each in scenario.traffic)
    fleet = replace(scenario.fleet, devices=scenario.fleet.devices[:6])
    # A name of its own: kept runs go by it.
    about = replace(scenario.about, name=f"{scenario.about.name}-six")
    return World(replace(scenario, about=about, fleet=fleet, traffic=traffic, jobs=scenario.jobs[::2]))


@lru_cache(maxsize=8)
def measured(scenario: str, effort: Effort) -> Outcomes:
    """Mudi and its baselines; several claims read the same runs."""
    return outcomes(scenario, ("mudi", *BASELINES), effort)


def violation_pct(runs: Outcomes) -> dict[str, float]:
    """Means over seeds."""
    return {name: mean_metric(some, "violation_pct") for name, some in runs.items()}


def completion_s(runs: Outcomes, scenario: str) -> dict[str, float]:
    """Mean time from a job's coming to its end, or to the run's."""
    span_s, came_s = _jobs_of(scenario)
    return {
        name: fmean(_took_s(job, span_s, came_s) for run in some for job in run.jobs) for name, some in runs.items()
    }


def _jobs_of(scenario: str) -> tuple[float, Mapping[str, float]]:
    bench = load(examples_path() / "scenarios" / f"{scenario}.yaml", None)
    if not isinstance(bench, World):
        raise InputError(f"{scenario} is no world")
    return bench.scenario.span_s, {str(each.job.id): each.at_s for each in bench.scenario.jobs}


def _took_s(job: JobOutcome, span_s: float, came_s: Mapping[str, float]) -> float:
    return job.took_s if job.took_s is not None else span_s - came_s[str(job.job)]


def load_borne(run: RunOutcome, span_s: float) -> float:
    """How many times the first load when the first five minutes begin that are late in more than one percent."""
    asked: dict[int, float] = {}
    violated: dict[int, float] = {}
    for window in run.windows:
        minute, seconds = int(window.from_s // 60.0), window.until_s - window.from_s
        asked[minute] = asked.get(minute, 0.0) + window.asked_rps * seconds
        violated[minute] = violated.get(minute, 0.0) + window.violated_rps * seconds
    for first in sorted(asked):
        some = [minute for minute in range(first, first + MINUTES) if minute in asked]
        if len(some) == MINUTES and sum(violated[m] for m in some) > LATE_MOST * sum(asked[m] for m in some):
            return 1.0 + (RISES_TO - 1.0) * 60.0 * first / span_s
    return RISES_TO


def loads_borne(effort: Effort) -> dict[str, float]:
    """Means over seeds, by contender."""
    span_s, _ = _jobs_of(RISING)
    return {name: fmean(load_borne(run, span_s) for run in some) for name, some in measured(RISING, effort).items()}


def selectors(scenario: str, effort: Effort, names: Sequence[str]) -> Outcomes:
    """Mudi with each of these selectors on six GPUs."""
    return outcomes(scenario, [selecting(name) for name in names], effort, SIX)


def told(found: Mapping[str, float], digits: int = 2) -> str:
    """Numbers by name."""
    return ", ".join(f"{name} {value:.{digits}f}" for name, value in found.items())
