"""The best patterns at given duals, and what none is worth more than.

Pricing asks `engines.contents`, which searches all contents of all devices: one question answers for patterns worth
adding, and by pool for a ceiling from which follows a bound on the cost of every layout (weak duality, `lagrangian`).
While duals are far from the optimum it need not look closely: at coarse shares only, and with ceilings above what was
found by a part of what devices cost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats
from solvers.engines.contents import Effort
from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Rows
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Patterns


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How closely to look."""

    part: float
    """Of what a device costs, ceilings may be too high."""
    step_pct: int
    """Shares are multiples of this; ceilings hold where it is the problem's step."""
    repeats: int = 0
    settles: float = 0.0
    """What is worth more than the part lowers what demand is worth, until it is worth so much of the part less: so a
    bound is near, however far the duals are; 0: it does not.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Patterns worth more than they cost, and by pool what none is worth more than at these duals."""

    rows: Patterns
    ceilings: Floats
    duals: Floats


class Pricing:
    """One problem's, with its rows as they are; the rows may get cuts later."""

    def __init__(self, judge: Judge, rows: Rows, width: int) -> None:
        self._judge, self._rows, self._width = judge, rows, width
        self._scale = scale_of(judge.problem)
        self._taken = np.where(judge.problem.pool_devices > 0, 1.0, 0.0)
        self._lanes = min(judge.contents.lanes, max(1, int(np.count_nonzero(judge.problem.pool_devices))))
        self._look_units, self._look_least = (each * len(judge.problem.workloads) for each in LOOK_UNITS)
        self._step_pct, self._unit_ms = 0, 1.0
        """That a unit of work at all shares takes on this machine, by the last look; at least as long as where it was
        counted.
        """

    def slowness(self, deadline: Deadline) -> float:
        """How many times as long as where it was counted a unit takes here, where time is what ends the search."""
        return self._unit_ms if deadline.work_units is None else 1.0

    def nearest(self, deadline: Deadline, until_part: float) -> float:
        """How closely there is time to look at all shares, roughly: a look that ends early proves little. Where
        there are few workloads closer looks take hardly longer.
        """
        if len(self._judge.problem.workloads) <= LOOSE_WORKLOADS:
            return LOOK_LEAST
        units = deadline.units_until(until_part)
        if deadline.work_units is None:
            units *= self._lanes / self._unit_ms
        return float(np.clip(self._look_units / max(1.0, units), LOOK_LEAST, LOOK_MOST))

    def price(self, duals: Floats, look: Look, deadline: Deadline, until_part: float) -> Found:
        """The best patterns at these duals, or at what they settle at. Pools have equal parts of the work at first,
        then by what each took, by its root where that was at other shares and time is what ends a look: a part stays
        equal, so all have a ceiling, however little. So much of the time is kept for those that wait, too.
        """
        items, contents = self._rows.item_prices(duals), self._judge.contents
        contents.prepared()
        ceilings = np.where(self._judge.problem.pool_devices > 0, np.inf, 0.0)
        found, size = [Patterns.none(self._width)], self._width
        pools = np.flatnonzero(self._judge.problem.pool_devices).tolist()
        units, begun_s, timed = deadline.units_until(until_part), deadline.elapsed_s, deadline.work_units is None
        coarse = COARSE if look.step_pct > max(1, self._judge.problem.share_step_pct) else 1.0
        lanes, unit_ms = self._lanes, coarse * self._unit_ms
        if timed:
            units *= lanes / unit_ms
        within_s, late_s = deadline.seconds_until(until_part), min(LATE_PART, until_part / 2) * deadline.seconds
        weights = np.sqrt(self._taken) if timed and look.step_pct != self._step_pct else self._taken
        self._step_pct, efforts = look.step_pct, dict[int, Effort]()
        for place, pool in enumerate(pools if units > 0 else ()):
            waiting = max(0, len(pools) - place - lanes)
            most, taken = look.part * self._scale[pool], weights[pool] / weights.sum()
            equal = EQUAL_PART / len(pools)
            efforts[pool] = Effort(
                floor=0.0 if look.settles else -most,
                tolerance=most,
                step_pct=look.step_pct,
                units=(equal + (1 - EQUAL_PART) * taken) * units,
                until_s=deadline.moment((1 - waiting * equal) * within_s + late_s),
                repeats=look.repeats,
                settles=look.settles,
            )
        for pool, best in zip(efforts, contents.price(items, efforts), strict=True):
            deadline.spend(best.units)
            self._taken[pool] = best.units
            ceilings[pool] = best.ceiling
            items = replace(items, pi=np.minimum(items.pi, best.pi))
            found.append(best.rows.narrowed(size))
        self._look_units = max(self._look_units / 4, self._look_least)
        if coarse == 1.0:
            self._look_units = look.part * float(self._taken.sum())
        took_ms = 1000 * lanes * (deadline.elapsed_s - begun_s)
        begun = BEGIN_UNITS * len(self._judge.problem.workloads) * len(efforts)
        self._unit_ms = max(1.0, took_ms / max(1.0, coarse * self._taken.sum() + begun))
        settled, works = duals.copy(), self._rows.pool_at
        settled[:works] = np.where(self._rows.wanted, items.pi, duals[:works])
        return Found(rows=Patterns.chained(found), ceilings=ceilings, duals=settled)


EQUAL_PART, LATE_PART = 0.25, 0.05
"""Of the work of a look; and of the deadline, how much longer it may take than it should: just before its end it shows
little.
"""
LOOSE_WORKLOADS = 1500
LOOK_LEAST, LOOK_MOST, LOOK_UNITS = 2e-4, 0.1, (1.2, 0.12)
"""How closely it may be looked at all shares; and of work by workload the first such look takes, by how closely it
looks: a quarter of it after each look at fewer, and no less than so much.
"""
COARSE, BEGIN_UNITS = 2.3, 0.04
"""So many times as long as at all shares a unit takes at fewer; and so many, by workload and pool, what is not counted
takes before the first.
"""


def scale_of(problem: JointProblem) -> Floats:
    """By pool what a device costs, whole."""
    return np.maximum(problem.idle_usd, problem.pool_usd)


def lagrangian(rows: Rows, duals: Floats, worth: Floats) -> float:
    """The bound that follows. With value above cost at most `worth` (by pool), duals scaled by any t in (0, 1] prove

    t * (duals x sides) - sum over pools of devices * max(0, t * worth - (1 - t) * least cost of a pattern).
    """
    problem = rows.problem
    if not np.isfinite(worth).all():
        return -np.inf
    devices, cost = problem.pool_devices.astype(np.float64), problem.idle_usd
    pools = float(duals[rows.pool_at : rows.cap_at] @ rows.upper[rows.pool_at : rows.cap_at])
    total = rows.sides(duals) + pools
    scales = [1.0, *(float(c / (c + w)) for c, w in zip(cost, worth, strict=True) if c > 0 and w > 0)]
    return max(t * total - float((devices * np.maximum(0.0, t * worth - (1 - t) * cost)).sum()) for t in scales)
