"""Patterns by the thousand, judged at once: `patterns.judge` over arrays, row by row to the last batch.

Everything that searches over patterns comes here: pricing and its neighbourhood, packing, trimming, repair, the bound.
Empty places are -1 and 0, and a row's members stand in the order of (variant, share). A test holds this and the scalar
judgement together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Flags, Floats, Parallel, Whole
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import TOLERANCE, Pattern, between, promises_of
from solvers.problems.promise import bearable

_EMPTY_LAST = 1 << 40
"""Sorts empty places behind members."""
_CHUNK = 20_000
"""Rows judged at a time, for the sake of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patterns(Parallel):
    """Contents of devices, one row each."""

    kind: Whole
    variants: Whole
    """Row x place; -1 where nothing stands."""
    shares_pct: Whole
    """Row x place; 0 where nothing stands."""

    def of_kind(self, kind: int) -> Patterns:
        """The same members on devices of another kind."""
        kinds = np.full(len(self), kind, dtype=np.int64)
        return Patterns(kind=kinds, variants=self.variants, shares_pct=self.shares_pct)

    @property
    def keys(self) -> Whole:
        """A row of numbers for each: equal for equal patterns."""
        return np.hstack([self.kind[:, None], self.variants, self.shares_pct])

    @staticmethod
    def none(width: int) -> Patterns:
        """No row at all."""
        empty = np.zeros((0, width), dtype=np.int64)
        return Patterns(kind=np.zeros(0, dtype=np.int64), variants=empty, shares_pct=empty)

    @staticmethod
    def of(patterns: Sequence[Pattern], width: int) -> Patterns:
        """Patterns as rows of `width` places."""
        variants = np.full((len(patterns), width), -1, dtype=np.int64)
        shares = np.zeros((len(patterns), width), dtype=np.int64)
        for row, item in enumerate(patterns):
            variants[row, : len(item.variants)] = item.variants
            shares[row, : len(item.variants)] = item.shares_pct
        kind = np.array([item.kind for item in patterns], dtype=np.int64)
        return Patterns(kind=kind, variants=variants, shares_pct=shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged(Parallel):
    """What `patterns.judge` would say of each row; values of rows that are not `lawful` mean nothing."""

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


def members_max(problem: JointProblem) -> int:
    """Most members that any pattern of shares on the grid can have."""
    least = int(problem.shares_pct[0])
    return max(1, min(100 // max(1, least), max((pool.clients for pool in problem.pools), default=1)))


def own_pressure(problem: JointProblem, shares_pct: Whole | Floats) -> Floats:
    """What a replica presses: table x variant x share."""
    share = np.asarray(shares_pct, dtype=np.float64) / 100
    return np.asarray(problem.pressure[:, :, None] * share[None, None, :] ** problem.exponent[:, :, None])


def pressure_most(problem: JointProblem, width: int) -> float:
    """The highest that so many members of a full device can press together, shares being equal."""
    if width < 2 or not len(problem.variants):
        return 0.0
    even = own_pressure(problem, np.array([100.0 / count for count in range(2, width + 1)]))
    return float((even.max(axis=1) * np.arange(2, width + 1)[None, :]).max())


@dataclass(frozen=True, slots=True, kw_only=True)
class AtShares:
    """Replicas alone on a device, without slowdown: variant x share x batch."""

    mean_ms: Floats
    tail_ms: Floats
    power_w: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """Row x place x batch."""

    latency_ms: Floats
    mean_ms: Floats
    rate_rps: Floats
    """What is granted; 0 where the promise cannot be kept."""
    choice: Floats
    """What batches are chosen by: the most of it."""
    memory_mib: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _OnGrid:
    """Row x place: neighbours on the grid of shares, and the weight of the upper one; `lower` -1 below the lowest."""

    lower: Whole
    upper: Whole
    weight: Floats


class Judge:
    """A problem's numbers laid out for judging many rows; build once, ask often. `eager`: batches are chosen by what
    they carry when full instead of by what is granted.
    """

    def __init__(self, problem: JointProblem, *, eager: bool = False) -> None:
        work, pools = problem.workloads, problem.pools
        self.problem, self.eager = problem, eager
        self.width = max((pool.clients for pool in pools), default=1)
        self.workload = problem.variant_workload
        self.per_device_max = np.array([item.per_device_max for item in work], dtype=np.int64)
        self.dedicated = np.array([item.dedicated for item in work], dtype=bool)
        self.clients = np.array([item.clients for item in pools], dtype=np.int64)
        self.room_mib = np.array([item.memory_mib for item in pools], dtype=np.float64)
        self.idle_w = np.array([item.idle_w for item in pools], dtype=np.float64)
        self.limit_w = np.array([item.limit_w for item in pools], dtype=np.float64)
        self.usd_per_h = np.array([item.usd_per_h for item in pools], dtype=np.float64)
        self._draw_max_w = np.array([item.limit_w if item.capped else np.inf for item in pools], dtype=np.float64)
        self._promises = promises_of([work[number] for number in self.workload.tolist()])
        conflicts = [number * len(work) + other for number, item in enumerate(work) for other in item.avoids]
        self._conflicts = np.array(sorted(conflicts), dtype=np.int64)

    def judge(self, rows: Patterns) -> Judged:
        """Judge every row. Members may stand in any place; the answer's rows are in order. A device without members
        is lawful.
        """
        starts = range(0, max(1, len(rows)), _CHUNK)
        return Judged.chained([self._alike(ordered(rows.take(np.s_[at : at + _CHUNK]))) for at in starts])

    def devices(self, rows: Patterns, counts: Whole) -> tuple[Judged, Whole]:
        """Judge so many devices of each row, leave out what is unlawful or empty, and put equal patterns together."""
        judged = self.judge(rows)
        kept = np.flatnonzero(judged.lawful & (counts > 0) & (judged.rows.variants[:, 0] >= 0))
        keys = judged.rows.take(kept).keys
        _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        total = np.bincount(inverse.ravel(), weights=counts[kept], minlength=len(first))
        return judged.take(kept[first]), total.astype(np.int64)

    def judge_slowed(self, rows: Patterns, factor: Floats) -> Judged:
        """As `judge`, of rows in order, with the slowdown of each member given instead of found."""
        stands = rows.variants >= 0
        variants = np.where(stands, rows.variants, 0)
        table = self.problem.kind_table[rows.kind][:, None]
        grid = self._on_grid(rows.shares_pct)
        served = self._served(variants, table, grid, factor)
        column = np.argmax(served.choice, axis=2)
        lawful = self._rules_kept(rows, stands, variants)
        lawful &= np.all((_at(served.choice, column) > 0) | ~stands, axis=1)
        room = self.room_mib[self.problem.kind_pool[rows.kind]] + TOLERANCE
        _fit_memory(served, np.where(stands[:, :, None], served.memory_mib, 0.0), room, column, lawful)
        power = np.where(stands, _at(_watts(self.problem.power_w, table, variants, grid), column), 0.0)
        pool = self.problem.kind_pool[rows.kind]
        draw = self.idle_w[pool] + power.sum(axis=1)
        lawful &= draw <= self._draw_max_w[pool] + TOLERANCE
        draw = np.minimum(self.limit_w[pool], draw)
        rate = np.where(stands, _at(served.rate_rps, column), 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            full = np.where(rate > 0, 1000 * self.problem.batches[column] / _at(served.mean_ms, column), 0.0)
        return Judged(
            rows=rows,
            lawful=lawful,
            column=column,
            latency_ms=np.where(stands, _at(served.latency_ms, column), 0.0),
            capacity_rps=rate,
            full_rps=full,
            power_w=power,
            memory_mib=np.where(stands, _at(served.memory_mib, column), 0.0),
            usd_per_h=self.price(rows, draw),
            draw_w=draw,
        )

    def price(self, rows: Patterns, draw_w: Floats) -> Floats:
        """Of devices with these contents, $/h."""
        if self.problem.by_replica:
            return np.asarray(self.problem.held_usd(rows.kind[:, None], rows.variants, rows.shares_pct).sum(axis=1))
        pool = self.problem.kind_pool[rows.kind]
        return np.asarray(self.usd_per_h[pool] + self.problem.usd_per_wh * draw_w)

    def rates(self, variants: Whole, mean_ms: Floats, tail_ms: Floats, batch: Floats | None = None) -> Floats:
        """What is granted to replicas that take so long, over arrays that end in a batch axis; `variants` has their
        leading axes. `batch` where these are not the problem's batches.
        """
        batch = self.problem.batches.astype(np.float64) if batch is None else batch
        load = bearable(self._promises.take(variants), batch, tail_ms)
        return load.rate_rps(batch, mean_ms)

    def at_shares(self, table: int, variants: Whole, shares_pct: Whole) -> AtShares:
        """Every variant at every share, on the grid or between."""
        problem = self.problem
        tables, names = np.full((len(variants), 1), table), np.repeat(variants[:, None], len(shares_pct), axis=1)
        grid = self._on_grid(np.broadcast_to(shares_pct, names.shape))
        mean = _latency(problem.mean_ms, tables, names, grid)
        same = problem.tail_ms is problem.mean_ms
        tail = mean if same else _latency(problem.tail_ms, tables, names, grid)
        return AtShares(mean_ms=mean, tail_ms=tail, power_w=_watts(problem.power_w, tables, names, grid))

    def patterns(self, judged: Judged) -> list[Pattern]:
        """Lawful rows as patterns."""
        batches = self.problem.batches
        out = []
        for row in range(len(judged)):
            size = int(np.count_nonzero(judged.rows.variants[row] >= 0))
            out.append(
                Pattern(
                    kind=int(judged.rows.kind[row]),
                    variants=tuple(judged.rows.variants[row, :size].tolist()),
                    shares_pct=tuple(judged.rows.shares_pct[row, :size].tolist()),
                    batches=tuple(batches[judged.column[row, :size]].tolist()),
                    latency_ms=tuple(judged.latency_ms[row, :size].tolist()),
                    capacity_rps=tuple(judged.capacity_rps[row, :size].tolist()),
                    power_w=tuple(judged.power_w[row, :size].tolist()),
                    memory_mib=tuple(judged.memory_mib[row, :size].tolist()),
                    usd_per_h=float(judged.usd_per_h[row]),
                    draw_w=float(judged.draw_w[row]),
                )
            )
        return out

    def _alike(self, rows: Patterns) -> Judged:
        return self.judge_slowed(rows, self._slowdown(rows))

    def _slowdown(self, rows: Patterns) -> Floats:
        stands = rows.variants >= 0
        variants = np.where(stands, rows.variants, 0)
        table = self.problem.kind_table[rows.kind][:, None]
        share = rows.shares_pct / 100
        presses = self.problem.pressure[table, variants] * share ** self.problem.exponent[table, variants]
        presses = np.where(stands, presses, 0.0)
        others = presses.sum(axis=1, keepdims=True) - presses
        factor = self.problem.crowd[table, variants] * (1 + self.problem.sensitivity[table, variants] * others)
        return np.asarray(np.where(stands.sum(axis=1, keepdims=True) < 2, 1.0, factor))

    def _served(self, variants: Whole, table: Whole, grid: _OnGrid, factor: Floats) -> _Served:
        problem, slow = self.problem, factor[:, :, None]
        mean = _latency(problem.mean_ms, table, variants, grid) * slow
        tail = mean if problem.tail_ms is problem.mean_ms else _latency(problem.tail_ms, table, variants, grid) * slow
        batch = problem.batches.astype(np.float64)
        load = bearable(self._promises.take(variants), batch, tail)
        rate = load.rate_rps(batch, mean)
        choice = rate
        if self.eager:
            with np.errstate(divide="ignore", invalid="ignore"):
                choice = np.where(rate > 0, 1000 * problem.batches / mean, 0.0)
        return _Served(
            latency_ms=load.latency_ms,
            mean_ms=mean,
            rate_rps=rate,
            choice=choice,
            memory_mib=problem.memory_mib[table, variants],
        )

    def _rules_kept(self, rows: Patterns, stands: Flags, variants: Whole) -> Flags:
        """Rows that break no rule about what may stand together and where."""
        pool = self.problem.kind_pool[rows.kind]
        count = stands.sum(axis=1)
        fit = (rows.shares_pct.sum(axis=1) <= 100) & (count <= self.clients[pool])
        fit &= np.all(self.problem.allowed[pool[:, None], variants] | ~stands, axis=1)
        work = np.where(stands, self.workload[variants], -1)
        times = ((work[:, :, None] == work[:, None, :]) & stands[:, None, :]).sum(axis=2)
        fit &= np.all((times <= self.per_device_max[work]) | ~stands, axis=1)
        fit &= ~((count > 1) & np.any(self.dedicated[work] & stands, axis=1))
        if len(self._conflicts):
            pairs = work[:, :, None] * len(self.dedicated) + work[:, None, :]
            both = stands[:, :, None] & stands[:, None, :]
            fit &= ~np.any(np.isin(pairs, self._conflicts) & both, axis=(1, 2))
        return np.asarray(fit)

    def _on_grid(self, shares_pct: Whole) -> _OnGrid:
        grid = self.problem.shares_pct
        above = np.searchsorted(grid, shares_pct)
        upper = np.minimum(above, len(grid) - 1)
        exact = (above >= len(grid)) | (grid[upper] == shares_pct)
        lower = np.where(exact, upper, above - 1)
        span = np.maximum(grid[upper] - grid[lower], 1)
        return _OnGrid(lower=lower, upper=upper, weight=np.where(exact, 0.0, (shares_pct - grid[lower]) / span))


def _fit_memory(served: _Served, memory: Floats, room: Floats, column: Whole, lawful: Flags) -> None:
    """Where memory lacks, the member that loses least of its rate per MiB takes a smaller batch; `column` and `lawful`
    are changed in place.
    """
    batches = np.arange(memory.shape[2])
    rows = np.flatnonzero(lawful)
    while len(rows):
        held = np.take_along_axis(memory[rows], column[rows][:, :, None], axis=2)[:, :, 0]
        over = held.sum(axis=1) > room[rows]
        rows, held = rows[over], held[over]
        if not len(rows):
            return
        rate = served.choice[rows]
        now = np.take_along_axis(rate, column[rows][:, :, None], axis=2)
        saved = held[:, :, None] - memory[rows]
        able = (batches < column[rows][:, :, None]) & (rate > 0) & (saved > 0)
        loss = np.full(rate.shape, np.inf)
        np.divide(1 - rate / np.where(now > 0, now, 1.0), saved, out=loss, where=able)
        flat = loss.reshape(len(rows), -1)
        best = np.argmin(flat, axis=1)
        found = np.isfinite(flat[np.arange(len(rows)), best])
        lawful[rows[~found]] = False
        rows, best = rows[found], best[found]
        column[rows, best // len(batches)] = best % len(batches)


def _at(cells: Floats, column: Whole) -> Floats:
    """Of row x place x batch, at one batch for every row and place."""
    rows, places, batches = cells.shape
    flat = cells.reshape(rows * places, batches)
    return np.asarray(flat[np.arange(rows * places), column.ravel()].reshape(rows, places))


def _latency(values: Floats, table: Whole, variants: Whole, grid: _OnGrid) -> Floats:
    """Row x place x batch at shares between the grid's."""
    found, inside = _lower(values, table, variants, grid), np.nonzero(grid.weight > 0)
    upper = _upper(values, table, variants, grid)
    found[inside] = between(found[inside], upper, grid.weight[inside][:, None])
    return found


def _watts(values: Floats, table: Whole, variants: Whole, grid: _OnGrid) -> Floats:
    """Likewise, on the chord."""
    found, inside = _lower(values, table, variants, grid), np.nonzero(grid.weight > 0)
    part = grid.weight[inside][:, None]
    with np.errstate(invalid="ignore"):
        found[inside] = (1 - part) * found[inside] + part * _upper(values, table, variants, grid)
    return found


def _lower(values: Floats, table: Whole, variants: Whole, grid: _OnGrid) -> Floats:
    """Values at the lower shares, of all."""
    low = values[table, variants, np.maximum(grid.lower, 0)]
    low[grid.lower < 0] = np.inf
    return np.asarray(low)


def _upper(values: Floats, table: Whole, variants: Whole, grid: _OnGrid) -> Floats:
    """Values at the upper shares, of those in between."""
    inside = np.nonzero(grid.weight > 0)
    tables = np.broadcast_to(table, variants.shape)[inside]
    return np.asarray(values[tables, variants[inside], grid.upper[inside]])
