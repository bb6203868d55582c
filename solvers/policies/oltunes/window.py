"""The pace of grouping: how long tasks are collected, and how large groups may be.

Owns the rule of the adaptive window (it shrinks while urgent tasks prevail and after a failure, else it grows) and of
the size that failures lower and successes restore. A value. It refuses to look at tasks.
"""

from __future__ import annotations

from dataclasses import replace

from solvers.domain.value import value
from solvers.policies.oltunes.parameters import OltunesParameters

MS_PER_S = 1000.0


@value
class WindowPace:
    """W_time in milliseconds, the group's largest size, and groups that worked since that last fell."""

    window_ms: float
    group_max: int
    succeeded: int = 0

    @staticmethod
    def first(parameters: OltunesParameters) -> WindowPace:
        """Before anything happened."""
        return WindowPace(window_ms=parameters.window_ms_first, group_max=parameters.group_max)

    def wake_s(self, submitted_s: float | None, *, full: bool) -> float:
        """When groups are formed: a window after they were formed last; at once where they never were, or `full`, where
        as many wait as a group may have.
        """
        if submitted_s is None:
            return 0.0
        return submitted_s if full else submitted_s + self.window_ms / MS_PER_S

    def after_tick(self, urgent_part: float | None, parameters: OltunesParameters) -> WindowPace:
        """One step; None: both queues are empty, which changes nothing."""
        if urgent_part is None or not parameters.with_window:
            return self
        shrinks = urgent_part > parameters.lc_part_max
        return replace(self, window_ms=self._moved(-1 if shrinks else 1, parameters))

    def after_failure(self, parameters: OltunesParameters) -> WindowPace:
        """Quicker and smaller."""
        window_ms = self._moved(-1, parameters) if parameters.with_window else self.window_ms
        return replace(self, window_ms=window_ms, group_max=max(1, self.group_max - 1), succeeded=0)

    def after_success(self, parameters: OltunesParameters) -> WindowPace:
        """Larger by one after enough of them; otherwise size could only fall."""
        if self.group_max >= parameters.group_max:
            return self
        if self.succeeded + 1 < parameters.group_restored_after:
            return replace(self, succeeded=self.succeeded + 1)
        return replace(self, group_max=self.group_max + 1, succeeded=0)

    def _moved(self, sign: int, parameters: OltunesParameters) -> float:
        moved = self.window_ms + sign * parameters.window_ms_step
        return min(max(moved, parameters.window_ms_min), parameters.window_ms_max)
