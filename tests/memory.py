"""In-memory ports of `run_cycle`, which remember what was asked of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from solvers.cycle.ports import Ports
from solvers.cycle.record import CycleRecord, CycleStep
from solvers.domain.evidence import SilentReporter
from solvers.domain.ids import Generation
from solvers.domain.plan import Plan, Proposal
from solvers.domain.snapshot import Snapshot
from solvers.errors import EngineError
from solvers.planners import registry
from solvers.planners.base import PlanRequest, Thought

Answer = Callable[[PlanRequest], Proposal]


@dataclass
class MemoryObserver:
    """Shows one snapshot."""

    snapshot: Snapshot

    def observe(self) -> Snapshot:
        return self.snapshot


@dataclass
class MemoryRunner:
    """Runs planners here; `answers` replaces some of them by name, and an EngineError in it is raised."""

    answers: Mapping[str, Answer | EngineError] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def think(self, planner: str, request: PlanRequest, state: bytes | None) -> Thought:
        self.asked.append(planner)
        answer = self.answers.get(planner)
        if isinstance(answer, EngineError):
            raise answer
        if answer is not None:
            return Thought(proposal=answer(request))
        return registry.think(registry.create(planner), request, state, SilentReporter())


@dataclass
class MemoryMemory:
    """Keeps states by planner, and counts how often it was told to."""

    states: dict[str, bytes] = field(default_factory=dict)
    kept: int = 0

    def recall(self, planner: str) -> bytes | None:
        return self.states.get(planner)

    def keep(self, planner: str, state: bytes) -> None:
        self.states[planner] = state
        self.kept += 1


@dataclass
class MemoryActuator:
    """Promotes to the next generation, or fails as told."""

    failure: Exception | None = None
    promoted: list[tuple[CycleRecord, Plan]] = field(default_factory=list)

    def promote(self, record: CycleRecord, plan: Plan) -> Generation:
        if self.failure is not None:
            raise self.failure
        self.promoted.append((record, plan))
        return Generation(plan.parent + 1)


@dataclass
class MemoryClock:
    """Ticks a millisecond whenever it is looked at."""

    ticks: int = 0

    def now_s(self) -> float:
        return 1_000_000.0

    def elapsed_ms(self) -> float:
        self.ticks += 1
        return float(self.ticks)


@dataclass
class MemoryJournal:
    """Keeps every entry in order; `events` is a plain list of what happened."""

    events: list[str] = field(default_factory=list)
    drafts: list[CycleRecord] = field(default_factory=list)
    closed: list[CycleRecord] = field(default_factory=list)

    def step(self, step: CycleStep) -> None:
        self.events.append(step.value)

    def draft(self, record: CycleRecord) -> None:
        self.events.append("drafted")
        self.drafts.append(record)

    def close(self, record: CycleRecord) -> None:
        self.events.append("closed")
        self.closed.append(record)


@dataclass
class MemoryReporter:
    """Keeps the events it hears."""

    heard: list[tuple[str, dict[str, str | float]]] = field(default_factory=list)

    def event(self, name: str, **facts: str | float) -> None:
        self.heard.append((name, facts))


@dataclass
class World:
    """All ports together."""

    snapshot: Snapshot
    runner: MemoryRunner = field(default_factory=MemoryRunner)
    actuator: MemoryActuator = field(default_factory=MemoryActuator)
    clock: MemoryClock = field(default_factory=MemoryClock)
    journal: MemoryJournal = field(default_factory=MemoryJournal)
    reporter: MemoryReporter = field(default_factory=MemoryReporter)
    memory: MemoryMemory = field(default_factory=MemoryMemory)

    @property
    def ports(self) -> Ports:
        return Ports(
            observer=MemoryObserver(self.snapshot),
            runner=self.runner,
            actuator=self.actuator,
            clock=self.clock,
            journal=self.journal,
            reporter=self.reporter,
            memory=self.memory,
        )
