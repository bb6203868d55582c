"""Small problems to the end: an integer programme over everything that was found and some more of its kind.

Where only some dozens of devices are at stake, whole devices decide more than the relaxed optimum can see, so patterns
are also priced at duals shaken at random, and the best layout so far is the programme's hint: it can only become
better. Before it, two or three devices are swapped for two better ones: every pair of some hundred columns is tried
for what some devices leave, which finds what an integer programme loses between thousands of nearly equal layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.engines.base import Limits, Program
from solvers.engines.deadline import Deadline
from solvers.engines.highs import Relaxed
from solvers.planners.joint.solve.dive import Chosen, Scene, promising
from solvers.planners.joint.solve.generate import Generation
from solvers.planners.joint.solve.layouts import column_number, counts_in, keys_of, layout_of
from solvers.planners.joint.solve.master import Master, picked
from solvers.problems.patterns import Layout

TOLERANCE = 1e-9
GAIN = 1e-7
TRIES_MAX = 600
PAIRS_PER_UNIT = 2_500_000
DEVICES_MAX = 120.0
WORKLOADS_MAX = 60
SHAKES = 20
SHAKE = 0.3
SHAKE_UNTIL = 0.1
COLUMNS_MAX = 700
COLUMNS_LEAST = 50
FIRST_PART = 0.4
"""Of what is left, for the engine's first node where columns are many by design."""
SWAP_PART = 0.2
"""Of what is left of the deadline."""
ENGINE_PART = 0.8
ENGINE_GAP = 1e-4
ENTRIES_PER_UNIT, NODE_UNITS = 30, 30
"""Of work: the first node of an integer programme with all that comes before it, and another one."""
WORTH_IT = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Columns that go and columns that come."""

    out: tuple[int, ...]
    into: tuple[int, ...]


class Swaps:
    """Columns of a covering programme as a dense matrix; slack columns are left out."""

    def __init__(self, program: Program) -> None:
        self.whole = np.flatnonzero(program.integer)
        """Of each column here: its number in the programme."""
        column = np.repeat(np.arange(program.columns), np.diff(program.start))
        dense = np.zeros((program.columns, program.rows))
        np.add.at(dense, (column, program.row), program.value)
        self.dense = dense[self.whole]
        self.cost = program.cost[self.whole]
        self.upper = program.upper[self.whole]
        self.asked = np.flatnonzero(np.isfinite(program.row_lower) & (program.row_lower > 0))
        self.limited = np.flatnonzero(np.isfinite(program.row_upper))
        self.least, self.most = program.row_lower, program.row_upper

    def improve(self, counts: Floats, deadline: Deadline, until_part: float, rng: np.random.Generator) -> Floats:
        """Counts (of the columns here) that cost no more and leave nothing more undone."""
        counts = counts.copy()
        tried: set[tuple[int, ...]] = set()
        for _ in range(TRIES_MAX):
            held = np.flatnonzero(counts > 0).tolist()
            devices = [column for column in held for _ in range(min(2, int(counts[column])))]
            groups = sorted({*combinations(devices, 2), *combinations(devices, 3)} - tried)
            if not groups or deadline.left_part <= until_part:
                return counts
            out = groups[int(rng.integers(len(groups)))]
            tried.add(out)
            deadline.spend(1 + self.dense.size * len(self.dense) // PAIRS_PER_UNIT)
            swap = self._best(counts, out)
            if swap is not None:
                np.subtract.at(counts, list(swap.out), 1)
                np.add.at(counts, list(swap.into), 1)
                tried.clear()
        return counts

    def _best(self, counts: Floats, out: tuple[int, ...]) -> Swap | None:
        """The cheapest pair, or single, that does what these devices do and is cheaper."""
        rest = counts.copy()
        np.subtract.at(rest, list(out), 1)
        done = rest @ self.dense
        need, room = self.least - done, self.most - done
        budget = float(self.cost[list(out)].sum()) - GAIN
        rows = self.asked[need[self.asked] > TOLERANCE]
        able = (self.cost < budget) & (rest < self.upper)
        able &= (self.dense[:, self.limited] <= room[self.limited] + TOLERANCE).all(axis=1)
        some = np.flatnonzero(able)
        if not len(some):
            return None
        alone = some[self._covers(self.dense[some][:, rows], need[rows])]
        best: Swap | None = None
        if len(alone):
            pick = int(alone[np.argmin(self.cost[alone])])
            best, budget = Swap(out=out, into=(pick,)), float(self.cost[pick]) - GAIN
        pair = self._pair(some, rows, need, room, budget)
        return Swap(out=out, into=pair) if pair is not None else best

    def _pair(self, some: Whole, rows: Whole, need: Floats, room: Floats, budget: float) -> tuple[int, int] | None:
        """`rows`: those that ask for something of `need`."""
        cost = self.cost[some]
        fine = (cost[:, None] + cost[None, :] < budget) & np.tri(len(some), dtype=np.bool_)
        for row in rows.tolist():
            part = self.dense[some, row]
            fine &= part[:, None] + part[None, :] >= need[row] - TOLERANCE
        for row in self.limited.tolist():
            part = self.dense[some, row]
            fine &= part[:, None] + part[None, :] <= room[row] + TOLERANCE
        one, other = np.nonzero(fine)
        if not len(one):
            return None
        pick = int(np.argmin(cost[one] + cost[other]))
        return int(some[one[pick]]), int(some[other[pick]])

    @staticmethod
    def _covers(parts: Floats, need: Floats) -> Flags:
        return np.asarray((parts >= need - TOLERANCE).all(axis=1))


def small_enough(master: Master, relaxed: Relaxed) -> bool:
    """Whether an integer programme has a chance."""
    return len(master.problem.workloads) <= WORKLOADS_MAX and relaxed.values[master.slacks :].sum() <= DEVICES_MAX


def shake(search: Generation, deadline: Deadline, rng: np.random.Generator) -> None:
    """Patterns that would be best if demand were priced somewhat differently."""
    master, pricing, relaxed = search.master, search.pricing, search.relaxed
    for _ in range(SHAKES):
        if deadline.left_part < SHAKE_UNTIL:
            break
        deadline.spend(pricing.units_of_work)
        duals = relaxed.row_duals.copy()
        duals[: master.rows.pool_at] *= np.exp(rng.normal(0.0, SHAKE, master.rows.pool_at))
        duals[master.rows.pool_at :] *= rng.uniform()
        found = pricing.price(master.rows.item_prices(duals), 2, everything=True)
        pricing.learn(found)
        master.offer(found.rows)


def polished(scene: Scene, search: Generation, layout: Layout, deadline: Deadline, rng: np.random.Generator) -> Layout:
    """The best layout that swaps and the engine find; the given one at worst."""
    master, relaxed = search.master, search.relaxed
    master.offer(master.of_patterns(layout.patterns))
    held = counts_in(column_number(keys_of(master.pool.judged.rows)), layout, len(master.pool))
    chosen = np.union1d(promising(master, relaxed, _columns_most(master, deadline)), np.flatnonzero(held))
    program = _program(master, chosen)
    swaps = Swaps(program)
    counts = swaps.improve(held[chosen].astype(np.float64), deadline, deadline.left_part * (1 - SWAP_PART), rng)
    hint = np.concatenate([np.zeros(master.slacks), counts])
    short = np.maximum(0.0, program.row_lower - program.activity(hint))
    hint[: master.slacks] = short[program.row[program.start[: master.slacks]]]
    first = program.rows * len(chosen) // ENTRIES_PER_UNIT
    limits = limits_of(deadline, ENGINE_PART, first)
    if limits is not None:
        answer = scene.engine.solve(program, limits, hint)
        deadline.spend(first + NODE_UNITS * int(answer.work))
        if answer.values is not None and answer.objective < float(program.cost @ hint) - WORTH_IT:
            counts = answer.values[master.slacks :]
    judged = master.pool.judged.take(chosen)
    return layout_of(scene.problem, Chosen(judged=judged, counts=np.rint(counts).astype(np.int64)))


def _columns_most(master: Master, deadline: Deadline) -> int:
    """How many columns the programme may have: where all that is within reach was added, no more than leaves work for
    the nodes after the first.
    """
    if not master.problem.by_memory or deadline.work_units is None:
        return COLUMNS_MAX
    units = FIRST_PART * deadline.left_part * deadline.work_units
    return max(COLUMNS_LEAST, min(COLUMNS_MAX, int(ENTRIES_PER_UNIT * units) // max(1, master.rows.count)))


def _program(master: Master, chosen: Whole) -> Program:
    numbers = np.concatenate([np.arange(master.slacks), chosen + master.slacks])
    some = picked(master.columns, numbers)
    return Program(
        cost=some.cost,
        lower=some.lower,
        upper=some.upper,
        integer=numbers >= master.slacks,
        start=some.start,
        row=some.row,
        value=some.value,
        row_lower=master.rows.lower,
        row_upper=master.rows.upper,
    )


def limits_of(deadline: Deadline, part: float, first: int) -> Limits | None:
    """A part of what is left, for an engine: nodes where work is counted, else seconds. None where it is too little for
    the first node, which takes so many units.
    """
    if deadline.work_units is None:
        return Limits(time_s=part * deadline.left_s, gap=ENGINE_GAP)
    units = part * deadline.left_part * deadline.work_units - first
    return Limits(work=1 + units // NODE_UNITS, gap=ENGINE_GAP) if units > 0 else None
