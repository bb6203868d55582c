"""What `run_cycle` is asked to do, and what it needs from the world. Production and simulator hand in different
implementations; the cycle cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from solvers.cycle.record import CycleRecord, CycleStep, Lane
from solvers.domain.codec import bytes_digest
from solvers.domain.evidence import Reporter
from solvers.domain.ids import CycleId, Digest, Generation, PolicyName, WorkloadId
from solvers.domain.plan import Plan, Proposal
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import value
from solvers.domain.workload import ServiceMode
from solvers.planners.base import PlanRequest, Thought

MODES = {
    Lane.ACT: frozenset({ServiceMode.AUTO}),
    Lane.APPROVE: frozenset({ServiceMode.AUTO, ServiceMode.APPROVE}),
    Lane.SHADOW: frozenset({ServiceMode.AUTO, ServiceMode.APPROVE, ServiceMode.SHADOW}),
}
"""What each lane may move."""


@value
class CycleOrder:
    """One cycle to run. `forced`: a person wants the change now, so hysteresis (cooldown, churn budget, small gain) is
    set aside. `promote` False: plan, verify and record, but change nothing; whoever asked may apply the plan later.
    `outdated`: workloads whose processes were told something else than their documents now say. A plan that moves them
    is promoted even where it changes nothing, because nodes learn of documents by promotions alone.
    """

    id: CycleId
    lane: Lane
    seed: int
    software_version: str
    forced: bool = False
    promote: bool = True
    outdated: tuple[WorkloadId, ...] = ()
    by_pursuit: bool = False
    """Whether, under a policy that names no objective, the gate judges a plan by what its planner pursues. Where
    planners are compared, all are judged alike."""
    beside: Lane | None = None
    """A wider lane that sees the same picture: planners are asked for it first, and where their answer leaves alone
    what this lane may not move, it is this lane's answer too."""
    deaf: bool = False
    """No node was heard when it was to begin: the first that come back are no sign that the others are lost."""


def movable_workloads(snapshot: Snapshot, lane: Lane) -> tuple[WorkloadId, ...]:
    """Workloads that a lane may move, by id."""
    modes = MODES[lane]
    services = (WorkloadId(item.id) for item in snapshot.services if item.mode in modes)
    jobs = (WorkloadId(item.id) for item in snapshot.jobs if item.mode in modes)
    tasks = (WorkloadId(item.id) for item in snapshot.tasks if item.mode in modes)
    return tuple(sorted((*services, *jobs, *tasks)))


# --- The world


class Observer(Protocol):
    """Takes the immutable picture."""

    def observe(self) -> Snapshot:
        """A consistent snapshot of now."""


class Runner(Protocol):
    """Runs one planner under a deadline, in production in a child process."""

    def think(self, planner: str, request: PlanRequest, state: bytes | None) -> Thought:
        """The planner's answer, given what it kept last time. Raises EngineError when the planner is unknown, crashes,
        breaks its contract or overruns its deadline.
        """


def memory_key(default: PolicyName, policy: PolicyName, planner: str) -> str:
    """Under which name a planner's state is kept: every policy has memories of its own, so that coming back to a
    planner finds what it knew.
    """
    return planner if policy == default else f"{policy}/{planner}"


class Memory(Protocol):
    """Keeps planners' states between cycles, under the names that `memory_key` gives them."""

    def recall(self, planner: str) -> bytes | None:
        """What the planner kept last; None when it never kept anything."""

    def keep(self, planner: str, state: bytes) -> None:
        """Keep this for next time."""


class Forgetful:
    """Keeps nothing: every cycle begins with the planner's first state."""

    def recall(self, planner: str) -> bytes | None:  # noqa: ARG002 - the port names it
        return None

    def keep(self, planner: str, state: bytes) -> None:
        """Forget it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recollection:
    """Planners that are handed what they kept last, and whose memories go on: in cycles and in plans from files."""

    think: Callable[[str, PlanRequest, bytes | None], Thought]
    memory: Memory
    default: PolicyName
    handed: dict[tuple[PolicyName, str], Digest] = field(default_factory=dict)
    """By policy and planner: of what each was handed."""

    def propose(self, planner: str, request: PlanRequest) -> Proposal:
        """The planner's answer. Raises as `think` does."""
        policy = request.snapshot.policy.name
        key = memory_key(self.default, policy, planner)
        state = self.memory.recall(key)
        if state is not None:
            self.handed[policy, planner] = bytes_digest(state)
        thought = self.think(planner, request, state)
        if thought.state is not None and thought.state != state:
            self.memory.keep(key, thought.state)
        return thought.proposal


class Actuator(Protocol):
    """Makes a plan the target."""

    def promote(self, record: CycleRecord, plan: Plan) -> Generation:
        """Compare-and-set on the plan's parent under the lease's fencing token; returns the new generation.

        Raises SupersededError when the parent is no longer current, LeaseLostError when a newer leader has written.
        """


class Clock(Protocol):
    """The only time the cycle sees."""

    def now_s(self) -> float:
        """Seconds since the epoch."""

    def elapsed_ms(self) -> float:
        """Monotonic milliseconds, for timings only."""


class Journal(Protocol):
    """Remembers. `step` is told before each step; `draft` before actuation, so that a promoted plan always has a stored
    cause; `close` at the end.
    """

    def step(self, step: CycleStep) -> None:
        """A step is about to begin."""

    def draft(self, record: CycleRecord) -> None:
        """Store all that is known before the target may change."""

    def close(self, record: CycleRecord) -> None:
        """Store the finished record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports and the reporter, handed to `run_cycle` together."""

    observer: Observer
    runner: Runner
    actuator: Actuator
    clock: Clock
    journal: Journal
    reporter: Reporter
    memory: Memory = field(default_factory=Forgetful)
