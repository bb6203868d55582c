"""The restricted master: patterns as columns, what they owe as rows, and the optimum that prices the next ones.

Rows are demand, devices, power, quotas, replicas and budgets; a cap that covers only a part of a pool lets the rest of
the pool draw what it may, so every row is a valid relaxation of what seating must keep; seating keeps the rest. In
reverse, duals say what one more replica on a device is worth. Pattern n is column n after the slacks. What stands now
enters as columns of its own, cheaper by the launches saved and no more of them than there are.

Symbols: y are duals (change of the cost when a side rises by one); pi the duals of demand, one per workload.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.engines.contents import ItemPrices
from solvers.engines.deadline import Deadline, ProgrammeWork, programme_answer
from solvers.engines.highs import ColumnMaster, Columns, Relaxed
from solvers.planners.joint.solve.judge import Judge
from solvers.problems.joint import Floors, JointProblem
from solvers.problems.patterns import Judged, Layout, Pattern, Patterns, Prices

NO_LIMIT = 1_000_000
DUST = 1e-9
PART_LEAST = 1e-6
"""Of a device: less is none."""
SERVED = 1e-6
"""Part of a rate below which nothing is missing."""
CUTS = (1, 2, 3, 4, 6)
CUT_EPS = 0.01
CUT_LEAST = 0.01
"""How much of a step must be missing for a cut to be worth a row."""
NUMBERS_PATTERNS, NUMBERS_WORK = 200, ProgrammeWork(part=0.5, first_units=30, node_units=2, gap=5e-4, within=False)
"""Of how many patterns devices are counted, and what that may take."""


class Rows:
    """Rows of one problem. The first are the demands, one per workload; then pools, caps, and what else there is."""

    def __init__(self, problem: JointProblem, taken: Floats | None = None, floors: Floors | None = None) -> None:
        """`taken`: what decided devices already owe to every row (see `activity`); the rows are for what is left.
        `floors`: more than the problem's.
        """
        self.problem = problem
        works, pools = problem.workloads, problem.pools
        number = len(works)
        left = np.ones(number) if taken is None else np.clip(1 - taken[:number], 0.0, 1.0)
        self.rate = problem.rate_rps * left
        self.wanted = (problem.rate_rps > 0) & (left > SERVED)
        self.unserved_usd = problem.unserved_usd * left
        self.pool_at = number
        self.cap_at = self.pool_at + len(pools)
        self._caps()
        self.quota_at = self.cap_at + len(self.cap_room)
        projects = {name: index for index, (name, _) in enumerate(problem.quotas)}
        quotas = [self.quota_at + projects[work.project] if work.project in projects else -1 for work in works]
        self.quota = np.array(quotas, dtype=np.int64)
        after = self.quota_at + len(projects)
        most = np.array([work.replicas_max for work in works], dtype=np.float64)
        money = np.array([work.budget_usd_per_h for work in works], dtype=np.float64)
        self.counts = floors is not None
        self.floors = problem.floors if floors is None else floors
        self.most, after = _numbered(most < NO_LIMIT, after)
        self.money, self.floor_at = _numbered(np.isfinite(money), after)
        self.fewest = np.where(self.floors.own >= 0, self.floor_at + self.floors.own, -1)
        after = self.floor_at + len(self.floors.least)
        self.count = self.base = after
        self.cut_work = np.zeros(0, dtype=np.int64)
        self.cut_steps = np.zeros(0, dtype=np.int64)
        self.lower = np.full(after, -np.inf)
        self.upper = np.full(after, np.inf)
        self.lower[:number] = np.where(self.wanted, 1.0, 0.0)
        self.upper[self.pool_at : self.cap_at] = problem.pool_devices
        self.upper[self.cap_at : self.quota_at] = self.cap_room / self.cap_unit
        self.upper[self.quota_at :][: len(projects)] = [max(0.0, gpus) for _, gpus in problem.quotas]
        self.lower[self.floor_at :] = self.floors.least
        self.upper[self.most[self.most >= 0]] = most[self.most >= 0]
        self.upper[self.money[self.money >= 0]] = money[self.money >= 0]
        if taken is not None:
            after_pools = slice(self.pool_at, None)
            self.upper[after_pools] = np.maximum(0.0, self.upper[after_pools] - taken[after_pools])
            self.lower[after_pools] = np.maximum(0.0, self.lower[after_pools] - taken[after_pools])
        self._missing_usd = problem.unserved_usd[self.floors.workload] * self.floors.weight
        self._missing_usd /= np.maximum(self.floors.least, 1.0)
        self._part = np.array([pool.gpu_part for pool in pools], dtype=np.float64)

    def _caps(self) -> None:
        """Caps that can bind: watts above idle that the pools in them may add, and which pools count."""
        problem, pools = self.problem, self.problem.pools
        self._idle_w = idle = np.array([pool.idle_w for pool in pools], dtype=np.float64)
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

    def alone(self) -> JointProblem:
        """The problem with no device that is alone in its pool drawing more than a cap leaves it: parts of it may."""
        pools = list(self.problem.pools)
        for number, pool in enumerate(pools):
            room_w = float(self.cap_room[self.cap_pools[:, number] > 0].min(initial=np.inf))
            if pool.devices == 1 and pool.idle_w + room_w < pool.limit_w:
                pools[number] = replace(pool, limit_w=pool.idle_w + room_w, capped=True)
        return replace(self.problem, pools=tuple(pools)) if pools != [*self.problem.pools] else self.problem

    def slack(self) -> Columns:
        """What may stay undone, at its price: demand, and replicas below the floor. Cuts do not ask for what is not
        served, see `cut`. Where devices are counted, ones with nothing on them.
        """
        demand = np.flatnonzero(self.wanted)
        empty = np.arange(len(self.problem.pools) if self.counts else 0)
        row = np.concatenate([demand, self.floor_at + np.arange(len(self._missing_usd)), self.pool_at + empty])
        cost = np.concatenate([self.unserved_usd[demand], self._missing_usd, self.problem.idle_usd[empty]])
        return Columns.of(cost, column=np.arange(len(row)), row=row, value=np.ones(len(row)))

    def columns(self, judged: Judged) -> Columns:
        """The candidates as columns: what each owes to every row, and to a demand no more than all of it."""
        problem, rows = self.problem, judged.rows
        (column, work, part), pool = self.parts(judged), problem.kind_pool[rows.kind]
        share, every, wanted = rows.shares_pct[rows.variants >= 0] / 100.0, np.arange(len(pool)), self.wanted[work]
        parts = [(column[wanted], work[wanted], part[wanted]), (every, self.pool_at + pool, np.ones(len(pool)))]
        dynamic = judged.draw_w - self._idle_w[pool]
        for index, inside in enumerate(self.cap_pools):
            hit = np.flatnonzero(inside[pool] > 0)
            parts.append((hit, np.full(len(hit), self.cap_at + index), dynamic[hit] / self.cap_unit[index]))
        gpus, usd = share * self._part[pool[column]], share * problem.budget_usd[pool[column]]
        ones = np.ones(len(column))
        replica, floor = self.floors.entries(work, pool[column])
        parts.append((column[replica], self.floor_at + floor, ones[replica]))
        for number, amount in ((self.quota, gpus), (self.money, usd), (self.most, ones)):
            owing = np.flatnonzero(number[work] >= 0)
            parts.append((column[owing], number[work[owing]], amount[owing]))
        parts += self.cut_entries(judged, 0)
        column, row, value = (np.concatenate([part[index] for part in parts]) for index in range(3))
        found = Columns.of(judged.usd_per_h, column=column, row=row, value=value)
        np.minimum(found.value, 1.0, out=found.value, where=found.row < self.pool_at)
        return found

    def cut_entries(self, judged: Judged, first: int) -> list[tuple[Whole, Whole, Floats]]:
        """Column, row and value of every entry in the cuts from a number on, in no order."""
        (column, work, part), parts = self.parts(judged), []
        for steps in np.unique(self.cut_steps[first:]).tolist():
            row_of = np.full(self.pool_at, -1, dtype=np.int64)
            chosen = first + np.flatnonzero(self.cut_steps[first:] == steps)
            row_of[self.cut_work[chosen]] = self.base + chosen
            owing = np.flatnonzero(row_of[work] >= 0)
            parts.append((column[owing], row_of[work[owing]], steps_of(part[owing], steps)))
        return parts

    def parts(self, judged: Judged) -> tuple[Whole, Whole, Floats]:
        """Row, workload, and the part of what is asked that it serves, of every member."""
        row, place = np.nonzero(judged.rows.variants >= 0)
        work = self.problem.variant_workload[judged.rows.variants[row, place]]
        return row, work, np.minimum(judged.capacity_rps[row, place] / np.maximum(self.rate[work], 1e-12), 1.0)

    def cut(self, work: Whole, steps: Whole) -> None:
        """More rows, one each: k + 1 started parts of 1/(k + eps) must be served, since only whole replicas serve.
        Whatever stays unserved frees from as many as may be missing for it.
        """
        self.cut_work = np.concatenate([self.cut_work, work])
        self.cut_steps = np.concatenate([self.cut_steps, steps])
        self.count += len(work)
        self.lower = np.concatenate([self.lower, steps + 1.0])
        self.upper = np.concatenate([self.upper, np.full(len(work), np.inf)])

    def activity(self, judged: Judged, counts: Whole) -> Floats:
        """What whole devices owe to every row but cuts; demand as parts of the whole rates, more than 1 where it is."""
        total = self.columns(judged).activity(counts, self.count)
        served, whole = judged.served_rps(self.problem, counts), np.maximum(self.problem.rate_rps, 1e-12)
        total[: self.pool_at] = np.where(self.problem.rate_rps > 0, served / whole, 1.0)
        return np.asarray(total[: self.base], dtype=np.float64)

    def item_prices(self, duals: Floats) -> ItemPrices:
        """What these duals make of one replica."""
        problem = self.problem
        energy = 0.0 if problem.by_replica else problem.usd_per_wh
        caps = duals[self.cap_at : self.quota_at] / self.cap_unit
        watt = energy - caps @ self.cap_pools if len(caps) else np.full(len(problem.pools), energy)
        quota = _at(duals, self.quota)
        money = _at(duals, self.money)
        base = problem.pool_usd / 100 if problem.by_share else np.zeros(len(problem.pools))
        share = base[:, None] - np.outer(self._part, quota) / 100 - np.outer(problem.budget_usd, money) / 100
        cut_usd = np.zeros((len(CUTS), self.pool_at))
        cut_usd[np.searchsorted(CUTS, self.cut_steps), self.cut_work] = duals[self.base : self.count]
        cut, floors = cut_usd.any(axis=1), self.floors
        # workload x pool: what it is worth that a replica is there.
        present = np.tile(_at(duals, self.most)[:, None], len(problem.pools))
        np.add.at(present, floors.workload, duals[self.floor_at :][: len(floors.least), None] * floors.pools)
        return ItemPrices(
            pi=np.where(self.wanted, duals[: self.pool_at], 0.0),
            replica=present.T.copy(),
            rate_rps=np.maximum(self.rate, 1e-12),
            watt=np.asarray(watt),
            share=share,
            fixed=problem.idle_usd - duals[self.pool_at : self.cap_at],
            cut_steps=np.array(CUTS, dtype=np.float64)[cut],
            cut_usd=cut_usd[cut],
        )

    def on_demand(self, duals: Floats) -> Floats:
        """These, with what a floor of one replica is worth put on the demand, up to what leaving that undone costs: the
        sides stay worth the same, and no pattern is worth more, for a replica serves no more than all of it.
        """
        works = np.flatnonzero(self.wanted & (self.fewest >= 0) & (self.lower[self.fewest] == 1.0))
        moved, floor = duals.copy(), self.fewest[works]
        moved[floor] -= np.clip(self.unserved_usd[works] - duals[works], 0.0, np.maximum(0.0, duals[floor]))
        moved[works] += duals[floor] - moved[floor]
        return moved

    def prices(self, duals: Floats, worth: Floats | None = None) -> Prices:
        """Duals in words, and by pool what no pattern is worth above its device's price at them, where it was shown."""
        cap_usd = np.zeros(len(self.problem.caps))
        cap_usd[self.cap_number] = np.maximum(0.0, -duals[self.cap_at : self.quota_at] / self.cap_unit)
        return Prices(
            demand_usd=np.where(self.wanted, duals[: self.pool_at], 0.0),
            pool_usd=np.maximum(0.0, -duals[self.pool_at : self.cap_at]),
            cap_usd=cap_usd,
            quota_usd=np.maximum(0.0, -duals[self.quota_at :][: len(self.problem.quotas)]),
            most_usd=np.maximum(0.0, -_at(duals, self.most)),
            fewest_usd=np.maximum(0.0, _at(duals, self.fewest)),
            budget_usd=np.maximum(0.0, -_at(duals, self.money)),
            worth_usd=worth,
        )

    def duals(self, prices: Prices) -> Floats:
        """The way back; cuts have none."""
        found = np.zeros(self.count)
        found[: self.pool_at] = np.where(self.wanted, prices.demand_usd, 0.0)
        found[self.pool_at : self.cap_at] = -prices.pool_usd
        found[self.cap_at : self.quota_at] = -prices.cap_usd[self.cap_number] * self.cap_unit
        found[self.quota_at : self.quota_at + len(prices.quota_usd)] = -prices.quota_usd
        for row, usd in (
            (self.fewest, prices.fewest_usd),
            (self.most, -prices.most_usd),
            (self.money, -prices.budget_usd),
        ):
            found[row[row >= 0]] = usd[row >= 0]
        return found

    def watt_usd(self, prices: Prices) -> Floats:
        """By pool what caps make of a watt at these prices, beside its energy."""
        return np.asarray(prices.cap_usd[self.cap_number] @ self.cap_pools)

    def sides(self, duals: Floats) -> float:
        """What the sides of all rows but the pools' are worth at these duals."""
        side = np.where(duals > 0, self.lower, self.upper)
        worth = np.where(duals == 0, 0.0, duals * np.where(np.isfinite(side), side, 0.0))
        worth[self.pool_at : self.cap_at] = 0.0
        return float(worth.sum())


def steps_of(part: Floats, steps: int) -> Floats:
    """Started parts of 1/(steps + eps) in some parts of a rate."""
    return np.asarray(np.ceil(part * (steps + CUT_EPS) - 1e-9))


def cut_slack(steps: Whole) -> Floats:
    """What a whole unserved rate must count in cuts, so that they hold however little is unserved."""
    return np.asarray((steps + CUT_EPS) / CUT_EPS)


def _numbered(chosen: Flags, after: int) -> tuple[Whole, int]:
    """Rows from `after` on for what is chosen, -1 elsewhere; and the next free row."""
    rows = np.where(chosen, after + np.cumsum(chosen) - 1, -1)
    return rows, after + int(chosen.sum())


def _at(duals: Floats, rows: Whole) -> Floats:
    return np.asarray(np.where(rows >= 0, duals[rows], 0.0))


class Master:
    def __init__(
        self, problem: JointProblem, judge: Judge, taken: Floats | None = None, floors: Floors | None = None
    ) -> None:
        """`taken`: what decided devices owe to the rows; the master is for the rest. `floors`: as of `Rows`."""
        self.problem = problem
        self.width = problem.members_max
        self.judge = judge
        self.rows = Rows(problem, taken, floors)
        self._judged = [judge.judge(Patterns.none(self.width))]
        self._seen: set[bytes] = set()
        self.size = 0
        """How many patterns there are."""
        self.programme = ColumnMaster(self.rows.lower, self.rows.upper)
        slack = self.rows.slack()
        self.slacks = len(slack)
        self.programme.add(slack)
        self._parts: list[Columns] = [slack]

    def offer(self, found: Patterns, duals: Floats | None = None, tolerance: float = 1e-7) -> int:
        """Judge candidates and add the lawful new ones; with duals, only those that would improve the optimum."""
        if not len(found.kind):
            return 0
        judged = self.judge.judge(found)
        columns, keep = self.rows.columns(judged), judged.lawful & (judged.rows.variants[:, 0] >= 0)
        if duals is not None:
            keep &= columns.reduced(duals) < -tolerance
        return self._append(judged, columns, np.flatnonzero(keep))

    def adopt(self, judged: Judged) -> None:
        """Columns that were judged elsewhere."""
        self._append(judged, self.rows.columns(judged), np.arange(len(judged.lawful)))

    def keep_standing(self, standing: Layout, usd_per_s: float) -> None:
        """Columns for what stands: cheaper by its launches, as many as there are."""
        of, listed = self.problem.variants, standing.patterns
        judged = self.judge.judge(Patterns.of(listed, self.width))
        seconds = np.array([sum(of[variant].launch_s for variant in item.variants) for item in listed])
        devices = np.array(standing.counts, dtype=np.float64)
        ok = judged.lawful & (judged.rows.variants[:, 0] >= 0)
        columns = self.rows.columns(judged.take(ok))
        self._grow(judged.take(ok), replace(columns, cost=columns.cost - usd_per_s * seconds[ok], upper=devices[ok]))

    def of_patterns(self, patterns: tuple[Pattern, ...]) -> Patterns:
        """Patterns as candidates; those with more members than fit this problem's arrays are left out."""
        return Patterns.of([item for item in patterns if len(item.variants) <= self.width], self.width)

    @property
    def judged(self) -> Judged:
        """All patterns, in the order of the columns."""
        if len(self._judged) > 1:
            self._judged = [Judged.chained(self._judged)]
        return self._judged[0]

    def _append(self, judged: Judged, columns: Columns, chosen: Whole) -> int:
        """Those of the chosen rows that are new, the first of equal ones only; how many."""
        rows, fresh = judged.rows, []
        keys = np.hstack([rows.kind[chosen, None], rows.variants[chosen], rows.shares_pct[chosen]]).astype(np.int32)
        for number, key in zip(chosen.tolist(), keys, strict=True):
            if (name := key.tobytes()) not in self._seen:
                self._seen.add(name)
                fresh.append(number)
        if fresh:
            some = np.array(fresh)
            self._grow(judged.take(some), columns.take(some))
        return len(fresh)

    def _grow(self, judged: Judged, columns: Columns) -> None:
        self._judged.append(judged)
        self.size += len(columns)
        self.programme.add(columns)
        self._parts.append(columns)

    def tighten(self, relaxed: Relaxed) -> int:
        """Add the cuts that a relaxed optimum breaks; how many."""
        rows = self.rows
        used = np.flatnonzero(relaxed.values[self.slacks :] > DUST)
        column, work, part = rows.parts(self.judged.take(used))
        devices = relaxed.values[self.slacks :][used][column]
        demand = np.flatnonzero(rows.wanted)
        unserved = np.zeros(rows.pool_at)
        unserved[demand] = relaxed.values[: len(demand)]
        works = list[Whole]()
        for size in CUTS:
            started = np.bincount(work, weights=devices * steps_of(part, size), minlength=rows.pool_at)
            done = started + unserved * cut_slack(np.array(size))
            broken = rows.wanted & (done < size + 1 - CUT_LEAST)
            broken[rows.cut_work[rows.cut_steps == size]] = False
            works.append(np.flatnonzero(broken))
        return self.cut(np.concatenate(works), np.repeat(np.array(CUTS), [len(some) for some in works]))

    def cut(self, work: Whole, steps: Whole) -> int:
        """Add these cuts; how many."""
        if not len(work):
            return 0
        rows, first = self.rows, len(self.rows.cut_work)
        demand = np.flatnonzero(rows.wanted)
        rows.cut(work, steps)
        entries = rows.cut_entries(self.judged, first)
        slack_of = np.full(rows.pool_at, -1, dtype=np.int64)
        slack_of[demand] = np.arange(len(demand))
        new = rows.base + first
        entries.append((slack_of[work] - self.slacks, new + np.arange(len(work)), cut_slack(steps)))
        column, row, value = (np.concatenate([part[index] for part in entries]) for index in range(3))
        self._parts = [self.columns.and_in(column=self.slacks + column, row=row, value=value)]
        least = np.asarray(steps + 1, dtype=np.float64)
        added = Columns.of(least, column=row - new, row=self.slacks + column, value=value)
        self.programme.add_rows(added.cost, start=added.start, column=added.row, value=added.value)
        return len(work)

    def activity(self, counts: Whole) -> Floats:
        """What whole counts of the patterns add to every row; those that came after the counts are not in use."""
        every = np.concatenate([np.zeros(self.slacks), counts, np.zeros(self.size - len(counts))])
        return self.columns.activity(every, self.rows.count)

    @property
    def columns(self) -> Columns:
        """All columns, slacks first."""
        if len(self._parts) > 1:
            self._parts = [Columns.joined(self._parts)]
        return self._parts[0]

    def promising(self, relaxed: Relaxed, most: int) -> Whole:
        """Patterns in use, and those with the least reduced cost."""
        reduced = self.columns.reduced(relaxed.row_duals)[self.slacks :]
        reduced[: len(relaxed.values) - self.slacks][relaxed.values[self.slacks :] > PART_LEAST] = -np.inf
        return np.arange(len(reduced)) if len(reduced) <= most else np.sort(np.argpartition(reduced, most - 1)[:most])

    def counted(self, relaxed: Relaxed, times: float, deadline: Deadline) -> tuple[Whole, Layout, float] | None:
        """How many devices of each pool serve so many times all rates at least cost, if only devices are whole; its
        contents on so many, whole parts and of the rest the largest, where that breaks no rule; and that cost, $/h.
        """
        problem, rows, kept = self.problem, copy(self.rows), self.promising(relaxed, NUMBERS_PATTERNS)
        usd, number, judged = problem.idle_usd, np.arange(len(problem.pools)), self.judged.take(kept)
        rows.rate = times * rows.rate
        known = self.columns.take(np.append(np.arange(self.slacks), self.slacks + kept))
        some = Columns.joined([known.take(np.arange(self.slacks)), rows.columns(judged)])
        some = replace(some, cost=known.cost, upper=known.upper)
        some.cost[self.slacks :] -= usd[problem.kind_pool[judged.rows.kind]]
        most, upper = problem.pool_devices.astype(np.float64), rows.upper.copy()
        device = Columns.of(usd, column=number, row=rows.pool_at + number, value=-np.ones(len(usd)), upper=most)
        upper[rows.pool_at : rows.cap_at] = 0.0
        whole = np.arange(len(some) + len(usd)) >= len(some)
        program = Columns.joined([some, device]).programme(whole, rows.lower, upper)
        answer = programme_answer(program, NUMBERS_WORK, deadline)
        if answer is None or answer.values is None:
            return None
        numbers = np.rint(answer.values[whole]).astype(np.int64)
        counts, parts = np.zeros(self.size, dtype=np.int64), np.zeros(self.size)
        parts[kept] = answer.values[self.slacks : len(some)]
        counts[kept] = np.floor(parts[kept] + PART_LEAST)
        room = rows.upper - self.activity(counts)
        room[rows.pool_at : rows.cap_at] += numbers - problem.pool_devices
        likely = np.argsort(counts - parts, kind="stable")[: np.count_nonzero(parts > counts + PART_LEAST)]
        for column in likely.tolist():
            span = slice(*self.columns.start[self.slacks + column :][:2].tolist())
            row, value = self.columns.row[span], self.columns.value[span]
            fixed = (row >= rows.pool_at) & (row < rows.base)
            if bool((value[fixed] <= room[row[fixed]] + PART_LEAST).all()):
                counts[column] += 1
                room[row[fixed]] -= value[fixed]
        used = np.flatnonzero(counts)
        return numbers, self.judge.layout(self.judged.rows.take(used), counts[used]), answer.objective
