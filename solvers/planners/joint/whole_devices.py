"""Problems in which every replica takes a whole device: then it is a matter of counting, and counting is solved better.

Nothing but the devices of each pool may limit such a problem: no caps, quotas, budgets or floors, for counts know none
of these. What counting proves holds for plans that serve every demand; to count, one is served whole or not at all.
"""

from __future__ import annotations

import numpy as np

from solvers.engines.base import create
from solvers.engines.deadline import Deadline
from solvers.planners.counting.covers import cover
from solvers.planners.counting.demands import Covers
from solvers.planners.joint.solve.judge import Judge
from solvers.problems.joint import WHOLE_PCT, JointProblem
from solvers.problems.patterns import Layout, Pattern, serve

WORKLOADS_COUNTED_MAX = 60
"""With counted work instead of time: what larger ones find depends on how fast the machine is."""
DUST = 1e-9


def counted(problem: JointProblem, deadline: Deadline, gap: float) -> Layout | None:
    """With what serving every workload costs at least; None where it is no matter of counting."""
    single = all(work.replicas_min <= 1 and work.rate_least_rps for work in problem.workloads)
    apart = single and problem.only_whole and not (problem.coupled or problem.by_replica)
    if not apart or (deadline.work_units is not None and len(problem.workloads) > WORKLOADS_COUNTED_MAX):
        return None
    judge, variants = Judge(problem), np.arange(len(problem.variants))
    alone = judge.patterns(judge.alone(np.arange(problem.kinds), variants, np.array([WHOLE_PCT])))
    options = sorted(alone, key=lambda item: (problem.variants[item.variants[0]].workload, item.key))
    if not options:
        return None
    covers = Covers(
        demand=problem.rate_rps,
        unserved_usd=problem.unserved_usd,
        option_demand=problem.variant_workload[[item.variants[0] for item in options]],
        option_rate=np.array([item.capacity_rps[0] for item in options]),
        option_usd=np.array([item.usd_per_h for item in options]),
        option_resource=problem.kind_pool[[item.kind for item in options]],
        option_units=np.ones(len(options), dtype=np.int64),
        units=problem.pool_devices,
    )
    found = cover(covers, create("highs"), deadline, gap=gap)
    replicas = np.bincount(covers.option_demand, weights=found.counts, minlength=len(problem.workloads))
    if (replicas > [work.replicas_max for work in problem.workloads]).any():
        return None
    used = np.flatnonzero(found.counts)
    patterns, counts = tuple(options[at] for at in used), tuple(found.counts[used].tolist())
    spared = _energy_spared(problem, options)
    proven = found.bound - spared if np.isfinite(found.bound) and not found.unserved_least else None
    return Layout(patterns=patterns, counts=counts, bound_usd_per_h=proven)


def _energy_spared(problem: JointProblem, options: list[Pattern]) -> float:
    """The most that all devices together could save with smaller batches than those of most capacity, $/h."""
    if not problem.usd_per_wh:
        return 0.0
    most: dict[int, float] = {}
    for item in options:
        table, variant = int(problem.kind_table[item.kind]), item.variants[0]
        mean, tail = (cells[table, variant, -1:] for cells in (problem.mean_ms, problem.tail_ms))
        _, (rate,) = serve(problem, np.array([variant]), mean, tail)
        least_w = float(problem.power_w[table, variant, -1][rate > 0].min())
        pool = int(problem.kind_pool[item.kind])
        most[pool] = max(most.get(pool, 0.0), problem.usd_per_wh * max(0.0, item.power_w[0] - least_w))
    return sum(usd * problem.pools[pool].devices for pool, usd in most.items() if usd > DUST)
