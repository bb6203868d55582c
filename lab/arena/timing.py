"""How long planners thought in a run: told beside its outcome, never in it.

Owns the wrapping of planners in a clock; what wraps a remembering planner remembers as well, because callers ask what
a planner can do.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from solvers.domain.evidence import Reporter
from solvers.domain.plan import Proposal
from solvers.domain.value import value
from solvers.planners.base import Planner, PlannerSpec, PlanRequest, Remembering, Thought
from solvers.sim.outcome import Planners, TuningSetting


@value
class PlanningTime:
    """How long a planner thought in one run."""

    planner: str
    calls: int
    wall_s: float
    wall_s_max: float


class TimedPlanners:
    """Makes the planners that `planners` makes, each with a clock."""

    def __init__(self, planners: Planners) -> None:
        self._planners = planners
        self._spent_s: dict[str, list[float]] = {}

    def __call__(self, name: str, settings: tuple[TuningSetting, ...]) -> Planner:
        """The planner of that name and tuning, timed."""
        made = self._planners(name, settings)
        spent_s = self._spent_s.setdefault(name, [])
        return _TimedRemembering(made, spent_s) if isinstance(made, Remembering) else _Timed(made, spent_s)

    def times(self) -> tuple[PlanningTime, ...]:
        """What was spent so far, by planner."""
        return tuple(
            PlanningTime(planner=name, calls=len(spent_s), wall_s=sum(spent_s), wall_s_max=max(spent_s))
            for name, spent_s in sorted(self._spent_s.items())
            if spent_s
        )


class _Timed:
    """A planner with a clock."""

    def __init__(self, planner: Planner, spent_s: list[float]) -> None:
        self._planner = planner
        self._spent_s = spent_s

    @property
    def spec(self) -> PlannerSpec:
        return self._planner.spec

    def first_state(self) -> bytes:
        return self._planner.first_state()

    def propose(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Proposal:
        with _clock(self._spent_s):
            return self._planner.propose(request, state, reporter)


class _TimedRemembering(_Timed):
    """A planner that remembers, with a clock."""

    def __init__(self, planner: Planner, spent_s: list[float]) -> None:
        super().__init__(planner, spent_s)
        assert isinstance(planner, Remembering)
        self._remembering = planner

    def think(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Thought:
        with _clock(self._spent_s):
            return self._remembering.think(request, state, reporter)


@contextmanager
def _clock(spent_s: list[float]) -> Iterator[None]:
    begun_s = time.perf_counter()
    try:
        yield
    finally:
        spent_s.append(time.perf_counter() - begun_s)
