"""What a joint plan's planner found out, for explanations: prices, candidates, what would have to give.

Owns the order of finding out and what it may cost: it never delays a plan, and leaves out what there is no time for,
saying so. It refuses to change a plan and to word anything.
"""

from __future__ import annotations

import numpy as np

from solvers.domain.evidence import Fact
from solvers.domain.insight import Insight
from solvers.domain.plan import Plan
from solvers.domain.workload import WorkloadKind
from solvers.planners.joint.explain.candidates import candidates_of
from solvers.planners.joint.explain.prices import prices_of
from solvers.planners.joint.explain.short import SHORT_MAX, relaxations_of
from solvers.planners.joint.explain.terms import Terms
from solvers.planners.joint.reading.formulation import Reading
from solvers.problems.joint import JointProblem
from solvers.problems.layout import Layout

AT_UNSERVED_PART = 0.999
"""Of what leaving it unserved counts: demand that is worth so much is priced as unserved."""
SECONDS_LEAST = 0.05
SECONDS_PER_WORKLOAD = 0.0006
SECONDS_PER_SHORT = 0.25
SHORT_PART = 0.05


def seconds_of(problem: JointProblem, deadline_s: float) -> float:
    """What to keep back for finding out: about what it takes, and a part of the deadline for those who are short."""
    return _told_s(problem) + min(SHORT_MAX * SECONDS_PER_SHORT, SHORT_PART * deadline_s)


def _told_s(problem: JointProblem) -> float:
    """About what it takes where nobody is short."""
    return SECONDS_LEAST + SECONDS_PER_WORKLOAD * len(problem.workloads)


def explained(reading: Reading, layout: Layout, plan: Plan, seconds: float | None = None) -> Insight | None:
    """Prices, candidates and relaxations of a plan; contenders are the planner's own. None, or fewer who are short,
    where there are too few seconds; without a number there is time enough.
    """
    most = SHORT_MAX
    if seconds is not None:
        spare = seconds - _told_s(reading.problem)
        if spare < 0:
            return None
        most = min(SHORT_MAX, int(spare / SECONDS_PER_SHORT))
    problem = reading.problem
    table = candidates_of(reading, plan, Terms.of(problem, layout.prices))
    facts = []
    if table.left_out:
        facts.append(Fact(name="workloads_without_candidates", value=float(table.left_out)))
    if layout.prices is not None:
        asked = np.array([work.rate_least_rps > 0 for work in problem.workloads], dtype=bool)
        at = asked & (layout.prices.demand_usd >= AT_UNSERVED_PART * problem.unserved_usd)
        if at.any():
            # Prices then carry what unserved demand counts, which is far above any money.
            facts.append(Fact(name="workloads_priced_as_unserved", value=float(at.sum())))
    short = sum(gap.kind is not WorkloadKind.JOB for gap in plan.unplaced)
    if short > most:
        facts.append(Fact(name="workloads_short_unexplained", value=float(short - most)))
    return Insight(
        prices=prices_of(problem, layout),
        candidates=table.candidates,
        relaxations=relaxations_of(reading, plan, most),
        facts=tuple(facts),
    )
