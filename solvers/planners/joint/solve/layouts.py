"""Between arrays and layouts: whole devices judged once more, layouts added up, what a layout is worth."""

from __future__ import annotations

from collections import Counter

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.planners.joint.solve.dive import Chosen
from solvers.planners.joint.solve.judge import Patterns
from solvers.planners.joint.solve.master import Master
from solvers.planners.joint.solve.solution import floor_of
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout, Pattern, Prices, judge

SHORT = 1e-9
SHORT_OF_LEAST = 1e-6
CHARGE_DEVICES = 2.0
Key = tuple[int, tuple[int, ...], tuple[int, ...]]


def keys_of(found: Patterns) -> list[Key]:
    """Kind, members and shares of every row."""
    sizes = (found.variants >= 0).sum(axis=1).tolist()
    rows = zip(found.kind.tolist(), found.variants.tolist(), found.shares_pct.tolist(), sizes, strict=True)
    return [(kind, tuple(member[:size]), tuple(share[:size])) for kind, member, share, size in rows]


def layout_of(problem: JointProblem, chosen: Chosen) -> Layout:
    """Whole devices as a layout, judged once more."""
    merged: Counter[Key] = Counter()
    for key, count in zip(keys_of(chosen.judged.rows), chosen.counts.tolist(), strict=True):
        if count:
            merged[key] += count
    patterns = {pattern: merged[key] for key in sorted(merged) if (pattern := judge(problem, *key)) is not None}
    return Layout(patterns=tuple(patterns), counts=tuple(patterns.values()))


def patterns_of(problem: JointProblem, rows: Patterns) -> tuple[Pattern, ...]:
    """Rows as patterns."""
    found = (judge(problem, *key) for key in keys_of(rows))
    return tuple(pattern for pattern in found if pattern is not None)


def added(one: Layout, other: Layout) -> Layout:
    """Both at once."""
    counts: Counter[Pattern] = Counter(dict(zip(one.patterns, one.counts, strict=True)))
    for pattern, count in zip(other.patterns, other.counts, strict=True):
        counts[pattern] += count
    return Layout(patterns=tuple(counts), counts=tuple(counts.values()))


def missing_of(problem: JointProblem, layout: Layout) -> Floats:
    """Part of each rate that is not served."""
    wanted = problem.rate_rps > 0
    missing = np.zeros(len(wanted))
    missing[wanted] = np.maximum(0.0, 1 - layout.served_rps(problem)[wanted] / problem.rate_rps[wanted])
    return np.where(missing > SHORT, missing, 0.0)


def fewer_of(problem: JointProblem, layout: Layout) -> Floats:
    """Part of each workload's least replicas that is not there."""
    replicas = np.zeros(len(problem.workloads))
    for pattern, count in zip(layout.patterns, layout.counts, strict=True):
        np.add.at(replicas, problem.variant_workload[list(pattern.variants)], count)
    floor = np.array([floor_of(problem, number) for number in range(len(problem.workloads))], dtype=np.float64)
    return np.asarray(np.maximum(0.0, floor - replicas) / np.maximum(floor, 1.0))


def judged_usd(problem: JointProblem, layout: Layout) -> float:
    """What layouts are compared by: their value, the price of the least replicas that are missing, and for every
    workload that is short of what must be served, however little, more than another device would cost.
    """
    least = np.array([work.rate_least_rps for work in problem.workloads])
    short = layout.served_rps(problem) < least * (1 - SHORT_OF_LEAST)
    fewer_usd = float(problem.unserved_usd @ fewer_of(problem, layout))
    return value_of(problem, layout) + fewer_usd + CHARGE_DEVICES * problem.dearest_usd * float(short.sum())


def value_of(problem: JointProblem, layout: Layout) -> float:
    """Cost with unserved demand priced in."""
    return layout.usd_per_h + float(problem.unserved_usd @ missing_of(problem, layout))


def taken_by(master: Master, layout: Layout) -> Floats:
    """What a layout owes to the rows of a master of the whole problem."""
    judged = master.judge.judge(master.of_patterns(layout.patterns))
    return master.rows.activity(judged, np.array(layout.counts, dtype=np.int64))


def prices_of(master: Master, duals: Floats) -> Prices:
    """Duals in words."""
    rows = master.rows
    cap_usd = np.zeros(len(master.problem.caps))
    cap_usd[rows.cap_number] = np.maximum(0.0, -duals[rows.cap_at : rows.quota_at] / rows.cap_unit)
    return Prices(
        demand_usd=np.where(rows.wanted, duals[: rows.pool_at], 0.0),
        pool_usd=np.maximum(0.0, -duals[rows.pool_at : rows.cap_at]),
        cap_usd=cap_usd,
        quota_usd=np.maximum(0.0, -duals[rows.quota_at : rows.quota_at + len(master.problem.quotas)]),
        most_usd=rows.of_most(duals),
        fewest_usd=rows.of_fewest(duals),
        budget_usd=rows.of_budget(duals),
    )


def whole_rate_usd(problem: JointProblem) -> Floats:
    """What each workload's rate would cost alone on whole devices of its best kind, roughly: for dealing loads out."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = (1000 * problem.batches / problem.mean_ms[:, :, -1, :]).max(axis=2)
    usd = np.array([max(problem.pools[pool].usd_per_h, 1e-6) for pool in problem.kind_pool.tolist()])
    per_rps = usd[:, None] / np.maximum(rate[problem.kind_table], 1e-9)
    cheapest = np.full(len(problem.workloads), np.inf)
    np.minimum.at(cheapest, problem.variant_workload, per_rps.min(axis=0))
    return np.where(np.isfinite(cheapest), cheapest, 0.0) * problem.rate_rps


def column_number(keys: list[Key]) -> dict[Key, int]:
    """Where each key is."""
    return {key: number for number, key in enumerate(keys)}


def counts_in(number: dict[Key, int], layout: Layout, columns: int) -> Whole:
    """A layout as counts of columns; patterns that are no column are left out."""
    counts = np.zeros(columns, dtype=np.int64)
    for pattern, count in zip(layout.patterns, layout.counts, strict=True):
        if pattern.key in number:
            counts[number[pattern.key]] += count
    return counts
