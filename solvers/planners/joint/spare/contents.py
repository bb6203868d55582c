"""Contents of devices with what full batches of them would carry, for planners that pursue capacity.

Owns the table: of every pool, sets of workloads in partings of the device that leave less than a step, each judged
twice, with the batches of the highest granted rate and with the largest that keep the promise. It refuses to choose.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, product
from math import comb

import numpy as np

from solvers.planners.joint.solve.books import Books, Rows, Verdicts
from solvers.problems.joint import Flags, Floats, JointProblem, Whole
from solvers.problems.patterns import Pattern

MEMBERS_MAX = 4
ROWS_MAX = 12_000
"""Contents of one size and pool that are looked at."""


class FullBatches(Books):
    """Judges with the batches that carry most when they are full, instead of those that are granted most."""

    def __init__(self, problem: JointProblem, *, eager: bool) -> None:
        super().__init__(problem)
        self.eager = eager
        self.cells: tuple[Floats, Floats] = np.zeros((0, 0, 0)), np.zeros((0, 0, 0))
        """Row x place x batch, of what was judged last: the rate granted, and that of full batches."""

    def _serve(self, variants: Whole, mean: Floats, tail: Floats) -> tuple[Floats, Floats]:
        latency, granted = super()._serve(variants, mean, tail)
        with np.errstate(divide="ignore", invalid="ignore"):
            full = np.where(granted > 0, 1000 * self.problem.batches / mean, 0.0)
        self.cells = granted, full
        return latency, full if self.eager else granted

    def at(self, verdicts: Verdicts) -> tuple[Floats, Floats]:
        """Row x place, of what was judged last at its batches; 0 for nobody."""
        stands = verdicts.rows.variants >= 0
        granted, full = (
            np.take_along_axis(cells, verdicts.column[:, :, None], axis=2)[:, :, 0] for cells in self.cells
        )
        return np.where(stands, granted, 0.0), np.where(stands, full, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Rows that keep every promise. Rates are row x workload."""

    verdicts: Verdicts
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
    drawn = [_rows_of(given, width), *_rows(problem, width)]
    rows = Rows(
        kind=np.concatenate([item.kind for item in drawn]),
        variants=np.concatenate([item.variants for item in drawn]),
        shares_pct=np.concatenate([item.shares_pct for item in drawn]),
    )
    parts = [_judged(problem, rows, len(given), eager=eager) for eager in (True, False)]
    return Contents(
        verdicts=_joined([item.verdicts for item in parts]),
        pool=np.concatenate([item.pool for item in parts]),
        granted_rps=np.concatenate([item.granted_rps for item in parts]),
        replicas=np.concatenate([item.replicas for item in parts]),
        full_rps=np.concatenate([item.full_rps for item in parts]),
        fixed=np.concatenate([item.fixed for item in parts]),
    )


def _judged(problem: JointProblem, rows: Rows, given: int, *, eager: bool) -> Contents:
    books = FullBatches(problem, eager=eager)
    verdicts = books.judge_many(rows)
    granted, full = books.at(verdicts)
    lawful = np.flatnonzero(verdicts.lawful)
    taken, granted = verdicts.take(lawful), granted[lawful]
    workloads = len(problem.workloads)
    rates, replicas = np.zeros((len(lawful), workloads)), np.zeros((len(lawful), workloads))
    for place in range(taken.rows.variants.shape[1]):
        stands = np.flatnonzero(taken.rows.variants[:, place] >= 0)
        number = problem.variant_workload[taken.rows.variants[stands, place]]
        np.add.at(rates, (stands, number), granted[stands, place])
        np.add.at(replicas, (stands, number), 1.0)
    return Contents(
        verdicts=replace(taken, capacity_rps=granted),
        pool=problem.kind_pool[taken.rows.kind],
        granted_rps=rates,
        replicas=replicas,
        full_rps=full[lawful].sum(axis=1),
        fixed=lawful < given,
    )


def _joined(parts: list[Verdicts]) -> Verdicts:
    rows = [item.rows for item in parts]
    return Verdicts(
        rows=Rows(
            kind=np.concatenate([item.kind for item in rows]),
            variants=np.concatenate([item.variants for item in rows]),
            shares_pct=np.concatenate([item.shares_pct for item in rows]),
        ),
        lawful=np.concatenate([item.lawful for item in parts]),
        column=np.concatenate([item.column for item in parts]),
        latency_ms=np.concatenate([item.latency_ms for item in parts]),
        capacity_rps=np.concatenate([item.capacity_rps for item in parts]),
        power_w=np.concatenate([item.power_w for item in parts]),
        memory_mib=np.concatenate([item.memory_mib for item in parts]),
        usd_per_h=np.concatenate([item.usd_per_h for item in parts]),
        draw_w=np.concatenate([item.draw_w for item in parts]),
    )


def _rows_of(patterns: tuple[Pattern, ...], width: int) -> Rows:
    variants = np.full((len(patterns), width), -1, dtype=np.int64)
    shares = np.zeros((len(patterns), width), dtype=np.int64)
    for row, item in enumerate(patterns):
        variants[row, : len(item.variants)] = item.variants
        shares[row, : len(item.variants)] = item.shares_pct
    kinds = np.array([item.kind for item in patterns], dtype=np.int64)
    return Rows(kind=kinds, variants=variants, shares_pct=shares)


def _rows(problem: JointProblem, width: int) -> Iterator[Rows]:
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


def _crossed(kinds: list[int], groups: Whole, partings: Whole, width: int) -> Rows:
    """Every kind with every group in every parting."""
    size, each = groups.shape[1], len(groups) * len(partings)
    variants = np.full((each, width), -1, dtype=np.int64)
    shares = np.zeros((each, width), dtype=np.int64)
    variants[:, :size] = np.repeat(groups, len(partings), axis=0)
    shares[:, :size] = np.tile(partings, (len(groups), 1))
    return Rows(
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
