"""Trimming: members are decided, how shares are split and how many devices it takes is not.

The linear programme around a solution knows every pattern with its neighbourhood. A *group* is what one pattern
became: its devices may carry it, any neighbour of it, or nothing. A *composition* is all columns of one kind with the
same members: a mixture within it stands for shares in between, one across compositions for nothing that a device could
do. Columns are judged exactly, so nothing is approximated but the mixing.

*Close*: the devices of every composition become whole, a few at a time, nearest first, while the rest adapts.
*Settle*: the mixture that each is left with becomes whole percent of share on whole devices; since that loses a
little, a little more than the rates is asked for, and where it lost more, more of that is asked for next time.
*Descend*: single exact moves make up what is still lost. A step whose outcome is worth less than what it began with is
not taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.engines.deadline import Deadline
from solvers.engines.highs import ColumnMaster, Columns
from solvers.planners.joint.solve.judge import Judge, Judged, Patterns
from solvers.planners.joint.solve.solution import Entries, Rules, Solution, descend, neighbours
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout

DUST = 1e-6
_ENTRIES_PER_UNIT = 600_000
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


@dataclass(slots=True)
class Compositions:
    """Columns of one kind with the same members."""

    of: Whole
    """By column."""
    first: Whole
    """By composition: one of its columns."""
    row: Whole = field(init=False)
    """By composition: its row in the programme; -1 where it has none."""
    least: Floats = field(init=False)
    most: Floats = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.first)
        self.row = np.full(count, -1, dtype=np.int64)
        self.least, self.most = np.full(count, -np.inf), np.full(count, np.inf)


class LocalProgramme:
    """See the module. Patterns: demand (part of each rate), groups (devices), rules, least replicas (part of them)."""

    def __init__(self, solution: Solution, steps_pct: tuple[int, ...], reserve: Floats | float = 0.0) -> None:
        """`reserve`: part of each rate that is asked for beyond it."""
        problem = solution.rules.judge.problem
        self.rules, self.problem = solution.rules, problem
        self.groups, self.demands = len(solution.counts), len(problem.workloads)
        self.devices_min = np.zeros(self.groups)
        self.devices_max = solution.counts.astype(np.float64)
        self._rule_at = self.demands + self.groups
        self._floor_at = self._rule_at + self.rules.size
        floors = np.where(self.rules.floor > 0, 1.0, 0.0)
        wanted = np.where(problem.rate_rps > 0, 1.0, 0.0)
        # What already breaks a rule must not be made worse; it need not be made better.
        limit = np.maximum(self.rules.upper, self.rules.usage(solution.judged, solution.counts))
        free = np.full(self.groups, -np.inf), np.full(self.rules.size, -np.inf)
        open_end = np.full(self.demands, np.inf), np.full(len(floors), np.inf)
        self._programme = ColumnMaster(
            np.concatenate([wanted * (1 + reserve), *free, floors]),
            np.concatenate([open_end[0], self.devices_max, limit, open_end[1]]),
        )
        self._slack = self._add_slack()
        self.judged: Judged = solution.judged
        self.group: Whole = np.arange(self.groups)
        self._known = {row.tobytes() for row in _keys(solution.judged.rows, self.group)}
        self._programme.add(self._columns(solution.judged, self.group))
        self.parts: Floats = np.zeros(0)
        """Devices that carry each column."""
        self.value = np.inf
        self.widen(solution.judged.rows, self.group, steps_pct)

    @property
    def units_of_work(self) -> int:
        """What solving it once more takes."""
        rows = self.demands + self.groups + self.rules.size
        return 1 + len(self.group) * rows // _ENTRIES_PER_UNIT

    def widen(self, rows: Patterns, group: Whole, steps_pct: tuple[int, ...]) -> int:
        """Add the neighbours of some rows to their groups; how many were new."""
        found, parent = neighbours(self.problem, rows, steps_pct)
        return self.add(self.rules.judge.judge(found), group[parent])

    def widen_used(self, steps_pct: tuple[int, ...]) -> int:
        """Add the neighbours of all columns in use."""
        used = np.flatnonzero(self.parts > DUST)
        return self.widen(self.judged.rows.take(used), self.group[used], steps_pct)

    def add(self, judged: Judged, group: Whole) -> int:
        """Add columns to groups; unlawful and known ones are left out."""
        fresh = []
        for place, key in enumerate(_keys(judged.rows, group)):
            name = key.tobytes()
            if judged.lawful[place] and name not in self._known:
                self._known.add(name)
                fresh.append(place)
        if fresh:
            chosen = np.array(fresh, dtype=np.int64)
            some, of = judged.take(chosen), group[chosen]
            self._programme.add(self._columns(some, of))
            self.judged = Judged.joined([self.judged, some])
            self.group = np.concatenate([self.group, of])
            self.parts = np.concatenate([self.parts, np.zeros(len(of))])
        return len(fresh)

    def bound(self, group: int, least: float, most: float) -> None:
        """How many devices of a group may be in use."""
        self.devices_min[group], self.devices_max[group] = least, most
        self._programme.bound_row(self.demands + group, least, most)

    def compositions(self) -> Compositions:
        """All columns so far by kind and members; no columns may be added afterwards."""
        rows = self.judged.rows
        keys = np.hstack([rows.kind[:, None], rows.variants])
        _, of = np.unique(keys, axis=0, return_inverse=True)
        return Compositions(of=of.ravel(), first=np.unique(of.ravel(), return_index=True)[1])

    def bound_composition(self, compositions: Compositions, composition: int, least: float, most: float) -> None:
        """How many devices may carry columns of a composition."""
        if compositions.row[composition] < 0:
            columns = self._slack + np.flatnonzero(compositions.of == composition)
            compositions.row[composition] = self._programme.add_row(columns, least, most)
        else:
            self._programme.bound_row(int(compositions.row[composition]), least, most)

    def solve(self, *, primal: bool) -> bool:
        """The optimum; False where there is none to be had."""
        answer = self._programme.solve(primal=primal)
        if answer is None:
            return False
        self.parts, self.value = answer.values[self._slack :], answer.value
        return True

    def devices(self) -> Floats:
        """In use, by group."""
        weights = np.bincount(self.group, weights=self.parts, minlength=self.groups)
        return np.asarray(weights, dtype=np.float64)

    def _add_slack(self) -> int:
        """What may lack, at its price."""
        usd = self.problem.unserved_usd
        demand = np.flatnonzero(self.problem.rate_rps > 0)
        floored = np.arange(len(self.rules.floored))
        row = np.concatenate([demand, self._floor_at + floored])
        cost, every = np.concatenate([usd[demand], usd[self.rules.floored]]), np.arange(len(row))
        self._programme.add(Columns.of(cost, column=every, row=row, value=np.ones(len(row))))
        return len(row)

    def _columns(self, judged: Judged, group: Whole) -> Columns:
        rules = self.rules
        at, place = np.nonzero(judged.rows.variants >= 0)
        work = rules.judge.workload[judged.rows.variants[at, place]]
        rate = self.problem.rate_rps[work]
        asked = np.flatnonzero(rate > 0)
        own = Entries(
            row=np.concatenate([work[asked], self.demands + group]),
            pattern=np.concatenate([at[asked], np.arange(len(group))]),
            value=np.concatenate([judged.capacity_rps[at, place][asked] / rate[asked], np.ones(len(group))]),
        )
        return rules.columns(judged, own, self._rule_at, np.maximum(rules.floor, 1.0))


def _keys(rows: Patterns, group: Whole) -> Whole:
    return np.hstack([group[:, None], rows.kind[:, None], rows.variants, rows.shares_pct])


def trim(problem: JointProblem, layout: Layout, deadline: Deadline) -> Layout:
    """The same members or fewer at less cost and with less unserved; never worse."""
    solution = Solution.of_layout(Rules(Judge(problem)), layout)
    return trimmed(solution, deadline).layout(layout)


def thin(problem: JointProblem, layout: Layout, reserve: float, deadline: Deadline) -> Layout:
    """As cheap as it gets with so much asked for beyond every rate; some rates may come out a little short."""
    solution = Solution.of_layout(Rules(Judge(problem)), layout)
    parts = np.full(len(problem.workloads), reserve)
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
