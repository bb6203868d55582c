"""Learning from outcomes, one at a time: gate, point, drift, calibration, error of the belief.

Everything is a value: `step` takes the state of a model on a GPU type and the point of a configuration and gives new
ones, bounded in size and plain under `solvers.domain.codec`. What the belief said comes with the outcome.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum

from solvers.domain.value import value
from solvers.models.online import coverage, drift, points, retraining
from solvers.models.online.coverage import Coverage, Miscalibration
from solvers.models.online.drift import Drift
from solvers.models.online.gate import Reference, Verdict, admit, conditions, residual, surprising
from solvers.models.online.outcomes import Forecast, Outcome
from solvers.models.online.points import SPREAD_FLOOR, Point
from solvers.models.online.retraining import Trigger

LATELY = 51
"""Residuals kept of a model on a GPU type."""
THINNING = 10
"""A configuration's first outcome and then every so many count for calibration: repeats say the same again."""

NEGLIGIBLE = 0.01
"""Where both the error and the promised deviation are smaller parts than this, there is nothing to argue about."""
QUIET = 20
"""After building anew because of errors, so many outcomes at least pass before it may be due again."""
PATIENCE_MAX = 64


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
    known = point if point is not None else points.begun(seen.outcome)
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
        after = points.with_value(known, log_ms, outcome.at_s)
        return _WatchMemory(point=after, verdict=Verdict.ADMITTED, moments=now)
    after, believed = points.with_surprise(known, log_ms, outcome.at_s)
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
            state, alarm = drift.step(state, deviation, at_s)
            drifted = drifted or alarm
    monitor = replace(monitor, drift=state, due=Cause.DRIFT if drifted else monitor.due)
    if seen.forecast is not None:
        said = seen.forecast
        error = retraining.relative_error(said.mean_ms, outcome.latency_ms)
        errors, due = retraining.step(monitor.errors, error, trigger)
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
            counted, miscalibrated = coverage.step(monitor.coverage, (outcome.latency_ms - said.mean_ms) / said.std_ms)
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
        kept = (points.since(point, monitor.drift.began_s) for point in known)
    else:
        kept = (points.lightened(point) for point in known)
    return fresh, tuple(point for point in kept if point.values or point.surprises)
