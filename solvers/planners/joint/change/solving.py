"""Layouts for one reading: the whole problem, or only what has a reason to change, and what stands less its surplus.

From the snapshot and the moment of the last full solve, so that a repeated cycle decides alike at whatever moments
cycles run: a workload has a reason to change when what stands of it is short, breaks a rule or a promise, or could do
with notably less (but for services that can always use more). A full solve is due when nothing stands, when many have
reasons, or when the last one is long past or unknown. A narrowed solve keeps the rest as it stands and proves nothing.
The layout that changes least is offered beside it: workloads that are to change and serve more than they are sized for
lose replicas, those first whose going saves most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.engines.deadline import Deadline
from solvers.planners.base import PlanRequest
from solvers.planners.joint.change.narrowing import narrow
from solvers.planners.joint.change.remembering import NOTHING, recall
from solvers.planners.joint.reading.formulation import Reading
from solvers.planners.joint.seat.seats import judged, members_of, without
from solvers.planners.joint.solve.phases import SolveOrder
from solvers.planners.joint.spare.filling import open_ended
from solvers.problems.joint import JointProblem, Workload
from solvers.problems.patterns import Layout, Pattern, Standing

FULL_EVERY_S = 300.0
"""So long after the last full solve the next cycle is one again."""
OPEN_PART_MAX = 0.3
"""With more workloads open than this, all are."""
SURPLUS = 1.5
"""What serves so many times what it is sized for could be smaller."""
DUST = 1e-6
Solve = Callable[[JointProblem, SolveOrder, Deadline], Layout]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """What came out, and what to begin with next time, the most useful first."""

    found: Layout
    """The solve's."""
    held: Layout | None
    """What changes least, where something stands; which of both is better shows when they are seated."""
    patterns: tuple[Pattern, ...]
    full_at_s: float | None
    """When the last full solve was, this one or an earlier one."""


def solved(solve: Solve, request: PlanRequest, reading: Reading, state: bytes, deadline: Deadline) -> Solved:
    """Raises EngineError as `solve` does."""
    policy, problem, standing = request.snapshot.policy, reading.problem, reading.standing_patterns()
    kept = recall(state, problem) if state else NOTHING
    order = SolveOrder(
        standing=standing,
        warm=kept.patterns,
        gap=policy.gap_pct_target / 100,
        seed=request.seed,
        launch_usd_per_s=policy.launch_usd_per_s,
    )
    restless = restless_of(reading, standing)
    opened = scope_of(reading, standing, restless, kept.full_at_s)
    found = solve(problem, order, deadline) if opened is None else _narrowly(solve, problem, order, opened, deadline)
    count = len(problem.workloads) if opened is None else len(opened)
    found = replace(found, facts=found.facts | {"workloads_open": float(count)})
    return Solved(
        found=found,
        held=held(problem, standing, restless) if standing else None,
        patterns=(*found.patterns, *found.columns, *order.warm),
        full_at_s=request.snapshot.taken_at_s if opened is None else kept.full_at_s,
    )


def _narrowly(
    solve: Solve, problem: JointProblem, order: SolveOrder, opened: frozenset[int], deadline: Deadline
) -> Layout:
    part = narrow(problem, order.standing, opened)
    layout = Layout(patterns=(), counts=())
    if part.problem.workloads and part.problem.kinds:
        warm = part.inside(order.warm)
        inner = replace(order, standing=part.open_standing(order.standing), warm=warm, proof=False)
        layout = solve(part.problem, inner, deadline)
    found = part.widened(layout)
    missing_usd = _missing_usd(problem, found)
    if missing_usd <= 0.0 or len(opened) == len(problem.workloads):
        return found
    # What is missing may be held by workloads that were not opened: a device, a quota, a cap.
    whole = solve(problem, replace(order, proof=False), deadline)
    return whole if _missing_usd(problem, whole) < missing_usd else found


def _missing_usd(problem: JointProblem, layout: Layout) -> float:
    """What the demand counts, $/h, that must be served and is not; headroom and dust are nothing."""
    served = layout.served_rps(problem)
    missing_usd = 0.0
    for work, rate_rps in zip(problem.workloads, served, strict=True):
        short_rps = work.rate_least_rps - float(rate_rps)
        if short_rps > DUST * work.rate_least_rps:
            missing_usd += work.unserved_usd * short_rps / work.rate_rps
    return missing_usd


def scope_of(
    reading: Reading, standing: tuple[Standing, ...], restless: frozenset[int], full_at_s: float | None
) -> frozenset[int] | None:
    """Workloads that may change, by number; None for all. `full_at_s`: when the last full solve was, as snapshots
    count; None: that is not known.
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
        made = _Stand(
            problem=problem,
            counts=Counter(),
            served_rps=np.zeros(works),
            replicas=np.zeros(works, dtype=np.int64),
        )
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
        after = judged(stand.problem, pattern.kind, without(members_of(pattern), place))
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
