"""A first layout at once: column generation that has hardly begun, and one short dive from there.

Single replicas on whole devices are a beginning for the master; a few rounds at coarse shares give it patterns, and the
dive makes devices whole in large steps. What it may look at grows with the number of workloads and is no part of
anybody's budget, for without it there is nothing to answer.
"""

from __future__ import annotations

from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.generate import (
    COARSE_PCT,
    REPEATS_MAX,
    Depth,
    Dive,
    Generation,
    Pace,
    Pricing,
    Scene,
    generate,
    singles,
)
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Master
from solvers.planners.joint.solve.solution import Rules
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout

ROUNDS = 3
UNITS, UNITS_PER_WORKLOAD = 50, 1.5


def first_layout(problem: JointProblem, time_left_s: float = 1e9) -> Layout:
    """A layout that keeps every rule; demands that count least go without where devices lack."""
    rules = Rules(Judge(problem))
    master = Master(problem, rules.judge)
    master.offer(singles(problem, master.width))
    pricing = Pricing(rules.judge, master.rows, master.width)
    deadline = Deadline(time_left_s, UNITS + int(UNITS_PER_WORKLOAD * len(problem.workloads)))
    pace = Pace(rounds=ROUNDS, repeats=REPEATS_MAX, finest_pct=COARSE_PCT)
    begun = generate(master, pricing, deadline, pace) if master.size else None
    if begun is None:
        return Layout(patterns=(), counts=())
    dive = Dive(Scene(problem=problem, rules=rules), Depth(rounds=1, group_part=1.0, up_part=1.0))
    return dive.run(Generation(master=master, pricing=pricing, relaxed=begun.best), deadline)
