"""How much of what stands is opened: everything now and then, else only what has a reason to change.

Owns the decision, from the snapshot and the moment of the last full solve, so that a repeated cycle decides alike and
it matters to nobody at which moments cycles run. A workload has a reason when what stands of it is short, breaks a rule
or a promise, or could do with notably less (but for who can always use more). A full solve is due when nothing stands,
when many have reasons, or when the last one is long past or unknown. It refuses to know what else was decided before.
"""

from __future__ import annotations

from dataclasses import dataclass

from solvers.planners.joint.reading.formulation import Reading
from solvers.planners.joint.spare.filling import open_ended
from solvers.problems.joint import JointProblem, Workload
from solvers.problems.layout import Standing

FULL_EVERY_S = 300.0
"""So long after the last full solve the next cycle is one again."""
OPEN_PART_MAX = 0.3
"""With more workloads open than this, all are."""
SURPLUS = 1.5
"""What serves so many times what it is sized for could be smaller."""
DUST = 1e-6


def scope_of(
    reading: Reading, standing: tuple[Standing, ...], restless: frozenset[int], full_at_s: float | None
) -> frozenset[int] | None:
    """Workloads that may change, by number; None for all. `full_at_s`: when the last full solve was, as snapshots
    count; None: nobody knows.
    """
    if not standing or full_at_s is None:
        return None
    if not 0.0 <= reading.snapshot.taken_at_s - full_at_s < FULL_EVERY_S:
        return None  # also where the clock was put back: the last one would be ahead for ever
    if len(restless) > max(1.0, OPEN_PART_MAX * len(reading.problem.workloads)):
        return None
    return restless


@dataclass(slots=True)
class _Stood:
    """What stands of one workload, as far as it is lawful and keeps its promises."""

    rps: float = 0.0
    rps_least: float = float("inf")
    """Of its smallest replica."""
    replicas: int = 0
    share_pct_most: int = 0


def restless_of(reading: Reading, standing: tuple[Standing, ...]) -> frozenset[int]:
    """Workloads that have a reason to change, by number."""
    problem = reading.problem
    stood = [_Stood() for _ in problem.workloads]
    for item in standing:
        pattern = item.pattern
        for variant, share, capacity in zip(pattern.variants, pattern.shares_pct, pattern.capacity_rps, strict=True):
            one = stood[problem.variants[variant].workload]
            one.rps += capacity * item.devices
            one.rps_least = min(one.rps_least, capacity)
            one.replicas += item.devices
            one.share_pct_most = max(one.share_pct_most, share)
    seen = [0] * len(problem.workloads)
    lost: set[str] = set()
    for stands in reading.standing.values():
        for each in stands:
            if each.variant is None:
                lost.add(each.assignment.workload)
            else:
                seen[problem.variants[each.variant].workload] += 1
    more = open_ended(reading.snapshot)
    return frozenset(
        number
        for number, (work, one) in enumerate(zip(problem.workloads, stood, strict=True))
        if seen[number] != one.replicas
        or work.id in lost
        or _needs(work, one)
        or (work.id not in more and _has_plenty(problem, work, one))
    )


def _needs(work: Workload, one: _Stood) -> bool:
    """Whether it is short, or has more replicas than it may."""
    return one.rps < work.rate_least_rps * (1 - DUST) or not work.replicas_min <= one.replicas <= work.replicas_max


def _has_plenty(problem: JointProblem, work: Workload, one: _Stood) -> bool:
    """Whether it could do with notably less."""
    fewer = one.replicas > max(1, work.replicas_min) and one.rps - one.rps_least >= work.rate_rps
    smaller = one.rps > SURPLUS * work.rate_rps and one.share_pct_most > int(problem.shares_pct[0])
    return fewer or (one.replicas > 0 and smaller)
