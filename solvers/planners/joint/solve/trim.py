"""Trimming: who may stand with whom is decided, how the shares are split and how many devices it takes is not.

Owns three steps. *Close*: in the relaxed problem around the layout, the devices of every cast (same members on the same
kind) become whole, a few at a time, nearest first, while the rest adapts. *Settle*: the mixture that each cast is left
with becomes whole percent of share on whole devices; since that loses a little, a little more than the rates is asked
for, and where it lost more, more of that is asked for next time. *Descend*: single exact moves make up what is still
lost. A step whose outcome is worth less than what it began with is not taken.
"""

from __future__ import annotations

import numpy as np

from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.descent import descend
from solvers.planners.joint.solve.judge import Judge, Patterns
from solvers.planners.joint.solve.near import DUST, Near
from solvers.planners.joint.solve.rules import Rules
from solvers.planners.joint.solve.sheet import Sheet
from solvers.problems.joint import Flags, Floats, JointProblem, Whole
from solvers.problems.layout import Layout

_COARSE = (10, 3, 1)
_FINE = ((10, 3, 1), (3, 1))
_AT_ONCE = 0.34
"""Of the broken casts, how many are made whole at once."""
_UP = 0.5
_SOLVES_MAX = 400
_COLUMNS_PER_UNIT = 80
_RESERVE = 0.003
_RESERVE_MORE = 1.5
"""Of what lacked."""
_RESERVE_MAX = 0.05


def trim(problem: JointProblem, layout: Layout, deadline: Deadline) -> Layout:
    """The same members or fewer at less cost and with less unserved; never worse."""
    sheet = Sheet.of_layout(Rules(Judge(problem)), layout)
    return trimmed(sheet, deadline).layout(layout)


def thin(problem: JointProblem, layout: Layout, reserve: float, deadline: Deadline) -> Layout:
    """As cheap as it gets with so much asked for beyond every rate; somebody may come out a little short."""
    sheet = Sheet.of_layout(Rules(Judge(problem)), layout)
    parts = np.full(len(problem.workloads), reserve)
    tried = _settled_down(_close(sheet, parts, deadline), parts, deadline)
    return tried.layout(layout) if tried.kept() or not sheet.kept() else layout


def trimmed(sheet: Sheet, deadline: Deadline) -> Sheet:
    """As `trim`, on a sheet."""
    best = sheet
    reserve: Floats = np.full(len(sheet.rules.judge.problem.workloads), _RESERVE)
    for way in (_shed, _close, _close):
        if deadline.over or not len(sheet.counts):
            break
        asked = reserve if way is _close else np.zeros(len(reserve))
        tried = _settled_down(way(best, asked, deadline), asked, deadline)
        if tried.kept() or not best.kept():
            best = min(best, tried, key=_judged)
        if way is _close:
            reserve = np.asarray(np.minimum(reserve + _RESERVE_MORE * tried.lacking(), _RESERVE_MAX))
    return descend(best, deadline)


def _settled_down(sheet: Sheet, reserve: Floats, deadline: Deadline) -> Sheet:
    """Shares moved about, coarsely and finely, and single moves at last."""
    for steps in _FINE:
        sheet = _fine(sheet, steps, reserve, deadline)
    return descend(sheet, deadline)


def _judged(sheet: Sheet) -> tuple[bool, float]:
    return bool(sheet.lacking().any()), sheet.worth()


def _close(sheet: Sheet, reserve: Floats, deadline: Deadline) -> Sheet:
    """As few devices as the relaxed problem around the layout needs, made whole."""
    near = Near(sheet, _COARSE[:1], reserve)
    if not near.solve(primal=True):
        return sheet
    if near.widen_used(_COARSE) and not near.solve(primal=True):
        return sheet
    casts = near.casts()
    deadline.spend(1 + len(near.group) // _COLUMNS_PER_UNIT)
    for _ in range(_SOLVES_MAX):
        if deadline.over:
            return sheet
        deadline.spend(near.units_of_work)
        devices = np.bincount(casts.of, weights=near.parts, minlength=len(casts.first))
        fraction = devices - np.floor(devices + DUST)
        broken = np.flatnonzero(fraction > DUST)
        if not len(broken):
            return settled(near, casts.of, near.judged.rows.take(casts.first))
        nearest = broken[np.argsort(-np.abs(fraction[broken] - _UP), kind="stable")]
        for cast in nearest[: max(1, int(_AT_ONCE * len(broken)))].tolist():
            if fraction[cast] > _UP:
                casts.least[cast] = np.ceil(devices[cast])
            else:
                casts.most[cast] = np.floor(devices[cast] + DUST)
            near.bound_cast(casts, cast, float(casts.least[cast]), float(casts.most[cast]))
        if not near.solve(primal=False):
            break
    return sheet


def _shed(sheet: Sheet, reserve: Floats, deadline: Deadline) -> Sheet:
    """As `_close`, with whole groups: what one pattern became may be a mixture across casts. Only upwards, and nothing
    in reserve: the way of few devices, where a thousandth is no matter.
    """
    near = Near(sheet, _COARSE[:1], reserve)
    if not near.solve(primal=True):
        return sheet
    for _ in range(2):
        if not near.widen_used(_COARSE[:2]) or not near.solve(primal=True):
            break
    deadline.spend(1 + len(near.group) // _COLUMNS_PER_UNIT)
    while not deadline.over:
        deadline.spend(near.units_of_work)
        devices = near.devices()
        fraction = devices - np.floor(devices + DUST)
        broken = np.flatnonzero(fraction > DUST)
        if not len(broken):
            return settled(near, near.group, sheet.judged.rows)
        most = max(1, int(_AT_ONCE * len(broken)))
        for group in broken[np.argsort(-fraction[broken], kind="stable")][:most].tolist():
            near.bound(group, float(np.ceil(devices[group])), float(near.devices_max[group]))
        if not near.solve(primal=False):
            break
    return sheet


def _fine(sheet: Sheet, steps_pct: tuple[int, ...], reserve: Floats, deadline: Deadline) -> Sheet:
    """Share moved about while the devices stay."""
    if deadline.over or not len(sheet.counts):
        return sheet
    near = Near(sheet, steps_pct, reserve)
    deadline.spend(2 + len(near.group) // _COLUMNS_PER_UNIT)
    for group, count in enumerate(sheet.counts.tolist()):
        near.bound(group, float(count), float(count))
    return settled(near, near.group, sheet.judged.rows) if near.solve(primal=True) else sheet


def settled(near: Near, unit: Whole, base: Patterns) -> Sheet:
    """Each unit's mixture (a group's or a cast's; by column, and its members) as whole devices with whole percents:
    whole parts as they are, the rest as one average.
    """
    parts, count = near.parts, len(base)
    devices = np.rint(np.bincount(unit, weights=parts, minlength=count)).astype(np.int64)
    whole = np.floor(parts + DUST).astype(np.int64)
    rest = devices - np.bincount(unit, weights=whole, minlength=count).astype(np.int64)
    fraction = np.where(parts - whole > DUST, parts - whole, 0.0)
    rows, counts = [near.judged.rows.take(np.flatnonzero(whole))], [whole[whole > 0]]
    mixed = np.flatnonzero(rest > 0)
    if len(mixed):
        heaviest = near.judged.rows.take(_heaviest(unit, mixed, fraction))
        average = _averages(near, (unit, mixed), (base.take(mixed), heaviest.kind), fraction)
        lawful = near.rules.judge.judge(average).lawful
        rows.append(_either(lawful, average, heaviest))
        counts.append(rest[mixed])
    return Sheet.of_rows(near.rules, Patterns.joined(rows), np.concatenate(counts))


def _either(chosen: Flags, one: Patterns, other: Patterns) -> Patterns:
    return Patterns(
        kind=np.where(chosen, one.kind, other.kind),
        variants=np.where(chosen[:, None], one.variants, other.variants),
        shares_pct=np.where(chosen[:, None], one.shares_pct, other.shares_pct),
    )


def _heaviest(unit: Whole, chosen: Whole, fraction: Floats) -> Whole:
    """The column of each chosen unit with the largest fraction."""
    order = np.lexsort((-fraction, unit))
    return np.asarray(order[np.searchsorted(unit[order], chosen)])


def _averages(near: Near, units: tuple[Whole, Whole], base: tuple[Patterns, Whole], fraction: Floats) -> Patterns:
    """Fractions of each chosen unit averaged into one row of whole steps, of these kinds."""
    (unit, chosen), (members, kind) = units, base
    place = np.full(int(unit.max()) + 1, -1, dtype=np.int64)
    place[chosen] = np.arange(len(chosen))
    used = np.flatnonzero((fraction > DUST) & (place[unit] >= 0))
    at, weight = place[unit[used]], fraction[used]
    rows = near.judged.rows.take(used)
    total = np.zeros(members.shares_pct.shape)
    taken = np.zeros((len(used), members.variants.shape[1]), dtype=bool)
    for column in range(rows.variants.shape[1]):
        # The first place of the unit's own row that holds the same network and is not spoken for.
        same = (members.variants[at] == rows.variants[:, column, None]) & (rows.variants[:, column, None] >= 0) & ~taken
        hit = np.flatnonzero(same.any(axis=1))
        slot = np.argmax(same[hit], axis=1)
        taken[hit, slot] = True
        np.add.at(total, (at[hit], slot), weight[hit] * rows.shares_pct[hit, column])
    sums = np.bincount(at, weights=weight, minlength=len(chosen))
    shares = total / np.maximum(sums, DUST)[:, None]
    return Patterns(kind=kind, variants=members.variants, shares_pct=_whole_steps(shares, near.problem.share_step_pct))


def _whole_steps(shares_pct: Floats, step: int) -> Whole:
    """Rounded to steps so that each row's sum is rounded up where that stays within the device."""
    units = shares_pct / step
    low = np.floor(units + DUST)
    room = np.minimum(np.ceil(units.sum(axis=1) - DUST), 100 // step) - low.sum(axis=1)
    rank = np.argsort(np.argsort(low - units, axis=1, kind="stable"), axis=1, kind="stable")
    up = (rank < room[:, None]) & (units - low > DUST)
    return np.asarray((low + up) * step, dtype=np.int64)
