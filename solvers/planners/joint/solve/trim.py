"""Whole devices made better: trimming, single moves, and, where they are few, an integer programme.

Trimming: members are decided, how shares are split and how many devices it takes is not. *Close*: in the linear
programme around a solution the devices of every composition become whole, a few at a time, nearest first, while the
rest adapts. *Settle*: the mixture that each is left with becomes whole percent of share on whole devices; since that
loses a little, a little more than the rates is asked for, and where it lost more, more of that is asked for next time.
*Descend*: single exact moves make up what is still lost, one device carrying something else and everything added up
anew. All moves around the devices that matter are judged at once; the best by worth are made together where they touch
no workload of each other. A step whose outcome is worth less than what it began with is not taken, and no move breaks a
rule over the whole layout.

Where only a few devices are at stake, an integer programme over patterns is given the best layout so far as a hint: it
can only become better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.engines.base import Program
from solvers.engines.deadline import Deadline, ProgrammeWork, programme_answer
from solvers.engines.highs import Relaxed
from solvers.planners.joint.solve.master import Master
from solvers.planners.joint.solve.solution import DUST, SERVED, LocalProgramme, Rules, Solution, neighbours
from solvers.problems.patterns import Judged, Layout, Patterns

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
SHED_RESERVE, SHED_AT_ONCE, SHED_STEPS = 0.01, 0.7, (20,)
_RESERVE = 0.003
_RESERVE_MORE = 1.5
"""Of what lacked."""
_RESERVE_MAX = 0.05
TOLERANCE = 1e-9
DEVICES_MAX = 120.0
WORKLOADS_MAX = 60
ENGINE_GAP = 1e-4
ENTRIES_PER_UNIT, NODE_UNITS = 30, 30
"""Of work: the first node of an integer programme with all that comes before it, and another one."""


def trim(rules: Rules, layout: Layout, deadline: Deadline) -> Layout:
    """The same members or fewer at less cost and with less unserved; never worse."""
    return trimmed(Solution.of_layout(rules, layout), deadline).layout(layout)


def shed(rules: Rules, layout: Layout) -> Layout:
    """The quickest of it, however late it is: fewer devices at once, and what lacks made up; never worse."""
    solution, deadline = Solution.of_layout(rules, layout), Deadline(np.inf)
    asked = np.full(len(rules.judge.problem.workloads), SHED_RESERVE)
    return min(solution, descend(_shed(solution, asked, deadline, hasty=True), deadline), key=_judged).layout(layout)


def thin(rules: Rules, layout: Layout, reserve: float, deadline: Deadline) -> Layout:
    """As cheap as it gets with so much asked for beyond every rate; some rates may come out a little short."""
    solution = Solution.of_layout(rules, layout)
    parts = np.full(len(rules.judge.problem.workloads), reserve)
    tried = _settled_down(_close(solution, parts, deadline), parts, deadline)
    return tried.layout(layout) if tried.kept() or not solution.kept() else layout


def trimmed(solution: Solution, deadline: Deadline) -> Solution:
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


def _shed(solution: Solution, reserve: Floats, deadline: Deadline, *, hasty: bool = False) -> Solution:
    """As `_close`, with whole groups: what one pattern became may be a mixture across compositions. Only upwards,
    and nothing in reserve: the way of few devices, where a thousandth is no matter; and, with less of everything, that
    of who is in haste.
    """
    programme = LocalProgramme(solution, SHED_STEPS if hasty else _COARSE[:1], reserve)
    if not programme.solve(primal=True):
        return solution
    for _ in range(0 if hasty else 2):
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
        most = max(1, int((SHED_AT_ONCE if hasty else _AT_ONCE) * len(broken)))
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
class Effort:
    """Of an integer programme: part of what is left, and how much easier it is than most."""

    part: float
    easy: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    lower: Floats
    upper: Floats


def small_enough(master: Master, relaxed: Relaxed) -> bool:
    """Whether an integer programme has a chance."""
    return len(master.problem.workloads) <= WORKLOADS_MAX and relaxed.values[master.slacks :].sum() <= DEVICES_MAX


def held_in(master: Master, layout: Layout) -> Whole:
    """By pattern of a master, how many devices of a layout have it."""
    number = {key.tobytes(): place for place, key in enumerate(master.judged.rows.keys)}
    held = np.zeros(master.size, dtype=np.int64)
    for key, count in zip(master.of_patterns(layout.patterns).keys, layout.counts, strict=True):
        if key.tobytes() in number:
            held[number[key.tobytes()]] += count
    return held


def whole_of(
    master: Master, chosen: Whole, program: Program, counts: Floats, effort: Effort, deadline: Deadline
) -> Layout:
    """What the engine makes of a programme over chosen patterns; these counts of them at worst."""
    hint = np.concatenate([np.zeros(master.slacks), counts])
    short = np.maximum(0.0, program.row_lower - program.activity(hint))
    slack = np.flatnonzero(np.diff(program.start[: master.slacks + 1]))
    hint[slack] = short[program.row[program.start[slack]]]
    first, each = 1 + program.rows * len(chosen) // ENTRIES_PER_UNIT // effort.easy, NODE_UNITS / effort.easy
    work = ProgrammeWork(part=effort.part, first_units=first, node_units=each, gap=ENGINE_GAP)
    answer = programme_answer(program, work, deadline, hint)
    if answer is not None and answer.values is not None and answer.objective < float(program.cost @ hint) - TOLERANCE:
        counts = answer.values[master.slacks :]
    rows = master.judged.rows.take(chosen)
    return Solution.of_rows(Rules(master.judge), rows, np.rint(counts).astype(np.int64)).layout()


def program_over(master: Master, chosen: Whole, sides: Sides | None = None) -> Program:
    """The integer programme over chosen patterns, without rows that ask for nothing."""
    numbers = np.concatenate([np.arange(master.slacks), chosen + master.slacks])
    some = master.columns.take(numbers)
    sides = Sides(lower=master.rows.lower, upper=master.rows.upper) if sides is None else sides
    asks = (sides.lower > 0) | np.isfinite(sides.upper)
    kept = asks[some.row]
    return Program(
        cost=some.cost,
        lower=np.zeros(len(numbers)),
        upper=some.upper,
        integer=numbers >= master.slacks,
        start=np.concatenate([[0], np.cumsum(kept)])[some.start],
        row=(np.cumsum(asks) - 1)[some.row[kept]],
        value=some.value[kept],
        row_lower=sides.lower[asks],
        row_upper=sides.upper[asks],
    )
