"""The one contract for every planner: papers, baselines, our own.

A planner turns a request (snapshot, parent target, movable workloads, budget, random streams) into a proposal. State is
a value that the shell stores as bytes and hands back, so learning planners stay pure. A planner refuses by status,
never by exception, when it cannot apply.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Protocol, TypeVar, cast, runtime_checkable

from solvers.domain.arrays import Streams
from solvers.domain.codec import canonical_json, from_json
from solvers.domain.evidence import Reporter
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Proposal
from solvers.domain.policy import ALWAYS, Term
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import POSITIVE, value
from solvers.errors import FieldError

T = TypeVar("T")
SERVING = (Term.UNSERVED, Term.SLO_RISK)
"""Pursued by who is content when everybody is served."""


class Knob(StrEnum):
    """What a planner decides; the rest comes from policy defaults."""

    GPU_TYPE = "gpu_type"
    REPLICAS = "replicas"
    PLACEMENT = "placement"
    SHARE = "share"
    MEMORY = "memory"
    BATCH = "batch"
    CLOCK = "clock"
    POWER = "power"


@value
class PlannerSpec:
    """Who a planner is: chosen and judged by this, never by its class or name."""

    name: str
    version: str
    about: str = ""
    """One line for people who choose."""
    knobs: tuple[Knob, ...]
    needs_profiles: bool = True
    pursues: tuple[Term, ...] = ALWAYS
    """What its plans may not make worse, of the terms that every plan is judged by. Who does not pursue cost decides by
    rules of his own when moving is worth it.
    """
    leaves_clock_open: bool = False
    """Whether its plans may hold at every clock of an envelope, so that a controller can move it. Elsewhere both ends
    are one clock, and a controller moves batches alone.
    """


@value
class Budget:
    """How long a planner may think: until its time, which the runner outside enforces, or its work units are used up.
    Where the work ends first, equal requests get equal answers.
    """

    deadline_s: Annotated[float, POSITIVE] = 5.0
    work_units: Annotated[int | None, POSITIVE] = None


@value
class PlanRequest:
    """Everything a planner gets. Workloads not in `movable` keep their standing assignments of `snapshot.target`
    untouched (pinned).
    """

    snapshot: Snapshot
    movable: tuple[WorkloadId, ...]
    budget: Budget
    seed: int

    @property
    def streams(self) -> Streams:
        return Streams(self.seed)


class Planner(Protocol):
    """What the runner calls, in a child process, with plain picklable values."""

    @property
    def spec(self) -> PlannerSpec:
        """Name, version, knobs."""
        ...

    def first_state(self) -> bytes:
        """State before anything was proposed."""
        ...

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:
        """Answer within the budget. Infeasible is a status."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Thought:
    """A proposal with the state to hand in next time; None: nothing new is worth keeping."""

    proposal: Proposal
    state: bytes | None = None


@runtime_checkable
class Remembering(Protocol):
    """A planner that keeps from one proposal to the next what speeds it up. State of another kind, or none, is as good
    as its first state; the digest of what it was handed is in the record, so that a cycle can be repeated exactly.
    """

    def think(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Thought:
        """As `propose`, with the state for next time."""
        ...


@runtime_checkable
class IncumbentTaker(Protocol):
    """A reporter that takes the best proposal so far, so that a planner which is stopped loses only what it had not
    found yet.
    """

    def found(self, proposal: Proposal) -> None:
        """A complete proposal, better than those before."""
        ...


def hand_over(reporter: Reporter, proposal: Proposal) -> None:
    """Give the best proposal so far to whoever listens."""
    if isinstance(reporter, IncumbentTaker):
        reporter.found(proposal)


class Stateless:
    """Mix-in for planners that keep nothing."""

    def first_state(self) -> bytes:
        return b""


class Recalling(Stateless, ABC):
    """Mix-in for planners that keep something from one proposal to the next. What they need to know comes with
    snapshots, so outcomes teach them nothing, and what they propose is their thought without its state.
    """

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:
        return self.think(request, state, reporter).proposal

    @abstractmethod
    def think(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Thought:
        """The plan, and what to keep."""


def kept(item: object) -> bytes:
    """A domain value as bytes of canonical JSON, to be handed in again next time."""
    return canonical_json(item).encode()


def recalled(cls: type[T], state: bytes) -> T | None:
    """The value that was kept; None where the bytes are of another kind: an earlier version's, another planner's, or of
    another `form` than such a value has by itself.
    """
    try:
        found = from_json(cls, state)
    except (FieldError, ValueError):
        return None
    forms = [item.default for item in fields(cast("type", cls)) if item.name == "form"]
    return found if not forms or getattr(found, "form", None) in forms else None
