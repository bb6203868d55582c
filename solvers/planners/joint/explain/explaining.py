"""What a joint plan's planner found out, for explanations: prices, candidates, what would have to give.

It never delays a plan: what there is no time for is left out, and that is said. Prices are the duals of a solve, per
GPU, watt, quota, request, replica and budget, and two that are no row's dual: of a looser promise and of more memory.
Those are found by judging the devices in use again with a little more of either; patterns that only become possible
then are not looked at, so both are careful.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.domain.evidence import Fact, Insight, Resource, ShadowPrice
from solvers.domain.ids import GpuTypeName
from solvers.domain.plan import Plan
from solvers.domain.workload import WorkloadKind
from solvers.planners.joint.explain.candidates import candidates_of
from solvers.planners.joint.explain.short import SHORT_MAX, relaxations_of
from solvers.planners.joint.reading.formulation import Reading
from solvers.planners.joint.solve.judge import Judge, Patterns
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout, Prices

AT_UNSERVED_PART = 0.999
"""Of what leaving it unserved counts: demand that is worth so much is priced as unserved."""
SECONDS_LEAST = 0.05
SECONDS_PER_WORKLOAD = 0.0006
SECONDS_PER_SHORT = 0.25
SHORT_PART = 0.05
DUST_USD = 1e-9
LOOSER_PART = 0.01
"""Of a promise: so much looser is tried."""
MIB_PER_GIB = 1024.0
DIGITS = 9


def seconds_of(problem: JointProblem, deadline_s: float) -> float:
    """What to keep back for finding out: about what it takes, and a part of the deadline for what is short."""
    return _told_s(problem) + min(SHORT_MAX * SECONDS_PER_SHORT, SHORT_PART * deadline_s)


def _told_s(problem: JointProblem) -> float:
    """About what it takes where no workload is short."""
    return SECONDS_LEAST + SECONDS_PER_WORKLOAD * len(problem.workloads)


def explained(reading: Reading, layout: Layout, plan: Plan, seconds: float | None = None) -> Insight | None:
    """Prices, candidates and relaxations of a plan; contenders are the planner's own. None, or fewer short
    workloads, where there are too few seconds; without a number there is time enough.
    """
    most = SHORT_MAX
    if seconds is not None:
        spare = seconds - _told_s(reading.problem)
        if spare < 0:
            return None
        most = min(SHORT_MAX, int(spare / SECONDS_PER_SHORT))
    problem = reading.problem
    table = candidates_of(reading, plan, layout.prices)
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


def prices_of(problem: JointProblem, layout: Layout) -> tuple[ShadowPrice, ...]:
    """All prices, by resource and subject; none without duals."""
    if layout.prices is None:
        return ()
    found = [*_of_rows(problem, layout.prices)]
    if layout.patterns:
        found += [*_of_latency(problem, layout, layout.prices), *_of_memory(problem, layout, layout.prices)]
    return tuple(sorted(found, key=lambda item: (item.resource, item.subject)))


def _of_rows(problem: JointProblem, prices: Prices) -> Iterator[ShadowPrice]:
    types = sorted({pool.gpu_type for pool in problem.pools})
    for name in types:
        whole = (
            float(usd)
            for usd, pool in zip(prices.pool_usd, problem.pools, strict=True)
            if pool.gpu_type == name and not pool.rest
        )
        yield _price(Resource.GPU, name, max(whole, default=0.0))
    for cap, usd in zip(problem.caps, prices.cap_usd, strict=True):
        yield _price(Resource.POWER_W, cap.name, float(usd))
    for (project, _), usd in zip(problem.quotas, prices.quota_usd, strict=True):
        yield _price(Resource.QUOTA_GPU, project, float(usd))
    for number, work in enumerate(problem.workloads):
        if work.rate_least_rps > 0:
            yield _price(Resource.RATE_RPS, work.id, float(prices.demand_usd[number]) / work.rate_rps)
        if prices.most_usd[number] > DUST_USD:
            yield _price(Resource.REPLICA, work.id, float(prices.most_usd[number]))
        if work.replicas_min > 1 or (work.replicas_min and not work.rate_least_rps):
            yield _price(Resource.REPLICA_LEAST, work.id, float(prices.fewest_usd[number]))
        if math.isfinite(work.budget_usd_per_h):
            yield _price(Resource.BUDGET_USD, work.id, float(prices.budget_usd[number]))


def _of_latency(problem: JointProblem, layout: Layout, prices: Prices) -> Iterator[ShadowPrice]:
    """Every promise a little looser; a replica's rate depends on its own promise alone."""
    looser = replace(
        problem,
        workloads=tuple(replace(work, limit_ms=work.limit_ms * (1 + LOOSER_PART)) for work in problem.workloads),
    )
    gained = _gained(problem, looser, layout, prices)
    by_workload = np.bincount(gained.workload, weights=gained.usd, minlength=len(problem.workloads))
    for number, work in enumerate(problem.workloads):
        if math.isfinite(work.limit_ms) and not work.limit_fixed:
            usd = min(float(by_workload[number]), float(prices.demand_usd[number]))
            yield _price(Resource.LATENCY_MS, work.id, usd / (LOOSER_PART * work.limit_ms))


def _of_memory(problem: JointProblem, layout: Layout, prices: Prices) -> Iterator[ShadowPrice]:
    """Every device with a GiB more."""
    larger = replace(
        problem, pools=tuple(replace(pool, memory_mib=pool.memory_mib + MIB_PER_GIB) for pool in problem.pools)
    )
    gained = _gained(problem, larger, layout, prices)
    by_pattern = np.bincount(gained.pattern, weights=gained.usd, minlength=len(layout.patterns))
    by_type: dict[GpuTypeName, float] = {}
    for item, usd in zip(layout.patterns, by_pattern, strict=True):
        name = problem.pools[int(problem.kind_pool[item.kind])].gpu_type
        by_type[name] = by_type.get(name, 0.0) + float(usd)
    for name, total in by_type.items():
        yield _price(Resource.MEMORY_GIB, name, total)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gained:
    """What workloads on devices of a pattern would be served more, at what demand is worth."""

    pattern: Whole
    workload: Whole
    usd: Floats


def _gained(before: JointProblem, after: JointProblem, layout: Layout, prices: Prices) -> _Gained:
    """One device never counts for more than a whole rate, as in the programme that the duals are from."""
    judge = Judge(before)
    rows = Patterns.of(layout.patterns, judge.width)
    now, then = judge.judge(rows), Judge(after).judge(rows)
    pattern, place = np.nonzero((now.rows.variants >= 0) & (now.lawful & then.lawful)[:, None])
    workload = judge.workload[now.rows.variants[pattern, place]]
    pairs, member = np.unique(np.stack([pattern, workload], axis=1), axis=0, return_inverse=True)
    rate = np.maximum(before.rate_rps[pairs[:, 1]], 1e-12)
    part_now, part_then = (
        np.minimum(1.0, np.bincount(member.ravel(), weights=rates[pattern, place], minlength=len(pairs)) / rate)
        for rates in (now.capacity_rps, then.capacity_rps)
    )
    counts = np.array(layout.counts, dtype=np.float64)[pairs[:, 0]]
    usd = np.maximum(part_then - part_now, 0.0) * counts * prices.demand_usd[pairs[:, 1]]
    return _Gained(pattern=pairs[:, 0], workload=pairs[:, 1], usd=np.asarray(usd))


def _price(resource: Resource, subject: str, usd_per_h: float) -> ShadowPrice:
    usd = round(max(0.0, usd_per_h), DIGITS)
    return ShadowPrice(resource=resource, subject=subject, usd_per_h=usd, binding=usd > DUST_USD)
