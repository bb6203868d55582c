"""When requests and training jobs arrive: seeded, and the same however and in whatever order they are asked for.

A pattern is a rate that is constant between edges (`RatePath`), so that the fluid mode reads the rate and the request
level draws times from the very same path. Times are drawn in blocks of `BLOCK_S`, each from a stream of its own named
after the source, so any stretch can be asked for alone and no source disturbs another. Traces are read elsewhere; their
rates are handed to `Replayed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, TypeAlias

import numpy as np

from solvers.domain.arrays import Floats, Streams
from solvers.domain.value import NOT_NEGATIVE, POSITIVE, each, value, within
from solvers.errors import FieldError

BLOCK_S = 60.0
"""How much time one stream of arrivals covers."""
DAILY_STEPS = 288
"""Into how many pieces of constant rate a daily pattern's period is cut."""
RAMP_STEP_S = 5.0
"""Longest piece of constant rate on a ramp."""


class Spacing(StrEnum):
    """How requests follow each other at a constant rate."""

    POISSON = "poisson"
    UNIFORM = "uniform"


@value
class Steady:
    rate_rps: Annotated[float, NOT_NEGATIVE]
    spacing: Spacing = Spacing.POISSON


@value
class Bursts:
    """A process that changes at random between a calm and a burst rate (MMPP of two states), both of exponential
    length; it begins in either by the part of time that belongs to it.
    """

    rate_rps_calm: Annotated[float, NOT_NEGATIVE]
    rate_rps_burst: Annotated[float, NOT_NEGATIVE]
    calm_s_mean: Annotated[float, POSITIVE]
    burst_s_mean: Annotated[float, POSITIVE]
    spacing: Spacing = Spacing.POISSON

    @property
    def rate_rps_mean(self) -> float:
        calm, burst = self.rate_rps_calm * self.calm_s_mean, self.rate_rps_burst * self.burst_s_mean
        return (calm + burst) / (self.calm_s_mean + self.burst_s_mean)


@value
class Daily:
    """A sine of `swing` (part of the mean) that begins at its lowest, times `spike_factor` during a spike that comes
    once, at `spike_at_s` for `spike_s`.
    """

    rate_rps_mean: Annotated[float, NOT_NEGATIVE]
    swing: Annotated[float, within(0, 1)] = 0.5
    period_s: Annotated[float, POSITIVE] = 86_400.0
    spike_factor: Annotated[float, NOT_NEGATIVE] = 4.0
    spike_at_s: Annotated[float, NOT_NEGATIVE] = 0.0
    spike_s: Annotated[float, NOT_NEGATIVE] = 0.0
    spacing: Spacing = Spacing.POISSON


@value
class Replayed:
    """A trace: one rate per bin, each `bin_s` long. `rate_scale` multiplies rates, `time_scale` stretches time while
    rates stay (0.5: twice as fast, half as many requests). After its end the trace begins anew.
    """

    rates_rps: Annotated[tuple[float, ...], each(NOT_NEGATIVE)]
    bin_s: Annotated[float, POSITIVE]
    rate_scale: Annotated[float, NOT_NEGATIVE] = 1.0
    time_scale: Annotated[float, POSITIVE] = 1.0
    spacing: Spacing = Spacing.POISSON

    def __post_init__(self) -> None:
        if not self.rates_rps:
            raise FieldError("rates_rps", "a trace needs at least one rate")


@value
class RatePoint:
    at_s: Annotated[float, NOT_NEGATIVE]
    rate_rps: Annotated[float, NOT_NEGATIVE]


@value
class RateCourse:
    """Rates by points in time: straight lines between them, or each held until the next. The first holds before its
    moment, the last for ever.
    """

    points: tuple[RatePoint, ...]
    ramp: bool = True
    spacing: Spacing = Spacing.POISSON

    def __post_init__(self) -> None:
        times = [point.at_s for point in self.points]
        if not times or times != sorted(set(times)):
            raise FieldError("points", "points must rise in time, and there must be one")


ArrivalPattern: TypeAlias = Steady | Bursts | Daily | Replayed | RateCourse


@value
class Source:
    """Whose arrivals: the name and the seed decide every number."""

    name: str
    seed: int

    def stream(self, purpose: str) -> np.random.Generator:
        return Streams(self.seed).stream(f"arrivals/{self.name}/{purpose}")


@dataclass(frozen=True, slots=True)
class RatePath:
    """Rates between edges: `rates_rps[k]` holds from `edges_s[k]` to `edges_s[k + 1]`. Begins at 0; the last rate goes
    on for ever.
    """

    edges_s: Floats
    rates_rps: Floats

    @property
    def totals(self) -> Floats:
        """Mean number of arrivals from 0 until each edge."""
        return np.concatenate(([0.0], np.cumsum(np.diff(self.edges_s) * self.rates_rps)))

    def expected(self, at_s: Floats | float) -> Floats:
        """Mean number of arrivals from 0 until each time."""
        asked = np.asarray(at_s, dtype=np.float64)
        beyond = np.maximum(0.0, asked - self.edges_s[-1]) * self.rates_rps[-1]
        total: Floats = np.interp(asked, self.edges_s, self.totals) + beyond
        return total

    def mean_rps(self, from_s: float, until_s: float) -> float:
        ends = self.expected(np.array([from_s, until_s]))
        return float(ends[1] - ends[0]) / (until_s - from_s)

    def within(self, from_s: float, until_s: float) -> RatePath:
        """The part of a stretch; it does not begin at 0 and is only for drawing times."""
        inner = self.edges_s[(self.edges_s > from_s) & (self.edges_s < until_s)]
        edges = np.concatenate(([from_s], inner, [until_s]))
        middles = 0.5 * (edges[1:] + edges[:-1])
        index = np.clip(np.searchsorted(self.edges_s, middles, side="right") - 1, 0, len(self.rates_rps) - 1)
        return RatePath(edges, self.rates_rps[index])


def rate_path(pattern: ArrivalPattern, source: Source, until_s: float) -> RatePath:
    """The pattern's rates from 0 to at least `until_s`; a longer path begins with the shorter one."""
    match pattern:
        case Steady():
            return RatePath(np.array([0.0, until_s]), np.array([pattern.rate_rps]))
        case Bursts():
            return _burst_path(pattern, source, until_s)
        case Daily():
            return _daily_path(pattern, until_s)
        case Replayed():
            return _replayed_path(pattern, until_s)
        case RateCourse():
            return _course_path(pattern, until_s)


def _burst_path(pattern: Bursts, source: Source, until_s: float) -> RatePath:
    draw = source.stream("bursts")
    bursting = bool(draw.random() * (pattern.calm_s_mean + pattern.burst_s_mean) < pattern.burst_s_mean)
    edges, rates = [0.0], []
    while edges[-1] < until_s:
        mean_s = pattern.burst_s_mean if bursting else pattern.calm_s_mean
        rates.append(pattern.rate_rps_burst if bursting else pattern.rate_rps_calm)
        edges.append(edges[-1] + mean_s * float(draw.standard_exponential()))
        bursting = not bursting
    return RatePath(np.array(edges), np.array(rates))


def _daily_path(pattern: Daily, until_s: float) -> RatePath:
    step_s = pattern.period_s / DAILY_STEPS
    regular = np.arange(np.ceil(until_s / step_s) + 1.0, dtype=np.float64) * step_s
    spike_ends_s = pattern.spike_at_s + pattern.spike_s
    ends = [end for end in (pattern.spike_at_s, spike_ends_s) if 0.0 < end < regular[-1]]
    edges: Floats = np.unique(np.concatenate((regular, np.array(ends))))
    middles = 0.5 * (edges[1:] + edges[:-1])
    rates: Floats = pattern.rate_rps_mean * (1.0 - pattern.swing * np.cos(2.0 * np.pi * middles / pattern.period_s))
    spiking = (middles > pattern.spike_at_s) & (middles < spike_ends_s)
    return RatePath(edges, np.where(spiking, rates * pattern.spike_factor, rates))


def _replayed_path(pattern: Replayed, until_s: float) -> RatePath:
    bin_s = pattern.bin_s * pattern.time_scale
    bins = max(1, int(np.ceil(until_s / bin_s)))
    rates: Floats = np.array(pattern.rates_rps)[np.arange(bins) % len(pattern.rates_rps)]
    edges: Floats = np.arange(bins + 1, dtype=np.float64) * bin_s
    return RatePath(edges, rates * pattern.rate_scale)


def _course_path(pattern: RateCourse, until_s: float) -> RatePath:
    at_s = np.array([point.at_s for point in pattern.points])
    rates = np.array([point.rate_rps for point in pattern.points])
    if not pattern.ramp:
        edges: Floats = np.unique(np.concatenate(([0.0], at_s[1:], [max(until_s, at_s[-1] + 1.0)])))
        return RatePath(edges, rates[np.searchsorted(at_s[1:], edges[:-1], side="right")])
    # The pieces follow from the points alone, so that a longer path begins with the shorter one.
    pieces = [
        np.linspace(begin, end, max(1, int(np.ceil((end - begin) / RAMP_STEP_S))), endpoint=False)
        for begin, end in pairwise(at_s)
    ]
    edges = np.unique(np.concatenate(([0.0], *pieces, [at_s[-1], max(until_s, at_s[-1] + 1.0)])))
    return RatePath(edges, np.interp(0.5 * (edges[1:] + edges[:-1]), at_s, rates))


def arrival_times_s(pattern: ArrivalPattern, source: Source, from_s: float, until_s: float) -> Floats:
    """Sorted times in [from_s, until_s); stretches that touch give together what the whole gives."""
    path = rate_path(pattern, source, until_s)
    if pattern.spacing is Spacing.UNIFORM:
        times = _uniform(path, source, from_s, until_s)
    else:
        blocks = range(int(from_s // BLOCK_S), int(np.ceil(until_s / BLOCK_S)))
        # A block's draws must not depend on where the stretch ends, so the path goes on to the end of the last block.
        whole = rate_path(pattern, source, blocks.stop * BLOCK_S)
        parts = [_poisson_block(whole, source, block) for block in blocks]
        times = np.concatenate(parts) if parts else np.empty(0)
    return times[(times >= from_s) & (times < until_s)]


def _poisson_block(path: RatePath, source: Source, block: int) -> Floats:
    draw = source.stream(f"times/{block}")
    part = path.within(block * BLOCK_S, (block + 1) * BLOCK_S)
    total = part.totals[-1]
    times = _times_of(part, np.sort(draw.random(int(draw.poisson(total)))) * total)
    before_the_end: Floats = np.minimum(times, np.nextafter(part.edges_s[-1], 0.0))
    return before_the_end


def _uniform(path: RatePath, source: Source, from_s: float, until_s: float) -> Floats:
    """One arrival whenever the expected number passes a whole number, less a phase of the source's own."""
    phase = float(source.stream("phase").random())
    first, last = path.expected(np.array([from_s, until_s]))
    wanted = np.arange(np.floor(first - phase), np.ceil(last - phase) + 1.0) + phase
    return _times_of(path, wanted[(wanted >= 0.0) & (wanted < path.totals[-1])])


def _times_of(path: RatePath, wanted: Floats) -> Floats:
    """When the expected number of arrivals reaches each wanted value."""
    totals = path.totals
    piece = np.clip(np.searchsorted(totals, wanted, side="right") - 1, 0, len(path.rates_rps) - 1)
    rates = np.maximum(path.rates_rps[piece], np.finfo(np.float64).tiny)
    times: Floats = path.edges_s[piece] + (wanted - totals[piece]) / rates
    return times


@value
class JobPattern:
    """Training jobs: a Poisson stream, with log-normal numbers of iterations."""

    jobs_per_h: Annotated[float, NOT_NEGATIVE]
    iterations_median: Annotated[float, POSITIVE]
    iterations_sigma: Annotated[float, NOT_NEGATIVE] = 1.0


@value
class JobArrival:
    """One training job: when it comes and how long it is, in iterations or in seconds of its reference GPU."""

    at_s: float
    iterations: int = 0
    takes_s: float = 0.0


def job_arrivals(pattern: JobPattern, source: Source, until_s: float) -> tuple[JobArrival, ...]:
    """Jobs in [0, until_s), by time; a longer horizon begins with the shorter one's jobs."""
    times = arrival_times_s(Steady(rate_rps=pattern.jobs_per_h / 3600.0), source, 0.0, until_s)
    spread = source.stream("iterations").standard_normal(len(times))
    iterations = np.maximum(1, np.rint(pattern.iterations_median * np.exp(pattern.iterations_sigma * spread)))
    return tuple(
        JobArrival(at_s=float(at_s), iterations=int(count)) for at_s, count in zip(times, iterations, strict=True)
    )
