"""A few devices taken out and packed anew, as a small programme that is made whole device by device.

Owns that programme: what the devices carried and what lacks is asked of candidates (what was there, its neighbours,
random packs priced by the programme's own duals), within what the rest of the layout leaves of every rule. Nothing
serves more than is asked. It refuses to choose the devices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solvers.engines.columns import ColumnMaster, Columns
from solvers.planners.joint.solve.judge import Judged, Patterns
from solvers.planners.joint.solve.moves import neighbours
from solvers.planners.joint.solve.near import summed
from solvers.planners.joint.solve.packs import Packs, Wanted
from solvers.planners.joint.solve.rules import Rules
from solvers.planners.joint.solve.sheet import SERVED, Sheet
from solvers.problems.joint import Floats, Whole

_STEPS = (10, 3)
_ROUNDS = 5
_DRAWN = 160
_KEPT = 60
"""Packs kept of each draw, best first."""
_BROKEN = 1e-6
_DUST = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """What is left when some devices of a sheet (row numbers, one device each) are taken out."""

    rest: Sheet
    rows: Patterns
    workloads: Whole
    asked: Floats
    """Part of each such workload's rate that the rest does not serve."""
    room: Floats
    """Of every rule."""
    floors: Floats
    """Replicas that the rest lacks, by floored workload."""
    usd: float
    """What the devices cost, and what of these workloads lacks while they stand."""


def hole_of(sheet: Sheet, devices: Whole, lacking: Whole) -> Hole:
    """Take devices out; of what lacks elsewhere, these workloads are looked after too."""
    rules = sheet.rules
    problem = rules.judge.problem
    counts = sheet.counts.copy()
    np.subtract.at(counts, devices, 1)
    rest = Sheet(rules=rules, judged=sheet.judged, counts=counts)
    rows = sheet.judged.rows.take(devices)
    variants = rows.variants[rows.variants >= 0]
    rate = problem.rate_rps
    part = np.where(rate > 0, np.maximum(0.0, 1 - rest.served_rps() / np.where(rate > 0, rate, 1.0)), 0.0)
    workloads = np.union1d(rules.judge.workload[variants], lacking)
    usage = rules.usage(rest.judged, counts)
    lack = sheet.lacking()
    looked_after = np.union1d(workloads, rules.floored)
    limit = np.maximum(rules.upper, rules.usage(sheet.judged, sheet.counts))
    return Hole(
        rest=rest,
        rows=rows,
        workloads=workloads,
        asked=part[workloads],
        room=limit - usage,
        floors=np.maximum(0.0, rules.floor - rest.replicas()[rules.floored]),
        usd=float(sheet.judged.usd_per_h[devices].sum() + lack[looked_after] @ problem.unserved_usd[looked_after]),
    )


class Patch:
    """Refills holes."""

    def __init__(self, rules: Rules, packs: Packs, usd: Floats) -> None:
        self.rules, self.packs, self.usd = rules, packs, usd

    def refill(self, hole: Hole, most_usd: float, rng: np.random.Generator) -> Sheet | None:
        """The sheet with the hole filled for at most so much, unserved demand priced in; None when no filling was
        found or none can be had.
        """
        problem, rules = self.rules.judge.problem, self.rules
        near, _ = neighbours(problem, hole.rows, _STEPS)
        some = self._judged(Patterns.joined([hole.rows, near]))
        rows, counts, spent = [hole.rest.judged.rows], [hole.rest.counts], 0.0
        left, rounds = hole, _ROUNDS
        while True:
            some, parts, value = self._relaxed(left, some, rounds, rng)
            if parts is None or spent + value > most_usd:
                return None
            number = self._decided(left, some, parts, rng)
            if not number.any():
                break
            chosen = np.flatnonzero(number)
            picked, times = some.take(chosen), number[chosen]
            rows.append(picked.rows)
            counts.append(times)
            spent += float(picked.usd_per_h @ times)
            left = _less(rules, left, picked, times)
            rounds = 1
        return Sheet.of_rows(rules, Patterns.joined(rows), np.concatenate(counts))

    def _relaxed(
        self, hole: Hole, some: Judged, rounds: int, rng: np.random.Generator
    ) -> tuple[Judged, Floats | None, float]:
        """Candidates with packs added, how many devices carry each, and the worth of that."""
        sides, slack = self._sides(hole)
        master = ColumnMaster(*sides)
        master.add(slack)
        master.add(self._columns(hole, some))
        relaxed = master.solve()
        for _ in range(rounds):
            if relaxed is None:
                break
            usd = self.usd.copy()
            usd[hole.workloads] = np.maximum(relaxed.row_duals[: len(hole.workloads)], 0.0)
            packs = self._packs(hole, usd, rng)
            if packs is None:
                break
            master.add(self._columns(hole, packs))
            some = Judged.joined([some, packs])
            relaxed = master.solve()
        if relaxed is None:
            return some, None, np.inf
        return some, relaxed.values[len(slack) :], relaxed.value

    def _decided(self, hole: Hole, some: Judged, parts: Floats, rng: np.random.Generator) -> Whole:
        """Whole parts, or one device of the largest fraction that no rule forbids; nothing when nothing is used."""
        number = np.floor(parts + _BROKEN).astype(np.int64)
        if number.any():
            return number
        order = np.argsort(-parts * rng.uniform(0.7, 1.0, len(parts)), kind="stable")
        for column in order[: np.count_nonzero(parts > _BROKEN)].tolist():
            usage = self.rules.usage(some.take(np.array([column])), np.ones(1, dtype=np.int64))
            if np.all(usage <= hole.room + _BROKEN * np.maximum(1.0, np.abs(hole.room))):
                number[column] = 1
                break
        return number

    def _judged(self, rows: Patterns) -> Judged:
        judged = self.rules.judge.judge(rows)
        keys = np.hstack([judged.rows.kind[:, None], judged.rows.variants, judged.rows.shares_pct])
        _, first = np.unique(keys, axis=0, return_index=True)
        first = np.sort(first)
        return judged.take(first[judged.lawful[first] & (judged.rows.variants[first, 0] >= 0)])

    def _packs(self, hole: Hole, usd: Floats, rng: np.random.Generator) -> Judged | None:
        """Those random packs that are worth most for what they cost."""
        problem = self.rules.judge.problem
        asked = np.zeros(len(problem.workloads))
        asked[hole.workloads] = hole.asked
        work = problem.variant_workload
        able = np.flatnonzero((asked[work] > _DUST) & (usd[work] > 0))
        open_kinds = np.flatnonzero(hole.room[: len(problem.pools)][problem.kind_pool] >= 1)
        if not len(able) or not len(open_kinds):
            return None
        wanted = Wanted(variants=able, usd=usd, part=asked)
        packs = self._judged(self.packs.draw(wanted, rng.choice(open_kinds, _DRAWN), rng))
        at, place = np.nonzero(packs.rows.variants >= 0)
        owner = work[packs.rows.variants[at, place]]
        part = np.minimum(packs.capacity_rps[at, place] / np.maximum(problem.rate_rps[owner], 1e-12), asked[owner])
        gain = np.bincount(at, weights=part * usd[owner], minlength=len(packs.rows)) - packs.usd_per_h
        best = np.argsort(-gain, kind="stable")[:_KEPT]
        return packs.take(best)

    def _sides(self, hole: Hole) -> tuple[tuple[Floats, Floats], Columns]:
        """Sides of the rows (demand, rules, least replicas), and what may lack at its price."""
        problem, rules = self.rules.judge.problem, self.rules
        demands, floors = len(hole.workloads), len(hole.floors)
        lower = np.concatenate([hole.asked, np.full(len(rules), -np.inf), hole.floors])
        upper = np.concatenate([np.full(demands, np.inf), hole.room, np.full(floors, np.inf)])
        short = problem.unserved_usd[rules.floored] / np.maximum(rules.floor, 1.0)
        count = demands + floors
        slack = Columns(
            cost=np.concatenate([problem.unserved_usd[hole.workloads], short]),
            lower=np.zeros(count),
            upper=np.full(count, np.inf),
            start=np.arange(count + 1),
            row=np.concatenate([np.arange(demands), demands + len(rules) + np.arange(floors)]),
            value=np.ones(count),
        )
        return (lower, upper), slack

    def _columns(self, hole: Hole, judged: Judged) -> Columns:
        """Candidates; nothing counts for more than is asked."""
        problem, rules = self.rules.judge.problem, self.rules
        demands, count = len(hole.workloads), len(judged.rows)
        place_of = np.full(len(problem.workloads), -1, dtype=np.int64)
        place_of[hole.workloads] = np.arange(demands)
        at, place = np.nonzero(judged.rows.variants >= 0)
        owner = rules.judge.workload[judged.rows.variants[at, place]]
        number = place_of[owner]
        rate = problem.rate_rps[owner]
        part = judged.capacity_rps[at, place] / np.where(rate > 0, rate, np.inf)
        part = np.where(number >= 0, np.minimum(part, hole.asked[number]), 0.0)
        asks = np.flatnonzero(part > _DUST)
        used, floored = rules.entries(judged), rules.floor_entries(judged)
        row, column, value = summed(
            np.concatenate([number[asks], demands + used.rule, demands + len(rules) + floored.rule]),
            np.concatenate([at[asks], used.pattern, floored.pattern]),
            np.concatenate([part[asks], used.value, floored.value]),
        )
        return Columns(
            cost=judged.usd_per_h,
            lower=np.zeros(count),
            upper=np.full(count, np.inf),
            start=np.concatenate([[0], np.cumsum(np.bincount(column, minlength=count))]).astype(np.int64),
            row=row,
            value=value,
        )


def _less(rules: Rules, hole: Hole, picked: Judged, times: Whole) -> Hole:
    """What is still asked once these devices stand."""
    part = Sheet(rules=rules, judged=picked, counts=times)
    rate = rules.judge.problem.rate_rps[hole.workloads]
    served = part.served_rps()[hole.workloads] / np.where(rate > 0, rate, np.inf)
    asked = hole.asked - served
    return replace(
        hole,
        asked=np.where(asked > SERVED, asked, 0.0),
        room=hole.room - rules.usage(picked, times),
        floors=np.maximum(0.0, hole.floors - part.replicas()[rules.floored]),
    )
