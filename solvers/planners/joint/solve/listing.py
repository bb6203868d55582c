"""Small problems whole: every pattern there is, and integer programmes over all that can matter.

Where patterns are few, listing them is surer than looking for them, and quicker. Left out is only what another pattern
with the same workloads on the same pool beats in every sum that any row counts. The first programme weighs money
against what is unserved at its price; its optimum is the problem's own, and what the engine proves of it is the bound.
Where that leaves anybody short, two more go by the objective: the least unserved there can be, by priority, and the
cheapest that leaves no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, combinations_with_replacement

import numpy as np

from solvers.domain.arrays import Floats, Whole, most_of, unbeaten
from solvers.engines.base import EngineAnswer, EngineStatus
from solvers.engines.deadline import Deadline, ProgrammeWork, programme_answer
from solvers.engines.highs import ColumnMaster, Columns
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Master
from solvers.problems.joint import WHOLE_PCT, JointProblem
from solvers.problems.patterns import Judged, Layout, Patterns, ordered

ROWS_PER_UNIT, RELAXED_ENTRIES_PER_UNIT = 600, 5_000
SAME = 1e-9
ENTRIES_PER_UNIT, NODE_PART = 120, 0.1
"""Of work: a programme's first node with all that comes before it, and what another one takes of that."""
PART = 0.5
"""Of what is left: the other ways need the rest, should this not come to an end."""
GAP = 1e-6
COLUMNS_KEPT = 400
COLUMNS_FIRST = 300
"""Of patterns: the best of them are nearly always among these."""
SERVED = 1e-7
"""Part of a rate below which nothing is missing."""


def solved_whole(problem: JointProblem, standing: Layout, launch_usd_per_s: float, deadline: Deadline) -> Layout | None:
    """The best layout found in a part of what is left, with its bound and whether it is proven; None without any."""
    master, eased = _listed(problem, standing, launch_usd_per_s, deadline), _with_any_batch(problem)
    relaxed = master.programme.solve()
    if relaxed is None:
        return None
    promise = master.columns.reduced(relaxed.row_duals)[master.slacks :]
    programmes = _Programmes(master=master, deadline=deadline, promise=promise)
    priced = programmes.best(programmes.priced(), served=True)
    if priced is None or priced.values is None:
        return None
    answer = programmes.fairest() if programmes.short(priced.values) else priced
    if answer is None or answer.values is None:
        return None
    bound = max(priced.bound, answer.bound)
    if eased is not problem:
        every = _listed(eased, standing, launch_usd_per_s, deadline)
        freely = _Programmes(master=every, deadline=deadline, promise=np.zeros(every.size))
        best, least = freely.best(freely.priced()), every.programme.solve()
        bound = min(bound, 0.0 if least is None else least.value if best is None else best.bound)
    kept = master.promising(relaxed, COLUMNS_KEPT)
    counts = np.rint(answer.values[programmes.slacks :]).astype(np.int64)
    proven = answer.status is EngineStatus.OPTIMAL
    return replace(
        master.judge.layout(master.judged.rows, counts),
        bound_usd_per_h=bound,
        prices=master.rows.prices(relaxed.row_duals),
        columns=tuple(master.judge.patterns(master.judged.take(kept))),
        facts={"columns": float(master.size), "listed": float(proven), "relaxed_usd_per_h": relaxed.value},
    )


def _listed(problem: JointProblem, standing: Layout, launch_usd_per_s: float, deadline: Deadline) -> Master:
    master = Master(problem, Judge(problem))
    list_patterns(master, deadline)
    master.keep_standing(standing, launch_usd_per_s)
    return master


def _with_any_batch(problem: JointProblem) -> JointProblem:
    """One whose patterns do no less than any plan's, which may have other batches than those that serve most: they draw
    less, or fit better. Each batch is a variant where those are few patterns; else memory never lacks.
    """
    room_mib, some = np.array([item.memory_mib for item in problem.pools]), np.isfinite(problem.memory_mib)
    full = problem.memory_mib[some].max(initial=0.0) * problem.members_max <= room_mib.min(initial=np.inf)
    indifferent = full and not problem.counts_watts and not any(item.capped for item in problem.pools)
    batches = len(problem.batches)
    if indifferent or batches < 2 or not len(problem.variants) or problem.variants[0].batch_max:
        return problem
    apart = problem.of_variants(np.repeat(np.arange(len(problem.variants)), batches))
    if apart.few_patterns:
        others = np.arange(len(apart.variants))[:, None, None] % batches != np.arange(batches)
        return replace(apart, mean_ms=np.where(others, np.inf, apart.mean_ms))
    most_mib = most_of(room_mib[problem.kind_pool], problem.kind_table, np.zeros(len(problem.mean_ms)))
    fits = (problem.memory_mib <= most_mib[:, None, None] + SAME)[:, :, None]
    least_w = np.where(np.isfinite(problem.mean_ms) & fits, problem.power_w, np.inf).min(axis=3, keepdims=True)
    return replace(
        problem,
        pools=tuple(replace(item, memory_mib=np.inf, capped=False) for item in problem.pools),
        mean_ms=np.where(fits, problem.mean_ms, np.inf),
        power_w=np.broadcast_to(np.where(np.isfinite(least_w), least_w, 0.0), problem.power_w.shape),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Programmes:
    """Integer programmes over the columns of a master. What may stay undone of a demand is two columns here: headroom,
    at its price, and what must be served.
    """

    master: Master
    deadline: Deadline
    promise: Floats
    """By pattern, the less the more: for whom nothing else speaks."""

    @property
    def slacks(self) -> int:
        """Columns before the patterns'."""
        return self.master.slacks + int(self.master.rows.wanted.sum())

    def priced(self) -> Columns:
        """Money, and what is unserved at its price."""
        master, demand = self.master, np.flatnonzero(self.master.rows.wanted)
        spare = 1 - master.problem.least_rps[demand] / master.problem.rate_rps[demand]
        headroom = replace(master.columns.take(np.arange(len(demand))), upper=np.clip(spare, 0.0, 1.0))
        return Columns.joined([headroom, master.columns])

    def unserved(self) -> Floats:
        """By column: what the objective counts."""
        master, found = self.master, np.zeros(self.slacks + self.master.size)
        weight, own, demand = master.problem.weight, master.rows.floors.own, np.flatnonzero(master.rows.wanted)
        found[len(demand) : 2 * len(demand)] = (weight * master.problem.rate_rps)[demand]
        # Failure domains are no demand: what they cost is in the price of what they lack.
        found[2 * len(demand) + own[own >= 0]] = weight[own >= 0]
        return found

    def short(self, values: Floats) -> bool:
        """Whether anything is missing that must be served."""
        first = int(self.master.rows.wanted.sum())
        return bool((values[first : self.slacks] > SERVED).any())

    def fairest(self) -> EngineAnswer | None:
        """The cheapest that leaves as little unserved as can be."""
        priced, unserved = self.priced(), self.unserved()
        least = self.best(replace(priced, cost=unserved))
        if least is None or least.values is None:
            return None
        most, column = float(unserved @ least.values), np.flatnonzero(unserved)
        unit, last = max(1.0, most), np.full(len(column), len(self.master.rows.lower))
        bounded = priced.and_in(column=column, row=last, value=unserved[column] / unit)
        answer = self.best(bounded, last=(most + SERVED * unit) / unit)
        if answer is None or answer.values is None:
            return replace(least, status=EngineStatus.FEASIBLE, bound=-np.inf)
        return answer if least.status is EngineStatus.OPTIMAL else replace(answer, status=EngineStatus.FEASIBLE)

    def best(self, columns: Columns, *, served: bool = False, last: float | None = None) -> EngineAnswer | None:
        """The best over the columns that promise most, and then over all that could be better; None without any.
        `served`: it is to serve everybody, so if the first does not it is not looked at any further. `last`: the upper
        side of one row more.
        """
        more = [] if last is None else [last]
        sides = np.append(self.master.rows.lower, [-np.inf] * len(more)), np.append(self.master.rows.upper, more)
        master = ColumnMaster(*sides)
        master.add(columns)
        self.deadline.spend(1 + len(sides[0]) * len(columns) // RELAXED_ENTRIES_PER_UNIT)
        relaxed = master.solve()
        if relaxed is None:
            return None
        reduced = columns.reduced(relaxed.row_duals)
        promise, undone = np.append(np.zeros(self.slacks), self.promise), np.arange(len(columns)) < self.slacks
        order = np.lexsort((promise, np.where(undone, -np.inf, reduced.round(9))))
        chosen = np.sort(order[: self.slacks + COLUMNS_FIRST])
        found = self._over(columns, sides, chosen)
        if found is None:
            return None
        # What is dearer than all that could be gained is in no better answer.
        near = np.flatnonzero((reduced <= found.objective - relaxed.value + SAME) | undone)
        if served and found.values is not None and self.short(found.values):
            return replace(found, bound=relaxed.value, status=EngineStatus.FEASIBLE)
        if found.objective > relaxed.value + SAME and not np.isin(near, chosen).all():
            second = self._over(columns, sides, near)
            bound = -np.inf if second is None else second.bound
            found = found if second is None or second.objective > found.objective else second
            found = replace(found, bound=bound)
        bound = max(relaxed.value, min(found.bound, found.objective))
        proven = found.objective - bound <= GAP * abs(found.objective)
        return replace(found, bound=bound, status=EngineStatus.OPTIMAL if proven else EngineStatus.FEASIBLE)

    def _over(self, columns: Columns, sides: tuple[Floats, Floats], chosen: Whole) -> EngineAnswer | None:
        """Over some of the columns; None where nothing was found."""
        small = columns.take(chosen).programme(chosen >= self.slacks, *sides)
        first = 1 + small.rows * small.columns // ENTRIES_PER_UNIT
        effort = ProgrammeWork(part=PART, first_units=first, node_units=NODE_PART * first, gap=GAP)
        answer = programme_answer(small, effort, self.deadline)
        if answer is None or answer.values is None:
            return None
        values = np.zeros(len(columns))
        values[chosen] = answer.values
        return replace(answer, values=values)


def list_patterns(master: Master, deadline: Deadline) -> None:
    """Give the master all patterns worth having."""
    for count in range(1, master.width + 1):
        rows = Patterns.chained([Patterns.none(master.width), *_of_size(master.problem, count, master.width)])
        deadline.spend(1 + len(rows) // ROWS_PER_UNIT)
        judged = master.judge.judge(rows)
        judged = judged.take(np.flatnonzero(judged.lawful))
        master.adopt(judged.take(_worth_having(master.problem, judged)))


def _of_size(problem: JointProblem, count: int, width: int) -> Iterator[Patterns]:
    """All of so many members, by kind; members of one variant in the order of their shares."""
    step = max(1, problem.share_step_pct)
    # Whole parts, each at least one: bars between them, and one behind.
    bars = np.array([(0, *some) for some in combinations(range(1, WHOLE_PCT // step + 1), count)], dtype=np.int64)
    shares = np.diff(bars.reshape(-1, count + 1), axis=1) * step if count > 1 else problem.lone_pct[:, None]
    for kind in range(problem.kinds):
        able = np.flatnonzero(problem.allowed[problem.kind_pool[kind]]).tolist()
        members = np.array(list(combinations_with_replacement(able, count)), dtype=np.int64).reshape(-1, count)
        variant, share = np.repeat(members, len(shares), axis=0), np.tile(shares, (len(members), 1))
        twice = (np.diff(variant, axis=1) == 0) & (np.diff(share, axis=1) < 0)
        chosen = ~twice.any(axis=1)
        if not chosen.any():
            continue
        kinds = np.full(int(chosen.sum()), kind, dtype=np.int64)
        rows = Patterns(kind=kinds, variants=variant[chosen], shares_pct=share[chosen])
        yield ordered(rows.widened(width))


def _worth_having(problem: JointProblem, judged: Judged) -> Whole:
    """Those that no other one of the same workloads and pool beats in every sum."""
    rows, sums = judged.rows, _sums(problem, judged)
    # Equal numbers for the same workloads on the same pool, and for what stands for fewer variants.
    works = np.where(rows.variants >= 0, problem.variant_workload[np.maximum(rows.variants, 0)], -1)
    key = np.hstack([problem.kind_pool[rows.kind][:, None], np.sort(works, axis=1)])
    group = np.asarray(np.unique(key, axis=0, return_inverse=True)[1]).ravel()
    order = np.lexsort((*sums.T[::-1], group))
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    return np.sort(np.concatenate([unbeaten(sums, some, SAME) for some in np.split(order, starts[1:])]))


def _sums(problem: JointProblem, judged: Judged) -> Floats:
    """What had better be little, row x sum: cost, draw where caps count it, by workload what of its rate is not served,
    and its share where anybody counts that.
    """
    served, share = (judged.by_workload(problem, each) for each in (judged.capacity_rps, judged.rows.shares_pct))
    limited = {project for project, _ in problem.quotas}
    works = enumerate(problem.workloads)
    counted = [number for number, item in works if item.project in limited or np.isfinite(item.budget_usd_per_h)]
    parts = [judged.usd_per_h, *([judged.draw_w] if problem.caps else [])]
    return np.hstack([np.stack(parts, axis=1), -np.minimum(served, problem.rate_rps), share[:, counted]])
