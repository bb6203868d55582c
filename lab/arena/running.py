"""Runs of the arena: what is to be run, and one run in whatever process it lands.

A run is known by the scenario's content, the contender, the seed and the software; its failure is captured. How long
planners thought is told beside its outcome and never in it: an outcome holds no wall time.
"""

from __future__ import annotations

import hashlib
import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from multiprocessing import parent_process
from pathlib import Path
from typing import TypeAlias

from agents.wire import mirrored
from app.own_planners import TooLongError, limited
from lab.arena.contenders import ContenderEntry, PlannersOf
from lab.outcome import (
    About,
    Bench,
    Better,
    Planners,
    ProgressListener,
    RunContender,
    RunOutcome,
    TuningSetting,
    check_outcome,
)
from solvers.domain.codec import bytes_digest, digest
from solvers.domain.evidence import Reporter
from solvers.domain.plan import Proposal, ProposalStatus
from solvers.domain.value import value
from solvers.errors import EngineError, HeadroomError, InputError, InvariantError, did_you_mean
from solvers.planners import registry
from solvers.planners.base import Planner, PlannerSpec, PlanRequest, Thought
from solvers.version import VERSION

PLANNER_S_MAX = 1800.0
"""On the clock, for one plan."""
DEAF_STATUS = 1
"""How a worker ends whose planner does not hear that its time is over."""


@value
class PlanningTime:
    planner: str
    calls: int
    wall_s: float
    wall_s_max: float


class TimedPlanners:
    """Makes the planners that `planners` makes, each with a clock and watched: a planner that breaks, thinks for ever,
    changes what it is given or stands in for another is the run's failure, not a cycle without a plan.
    """

    def __init__(self, planners: Planners, limit_s: float = PLANNER_S_MAX) -> None:
        self._planners, self.limit_s = planners, limit_s
        self._spent_s: dict[str, list[float]] = {}
        self.broken: str | None = None
        """What the first of them did, after which none is asked any more."""

    def __call__(self, name: str, settings: tuple[TuningSetting, ...]) -> Planner:
        """The planner of that name and tuning, timed."""
        made = self._planners(name, settings)
        return _Timed(made, self._spent_s.setdefault(name, []), self)

    def times(self) -> tuple[PlanningTime, ...]:
        return tuple(
            PlanningTime(planner=name, calls=len(spent_s), wall_s=sum(spent_s), wall_s_max=max(spent_s))
            for name, spent_s in sorted(self._spent_s.items())
            if spent_s
        )


class _Timed:
    def __init__(self, planner: Planner, spent_s: list[float], watch: TimedPlanners) -> None:
        self._planner, self._spent_s, self._watch = planner, spent_s, watch

    @property
    def spec(self) -> PlannerSpec:
        return self._planner.spec

    def first_state(self) -> bytes:
        return self._planner.first_state()

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:
        return self.think(request, state, reporter).proposal

    def think(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Thought:
        begun_s, watch = time.perf_counter(), self._watch
        if watch.broken is None:
            try:
                return self._thought(request, state, reporter)
            except EngineError:
                raise
            except BaseException as error:  # whatever a planner does, the run says so
                if isinstance(error, KeyboardInterrupt) and parent_process() is None:
                    raise  # somebody's at the keyboard, for workers hear none
                watch.broken = f"planner {self.spec.name} at {request.snapshot.taken_at_s:g} s: {_sentence(error)}"
            finally:
                self._spent_s.append(time.perf_counter() - begun_s)
        raise EngineError(watch.broken, planner=self.spec.name)

    def _thought(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Thought:
        # A planner of the user's has a picture of its own, as it has in production's child process.
        own = self.spec.name not in registry.names()
        given = pickle.loads(pickle.dumps(request)) if own else request
        with limited(self._watch.limit_s, f"it thought for more than {self._watch.limit_s:g} s"):
            thought = registry.think(self._planner, given, state, reporter)
        if own and given != request:
            raise InvariantError("it changed the request that it was given")
        if thought.proposal.status is ProposalStatus.NOT_APPLICABLE:
            facts = (str(fact.value) for reason in thought.proposal.reasons for fact in reason.facts)
            raise InputError("; ".join((*facts, "another planner would stand in for it")))
        return thought


LOADER = "lab.arena.loading:load"
"""What reads a scenario's file: a function of its path and of the folder with public data."""
_ROOT = Path(__file__).resolve().parents[2]
_ARENA = "lab/arena"
_DECIDING = (
    "solvers", "agents/devices/base.py", "agents/wire.py", "app/library", "app/marked.py",
    "app/services/beliefs/completion.py", _ARENA, "lab/baselines", "lab/beliefs", "lab/benches", "lab/gavel",
    "lab/outcome.py", "lab/world",
)  # fmt: skip
_SUFFIXES = (".py", ".json", ".c", ".h")
_TELLING = ("contenders", "drawing", "report", "running", "standing", "stats", "store", "workers")


@value
class RunTask:
    scenario: str
    path: str
    scenario_digest: str
    entry: ContenderEntry
    seed: int
    data: str
    software: str
    loader: str = LOADER
    planner_s_max: float = PLANNER_S_MAX
    """Decides no outcome, only whether there is one."""

    @property
    def key(self) -> str:
        """Digest of everything that decides the outcome."""
        parts = (self.scenario_digest, digest(self.entry.contender), str(self.seed), self.software)
        own = tuple(digest((item.name, item.source)) for item in self.entry.own)
        return digest((*parts, *own)).removeprefix("sha256:")


@value
class RunRecord:
    """A finished run, as it is kept; either an outcome or why there is none."""

    key: str
    scenario: str
    scenario_digest: str
    software: str
    about: About
    contender: RunContender
    seed: int
    outcome: RunOutcome | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    record: RunRecord
    wall_s: float
    cpu_s: float
    planning: tuple[PlanningTime, ...] = ()
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    task: RunTask


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPart:
    """How far a run is, 0…1."""

    task: RunTask
    part: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    task: RunTask
    finished: Finished


Event: TypeAlias = Began | RunPart | RunEnded
Hear: TypeAlias = Callable[[Event], None]
"""Is told what happens to runs, in the process that asked for them."""


@cache
def software() -> str:
    """The version and a digest of the sources that decide outcomes: those that only tell of them are left out."""
    summed = hashlib.sha256()
    for file in deciding():
        summed.update(f"{file.relative_to(_ROOT).as_posix()}\n".encode() + file.read_bytes())
    return f"{VERSION}+{summed.hexdigest()[:12]}"


def deciding() -> Iterator[Path]:
    for folder in _DECIDING:
        within = _ROOT / folder
        for file in [within] if within.is_file() else sorted(within.rglob("*")):
            tells = folder == _ARENA and file.relative_to(within).parts[0].removesuffix(".py") in _TELLING
            if file.suffix in _SUFFIXES and not tells:
                yield file


def load_bench(path: str, data: str, loader: str = LOADER) -> Bench:
    """Read a scenario. Raises InputError naming file and line."""
    module, _, function = loader.partition(":")
    made: Bench = getattr(import_module(module), function)(Path(path), Path(data))
    return made


@value
class RunOrder:
    """What is to be run: every scenario with its contenders under so many seeds."""

    paths: tuple[Path, ...]
    seeds: int | None = None
    """How many; None: the scenario's own number."""
    seed_from: int = 0
    """The first of them: seeds that no development run used are held out."""
    data: Path
    """Folder of public data."""
    loader: str = LOADER
    planner_s_max: float = PLANNER_S_MAX


def tasks_of(order: RunOrder, contenders: Callable[[About], Sequence[ContenderEntry]]) -> tuple[RunTask, ...]:
    """The runs of an order. Raises InputError for a scenario that cannot be read or a name that two of them have."""
    found: dict[str, tuple[Path, About]] = {}
    for path in order.paths:
        about = load_bench(str(path), str(order.data), order.loader).about
        if about.name in found:
            raise InputError(f"{path} and {found[about.name][0]} are both called {about.name}")
        found[about.name] = (path, about)
    return tuple(
        RunTask(
            scenario=name,
            path=str(path.resolve()),
            scenario_digest=bytes_digest(path.read_bytes()),
            entry=entry,
            seed=seed,
            data=str(order.data.resolve()),
            software=software(),
            loader=order.loader,
            planner_s_max=order.planner_s_max,
        )
        for name, (path, about) in found.items()
        for entry in contenders(about)
        for seed in range(order.seed_from, order.seed_from + (about.seeds if order.seeds is None else order.seeds))
    )


def run_task(task: RunTask, hear: ProgressListener) -> Finished:
    """Run one task here. Whatever goes wrong in it is its record's error; raises only for an interruption."""
    wall_s, cpu_s = time.monotonic(), time.process_time()
    planners = TimedPlanners(PlannersOf(task.entry.own), task.planner_s_max)
    about = _unknown(task)
    outcome, error, trace = None, None, ""
    try:
        bench = load_bench(task.path, task.data, task.loader)
        about = bench.about
        outcome = bench.run(task.entry.contender, task.seed, planners, hear)
        if planners.broken is not None:
            raise EngineError(planners.broken)
        _check(task, about, outcome)
    except Exception as caught:  # noqa: BLE001 - one run's failure is recorded, and the others go on
        outcome, error = None, _sentence(caught)
        trace = traceback.format_exc()
    record = _record(task, about, outcome, error)
    return Finished(
        record=record,
        wall_s=time.monotonic() - wall_s,
        cpu_s=time.process_time() - cpu_s,
        planning=planners.times(),
        traceback=trace,
    )


def failed(task: RunTask, error: str) -> Finished:
    """The end of a run that could not say itself how it failed."""
    return Finished(record=_record(task, _unknown(task), None, error), wall_s=0.0, cpu_s=0.0)


def _record(task: RunTask, about: About, outcome: RunOutcome | None, error: str | None) -> RunRecord:
    return mirrored(RunRecord, task, about=about, contender=task.entry.contender, outcome=outcome, error=error)


def _unknown(task: RunTask) -> About:
    return About(name=task.scenario, title=task.scenario, kind="unknown", goal="-", better=Better.NEITHER)


def _check(task: RunTask, about: About, outcome: RunOutcome) -> None:
    told = (outcome.scenario, outcome.contender, outcome.seed)
    wanted = (task.scenario, task.entry.contender.label, task.seed)
    if told != wanted:
        raise InvariantError(f"asked for the run {wanted}, got {told}")
    check_outcome(outcome)
    names = [metric.name for metric in outcome.metrics]
    for role, name in (("goal", about.goal), ("guard", about.guard)):
        if name is not None and name not in names:
            raise InputError(f"{role}: there is no metric {name}{did_you_mean(name, names)}")
    plans = [event.text for event in outcome.deeds if event.kind in ("hold", "promotion")]
    if plans and all(text.startswith("fatal_findings") for text in plans):
        raise EngineError(f"every plan was refuted: {plans[0]}")


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split())
    plain = isinstance(error, HeadroomError | TooLongError) and text
    return text if plain else f"{type(error).__name__}: {text}".removesuffix(": ")
