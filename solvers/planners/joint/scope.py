"""How much of what stands is opened: everything now and then, else only what has a reason to change.

Owns the decision, from the snapshot alone, so that a repeated cycle decides alike. A workload has a reason when what
stands of it is short, breaks a rule or a promise, or could do with a replica less. A full solve is due when nothing
stands, when many have reasons, or when its hour has come. It refuses to know what was decided before.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from solvers.planners.joint.reading import Reading
from solvers.problems.layout import Standing

FULL_EVERY_S = 300.0
FULL_FOR_S = 30.0
"""In the first so many seconds of every `FULL_EVERY_S` everything is open."""
OPEN_PART_MAX = 0.3
"""With more workloads open than this, all are."""


def scope_of(reading: Reading, standing: tuple[Standing, ...]) -> frozenset[int] | None:
    """Workloads that may change, by number; None for all."""
    snapshot, problem = reading.snapshot, reading.problem
    if not standing or snapshot.taken_at_s % FULL_EVERY_S < FULL_FOR_S:
        return None
    restless = _restless(reading, standing)
    if len(restless) > max(1.0, OPEN_PART_MAX * len(problem.workloads)):
        return None
    return frozenset(restless)


def _restless(reading: Reading, standing: tuple[Standing, ...]) -> set[int]:
    problem = reading.problem
    served = np.zeros(len(problem.workloads))
    smallest = np.full(len(problem.workloads), np.inf)
    replicas: dict[int, int] = defaultdict(int)
    for item in standing:
        for variant, capacity in zip(item.pattern.variants, item.pattern.capacity_rps, strict=True):
            workload = problem.variants[variant].workload
            served[workload] += capacity * item.devices
            smallest[workload] = min(smallest[workload], capacity)
            replicas[workload] += item.devices
    seen: dict[int, int] = defaultdict(int)
    lost: set[str] = set()
    for stands in reading.standing.values():
        for one in stands:
            if one.variant is None:
                lost.add(one.assignment.workload)
            else:
                seen[problem.variants[one.variant].workload] += 1
    found: set[int] = set()
    for number, work in enumerate(problem.workloads):
        broken = seen[number] != replicas[number] or work.id in lost
        short = served[number] < work.rate_least_rps * (1 - 1e-6) or replicas[number] < work.replicas_min
        spare = replicas[number] > max(1, work.replicas_min) and served[number] - smallest[number] >= work.rate_rps
        if broken or short or spare or replicas[number] > work.replicas_max:
            found.add(number)
    return found
