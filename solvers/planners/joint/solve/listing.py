"""Small problems whole: every pattern there is, and integer programmes over all that can matter.

Where patterns are few, listing them is surer than looking for them, and quicker. Left out is only what another pattern
with the same workloads on the same pool beats in every sum that any row counts. The first programme weighs money
against what is unserved at its price; its optimum is the problem's own, and what the engine proves of it is the bound.
Where that leaves anybody short, two more go by the objective: the least unserved there can be, by priority, and the
cheapest that leaves no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, combinations_with_replacement

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.engines.base import EngineAnswer, EngineStatus, Program
from solvers.engines.deadline import Deadline, ProgrammeWork, programme_answer
from solvers.planners.joint.solve.judge import Judge, Judged, Patterns, ordered
from solvers.planners.joint.solve.master import Master
from solvers.planners.joint.solve.solution import Rules, Solution
from solvers.problems.joint import WHOLE_PCT, JointProblem
from solvers.problems.patterns import Layout, Standing, promises_of
from solvers.problems.promise import bearable

ROWS_PER_UNIT = 600
SAME = 1e-9
ENTRIES_PER_UNIT, NODE_PART = 60, 0.05
"""Of work: a programme's first node with all that comes before it, and what another one takes of that."""
PART = 0.5
"""Of what is left: the other ways need the rest, should this not come to an end."""
GAP = 1e-6
COLUMNS_KEPT = 400
SERVED = 1e-7
"""Part of a rate below which nothing is missing."""


def solved_whole(
    problem: JointProblem, standing: Sequence[Standing], launch_usd_per_s: float, deadline: Deadline
) -> Layout | None:
    """The best layout, proven; None without a proof in a part of what is left."""
    rules = Rules(Judge(problem))
    master = Master(problem, rules.judge)
    spared = list_patterns(master, deadline)
    master.keep_standing(tuple(standing), launch_usd_per_s)
    relaxed = master.programme.solve()
    if relaxed is None:
        return None
    programmes = _Programmes(master=master, deadline=deadline)
    priced = programmes.best(programmes.priced)
    if priced is None or priced.values is None:
        return None
    values = priced.values if not programmes.short(priced.values) else programmes.fairest()
    if values is None:
        return None
    kept = master.promising(relaxed, COLUMNS_KEPT)
    counts = np.rint(values[programmes.slacks :]).astype(np.int64)
    return replace(
        Solution.of_rows(rules, master.judged.rows, counts).layout(),
        bound_usd_per_h=priced.bound * (1 - spared),
        prices=master.rows.prices(relaxed.row_duals),
        columns=tuple(master.judge.patterns(master.judged.take(kept))),
        facts={"columns": float(master.size), "listed": 1.0, "relaxed_usd_per_h": relaxed.value},
    )


def _spared_part(problem: JointProblem, judged: Judged) -> float:
    """The most of what any of these costs that their replicas could save with batches that draw less: patterns have
    those that serve most.
    """
    if problem.by_replica or not problem.usd_per_wh or not len(judged):
        return 0.0
    promises = promises_of([problem.workloads[item.workload] for item in problem.variants])
    load = bearable(
        promises.take(np.arange(len(problem.variants))[:, None]), problem.batches.astype(np.float64), problem.tail_ms
    )
    able = load.kept & np.isfinite(problem.mean_ms)
    least = np.where(able, problem.power_w, np.inf).min(axis=3)
    least_w = np.minimum.accumulate(np.where(np.isfinite(least), least, 0.0)[..., ::-1], axis=2)[..., ::-1]
    rows, grid = judged.rows, problem.shares_pct
    row, place = np.nonzero(rows.variants >= 0)
    variant, share = rows.variants[row, place], rows.shares_pct[row, place]
    lower = np.maximum(np.searchsorted(grid, share, side="right") - 1, 0)
    spared_w = judged.power_w[row, place] - least_w[problem.kind_table[rows.kind[row]], variant, lower]
    spared = np.bincount(row, weights=np.maximum(spared_w, 0.0), minlength=len(judged)) * problem.usd_per_wh
    return float((spared / np.maximum(judged.usd_per_h, spared)).max(initial=0.0, where=spared > 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Programmes:
    """Integer programmes over the columns of a master. What may stay undone of a demand is two columns here: headroom,
    at its price, and what must be served.
    """

    master: Master
    deadline: Deadline

    @property
    def slacks(self) -> int:
        """Columns before the patterns'."""
        return self.master.slacks + int(self.master.rows.wanted.sum())

    @property
    def priced(self) -> Program:
        """Money, and what is unserved at its price."""
        master = self.master
        columns, demand = master.columns, int(master.rows.wanted.sum())
        works = [work for work, wanted in zip(master.problem.workloads, master.rows.wanted, strict=True) if wanted]
        spare = np.array([1 - work.rate_least_rps / work.rate_rps for work in works], dtype=np.float64)
        ends = int(columns.start[demand])
        cost = np.concatenate([columns.cost[:demand], columns.cost])
        upper = np.concatenate([np.clip(spare, 0.0, 1.0), columns.upper])
        return Program(
            cost=cost,
            lower=np.zeros(len(cost)),
            upper=upper,
            integer=np.arange(len(cost)) >= self.slacks,
            start=np.concatenate([columns.start[:demand], columns.start + ends]),
            row=np.concatenate([columns.row[:ends], columns.row]),
            value=np.concatenate([columns.value[:ends], columns.value]),
            row_lower=master.rows.lower,
            row_upper=master.rows.upper,
        )

    @property
    def unserved(self) -> Floats:
        """By column: what the objective counts."""
        master, found = self.master, np.zeros(self.slacks)
        works = master.problem.workloads
        demand = np.flatnonzero(master.rows.wanted)
        weight = np.array([max(1, work.priority) for work in works], dtype=np.float64)
        rate = np.array([work.rate_rps for work in works])
        floored = np.flatnonzero(master.rows.fewest >= 0)
        found[len(demand) : 2 * len(demand)] = (weight * rate)[demand]
        found[2 * len(demand) :] = weight[floored]
        return np.concatenate([found, np.zeros(len(master.columns) - master.slacks)])

    def short(self, values: Floats) -> bool:
        """Whether anything is missing that must be served."""
        first = int(self.master.rows.wanted.sum())
        return bool((values[first : self.slacks] > SERVED).any())

    def fairest(self) -> Floats | None:
        """The cheapest that leaves as little unserved as can be."""
        priced, unserved = self.priced, self.unserved
        least = self.best(replace(priced, cost=unserved))
        if least is None or least.values is None:
            return None
        most = float(unserved @ least.values)
        column = np.flatnonzero(unserved)
        places = priced.start[column + 1]
        bounded = replace(
            priced,
            start=priced.start + np.searchsorted(column, np.arange(priced.columns + 1)),
            row=np.insert(priced.row, places, priced.rows),
            value=np.insert(priced.value, places, unserved[column] / max(1.0, most)),
            row_lower=np.append(priced.row_lower, -np.inf),
            row_upper=np.append(priced.row_upper, (most + SERVED * max(1.0, most)) / max(1.0, most)),
        )
        answer = self.best(bounded)
        return least.values if answer is None else answer.values

    def best(self, program: Program) -> EngineAnswer | None:
        """Proven, or None."""
        first = 1 + program.rows * program.columns // ENTRIES_PER_UNIT
        effort = ProgrammeWork(part=PART, first_units=first, node_units=NODE_PART * first, gap=GAP)
        answer = programme_answer(program, effort, self.deadline)
        return answer if answer is not None and answer.status is EngineStatus.OPTIMAL else None


def list_patterns(master: Master, deadline: Deadline) -> float:
    """Give the master all patterns worth having; the part of what they cost that smaller batches could save."""
    spared = 0.0
    for count in range(1, master.width + 1):
        rows = Patterns.chained([Patterns.none(master.width), *_of_size(master.problem, count, master.width)])
        deadline.spend(1 + len(rows) // ROWS_PER_UNIT)
        judged = master.judge.judge(rows)
        judged = judged.take(np.flatnonzero(judged.lawful))
        spared = max(spared, _spared_part(master.problem, judged))
        master.adopt(judged.take(_worth_having(master.judge, judged)))
    return spared


def _of_size(problem: JointProblem, count: int, width: int) -> Iterator[Patterns]:
    """All of so many members, by kind; members of one variant in the order of their shares."""
    step = max(1, problem.share_step_pct)
    shares = np.array(list(_splits(count, WHOLE_PCT // step)), dtype=np.int64).reshape(-1, count) * step
    for kind in range(problem.kinds):
        able = np.flatnonzero(problem.allowed[problem.kind_pool[kind]]).tolist()
        members = np.array(list(combinations_with_replacement(able, count)), dtype=np.int64).reshape(-1, count)
        variant, share = np.repeat(members, len(shares), axis=0), np.tile(shares, (len(members), 1))
        twice = (np.diff(variant, axis=1) == 0) & (np.diff(share, axis=1) < 0)
        chosen = ~twice.any(axis=1)
        if not chosen.any():
            continue
        rows = Patterns(
            kind=np.full(int(chosen.sum()), kind, dtype=np.int64),
            variants=np.pad(variant[chosen], ((0, 0), (0, width - count)), constant_values=-1),
            shares_pct=np.pad(share[chosen], ((0, 0), (0, width - count))),
        )
        yield ordered(rows)


def _splits(count: int, steps: int) -> Iterator[tuple[int, ...]]:
    """Whole parts, each at least one, of no more than so many steps: bars between them, and one behind."""
    for bars in combinations(range(1, steps + 1), count):
        yield tuple(after - before for before, after in zip((0, *bars), bars, strict=False))


def _worth_having(judge: Judge, judged: Judged) -> Whole:
    """Those that no other one of the same workloads and pool beats in every sum."""
    problem = judge.problem
    sums, group = _sums(problem, judged), _groups(problem, judged)
    order = np.lexsort((*sums.T[::-1], group))
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    kept = []
    for some in np.split(order, starts[1:]):
        front = np.zeros((0, sums.shape[1]))
        for number in some.tolist():
            if not (front <= sums[number] + SAME).all(axis=1).any():
                front = np.concatenate([front, sums[number : number + 1]])
                kept.append(number)
    return np.sort(np.array(kept, dtype=np.int64))


def _groups(problem: JointProblem, judged: Judged) -> Whole:
    """Equal numbers for the same workloads on the same pool, and for what stands for fewer variants."""
    rows = judged.rows
    works = np.where(rows.variants >= 0, problem.variant_workload[np.maximum(rows.variants, 0)], -1)
    key = np.hstack([problem.kind_pool[rows.kind][:, None], np.sort(works, axis=1)])
    return np.asarray(np.unique(key, axis=0, return_inverse=True)[1]).ravel()


def _sums(problem: JointProblem, judged: Judged) -> Floats:
    """What had better be little, row x sum: cost, draw where caps count it, by workload what of its rate is not served,
    and its share where anybody counts that.
    """
    rows, works = judged.rows, problem.workloads
    row, place = np.nonzero(rows.variants >= 0)
    work = problem.variant_workload[rows.variants[row, place]]
    served, share = (np.zeros((len(rows), len(works))) for _ in range(2))
    np.add.at(served, (row, work), judged.capacity_rps[row, place])
    np.add.at(share, (row, work), rows.shares_pct[row, place])
    limited = {project for project, _ in problem.quotas}
    counted = [
        number for number, item in enumerate(works) if item.project in limited or np.isfinite(item.budget_usd_per_h)
    ]
    draw = judged.draw_w if problem.caps else np.zeros(len(rows))
    parts = (judged.usd_per_h, draw)
    return np.hstack([np.stack(parts, axis=1), -np.minimum(served, problem.rate_rps), share[:, counted]])
