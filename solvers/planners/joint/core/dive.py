"""Whole devices by structure: what stands together is decided, how it splits the device stays open to the end.

Owns the dive. A *structure* is a kind with its members, whatever their shares. Counts of structures become whole one
batch after the other, the programme is solved again in between, and new splits are priced for what is decided; the
mixture of splits that is left on a structure's devices becomes one split per device at the end. Services trade small
surpluses through the devices that they share, so that whole devices cost little. It refuses to trim single percents.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.engines.columns import ColumnMaster, Columns, Relaxed
from solvers.engines.deadline import Deadline
from solvers.planners.joint.core.master import Master, picked
from solvers.planners.joint.core.nearby import neighbours
from solvers.planners.joint.core.pricing import Pricing
from solvers.planners.joint.core.sets import Sets
from solvers.problems.joint import Floats, Whole

DUST = 1e-6
COLUMNS_MAX = 4000
UP_PART = 0.06
ROUNDS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Dived:
    """Parts per column of the pool; sums over each structure are whole. `value` has unserved demand priced in."""

    parts: Floats
    value: float
    rounds: int


class Structures:
    """Numbers structures as the pool grows."""

    def __init__(self) -> None:
        self._number: dict[bytes, int] = {}
        self._of: list[int] = []

    def of(self, sets: Sets) -> Whole:
        """Structure of every column of the pool."""
        rows = np.concatenate([sets.kind[:, None], sets.member], axis=1).astype(np.int32)
        for row in np.ascontiguousarray(rows[len(self._of) :]):
            self._of.append(self._number.setdefault(row.tobytes(), len(self._number)))
        return np.array(self._of, dtype=np.int64)


class Dive:
    """One dive from a relaxed optimum."""

    def __init__(self, master: Master, pricing: Pricing, relaxed: Relaxed) -> None:
        self.pricing = pricing
        self.master = master
        self.structures = Structures()
        chosen = promising(master, relaxed.values, relaxed.row_duals, COLUMNS_MAX)
        self.programme = ColumnMaster(master.rows.lower, master.rows.upper)
        self.programme.add(picked(master.columns, chosen))
        self.columns = chosen
        """Of each column of the dive: its number among the master's."""
        self.row_of: dict[int, int] = {}
        self.shut: set[int] = set()
        """Structures that cannot have a device more."""

    def run(self, deadline: Deadline, until_part: float) -> Dived | None:
        """Dive to whole counts; None when the programme could not be solved."""
        ups = UP_PART
        before: dict[int, float] = {}
        for rounds in range(1, ROUNDS_MAX):
            deadline.spend()
            solved = self.programme.solve(primal=False)
            if solved is None:
                if not before:
                    return None
                # Too many rounded up for power or quotas: take the last ones back, and be careful from here on.
                self._take_back(before)
                before, ups = {}, 0.0
                continue
            parts = self._parts(solved)
            of = self.structures.of(self.master.pool.sets)
            devices = np.asarray(
                np.bincount(of, weights=parts, minlength=int(of.max(initial=-1)) + 1), dtype=np.float64
            )
            broken = np.flatnonzero(np.abs(devices - np.rint(devices)) > DUST)
            if not len(broken):
                return Dived(parts=parts, value=solved.value, rounds=rounds)
            hurry = deadline.left_part <= until_part
            before = self._decide(devices, broken, max(1, int((1.0 if hurry else ups) * len(broken))))
            if not hurry:
                self._widen(solved, parts, of)
        return None

    def _parts(self, solved: Relaxed) -> Floats:
        parts = np.zeros(len(self.master.pool))
        mine = self.columns >= self.master.slacks
        parts[self.columns[mine] - self.master.slacks] = solved.values[mine]
        return parts

    def _decide(self, devices: Floats, broken: Whole, ups: int) -> dict[int, float]:
        """Keep all whole parts, and round the largest fractions up where the pool has devices for it. Returns the
        structures rounded up and what they had before.
        """
        whole = np.floor(devices + DUST)
        pool = self._pool_of(len(devices))
        room = self.master.problem.pool_devices - np.bincount(
            pool, weights=whole, minlength=len(self.master.problem.pools)
        )
        up: dict[int, float] = {}
        for structure in broken[np.argsort(whole[broken] - devices[broken], kind="stable")].tolist():
            free = room[pool[structure]] >= 1 - DUST and structure not in self.shut
            if len(up) < ups and free:
                up[structure] = float(whole[structure])
                room[pool[structure]] -= 1
            elif not free:
                self._bound(structure, float(whole[structure]), float(whole[structure]))
        for structure in np.flatnonzero(devices > DUST).tolist():
            if structure in up or (whole[structure] > 0 and structure not in self.shut):
                self._bound(structure, float(whole[structure]) + (structure in up), float("inf"))
        return up

    def _take_back(self, before: dict[int, float]) -> None:
        for structure, least in before.items():
            self._bound(structure, least, least if len(before) == 1 else float("inf"))
            if len(before) == 1:
                self.shut.add(structure)

    def _bound(self, structure: int, least: float, most: float) -> None:
        if structure in self.row_of:
            self.programme.bound_row(self.row_of[structure], least, most)
        else:
            self.row_of[structure] = self.programme.add_row(self._columns_of(structure), least, most)

    def _pool_of(self, structures: int) -> Whole:
        of = self.structures.of(self.master.pool.sets)
        pool = np.zeros(structures, dtype=np.int64)
        pool[of] = self.master.problem.kind_pool[self.master.pool.sets.kind]
        return pool

    def _columns_of(self, structure: int) -> Whole:
        of = self.structures.of(self.master.pool.sets)
        mine = self.columns >= self.master.slacks
        number = np.where(mine, of[np.maximum(self.columns - self.master.slacks, 0)], -1)
        return np.flatnonzero(number == structure)

    def _widen(self, solved: Relaxed, parts: Floats, of: Whole) -> None:
        """New splits for the structures in use."""
        master = self.master
        used = np.flatnonzero(parts > DUST)
        known = dict(enumerate(solved.row_duals.tolist()))
        bonus = np.array([known.get(self.row_of.get(structure, -1), 0.0) for structure in of[used].tolist()])
        duals = solved.row_duals[: master.rows.count]
        before = len(master.pool)
        master.offer(neighbours(master, used, duals, bonus))
        found = self.pricing.price(master.rows.item_prices(duals), 1)
        self.pricing.learn(found)
        master.offer(found.sets, duals)
        fresh = np.arange(before, len(master.pool))
        if len(fresh):
            of = self.structures.of(master.pool.sets)
            rows = np.array([self.row_of.get(s, -1) for s in of[fresh].tolist()], dtype=np.int64)
            self.programme.add(_with_rows(picked(master.columns, fresh + master.slacks), rows))
            self.columns = np.concatenate([self.columns, fresh + master.slacks])


def _with_rows(columns: Columns, rows: Whole) -> Columns:
    """Columns with an entry of 1 in one further row each, where that is not -1."""
    column = np.repeat(np.arange(len(columns)), np.diff(columns.start))
    more = np.flatnonzero(rows >= 0)
    column = np.concatenate([column, more])
    row = np.concatenate([columns.row, rows[more]])
    value = np.concatenate([columns.value, np.ones(len(more))])
    order = np.argsort(column, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(column, minlength=len(columns)))])
    return Columns(
        cost=columns.cost,
        lower=columns.lower,
        upper=columns.upper,
        start=start.astype(np.int64),
        row=row[order],
        value=value[order],
    )


def promising(master: Master, values: Floats, duals: Floats, most: int) -> Whole:
    """Numbers of all slacks, of every column in use and of those with the least reduced cost."""
    reduced = master.rows.reduced(master.columns, duals)
    reduced[values > DUST] = -np.inf
    reduced[: master.slacks] = -np.inf
    if len(reduced) <= most:
        return np.arange(len(reduced))
    return np.sort(np.argpartition(reduced, most - 1)[:most])


def whole(dived: Dived, structures: Structures, sets: Sets) -> Whole:
    """One split per device: whole parts stay, the largest fractions of each structure get its last devices."""
    of = structures.of(sets)
    counts = np.floor(dived.parts + DUST).astype(np.int64)
    fraction = dived.parts - counts
    devices = np.bincount(of, weights=dived.parts, minlength=int(of.max(initial=-1)) + 1)
    left = np.rint(devices).astype(np.int64) - np.bincount(of, weights=counts, minlength=len(devices)).astype(np.int64)
    for column in np.lexsort((-fraction, of)).tolist():
        if left[of[column]] > 0 and fraction[column] > DUST:
            counts[column] += 1
            left[of[column]] -= 1
    return counts
