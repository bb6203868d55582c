"""What one replica can do at a given pressure around it, for every table, level, variant and share at once.

Owns levels of pressure and the numbers that pricing reads: at a level, everything on the device presses as much as the
level says, so the slowdown of a replica depends on nothing but itself. The first level is the device alone. With the
upper edge of a level the numbers are safe to promise; with the lower edge nobody can do better, which is what bounds
need. It refuses to price.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.planners.joint.solve.judge import Judge
from solvers.problems.joint import Floats, JointProblem, Whole

Singles = NDArray[np.float32]
LEVEL_PARTS = (0.0, 0.12, 0.22, 0.33, 0.45, 0.58, 0.75, 1.0)
"""Edges as parts of the highest pressure there can be."""
CHUNK_CELLS = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Edges of pressure levels; the level of index 0 is a device with one replica."""

    edge: Floats

    def __len__(self) -> int:
        return len(self.edge)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Arrays are table x level x variant x share; rates 0 where a replica cannot run."""

    rate: Singles
    """Requests per second at the best batch."""
    power: Singles
    memory: Singles
    press: Singles
    """table x variant x share: what the replica itself adds."""
    levels: Levels


def own_pressure(problem: JointProblem, shares_pct: Whole | Floats) -> Floats:
    """What a replica presses: table x variant x share."""
    share = np.asarray(shares_pct, dtype=np.float64) / 100
    return np.asarray(problem.pressure[:, :, None] * share[None, None, :] ** problem.exponent[:, :, None])


def levels_of(problem: JointProblem, width: int) -> Levels:
    """Levels up to the highest pressure that a full device can have; two when nothing presses."""
    if width < 2 or not len(problem.variants):
        return Levels(edge=np.zeros(1))
    even = own_pressure(problem, np.array([100.0 / count for count in range(2, width + 1)]))
    highest = float((even.max(axis=1) * np.arange(2, width + 1)[None, :]).max())
    if highest <= 1e-9 or not problem.sensitivity.any():
        return Levels(edge=np.array([0.0, highest]))
    return Levels(edge=np.concatenate([[0.0], highest * np.array(LEVEL_PARTS[1:])]))


def tables_of(problem: JointProblem, judge: Judge, levels: Levels) -> Tables:
    """Compute them, table by table and in slices of variants."""
    tables, variants = problem.pressure.shape
    shares, batches = len(problem.shares_pct), len(problem.batches)
    shape = (tables, len(levels), variants, shares)
    rates, power, memory = (np.zeros(shape, dtype=np.float32) for _ in range(3))
    press = own_pressure(problem, problem.shares_pct)
    step = max(1, CHUNK_CELLS // max(1, shares * batches * len(levels)))
    for table in range(tables):
        for at in range(0, variants, step):
            some = np.arange(at, min(at + step, variants))
            best, batch = _best(problem, judge, levels, (table, some, press[table, some]))
            here = np.s_[table, :, at : at + len(some)]
            rates[here] = best
            watts = problem.power_w[table, some]
            mib = np.broadcast_to(problem.memory_mib[table, some][:, None, :], watts.shape)
            for target, source in ((power, watts), (memory, mib)):
                taken = np.take_along_axis(source[None], batch[..., None], axis=3)[..., 0]
                target[here] = np.where(best > 0, taken, 0.0)
    return Tables(rate=rates, power=power, memory=memory, press=press.astype(np.float32), levels=levels)


def _best(
    problem: JointProblem, judge: Judge, levels: Levels, cells: tuple[int, Whole, Floats]
) -> tuple[Floats, Whole]:
    """Highest rate over batches and its batch: level x variant x share."""
    table, some, press = cells
    felt = problem.sensitivity[table, some][None, :, None] * np.maximum(levels.edge[:, None, None] - press[None], 0.0)
    factor = problem.crowd[table, some][None, :, None] * (1 + felt)
    factor[0] = 1.0
    mean = problem.mean_ms[table, some][None] * factor[..., None]
    tail = mean if problem.mean_ms is problem.tail_ms else problem.tail_ms[table, some][None] * factor[..., None]
    member = np.broadcast_to(some[None, :, None], mean.shape[:3])
    rates = judge.rates(member, mean, tail)
    batch = np.argmax(rates, axis=3)
    return np.take_along_axis(rates, batch[..., None], axis=3)[..., 0], batch
