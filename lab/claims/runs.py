"""Runs that statistical claims are judged by: from a claim's effort to outcomes of built-in scenarios.

Seeds count from 0, and runs are kept where the effort says. A run that failed is never left out: the claim cannot be
judged then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from app.demo.fleet import examples_path
from lab.arena.contenders import ContenderEntry, PlannersOf, entry_of
from lab.arena.loading import load
from lab.arena.running import LOADER, Event, RunEnded, RunOrder, tasks_of
from lab.arena.store import ResultFolder
from lab.arena.workers import run_here
from lab.claims.claim import Effort
from lab.outcome import RunOutcome
from lab.world.scenario import WorldScenario
from lab.world.world import World
from solvers.errors import EngineError, InputError

SCENARIOS = "scenarios"

Outcomes = Mapping[str, tuple[RunOutcome, ...]]
"""By contender, the same seeds in the same order for each."""


@cache
def outcomes(
    scenario: str, contenders: tuple[str | ContenderEntry, ...], effort: Effort, loader: str = LOADER
) -> Outcomes:
    """Run contenders (as people write them, or tuned) on a built-in scenario; several claims read the same runs.
    Raises InputError for a scenario that is not there, EngineError for a run that failed.
    """
    path = examples_path() / SCENARIOS / f"{scenario}.yaml"
    if not path.is_file():
        raise InputError(f"there is no scenario {scenario}")
    return run_kept(path, contenders, effort, loader)


def run_kept(path: Path, contenders: Sequence[str | ContenderEntry], effort: Effort, loader: str = LOADER) -> Outcomes:
    entries = [entry_of(each) if isinstance(each, str) else each for each in contenders]
    tasks = tasks_of(
        RunOrder(paths=(path,), seeds=effort.seeds, data=effort.data, loader=loader), lambda _about: entries
    )
    with TemporaryDirectory() as passing:
        folder = ResultFolder(effort.results or Path(passing))
        folder.want(tasks)

        def keep(event: Event) -> None:
            if isinstance(event, RunEnded):
                folder.put(event.finished)

        run_here(folder.missing(tasks), effort.jobs, keep)
        records = {record.key: record for record in folder.records()}
    found: dict[str, list[RunOutcome]] = {}
    for task in tasks:
        record = records[task.key]
        if record.outcome is None:
            raise EngineError(f"{task.scenario} × {task.entry.contender.label}, seed {task.seed}: {record.error}")
        found.setdefault(task.entry.contender.label, []).append(record.outcome)
    return {label: tuple(some) for label, some in found.items()}


def world_of(scenario: str | Path) -> World:
    """A world as its file says: a built-in one by name. Raises InputError where there is no such world."""
    path = scenario if isinstance(scenario, Path) else examples_path() / SCENARIOS / f"{scenario}.yaml"
    bench = load(path, None) if path.is_file() else None
    if not isinstance(bench, World):
        raise InputError(f"there is no world {scenario}")
    return bench


def varied(
    scenario: str, contender: str, change: Callable[[WorldScenario], WorldScenario], seed: int = 0
) -> RunOutcome:
    """One run of a built-in world that is changed: what an ablation shows. Never kept. Raises InputError where there is
    no such world.
    """
    entry = entry_of(contender)
    world = World(change(world_of(scenario).scenario))
    return world.run(entry.contender, seed, PlannersOf(entry.own), lambda _part: None)


def scenarios(beginning: str) -> tuple[str, ...]:
    """Built-in scenarios whose names begin so. Raises InputError when there are none."""
    found = tuple(sorted(path.stem for path in (examples_path() / SCENARIOS).glob(f"{beginning}*.yaml")))
    if not found:
        raise InputError(f"there is no scenario {beginning}")
    return found


def mean_metric(some: Sequence[RunOutcome], name: str) -> float:
    """The mean over seeds. Raises EngineError where a run has no such number."""
    numbers = [outcome.metric(name) for outcome in some]
    known = [number for number in numbers if number is not None]
    if len(known) != len(numbers) or not known:
        raise EngineError(f"{some[0].scenario} has no metric {name}")
    return fmean(known)
