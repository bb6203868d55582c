"""Trimming: who stands with whom is decided, how the shares are split and how many devices it takes is not.

Owns three steps, repeated while they help. *Close*: in the relaxed problem around the layout, counts of devices become
whole one after the other, largest fraction first, and the rest adapts. *Settle*: the mixture that each group is left
with becomes whole percent of share on whole devices. *Descend*: single exact moves make up what rounding lost. A step
whose outcome is worth less than what it began with is not taken.
"""

from __future__ import annotations

import numpy as np

from solvers.engines.deadline import Deadline
from solvers.planners.joint.core.books import Books, Rows
from solvers.planners.joint.core.descent import descend
from solvers.planners.joint.core.moves import joined
from solvers.planners.joint.core.near import DUST, Near
from solvers.planners.joint.core.rules import Rules
from solvers.planners.joint.core.sheet import Sheet
from solvers.problems.joint import Flags, Floats, JointProblem, Whole
from solvers.problems.layout import Layout

_PASSES = 3
_COARSE = (10, 3)
_FINE = ((10, 3, 1), (3, 1))
_UP_PART = 0.2
"""Of the broken counts, how many are made whole at once."""
_GAIN = 1e-4
"""Part of the worth that a pass must gain to be followed by another."""


def trim(problem: JointProblem, layout: Layout, deadline: Deadline) -> Layout:
    """The same members at less cost and with less unserved; never worse."""
    sheet = Sheet.of_layout(Rules(Books(problem)), layout)
    return trimmed(sheet, deadline).layout(layout)


def trimmed(sheet: Sheet, deadline: Deadline) -> Sheet:
    """As `trim`, on a sheet."""
    best = sheet
    for _ in range(_PASSES):
        if deadline.over or not len(best.counts):
            break
        deadline.spend()
        tried = _close(best, deadline)
        for steps in _FINE:
            tried = _fine(tried, steps, deadline)
        tried = descend(tried, deadline)
        if not tried.kept() and best.kept():
            break
        gain = best.worth() - tried.worth()
        if gain > 0:
            best = tried
        if gain <= _GAIN * best.worth():
            break
    return descend(best, deadline)


def _close(sheet: Sheet, deadline: Deadline) -> Sheet:
    """As few devices as the relaxed problem around the layout needs, made whole."""
    near = Near(sheet, _COARSE[:1])
    if not near.solve(primal=True):
        return sheet
    for _ in range(2):
        if not near.widen_used(_COARSE) or not near.solve(primal=True):
            break
    while not deadline.over:
        devices = near.devices()
        fraction = devices - np.floor(devices + DUST)
        broken = np.flatnonzero(fraction > DUST)
        if not len(broken):
            return settled(near, sheet)
        most = max(1, int(_UP_PART * len(broken)))
        for group in broken[np.argsort(-fraction[broken], kind="stable")][:most].tolist():
            near.bound(group, float(np.ceil(devices[group])), float(near.devices_max[group]))
        if not near.solve(primal=False):
            break
    return sheet


def _fine(sheet: Sheet, steps_pct: tuple[int, ...], deadline: Deadline) -> Sheet:
    """Share moved about while the devices stay."""
    if deadline.over or not len(sheet.counts):
        return sheet
    near = Near(sheet, steps_pct)
    for group, count in enumerate(sheet.counts.tolist()):
        near.bound(group, float(count), float(count))
    return settled(near, sheet) if near.solve(primal=True) else sheet


def settled(near: Near, sheet: Sheet) -> Sheet:
    """Each group's mixture as whole devices with whole percents: whole parts as they are, the rest as one average."""
    devices = np.rint(near.devices()).astype(np.int64)
    whole = np.floor(near.parts + DUST).astype(np.int64)
    rest = devices - np.bincount(near.group, weights=whole, minlength=near.groups).astype(np.int64)
    fraction = np.where(near.parts - whole > DUST, near.parts - whole, 0.0)
    rows, counts = [near.verdicts.rows.take(np.flatnonzero(whole))], [whole[whole > 0]]
    mixed = np.flatnonzero(rest > 0)
    if len(mixed):
        average = _averages(near, sheet.verdicts.rows.take(mixed), mixed, fraction)
        lawful = near.rules.books.judge_many(average).lawful
        rows.append(_either(lawful, average, near.verdicts.rows.take(_heaviest(near, mixed, fraction))))
        counts.append(rest[mixed])
    return Sheet.of_rows(near.rules, joined(rows), np.concatenate(counts))


def _either(chosen: Flags, one: Rows, other: Rows) -> Rows:
    return Rows(
        kind=np.where(chosen, one.kind, other.kind),
        variants=np.where(chosen[:, None], one.variants, other.variants),
        shares_pct=np.where(chosen[:, None], one.shares_pct, other.shares_pct),
    )


def _heaviest(near: Near, groups: Whole, fraction: Floats) -> Whole:
    """The column of each group with the largest fraction."""
    order = np.lexsort((-fraction, near.group))
    first = np.searchsorted(near.group[order], groups)
    return np.asarray(order[first])


def _averages(near: Near, base: Rows, groups: Whole, fraction: Floats) -> Rows:
    """Fractions of each group averaged into one row of whole steps; its kind is the heaviest's."""
    place = np.full(near.groups, -1, dtype=np.int64)
    place[groups] = np.arange(len(groups))
    used = np.flatnonzero((fraction > DUST) & (place[near.group] >= 0))
    at, weight = place[near.group[used]], fraction[used]
    rows = near.verdicts.rows.take(used)
    total = np.zeros(base.shares_pct.shape)
    taken = np.zeros((len(used), base.variants.shape[1]), dtype=bool)
    for column in range(rows.variants.shape[1]):
        # The first place of the group's own row that holds the same network and is not spoken for.
        same = (base.variants[at] == rows.variants[:, column, None]) & (rows.variants[:, column, None] >= 0) & ~taken
        hit = np.flatnonzero(same.any(axis=1))
        slot = np.argmax(same[hit], axis=1)
        taken[hit, slot] = True
        np.add.at(total, (at[hit], slot), weight[hit] * rows.shares_pct[hit, column])
    sums = np.bincount(at, weights=weight, minlength=len(groups))
    shares = total / np.maximum(sums, DUST)[:, None]
    return Rows(
        kind=near.verdicts.rows.kind[_heaviest(near, groups, fraction)],
        variants=base.variants,
        shares_pct=_whole_steps(shares, near.problem.share_step_pct),
    )


def _whole_steps(shares_pct: Floats, step: int) -> Whole:
    """Rounded to steps so that each row's sum is rounded up where that stays within the device."""
    units = shares_pct / step
    low = np.floor(units + DUST)
    room = np.minimum(np.ceil(units.sum(axis=1) - DUST), 100 // step) - low.sum(axis=1)
    rank = np.argsort(np.argsort(low - units, axis=1, kind="stable"), axis=1, kind="stable")
    up = (rank < room[:, None]) & (units - low > DUST)
    return np.asarray((low + up) * step, dtype=np.int64)
