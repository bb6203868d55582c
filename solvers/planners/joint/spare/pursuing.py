"""Layouts that carry more, for operators whose policy names capacity before cost.

Contents of devices are drawn first: of every pool, sets of workloads in partings of the device that leave less than a
step, each judged twice, with the batches of the highest granted rate and with the largest that keep the promise. An
integer programme over whole devices then leaves least of what must be served unserved and carries most in full batches,
with a bonus for devices that stay as they are. What stands is offered beside it, so that a gain too small for its
restarts gives way to changing nothing. Where devices are coupled (caps, quotas, budgets, failure domains), with
training jobs and with very many workloads, the cheapest layout is all there is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from math import comb

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.domain.policy import Term
from solvers.domain.workload import WorkloadKind
from solvers.engines.base import Limits, Program, create
from solvers.planners.joint.reading.formulation import Reading
from solvers.planners.joint.solve.judge import Judge, Judged, Patterns
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout, Pattern, Standing

MEMBERS_MAX = 4
ROWS_MAX = 12_000
"""Contents of one size and pool that are looked at."""
SHORT_FULL_RPS = 1000.0
"""Full requests/s that one request/s is worth that must be served and is not."""
HEADROOM_FULL_RPS = 3.0
"""The same, of what is only sized for."""
STAY_PART = 0.15
"""Of what a device carries: so much more it counts where it stays as it is."""
WORKLOADS_MAX = 100
"""Beyond, contents of more than one replica are too many to look at."""
COLUMNS_MAX = 1600
SHAKES = 30
SHAKE = 0.5
"""How often, and how far, the relaxed prices are shaken."""
NODES = 400.0
GAP = 2e-3
ENGINE = "highs"


def pursues(reading: Reading) -> bool:
    """Whether capacity counts before cost, and this module may choose."""
    terms, workloads = reading.snapshot.policy.terms, len(reading.problem.workloads)
    first = Term.CAPACITY in terms and terms.index(Term.CAPACITY) < terms.index(Term.COST)
    return first and 0 < workloads <= WORKLOADS_MAX and not _coupled(reading)


def held(reading: Reading) -> Layout | None:
    """What stands, as it is; None where nothing does."""
    standing = reading.standing_patterns()
    if not standing:
        return None
    return Layout(patterns=tuple(item.pattern for item in standing), counts=tuple(item.devices for item in standing))


def pursued(reading: Reading, cheapest: Layout) -> Layout | None:
    """What carries most, the cheapest layout for a beginning; None when none was found. Raises EngineError when the
    engine fails.
    """
    problem = reading.problem
    standing = reading.standing_patterns()
    found = contents_of(problem, (*(item.pattern for item in standing), *cheapest.patterns))
    return _most(problem, found, standing)


def _coupled(reading: Reading) -> bool:
    problem = reading.problem
    return (
        bool(problem.caps or problem.quotas)
        or any(need.kind is WorkloadKind.JOB for need in reading.needs)
        or any(item.domains_min > 1 or math.isfinite(item.budget_usd_per_h) for item in problem.workloads)
        or any(pool.rest or pool.capped for pool in problem.pools)
    )


def _most(problem: JointProblem, found: Contents, standing: tuple[Standing, ...]) -> Layout | None:
    stays = _stays(found, standing)
    fixed = np.flatnonzero(found.fixed)
    rows = np.concatenate([np.arange(len(found)), np.array(sorted(stays), dtype=np.int64)])
    most = np.concatenate([problem.pool_devices[found.pool], [float(stays[row]) for row in sorted(stays)]])
    bonus = np.concatenate([np.zeros(len(found)), np.full(len(stays), STAY_PART)])
    worth = found.full_rps[rows] * (1 + bonus)
    sheet = _Sheet(problem, found, rows, most, worth)
    chosen = _promising(sheet, found, rows, fixed)
    answer = create(ENGINE).solve(sheet.program(chosen, integer=True), Limits(work=NODES, gap=GAP))
    if answer.values is None:
        return None
    counts = np.rint(answer.values[sheet.slacks :]).astype(np.int64)
    kept = np.flatnonzero(counts)
    patterns = Judge(problem).patterns(found.judged.take(rows[chosen[kept]]))
    return Layout(patterns=tuple(patterns), counts=tuple(counts[kept].tolist()))


def _promising(sheet: _Sheet, found: Contents, rows: Whole, fixed: Whole) -> Whole:
    """The best columns at the relaxed prices and at prices shaken, for few whole devices decide more than those see."""
    relaxed = create(ENGINE).solve(sheet.program(np.arange(len(rows)), integer=False), Limits())
    if relaxed.row_duals is None or len(rows) <= COLUMNS_MAX:
        return np.arange(len(rows))
    rng, pool = np.random.default_rng(1), found.pool[rows]
    chosen = [fixed, np.arange(len(found), len(rows))]
    pools = np.unique(pool)
    each = max(1, COLUMNS_MAX // ((1 + SHAKES) * len(pools)))
    for shake in range(1 + SHAKES):
        factor = np.exp(rng.normal(0.0, SHAKE * (shake > 0), len(relaxed.row_duals)))
        reduced = sheet.reduced(relaxed.row_duals * factor)
        for number in pools.tolist():
            mine = np.flatnonzero(pool == number)
            chosen.append(mine[np.argsort(reduced[mine], kind="stable")[:each]])
    return np.unique(np.concatenate(chosen))


def _stays(found: Contents, standing: tuple[Standing, ...]) -> dict[int, int]:
    """Rows that stand, with how often."""
    count = {item.pattern.key: item.devices for item in standing}
    rows, made = found.judged.rows, {}
    for row in range(len(found)) if count else ():
        size = int(np.count_nonzero(rows.variants[row] >= 0))
        key = (
            int(rows.kind[row]),
            tuple(rows.variants[row, :size].tolist()),
            tuple(rows.shares_pct[row, :size].tolist()),
        )
        if key in count:
            made[row] = count[key]
    return made


class _Sheet:
    """Contents as columns. Rows: what must be served, what is sized for, fewest replicas, most of them, devices."""

    def __init__(self, problem: JointProblem, found: Contents, rows: Whole, most: Floats, worth: Floats) -> None:
        work = problem.workloads
        self.slacks = 3 * len(work)
        self.most, self.worth = most, worth
        self.least = np.array([item.rate_least_rps for item in work])
        self.sized = np.array([item.rate_rps for item in work])
        self.fewest = np.array([float(item.replicas_min) for item in work])
        self.highest = np.array([float(item.replicas_max) for item in work])
        self.devices = problem.pool_devices.astype(np.float64)
        pools = np.zeros((len(rows), len(problem.pools)))
        pools[np.arange(len(rows)), found.pool[rows]] = 1.0
        granted, replicas = found.granted_rps[rows], found.replicas[rows]
        self.cells = np.concatenate([granted, granted, replicas, replicas, pools], axis=1)
        weight = np.array([float(max(1, item.priority)) for item in work])
        weight = weight / weight.mean()
        self.price = np.concatenate([SHORT_FULL_RPS * weight, HEADROOM_FULL_RPS * weight, SHORT_FULL_RPS * weight])

    def program(self, chosen: Whole, *, integer: bool) -> Program:
        """The programme over some of the contents."""
        works, cells = len(self.least), self.cells[chosen]
        column, row = np.nonzero(cells)
        count = np.bincount(column, minlength=len(chosen))
        slack_rows = np.arange(self.slacks)
        return Program(
            cost=np.concatenate([self.price, -self.worth[chosen]]),
            lower=np.zeros(self.slacks + len(chosen)),
            upper=np.concatenate([np.full(self.slacks, np.inf), self.most[chosen]]),
            integer=np.concatenate([np.zeros(self.slacks, dtype=bool), np.full(len(chosen), integer)]),
            start=np.concatenate([slack_rows, self.slacks + np.concatenate([[0], np.cumsum(count)])]).astype(np.int64),
            row=np.concatenate([slack_rows, row]).astype(np.int64),
            value=np.concatenate([np.ones(self.slacks), cells[column, row]]),
            row_lower=np.concatenate(
                [self.least, self.sized, self.fewest, np.full(works + len(self.devices), -np.inf)]
            ),
            row_upper=np.concatenate([np.full(self.slacks, np.inf), self.highest, self.devices]),
        )

    def reduced(self, duals: Floats) -> Floats:
        """Reduced cost of every column."""
        return np.asarray(-self.worth - self.cells @ duals)


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
