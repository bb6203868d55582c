"""Pricing: the contents of devices that improve a relaxed optimum most, and what none is worth more than.

`engines.contents` searches all contents of all devices, whatever the shares, so one question answers both: patterns
worth adding, and by pool a ceiling from which follows a bound on the cost of every layout (weak duality, `lagrangian`).
While duals are far from the optimum it need not look closely: at coarse shares only, and how far ceilings may stay
above what was found is a part of what devices cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats
from solvers.engines.contents import ContentPrices, Effort
from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.judge import Judge, Patterns
from solvers.planners.joint.solve.master import Rows
from solvers.problems.joint import JointProblem

PART_PROVEN = 0.005
"""Of what devices cost: where duals are not the best ones, to look closer is worth nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How closely to look."""

    part: float
    """Of what a device costs, ceilings may be too high."""
    step_pct: int
    """Shares are multiples of this; ceilings hold where it is the problem's step."""
    repeats: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Patterns worth more than they cost, and by pool what none is worth more than."""

    rows: Patterns
    ceilings: Floats


class Pricing:
    """One problem's, with its rows as they are; the rows may get cuts later."""

    def __init__(self, judge: Judge, rows: Rows, width: int) -> None:
        self._judge, self._rows, self._width = judge, rows, width
        self._scale = scale_of(judge.problem)

    def price(self, duals: Floats, look: Look, deadline: Deadline, until_part: float) -> Found:
        """The best patterns at these duals."""
        prices, contents = self._prices(duals), self._judge.contents
        ceilings = np.where(self._judge.problem.pool_devices > 0, np.inf, 0.0)
        found = [Patterns.none(self._width)]
        pools = np.flatnonzero(self._judge.problem.pool_devices).tolist()
        for place, pool in enumerate(pools):
            units = deadline.units_until(until_part) / (len(pools) - place)
            if units <= 0:
                break
            tolerance = look.part * self._scale[pool]
            effort = Effort(
                floor=-tolerance, tolerance=tolerance, step_pct=look.step_pct, units=units, repeats=look.repeats
            )
            best = contents.price(prices, pool, effort)
            deadline.spend(best.units)
            ceilings[pool] = best.ceiling
            size = self._width
            found.append(
                Patterns(kind=best.kind, variants=best.variants[:, :size], shares_pct=best.shares_pct[:, :size])
            )
        return Found(rows=Patterns.chained(found), ceilings=ceilings)

    def _prices(self, duals: Floats) -> ContentPrices:
        items = self._rows.item_prices(duals)
        return ContentPrices(
            pi=items.pi,
            replica=items.replica,
            rate_rps=np.maximum(self._rows.rate, 1e-12),
            watt=items.watt,
            share=items.share,
            fixed=items.fixed,
            cut_steps=np.array([steps for steps, _ in items.steps], dtype=np.float64),
            cut_usd=np.array([usd for _, usd in items.steps], dtype=np.float64),
        )


def scale_of(problem: JointProblem) -> Floats:
    """By pool what a device costs, whole."""
    return np.array([max(problem.idle_usd_per_h(at), pool.usd_per_h) for at, pool in enumerate(problem.pools)])


def lagrangian(rows: Rows, duals: Floats, worth: Floats) -> float:
    """The bound that follows. With value above cost at most `worth` (by pool), duals scaled by any t in (0, 1] prove

    t * (duals x sides) - sum over pools of devices * max(0, t * worth - (1 - t) * least cost of a pattern).
    """
    problem = rows.problem
    if not np.isfinite(worth).all():
        return -np.inf
    devices = problem.pool_devices.astype(np.float64)
    cost = np.array([problem.idle_usd_per_h(pool) for pool in range(len(problem.pools))])
    pools = float(duals[rows.pool_at : rows.cap_at] @ rows.upper[rows.pool_at : rows.cap_at])
    total = rows.sides(duals) + pools
    scales = [1.0, *(float(c / (c + w)) for c, w in zip(cost, worth, strict=True) if c > 0 and w > 0)]
    return max(t * total - float((devices * np.maximum(0.0, t * worth - (1 - t) * cost)).sum()) for t in scales)


def proven_at(rows: Rows, judge: Judge, duals: Floats, deadline: Deadline, until_part: float) -> Floats | None:
    """By pool what no pattern is worth above its device's price at these duals; None where there was no time to see."""
    look = Look(part=PART_PROVEN, step_pct=max(1, rows.problem.share_step_pct))
    ceilings = Pricing(judge, rows, judge.width).price(duals, look, deadline, until_part).ceilings
    return ceilings if np.isfinite(ceilings).all() else None
