"""What stands, less what nobody needs any more: the layout that changes least.

Owns one small step: workloads that are to change and serve more than they are sized for lose replicas, those first
whose going saves most. What is short is made up when devices are seated. It refuses to move anybody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from solvers.problems.joint import JointProblem
from solvers.problems.layout import Layout, Standing
from solvers.problems.patterns import Pattern, judge

DUST = 1e-6


def held(problem: JointProblem, standing: tuple[Standing, ...], restless: Iterable[int]) -> Layout:
    """The standing layout without its surplus."""
    counts: Counter[Pattern] = Counter({item.pattern: item.devices for item in standing})
    layout = Layout(patterns=tuple(counts), counts=tuple(counts.values()))
    served = layout.served_rps(problem)
    replicas = np.zeros(len(problem.workloads), dtype=np.int64)
    for pattern, count in counts.items():
        np.add.at(replicas, problem.variant_workload[list(pattern.variants)], count)
    for workload in sorted(restless):
        work = problem.workloads[workload]
        while replicas[workload] > work.replicas_min:
            over = replicas[workload] > work.replicas_max
            spare = np.inf if over else float(served[workload]) - work.rate_rps * (1 - DUST)
            change = _lighter(problem, counts, workload, spare)
            if change is None:
                break
            before, after = change
            counts[before] -= 1
            if after is not None:
                counts[after] += 1
            for end, sign in ((before, -1), (after, 1)):
                for variant, capacity in () if end is None else zip(end.variants, end.capacity_rps, strict=True):
                    served[problem.variants[variant].workload] += sign * capacity
                    replicas[problem.variants[variant].workload] += sign
    left = {pattern: count for pattern, count in counts.items() if count > 0}
    return Layout(patterns=tuple(left), counts=tuple(left.values()))


def _lighter(
    problem: JointProblem, counts: Counter[Pattern], workload: int, spare_rps: float
) -> tuple[Pattern, Pattern | None] | None:
    """The device that saves most when it loses one replica of no more capacity than is spare."""
    best: tuple[tuple[float, float], Pattern, Pattern | None] | None = None
    for pattern, count in counts.items():
        for place, variant in enumerate(pattern.variants if count > 0 else ()):
            if problem.variants[variant].workload != workload or pattern.capacity_rps[place] > spare_rps:
                continue
            rest = [number for number in range(len(pattern.variants)) if number != place]
            after = None
            if rest:
                after = judge(
                    problem,
                    pattern.kind,
                    [pattern.variants[number] for number in rest],
                    [pattern.shares_pct[number] for number in rest],
                )
                if after is None:
                    continue
            saved = pattern.usd_per_h - (0.0 if after is None else after.usd_per_h)
            key = (-saved, -float(pattern.shares_pct[place]))
            if best is None or key < best[0]:
                best = key, pattern, after
    return None if best is None else best[1:]
