"""What one more of something scarce would save, from the duals of a solve.

Owns the reading of duals as prices per GPU, watt, quota, request, replica and budget, and the two prices that are no
row's dual: of a looser promise and of more memory. Those are found by judging the devices in use again with a little
more of either: what they then serve more is worth what demand is worth. Patterns that only become possible then are not
looked at, so both are careful. It refuses to price what nobody solved for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.ids import GpuTypeName
from solvers.domain.insight import Resource, ShadowPrice
from solvers.planners.joint.solve.judge import Judge, Patterns
from solvers.problems.joint import Floats, JointProblem, Whole
from solvers.problems.layout import Layout, Prices

DUST_USD = 1e-9
LOOSER_PART = 0.01
"""Of a promise: so much looser is tried."""
MIB_PER_GIB = 1024.0
DIGITS = 9


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
