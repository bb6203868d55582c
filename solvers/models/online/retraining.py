"""When is the belief to be built anew? OLTunes' evaluator: when predictions of finished work miss by more than θ.

The paper speaks of one task; here a part of the newest outcomes must miss, so that one strange minute does not throw
knowledge away. `Trigger(window=1, least=1, part=1.0)` is the paper's.
"""

from __future__ import annotations

from solvers.domain.value import check_positive, check_range, value


@value
class Trigger:
    """Build anew when at least `part` of the newest `window` outcomes (and there are `least`) miss by more than
    `theta`.
    """

    theta: float = 0.25
    window: int = 20
    least: int = 10
    part: float = 0.5

    def __post_init__(self) -> None:
        check_positive("theta", self.theta)
        check_range("window", self.window, 1, 1000)
        check_range("least", self.least, 1, self.window)
        check_range("part", self.part, 0.0, 1.0)


def relative_error(predicted_ms: float, measured_ms: float) -> float:
    """Error of a prediction over what was measured; positive when it was too slow."""
    return (predicted_ms - measured_ms) / measured_ms


def step(errors: tuple[float, ...], error: float, trigger: Trigger) -> tuple[tuple[float, ...], bool]:
    """One more relative error; tells whether the belief is due."""
    newest = (*errors, abs(error))[-trigger.window :]
    missed = sum(each > trigger.theta for each in newest)
    return newest, len(newest) >= trigger.least and missed > 0 and missed >= trigger.part * len(newest)
