"""Runs that statistical claims are judged by.

Owns the way from a claim's effort to outcomes: built-in scenarios, contenders by name, seeds from 0, kept where the
effort says. It refuses to leave out a run that failed: the claim cannot be judged then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from app.demo.examples import examples_path
from lab.arena.contenders import ContenderEntry, PlannersOf, entry_of
from lab.arena.loading import load
from lab.arena.running import LOADER, Event, RunEnded, RunOrder, tasks_of
from lab.arena.store import ResultFolder
from lab.arena.workers import run_here
from lab.claims.base import Effort
from solvers.errors import EngineError, InputError
from solvers.sim.outcome import RunOutcome
from solvers.sim.scenario import WorldScenario
from solvers.sim.world.world import World

SCENARIOS = "scenarios"

Outcomes = Mapping[str, tuple[RunOutcome, ...]]
"""By contender, the same seeds in the same order for each."""


def outcomes(
    scenario: str, contenders: Sequence[str | ContenderEntry], effort: Effort, loader: str = LOADER
) -> Outcomes:
    """Run contenders (as people write them, or tuned) on a built-in scenario. Raises InputError for a scenario that is
    not there, EngineError for a run that failed.
    """
    path = examples_path() / SCENARIOS / f"{scenario}.yaml"
    if not path.is_file():
        raise InputError(f"there is no scenario {scenario}")
    return run_kept(path, contenders, effort, loader)


def run_kept(path: Path, contenders: Sequence[str | ContenderEntry], effort: Effort, loader: str = LOADER) -> Outcomes:
    """The same for a scenario's file."""
    data = effort.data or Path("../shared/data")
    entries = [entry_of(each) if isinstance(each, str) else each for each in contenders]
    tasks = tasks_of(RunOrder(paths=(path,), seeds=effort.seeds, data=data, loader=loader), lambda _about: entries)
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


def varied(
    scenario: str, contender: str, change: Callable[[WorldScenario], WorldScenario], seed: int = 0
) -> RunOutcome:
    """One run of a built-in world that is changed: what an ablation shows. Never kept. Raises InputError where there is
    no such world.
    """
    path = examples_path() / SCENARIOS / f"{scenario}.yaml"
    bench = load(path, None) if path.is_file() else None
    if not isinstance(bench, World):
        raise InputError(f"there is no world {scenario}")
    entry = entry_of(contender)
    return World(change(bench.scenario)).run(entry.contender, seed, PlannersOf(entry.own), lambda _part: None)


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
