"""Patterns: what stands on one device, judged exactly; and layouts: how many devices carry which pattern.

Given a kind and members (variant and share): the pressure of all on each, the best batch of each that keeps its promise
within the memory, and what the device then serves, draws and costs. For one device; the solve judges thousands at once
by `planners.joint.solve.judge`, and a test holds both together. A layout is the answer to a joint problem: the value
between the solver, which knows pools, and the seating of patterns on named devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from solvers.domain.arrays import Floats
from solvers.problems.joint import JointProblem, Workload
from solvers.problems.promise import Promises, bearable

TOLERANCE = 1e-9
SHORT = 1e-9
SHORT_OF_LEAST = 1e-6
CHARGE_DEVICES = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One device's contents; tuples run over its members, ordered by (variant, share)."""

    kind: int
    variants: tuple[int, ...]
    shares_pct: tuple[int, ...]
    batches: tuple[int, ...]
    """Inputs per batch."""
    latency_ms: tuple[float, ...]
    """The planned percentile at the granted rate."""
    capacity_rps: tuple[float, ...]
    power_w: tuple[float, ...]
    memory_mib: tuple[float, ...]
    usd_per_h: float
    """Of the whole pattern, energy included where the problem counts it."""
    draw_w: float
    """Of the device, idle power included, never above its limit."""

    @property
    def key(self) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        return self.kind, self.variants, self.shares_pct


def slowdown(problem: JointProblem, table: int, variants: Sequence[int], shares_pct: Sequence[float]) -> Floats:
    """Factor on each member's latency by the others' presence."""
    members = np.asarray(variants, dtype=np.int64)
    if len(members) < 2:
        return np.ones(len(members))
    share = np.asarray(shares_pct, dtype=np.float64) / 100
    presses = problem.pressure[table, members] * share ** problem.exponent[table, members]
    felt = problem.sensitivity[table, members] * (presses.sum() - presses)
    return np.asarray(problem.crowd[table, members] * (1 + felt))


def between(low_ms: Floats, high_ms: Floats, weight: Floats | float) -> Floats:
    """Latency at a share between two measured ones; `weight` is the upper one's. A larger share brings ever less, so
    the rate is at least the weighted mean of the two rates; `inf` where either cannot run.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        mixed = low_ms * high_ms / ((1 - weight) * high_ms + weight * low_ms)
    mixed = np.where(np.isfinite(low_ms) & np.isfinite(high_ms), mixed, np.inf)
    return np.asarray(np.where(weight <= 0, low_ms, np.where(weight >= 1, high_ms, mixed)))


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
    above = int(np.searchsorted(shares, share_pct - TOLERANCE))
    above = min(above, len(shares) - 1)
    if shares[above] <= share_pct + TOLERANCE:
        return cells[above], cells[above], 1.0
    if above == 0:
        none = np.full(cells.shape[1], np.inf)
        return none, none, 0.0
    weight = (share_pct - shares[above - 1]) / (shares[above] - shares[above - 1])
    return cells[above - 1], cells[above], float(weight)


def promises_of(works: Sequence[Workload]) -> Promises:
    return Promises(
        limit_ms=np.array([work.limit_ms for work in works], dtype=np.float64),
        burst=np.array([work.burst for work in works], dtype=np.float64),
        end_to_end=np.array([work.end_to_end for work in works], dtype=np.bool_),
        utilisation_max=np.array([work.utilisation_max for work in works], dtype=np.float64),
    )


def serve(problem: JointProblem, variant: int, mean_ms: Floats, tail_ms: Floats) -> tuple[Floats, Floats]:
    """Latency at the granted rate and the granted rate, by batch; rate 0 where the promise cannot be kept. Latencies
    already carry every slowdown.
    """
    work = problem.workloads[problem.variants[variant].workload]
    batch = problem.batches.astype(np.float64)
    promise = Promises(
        limit_ms=work.limit_ms,
        burst=work.burst,
        end_to_end=work.end_to_end,
        utilisation_max=work.utilisation_max,
    )
    load = bearable(promise, batch, tail_ms)
    return load.latency_ms, load.rate_rps(batch, mean_ms)


def judge(problem: JointProblem, kind: int, variants: Sequence[int], shares_pct: Sequence[int]) -> Pattern | None:
    """The pattern of these members with the best batches; None when a rule, a promise, memory or power forbids it."""
    pairs = sorted(zip(variants, shares_pct, strict=True))
    members, shares = tuple(item for item, _ in pairs), tuple(share for _, share in pairs)
    pool = problem.pools[int(problem.kind_pool[kind])]
    if not _lawful(problem, kind, members, shares):
        return None
    table = int(problem.kind_table[kind])
    factor = slowdown(problem, table, members, shares)
    rates, latencies = [], []
    for variant, share, slow in zip(members, shares, factor, strict=True):
        mean = at_share(problem, problem.mean_ms[table, variant], share) * slow
        same = problem.tail_ms is problem.mean_ms
        tail = mean if same else at_share(problem, problem.tail_ms[table, variant], share) * slow
        latency, rate = serve(problem, variant, mean, tail)
        latencies.append(latency)
        rates.append(rate)
    columns = _batches(problem, table, members, rates, pool.memory_mib)
    if columns is None:
        return None
    power = tuple(
        float(watts_at_share(problem, problem.power_w[table, variant], share)[column])
        for variant, share, column in zip(members, shares, columns, strict=True)
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
        latency_ms=tuple(float(item[column]) for item, column in zip(latencies, columns, strict=True)),
        capacity_rps=tuple(float(item[column]) for item, column in zip(rates, columns, strict=True)),
        power_w=power,
        memory_mib=tuple(
            float(problem.memory_mib[table, variant, column]) for variant, column in zip(members, columns, strict=True)
        ),
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
    columns = [int(np.argmax(rate)) for rate in rates]
    if any(rate[column] <= 0 for rate, column in zip(rates, columns, strict=True)):
        return None
    needs = [problem.memory_mib[table, variant] for variant in members]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What stands now, seen as patterns: to keep one saves its launches."""

    pattern: Pattern
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Duals at the best bound, $/h."""

    demand_usd: Floats
    """By workload: for its whole rate."""
    pool_usd: Floats
    """By pool: what one more device would save (0 or more)."""
    cap_usd: Floats
    """By power cap: what one more watt would save."""
    quota_usd: Floats
    """By quota: what one more GPU would save."""
    most_usd: Floats
    """By workload: what one more replica allowed would save."""
    fewest_usd: Floats
    """By workload: what one replica fewer asked for would save."""
    budget_usd: Floats
    """By workload: what $1/h more of budget would save."""
    worth_usd: Floats | None = None
    """By pool: what no pattern is worth above its device's price at these; None where nobody looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Patterns with how many devices carry each; counts are at least 1."""

    patterns: tuple[Pattern, ...]
    counts: tuple[int, ...]
    bound_usd_per_h: float | None = None
    """Proven lower bound on the cost of any layout that leaves no more unserved (unserved demand priced in)."""
    prices: Prices | None = None
    columns: tuple[Pattern, ...] = ()
    """Patterns that the next solve had better begin with, beside those in use."""
    facts: dict[str, float] = field(default_factory=dict)
    """Columns, rounds, seconds by phase."""

    @property
    def usd_per_h(self) -> float:
        """Cost of all devices in use."""
        return float(sum(item.usd_per_h * count for item, count in zip(self.patterns, self.counts, strict=True)))

    def served_rps(self, problem: JointProblem) -> Floats:
        total = np.zeros(len(problem.workloads))
        for item, count in zip(self.patterns, self.counts, strict=True):
            for variant, capacity in zip(item.variants, item.capacity_rps, strict=True):
                total[problem.variants[variant].workload] += count * capacity
        return total

    def devices(self, problem: JointProblem) -> Floats:
        total = np.zeros(len(problem.pools))
        for item, count in zip(self.patterns, self.counts, strict=True):
            total[int(problem.kind_pool[item.kind])] += count
        return total

    def missing(self, problem: JointProblem) -> Floats:
        """Part of each rate that is not served."""
        wanted = problem.rate_rps > 0
        missing = np.zeros(len(wanted))
        missing[wanted] = np.maximum(0.0, 1 - self.served_rps(problem)[wanted] / problem.rate_rps[wanted])
        return np.where(missing > SHORT, missing, 0.0)

    def fewer(self, problem: JointProblem) -> Floats:
        """Part of each workload's least replicas that is not there, those for its failure domains beside."""
        size = [len(item.variants) for item in self.patterns]
        variant = np.array([each for item in self.patterns for each in item.variants], dtype=np.int64)
        kind = np.repeat(np.array([item.kind for item in self.patterns], dtype=np.int64), size)
        count, floors = np.repeat(np.array(self.counts, dtype=np.int64), size), problem.floors
        there = floors.counted(problem.variant_workload[variant], problem.kind_pool[kind], count)
        missing = floors.weight * np.maximum(0.0, floors.least - there) / floors.least
        return np.bincount(floors.workload, weights=missing, minlength=len(problem.workloads)).astype(np.float64)

    def value(self, problem: JointProblem) -> float:
        """Cost with unserved demand priced in."""
        return self.usd_per_h + float(problem.unserved_usd @ self.missing(problem))

    def judged_usd(self, problem: JointProblem) -> float:
        """What layouts are compared by: their value, the price of the least replicas that are missing, and for every
        workload that is short of what must be served, however little, more than another device would cost.
        """
        least = np.array([work.rate_least_rps for work in problem.workloads])
        short = self.served_rps(problem) < least * (1 - SHORT_OF_LEAST)
        fewer_usd = float(problem.unserved_usd @ self.fewer(problem))
        return self.value(problem) + fewer_usd + CHARGE_DEVICES * problem.dearest_usd * float(short.sum())

    def and_also(self, other: Layout) -> Layout:
        counts: Counter[Pattern] = Counter(dict(zip(self.patterns, self.counts, strict=True)))
        for pattern, count in zip(other.patterns, other.counts, strict=True):
            counts[pattern] += count
        return Layout(patterns=tuple(counts), counts=tuple(counts.values()))
