"""Learning from outcomes, one at a time: gate, point, drift, calibration, error of the belief.

Everything is a value: `step` takes the state of a model on a GPU type and the point of a configuration and gives new
ones, bounded in size and plain under `solvers.domain.codec`. What the belief said comes with the outcome.

Drift: has the world changed? A two-sided cumulative sum over standardised residuals. Each side adds what residuals
exceed `SLACK` by and alarms above `LIMIT`; one residual counts for `RESIDUAL_MAX` at most. Independent standard normal
residuals give a false alarm once in about 500,000 (Siegmund's approximation: (exp(b) - b - 1) / 0.5 for each side with
b = LIMIT + 1.166); a mean shift of 1.5 standard deviations is found after about 12, one of 4 after 4. After an alarm it
is silent until it is armed again.

Coverage: are the intervals honest? Counted in a sliding window is how many outcomes fall into the 80 % and 95 %
intervals that were promised, held to binomial bounds. An alarm needs a count that honest intervals give once in a
million looks at one side of one level; looks at overlapping windows depend on each other, so that in 10,000 outcomes of
an honest belief fewer than one run in twenty-five alarms. After an alarm the window is emptied; it arms itself once a
whole new window is within bounds.

Trigger: is the belief to be built anew? OLTunes' evaluator asks whether predictions of finished work miss by more than
theta. The paper speaks of one task; here a part of the newest outcomes must miss, so that one strange minute does not
throw knowledge away. `Trigger(window=1, least=1, part=1.0)` is the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from functools import cache
from typing import Annotated

from solvers.domain.value import POSITIVE, check_range, value, within
from solvers.models.online.outcomes import (
    SPREAD_FLOOR,
    Forecast,
    Outcome,
    Point,
    Reference,
    Verdict,
    admit,
    begun,
    conditions,
    lightened,
    residual,
    since,
    surprising,
    with_surprise,
    with_value,
)

SLACK = 0.5
LIMIT = 12.0
RESIDUAL_MAX = 4.0
COVERAGE_WINDOW = 200
COVERAGE_LEAST = 50
CHANCE = 1e-6
LEVELS = ((0.80, 1.2816), (0.95, 1.9600))
"""Probability of an interval and its half width in standard deviations."""
LATELY = 51
"""Residuals kept of a model on a GPU type."""
THINNING = 10
"""A configuration's first outcome and then every so many count for calibration: repeats say the same again."""
NEGLIGIBLE = 0.01
"""Where both the error and the promised deviation are smaller parts than this, there is nothing to argue about."""
QUIET = 20
"""After building anew because of errors, so many outcomes at least pass before it may be due again."""
PATIENCE_MAX = 64


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

    def after(self, residual: float, at_s: float) -> tuple[Drift, bool]:
        """One standardised residual (positive: slower than expected); tells whether an alarm is raised now."""
        if self.raised:
            return self, False
        counted = min(RESIDUAL_MAX, max(-RESIDUAL_MAX, residual))
        up, up_since_s = _side(self.up, self.up_since_s, counted, at_s)
        down, down_since_s = _side(self.down, self.down_since_s, -counted, at_s)
        if max(up, down) <= LIMIT:
            return replace(self, up=up, down=down, up_since_s=up_since_s, down_since_s=down_since_s), False
        return Drift(raised=True, began_s=up_since_s if up > down else down_since_s), True


def _side(total: float, since_s: float, residual: float, at_s: float) -> tuple[float, float]:
    grown = max(0.0, total + residual - SLACK)
    return grown, at_s if total == 0.0 else min(since_s, at_s)


class Miscalibration(StrEnum):
    OVERCONFIDENT = "overconfident"
    UNDERCONFIDENT = "underconfident"


@value
class Coverage:
    """The newest outcomes: for each the number of `LEVELS` whose interval held it."""

    held: tuple[int, ...] = ()
    raised: bool = False

    def after(self, deviations: float) -> tuple[Coverage, Miscalibration | None]:
        """One outcome, so many promised standard deviations away; the alarm it raises, if any."""
        inside = sum(abs(deviations) <= width for _, width in LEVELS)
        seen = replace(self, held=(*self.held, inside)[-COVERAGE_WINDOW:])
        if len(seen.held) < COVERAGE_LEAST:
            return seen, None
        found = seen._judged()
        if found is None:
            return replace(seen, raised=seen.raised and len(seen.held) < COVERAGE_WINDOW), None
        return (seen, None) if seen.raised else (Coverage(raised=True), found)

    def _judged(self) -> Miscalibration | None:
        """What the counts of the window say."""
        count = len(self.held)
        for level, (probability, _) in enumerate(LEVELS):
            inside = sum(each >= len(LEVELS) - level for each in self.held)
            low, high = bounds(count, probability)
            if inside < low:
                return Miscalibration.OVERCONFIDENT
            if inside > high:
                return Miscalibration.UNDERCONFIDENT
        return None


@cache
def bounds(count: int, probability: float) -> tuple[int, int]:
    """Least and greatest number inside that is not too unlikely: each tail beyond them has at most `CHANCE`."""
    terms = [_binomial(count, inside, probability) for inside in range(count + 1)]
    low, below = 0, terms[0]
    while below <= CHANCE:
        low += 1
        below += terms[low]
    high, above = count, terms[count]
    while above <= CHANCE:
        high -= 1
        above += terms[high]
    return low, high


def _binomial(count: int, inside: int, probability: float) -> float:
    ways = math.lgamma(count + 1) - math.lgamma(inside + 1) - math.lgamma(count - inside + 1)
    return math.exp(ways + inside * math.log(probability) + (count - inside) * math.log1p(-probability))


@value
class Trigger:
    """Build anew when at least `part` of the newest `window` outcomes (and there are `least`) miss by more than
    `theta`.
    """

    theta: Annotated[float, POSITIVE] = 0.25
    window: Annotated[int, within(1, 1000)] = 20
    least: int = 10
    part: Annotated[float, within(0.0, 1.0)] = 0.5

    def __post_init__(self) -> None:
        check_range("least", self.least, 1, self.window)

    def after(self, errors: tuple[float, ...], error: float) -> tuple[tuple[float, ...], bool]:
        """One more relative error; tells whether the belief is due."""
        newest = (*errors, abs(error))[-self.window :]
        missed = sum(each > self.theta for each in newest)
        return newest, len(newest) >= self.least and missed > 0 and missed >= self.part * len(newest)


def relative_error(predicted_ms: float, measured_ms: float) -> float:
    """Error of a prediction over what was measured; positive when it was too slow."""
    return (predicted_ms - measured_ms) / measured_ms


class Cause(StrEnum):
    """Why a belief is to be built anew."""

    ERROR = "error"
    DRIFT = "drift"


@value
class Monitor:
    """What is watched of one model on one GPU type."""

    model: str
    gpu_type: str
    drift: Drift = Drift()
    coverage: Coverage = Coverage()
    errors: tuple[float, ...] = ()
    residuals: tuple[float, ...] = ()
    due: Cause | None = None
    """Why the belief is to be built anew; None while it need not be."""
    quiet: int = 0
    """So many outcomes pass before errors count again."""
    patience: int = 1
    """How long that will be next time: it doubles while building anew does not help."""


@value
class Seen:
    """An outcome, what the belief said of it, and what the same belief says of the conditions of its point."""

    outcome: Outcome
    forecast: Forecast | None = None
    forecast_first: Forecast | None = None


@value
class Learned:
    """What an outcome did. `point` is None when its conditions turned it away from a configuration never seen."""

    monitor: Monitor
    point: Point | None
    verdict: Verdict
    drifted: bool = False
    miscalibrated: Miscalibration | None = None


def step(monitor: Monitor, point: Point | None, seen: Seen, trigger: Trigger) -> Learned:
    """Learn from one outcome. `point` is that of its configuration; None when it was never seen."""
    verdict = conditions(seen.outcome)
    if verdict is not Verdict.ADMITTED:
        return Learned(monitor=monitor, point=point, verdict=verdict)
    known = point if point is not None else begun(seen.outcome)
    expected = reference(known, seen)
    memory = _remembered(monitor, known, seen, expected)
    if expected is not None:
        lately = (*monitor.residuals, residual(seen.outcome, expected))[-LATELY:]
        monitor = replace(monitor, residuals=lately)
    if memory.verdict is not Verdict.ADMITTED:
        return Learned(monitor=monitor, point=memory.point, verdict=memory.verdict)
    return _watched(monitor, known, memory, seen, trigger)


def reference(point: Point, seen: Seen) -> Reference | None:
    """What is expected of an outcome: what its configuration showed before, else what the belief says, else nothing."""
    if point.established:
        return Reference(log_ms=point.log_ms + _shift(seen), spread=point.spread)
    if seen.forecast is None:
        return None
    return Reference(log_ms=math.log(seen.forecast.mean_ms), spread=max(SPREAD_FLOOR, seen.forecast.std_relative))


def _shift(seen: Seen) -> float:
    """By how much its conditions differ from those of its point, in the belief's eyes."""
    if seen.forecast is None or seen.forecast_first is None:
        return 0.0
    return math.log(seen.forecast.mean_ms / seen.forecast_first.mean_ms)


@value
class _WatchMemory:
    """A point after an outcome, and the moments that the outcome speaks for: its own, and with a surprise that is
    believed now those of the surprises before it.
    """

    point: Point
    verdict: Verdict
    moments: tuple[float, ...]


def _remembered(monitor: Monitor, known: Point, seen: Seen, expected: Reference | None) -> _WatchMemory:
    outcome = seen.outcome
    now = (outcome.at_s,)
    log_ms = math.log(outcome.latency_ms) - _shift(seen)
    if expected is None or not surprising(outcome, expected):
        after = with_value(known, log_ms, outcome.at_s)
        return _WatchMemory(point=after, verdict=Verdict.ADMITTED, moments=now)
    after, believed = with_surprise(known, log_ms, outcome.at_s)
    if believed:
        return _WatchMemory(point=after, verdict=Verdict.ADMITTED, moments=after.moments)
    return _WatchMemory(point=after, verdict=admit(outcome, expected, monitor.residuals), moments=now)


def _watched(monitor: Monitor, known: Point, memory: _WatchMemory, seen: Seen, trigger: Trigger) -> Learned:
    """Hold an admitted outcome against what was expected of it."""
    outcome, drifted, miscalibrated = seen.outcome, False, None
    state = monitor.drift
    if known.established:
        expected = Reference(log_ms=known.log_ms + _shift(seen), spread=known.spread)
        deviation = residual(outcome, expected) / expected.spread
        for at_s in memory.moments:
            state, alarm = state.after(deviation, at_s)
            drifted = drifted or alarm
    monitor = replace(monitor, drift=state, due=Cause.DRIFT if drifted else monitor.due)
    if seen.forecast is not None:
        said = seen.forecast
        error = relative_error(said.mean_ms, outcome.latency_ms)
        errors, due = trigger.after(monitor.errors, error)
        now_due = due and not monitor.quiet
        monitor = replace(
            monitor,
            errors=errors,
            due=monitor.due or (Cause.ERROR if now_due else None),
            quiet=max(0, monitor.quiet - 1),
            patience=monitor.patience if due or len(errors) < trigger.window else 1,
        )
        matters = max(abs(error), said.std_relative) >= NEGLIGIBLE
        if matters and (not known.values or known.outcomes % THINNING == 0):
            counted, miscalibrated = monitor.coverage.after((outcome.latency_ms - said.mean_ms) / said.std_ms)
            monitor = replace(monitor, coverage=counted)
    return Learned(
        monitor=monitor, point=memory.point, verdict=Verdict.ADMITTED, drifted=drifted, miscalibrated=miscalibrated
    )


def rebuilt(monitor: Monitor, known: Iterable[Point]) -> tuple[Monitor, tuple[Point, ...]]:
    """The state once the belief of a monitor that is due was built anew: watching starts afresh, old values count less.

    After a drift only what was measured since it began is kept; after mere errors of the belief, the newest values of
    every configuration. Points that are left with nothing are forgotten.
    """
    fresh = Monitor(model=monitor.model, gpu_type=monitor.gpu_type)
    if monitor.due is Cause.ERROR:
        longer = min(PATIENCE_MAX, 2 * monitor.patience)
        fresh = replace(fresh, quiet=QUIET * monitor.patience, patience=longer)
    if monitor.due is Cause.DRIFT:
        kept = (since(point, monitor.drift.began_s) for point in known)
    else:
        kept = (lightened(point) for point in known)
    return fresh, tuple(point for point in kept if point.values or point.surprises)
