"""What a service is asked: loads in short form, fitted days and real traces become arrivals, clients or a full queue.

Traces are read from the folder that HEADROOM_DATA names; a source that is not there is one clear complaint, and no row
is kept beyond the pattern made of it. The coefficients of days are relative to the curve's base: waves of a day, and
spikes that rise at once, stay a few minutes and decay. Fitted by us (`benchmarks/fit_days.py`) to requests per second
of the Archive Team's Twitter stream grab of 2018, in the reduced form that came with IPA (github
reconfigurable-ml-pipeline/ipa, commit e1f08dd; counts of a public stream, no licence stated; none of its rows is kept):

* `twitter-day5`: the fifth day by minutes. Base of four waves fitted by least squares to the minutes outside spikes,
  then each spike's height, length and decay. Mean absolute error 7.3 % of the mean, correlation 0.97; 29 minutes of the
  day are a gap in the collection and are in neither the fit nor the error.
* `twitter-median-day`: median over twenty days of each ten minutes. Two waves, no spikes, for every day has them at
  other times; mean absolute error 2.7 % outside those that the median still shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from app.marked import Where
from lab.arena.forms import (
    BurstsForm,
    ClosedForm,
    DailyForm,
    LoadForm,
    PointsForm,
    SaturatingForm,
    Scaled,
    ShapeForm,
    SteadyForm,
    TraceForm,
)
from lab.arena.loading import Document
from lab.world.arrivals import ArrivalPattern, Bursts, Daily, RateCourse, RatePoint, Replayed, Source, Steady, rate_path
from lab.world.scenario import ClientStep, Closed, Open, Saturating
from solvers.domain.arrays import Floats

MINUTES = 1440


@dataclass(frozen=True, slots=True)
class Spike:
    """`height` above the base from `minute` on, for `stays` minutes, then falling by e in every `decay` minutes."""

    minute: int
    height: float
    stays: int
    decay: int


@dataclass(frozen=True, slots=True)
class DayShape:
    """A day: cosine and sine of each wave of the base, by rising frequency, and its spikes."""

    waves: tuple[tuple[float, float], ...]
    spikes: tuple[Spike, ...] = ()

    def rates(self) -> Floats:
        """One number per minute; the base's mean is 1."""
        minutes = np.arange(MINUTES, dtype=np.float64)
        curve = np.ones(MINUTES)
        for number, (cosine, sine) in enumerate(self.waves, start=1):
            turn = 2.0 * np.pi * number * (minutes + 0.5) / MINUTES
            curve += cosine * np.cos(turn) + sine * np.sin(turn)
        for spike in self.spikes:
            since = minutes - spike.minute
            falling = np.exp(-np.maximum(0.0, since - spike.stays) / spike.decay)
            curve += np.where(since >= 0.0, spike.height * falling, 0.0)
        return curve


SHAPES = {
    "twitter-day5": DayShape(
        waves=((-0.0943, 0.1515), (-0.0557, -0.1376), (-0.0143, -0.0058), (-0.0168, 0.0029)),
        spikes=(
            Spike(65, 1.54, 0, 20),
            Spike(212, 3.01, 7, 6),
            Spike(361, 3.00, 8, 3),
            Spike(452, 2.79, 4, 6),
            Spike(572, 3.26, 8, 3),
            Spike(692, 3.26, 8, 2),
            Spike(782, 0.82, 0, 1),
            Spike(811, 2.99, 7, 2),
            Spike(932, 3.30, 4, 3),
            Spike(1025, 1.71, 0, 2),
            Spike(1172, 3.17, 12, 4),
            Spike(1322, 3.11, 6, 2),
            Spike(1372, 0.58, 0, 1),
        ),
    ),
    "twitter-median-day": DayShape(waves=((-0.0848, 0.1875), (-0.0873, -0.1231))),
}


DAY_S = 86_400.0
HOUR_S = 3600.0


def trace_pattern(form: TraceForm, where: Where, document: Document) -> Replayed:
    readers = {"twitter": _twitter, "azure-llm": _requests, "mooncake": _requests, "muxserve": _muxserve, "dlrm": _dlrm}
    rates, bin_s = readers[form.source](form, where, document)
    return _replayed(rates, bin_s, form, where, document)


def _replayed(rates: Floats, bin_s: float, form: Scaled, where: Where, document: Document) -> Replayed:
    words = [name for name in ("rate_scale", "mean_rps", "peak_rps") if getattr(form, name) is not None]
    if len(words) > 1:
        raise document.refusal((*where, words[-1]), f"{words[0]} is said already; one of them is enough")
    first = int(form.begin // bin_s)
    last = len(rates) if form.end is None else int(np.ceil(form.end / bin_s))
    part = rates[first:last]
    if len(part) == 0 or not part.any():
        raise document.refusal((*where, "begin"), f"nothing is left of {len(rates) * bin_s:g} s after this cut")
    scale = form.rate_scale or 1.0
    if form.mean_rps is not None:
        scale = form.mean_rps / float(part.mean())
    if form.peak_rps is not None:
        scale = form.peak_rps / float(part.max())
    return form.made(Replayed, rates_rps=tuple(part.tolist()), bin_s=bin_s, rate_scale=scale)


def _column(document: Document, where: Where, path: Sequence[str], name: str) -> Floats:
    return np.array([float(row[name]) for row in document.rows((*where, "source"), *path)])


def _twitter(form: TraceForm, where: Where, document: Document) -> tuple[Floats, float]:
    """Twitter's stream in bins of 10 s; of day 5 also by the second."""
    if form.bin is not None and form.bin < 10.0:
        if form.day != 5 or form.bin != 1.0:
            raise document.refusal((*where, "bin"), "bins shorter than 10s are there for day 5 alone, of 1s")
        return _column(document, where, ("twitter-rate", "day5_per_second.csv"), "requests"), 1.0
    rates = _column(document, where, ("twitter-rate", "rate_10s.csv"), "requests") / 10.0
    if form.day is not None:
        per_day = int(DAY_S / 10.0)
        rates = rates[(form.day - 1) * per_day : form.day * per_day]
    joined = int((form.bin or 10.0) // 10.0)
    whole = len(rates) // joined * joined
    return rates[:whole].reshape(-1, joined).mean(axis=1), 10.0 * joined


def _requests(form: TraceForm, where: Where, document: Document) -> tuple[Floats, float]:
    """Requests of LLMs, counted. Mooncake's come in batches every 3 s: shorter bins would be bursts that nobody saw."""
    azure = form.source == "azure-llm"
    path = ("azure-llm-2023", f"{form.part}.csv") if azure else ("mooncake-conversation", "conversation.csv")
    times, bin_s = _column(document, where, path, "t_s"), form.bin or (10.0 if azure else 15.0)
    # The last bin is not full and would look like a fall of the rate.
    whole = max(1, int(times.max() // bin_s))
    return np.bincount((times // bin_s).astype(np.int64))[:whole] / bin_s, bin_s


def _muxserve(form: TraceForm, where: Where, document: Document) -> tuple[Floats, float]:
    known = document.rows((*where, "source"), "muxserve-lmsys-rates", "rates.csv")
    found = {row["service"]: float(row["rate_rps"]) for row in known if int(row["condense"]) == form.condense}
    if not found:
        raise document.refusal((*where, "condense"), f"the source has no rates at {form.condense}")
    if form.service not in found:
        raise document.refusal((*where, "service"), f"name one of its services: {', '.join(sorted(found))}")
    return np.array([found[form.service]]), HOUR_S


def _dlrm(form: TraceForm, where: Where, document: Document) -> tuple[Floats, float]:
    known = document.rows((*where, "source"), "alibaba-dlrm-2025", "gpu_instances_per_app_hourly.csv")
    if form.app is None or form.app not in known[0]:
        raise document.refusal((*where, "app"), "name one of its services, app_0 to app_155")
    return np.array([float(row[form.app]) for row in known]), HOUR_S


def philly_jobs(document: Document, where: Where, begin_s: float, end_s: float) -> list[tuple[float, float, int]]:
    """Jobs submitted in a part of the Philly trace: seconds since the part's beginning, run time in s, GPUs."""
    known = document.rows(where, "philly-jobs", "jobs.csv")
    found = [(float(row["submit_s"]), float(row["duration"]), int(row["num_gpus"])) for row in known]
    return [(at_s - begin_s, took_s, gpus) for at_s, took_s, gpus in found if begin_s <= at_s < end_s]


Load = Open | Closed | Saturating


def load_of(form: LoadForm, where: Where, document: Document) -> Load:
    """The load of a form. Raises InputError."""
    with document.placing(*where):
        match form:
            case ClosedForm():
                return Closed(steps=_steps(form, where, document), think_s_mean=form.think)
            case SaturatingForm():
                return Saturating()
            case _:
                return Open(pattern=_pattern(form, where, document))


def _pattern(
    form: SteadyForm | BurstsForm | DailyForm | PointsForm | ShapeForm | TraceForm, where: Where, document: Document
) -> ArrivalPattern:
    match form:
        case SteadyForm():
            return form.made(Steady)
        case BurstsForm():
            return form.made(Bursts, calm_s_mean=form.calm, burst_s_mean=form.burst)
        case DailyForm():
            return form.made(Daily)
        case PointsForm():
            points = tuple(RatePoint(at_s=at_s, rate_rps=rate) for at_s, rate in form.points)
            return form.made(RateCourse, points=points)
        case ShapeForm():
            return _replayed(SHAPES[form.shape].rates(), 60.0, form, where, document)
        case TraceForm():
            return trace_pattern(form, where, document)


def _steps(form: ClosedForm, where: Where, document: Document) -> tuple[ClientStep, ...]:
    if (form.clients is None) == (form.points is None):
        raise document.refusal(where, "say either `clients` or `points`")
    if form.points is None:
        return (ClientStep(from_s=0.0, clients=form.clients or 0),)
    if any(after[0] <= before[0] for before, after in pairwise(form.points)):
        raise document.refusal((*where, "points"), "points must rise in time")
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


_HEIGHTS = {
    Steady: ("rate_rps",),
    Bursts: ("rate_rps_calm", "rate_rps_burst"),
    Daily: ("rate_rps_mean",),
    Replayed: ("rate_scale",),
}


def _scaled(pattern: ArrivalPattern, factor: float) -> ArrivalPattern:
    if isinstance(pattern, RateCourse):
        return replace(pattern, points=tuple(replace(each, rate_rps=each.rate_rps * factor) for each in pattern.points))
    return replace(pattern, **{name: getattr(pattern, name) * factor for name in _HEIGHTS[type(pattern)]})
