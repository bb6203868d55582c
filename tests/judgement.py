"""One device's contents judged in Python, step by step: what `planners.joint.solve.judge` must say of the same.

Given a kind and members (variant and share): the pressure of all on each, the best batch of each that keeps its promise
within the memory, and what the device then serves, draws and costs.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from solvers.domain.arrays import Floats
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Pattern, between
from solvers.problems.promise import Promises, bearable

TOLERANCE = 1e-9


def judge(problem: JointProblem, kind: int, variants: Sequence[int], shares_pct: Sequence[int]) -> Pattern | None:
    """The pattern of these members with the best batches; None when a rule, a promise, memory or power forbids it."""
    pairs = sorted(zip(variants, shares_pct, strict=True))
    members, shares = tuple(item for item, _ in pairs), tuple(share for _, share in pairs)
    if not _lawful(problem, kind, members, shares):
        return None
    served = _served(problem, kind, members, shares)
    room_mib = problem.pools[int(problem.kind_pool[kind])].memory_mib
    rates = [item.capacity_rps for item in served]
    columns = _batches(problem, int(problem.kind_table[kind]), members, rates, room_mib)
    return None if columns is None else _pattern(problem, kind, served, columns)


def choices(problem: JointProblem, kind: int, variants: Sequence[int], shares_pct: Sequence[int]) -> Iterator[Pattern]:
    """All patterns of these members, whatever their batches; without those that serve no more and draw no less."""
    pairs = sorted(zip(variants, shares_pct, strict=True))
    members, shares = tuple(item for item, _ in pairs), tuple(share for _, share in pairs)
    if not _lawful(problem, kind, members, shares):
        return
    served = _served(problem, kind, members, shares)
    table, room_mib = int(problem.kind_table[kind]), problem.pools[int(problem.kind_pool[kind])].memory_mib
    found = []
    for columns in product(*(np.flatnonzero(item.capacity_rps > 0).tolist() for item in served)):
        held = sum(problem.memory_mib[table, variant, column] for variant, column in zip(members, columns, strict=True))
        pattern = _pattern(problem, kind, served, columns) if held <= room_mib + TOLERANCE else None
        if pattern is not None:
            found.append((*pattern.capacity_rps, -pattern.draw_w, pattern))
    for one in found:
        rest = [other for other in found if other[:-1] != one[:-1]]
        if not any(all(a >= b for a, b in zip(other[:-1], one[:-1], strict=True)) for other in rest):
            yield one[-1]


@dataclass(frozen=True, slots=True)
class _Served:
    """What one member does, by batch."""

    variant: int
    share_pct: int
    latency_ms: Floats
    capacity_rps: Floats


def _served(problem: JointProblem, kind: int, members: tuple[int, ...], shares: tuple[int, ...]) -> list[_Served]:
    table, found = int(problem.kind_table[kind]), []
    factor = slowdown(problem, table, members, shares)
    for variant, share, slow in zip(members, shares, factor, strict=True):
        mean = at_share(problem, problem.mean_ms[table, variant], share) * slow
        same = problem.tail_ms is problem.mean_ms
        tail = mean if same else at_share(problem, problem.tail_ms[table, variant], share) * slow
        found.append(_Served(variant, share, *serve(problem, variant, mean, tail)))
    return found


def _pattern(problem: JointProblem, kind: int, served: list[_Served], columns: Sequence[int]) -> Pattern | None:
    """With these batches; None where it would draw more than it may."""
    table, pool = int(problem.kind_table[kind]), problem.pools[int(problem.kind_pool[kind])]
    pairs = list(zip(served, columns, strict=True))
    members, shares = tuple(item.variant for item in served), tuple(item.share_pct for item in served)
    power = tuple(
        float(watts_at_share(problem, problem.power_w[table, item.variant], item.share_pct)[column])
        for item, column in pairs
    )
    draw_w = pool.idle_w + sum(power)
    if pool.capped and draw_w > pool.limit_w + TOLERANCE:
        return None
    draw_w = min(pool.limit_w, draw_w)
    return Pattern(
        kind=kind,
        variants=members,
        shares_pct=shares,
        batches=tuple(int(problem.batches[column]) for column in columns),
        latency_ms=tuple(float(item.latency_ms[column]) for item, column in pairs),
        capacity_rps=tuple(float(item.capacity_rps[column]) for item, column in pairs),
        power_w=power,
        memory_mib=tuple(float(problem.memory_mib[table, item.variant, column]) for item, column in pairs),
        usd_per_h=_price(problem, kind, members, shares, draw_w),
        draw_w=draw_w,
    )


def _lawful(problem: JointProblem, kind: int, members: tuple[int, ...], shares: tuple[int, ...]) -> bool:
    pool_index = int(problem.kind_pool[kind])
    pool = problem.pools[pool_index]
    if (
        sum(shares) > 100
        or len(members) > pool.clients
        or not all(problem.allowed[pool_index, item] for item in members)
    ):
        return False
    count = Counter(int(problem.variant_workload[item]) for item in members)
    for number, times in count.items():
        work = problem.workloads[number]
        if times > work.per_device_max or (work.dedicated and len(members) > 1):
            return False
        if any(other in count for other in work.avoids):
            return False
    return True


def _batches(
    problem: JointProblem, table: int, members: tuple[int, ...], rates: list[Floats], room_mib: float
) -> list[int] | None:
    """The batch of most capacity for each; while memory lacks, the member that loses least per MiB steps down."""
    needs = [problem.memory_mib[table, variant] for variant in members]
    rates = [np.where(need <= room_mib + TOLERANCE, rate, 0.0) for rate, need in zip(rates, needs, strict=True)]
    columns = [int(np.argmax(rate)) for rate in rates]
    if any(rate[column] <= 0 for rate, column in zip(rates, columns, strict=True)):
        return None
    while sum(need[column] for need, column in zip(needs, columns, strict=True)) > room_mib + TOLERANCE:
        steps = list(_steps_down(rates, needs, columns))
        if not steps:
            return None
        _, place, lower = min(steps)
        columns[place] = lower
    return columns


def _steps_down(rates: list[Floats], needs: list[Floats], columns: list[int]) -> Iterator[tuple[float, int, int]]:
    """Every smaller batch of every member: part of its rate lost per MiB saved, member, batch."""
    for place, (rate, need, column) in enumerate(zip(rates, needs, columns, strict=True)):
        for lower in range(column):
            saved = need[column] - need[lower]
            if rate[lower] > 0 and saved > 0:
                yield (1 - rate[lower] / rate[column]) / saved, place, lower


def _price(problem: JointProblem, kind: int, members: tuple[int, ...], shares: tuple[int, ...], draw_w: float) -> float:
    pool = problem.pools[int(problem.kind_pool[kind])]
    if problem.by_replica:
        return float(problem.held_usd(kind, np.array(members), np.array(shares)).sum())
    return pool.usd_per_h + problem.usd_per_wh * draw_w


def slowdown(problem: JointProblem, table: int, variants: Sequence[int], shares_pct: Sequence[float]) -> Floats:
    """Factor on each member's latency by the others' presence."""
    members = np.asarray(variants, dtype=np.int64)
    if len(members) < 2:
        return np.ones(len(members))
    share = np.asarray(shares_pct, dtype=np.float64) / 100
    presses = problem.pressure[table, members] * share ** problem.exponent[table, members]
    felt = problem.sensitivity[table, members] * (presses.sum() - presses)
    return np.asarray(problem.crowd[table, members] * (1 + felt))


def at_share(problem: JointProblem, cells: Floats, share_pct: float) -> Floats:
    """Latencies at a share, by `between`; `inf` below the lowest share. `cells`: share x batch."""
    low, high, weight = _neighbours(problem, cells, share_pct)
    return between(low, high, weight) if 0 < weight < 1 else (high if weight >= 1 else low)


def watts_at_share(problem: JointProblem, cells: Floats, share_pct: float) -> Floats:
    """Powers at a share, on the chord between its neighbours."""
    low, high, weight = _neighbours(problem, cells, share_pct)
    with np.errstate(invalid="ignore"):
        return np.asarray((1 - weight) * low + weight * high) if 0 < weight < 1 else (high if weight >= 1 else low)


def _neighbours(problem: JointProblem, cells: Floats, share_pct: float) -> tuple[Floats, Floats, float]:
    shares = problem.shares_pct
    above = int(shares.searchsorted(share_pct - TOLERANCE))
    above = min(above, len(shares) - 1)
    if shares[above] <= share_pct + TOLERANCE:
        return cells[above], cells[above], 1.0
    if above == 0:
        none = np.full(cells.shape[1], np.inf)
        return none, none, 0.0
    weight = (share_pct - shares[above - 1]) / (shares[above] - shares[above - 1])
    return cells[above - 1], cells[above], float(weight)


def serve(problem: JointProblem, variant: int, mean_ms: Floats, tail_ms: Floats) -> tuple[Floats, Floats]:
    """Latency at the granted rate and the granted rate, by batch; rate 0 where the promise cannot be kept. Latencies
    already carry every slowdown.
    """
    work = problem.workloads[problem.variants[variant].workload]
    promise = Promises(
        limit_ms=work.limit_ms,
        burst=work.burst,
        end_to_end=work.end_to_end,
        utilisation_max=work.utilisation_max,
    )
    return _granted(promise, *(np.asarray(each, np.float64).tobytes() for each in (problem.batches, mean_ms, tail_ms)))


@functools.lru_cache(1 << 12)
def _granted(promise: Promises, batches: bytes, mean_ms: bytes, tail_ms: bytes) -> tuple[Floats, Floats]:
    """The same latencies come again and again: beside somebody else, in another pool, at another clock."""
    batch, mean, tail = (np.frombuffer(each) for each in (batches, mean_ms, tail_ms))
    load = bearable(promise, batch, tail)
    latency_ms, rate_rps = load.latency_ms, load.rate_rps(batch, mean)
    latency_ms.flags.writeable = rate_rps.flags.writeable = False
    return latency_ms, rate_rps
