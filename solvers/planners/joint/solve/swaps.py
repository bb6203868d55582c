"""Two or three devices for two better ones: every pair of columns is tried for what some devices leave.

Owns that search over a few hundred columns. Where an integer programme is lost between thousands of nearly equal
layouts, looking at all pairs at once finds what one device at a time cannot. It refuses to make columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from solvers.engines.base import Program
from solvers.engines.deadline import Deadline
from solvers.problems.joint import Flags, Floats, Whole

TOLERANCE = 1e-9
GAIN = 1e-7
TRIES_MAX = 600
PAIRS_PER_UNIT = 2_500_000


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
        pair = self._pair(some, (rows, need), room, budget)
        return Swap(out=out, into=pair) if pair is not None else best

    def _pair(self, some: Whole, asked: tuple[Whole, Floats], room: Floats, budget: float) -> tuple[int, int] | None:
        rows, need = asked
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
