"""Patterns: what stands on one device; and layouts: how many devices carry which pattern.

`planners.joint.solve.judge` judges patterns: the pressure of all members on each, the best batch of each that keeps its
promise within the memory, and what the device then serves, draws and costs. A layout is the answer to a joint problem:
the value between the solver, which knows pools, and the seating of patterns on named devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from solvers.domain.arrays import Flags, Floats, Parallel, Whole
from solvers.problems.joint import JointProblem, Workload
from solvers.problems.promise import Promises, bearable

_EMPTY_LAST = 1 << 40
"""Sorts empty places behind members."""
SHORT = 1e-9
SHORT_OF_LEAST = 1e-6
CHARGE_DEVICES = 2.0
DROPPED_MAX = 2
"""Members that go from a device that keeps others, where there are many."""
SUBSETS_MAX = 16


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Patterns(Parallel):
    """Contents of devices, one row each."""

    kind: Whole
    variants: Whole
    """Row x place; -1 where nothing stands."""
    shares_pct: Whole
    """Row x place; 0 where nothing stands."""

    @property
    def keys(self) -> Whole:
        """A row of numbers for each: equal for equal patterns."""
        return np.hstack([self.kind[:, None], self.variants, self.shares_pct])

    def narrowed(self, width: int) -> Patterns:
        """With so many places; nothing may stand beyond."""
        return replace(self, variants=self.variants[:, :width], shares_pct=self.shares_pct[:, :width])

    def widened(self, width: int) -> Patterns:
        """With empty places behind, so many in all."""
        more = ((0, 0), (0, width - self.variants.shape[1]))
        variants = np.pad(self.variants, more, constant_values=-1)
        return replace(self, variants=variants, shares_pct=np.pad(self.shares_pct, more))

    @staticmethod
    def none(width: int) -> Patterns:
        empty = np.zeros((0, width), dtype=np.int64)
        return Patterns(kind=np.zeros(0, dtype=np.int64), variants=empty, shares_pct=empty)

    @staticmethod
    def of(patterns: Sequence[Pattern], width: int) -> Patterns:
        """Patterns as rows of `width` places."""
        members = [[*zip(item.variants, item.shares_pct, strict=True)] for item in patterns]
        return Patterns.listed([item.kind for item in patterns], members, width)

    @staticmethod
    def listed(kinds: Sequence[int], members: Sequence[Sequence[tuple[int, int]]], width: int) -> Patterns:
        """Of each kind variants with their shares; at least one."""
        made = np.zeros((len(members), width, 2), dtype=np.int64)
        made[:, :, 0] = -1
        for row, listed in enumerate(members):
            made[row, : len(listed)] = listed
        return Patterns(kind=np.array(kinds, dtype=np.int64), variants=made[:, :, 0], shares_pct=made[:, :, 1])

    @staticmethod
    def singles(kinds: Whole, variants: Whole, shares_pct: Whole) -> Patterns:
        """One replica alone on a device: every variant with every share on every kind."""
        every = np.meshgrid(kinds, variants, shares_pct, indexing="ij")
        kind, variant, share = (item.ravel() for item in every)
        return Patterns(kind=kind, variants=variant[:, None], shares_pct=share[:, None])

    @staticmethod
    def crossed(kinds: Sequence[int], groups: Whole, partings: Whole, beside: Patterns | None = None) -> Patterns:
        """On every kind every group of variants in every parting of the shares, beside one row of others, if any."""
        variants = np.tile(np.repeat(groups, len(partings), axis=0), (len(kinds), 1))
        shares_pct = np.tile(partings, (len(kinds) * len(groups), 1))
        if beside is not None:
            variants = np.hstack([np.tile(beside.variants, (len(variants), 1)), variants])
            shares_pct = np.hstack([np.tile(beside.shares_pct, (len(shares_pct), 1)), shares_pct])
        kind = np.repeat(np.array(kinds, dtype=np.int64), len(groups) * len(partings))
        return Patterns(kind=kind, variants=variants, shares_pct=shares_pct)

    def parts(self) -> Iterator[Patterns]:
        """Of one row all of it, and what is left without some of its members."""
        members = np.flatnonzero(self.variants[0] >= 0).tolist()
        sizes = range(len(members)) if 2 ** len(members) <= SUBSETS_MAX else range(DROPPED_MAX + 1)
        for size in sizes:
            for gone in combinations(members, size):
                variants, shares = self.variants.copy(), self.shares_pct.copy()
                variants[:, list(gone)], shares[:, list(gone)] = -1, 0
                yield ordered(Patterns(kind=self.kind, variants=variants, shares_pct=shares))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged(Parallel):
    """What each row of contents does; values of rows that are not `lawful` mean nothing."""

    rows: Patterns
    lawful: Flags
    column: Whole
    """Row x place: which of the problem's batches."""
    latency_ms: Floats
    capacity_rps: Floats
    """Row x place: what is granted; 0 where nothing stands."""
    full_rps: Floats
    """Row x place: what full batches, one after the other, carry."""
    power_w: Floats
    memory_mib: Floats
    usd_per_h: Floats
    draw_w: Floats

    def served_rps(self, problem: JointProblem, counts: Whole) -> Floats:
        """By workload, of so many devices of each row."""
        at, place = np.nonzero(self.rows.variants >= 0)
        rates = self.capacity_rps[at, place] * counts[at]
        work = problem.variant_workload[self.rows.variants[at, place]]
        return np.bincount(work, weights=rates, minlength=len(problem.workloads)).astype(np.float64)

    def by_workload(self, problem: JointProblem, values: Floats | Whole | Flags) -> Floats:
        """Row x workload: the sum over its members of these values, which are row x place."""
        at, place = np.nonzero(self.rows.variants >= 0)
        found = np.zeros((len(self), len(problem.workloads)))
        np.add.at(found, (at, problem.variant_workload[self.rows.variants[at, place]]), values[at, place])
        return found


def ordered(rows: Patterns) -> Patterns:
    """Members moved to the left, in the order of (variant, share)."""
    empty = (rows.variants < 0) | (rows.shares_pct <= 0)
    key = np.where(empty, _EMPTY_LAST, rows.variants * 1000 + rows.shares_pct)
    order = np.argsort(key, axis=1, kind="stable")
    return Patterns(
        kind=np.asarray(rows.kind, dtype=np.int64),
        variants=np.take_along_axis(np.where(empty, -1, rows.variants), order, axis=1),
        shares_pct=np.take_along_axis(np.where(empty, 0, rows.shares_pct), order, axis=1),
    )


def between(low_ms: Floats, high_ms: Floats, weight: Floats | float) -> Floats:
    """Latency at a share between two measured ones; `weight` is the upper one's. A larger share brings ever less, so
    the rate is at least the weighted mean of the two rates; `inf` where either cannot run.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        mixed = low_ms * high_ms / ((1 - weight) * high_ms + weight * low_ms)
    mixed = np.where(np.isfinite(low_ms) & np.isfinite(high_ms), mixed, np.inf)
    return np.asarray(np.where(weight <= 0, low_ms, np.where(weight >= 1, high_ms, mixed)))


def promises_of(works: Sequence[Workload]) -> Promises:
    return Promises(
        limit_ms=np.array([work.limit_ms for work in works], dtype=np.float64),
        burst=np.array([work.burst for work in works], dtype=np.float64),
        end_to_end=np.array([work.end_to_end for work in works], dtype=np.bool_),
        utilisation_max=np.array([work.utilisation_max for work in works], dtype=np.float64),
    )


def serve(problem: JointProblem, variants: Whole, mean_ms: Floats, tail_ms: Floats) -> tuple[Floats, Floats]:
    """Latency at the granted rate and the granted rate, row by batch; rate 0 where the promise cannot be kept.
    Latencies already carry every slowdown.
    """
    promises = promises_of(problem.workloads).take(problem.variant_workload[variants])
    batch = problem.batches.astype(np.float64)
    load = bearable(promises, batch, tail_ms)
    return load.latency_ms, load.rate_rps(batch, mean_ms)


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
    before: tuple[Layout, ...] = ()
    """The best ones on the way, worse as layouts: on named devices one of them may be better."""

    @staticmethod
    def of(devices: Mapping[Pattern, int]) -> Layout:
        """So many devices of each."""
        return Layout(patterns=tuple(devices), counts=tuple(devices.values()))

    @property
    def pairs(self) -> Iterator[tuple[Pattern, int]]:
        """Each pattern with its devices."""
        return zip(self.patterns, self.counts, strict=True)

    @property
    def usd_per_h(self) -> float:
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

    def short(self, problem: JointProblem) -> Flags:
        """By workload: whether it has less than must be served."""
        return np.asarray(self.served_rps(problem) < problem.least_rps * (1 - SHORT_OF_LEAST))

    def leaves_short(self, problem: JointProblem) -> bool:
        """Whether any workload has less than must be served, or too few replicas."""
        return bool(self.short(problem).any() or self.fewer(problem).any())

    def value(self, problem: JointProblem) -> float:
        """Cost with unserved demand priced in."""
        return self.usd_per_h + float(problem.unserved_usd @ self.missing(problem))

    def judged_usd(self, problem: JointProblem) -> float:
        """What layouts are compared by: their value, the price of the least replicas that are missing, and for every
        workload that is short of what must be served, however little, more than another device would cost.
        """
        fewer_usd = float(problem.unserved_usd @ self.fewer(problem))
        return self.value(problem) + fewer_usd + CHARGE_DEVICES * problem.dearest_usd * float(self.short(problem).sum())

    def and_also(self, other: Layout) -> Layout:
        counts: Counter[Pattern] = Counter()
        for pattern, count in (*self.pairs, *other.pairs):
            counts[pattern] += count
        return Layout.of(counts)


EMPTY = Layout(patterns=(), counts=())
