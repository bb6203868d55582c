"""Many patterns judged at once: the same last word as `patterns.judge`, for whole tables of devices.

Owns the padded arrays (pattern x place, -1 where nobody stands) and the judgement over them, so that packing, trimming
and repairing can afford to look at thousands of devices. It refuses to search, and to be kinder or stricter than
`judge`: a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.problems.joint import Flags, Floats, JointProblem, Whole
from solvers.problems.patterns import TOLERANCE, Pattern, between
from solvers.problems.promise import UTILISATION_MIN

_FAR = 1 << 40
"""Sorts empty places behind everybody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Devices' contents, one row each: kind, and members from the left in the order of (variant, share)."""

    kind: Whole
    variants: Whole
    """Row x place; -1 for nobody."""
    shares_pct: Whole
    """Row x place; 0 for nobody."""

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, rows: Whole) -> Rows:
        """Some rows, in the order asked for."""
        return Rows(kind=self.kind[rows], variants=self.variants[rows], shares_pct=self.shares_pct[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """What `judge` would say of each row; values of rows that are not `lawful` mean nothing."""

    rows: Rows
    lawful: Flags
    column: Whole
    """Row x place: which of the problem's batches."""
    latency_ms: Floats
    capacity_rps: Floats
    """Row x place; 0 for nobody."""
    power_w: Floats
    memory_mib: Floats
    usd_per_h: Floats
    draw_w: Floats

    def take(self, rows: Whole) -> Verdicts:
        """Some rows, in the order asked for."""
        return Verdicts(
            rows=self.rows.take(rows),
            lawful=self.lawful[rows],
            column=self.column[rows],
            latency_ms=self.latency_ms[rows],
            capacity_rps=self.capacity_rps[rows],
            power_w=self.power_w[rows],
            memory_mib=self.memory_mib[rows],
            usd_per_h=self.usd_per_h[rows],
            draw_w=self.draw_w[rows],
        )


def rows_of(patterns: tuple[Pattern, ...] | list[Pattern], width: int) -> Rows:
    """Patterns as rows of `width` places."""
    variants = np.full((len(patterns), width), -1, dtype=np.int64)
    shares = np.zeros((len(patterns), width), dtype=np.int64)
    for row, item in enumerate(patterns):
        variants[row, : len(item.variants)] = item.variants
        shares[row, : len(item.variants)] = item.shares_pct
    return Rows(kind=np.array([item.kind for item in patterns], dtype=np.int64), variants=variants, shares_pct=shares)


def ordered(rows: Rows) -> Rows:
    """Members moved to the left, in the order of (variant, share)."""
    nobody = (rows.variants < 0) | (rows.shares_pct <= 0)
    key = np.where(nobody, _FAR, rows.variants * 1000 + rows.shares_pct)
    order = np.argsort(key, axis=1, kind="stable")
    return Rows(
        kind=rows.kind,
        variants=np.take_along_axis(np.where(nobody, -1, rows.variants), order, axis=1),
        shares_pct=np.take_along_axis(np.where(nobody, 0, rows.shares_pct), order, axis=1),
    )


class Books:
    """A problem's numbers laid out for judging many rows; build once, ask often."""

    def __init__(self, problem: JointProblem) -> None:
        work, pools = problem.workloads, problem.pools
        self.problem = problem
        self.width = max((pool.clients for pool in pools), default=1)
        self.workload = problem.variant_workload
        self.limit_ms = np.array([item.limit_ms for item in work], dtype=np.float64)
        self.burst = np.array([item.burst if item.end_to_end else 0.0 for item in work], dtype=np.float64)
        self.end_to_end = np.array([item.end_to_end for item in work], dtype=bool)
        self.utilisation_max = np.array([item.utilisation_max for item in work], dtype=np.float64)
        self.per_device_max = np.array([item.per_device_max for item in work], dtype=np.int64)
        self.dedicated = np.array([item.dedicated for item in work], dtype=bool)
        self.clients = np.array([item.clients for item in pools], dtype=np.int64)
        self.room_mib = np.array([item.memory_mib for item in pools], dtype=np.float64)
        self.idle_w = np.array([item.idle_w for item in pools], dtype=np.float64)
        self.limit_w = np.array([item.limit_w for item in pools], dtype=np.float64)
        self.most_w = np.array([item.limit_w if item.capped else np.inf for item in pools], dtype=np.float64)
        self.usd_per_h = np.array([item.usd_per_h for item in pools], dtype=np.float64)
        foes = [number * len(work) + other for number, item in enumerate(work) for other in item.avoids]
        self._foes = np.array(sorted(foes), dtype=np.int64)

    def judge_many(self, rows: Rows) -> Verdicts:
        """`judge` of every row. Members may stand in any place; the verdict's rows are in order."""
        rows = ordered(rows)
        stands = rows.variants >= 0
        return self._verdicts(rows, self._slowdown(rows, stands, np.where(stands, rows.variants, 0)))

    def slowed(self, rows: Rows, factor: Floats) -> Verdicts:
        """As `judge_many`, of rows in order, with the slowdown of each member given instead of found."""
        return self._verdicts(rows, factor)

    def _verdicts(self, rows: Rows, factor: Floats) -> Verdicts:
        stands = rows.variants >= 0
        variants = np.where(stands, rows.variants, 0)
        table = self.problem.kind_table[rows.kind][:, None]
        lawful = self._lawful(rows, stands, variants)
        slow = factor[:, :, None]
        problem = self.problem
        where = self._grid(rows.shares_pct)
        mean = _latency(problem.mean_ms, table, variants, where) * slow
        tail = mean if problem.tail_ms is problem.mean_ms else _latency(problem.tail_ms, table, variants, where) * slow
        latency, rate = self._serve(variants, mean, tail)
        memory = problem.memory_mib[table, variants]
        column = np.argmax(rate, axis=2)
        lawful &= np.all((_at(rate, column) > 0) | ~stands, axis=1)
        self._shrink(rows, stands, _Choice(rate, memory, column), lawful)
        power = np.where(stands, _at(_watts(problem.power_w, table, variants, where), column), 0.0)
        pool = problem.kind_pool[rows.kind]
        draw = self.idle_w[pool] + power.sum(axis=1)
        lawful &= draw <= self.most_w[pool] + TOLERANCE
        draw = np.minimum(self.limit_w[pool], draw)
        return Verdicts(
            rows=rows,
            lawful=lawful,
            column=column,
            latency_ms=np.where(stands, _at(latency, column), 0.0),
            capacity_rps=np.where(stands, _at(rate, column), 0.0),
            power_w=power,
            memory_mib=np.where(stands, _at(memory, column), 0.0),
            usd_per_h=self.price(rows, draw),
            draw_w=draw,
        )

    def price(self, rows: Rows, draw_w: Floats) -> Floats:
        """Of devices with these contents, $/h."""
        if self.problem.by_replica:
            return np.asarray(self.problem.held_usd(rows.kind[:, None], rows.variants, rows.shares_pct).sum(axis=1))
        pool = self.problem.kind_pool[rows.kind]
        return np.asarray(self.usd_per_h[pool] + self.problem.usd_per_wh * draw_w)

    def patterns(self, verdicts: Verdicts) -> list[Pattern]:
        """Lawful rows as patterns."""
        batches = self.problem.batches
        out = []
        for row in range(len(verdicts.rows)):
            size = int(np.count_nonzero(verdicts.rows.variants[row] >= 0))
            out.append(
                Pattern(
                    kind=int(verdicts.rows.kind[row]),
                    variants=tuple(verdicts.rows.variants[row, :size].tolist()),
                    shares_pct=tuple(verdicts.rows.shares_pct[row, :size].tolist()),
                    batches=tuple(batches[verdicts.column[row, :size]].tolist()),
                    latency_ms=tuple(verdicts.latency_ms[row, :size].tolist()),
                    capacity_rps=tuple(verdicts.capacity_rps[row, :size].tolist()),
                    power_w=tuple(verdicts.power_w[row, :size].tolist()),
                    memory_mib=tuple(verdicts.memory_mib[row, :size].tolist()),
                    usd_per_h=float(verdicts.usd_per_h[row]),
                    draw_w=float(verdicts.draw_w[row]),
                )
            )
        return out

    def _lawful(self, rows: Rows, stands: Flags, variants: Whole) -> Flags:
        pool = self.problem.kind_pool[rows.kind]
        count = stands.sum(axis=1)
        fit = (rows.shares_pct.sum(axis=1) <= 100) & (count <= self.clients[pool])
        fit &= np.all(self.problem.allowed[pool[:, None], variants] | ~stands, axis=1)
        work = np.where(stands, self.workload[variants], -1)
        times = ((work[:, :, None] == work[:, None, :]) & stands[:, None, :]).sum(axis=2)
        fit &= np.all((times <= self.per_device_max[work]) | ~stands, axis=1)
        fit &= ~((count > 1) & np.any(self.dedicated[work] & stands, axis=1))
        if len(self._foes):
            pairs = work[:, :, None] * len(self.dedicated) + work[:, None, :]
            both = stands[:, :, None] & stands[:, None, :]
            fit &= ~np.any(np.isin(pairs, self._foes) & both, axis=(1, 2))
        return np.asarray(fit)

    def _slowdown(self, rows: Rows, stands: Flags, variants: Whole) -> Floats:
        table = self.problem.kind_table[rows.kind][:, None]
        share = rows.shares_pct / 100
        presses = self.problem.pressure[table, variants] * share ** self.problem.exponent[table, variants]
        presses = np.where(stands, presses, 0.0)
        others = presses.sum(axis=1, keepdims=True) - presses
        factor = self.problem.crowd[table, variants] * (1 + self.problem.sensitivity[table, variants] * others)
        return np.asarray(np.where(stands.sum(axis=1, keepdims=True) < 2, 1.0, factor))

    def _grid(self, shares_pct: Whole) -> tuple[Whole, Whole, Floats]:
        """Places on the grid below and above each share and the weight of the upper; -1 below the lowest."""
        grid = self.problem.shares_pct
        above = np.searchsorted(grid, shares_pct)
        upper = np.minimum(above, len(grid) - 1)
        exact = (above >= len(grid)) | (grid[upper] == shares_pct)
        lower = np.where(exact, upper, above - 1)
        span = np.maximum(grid[upper] - grid[lower], 1)
        return lower, upper, np.where(exact, 0.0, (shares_pct - grid[lower]) / span)

    def _serve(self, variants: Whole, mean: Floats, tail: Floats) -> tuple[Floats, Floats]:
        """`patterns.serve` over row x place x batch."""
        work = self.workload[variants][:, :, None]
        batch = self.problem.batches.astype(np.float64)
        limit, burst, most = self.limit_ms[work], self.burst[work], self.utilisation_max[work]
        queues = self.end_to_end[work]
        with np.errstate(divide="ignore", invalid="ignore"):
            spare = 2 * batch * np.maximum(limit / tail - 2, 0.0)
            bearable = np.where(burst > 0, spare / (burst + spare), most)
            bearable = np.maximum(np.minimum(most, bearable), UTILISATION_MIN)
            busy = np.where(queues & np.isfinite(limit), bearable, most)
            waits = np.where(queues, 1 + burst * busy / (2 * (1 - busy) * batch), 0.0)
            latency = tail * (1 + waits)
            keeps = np.isfinite(mean) & (latency <= limit * (1 + TOLERANCE))
            rate = np.where(keeps, busy * 1000 * batch / mean, 0.0)
        return latency, rate

    def _shrink(self, rows: Rows, stands: Flags, choice: _Choice, lawful: Flags) -> None:
        """Where memory lacks, the member that loses least of its rate per MiB takes a smaller batch; in place."""
        room = self.room_mib[self.problem.kind_pool[rows.kind]] + TOLERANCE
        batches = np.arange(choice.rate.shape[2])
        while True:
            held = _at(choice.memory, choice.column)
            over = np.flatnonzero(lawful & (np.where(stands, held, 0.0).sum(axis=1) > room))
            if not len(over):
                return
            column = choice.column[over]
            rate = choice.rate[over]
            saved = held[over][:, :, None] - choice.memory[over]
            now = _at(rate, column)[:, :, None]
            able = (batches < column[:, :, None]) & (rate > 0) & (saved > 0) & stands[over][:, :, None]
            loss = np.full(rate.shape, np.inf)
            np.divide(1 - rate / np.where(now > 0, now, 1.0), saved, out=loss, where=able)
            flat = loss.reshape(len(over), -1)
            best = np.argmin(flat, axis=1)
            stuck = ~np.isfinite(flat[np.arange(len(over)), best])
            lawful[over[stuck]] = False
            rest, place = over[~stuck], best[~stuck]
            choice.column[rest, place // len(batches)] = place % len(batches)


@dataclass(frozen=True, slots=True)
class _Choice:
    """Row x place x batch: rate and memory; row x place: the batch chosen, which `_shrink` lowers."""

    rate: Floats
    memory: Floats
    column: Whole


def _at(cells: Floats, column: Whole) -> Floats:
    """Of row x place x batch, at one batch for every row and place."""
    rows, places, batches = cells.shape
    flat = cells.reshape(rows * places, batches)
    return np.asarray(flat[np.arange(rows * places), column.ravel()].reshape(rows, places))


def _latency(values: Floats, table: Whole, variants: Whole, where: tuple[Whole, Whole, Floats]) -> Floats:
    """Row x place x batch at shares between the grid's."""
    low, high, part, inside = _neighbours(values, table, variants, where)
    low[inside] = between(low[inside], high, part)
    return low


def _watts(values: Floats, table: Whole, variants: Whole, where: tuple[Whole, Whole, Floats]) -> Floats:
    """Likewise, on the chord."""
    low, high, part, inside = _neighbours(values, table, variants, where)
    with np.errstate(invalid="ignore"):
        low[inside] = (1 - part) * low[inside] + part * high
    return low


def _neighbours(
    values: Floats, table: Whole, variants: Whole, where: tuple[Whole, Whole, Floats]
) -> tuple[Floats, Floats, Floats, tuple[Whole, ...]]:
    """Values at the lower shares of all, at the upper ones of those in between, their weights and places."""
    lower, upper, weight = where
    low = values[table, variants, np.maximum(lower, 0)]
    low[lower < 0] = np.inf
    inside = np.nonzero(weight > 0)
    tables = np.broadcast_to(table, variants.shape)[inside]
    return low, values[tables, variants[inside], upper[inside]], weight[inside][:, None], inside
