"""Loads in short form become what a service is asked: arrivals in the open, clients, or a queue that never ends.

Owns the turn of each form into its record and the rate that a load has on average.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

from lab.arena.document import Where
from lab.arena.forms import (
    BurstsForm,
    ClosedForm,
    DailyForm,
    LoadForm,
    PointsForm,
    SaturatingForm,
    ShapeForm,
    SteadyForm,
    TraceForm,
)
from lab.arena.kinds import Context
from lab.arena.traces import shape_pattern, trace_pattern
from solvers.sim.arrivals import (
    ArrivalPattern,
    Bursts,
    Daily,
    RateCourse,
    RatePoint,
    Replayed,
    Source,
    Steady,
    rate_path,
)
from solvers.sim.scenario import ClientStep, Closed, Open, Saturating

Load = Open | Closed | Saturating


def load_of(form: LoadForm, where: Where, context: Context) -> Load:
    """The load of a form. Raises InputError."""
    with context.document.placing(*where):
        match form:
            case ClosedForm():
                return Closed(steps=_steps(form, where, context), think_s_mean=form.think)
            case SaturatingForm():
                return Saturating()
            case _:
                return Open(pattern=_pattern(form, where, context))


def _pattern(
    form: SteadyForm | BurstsForm | DailyForm | PointsForm | ShapeForm | TraceForm, where: Where, context: Context
) -> ArrivalPattern:
    match form:
        case SteadyForm():
            return Steady(rate_rps=form.rate_rps, spacing=form.spacing)
        case BurstsForm():
            return Bursts(
                rate_rps_calm=form.rate_rps_calm,
                rate_rps_burst=form.rate_rps_burst,
                calm_s_mean=form.calm,
                burst_s_mean=form.burst,
                spacing=form.spacing,
            )
        case DailyForm():
            return Daily(
                rate_rps_mean=form.rate_rps_mean,
                swing=form.swing,
                period_s=form.period,
                spike_factor=form.spike_factor,
                spike_at_s=form.spike_at,
                spike_s=form.spike,
                spacing=form.spacing,
            )
        case PointsForm():
            points = tuple(RatePoint(at_s=at_s, rate_rps=rate) for at_s, rate in form.points)
            return RateCourse(points=points, ramp=form.ramp, spacing=form.spacing)
        case ShapeForm():
            return shape_pattern(form, where, context)
        case TraceForm():
            return trace_pattern(form, where, context)


def _steps(form: ClosedForm, where: Where, context: Context) -> tuple[ClientStep, ...]:
    if (form.clients is None) == (form.points is None):
        raise context.refusal(where, "say either `clients` or `points`")
    if form.points is None:
        return (ClientStep(from_s=0.0, clients=form.clients or 0),)
    if any(after[0] <= before[0] for before, after in pairwise(form.points)):
        raise context.refusal((*where, "points"), "points must rise in time")
    if not form.ramp or len(form.points) == 1:
        return tuple(ClientStep(from_s=at_s, clients=round(clients)) for at_s, clients in form.points)
    steps: list[ClientStep] = []
    for (begin_s, first), (end_s, last) in pairwise(form.points):
        count = max(1, math.ceil((end_s - begin_s) / form.step))
        parts = [number / count for number in range(count)]
        steps.extend(
            ClientStep(from_s=begin_s + part * (end_s - begin_s), clients=round(first + part * (last - first)))
            for part in parts
        )
    return (*steps, ClientStep(from_s=form.points[-1][0], clients=round(form.points[-1][1])))


def mean_rps(load: Load, span_s: float) -> float | None:
    """Mean rate over a run, None where it depends on who serves. Bursts count with their long mean."""
    if not isinstance(load, Open):
        return None
    if isinstance(load.pattern, Bursts):
        return load.pattern.rate_rps_mean
    return rate_path(load.pattern, Source(name="mean", seed=0), span_s).mean_rps(0.0, span_s)


def scaled(load: Load, factor: float) -> Load:
    """The same load at another height."""
    match load:
        case Open():
            return Open(pattern=_scaled(load.pattern, factor))
        case Closed():
            steps = tuple(replace(step, clients=round(step.clients * factor)) for step in load.steps)
            return replace(load, steps=steps)
        case Saturating():
            return load


def _scaled(pattern: ArrivalPattern, factor: float) -> ArrivalPattern:
    match pattern:
        case Steady():
            return replace(pattern, rate_rps=pattern.rate_rps * factor)
        case Bursts():
            return replace(
                pattern,
                rate_rps_calm=pattern.rate_rps_calm * factor,
                rate_rps_burst=pattern.rate_rps_burst * factor,
            )
        case Daily():
            return replace(pattern, rate_rps_mean=pattern.rate_rps_mean * factor)
        case RateCourse():
            points = tuple(replace(point, rate_rps=point.rate_rps * factor) for point in pattern.points)
            return replace(pattern, points=points)
        case Replayed():
            return replace(pattern, rate_scale=pattern.rate_scale * factor)
