"""Has the world changed? A two-sided cumulative sum over standardised residuals.

Each side adds what residuals exceed `SLACK` by and alarms above `LIMIT`; one residual counts for `RESIDUAL_MAX` at
most. Independent standard normal residuals give a false alarm once in about 500,000 (Siegmund's approximation: (exp(b)
- b - 1) / 0.5 for each side with b = LIMIT + 1.166); a mean shift of 1.5 standard deviations is found after about 12,
one of 4 after 4. After an alarm it is silent until it is armed again.
"""

from __future__ import annotations

from dataclasses import replace

from solvers.domain.value import value

SLACK = 0.5
LIMIT = 12.0
RESIDUAL_MAX = 4.0


@value
class Drift:
    """The sums of both sides, and since when each has not been at zero."""

    up: float = 0.0
    down: float = 0.0
    up_since_s: float = 0.0
    down_since_s: float = 0.0
    raised: bool = False
    began_s: float = 0.0
    """When the change that was raised began, as far as the sums tell."""


def step(state: Drift, residual: float, at_s: float) -> tuple[Drift, bool]:
    """One standardised residual (positive: slower than expected); tells whether an alarm is raised now."""
    if state.raised:
        return state, False
    counted = min(RESIDUAL_MAX, max(-RESIDUAL_MAX, residual))
    up, up_since_s = _side(state.up, state.up_since_s, counted, at_s)
    down, down_since_s = _side(state.down, state.down_since_s, -counted, at_s)
    if max(up, down) <= LIMIT:
        return replace(state, up=up, down=down, up_since_s=up_since_s, down_since_s=down_since_s), False
    return Drift(raised=True, began_s=up_since_s if up > down else down_since_s), True


def _side(total: float, since_s: float, residual: float, at_s: float) -> tuple[float, float]:
    grown = max(0.0, total + residual - SLACK)
    return grown, at_s if total == 0.0 else min(since_s, at_s)
