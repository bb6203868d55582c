"""The solve: first answer, better answers, a bound; never worse than the first answer.

Owns what is done in which order and for how long. Problems of some hundred workloads are solved whole; larger ones in
groups, whose layouts add up, and what stays short is made up on the whole. It refuses to know devices by name: seating
does.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.course import Course, charge, kept_usd, portion
from solvers.planners.joint.solve.first import first_layout
from solvers.planners.joint.solve.groups import Group, groups_of, together
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.layouts import judged_usd, missing_of, prices_of, value_of, whole_rate_usd
from solvers.planners.joint.solve.order import SolveOrder
from solvers.planners.joint.solve.proving import plain, proven, proven_at
from solvers.planners.joint.solve.repair import repair
from solvers.planners.joint.solve.rows import Rows, gathered
from solvers.problems.joint import Floats, JointProblem, Whole
from solvers.problems.layout import Layout, Prices

PROOF_PART = 0.25
"""Of the deadline, kept for the bound: to serve everybody comes before proving anything."""
END = 0.02
"""Of the deadline, kept for putting the answer together."""
GROUPS_UNTIL = 0.15
MEND_PART = 0.4


def solve(problem: JointProblem, order: SolveOrder, deadline: Deadline) -> Layout:
    """The best layout found before the deadline, with a proven bound where there was time for one. Facts: columns,
    rounds, the relaxed optimum (over the patterns found, so no bound), seconds by phase, and whether the first answer
    was the best. Raises EngineError when an engine breaks.
    """
    first = first_layout(problem)
    facts = {"first_s": deadline.elapsed_s, "first_usd_per_h": value_of(problem, first)}
    if not problem.workloads or not problem.kinds or deadline.over:
        return replace(first, facts=facts | {"first_won": 1.0})
    groups = groups_of(problem, whole_rate_usd(problem))
    solved = _whole if len(groups) == 1 else _grouped
    found = solved(problem, (order, first, groups), deadline)
    best = min(found, first, key=lambda item: judged_usd(problem, item) - kept_usd(problem, order, item))
    return Layout(
        patterns=best.patterns,
        counts=best.counts,
        bound_usd_per_h=found.bound_usd_per_h,
        prices=found.prices,
        columns=found.columns,
        facts=facts | found.facts | {"first_won": float(best is first), "groups": float(len(groups))},
    )


Begin = tuple[SolveOrder, Layout, tuple[Group, ...]]


def _whole(problem: JointProblem, begin: Begin, deadline: Deadline) -> Layout:
    order, first, _ = begin
    within = portion(deadline, 1 - PROOF_PART * order.proof)
    course = Course(problem=problem, order=order, deadline=within, first=first)
    layout = course.run()
    charge(deadline, within)
    bound: float | None = None
    prices: Prices | None = None
    if course.search is not None:
        master, pricing, relaxed = course.search
        begun_s = deadline.elapsed_s
        proof = proven((plain(master), pricing, relaxed), deadline, END) if order.proof else None
        duals = relaxed.row_duals if proof is None else proof.duals
        prices = prices_of(master, duals)
        course.facts["bound_s"] = deadline.elapsed_s - begun_s
        if proof is not None:
            bound = proof.usd_per_h
            course.facts["relaxed_usd_per_h"] = proof.relaxed.value
    return replace(layout, bound_usd_per_h=bound, prices=prices, columns=course.columns, facts=course.facts)


def _grouped(problem: JointProblem, begin: Begin, deadline: Deadline) -> Layout:
    order, first, groups = begin
    done: list[tuple[Group, Layout]] = []
    priced: list[tuple[Rows, Floats, Whole]] = []
    for place, group in enumerate(groups):
        part = (1 - GROUPS_UNTIL / max(deadline.left_part, GROUPS_UNTIL)) / (len(groups) - place)
        inside = replace(order, standing=group.standing(order.standing), warm=group.inside(order.warm))
        own = Layout(patterns=(), counts=())
        within = portion(deadline, part)
        course = Course(problem=group.problem, order=inside, deadline=within, first=own)
        layout = course.run()
        charge(deadline, within)
        done.append((group, replace(layout, columns=course.columns, facts=course.facts)))
        if course.search is not None:
            workloads = np.unique(problem.variant_workload[group.variants])
            priced.append((course.search[0].rows, course.search[2].row_duals, workloads))
    merged = together(done)
    if missing_of(problem, merged).any() and not deadline.over:
        rng = np.random.default_rng(order.seed)
        within = portion(deadline, MEND_PART)
        fixed = repair(problem, merged, first.prices, within, rng)
        if judged_usd(problem, fixed) < judged_usd(problem, merged):
            merged = replace(merged, patterns=fixed.patterns, counts=fixed.counts)
        charge(deadline, within)
    if order.proof and len(priced) == len(groups):
        rows = Rows(problem)
        merged = replace(merged, bound_usd_per_h=proven_at(rows, Judge(problem), gathered(rows, priced), deadline, END))
    return merged
