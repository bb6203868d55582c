"""How long there is left to think: the one place where the core looks at a clock.

Searching longer changes how good an answer is, never what it means; where counted work ends before the time does, equal
inputs end alike. Nobody is interrupted: callers ask.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from solvers.domain.arrays import Floats
from solvers.domain.plan import PlannerEnding
from solvers.engines.base import EngineAnswer, Limits, Program, create

CROWDING_MAX = 10.0
LEFT_PART = 0.1
"""Of a search's budget: with less than this left it did not end by itself."""
WORKED_LEAST_S = 0.02
"""Less says nothing."""


@dataclass(slots=True)
class Deadline:
    """Time left and, with `work_units`, counted work left: it is over when either has ended."""

    seconds: float
    work_units: int | None = None
    _begun_s: float = field(default_factory=time.monotonic)
    _begun_cpu_s: float = field(default_factory=time.process_time)
    _spent: int = 0

    def spend(self, units: int = 1) -> None:
        """Count work done; callers say what a unit is."""
        self._spent += units

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begun_s

    @property
    def crowding(self) -> float:
        """Seconds that a second of this process's work takes, by what it took so far: more than 1 on a busy machine."""
        worked_s = time.process_time() - self._begun_cpu_s
        return min(CROWDING_MAX, max(1.0, self.elapsed_s / worked_s)) if worked_s > WORKED_LEAST_S else 1.0

    @property
    def time_left_s(self) -> float:
        """Seconds left, whatever work is."""
        return max(0.0, self.seconds - self.elapsed_s)

    @property
    def late(self) -> bool:
        """Whether the time has ended, whatever work is left."""
        return self.time_left_s <= 0.0

    @property
    def left_s(self) -> float:
        """Seconds left; none when the work has ended."""
        if self.work_units is not None and self._spent >= self.work_units:
            return 0.0
        return self.time_left_s

    @property
    def left_part(self) -> float:
        """Part that is left, 1 to 0: of the work where it is counted, so that it is the same on every machine."""
        left_s = self.left_s
        if left_s <= 0.0:
            return 0.0
        return left_s / self.seconds if self.work_units is None else 1 - self._spent / self.work_units

    @property
    def ending(self) -> PlannerEnding:
        """How a search with this deadline ended."""
        if self.late or (self.work_units is None and self.left_part < LEFT_PART):
            return PlannerEnding.DEADLINE
        return PlannerEnding.WORK if self.left_part < LEFT_PART else PlannerEnding.FINISHED

    def units_until(self, part: float) -> float:
        """Work before no more than a part of the budget is left, a unit being a millisecond of work."""
        time = 1000 * self.time_left_s / self.crowding
        whole = 1000 * self.seconds / self.crowding if self.work_units is None else self.work_units
        return max(0.0, min(time, (self.left_part - part) * whole))

    def seconds_until(self, part: float) -> float:
        """Seconds before no more than a part of the budget is left; where work is counted, all that are left."""
        kept_s = part * self.seconds if self.work_units is None else 0.0
        return max(0.0, self.time_left_s - kept_s)

    def moment(self, seconds: float) -> float:
        """In so many seconds, by the monotonic clock, as compiled code reads it."""
        return self._begun_s + self.elapsed_s + seconds

    def end_within(self, seconds: float) -> None:
        """Sooner, where that is less than is left."""
        self.seconds = min(self.seconds, self.elapsed_s + max(0.0, seconds))

    @property
    def over(self) -> bool:
        return self.left_s <= 0.0


def portion(deadline: Deadline, part: float) -> Deadline:
    """A deadline of its own for a part of what is left."""
    if deadline.work_units is None:
        return Deadline(part * deadline.left_s)
    return Deadline(deadline.time_left_s, max(1, int(part * deadline.left_part * deadline.work_units)))


def charge(deadline: Deadline, portion: Deadline) -> None:
    """Count what was done within a portion as done."""
    if portion.work_units is not None:
        deadline.spend(round((1 - portion.left_part) * portion.work_units))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgrammeWork:
    """What an integer programme may take. Work is counted for the first node, with all that comes before it, and for
    each further one.
    """

    part: float
    """Of what is left."""
    first_units: int
    node_units: float
    gap: float
    within: bool = True


def programme_answer(
    program: Program, effort: ProgrammeWork, deadline: Deadline, hint: Floats | None = None
) -> EngineAnswer | None:
    """What the engine says within a part of the deadline; None where that is too little for the first node. `hint`:
    where it may begin.
    """
    limits = Limits(time_s=effort.part * deadline.left_s, gap=effort.gap, within=effort.within)
    if deadline.work_units is not None:
        units = effort.part * deadline.left_part * deadline.work_units - effort.first_units
        if units <= 0:
            return None
        limits = replace(limits, time_s=deadline.left_s, work=1 + units // effort.node_units)
    answer = create("highs").solve(program, limits, hint)
    deadline.spend(effort.first_units + round(effort.node_units * answer.work))
    return answer
