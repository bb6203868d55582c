"""What a claim is, how it is judged, and the one form in which it is told; and the runs that statistical claims are
judged by.

A claim is judged by running something: a claim without a run is none, and `measured` tells the number that was seen,
never rounded in favour. A judge that breaks is a failed claim that says so. Which claims there are is the catalogue's.
Seeds of runs count from 0, and runs are kept where the effort says. A run that failed is never left out: the claim
cannot be judged then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TypedDict, TypeVar

from app.demo.fleet import examples_path
from lab.arena.contenders import ContenderEntry, PlannersOf, entry_of
from lab.arena.loading import load
from lab.arena.running import LOADER, Event, RunEnded, RunOrder, tasks_of
from lab.arena.store import ResultFolder
from lab.arena.workers import run_here
from lab.outcome import RunOutcome
from lab.world.scenario import WorldScenario
from lab.world.world import World
from solvers.errors import EngineError, InputError

Judged = TypedDict("Judged", {"id": str, "class": str, "stated": str, "measured": str, "status": str, "note": str})


class ClaimClass(StrEnum):
    EXACT = "E"
    PROPERTY = "P"
    STATISTICAL = "S"
    HARDWARE = "G"


class ClaimStatus(StrEnum):
    """What came of a claim; NOT_REPRODUCED: it ran, the stated figure was not reached, and the note says why."""

    PASS = "pass"
    FAIL = "fail"
    NOT_REPRODUCED = "not_reproduced"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimEvidence:
    measured: str
    status: ClaimStatus
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much may be spent: seeds for statistical claims, examples for properties, worker processes. Runs are kept in
    `results`, and what is there already is not run again; without it they are forgotten.
    """

    seeds: int = 3
    examples: int = 200
    jobs: int = 1
    results: Path | None = None
    data: Path = Path("../shared/data")
    """Folder of public data."""

    @property
    def told(self) -> str:
        return f"{self.seeds} seed{'' if self.seeds == 1 else 's'}"


Judge = Callable[[Effort], ClaimEvidence]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim, by its number in the catalogue of requirements (`AC-HET-06`)."""

    id: str
    kind: ClaimClass
    stated: str
    judge: Judge
    outcome: ClaimStatus = ClaimStatus.PASS
    """What came of it when all were judged last."""
    quick: bool = False
    """Whether a little effort judges it within seconds, without public data and whatever else the machine does."""


def found(measured: str, wrong: Sequence[str]) -> ClaimEvidence:
    """Evidence of a claim that holds unless something was found wrong; the first findings are told."""
    return ClaimEvidence(
        measured=measured, status=ClaimStatus.FAIL if wrong else ClaimStatus.PASS, note="; ".join(wrong[:3])
    )


def figure(measured: str, *, reached: bool, note: str = "", why: Callable[[], str] = str) -> ClaimEvidence:
    """Evidence of a figure that was stated: `note` is told in any case, `why` is asked only where it was missed."""
    told = [note] if reached else [note, why()]
    status = ClaimStatus.PASS if reached else ClaimStatus.NOT_REPRODUCED
    return ClaimEvidence(measured=measured, status=status, note="; ".join(filter(None, told)))


def listed(numbers: Mapping[str, float], form: str = "{:.0f}") -> str:
    return ", ".join(f"{name} {form.format(number)}" for name, number in numbers.items())


def judged(chosen: Sequence[Claim], effort: Effort, tell: Callable[[Judged], None]) -> list[Judged]:
    """Judge claims one after the other; `tell` hears of each at once."""
    done: list[Judged] = []
    for claim in chosen:
        evidence = _evidence(claim, effort)
        done.append(
            {
                "id": claim.id,
                "class": claim.kind.value,
                "stated": claim.stated,
                "measured": evidence.measured,
                "status": evidence.status.value,
                "note": evidence.note,
            }
        )
        tell(done[-1])
    return done


def _evidence(claim: Claim, effort: Effort) -> ClaimEvidence:
    try:
        return claim.judge(effort)
    except Exception as error:  # noqa: BLE001 - a claim that cannot be judged is not kept, and the others are judged on
        said = " ".join(str(error).split())
        return ClaimEvidence(
            measured="nothing", status=ClaimStatus.FAIL, note=f"could not be judged: {type(error).__name__}: {said}"
        )


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


T = TypeVar("T")


def timed(run: Callable[[], T]) -> tuple[float, T]:
    """Processor milliseconds, so that others on the machine do not count; and what came of it."""
    begun = time.process_time()
    found = run()
    return 1000.0 * (time.process_time() - begun), found
