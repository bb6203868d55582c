"""Contents of devices with what full batches of them would carry, for planners that pursue capacity.

Owns the table: of every pool, sets of workloads in partings of the device that leave less than a step, each judged
twice, with the batches of the highest granted rate and with the largest that keep the promise. It refuses to choose.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from math import comb

import numpy as np

from solvers.planners.joint.solve.judge import Judge, Judged, Patterns
from solvers.problems.joint import Flags, Floats, JointProblem, Whole
from solvers.problems.patterns import Pattern

MEMBERS_MAX = 4
ROWS_MAX = 12_000
"""Contents of one size and pool that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Rows that keep every promise. Rates are row x workload."""

    judged: Judged
    """With what is granted at the batches chosen."""
    pool: Whole
    granted_rps: Floats
    replicas: Floats
    full_rps: Floats
    """Of the row."""
    fixed: Flags
    """What was not drawn here but handed in."""

    def __len__(self) -> int:
        return len(self.pool)


def contents_of(problem: JointProblem, given: tuple[Pattern, ...]) -> Contents:
    """Everything that is looked at, what is handed in first."""
    width = max(MEMBERS_MAX, max((len(item.variants) for item in given), default=0))
    rows = Patterns.joined([Patterns.of(given, width), *_rows(problem, width)])
    parts = [_judged(problem, rows, len(given), eager=eager) for eager in (True, False)]
    return Contents(
        judged=Judged.joined([item.judged for item in parts]),
        pool=np.concatenate([item.pool for item in parts]),
        granted_rps=np.concatenate([item.granted_rps for item in parts]),
        replicas=np.concatenate([item.replicas for item in parts]),
        full_rps=np.concatenate([item.full_rps for item in parts]),
        fixed=np.concatenate([item.fixed for item in parts]),
    )


def _judged(problem: JointProblem, rows: Patterns, given: int, *, eager: bool) -> Contents:
    judged = Judge(problem, eager=eager).judge(rows)
    lawful = np.flatnonzero(judged.lawful)
    taken = judged.take(lawful)
    workloads = len(problem.workloads)
    rates, replicas = np.zeros((len(lawful), workloads)), np.zeros((len(lawful), workloads))
    for place in range(taken.rows.variants.shape[1]):
        stands = np.flatnonzero(taken.rows.variants[:, place] >= 0)
        number = problem.variant_workload[taken.rows.variants[stands, place]]
        np.add.at(rates, (stands, number), taken.capacity_rps[stands, place])
        np.add.at(replicas, (stands, number), 1.0)
    return Contents(
        judged=taken,
        pool=problem.kind_pool[taken.rows.kind],
        granted_rps=rates,
        replicas=replicas,
        full_rps=taken.full_rps.sum(axis=1),
        fixed=lawful < given,
    )


def _rows(problem: JointProblem, width: int) -> Iterator[Patterns]:
    """Of every pool at its highest clock: few members first, in as many partings as there is room for."""
    for pool, place in enumerate(problem.pools):
        clock = int(problem.kind_clock_mhz[problem.kind_pool == pool].max(initial=0))
        kinds = problem.like(pool, clock)
        able = np.flatnonzero(problem.allowed[pool])
        for size in range(1, min(MEMBERS_MAX, place.clients, len(able)) + 1):
            most = ROWS_MAX // max(1, comb(len(able), size) * len(kinds))
            partings = _partings(problem, size, most)
            if not len(partings):
                break
            groups = np.array(list(combinations(able.tolist(), size)), dtype=np.int64)
            yield _crossed(kinds, groups, partings, width)


def _crossed(kinds: list[int], groups: Whole, partings: Whole, width: int) -> Patterns:
    """Every kind with every group in every parting."""
    size, each = groups.shape[1], len(groups) * len(partings)
    variants = np.full((each, width), -1, dtype=np.int64)
    shares = np.zeros((each, width), dtype=np.int64)
    variants[:, :size] = np.repeat(groups, len(partings), axis=0)
    shares[:, :size] = np.tile(partings, (len(groups), 1))
    return Patterns(
        kind=np.repeat(np.array(kinds, dtype=np.int64), each),
        variants=np.tile(variants, (len(kinds), 1)),
        shares_pct=np.tile(shares, (len(kinds), 1)),
    )


def _partings(problem: JointProblem, size: int, most: int) -> Whole:
    """Shares of so many members that leave less than a step, in the finest steps of the grid that stay few enough."""
    grid = problem.shares_pct.tolist()
    for stride in range(1, len(grid) + 1):
        shares = sorted({*grid[stride - 1 :: stride], 100}) if grid[-1] == 100 else grid[stride - 1 :: stride]
        step = max((high - low for low, high in pairwise(shares)), default=100)
        if len(shares) ** size > 100 * ROWS_MAX:
            continue
        made = [parts for parts in product(shares, repeat=size) if 100 - step < sum(parts) <= 100]
        if made and len(made) <= most:
            return np.array(made, dtype=np.int64)
    return np.zeros((0, size), dtype=np.int64)
