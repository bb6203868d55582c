"""What stands, less what nobody needs any more: the layout that changes least.

Owns one small step: workloads that are to change and serve more than they are sized for lose replicas, those first
whose going saves most. What is short is made up when devices are seated. It refuses to move anybody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from solvers.problems.joint import Floats, JointProblem, Whole
from solvers.problems.layout import Layout, Standing
from solvers.problems.patterns import Pattern, judge

DUST = 1e-6


@dataclass(frozen=True, slots=True)
class _Stand:
    """Patterns by count, with what they serve and how many replicas they are."""

    problem: JointProblem
    counts: Counter[Pattern]
    served_rps: Floats
    replicas: Whole

    @staticmethod
    def of(problem: JointProblem, standing: tuple[Standing, ...]) -> _Stand:
        """What stands."""
        works = len(problem.workloads)
        made = _Stand(problem, Counter(), np.zeros(works), np.zeros(works, dtype=np.int64))
        for item in standing:
            made.count(item.pattern, item.devices)
        return made

    def count(self, pattern: Pattern, devices: int) -> None:
        """So many devices more with this pattern."""
        self.counts[pattern] += devices
        workloads = self.problem.variant_workload[list(pattern.variants)]
        np.add.at(self.served_rps, workloads, devices * np.array(pattern.capacity_rps))
        np.add.at(self.replicas, workloads, devices)


def held(problem: JointProblem, standing: tuple[Standing, ...], restless: Iterable[int]) -> Layout:
    """The standing layout without its surplus."""
    stand = _Stand.of(problem, standing)
    for workload in sorted(restless):
        while (change := _lighter(stand, workload)) is not None:
            before, after = change
            stand.count(before, -1)
            if after is not None:
                stand.count(after, 1)
    left = {pattern: count for pattern, count in stand.counts.items() if count > 0}
    return Layout(patterns=tuple(left), counts=tuple(left.values()))


def _lighter(stand: _Stand, workload: int) -> tuple[Pattern, Pattern | None] | None:
    """The device that saves most when it loses one replica of no more capacity than is spare."""
    work, served = stand.problem.workloads[workload], float(stand.served_rps[workload])
    replicas = int(stand.replicas[workload])
    if replicas <= work.replicas_min:
        return None
    spare_rps = np.inf if replicas > work.replicas_max else served - work.rate_rps * (1 - DUST)
    best: tuple[tuple[float, float], Pattern, Pattern | None] | None = None
    for pattern, place in _places(stand, workload):
        if pattern.capacity_rps[place] > spare_rps:
            continue
        after = _without(stand.problem, pattern, place)
        if after is None and len(pattern.variants) > 1:
            continue
        saved = pattern.usd_per_h - (0.0 if after is None else after.usd_per_h)
        key = (-saved, -float(pattern.shares_pct[place]))
        if best is None or key < best[0]:
            best = key, pattern, after
    return None if best is None else best[1:]


def _places(stand: _Stand, workload: int) -> Iterator[tuple[Pattern, int]]:
    of = stand.problem.variant_workload
    for pattern, count in stand.counts.items():
        if count > 0:
            yield from ((pattern, place) for place, variant in enumerate(pattern.variants) if of[variant] == workload)


def _without(problem: JointProblem, pattern: Pattern, place: int) -> Pattern | None:
    """The device less one of its replicas; None when it is then empty, or against a rule."""
    rest = [number for number in range(len(pattern.variants)) if number != place]
    if not rest:
        return None
    members, shares = [pattern.variants[number] for number in rest], [pattern.shares_pct[number] for number in rest]
    return judge(problem, pattern.kind, members, shares)
