"""What really happened: outcomes, which of them may teach, and what is known of a configuration from them.

An outcome is the execution of one configuration over about a minute, as telemetry tells it, with the conditions under
which it was measured. Repeats are recognised under the coarse name of their configuration.

The gate judges one outcome before anything is learned from it. First come conditions that make a measurement worthless
whatever it says; then its value: an outcome is an outlier when it is far from what is known of its configuration and
unlike everything that was lately seen of its model on that GPU type. Outliers are set aside, not forgotten.

A point is what is known of one configuration: a robust estimate, median and mean absolute deviation of at most `WINDOW`
logarithms, and the surprises not yet believed. A repeated surprise is believed: `SURPRISES` in a row that agree among
themselves replace all that was known. A single value of any size moves nothing. Values are kept under the conditions of
the point's first outcome; callers that add one convert it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from statistics import median
from typing import Annotated

from solvers.domain.profile import BATCH_MAX
from solvers.domain.value import NAME, NOT_NEGATIVE, POSITIVE, value, within

STEPS_PER_OCTAVE = 2
"""Batches within this part of a doubling count as the same configuration."""
NEIGHBOUR_STEPS_PER_OCTAVE = 1


@value
class Neighbour:
    """Another replica on the same device. `busy` is the part of the time in which it executed."""

    model: Annotated[str, NAME]
    batch: Annotated[float, within(1, BATCH_MAX)]
    share_pct_sm: Annotated[int, within(1, 100)]
    busy: Annotated[float, within(0.0, 1.0)] = 1.0


@value
class Configuration:
    """What was run, coarsely: outcomes of equal configurations are repeats of each other."""

    model: str
    gpu_type: str
    share_pct_sm: int
    clock_mhz_sm: int
    batch_step: int
    neighbours: tuple[str, ...] = ()


@value
class Outcome:
    """Mean execution time of batches of one replica. `batch` is the mean size of what was executed, `latency_ms` what
    one batch took without queueing, `at_s` the end of the measurement (seconds since the epoch).
    """

    model: Annotated[str, NAME]
    gpu_type: Annotated[str, NAME]
    batch: Annotated[float, within(1, BATCH_MAX)]
    share_pct_sm: Annotated[int, within(1, 100)]
    clock_mhz_sm: Annotated[float, POSITIVE]
    latency_ms: Annotated[float, POSITIVE]
    executions: Annotated[float, NOT_NEGATIVE]
    seconds: Annotated[float, POSITIVE]
    at_s: float
    neighbours: tuple[Neighbour, ...] = ()
    clock_mhz_asked: float | None = None
    """None: it is not known which clock was meant."""
    sm_count: int = 0
    sm_count_asked: int = 0
    """SMs that its share should give; 0: unknown."""
    dropped_fraction: Annotated[float, within(0.0, 1.0)] = 0.0
    throttled: bool = False
    cold: bool = False
    """It was not there, ready and unchanged, for the whole time and the minute before."""
    failing: bool = False
    device_healthy: bool = True
    beside_training: bool = False
    device: str = ""
    """Where it executed; empty: nobody compares devices."""
    hindered: bool = False
    """Throttled by heat or by its host, not by its own limits. `clock_mhz_sm` is then the clock that was meant, where
    its own limits throttle it the mean one.
    """
    device_slow: bool = False
    """Its device is known to be slower than its type."""

    @property
    def busy_others(self) -> float:
        """Mean part of the time in which its neighbours executed; 0 without any."""
        return math.fsum(each.busy for each in self.neighbours) / max(1, len(self.neighbours))

    def configuration(self) -> Configuration:
        clock = self.clock_mhz_sm if self.clock_mhz_asked is None else self.clock_mhz_asked
        return Configuration(
            model=self.model,
            gpu_type=self.gpu_type,
            share_pct_sm=self.share_pct_sm,
            clock_mhz_sm=round(clock),
            batch_step=round(STEPS_PER_OCTAVE * math.log2(self.batch)),
            neighbours=tuple(sorted(_name(each) for each in self.neighbours)),
        )


def _name(neighbour: Neighbour) -> str:
    step = round(NEIGHBOUR_STEPS_PER_OCTAVE * math.log2(neighbour.batch))
    return f"{neighbour.model}:{neighbour.share_pct_sm}:{step}"


@value
class Forecast:
    """What a belief said of an outcome before it was learned from: milliseconds, standard deviation of the next
    measurement.
    """

    mean_ms: float
    std_ms: float

    @property
    def std_relative(self) -> float:
        """Standard deviation of the logarithm, nearly."""
        return self.std_ms / self.mean_ms


# --- Which outcomes may teach


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
    SLOW_DEVICE = "slow_device"
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
        (Verdict.SLOW_DEVICE, outcome.device_slow),
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


# --- What is known of one configuration


WINDOW = 25
SURPRISES = 8
"""So many in a row: where one report in five is wrong by chance, that happens once in 400,000."""
ESTABLISHED = 5
"""From so many values on, a point speaks for itself."""
TAUGHT = 3
"""From so many values on, a point teaches the belief."""
SPREAD_FLOOR = 0.03
"""Relative noise of an outcome is never thought to be less."""
SPREAD_FIRST = 0.1
"""And is thought to be this while there are too few values to tell."""
AGREEMENT = 0.12
"""Surprises that differ by more than this part are not the same surprise."""


@value
class Point:
    """One configuration. `values` are logarithms of milliseconds, oldest first, `moments` when each was measured."""

    configuration: Configuration
    first: Outcome
    """Its first outcome: the conditions under which the values hold."""
    outcomes: int = 0
    values: tuple[float, ...] = ()
    moments: tuple[float, ...] = ()
    surprises: tuple[float, ...] = ()
    surprise_moments: tuple[float, ...] = ()
    seen_s: float = 0.0

    @property
    def established(self) -> bool:
        return len(self.values) >= ESTABLISHED

    @property
    def log_ms(self) -> float:
        """The estimate, as a logarithm; needs a value."""
        return median(self.values)

    @property
    def latency_ms(self) -> float | None:
        """The estimate; None while every value is doubted."""
        return math.exp(self.log_ms) if self.values else None

    @property
    def spread(self) -> float:
        """Relative standard deviation of the next value around the estimate."""
        count = len(self.values)
        if count < ESTABLISHED:
            return SPREAD_FIRST
        middle = self.log_ms
        # Of normal values, the mean absolute deviation is 0.8 standard deviations; the median itself is uncertain, too.
        scatter = 1.2533 * math.fsum(abs(each - middle) for each in self.values) / (count - 1)
        return max(SPREAD_FLOOR, scatter * math.sqrt(1.0 + 1.5708 / count))


def begun(outcome: Outcome) -> Point:
    """The point of a configuration never seen before, without a value yet."""
    return Point(configuration=outcome.configuration(), first=outcome)


def with_value(point: Point, log_ms: float, at_s: float) -> Point:
    """A value that was believed. It ends a row of surprises."""
    return replace(
        point,
        outcomes=point.outcomes + 1,
        values=(*point.values, log_ms)[-WINDOW:],
        moments=(*point.moments, at_s)[-WINDOW:],
        surprises=(),
        surprise_moments=(),
        seen_s=at_s,
    )


def with_surprise(point: Point, log_ms: float, at_s: float) -> tuple[Point, bool]:
    """A value far from what is known; tells whether it is believed now, because it came again and again."""
    agrees = bool(point.surprises) and abs(log_ms - median(point.surprises)) <= AGREEMENT
    surprises = (*point.surprises, log_ms) if agrees else (log_ms,)
    moments = (*point.surprise_moments, at_s) if agrees else (at_s,)
    seen = replace(point, outcomes=point.outcomes + 1, seen_s=at_s)
    if len(surprises) < SURPRISES:
        return replace(seen, surprises=surprises, surprise_moments=moments), False
    return replace(seen, values=surprises, moments=moments, surprises=(), surprise_moments=()), True


def since(point: Point, began_s: float) -> Point:
    """The point with only the values measured since then."""
    kept = [index for index, at_s in enumerate(point.moments) if at_s >= began_s]
    return replace(
        point,
        values=tuple(point.values[index] for index in kept),
        moments=tuple(point.moments[index] for index in kept),
    )


def lightened(point: Point) -> Point:
    """The point with only its newest values: enough to speak, few enough to be overruled soon."""
    return replace(point, values=point.values[-ESTABLISHED:], moments=point.moments[-ESTABLISHED:])
