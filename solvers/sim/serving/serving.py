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
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
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


class _Point(NamedTuple):
    """Requests that share a latency; `own_ms` of it is the execution of their own batch."""

    latency_ms: float
    own_ms: float
    weight: float


def serve(
    queue: float, arrived: float, interval_s: float, exec_ms: Sequence[float], latency_ms_limit: float | None
) -> Served:
    """Run the server for `interval_s`; `exec_ms[b - 1]` is the time of a batch of b and must not fall with b."""
    if queue + arrived <= 0.0:
        return Served(completed=0.0, violated=0.0, dropped=0.0, queue=0.0, batch_mean=0.0, busy=0.0, execution_ms=0.0)
    interval_ms = 1000.0 * interval_s
    rate = arrived / interval_ms
    batch_max = len(exec_ms)
    steady = _settled(rate, exec_ms, latency_ms_limit)
    filled = _backlog(queue, rate, exec_ms, latency_ms_limit, steady).run(interval_ms)
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
    points = sorted(points)
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
    points: list[_Point]
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
    short = list(_steady_points(stable, exec_ms, batch, during, spills=False))
    kept = [point for point in short if point.latency_ms <= limit_ms * ROUNDING]
    points = [point._replace(weight=point.weight * walk.part_short) for point in kept or short]
    batch = walk.part_short * min(batch, walk.batch) + (1.0 - walk.part_short) * walk.batch
    batch = max(1.0, batch)
    middle = 1.0 - walk.part_short - walk.part_top
    behind = [(walk.left_behind(level), middle / len(_PHASES)) for level in _PHASES] + [(walk.room, walk.part_top)]
    for left, weight in behind:
        for phase in _PHASES:
            latency_ms = walk.full_ms + (left + phase * walk.batch) / rate
            points.append(_Point(min(limit_ms, latency_ms), walk.full_ms, weight / len(_PHASES)))
    total = sum(point.weight for point in points)
    mean_ms = sum(point.latency_ms * point.weight for point in points) / total
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
    kept, lost = [], 0.0
    for point in _steady_points(rate, exec_ms, batch, during):
        if latency_ms_limit is not None and point.latency_ms > latency_ms_limit * ROUNDING >= point.own_ms:
            lost += point.weight
        elif point.weight > 0.0:
            kept.append(point)
    mean_ms = sum(point.latency_ms * point.weight for point in kept)
    busy = min(1.0, rate * interpolated(exec_ms, batch) / batch)
    return _StableServer(standing=rate * mean_ms, points=kept, lost=lost, batch=batch, busy=busy)


def _steady_points(
    rate: float, exec_ms: Sequence[float], batch: float, during: float, spills: bool = True
) -> Iterator[_Point]:
    """Requests that find the server free, and those that wait for the batch that runs. Weights sum to 1."""
    batch_max, full_ms = float(len(exec_ms)), exec_ms[-1]
    free = math.exp(-during) / batch
    yield _Point(exec_ms[0], exec_ms[0], free)
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
        for phase in _PHASES:
            yield _Point(phase * now_ms + own_ms, own_ms, weight * (1.0 - spill_part) / len(_PHASES))
        # Whole batches of wait make the phase matter less: two stand for all.
        for wait_ms, wait_weight in waits:
            each = 0.5 * weight * spill_part * wait_weight
            yield _Point(0.25 * now_ms + own_ms + wait_ms, own_ms, each)
            yield _Point(0.75 * now_ms + own_ms + wait_ms, own_ms, each)


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
    points: list[_Point]


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
                return _Filled(0.0, start, 0.0, dropped, [])
            lasted_ms = min(interval_ms, (start - self.floor) / -self.drift)
            end = start + self.drift * lasted_ms
            return _Filled(lasted_ms, end, (self.rate - self.drift) * lasted_ms, dropped, self._ramp(start, end, 1.0))
        filling_ms = interval_ms if self.drift == 0.0 else min(interval_ms, (self.ceiling - start) / self.drift)
        end = start + self.drift * filling_ms
        completed = max(0.0, self.rate - self.drift) * filling_ms
        if self.floor > 0.0:
            return _Filled(filling_ms, end, completed, dropped, self._ramp(start, end, 1.0) if filling_ms > 0.0 else [])
        dropped += self.drift * (interval_ms - filling_ms)
        part = filling_ms / interval_ms
        points = self._ramp(start, end, part) + self._ramp(end, end, 1.0 - part)
        return _Filled(interval_ms, end, max(0.0, self.rate - self.drift) * interval_ms, dropped, points)

    def _ramp(self, start: float, end: float, weight: float) -> list[_Point]:
        """What completes while the queue goes from start to end: its wait in line, then its own batch."""
        made = []
        for phase in _PHASES:
            waiting = start + (end - start) * phase
            own_ms = interpolated(self.exec_ms, min(float(len(self.exec_ms)), max(1.0, waiting)))
            waited_ms = max(waiting * self.exec_ms[-1] / len(self.exec_ms), phase * own_ms)
            made.append(_Point(min(self.latest_ms, waited_ms + own_ms), own_ms, weight / len(_PHASES)))
        return made


def _mix(fluid: list[_Point], fluid_requests: float, steady: list[_Point], steady_requests: float) -> list[_Point]:
    """Both phases' latencies, weighted by their requests."""
    mixed: list[_Point] = []
    for points, requests in ((fluid, fluid_requests), (steady, steady_requests)):
        total = sum(point.weight for point in points)
        if total > 0.0 and requests > 0.0:
            mixed.extend(_Point(point.latency_ms, point.own_ms, point.weight * requests / total) for point in points)
    return mixed or steady


def _percentiles(points: list[_Point], levels: tuple[float, float, float]) -> list[float | None]:
    """The latencies, of points in order of latency, that these parts of the weight keep."""
    reached = list(accumulate(point.weight for point in points))
    total = sum(point.weight for point in points)
    found = (bisect_left(reached, level * total - 1e-12) for level in levels)
    return [points[index].latency_ms if index < len(points) else None for index in found]


def _above(points: list[_Point], limit_ms: float) -> float:
    total = sum(point.weight for point in points)
    return (
        sum(point.weight for point in points if point.latency_ms > limit_ms * ROUNDING) / total if total > 0.0 else 0.0
    )
