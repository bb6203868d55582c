"""A batching server over one interval: how many requests finish, how late, how many wait, how many are dropped.

The server takes whatever waits, up to the batch limit, as soon as it is free (greedy batching, no artificial wait);
arrivals are Poisson; requests that would finish too late are dropped when their turn comes, unless their batch alone
takes longer than the limit: those are served late. The answer is closed-form (no event loop), so that an interval costs
the same at 1 and at 100,000 requests: steady state = self-consistent batch size, uniform residual of the running batch,
correlated spread of batch sizes and an exponential spill beyond a full batch (with Siegmund's correction); backlog and
overload = a fluid that fills or drains linearly; what a limit turns away near capacity = the walk of
`solvers.sim.serving.hopeless`. The tests compare it with a discrete-event simulation and with
`lab.world.queues`, and state how far off it may be.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, compress
from operator import mul
from typing import NamedTuple

from solvers.sim.serving.hopeless import OVERSHOOT, Dropping, dropping, exponent, interpolated

QUEUE_S_MAX = 30.0
"""Without a latency limit, the queue holds at most this many seconds of capacity; what comes on top is dropped."""
FULL = 0.999
"""Beyond this part of capacity the queue is treated as filling."""
ROUNDING = 1.0 + 1e-9
"""A server that just meets its limit meets it, whatever the last digit says."""
LOST_MIN = 1e-4
"""A stable server that drops less is taken as it is."""
CALM, ROOMY, EDGE = 0.85, 1.6, 0.97
"""Below this part of capacity, or beyond so many full batches of limit, the thinned stable server is believed as well;
batches that are not full are never told at more than the last part of capacity.
"""
_PHASES = tuple((k + 0.5) / 8 for k in range(8))
_SPREAD = ((-1.28, 0.2), (-0.52, 0.2), (0.0, 0.2), (0.52, 0.2), (1.04, 0.1), (1.55, 0.06), (2.33, 0.04))
"""Standard normal points with weights, for the number of arrivals during a batch."""
_SPILL = ((0.11, 0.2), (0.36, 0.2), (0.69, 0.2), (1.2, 0.2), (1.9, 0.1), (2.7, 0.06), (4.2, 0.04))
"""Unit exponential points with weights, for the requests left over after a full batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Outcome of an interval, in requests and milliseconds. queue = queue before + arrived - completed - dropped."""

    completed: float
    violated: float
    """Completed later than the limit; dropped requests are not in here."""
    dropped: float
    queue: float
    """Waiting or executing at the end."""
    batch_mean: float
    busy: float
    """Part of the interval in which the server executed."""
    execution_ms: float
    """Time of executing a batch of the mean size, without any waiting; 0 when nothing was executed."""
    latency_ms_p50: float | None = None
    latency_ms_p95: float | None = None
    latency_ms_p99: float | None = None


class _Points(NamedTuple):
    """Groups of requests that share a latency; `own_ms` of it is the execution of their own batch."""

    latency_ms: list[float]
    own_ms: list[float]
    weight: list[float]

    def only(self, chosen: list[bool]) -> _Points:
        return _Points(*(list(compress(column, chosen)) for column in self))

    def beside(self, other: _Points) -> _Points:
        return _Points(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def times(self, factor: float, parts: float = 1.0) -> _Points:
        return self._replace(weight=[each * factor / parts for each in self.weight])

    def by_latency(self) -> _Points:
        return _Points(*map(list, zip(*sorted(zip(*self, strict=True)), strict=True))) if self.weight else self

    @property
    def mean_ms(self) -> float:
        """Of weights that sum to 1."""
        return float(sum(map(mul, self.latency_ms, self.weight)))


_NONE = _Points([], [], [])


def serve(
    queue: float,
    arrived: float,
    interval_s: float,
    exec_ms: Sequence[float],
    latency_ms_limit: float | None,
    *,
    drop: bool = True,
) -> Served:
    """Run the server for `interval_s`; `exec_ms[b - 1]` is the time of a batch of b and must not fall with b. Without
    `drop` what is beyond the limit is answered late, however late.
    """
    if queue + arrived <= 0.0:
        return Served(completed=0.0, violated=0.0, dropped=0.0, queue=0.0, batch_mean=0.0, busy=0.0, execution_ms=0.0)
    interval_ms = 1000.0 * interval_s
    rate = arrived / interval_ms
    batch_max = len(exec_ms)
    drop_limit_ms = latency_ms_limit if drop else None
    steady = _settled(rate, exec_ms, drop_limit_ms)
    filled = _backlog(queue, rate, exec_ms, drop_limit_ms, steady).run(interval_ms)
    fluid_part = filled.lasted_ms / interval_ms
    dropped, end, points, batch, busy = filled.dropped, filled.queue_end, filled.points, float(batch_max), fluid_part
    if steady is not None and fluid_part < 1.0:
        steady_requests = rate * (interval_ms - filled.lasted_ms)
        dropped += steady_requests * steady.lost
        end = min(steady.standing, queue + arrived - dropped)
        points = _mix(points, filled.completed, steady.points, steady_requests * (1.0 - steady.lost))
        batch = batch_max * fluid_part + steady.batch * (1.0 - fluid_part)
        busy = min(1.0, fluid_part + steady.busy * (1.0 - fluid_part))
    completed = max(0.0, queue + arrived - dropped - end)
    points = points.by_latency()
    late = 0.0 if latency_ms_limit is None else _above(points, latency_ms_limit)
    p50, p95, p99 = _percentiles(points, (0.50, 0.95, 0.99)) if completed > 0.0 else (None, None, None)
    return Served(
        completed=completed,
        violated=completed * late,
        dropped=dropped,
        queue=max(0.0, queue + arrived - completed - dropped),
        batch_mean=batch,
        busy=busy,
        execution_ms=interpolated(exec_ms, max(1.0, batch)),
        latency_ms_p50=p50,
        latency_ms_p95=p95,
        latency_ms_p99=p99,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _StableServer:
    """A stable server: requests inside, latencies of those it answers, the part it drops, mean batch, busy part."""

    standing: float
    points: _Points
    lost: float
    batch: float
    busy: float


def _settled(rate: float, exec_ms: Sequence[float], limit_ms: float | None) -> _StableServer | None:
    """What the server settles in, or None where nothing does: it is overloaded and drops nothing as hopeless."""
    capacity = len(exec_ms) / exec_ms[-1]
    steady = _steady(rate, exec_ms, limit_ms) if rate < FULL * capacity else None
    if limit_ms is None or (steady is not None and steady.lost < LOST_MIN):
        return steady
    # What is dropped no longer loads the server, so the others wait less than the first answer says.
    if exec_ms[-1] > limit_ms * ROUNDING:
        return None if steady is None else _thinned(rate, exec_ms, limit_ms, steady)
    walk = dropping(rate, exec_ms, limit_ms * ROUNDING)
    worth = walk.lost >= LOST_MIN and (rate < CALM * capacity or limit_ms > ROOMY * exec_ms[-1])
    if steady is not None and worth:
        thinned = _thinned(rate, exec_ms, limit_ms, steady)
        if thinned.lost <= walk.lost:
            return thinned
    return _at_the_edge(rate, exec_ms, limit_ms, walk)


def _thinned(rate: float, exec_ms: Sequence[float], limit_ms: float, steady: _StableServer) -> _StableServer:
    """The stable server that is sent only what it does not drop: the part is found by bisection."""
    low, high = 0.0, steady.lost
    for _ in range(5):
        middle = 0.5 * (low + high)
        steady = _steady(rate * (1.0 - middle), exec_ms, limit_ms)
        low, high = (middle, high) if steady.lost > middle else (low, middle)
    return replace(steady, lost=0.5 * (low + high))


def _at_the_edge(rate: float, exec_ms: Sequence[float], limit_ms: float, walk: Dropping) -> _StableServer:
    """A server whose full batches leave work behind until the oldest of it is hopeless."""
    carried = rate * (1.0 - walk.lost)
    stable = min(carried, EDGE * len(exec_ms) / exec_ms[-1])
    batch, during = _self_consistent(stable, exec_ms)
    short = _steady_points(stable, exec_ms, batch, during, spills=False)
    kept = short.only([latency_ms <= limit_ms * ROUNDING for latency_ms in short.latency_ms])
    batch = walk.part_short * min(batch, walk.batch) + (1.0 - walk.part_short) * walk.batch
    batch = max(1.0, batch)
    middle = 1.0 - walk.part_short - walk.part_top
    behind = [(walk.left_behind(level), middle / len(_PHASES)) for level in _PHASES] + [(walk.room, walk.part_top)]
    waited_ms = [walk.full_ms + (left + phase * walk.batch) / rate for left, _ in behind for phase in _PHASES]
    full = _Points(
        [min(limit_ms, each) for each in waited_ms],
        [walk.full_ms] * len(waited_ms),
        [weight / len(_PHASES) for _, weight in behind for _ in _PHASES],
    )
    points = (kept if kept.weight else short).times(walk.part_short).beside(full)
    mean_ms = points.mean_ms / sum(points.weight)
    busy = min(1.0, carried * interpolated(exec_ms, batch) / batch)
    return _StableServer(standing=carried * mean_ms, points=points, lost=walk.lost, batch=batch, busy=busy)


def _self_consistent(rate: float, exec_ms: Sequence[float]) -> tuple[float, float]:
    """The batch size that gathers itself, and the requests that come while it executes."""
    batch_max = float(len(exec_ms))
    batch, during = 1.0, 0.0
    for _ in range(40):
        during = rate * interpolated(exec_ms, batch)
        wanted = min(batch_max, max(1.0, during + math.exp(-during)))
        if abs(wanted - batch) < 1e-3:
            break
        batch += 0.7 * (wanted - batch)
    return batch, during


def _steady(rate: float, exec_ms: Sequence[float], latency_ms_limit: float | None) -> _StableServer:
    batch, during = _self_consistent(rate, exec_ms)
    points, latest_ms = _steady_points(rate, exec_ms, batch, during), (latency_ms_limit or math.inf) * ROUNDING
    late = [waited > latest_ms >= own for waited, own in zip(points.latency_ms, points.own_ms, strict=True)]
    lost = sum(compress(points.weight, late), 0.0)
    points = points.only([weight > 0.0 and not each for weight, each in zip(points.weight, late, strict=True)])
    busy = min(1.0, rate * interpolated(exec_ms, batch) / batch)
    return _StableServer(standing=rate * points.mean_ms, points=points, lost=lost, batch=batch, busy=busy)


def _steady_points(rate: float, exec_ms: Sequence[float], batch: float, during: float, spills: bool = True) -> _Points:
    """Requests that find the server free, and those that wait for the batch that runs. Weights sum to 1."""
    batch_max, full_ms = float(len(exec_ms)), exec_ms[-1]
    free = math.exp(-during) / batch
    points = _Points([exec_ms[0]], [exec_ms[0]], [free])
    # A long batch gathers a long next batch: sizes are an autoregressive chain, which widens their spread.
    memory = min(0.9, rate * (interpolated(exec_ms, batch + 0.5) - interpolated(exec_ms, max(1.0, batch - 0.5))))
    sigma = math.sqrt(during / (1.0 - memory * memory))
    spill_part, spill_mean = _spill(rate * full_ms, len(exec_ms)) if spills else (0.0, 0.0)
    spilt = _SPILL if spill_part > 0.0 else ()
    waits = [(full_ms * size * spill_mean / batch_max, size_weight) for size, size_weight in spilt]
    for spread, spread_weight in _SPREAD:
        own_ms = interpolated(exec_ms, min(batch_max, max(1.0, 1.0 + during + spread * sigma)))
        now_ms = interpolated(exec_ms, min(batch_max, max(1.0, batch + memory * spread * sigma)))
        weight = (1.0 - free) * spread_weight
        points.latency_ms.extend([phase * now_ms + own_ms for phase in _PHASES])
        points.weight.extend([weight * (1.0 - spill_part) / len(_PHASES)] * len(_PHASES))
        # Whole batches of wait make the phase matter less: two stand for all.
        for wait_ms, wait_weight in waits:
            points.latency_ms.extend((0.25 * now_ms + own_ms + wait_ms, 0.75 * now_ms + own_ms + wait_ms))
            points.weight.extend([0.5 * weight * spill_part * wait_weight] * 2)
        points.own_ms.extend([own_ms] * (len(_PHASES) + 2 * len(waits)))
    return points


def _spill(during_full: float, batch_max: int) -> tuple[float, float]:
    """Chance that a full batch leaves requests behind, and their mean number: a walk with steps Poisson - batch_max."""
    load = during_full / batch_max
    if load < 0.3:
        return 0.0, 0.0
    theta = exponent(during_full, float(batch_max))
    part = math.exp(-theta * OVERSHOOT * math.sqrt(during_full))
    return (part, 1.0 / theta) if part > 1e-3 else (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class _Filled:
    lasted_ms: float
    queue_end: float
    completed: float
    dropped: float
    points: _Points


def _backlog(
    queue: float, rate: float, exec_ms: Sequence[float], limit_ms: float | None, steady: _StableServer | None
) -> _Backlog:
    """The way of the queue towards where it settles."""
    capacity = len(exec_ms) / exec_ms[-1]
    drops = limit_ms is not None and exec_ms[-1] <= limit_ms * ROUNDING
    wait_ms = max(exec_ms[-1], (limit_ms or 0.0) - exec_ms[-1]) if drops else 1000.0 * QUEUE_S_MAX
    floor = 0.0 if steady is None else steady.standing
    drift = rate - capacity
    if drops and steady is not None:
        # Near capacity a queue also wanders to its place, as fast as Poisson arrivals scatter.
        wander = rate / max(1.0, floor)
        drift = max(drift, wander) if drift >= 0.0 and queue < floor else min(drift, -wander)
    ceiling = floor if drift > 0.0 and steady is not None else max(capacity * wait_ms, floor)
    latest_ms = limit_ms if drops and limit_ms is not None else math.inf
    return _Backlog(
        queue=queue,
        drift=drift,
        rate=rate,
        exec_ms=exec_ms,
        floor=floor,
        ceiling=ceiling,
        latest_ms=latest_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Backlog:
    """A queue that changes by `drift` per millisecond, in floor…ceiling. Where they are one and the same when it comes
    there, it has settled; a ceiling above the floor turns away what comes on top.
    """

    queue: float
    drift: float
    rate: float
    exec_ms: Sequence[float]
    floor: float
    ceiling: float
    latest_ms: float
    """What would be answered later is dropped instead."""

    def run(self, interval_ms: float) -> _Filled:
        """Advance by at most `interval_ms`; a shorter answer means that the queue settled: steady state follows."""
        dropped = max(0.0, self.queue - self.ceiling)
        start = self.queue - dropped
        if self.drift < 0.0:
            if start <= self.floor:
                return _Filled(0.0, start, 0.0, dropped, _NONE)
            lasted_ms = min(interval_ms, (start - self.floor) / -self.drift)
            end = start + self.drift * lasted_ms
            return _Filled(lasted_ms, end, (self.rate - self.drift) * lasted_ms, dropped, self._ramp(start, end, 1.0))
        filling_ms = interval_ms if self.drift == 0.0 else min(interval_ms, (self.ceiling - start) / self.drift)
        end = start + self.drift * filling_ms
        completed = max(0.0, self.rate - self.drift) * filling_ms
        if self.floor > 0.0:
            return _Filled(
                filling_ms, end, completed, dropped, self._ramp(start, end, 1.0) if filling_ms > 0.0 else _NONE
            )
        dropped += self.drift * (interval_ms - filling_ms)
        part = filling_ms / interval_ms
        points = self._ramp(start, end, part).beside(self._ramp(end, end, 1.0 - part))
        return _Filled(interval_ms, end, max(0.0, self.rate - self.drift) * interval_ms, dropped, points)

    def _ramp(self, start: float, end: float, weight: float) -> _Points:
        """What completes while the queue goes from start to end: its wait in line, then its own batch."""
        made = _Points([], [], [weight / len(_PHASES)] * len(_PHASES))
        for phase in _PHASES:
            waiting = start + (end - start) * phase
            own_ms = interpolated(self.exec_ms, min(float(len(self.exec_ms)), max(1.0, waiting)))
            waited_ms = max(waiting * self.exec_ms[-1] / len(self.exec_ms), phase * own_ms)
            made.latency_ms.append(min(self.latest_ms, waited_ms + own_ms))
            made.own_ms.append(own_ms)
        return made


def _mix(fluid: _Points, fluid_requests: float, steady: _Points, steady_requests: float) -> _Points:
    """Both phases' latencies, weighted by their requests."""
    mixed = _NONE
    for points, requests in ((fluid, fluid_requests), (steady, steady_requests)):
        total = sum(points.weight)
        if total > 0.0 and requests > 0.0:
            mixed = mixed.beside(points.times(requests, total))
    return mixed if mixed.weight else steady


def _percentiles(points: _Points, levels: tuple[float, float, float]) -> list[float | None]:
    """The latencies, of points in order of latency, that these parts of the weight keep."""
    reached, total = list(accumulate(points.weight)), sum(points.weight)
    found = (bisect_left(reached, level * total - 1e-12) for level in levels)
    return [points.latency_ms[index] if index < len(reached) else None for index in found]


def _above(points: _Points, limit_ms: float) -> float:
    """The part, of points in order of latency, that takes longer."""
    total, late = sum(points.weight), bisect_right(points.latency_ms, limit_ms * ROUNDING)
    return sum(points.weight[late:]) / total if total > 0.0 else 0.0
