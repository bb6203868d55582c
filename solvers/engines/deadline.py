"""How long there is left to think: the one place where the core looks at a clock.

Owns that look. Searching longer changes how good an answer is, never what it means; with counted work instead of time,
equal inputs end alike. It refuses to interrupt anybody: callers ask.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Deadline:
    """Time left, or work left: with `work_units` set, only counted work ends it, so that equal inputs end alike."""

    seconds: float
    work_units: int | None = None
    _begun_s: float = field(default_factory=time.monotonic)
    _spent: int = 0

    def spend(self, units: int = 1) -> None:
        """Count work done; callers say what a unit is."""
        self._spent += units

    @property
    def elapsed_s(self) -> float:
        """Since it began; for reports only."""
        return time.monotonic() - self._begun_s

    @property
    def left_s(self) -> float:
        """Seconds left, or all of them as long as counted work remains."""
        if self.work_units is not None:
            return self.seconds if self._spent < self.work_units else 0.0
        return max(0.0, self.seconds - self.elapsed_s)

    @property
    def left_part(self) -> float:
        """Part of the budget that is left, 1 to 0."""
        if self.work_units is not None:
            return max(0.0, 1 - self._spent / self.work_units) if self.work_units > 0 else 0.0
        return self.left_s / self.seconds if self.seconds > 0 else 0.0

    @property
    def over(self) -> bool:
        """Whether to stop now."""
        return self.left_s <= 0.0
