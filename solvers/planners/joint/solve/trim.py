"""Whole devices made better: trimming, single moves, and, where they are few, an integer programme.

Trimming: members are decided, how shares are split and how many devices it takes is not. *Close*: in the linear
programme around a solution the devices of every composition become whole, a few at a time, nearest first, while the
rest adapts. *Settle*: the mixture that each is left with becomes whole percent of share on whole devices; since that
loses a little, a little more than the rates is asked for, and where it lost more, more of that is asked for next time.
*Descend*: single exact moves make up what is still lost, one device carrying something else and everything added up
anew. All moves around the devices that matter are judged at once; the best by worth are made together where they touch
no workload of each other. A step whose outcome is worth less than what it began with is not taken, and no move breaks a
rule over the whole layout.

Polishing: where only some dozens of devices are at stake, whole devices decide more than the relaxed optimum can see,
so an integer programme over everything that was found is given the best layout so far as a hint: it can only become
better. Before it, two or three devices are swapped for two better ones: every pair of some hundred columns is tried for
what some devices leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.engines.base import Program
from solvers.engines.deadline import Deadline, ProgrammeWork, programme_answer
from solvers.engines.highs import Relaxed
from solvers.planners.joint.solve.generate import Generation
from solvers.planners.joint.solve.judge import Judged, Patterns
from solvers.planners.joint.solve.master import Master
from solvers.planners.joint.solve.solution import DUST, SERVED, LocalProgramme, Rules, Solution, neighbours
from solvers.problems.patterns import Layout

_STEPS = (1, 2, 5)
_MOVES_MAX = 400
_MOVES_PER_UNIT = 150
_LEAST_GAIN = 1e-7
_COARSE = (10, 3, 1)
_FINE = ((10, 3, 1), (3, 1))
_AT_ONCE = 0.34
"""Of the broken compositions, how many are made whole at once."""
_UP = 0.5
_SOLVES_MAX = 400
_COLUMNS_PER_UNIT = 80
_RESERVE = 0.003
_RESERVE_MORE = 1.5
"""Of what lacked."""
_RESERVE_MAX = 0.05
TOLERANCE = 1e-9
GAIN = 1e-7
TRIES_MAX = 600
PAIRS_PER_UNIT = 2_500_000
DEVICES_MAX = 120.0
WORKLOADS_MAX = 60
COLUMNS_MAX = 700
SWAP_PART = 0.2
"""Of what is left of the deadline."""
ENGINE_PART = 0.8
ENGINE_GAP = 1e-4
ENTRIES_PER_UNIT, NODE_UNITS = 30, 30
"""Of work: the first node of an integer programme with all that comes before it, and another one."""


def trim(rules: Rules, layout: Layout, deadline: Deadline) -> Layout:
    """The same members or fewer at less cost and with less unserved; never worse."""
    return trimmed(Solution.of_layout(rules, layout), deadline).layout(layout)


def thin(rules: Rules, layout: Layout, reserve: float, deadline: Deadline) -> Layout:
    """As cheap as it gets with so much asked for beyond every rate; some rates may come out a little short."""
    solution = Solution.of_layout(rules, layout)
    parts = np.full(len(rules.judge.problem.workloads), reserve)
    tried = _settled_down(_close(solution, parts, deadline), parts, deadline)
    return tried.layout(layout) if tried.kept() or not solution.kept() else layout


def trimmed(solution: Solution, deadline: Deadline) -> Solution:
    """As `trim`, on a solution."""
    best = solution
    reserve: Floats = np.full(len(solution.rules.judge.problem.workloads), _RESERVE)
    for way in (_shed, _close, _close):
        if deadline.over or not len(solution.counts):
            break
        asked = reserve if way is _close else np.zeros(len(reserve))
        tried = _settled_down(way(best, asked, deadline), asked, deadline)
        if tried.kept() or not best.kept():
            best = min(best, tried, key=_judged)
        if way is _close:
            reserve = np.asarray(np.minimum(reserve + _RESERVE_MORE * tried.lacking(), _RESERVE_MAX))
    return descend(best, deadline)


def _settled_down(solution: Solution, reserve: Floats, deadline: Deadline) -> Solution:
    """Shares moved about, coarsely and finely, and single moves at last."""
    for steps in _FINE:
        solution = _fine(solution, steps, reserve, deadline)
    return descend(solution, deadline)


def _judged(solution: Solution) -> tuple[bool, float]:
    return bool(solution.lacking().any()), solution.worth()


def _close(solution: Solution, reserve: Floats, deadline: Deadline) -> Solution:
    """As few devices as the relaxed problem around the layout needs, made whole."""
    programme = LocalProgramme(solution, _COARSE[:1], reserve)
    if not programme.solve(primal=True):
        return solution
    if programme.widen_used(_COARSE) and not programme.solve(primal=True):
        return solution
    compositions = programme.compositions()
    deadline.spend(1 + len(programme.group) // _COLUMNS_PER_UNIT)
    for _ in range(_SOLVES_MAX):
        if deadline.over:
            return solution
        deadline.spend(programme.units_of_work)
        devices = np.bincount(compositions.of, weights=programme.parts, minlength=len(compositions.first))
        fraction = devices - np.floor(devices + DUST)
        broken = np.flatnonzero(fraction > DUST)
        if not len(broken):
            return settled(programme, compositions.of, compositions.first)
        nearest = broken[np.argsort(-np.abs(fraction[broken] - _UP), kind="stable")]
        for composition in nearest[: max(1, int(_AT_ONCE * len(broken)))].tolist():
            if fraction[composition] > _UP:
                compositions.least[composition] = np.ceil(devices[composition])
            else:
                compositions.most[composition] = np.floor(devices[composition] + DUST)
            programme.bound_composition(
                compositions, composition, float(compositions.least[composition]), float(compositions.most[composition])
            )
        if not programme.solve(primal=False):
            break
    return solution


def _shed(solution: Solution, reserve: Floats, deadline: Deadline) -> Solution:
    """As `_close`, with whole groups: what one pattern became may be a mixture across compositions. Only upwards,
    and nothing in reserve: the way of few devices, where a thousandth is no matter.
    """
    programme = LocalProgramme(solution, _COARSE[:1], reserve)
    if not programme.solve(primal=True):
        return solution
    for _ in range(2):
        if not programme.widen_used(_COARSE[:2]) or not programme.solve(primal=True):
            break
    deadline.spend(1 + len(programme.group) // _COLUMNS_PER_UNIT)
    while not deadline.over:
        deadline.spend(programme.units_of_work)
        devices = programme.devices()
        fraction = devices - np.floor(devices + DUST)
        broken = np.flatnonzero(fraction > DUST)
        if not len(broken):
            return settled(programme, programme.group, np.arange(programme.groups))
        most = max(1, int(_AT_ONCE * len(broken)))
        for group in broken[np.argsort(-fraction[broken], kind="stable")][:most].tolist():
            programme.bound(group, float(np.ceil(devices[group])), float(programme.devices_max[group]))
        if not programme.solve(primal=False):
            break
    return solution


def _fine(solution: Solution, steps_pct: tuple[int, ...], reserve: Floats, deadline: Deadline) -> Solution:
    """Share moved about while the devices stay."""
    if deadline.over or not len(solution.counts):
        return solution
    programme = LocalProgramme(solution, steps_pct, reserve)
    deadline.spend(2 + len(programme.group) // _COLUMNS_PER_UNIT)
    for group, count in enumerate(solution.counts.tolist()):
        programme.bound(group, float(count), float(count))
    return (
        settled(programme, programme.group, np.arange(programme.groups)) if programme.solve(primal=True) else solution
    )


def settled(programme: LocalProgramme, unit: Whole, first: Whole) -> Solution:
    """Each unit's mixture (a group's or a composition's; by column, and its first column) as whole devices with whole
    percents: whole parts as they are, the rest as one average, or as the heaviest of them where that is unlawful.
    """
    parts, rows, count = programme.parts, programme.judged.rows, len(first)
    devices = np.rint(np.bincount(unit, weights=parts, minlength=count)).astype(np.int64)
    whole = np.floor(parts + DUST).astype(np.int64)
    rest = devices - np.bincount(unit, weights=whole, minlength=count).astype(np.int64)
    fraction = np.where(parts - whole > DUST, parts - whole, 0.0)
    used, mixed = np.flatnonzero(whole), np.flatnonzero(rest > 0)
    order = np.lexsort((-fraction, unit))
    heaviest = order[np.searchsorted(unit[order], mixed)]
    variants, shares_pct = rows.variants[heaviest], rows.shares_pct[heaviest]
    if len(mixed):
        members = rows.variants[first[mixed]]
        average = _averages(programme, unit, fraction, mixed, members)
        asked = Patterns(kind=rows.kind[heaviest], variants=members, shares_pct=average)
        lawful = programme.rules.judge.judge(asked).lawful[:, None]
        variants, shares_pct = np.where(lawful, members, variants), np.where(lawful, average, shares_pct)
    found = Patterns(
        kind=np.concatenate([rows.kind[used], rows.kind[heaviest]]),
        variants=np.concatenate([rows.variants[used], variants]),
        shares_pct=np.concatenate([rows.shares_pct[used], shares_pct]),
    )
    return Solution.of_rows(programme.rules, found, np.concatenate([whole[used], rest[mixed]]))


def _averages(programme: LocalProgramme, unit: Whole, fraction: Floats, mixed: Whole, members: Whole) -> Whole:
    """Shares, in whole steps, of what is left of the mixed units' members: the average over their columns."""
    place = np.full(int(unit.max()) + 1, -1, dtype=np.int64)
    place[mixed] = np.arange(len(mixed))
    used = np.flatnonzero((fraction > DUST) & (place[unit] >= 0))
    at, weight = place[unit[used]], fraction[used]
    variants, shares_pct = programme.judged.rows.variants[used], programme.judged.rows.shares_pct[used]
    total = np.zeros(members.shape)
    taken = np.zeros((len(used), members.shape[1]), dtype=bool)
    for column in range(variants.shape[1]):
        # The first place of the unit's own row that holds the same network and is not spoken for.
        same = (members[at] == variants[:, column, None]) & (variants[:, column, None] >= 0) & ~taken
        hit = np.flatnonzero(same.any(axis=1))
        slot = np.argmax(same[hit], axis=1)
        taken[hit, slot] = True
        np.add.at(total, (at[hit], slot), weight[hit] * shares_pct[hit, column])
    sums = np.bincount(at, weights=weight, minlength=len(mixed))
    return _whole_steps(total / np.maximum(sums, DUST)[:, None], programme.problem.share_step_pct)


def _whole_steps(shares_pct: Floats, step: int) -> Whole:
    """Rounded to steps so that each row's sum is rounded up where that stays within the device."""
    units = shares_pct / step
    low = np.floor(units + DUST)
    room = np.minimum(np.ceil(units.sum(axis=1) - DUST), 100 // step) - low.sum(axis=1)
    rank = np.argsort(np.argsort(low - units, axis=1, kind="stable"), axis=1, kind="stable")
    up = (rank < room[:, None]) & (units - low > DUST)
    return np.asarray((low + up) * step, dtype=np.int64)


def descend(solution: Solution, deadline: Deadline) -> Solution:
    """Moves around the devices of workloads that lack something, until none pays."""
    best = solution
    for _ in range(_MOVES_MAX):
        lacking = best.lacking()
        if deadline.over or not lacking.any():
            break
        tried = _step(best, lacking > 0, deadline)
        if tried is None:
            break
        best = tried
    return best


def _step(solution: Solution, short: Flags, deadline: Deadline) -> Solution | None:
    """As many moves as do not touch each other's workloads, best first; None when no move pays."""
    rows, rules = solution.judged.rows, solution.rules
    stands = rows.variants >= 0
    work = np.where(stands, rules.judge.workload[np.where(stands, rows.variants, 0)], -1)
    hosts = np.flatnonzero((short[work] & stands).any(axis=1))
    if not len(hosts):
        return None
    found, parent = neighbours(rules.judge.problem, rows.take(hosts), _STEPS)
    deadline.spend(2 + len(parent) // _MOVES_PER_UNIT)
    moves = Moves(solution, rules.judge.judge(found), hosts[parent])
    served = solution.served_rps()
    gains = moves.gains(served)
    chosen = moves.apart(np.argsort(-gains, kind="stable")[: np.count_nonzero(gains > _LEAST_GAIN)])
    while len(chosen):
        tried = moves.made(chosen)
        better = tried.worth() < solution.worth() - _LEAST_GAIN
        if better and (tried.kept() or not solution.kept()):
            return tried
        chosen = chosen[: len(chosen) // 2]
    return None


class Moves:
    """One device each: from a row of the solution to another content."""

    def __init__(self, solution: Solution, judged: Judged, parent: Whole) -> None:
        fit = np.flatnonzero(judged.lawful)
        self.solution, self.judged, self.parent = solution, judged.take(fit), parent[fit]
        rules = solution.rules
        before = solution.judged.take(self.parent)
        self.usd = self.judged.usd_per_h - before.usd_per_h
        self.work, self.net_rps = net_of(rules, before, self.judged)

    def gains(self, served_rps: Floats) -> Floats:
        """What each is worth by itself, $/h; least replicas are looked at when it is made."""
        problem = self.solution.rules.judge.problem
        rate = problem.rate_rps[self.work]
        asked = (rate > 0) & (self.work >= 0)
        rate = np.where(asked, rate, 1.0)
        before = np.maximum(0.0, 1 - served_rps[self.work] / rate)
        after = np.maximum(0.0, 1 - (served_rps[self.work] + self.net_rps) / rate)
        before, after = (np.where(part > SERVED, part, 0.0) for part in (before, after))
        change = np.where(asked, (before - after) * problem.unserved_usd[self.work], 0.0)
        return np.asarray(change.sum(axis=1) - self.usd)

    def apart(self, order: Whole) -> Whole:
        """The first of these moves and those after it that share neither a workload nor a row with one before."""
        workloads: set[int] = set()
        parents: set[int] = set()
        chosen = []
        for move in order.tolist():
            own = {int(work) for work, net in zip(self.work[move], self.net_rps[move], strict=True) if net != 0.0}
            if int(self.parent[move]) in parents or workloads & own:
                continue
            chosen.append(move)
            parents.add(int(self.parent[move]))
            workloads |= own
        return np.array(chosen, dtype=np.int64)

    def made(self, chosen: Whole) -> Solution:
        """The solution after these moves, one device each."""
        solution = self.solution
        counts = solution.counts.copy()
        np.subtract.at(counts, self.parent[chosen], 1)
        rows = Patterns.chained([solution.judged.rows, self.judged.rows.take(chosen)])
        return Solution.of_rows(solution.rules, rows, np.concatenate([counts, np.ones(len(chosen), dtype=np.int64)]))


def net_of(rules: Rules, before: Judged, after: Judged) -> tuple[Whole, Floats]:
    """Workloads that each change touches and what they gain: change x place, -1 and 0 where there is nothing more."""
    works, rates = [], []
    for judged, sign in ((before, -1.0), (after, 1.0)):
        stands = judged.rows.variants >= 0
        works.append(np.where(stands, rules.judge.workload[np.where(stands, judged.rows.variants, 0)], -1))
        rates.append(sign * judged.capacity_rps)
    work, rate = np.hstack(works), np.hstack(rates)
    same = work[:, :, None] == work[:, None, :]
    first = np.argmax(same, axis=2) == np.arange(work.shape[1])
    net = np.where(first & (work >= 0), (same * rate[:, None, :]).sum(axis=2), 0.0)
    return np.where(first, work, -1), net


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Columns that go and columns that come."""

    out: tuple[int, ...]
    into: tuple[int, ...]


class Swaps:
    """Columns of a covering programme as a dense matrix; slack columns are left out."""

    def __init__(self, program: Program) -> None:
        self.whole = np.flatnonzero(program.integer)
        """Of each column here: its number in the programme."""
        column = np.repeat(np.arange(program.columns), np.diff(program.start))
        dense = np.zeros((program.columns, program.rows))
        np.add.at(dense, (column, program.row), program.value)
        self.dense = dense[self.whole]
        self.cost = program.cost[self.whole]
        self.upper = program.upper[self.whole]
        self.asked = np.flatnonzero(np.isfinite(program.row_lower) & (program.row_lower > 0))
        self.limited = np.flatnonzero(np.isfinite(program.row_upper))
        self.least, self.most = program.row_lower, program.row_upper

    def improve(self, counts: Floats, deadline: Deadline, until_part: float, rng: np.random.Generator) -> Floats:
        """Counts (of the columns here) that cost no more and leave nothing more undone."""
        counts = counts.copy()
        tried: set[tuple[int, ...]] = set()
        for _ in range(TRIES_MAX):
            held = np.flatnonzero(counts > 0).tolist()
            devices = [column for column in held for _ in range(min(2, int(counts[column])))]
            groups = sorted({*combinations(devices, 2), *combinations(devices, 3)} - tried)
            if not groups or deadline.left_part <= until_part:
                return counts
            out = groups[int(rng.integers(len(groups)))]
            tried.add(out)
            deadline.spend(1 + self.dense.size * len(self.dense) // PAIRS_PER_UNIT)
            swap = self._best(counts, out)
            if swap is not None:
                np.subtract.at(counts, list(swap.out), 1)
                np.add.at(counts, list(swap.into), 1)
                tried.clear()
        return counts

    def _best(self, counts: Floats, out: tuple[int, ...]) -> Swap | None:
        """The cheapest pair, or single, that does what these devices do and is cheaper."""
        rest = counts.copy()
        np.subtract.at(rest, list(out), 1)
        done = rest @ self.dense
        need, room = self.least - done, self.most - done
        budget = float(self.cost[list(out)].sum()) - GAIN
        rows = self.asked[need[self.asked] > TOLERANCE]
        able = (self.cost < budget) & (rest < self.upper)
        able &= (self.dense[:, self.limited] <= room[self.limited] + TOLERANCE).all(axis=1)
        some = np.flatnonzero(able)
        if not len(some):
            return None
        alone = some[(self.dense[some][:, rows] >= need[rows] - TOLERANCE).all(axis=1)]
        best: Swap | None = None
        if len(alone):
            pick = int(alone[np.argmin(self.cost[alone])])
            best, budget = Swap(out=out, into=(pick,)), float(self.cost[pick]) - GAIN
        pair = self._pair(some, rows, need, room, budget)
        return Swap(out=out, into=pair) if pair is not None else best

    def _pair(self, some: Whole, rows: Whole, need: Floats, room: Floats, budget: float) -> tuple[int, int] | None:
        """`rows`: those that ask for something of `need`."""
        cost = self.cost[some]
        fine = (cost[:, None] + cost[None, :] < budget) & np.tri(len(some), dtype=np.bool_)
        for row in rows.tolist():
            part = self.dense[some, row]
            fine &= part[:, None] + part[None, :] >= need[row] - TOLERANCE
        for row in self.limited.tolist():
            part = self.dense[some, row]
            fine &= part[:, None] + part[None, :] <= room[row] + TOLERANCE
        one, other = np.nonzero(fine)
        if not len(one):
            return None
        pick = int(np.argmin(cost[one] + cost[other]))
        return int(some[one[pick]]), int(some[other[pick]])


def small_enough(master: Master, relaxed: Relaxed) -> bool:
    """Whether an integer programme has a chance."""
    return len(master.problem.workloads) <= WORKLOADS_MAX and relaxed.values[master.slacks :].sum() <= DEVICES_MAX


def polished(rules: Rules, search: Generation, layout: Layout, deadline: Deadline, rng: np.random.Generator) -> Layout:
    """The best layout that swaps and the engine find; the given one at worst."""
    master, relaxed = search.master, search.relaxed
    master.offer(master.of_patterns(layout.patterns))
    number = {key.tobytes(): place for place, key in enumerate(master.judged.rows.keys)}
    held = np.zeros(master.size, dtype=np.int64)
    for key, count in zip(master.of_patterns(layout.patterns).keys, layout.counts, strict=True):
        if key.tobytes() in number:
            held[number[key.tobytes()]] += count
    chosen = np.union1d(master.promising(relaxed, COLUMNS_MAX), np.flatnonzero(held))
    program = _program(master, chosen)
    swaps = Swaps(program)
    counts = swaps.improve(held[chosen].astype(np.float64), deadline, deadline.left_part * (1 - SWAP_PART), rng)
    hint = np.concatenate([np.zeros(master.slacks), counts])
    short = np.maximum(0.0, program.row_lower - program.activity(hint))
    hint[: master.slacks] = short[program.row[program.start[: master.slacks]]]
    first = program.rows * len(chosen) // ENTRIES_PER_UNIT
    effort = ProgrammeWork(part=ENGINE_PART, first_units=first, node_units=NODE_UNITS, gap=ENGINE_GAP)
    answer = programme_answer(program, effort, deadline, hint)
    if answer is not None and answer.values is not None and answer.objective < float(program.cost @ hint) - TOLERANCE:
        counts = answer.values[master.slacks :]
    rows = master.judged.rows.take(chosen)
    return Solution.of_rows(rules, rows, np.rint(counts).astype(np.int64)).layout()


def _program(master: Master, chosen: Whole) -> Program:
    numbers = np.concatenate([np.arange(master.slacks), chosen + master.slacks])
    some = master.columns.take(numbers)
    return Program(
        cost=some.cost,
        lower=np.zeros(len(numbers)),
        upper=some.upper,
        integer=numbers >= master.slacks,
        start=some.start,
        row=some.row,
        value=some.value,
        row_lower=master.rows.lower,
        row_upper=master.rows.upper,
    )
