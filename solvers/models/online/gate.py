"""Which outcomes may teach: the judgement of one outcome before anything is learned from it.

First come conditions that make a measurement worthless whatever it says; then its value: an outcome is an outlier when
it is far from what is known of its configuration and unlike everything that was lately seen of its model on that GPU
type. Outliers are set aside, not forgotten: `points` believes them when they come again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from statistics import median

from solvers.domain.value import value
from solvers.models.online.outcomes import Outcome

EXECUTIONS_MIN = 8.0
CLOCK_TOLERANCE = 0.02
DROPPED_MAX = 0.1
"""A replica that gives up more than this part of its requests is not well, whatever its times are."""
TIME_TOLERANCE = 1.1
"""It cannot have executed for longer than the time there was, clocks of reports aside."""
DEVIATIONS_MAX = 4.0
LATELY_MIN = 9
"""So many residuals are needed to say what is usual lately."""
LATELY_SPREAD_MIN = 0.05


class Verdict(StrEnum):
    """What becomes of an outcome: it is learned from, or why not."""

    ADMITTED = "admitted"
    IMPLAUSIBLE = "implausible"
    DEVICE_UNHEALTHY = "device_unhealthy"
    FAILING = "failing"
    COLD_START = "cold_start"
    THROTTLED = "throttled"
    CLOCK_MISMATCH = "clock_mismatch"
    SHARE_MISMATCH = "share_mismatch"
    BESIDE_TRAINING = "beside_training"
    TOO_FEW_EXECUTIONS = "too_few_executions"
    OUTLIER = "outlier"


@value
class Reference:
    """What is expected of an outcome: the logarithm of its milliseconds, and how far off the next one usually is."""

    log_ms: float
    spread: float


def conditions(outcome: Outcome) -> Verdict:
    """Whether its conditions let it teach anything: ADMITTED, or the first reason why not."""
    tests = (
        (Verdict.DEVICE_UNHEALTHY, not outcome.device_healthy),
        (Verdict.FAILING, outcome.failing or outcome.dropped_fraction > DROPPED_MAX),
        (Verdict.COLD_START, outcome.cold),
        (Verdict.THROTTLED, outcome.throttled),
        (Verdict.CLOCK_MISMATCH, _clock_differs(outcome)),
        (Verdict.SHARE_MISMATCH, 0 < outcome.sm_count_asked != outcome.sm_count),
        (Verdict.BESIDE_TRAINING, outcome.beside_training),
        (Verdict.TOO_FEW_EXECUTIONS, outcome.executions < EXECUTIONS_MIN),
        (Verdict.IMPLAUSIBLE, outcome.executions * outcome.latency_ms > 1000.0 * TIME_TOLERANCE * outcome.seconds),
    )
    return next((verdict for verdict, applies in tests if applies), Verdict.ADMITTED)


def surprising(outcome: Outcome, reference: Reference | None) -> bool:
    """Whether it is far from what is expected; nothing surprises where nothing is expected."""
    return reference is not None and abs(residual(outcome, reference)) > DEVIATIONS_MAX * reference.spread


def usual_lately(outcome: Outcome, reference: Reference, residuals: Sequence[float]) -> bool:
    """Whether its residual is like those lately seen of the same model and GPU type."""
    if len(residuals) < LATELY_MIN:
        return False
    middle = median(residuals)
    spread = max(LATELY_SPREAD_MIN, 1.4826 * median(abs(each - middle) for each in residuals))
    return abs(residual(outcome, reference) - middle) <= DEVIATIONS_MAX * spread


def admit(outcome: Outcome, reference: Reference | None, residuals: Sequence[float] = ()) -> Verdict:
    """The judgement of an outcome alone, before it is asked whether it came again."""
    verdict = conditions(outcome)
    if verdict is not Verdict.ADMITTED or reference is None or not surprising(outcome, reference):
        return verdict
    return Verdict.ADMITTED if usual_lately(outcome, reference, residuals) else Verdict.OUTLIER


def residual(outcome: Outcome, reference: Reference) -> float:
    """How much slower than expected, as a logarithm."""
    return math.log(outcome.latency_ms) - reference.log_ms


def _clock_differs(outcome: Outcome) -> bool:
    asked = outcome.clock_mhz_asked
    return asked is not None and abs(outcome.clock_mhz_sm - asked) > CLOCK_TOLERANCE * asked
