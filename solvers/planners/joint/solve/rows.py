"""The master's rows: what patterns together owe to demand, devices, power, quotas, replicas and budgets.

The numbering of the rows, their sides, the entries of a pattern in them, and the reverse: what duals make of one more
replica on a device. A cap that covers only a part of a pool lets the rest of the pool draw what it may, so every row
is a valid relaxation of what seating must keep; seating keeps the rest.

Symbols: y are duals (change of the cost when a side rises by one); pi the duals of demand, one per workload.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.engines.highs import Columns
from solvers.planners.joint.solve.judge import Judged
from solvers.problems.joint import JointProblem

NO_LIMIT = 1_000_000
SERVED = 1e-6
"""Part of a rate below which nothing is missing."""
CUTS = (1, 2, 3, 4, 6)
CUT_EPS = 0.01
CUT_LEAST = 0.01
"""How much of a step must be missing for a cut to be worth a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPrices:
    """What duals make of one replica: its value is pi[workload] x (part of the rate it serves) + replica[workload] -
    watt[pool] x power - share[pool, workload] x share_pct - what its memory is billed, where it is; a pattern is worth
    adding when that exceeds fixed[pool].
    """

    pi: Floats
    replica: Floats
    watt: Floats
    share: Floats
    fixed: Floats
    steps: tuple[tuple[int, Floats], ...] = ()
    """Number k and, by workload, what each started part is worth beside that: see `steps_of`."""


class Rows:
    """Rows of one problem. The first are the demands, one per workload; then pools, caps, and what else there is."""

    def __init__(self, problem: JointProblem, taken: Floats | None = None) -> None:
        """`taken`: what decided devices already owe to every row (see `activity`); the rows are for what is left."""
        self.problem = problem
        works, pools = problem.workloads, problem.pools
        number = len(works)
        left = np.ones(number) if taken is None else np.clip(1 - taken[:number], 0.0, 1.0)
        self.rate = problem.rate_rps * left
        self.wanted = (problem.rate_rps > 0) & (left > SERVED)
        self.unserved_usd = problem.unserved_usd * left
        self.pool_at = number
        self.cap_at = self.pool_at + len(pools)
        self._caps(problem)
        self.quota_at = self.cap_at + len(self.cap_room)
        projects = {name: index for index, (name, _) in enumerate(problem.quotas)}
        self._quota = np.array([projects.get(work.project, -1) for work in works], dtype=np.int64)
        after = self.quota_at + len(projects)
        fewest, most, money = (
            np.array([getattr(work, name) for work in works], dtype=np.float64)
            for name in ("replicas_min", "replicas_max", "budget_usd_per_h")
        )
        self._fewest, after = _numbered(fewest > 0, after)
        self._most, after = _numbered(most < NO_LIMIT, after)
        self._money, after = _numbered(np.isfinite(money), after)
        self.count = self.base = after
        self.cut_work = np.zeros(0, dtype=np.int64)
        self.cut_steps = np.zeros(0, dtype=np.int64)
        self.lower = np.full(after, -np.inf)
        self.upper = np.full(after, np.inf)
        self.lower[:number] = np.where(self.wanted, 1.0, 0.0)
        self.upper[self.pool_at : self.cap_at] = problem.pool_devices
        self.upper[self.cap_at : self.quota_at] = self.cap_room / self.cap_unit
        for name, gpus in problem.quotas:
            self.upper[self.quota_at + projects[name]] = max(0.0, gpus)
        self.lower[self._fewest[self._fewest >= 0]] = fewest[self._fewest >= 0]
        self.upper[self._most[self._most >= 0]] = most[self._most >= 0]
        self.upper[self._money[self._money >= 0]] = money[self._money >= 0]
        if taken is not None:
            after_pools = slice(self.pool_at, None)
            self.upper[after_pools] = np.maximum(0.0, self.upper[after_pools] - taken[after_pools])
            self.lower[after_pools] = np.maximum(0.0, self.lower[after_pools] - taken[after_pools])
        self.floored = self._fewest >= 0
        """Workloads that must have replicas whatever their demand."""
        self._missing_usd = problem.unserved_usd / np.maximum(1.0, fewest)
        self._pool_usd = np.array([pool.usd_per_h for pool in pools], dtype=np.float64)
        self._part = np.array([pool.gpu_part for pool in pools], dtype=np.float64)
        self._idle_w = np.array([pool.idle_w for pool in pools], dtype=np.float64)

    def _caps(self, problem: JointProblem) -> None:
        """Caps that can bind: watts above idle that the pools in them may add, and which pools count."""
        pools = problem.pools
        idle = np.array([pool.idle_w for pool in pools], dtype=np.float64)
        most = np.array([max(0.0, pool.limit_w - pool.idle_w) for pool in pools], dtype=np.float64)
        rooms, members, numbers = [], [], []
        for number, cap in enumerate(problem.caps):
            inside = np.array(cap.devices, dtype=np.float64)
            outside = np.maximum(problem.pool_devices - inside, 0.0)
            room = cap.limit_w - float(inside @ idle)
            if float(np.minimum(inside, problem.pool_devices) @ most) > room:
                rooms.append(max(0.0, room) + float((outside * most)[inside > 0].sum()))
                members.append((inside > 0).astype(np.float64))
                numbers.append(number)
        self.cap_room = np.array(rooms, dtype=np.float64)
        self.cap_pools = np.array(members, dtype=np.float64).reshape(len(rooms), len(pools))
        self.cap_number = np.array(numbers, dtype=np.int64)
        """Which of the problem's caps each is."""
        devices = np.maximum(1.0, self.cap_pools @ problem.pool_devices)
        self.cap_unit = np.maximum(1.0, self.cap_room / devices)

    def slack(self) -> Columns:
        """What may stay undone, at its price: demand, and replicas below the floor. Cuts do not ask for what is not
        served, see `cut`.
        """
        demand = np.flatnonzero(self.wanted)
        floor = np.flatnonzero(self._fewest >= 0)
        row = np.concatenate([demand, self._fewest[floor]])
        return Columns(
            cost=np.concatenate([self.unserved_usd[demand], self._missing_usd[floor]]),
            lower=np.zeros(len(row)),
            upper=np.full(len(row), np.inf),
            start=np.arange(len(row) + 1),
            row=row,
            value=np.ones(len(row)),
        )

    def entries(self, judged: Judged) -> tuple[Whole, Whole, Floats]:
        """Column, row and value of every entry, ordered by column and row, one each."""
        problem, rows = self.problem, judged.rows
        column, place = np.nonzero(rows.variants >= 0)
        work = problem.variant_workload[rows.variants[column, place]]
        pool = problem.kind_pool[rows.kind]
        share = rows.shares_pct[column, place] / 100.0
        every = np.arange(len(rows))
        wanted = self.wanted[work]
        rates = judged.capacity_rps[column, place][wanted] / self.rate[work[wanted]]
        parts = [_summed(column[wanted], work[wanted], rates, self.count, 1.0)]
        parts.append((every, self.pool_at + pool, np.ones(len(rows))))
        dynamic = judged.draw_w - self._idle_w[pool]
        for index, inside in enumerate(self.cap_pools):
            hit = np.flatnonzero(inside[pool] > 0)
            parts.append((hit, np.full(len(hit), self.cap_at + index), dynamic[hit] / self.cap_unit[index]))
        gpus, usd = share * self._part[pool[column]], share * self._pool_usd[pool[column]]
        ones = np.ones(len(column))
        for number, amount in ((self._quota_rows, gpus), (self._money, usd), (self._fewest, ones), (self._most, ones)):
            owing = np.flatnonzero(number[work] >= 0)
            parts.append(_summed(column[owing], number[work[owing]], amount[owing], self.count))
        columns, row, value = (np.concatenate([part[index] for part in parts]) for index in range(3))
        if len(self.cut_work):
            more = self.cut_entries(judged, 0)
            columns, row, value = (
                np.concatenate([old, new]) for old, new in zip((columns, row, value), more, strict=True)
            )
        order = np.lexsort((row, columns))
        return columns[order], row[order], value[order]

    def cut_entries(self, judged: Judged, first: int) -> tuple[Whole, Whole, Floats]:
        """Column, row and value of every entry in the cuts from a number on, in no order."""
        column, place = np.nonzero(judged.rows.variants >= 0)
        work = self.problem.variant_workload[judged.rows.variants[column, place]]
        part = np.minimum(judged.capacity_rps[column, place] / np.maximum(self.rate[work], 1e-12), 1.0)
        parts = []
        for steps in np.unique(self.cut_steps[first:]).tolist():
            row_of = np.full(self.pool_at, -1, dtype=np.int64)
            chosen = first + np.flatnonzero(self.cut_steps[first:] == steps)
            row_of[self.cut_work[chosen]] = self.base + chosen
            owing = np.flatnonzero(row_of[work] >= 0)
            value = steps_of(part[owing], steps)
            parts.append(_summed(column[owing], row_of[work[owing]], value, self.count))
        if not parts:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
        columns, row, value = (np.concatenate([part[index] for part in parts]) for index in range(3))
        return columns, row, value

    def cut(self, work: Whole, steps: Whole) -> None:
        """More rows, one each: k + 1 started parts of 1/(k + eps) must be served, since only whole replicas serve.
        Whatever stays unserved frees from as many as may be missing for it.
        """
        self.cut_work = np.concatenate([self.cut_work, work])
        self.cut_steps = np.concatenate([self.cut_steps, steps])
        self.count += len(work)
        self.lower = np.concatenate([self.lower, steps + 1.0])
        self.upper = np.concatenate([self.upper, np.full(len(work), np.inf)])

    @property
    def _quota_rows(self) -> Whole:
        return np.where(self._quota >= 0, self.quota_at + self._quota, -1)

    def columns(self, judged: Judged) -> Columns:
        """The candidates as columns of the master."""
        column, row, value = self.entries(judged)
        start = np.concatenate([[0], np.cumsum(np.bincount(column, minlength=len(judged)))])
        return Columns(
            cost=judged.usd_per_h,
            lower=np.zeros(len(judged)),
            upper=np.full(len(judged), np.inf),
            start=start.astype(np.int64),
            row=row,
            value=value,
        )

    def activity(self, judged: Judged, counts: Whole) -> Floats:
        """What whole devices owe to every row but cuts; demand as parts of the whole rates, more than 1 where it is."""
        column, row, value = self.entries(judged)
        total = np.bincount(row, weights=value * counts[column], minlength=self.count)
        at, place = np.nonzero(judged.rows.variants >= 0)
        work = self.problem.variant_workload[judged.rows.variants[at, place]]
        served = np.bincount(work, weights=judged.capacity_rps[at, place] * counts[at], minlength=self.pool_at)
        whole = np.maximum(self.problem.rate_rps, 1e-12)
        total[: self.pool_at] = np.where(self.problem.rate_rps > 0, served / whole, 1.0)
        return np.asarray(total[: self.base], dtype=np.float64)

    def reduced(self, columns: Columns, duals: Floats) -> Floats:
        """Reduced cost of columns."""
        column = np.repeat(np.arange(len(columns)), np.diff(columns.start))
        worth = np.bincount(column, weights=columns.value * duals[columns.row], minlength=len(columns))
        return np.asarray(columns.cost - worth)

    def item_prices(self, duals: Floats) -> ItemPrices:
        """What these duals make of one replica."""
        problem = self.problem
        energy = 0.0 if problem.by_replica else problem.usd_per_wh
        caps = duals[self.cap_at : self.quota_at] / self.cap_unit
        watt = energy - caps @ self.cap_pools if len(caps) else np.full(len(problem.pools), energy)
        quota = _at(duals, self._quota_rows)
        money = _at(duals, self._money)
        base = self._pool_usd / 100 if problem.by_share else np.zeros(len(problem.pools))
        share = base[:, None] - np.outer(self._part, quota) / 100 - np.outer(self._pool_usd, money) / 100
        idle = np.array([problem.idle_usd_per_h(pool) for pool in range(len(problem.pools))])
        return ItemPrices(
            pi=np.where(self.wanted, duals[: self.pool_at], 0.0),
            replica=_at(duals, self._fewest) + _at(duals, self._most),
            watt=np.asarray(watt),
            share=share,
            fixed=idle - duals[self.pool_at : self.cap_at],
            steps=self._steps(duals),
        )

    def _steps(self, duals: Floats) -> tuple[tuple[int, Floats], ...]:
        found = []
        for steps in np.unique(self.cut_steps).tolist():
            chosen = np.flatnonzero(self.cut_steps == steps)
            usd = np.zeros(self.pool_at)
            usd[self.cut_work[chosen]] = duals[self.base + chosen]
            if usd.any():
                found.append((steps, usd))
        return tuple(found)

    def of_most(self, duals: Floats) -> Floats:
        """By workload: what one more replica allowed would save."""
        return np.maximum(0.0, -_at(duals, self._most))

    def of_fewest(self, duals: Floats) -> Floats:
        """By workload: what one replica fewer asked for would save."""
        return np.maximum(0.0, _at(duals, self._fewest))

    def of_budget(self, duals: Floats) -> Floats:
        """By workload: what $1/h more of budget would save."""
        return np.maximum(0.0, -_at(duals, self._money))

    def sides(self, duals: Floats) -> float:
        """What the sides of all rows but the pools' are worth at these duals."""
        side = np.where(duals > 0, self.lower, self.upper)
        worth = np.where(duals == 0, 0.0, duals * np.where(np.isfinite(side), side, 0.0))
        worth[self.pool_at : self.cap_at] = 0.0
        return float(worth.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class PartDuals:
    """Rows of a part of a problem with their duals, and which workloads they are about."""

    rows: Rows
    duals: Floats
    workloads: Whole


def gathered(rows: Rows, parts: list[PartDuals]) -> Floats:
    """Duals for a whole problem from those of its parts: a workload's own as they are, those of what all share as the
    mean by devices.
    """
    duals = np.zeros(rows.count)
    devices = np.zeros(len(rows.problem.pools))
    cap_usd = np.zeros(len(rows.problem.caps))
    quotas = slice(rows.quota_at, rows.quota_at + len(rows.problem.quotas))
    total = max(float(sum(item.rows.problem.pool_devices.sum() for item in parts)), 1.0)
    for item in parts:
        part, own, workloads = item.rows, item.duals, item.workloads
        duals[workloads] = own[: part.pool_at]
        for name in ("_fewest", "_most", "_money"):
            there, here = getattr(part, name), getattr(rows, name)[workloads]
            both = (there >= 0) & (here >= 0)
            duals[here[both]] = own[there[both]]
        devices += part.problem.pool_devices
        duals[rows.pool_at : rows.cap_at] += part.problem.pool_devices * own[part.pool_at : part.cap_at]
        weight = float(part.problem.pool_devices.sum()) / total
        cap_usd[part.cap_number] += weight * own[part.cap_at : part.quota_at] / part.cap_unit
        duals[quotas] += weight * own[part.quota_at : part.quota_at + len(rows.problem.quotas)]
    duals[rows.pool_at : rows.cap_at] /= np.maximum(devices, 1.0)
    duals[rows.cap_at : rows.quota_at] = cap_usd[rows.cap_number] * rows.cap_unit
    return duals


def steps_of(part: Floats, steps: int) -> Floats:
    """Started parts of 1/(steps + eps) in some parts of a rate."""
    return np.asarray(np.ceil(part * (steps + CUT_EPS) - 1e-9))


def cut_slack(steps: Whole) -> Floats:
    """What a whole unserved rate must count in cuts, so that they hold however little is unserved."""
    return np.asarray((steps + CUT_EPS) / CUT_EPS)


def _numbered(chosen: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], after: int) -> tuple[Whole, int]:
    """Rows from `after` on for what is chosen, -1 elsewhere; and the next free row."""
    rows = np.where(chosen, after + np.cumsum(chosen) - 1, -1)
    return rows, after + int(chosen.sum())


def _at(duals: Floats, rows: Whole) -> Floats:
    return np.asarray(np.where(rows >= 0, duals[rows], 0.0))


def _summed(column: Whole, row: Whole, value: Floats, rows: int, most: float = np.inf) -> tuple[Whole, Whole, Floats]:
    """Entries of the same place added up, none above `most`."""
    place = column * rows + row
    if len(place) > 1 and len(np.unique(place)) == len(place):
        return column, row, np.minimum(value, most)
    found, inverse = np.unique(place, return_inverse=True)
    total = np.bincount(inverse, weights=value, minlength=len(found))
    return found // rows, found % rows, np.minimum(total, most)
