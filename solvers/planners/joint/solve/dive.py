"""Diving, from parts of devices to whole ones, stage by stage: keep the whole parts, price anew for what is left.

After every stage the problem is the rest of the demand on the rest of the devices, nothing counts for more than is
still asked, and new patterns are priced for exactly that. Workloads with the fewest replicas are decided first, while
all others can still fill what is left beside them. Single percents of share are left to trimming.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.engines.base import Engine
from solvers.engines.deadline import Deadline
from solvers.engines.highs import Relaxed
from solvers.planners.joint.solve.generate import Generation, Pace, generate
from solvers.planners.joint.solve.judge import Judge, Judged, Patterns
from solvers.planners.joint.solve.master import Master, picked
from solvers.planners.joint.solve.pricing import Pricing, Tables
from solvers.problems.joint import JointProblem

DUST = 1e-6
UP_LEAST = 0.5
WORTH_LEAST = 0.9
"""A column is rounded up only while it is still worth so much of what it was."""
ADOPT_MAX = 3000
STAGES_MAX = 300
STAGE_UNITS = 3
MARGIN = 0.001
"""Part of a rate that is served beyond it: the last thousandth is not worth a device, so it would stay behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What every stage shares."""

    problem: JointProblem
    judge: Judge
    tables: Tables
    engine: Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How to dive: pricing rounds of a stage, of the devices left how many a stage looks at, of the fractions there how
    many are rounded up in one stage, and the part of the deadline left to others: from there on nothing is priced any
    more.
    """

    rounds: int = 6
    group_part: float = 0.4
    up_part: float = 0.5
    until_part: float = 0.0
    margin: float = MARGIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Whole devices."""

    judged: Judged
    counts: Whole


class Dive:
    """One dive from a relaxed optimum, or from what was decided before."""

    def __init__(self, scene: Scene, depth: Depth, taken: Floats | None = None) -> None:
        self.scene, self.depth = scene, depth
        self.taken = taken
        self.replicas = np.zeros(len(scene.problem.workloads))
        self.chosen: list[Chosen] = []

    def run(self, begin: Generation, deadline: Deadline) -> Chosen:
        """Whole devices for all that the master asks."""
        master, pricing, relaxed = begin.master, begin.pricing, begin.relaxed
        width = master.width
        for _ in range(STAGES_MAX):
            deadline.spend(STAGE_UNITS)
            parts = relaxed.values[master.slacks :]
            if parts.sum() <= DUST:
                break
            hurry = deadline.left_part <= self.depth.until_part
            counts = self._some(master, relaxed, 1.0 if hurry else self.depth.up_part)
            if not counts.any():
                counts = self._any(master, relaxed)
            if not counts.any():
                break
            self._decide(master, counts)
            rest = self._rest(master, relaxed)
            following = Pricing(self.scene.problem, self.scene.tables, rest.rows, width)
            following.follow(pricing)
            pace = Pace(
                rounds=self.depth.rounds,
                until_part=self.depth.until_part,
                thorough=False,
                prior=_moved(master, rest, relaxed.row_duals),
            )
            relaxation = generate(rest, following, deadline, pace)
            if relaxation is None:
                break
            master, pricing, relaxed = rest, following, relaxation.best
        return self._all(width)

    def _all(self, width: int) -> Chosen:
        none = self.scene.judge.judge(Patterns.none(width))
        judged = Judged.joined([item.judged for item in self.chosen] or [none])
        counts = [item.counts for item in self.chosen] or [np.zeros(0, dtype=np.int64)]
        return Chosen(judged=judged, counts=np.concatenate(counts))

    def _decide(self, master: Master, counts: Whole) -> None:
        rows = np.flatnonzero(counts)
        judged = master.pool.judged.take(rows)
        self.chosen.append(Chosen(judged=judged, counts=counts[rows]))
        self.replicas += self._count(judged.rows, counts[rows].astype(np.float64))
        added = master.rows.activity(judged, counts[rows])
        if self.taken is None:
            added[: master.rows.pool_at] -= self.depth.margin
        self.taken = added if self.taken is None else self.taken + added

    def _some(self, master: Master, relaxed: Relaxed, up_part: float) -> Whole:
        """Whole parts; where they are few, the largest fractions too, as long as they stay worth it together."""
        parts = relaxed.values[master.slacks :]
        group = self._narrowest(master, parts)
        counts = np.zeros(len(parts), dtype=np.int64)
        counts[group] = np.floor(parts[group] + DUST).astype(np.int64)
        fraction = np.zeros(len(parts))
        fraction[group] = parts[group] - counts[group]
        order = np.argsort(-fraction, kind="stable")
        ups = max(1, int(up_part * fraction[group].sum()))
        columns = picked(master.columns, np.arange(master.slacks, len(master.columns)))
        done = master.activity(counts)
        price = np.maximum(relaxed.row_duals[: master.rows.pool_at], 0.0)
        room = master.rows.upper - done
        for column in order[: min(len(group), 4 * ups)].tolist():
            span = slice(int(columns.start[column]), int(columns.start[column + 1]))
            row, value = columns.row[span], columns.value[span]
            asked = row < master.rows.pool_at
            fits = bool((value[~asked] <= room[row[~asked]] + DUST).all())
            whole = float(price[row[asked]] @ value[asked])
            rest = np.minimum(value[asked], np.maximum(0.0, 1 - done[row[asked]]))
            worth = float(price[row[asked]] @ rest)
            enough = fraction[column] >= UP_LEAST and worth >= WORTH_LEAST * whole
            if fits and (enough or not counts.any()):
                counts[column] += 1
                done[row] += value
                room[row] -= value
                ups -= 1
            if ups <= 0:
                break
        return counts

    def _any(self, master: Master, relaxed: Relaxed) -> Whole:
        """One device of the column most in use that fits as a whole; none where only parts of devices fit."""
        parts = relaxed.values[master.slacks :]
        counts = np.zeros(len(parts), dtype=np.int64)
        columns = picked(master.columns, np.arange(master.slacks, len(master.columns)))
        for column in np.argsort(-parts, kind="stable")[: np.count_nonzero(parts > DUST)].tolist():
            span = slice(int(columns.start[column]), int(columns.start[column + 1]))
            row, value = columns.row[span], columns.value[span]
            asked = row < master.rows.pool_at
            if bool((value[~asked] <= master.rows.upper[row[~asked]] + DUST).all()):
                counts[column] = 1
                break
        return counts

    def _narrowest(self, master: Master, parts: Floats) -> Whole:
        """The columns in use that host the workloads with the fewest replicas: whole devices are hardest for those, and
        easiest as long as all others can still fill what they leave.
        """
        used = np.flatnonzero(parts > DUST)
        rows = master.pool.judged.rows.take(used)
        replicas = self.replicas + self._count(rows, parts[used])
        work = self.scene.problem.variant_workload[np.maximum(rows.variants, 0)]
        narrow = np.where(rows.variants >= 0, replicas[work], np.inf).min(axis=1)
        order = np.argsort(narrow, kind="stable")
        devices = np.cumsum(parts[used][order])
        most = max(self.depth.group_part * devices[-1], devices[0])
        return np.asarray(used[order[devices <= most + DUST]])

    def _count(self, rows: Patterns, devices: Floats) -> Floats:
        """Replicas of each workload."""
        real = rows.variants >= 0
        work = self.scene.problem.variant_workload[rows.variants[real]]
        weights = np.repeat(devices, real.sum(axis=1))
        return np.asarray(np.bincount(work, weights=weights, minlength=len(self.replicas)))

    def _rest(self, master: Master, relaxed: Relaxed) -> Master:
        """The master of what is left, with the columns that looked best so far."""
        following = Master(self.scene.problem, self.scene.judge, self.taken)
        chosen = promising(master, relaxed, ADOPT_MAX)
        following.adopt(master.pool.judged.take(chosen))
        return following


def promising(master: Master, relaxed: Relaxed, most: int) -> Whole:
    """Columns of the pool in use, and those with the least reduced cost."""
    reduced = master.rows.reduced(master.columns, relaxed.row_duals)[master.slacks :]
    reduced[: len(relaxed.values) - master.slacks][relaxed.values[master.slacks :] > DUST] = -np.inf
    if len(reduced) <= most:
        return np.arange(len(reduced))
    return np.sort(np.argpartition(reduced, most - 1)[:most])


def _moved(before: Master, after: Master, duals: Floats) -> Floats:
    """Duals of the master before as duals of the one after: demand is counted by what is left of it."""
    moved = duals[: before.rows.base].copy()
    whole = np.maximum(before.rows.rate, 1e-12)
    moved[: after.rows.pool_at] *= np.where(before.rows.rate > 0, after.rows.rate / whole, 0.0)
    return moved
