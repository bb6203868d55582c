"""The solve: first answer, relaxed optimum, whole devices, small changes; the best of them is returned.

Owns the order of phases and what each may spend, and that the answer is never worse than the first one. It refuses to
know devices by name: seating does.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from solvers.engines.base import Limits
from solvers.engines.deadline import Deadline
from solvers.engines.registry import create
from solvers.planners.joint.core.bound import Bound, lagrangian
from solvers.planners.joint.core.dive import Chosen, Depth, Dive, Scene
from solvers.planners.joint.core.first import first_layout
from solvers.planners.joint.core.generate import Pace, generate, singles
from solvers.planners.joint.core.master import Master
from solvers.planners.joint.core.order import SolveOrder
from solvers.planners.joint.core.pricing import Pricing
from solvers.planners.joint.core.sets import Judge
from solvers.planners.joint.core.tables import levels_of, tables_of
from solvers.planners.joint.core.trim import trim
from solvers.problems.joint import Floats, JointProblem
from solvers.problems.layout import Layout, Prices
from solvers.problems.patterns import Pattern, judge

BOUND_PART = 0.002
BOUND_UNTIL = 0.02
GENERATE_UNTIL = 0.5
DIVE_UNTIL = 0.2


def solve(problem: JointProblem, order: SolveOrder, deadline: Deadline) -> Layout:
    """The best layout found before the deadline, with a proven bound where there is one."""
    first = first_layout(problem)
    facts = {"first_s": deadline.elapsed_s, "first_usd_per_h": value_of(problem, first)}
    if not problem.workloads or not problem.kinds or deadline.over:
        return Layout(patterns=first.patterns, counts=first.counts, facts=facts)
    exact = Judge(problem)
    master = Master(problem, exact)
    tables = tables_of(problem, exact, levels_of(problem, master.width))
    pricing = Pricing(problem, tables, master.rows, master.width)
    master.offer(singles(problem, master.width))
    master.offer(master.of_patterns((*first.patterns, *order.warm)))
    master.keep_standing(order.standing, order.launch_usd_per_s)
    relaxation = generate(master, pricing, deadline, Pace(until_part=GENERATE_UNTIL))
    facts |= {"columns": float(len(master.pool)), "generate_s": deadline.elapsed_s - facts["first_s"]}
    best, prices, bound = first, None, None
    if relaxation is not None:
        prices = _prices(master, relaxation.best.row_duals)
        facts |= {"rounds": float(relaxation.rounds), "relaxed_usd_per_h": relaxation.best.value}
        scene = Scene(problem=problem, judge=exact, tables=tables, engine=create("highs"))
        depth = Depth(limits=Limits(time_s=0.05 * deadline.seconds), until_part=DIVE_UNTIL)
        chosen = Dive(scene, depth).run(master, pricing, relaxation.best, deadline)
        found = layout_of(problem, chosen)
        facts["dive_s"] = deadline.elapsed_s - facts["first_s"] - facts["generate_s"]
        found = trim(problem, found, deadline)
        facts["trim_s"] = deadline.elapsed_s - facts["first_s"] - facts["generate_s"] - facts["dive_s"]
        best = min(first, found, key=lambda item: value_of(problem, item))
        bound, facts["bound_s"] = _proven(master, relaxation.best.row_duals, deadline)
    facts["first_won"] = float(best is first)
    return Layout(patterns=best.patterns, counts=best.counts, bound_usd_per_h=bound, prices=prices, facts=facts)


def layout_of(problem: JointProblem, chosen: Chosen) -> Layout:
    """Whole devices as a layout, judged once more."""
    sets = chosen.sets
    merged: Counter[tuple[int, tuple[int, ...], tuple[int, ...]]] = Counter()
    for row in np.flatnonzero(chosen.counts).tolist():
        size = int((sets.member[row] >= 0).sum())
        members, shares = tuple(sets.member[row, :size].tolist()), tuple(sets.share[row, :size].tolist())
        merged[int(sets.kind[row]), members, shares] += int(chosen.counts[row])
    patterns: dict[Pattern, int] = {}
    for (kind, members, shares), count in sorted(merged.items()):
        pattern = judge(problem, kind, members, shares)
        if pattern is not None:
            patterns[pattern] = count
    return Layout(patterns=tuple(patterns), counts=tuple(patterns.values()))


def value_of(problem: JointProblem, layout: Layout) -> float:
    """Cost with unserved demand priced in."""
    wanted = problem.rate_rps > 0
    served = layout.served_rps(problem)[wanted] / problem.rate_rps[wanted]
    missing = np.maximum(0.0, 1 - served)
    missing[missing < 1e-9] = 0.0
    return layout.usd_per_h + float(problem.unserved_usd[wanted] @ missing)


def _proven(master: Master, duals: Floats, deadline: Deadline) -> tuple[float | None, float]:
    """The bound that these duals prove, None where there was no time for any; and the seconds it took."""
    begun_s, problem = deadline.elapsed_s, master.problem
    bound = Bound(problem, master.judge, master.rows, duals)
    idle = np.array([problem.idle_usd_per_h(pool) for pool in range(len(problem.pools))])
    bound.tighten(BOUND_PART * idle, deadline, BOUND_UNTIL)
    value = lagrangian(master.rows, duals, bound.worth)
    return value if np.isfinite(value) else None, deadline.elapsed_s - begun_s


def _prices(master: Master, duals: Floats) -> Prices:
    rows = master.rows
    cap_usd = np.zeros(len(master.problem.caps))
    cap_usd[rows.cap_number] = np.maximum(0.0, -duals[rows.cap_at : rows.quota_at] / rows.cap_unit)
    return Prices(
        demand_usd=np.where(rows.wanted, duals[: rows.pool_at], 0.0),
        pool_usd=np.maximum(0.0, -duals[rows.pool_at : rows.cap_at]),
        cap_usd=cap_usd,
        quota_usd=np.maximum(0.0, -duals[rows.quota_at : rows.quota_at + len(master.problem.quotas)]),
    )
