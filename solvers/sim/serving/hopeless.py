"""What a batching server drops that drops what would finish too late, at any load, in closed form.

The two-barrier walk behind `solvers.sim.serving.serving`: the requests that a full batch leaves behind move by Poisson
minus batch size, cannot fall below none (below that, batches are not full and shorten, which pulls them back) and
cannot wait longer than the limit allows; what the upper barrier turns away is dropped. A single-request server is told
exactly (queue M/D/1 with impatient customers). Where the limit leaves no room for a full batch, the walk runs at the
largest batch that can still be gathered in time. Constants marked as fitted were fitted to
`lab.world.queues`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

OVERSHOOT = 0.583
"""Siegmund's: how far a walk steps over a barrier, in standard deviations of a step."""
PULL = 2.63
"""So that batches that do not depend on the one before give the overshoot's mass below the barrier."""
TIGHT = 0.5
"""Fitted: at and below this part of the full batch, the upper barrier answers to the variance of steps alone."""
EXACT_FULL_BATCHES = 10.0
"""Beyond so many executions the exact sum loses its digits; the walk is as good there."""
FAR = 50.0
"""A barrier so many scales away is never met, or never left."""
_STEPS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropping:
    """`lost`: part of the requests that is dropped. The walk: `batch` the largest that is gathered, `full_ms` its time,
    `room` the requests that may be left behind, `decay` the walk's exponent, and how much of the time its batches are
    not full, and it stands at the upper barrier.
    """

    lost: float
    batch: float
    full_ms: float
    room: float
    decay: float
    part_short: float
    part_top: float

    def left_behind(self, level: float) -> float:
        """The number left behind that this part of the batches with any stay below."""
        if abs(self.decay * self.room) < 1e-6:
            return self.room * level
        grown = max(-1.0 + 1e-15, level * math.expm1(min(FAR, -self.decay * self.room)))
        return min(self.room, -math.log1p(grown) / self.decay)


def interpolated(exec_ms: Sequence[float], batch: float) -> float:
    """Execution time of a fractional batch size, which is at least 1 and at most the last."""
    low = int(batch)
    if low >= len(exec_ms):
        return exec_ms[-1]
    part = batch - low
    return exec_ms[low - 1] * (1.0 - part) + exec_ms[low] * part


def dropping(rate_per_ms: float, exec_ms: Sequence[float], limit_ms: float) -> Dropping:
    """The steady state at this rate. The limit must allow a full batch."""
    full = float(len(exec_ms))
    batch = _gathered(rate_per_ms, exec_ms, limit_ms)
    full_ms = interpolated(exec_ms, max(1.0, batch))
    during = rate_per_ms * full_ms
    decay = exponent(during, batch)
    sigma = math.sqrt(during)
    room = max(0.0, rate_per_ms * (limit_ms - full_ms) - batch)
    shape = Dropping(lost=0.0, batch=batch, full_ms=full_ms, room=room, decay=decay, part_short=1.0, part_top=0.0)
    top = room + OVERSHOOT * sigma
    if decay * top > FAR:
        return shape
    if decay * top < -FAR:
        return replace(shape, lost=1.0 - batch / during, part_short=0.0, part_top=1.0)
    below, depth = _below(decay, _spread(rate_per_ms, exec_ms, during), max(batch - 1.0, OVERSHOOT * sigma))
    mid, above = _mass(decay, 0.0, room), _mass(decay, room, top)
    total = below + mid + above
    unbound = (batch - during) / decay if abs(decay) > 1e-6 else 0.5 * during
    weight = max(0.0, (batch / full - TIGHT) / (1.0 - TIGHT))
    lost_each = float(unbound**weight * (0.5 * during) ** (1.0 - weight) * math.exp(-decay * top) / total)
    part_short = below / total
    mean = part_short * max(1.0, batch - depth) + (1.0 - part_short) * batch
    lost = lost_each / (mean + lost_each)
    if len(exec_ms) == 1 and limit_ms < EXACT_FULL_BATCHES * full_ms:
        lost = _single(rate_per_ms, full_ms, limit_ms)
    return replace(shape, lost=lost, part_short=part_short, part_top=above / total)


def exponent(during: float, batch: float) -> float:
    """The decay of what a walk with steps Poisson(`during`) - `batch` leaves behind; below 0 where it grows."""
    load = during / batch
    if abs(1.0 - load) < 1e-4:
        return 2.0 * (1.0 - load)
    # From beyond the root, Newton's steps never cross it.
    decay = -2.0 * math.log(load)
    for _ in range(50):
        step = (during * math.expm1(decay) - decay * batch) / (during * math.exp(decay) - batch)
        decay -= step
        if abs(step) < 1e-9:
            break
    return decay


def _gathered(rate_per_ms: float, exec_ms: Sequence[float], limit_ms: float) -> float:
    """The largest batch that arrives within what the limit leaves beside its execution."""
    low, high = 0.5, float(len(exec_ms))
    if rate_per_ms * (limit_ms - exec_ms[-1]) >= high:
        return high
    for _ in range(20):
        middle = 0.5 * (low + high)
        if rate_per_ms * (limit_ms - interpolated(exec_ms, max(1.0, middle))) > middle:
            low = middle
        else:
            high = middle
    return low


def _spread(rate_per_ms: float, exec_ms: Sequence[float], during: float) -> float:
    """Variance of batches that are not full: the more a batch's time shrinks with it, the longer they stay short."""
    slope_ms = (exec_ms[-1] - exec_ms[0]) / (len(exec_ms) - 1) if len(exec_ms) > 1 else 0.0
    pull = min(1.0, max(1e-3, 1.0 - rate_per_ms * slope_ms))
    return during / (2.0 * pull + PULL * pull * pull)


def _below(decay: float, variance: float, depth_max: float) -> tuple[float, float]:
    """Mass of the walk below a full batch, against its density there, and how far below it is on average."""
    reach = 4.0 * math.sqrt(variance) + max(0.0, decay * variance)
    depth_max = min(depth_max, reach, 12.0 / -decay if decay < 0.0 else reach)

    def density(depth: float) -> float:
        return math.exp(decay * depth - 0.5 * depth * depth / variance)

    mass = _sum(density, depth_max)
    return mass, _sum(lambda depth: depth * density(depth), depth_max) / mass


def _sum(function: Callable[[float], float], until: float) -> float:
    step = until / _STEPS
    return step * sum(function((k + 0.5) * step) for k in range(_STEPS))


def _mass(decay: float, low: float, high: float) -> float:
    """Integral of exp(-decay x) from low to high."""
    if abs(decay * high) < 1e-6:
        return high - low
    return -math.exp(-decay * low) * math.expm1(-decay * (high - low)) / decay


def _single(rate_per_ms: float, each_ms: float, limit_ms: float) -> float:
    """Exactly, for batches of one: the waiting time of the unlimited server, cut where it becomes hopeless."""
    wait_ms, total = limit_ms - each_ms, 0.0
    for k in range(int(wait_ms / each_ms) + 1):
        left = rate_per_ms * (wait_ms - k * each_ms)
        total += (-left) ** k / math.factorial(k) * math.exp(left)
    return min(1.0, max(0.0, 1.0 - total / (1.0 + rate_per_ms * each_ms * total)))
