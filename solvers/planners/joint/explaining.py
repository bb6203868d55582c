"""What a joint plan's planner found out, for explanations: prices, candidates, what would have to give.

Owns the order of finding out and what it may cost: it never delays a plan, and leaves out what there is no time for,
saying so. It refuses to change a plan and to word anything.
"""

from __future__ import annotations

import numpy as np

from solvers.domain.evidence import Fact
from solvers.domain.insight import Insight, Resource
from solvers.domain.plan import Plan
from solvers.planners.joint.explaining_candidates import candidates_of
from solvers.planners.joint.explaining_prices import prices_of
from solvers.planners.joint.explaining_short import relaxations_of
from solvers.planners.joint.explaining_terms import Terms
from solvers.planners.joint.reading import Reading
from solvers.problems.layout import Layout

AT_UNSERVED_PART = 0.999
"""Of what leaving it unserved counts: demand that is worth so much is priced as unserved."""
SECONDS_LEAST = 0.3
SECONDS_PER_WORKLOAD = 0.0006


def affords(reading: Reading, seconds: float) -> bool:
    """Whether there is time to find out, by the size of the problem."""
    return seconds >= SECONDS_LEAST + SECONDS_PER_WORKLOAD * len(reading.problem.workloads)


def explained(reading: Reading, layout: Layout, plan: Plan) -> Insight:
    """Prices, candidates and relaxations of a plan; contenders are the planner's own."""
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
    # What a longer promise does to tokens is not in the problem: their rates were found at the promise.
    tokens = {need.workload for need in reading.needs if need.tokens is not None}
    prices = tuple(
        item
        for item in prices_of(problem, layout)
        if item.resource is not Resource.LATENCY_MS or item.subject not in tokens
    )
    return Insight(
        prices=prices,
        candidates=table.candidates,
        relaxations=relaxations_of(reading, plan),
        facts=tuple(facts),
    )
