"""Pricing: which patterns improve the relaxed optimum, by one small knapsack per kind and level of pressure.

At a *level* everything on the device presses as much as the level says, so the slowdown of a replica depends on
nothing but itself; the first level is the device alone. With the upper edge of a level the numbers are safe to
promise, with the lower edge nothing can do better, which is what bounds need. So at a level every replica has a value,
and a pattern is a choice of at most one share per workload that fits on the device: a dynamic programme over share
units and clients, run for all kinds and levels together. Only the best few workloads at each share can be in the best
pattern, so its size does not grow with their number. Memory and pressure are kept down by multipliers that follow what
was found; whether a pattern is any good is for `Judge` to say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.planners.joint.solve.judge import Judge, Patterns, ordered, own_pressure, pressure_most
from solvers.planners.joint.solve.master import ItemPrices, Rows, steps_of
from solvers.problems.joint import JointProblem

Singles = NDArray[np.float32]
LEVEL_PARTS = (0.0, 0.12, 0.22, 0.33, 0.45, 0.58, 0.75, 1.0)
"""Edges as parts of the highest pressure there can be."""
CHUNK_CELLS = 4_000_000
UNITS_MAX = 40
SPARE_ITEMS = 3
BEYOND = np.float32(-1e30)
CLASSES_AT_ONCE = 160
FAR = -0.4
"""A class whose best pattern is worth so much less than it costs, as a part, is far from worth it."""
ALL_TURNS = 6
ITEMS_USUAL = 45
CELLS_PER_UNIT = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Edges of pressure levels; the level of index 0 is a device with one replica."""

    edge: Floats

    def __len__(self) -> int:
        return len(self.edge)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Arrays are table x level x variant x share; rates 0 where a replica cannot run."""

    rate: Singles
    """Requests per second at the best batch."""
    power: Singles
    memory: Singles
    press: Singles
    """table x variant x share: what the replica itself adds."""
    levels: Levels


def levels_of(problem: JointProblem, width: int) -> Levels:
    """Levels up to the highest pressure that a full device can have; two when nothing presses."""
    if width < 2 or not len(problem.variants):
        return Levels(edge=np.zeros(1))
    highest = pressure_most(problem, width)
    if highest <= 1e-9 or not problem.sensitivity.any():
        return Levels(edge=np.array([0.0, highest]))
    return Levels(edge=np.concatenate([[0.0], highest * np.array(LEVEL_PARTS[1:])]))


def tables_of(problem: JointProblem, judge: Judge, levels: Levels) -> Tables:
    """Compute them, table by table and in slices of variants."""
    tables, variants = problem.pressure.shape
    shares, batches = len(problem.shares_pct), len(problem.batches)
    shape = (tables, len(levels), variants, shares)
    rates, power, memory = (np.zeros(shape, dtype=np.float32) for _ in range(3))
    press = own_pressure(problem, problem.shares_pct)
    step = max(1, CHUNK_CELLS // max(1, shares * batches * len(levels)))
    for table in range(tables):
        for at in range(0, variants, step):
            some = np.arange(at, min(at + step, variants))
            best, batch = _best(judge, levels, table, some, press[table, some])
            here = np.s_[table, :, at : at + len(some)]
            rates[here] = best
            watts = problem.power_w[table, some]
            mib = np.broadcast_to(problem.memory_mib[table, some][:, None, :], watts.shape)
            for target, source in ((power, watts), (memory, mib)):
                taken = np.take_along_axis(source[None], batch[..., None], axis=3)[..., 0]
                target[here] = np.where(best > 0, taken, 0.0)
    return Tables(rate=rates, power=power, memory=memory, press=press.astype(np.float32), levels=levels)


def _best(judge: Judge, levels: Levels, table: int, some: Whole, press: Floats) -> tuple[Floats, Whole]:
    """Highest rate over batches and its batch: level x variant x share."""
    problem = judge.problem
    felt = problem.sensitivity[table, some][None, :, None] * np.maximum(levels.edge[:, None, None] - press[None], 0.0)
    factor = problem.crowd[table, some][None, :, None] * (1 + felt)
    factor[0] = 1.0
    mean = problem.mean_ms[table, some][None] * factor[..., None]
    tail = mean if problem.mean_ms is problem.tail_ms else problem.tail_ms[table, some][None] * factor[..., None]
    member = np.broadcast_to(some[None, :, None], mean.shape[:3])
    rates = judge.rates(member, mean, tail)
    batch = np.argmax(rates, axis=3)
    return np.take_along_axis(rates, batch[..., None], axis=3)[..., 0], batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Patterns as classes x members; `value` is what the programme thought of them."""

    rows: Patterns
    value: Floats
    of_class: Whole
    """Which each came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Items:
    """Class x workload x share: what each is worth, and the variant it comes from; None where there is one of each."""

    value: Singles
    variant: Whole | None


class Pricing:
    """Keeps multipliers between rounds."""

    def __init__(self, problem: JointProblem, tables: Tables, rows: Rows, width: int) -> None:
        self.problem, self.tables, self.width = problem, tables, width
        asked = rows.wanted | (rows.floored & (rows.rate <= 0))
        self.variant = np.flatnonzero(asked[problem.variant_workload])
        """Those of workloads that still ask for something; all arrays below are about them."""
        work = problem.variant_workload[self.variant]
        every = len(self.variant) == len(problem.variants)
        names = slice(None) if every else self.variant
        whole = np.where(rows.wanted, np.maximum(rows.rate, 1e-12), np.inf)[work].astype(np.float32)
        rate = tables.rate[:, :, names]
        self._able = rate > 0
        self._part = np.minimum(rate / whole[None, None, :, None], np.float32(1.0))
        self._power, self._memory = tables.power[:, :, names], tables.memory[:, :, names]
        self._press = tables.press[:, names]
        self._allowed = problem.allowed[:, self.variant]
        shares = problem.shares_pct
        unit = int(np.gcd.reduce(shares))
        if 100 // unit > UNITS_MAX:
            unit = -(-100 // UNITS_MAX)
        self.units = -(-100 // unit)
        self.weight = -(-shares // unit)
        levels = len(tables.levels)
        self.kind = np.repeat(np.arange(problem.kinds), levels)
        self.level = np.tile(np.arange(levels), problem.kinds)
        self.pool = problem.kind_pool[self.kind]
        self.room = np.array([pool.memory_mib for pool in problem.pools], dtype=np.float64)[self.pool]
        self.edge = tables.levels.edge[self.level]
        clients = np.array([pool.clients for pool in problem.pools], dtype=np.int64)[self.pool]
        self.clients = np.minimum(np.where(self.level == 0, 1, clients), width)
        self.memory_usd = np.zeros(len(self.kind))
        self.press_usd = np.zeros(len(self.kind))
        self._steps: dict[int, Singles] = {}
        self._every = np.arange(len(self.kind))
        self._margin = np.full(len(self.kind), np.inf)
        self._turn = 0
        self._work = work
        self._order = np.argsort(work, kind="stable")
        self._starts = np.flatnonzero(np.diff(work[self._order], prepend=-1))
        self._workloads = work[self._order][self._starts]
        self._single = len(self._starts) == len(work)
        copies = np.array([min(item.per_device_max, width) for item in problem.workloads], dtype=np.int64)
        self._copies = copies[self._workloads] if len(copies) else copies
        self._conflicts = _conflicts(problem, self._workloads)
        self._alone = np.array([item.dedicated for item in problem.workloads], dtype=np.bool_)[work]
        each = 8 * min(len(self._starts), ITEMS_USUAL) + len(self._starts)
        self.units_of_work = 2 + len(self.kind) * each // CELLS_PER_UNIT
        """What asking for prices once takes."""

    def follow(self, before: Pricing) -> None:
        """Begin with what another one, of the same problem, learned."""
        self.memory_usd, self.press_usd = before.memory_usd, before.press_usd
        self._margin, self._turn = before._margin, before._turn

    def price(self, prices: ItemPrices, repeats: int, *, everything: bool = False) -> Found:
        """Best patterns of every kind and level, up to `repeats` of each without a workload in common. Kinds and levels
        that were far from worth it are only asked every few turns.
        """
        asked = np.flatnonzero(self._margin > FAR) if self._turn % ALL_TURNS and not everything else self._every
        self._turn += 1
        found: list[Found] = []
        if not len(self.variant):
            return Found(rows=Patterns.none(self.width), value=np.zeros(0), of_class=np.zeros(0, dtype=np.int64))
        for at in range(0, len(asked), CLASSES_AT_ONCE):
            classes = asked[at : at + CLASSES_AT_ONCE]
            found += self._some(classes, prices, repeats)
        if not found:
            return Found(rows=Patterns.none(self.width), value=np.zeros(0), of_class=np.zeros(0, dtype=np.int64))
        return Found(
            rows=ordered(Patterns.chained([one.rows for one in found])),
            value=np.concatenate([one.value for one in found]),
            of_class=np.concatenate([one.of_class for one in found]),
        )

    def _some(self, classes: Whole, prices: ItemPrices, repeats: int) -> list[Found]:
        items = self._values(classes, prices)
        self._margin[classes] = -np.inf
        found = []
        for barred in _compatible(self._conflicts, self._turn):
            value = items.value
            if barred.any():
                value = value.copy()
                value[:, barred] = BEYOND
            found += self._best_patterns(classes, replace(items, value=value), prices, repeats)
        return found

    def _best_patterns(self, classes: Whole, items: _Items, prices: ItemPrices, repeats: int) -> list[Found]:
        """The best patterns of workloads that all bear each other."""
        variant = items.variant
        work, value = self._best_items(items.value)
        if variant is not None:
            variant = np.take_along_axis(variant, work[:, :, None], axis=1)
        found = []
        for turn in range(repeats):
            best, place, option = knapsack(value, self.weight, self.units, self.clients[classes])
            if turn == 0:
                fixed = prices.fixed[self.pool[classes]]
                margin = (best - fixed) / np.maximum(np.abs(fixed), 1e-6)
                self._margin[classes] = np.maximum(self._margin[classes], margin)
            alive = np.flatnonzero(best > prices.fixed[self.pool[classes]] * 0.5)
            if not len(alive):
                break
            one = self._patterns(
                classes[alive],
                work[alive],
                None if variant is None else variant[alive],
                place[alive],
                option[alive],
            )
            found.append(Found(rows=one, value=best[alive], of_class=classes[alive]))
            rows, members = np.nonzero(place >= 0)
            value[rows, place[rows, members]] = BEYOND
        return found

    def _values(self, classes: Whole, prices: ItemPrices) -> _Items:
        problem = self.problem
        table, level, pool = problem.kind_table[self.kind[classes]], self.level[classes], self.pool[classes]
        work = self._work
        value = self._part[table, level] * prices.pi[work].astype(np.float32)[None, :, None]
        for steps, usd in prices.steps:
            some = np.flatnonzero(usd[work])
            value[:, some] += self._started(steps)[table[:, None], level[:, None], some] * usd[work[some], None].astype(
                np.float32
            )
        value -= self._power[table, level] * prices.watt[pool].astype(np.float32)[:, None, None]
        value -= prices.share[pool][:, work, None].astype(np.float32) * problem.shares_pct.astype(np.float32)
        if problem.by_memory:
            kind = self.kind[classes][:, None, None]
            value -= problem.held_usd(kind, self.variant[None, :, None], problem.shares_pct).astype(np.float32)
        if prices.replica.any():
            value += prices.replica[work].astype(np.float32)[None, :, None]
        if self.memory_usd[classes].any():
            value -= self._memory[table, level] * self.memory_usd[classes].astype(np.float32)[:, None, None]
        if self.press_usd[classes].any():
            value -= self._press[table] * self.press_usd[classes].astype(np.float32)[:, None, None]
        never = ~self._allowed[pool] | ((level > 0)[:, None] & self._alone[None, :])
        value[~self._able[table, level] | never[:, :, None]] = BEYOND
        if self._single:
            return _Items(value=value[:, self._order], variant=None)
        value = value[:, self._order]
        best = np.maximum.reduceat(value, self._starts, axis=1)
        group = np.repeat(np.arange(len(self._starts)), np.diff(self._starts, append=len(work)))
        first = np.where(value >= best[:, group], self._order[None, :, None], len(work))
        return _Items(value=best, variant=np.minimum.reduceat(first, self._starts, axis=1))

    def _started(self, steps: int) -> Singles:
        if steps not in self._steps:
            self._steps[steps] = steps_of(self._part.astype(np.float64), steps).astype(np.float32)
        return self._steps[steps]

    def _best_items(self, value: Singles) -> tuple[Whole, Singles]:
        """The workloads that can be in a best pattern: class x item, and their values."""
        classes, workloads, options = value.shape
        chosen = np.zeros((classes, workloads), dtype=np.bool_)
        for option in range(options):
            count = min(workloads, self.units // int(self.weight[option]) + SPARE_ITEMS)
            column = value[:, :, option]
            if count >= workloads:
                chosen |= column > 0
                continue
            top = np.argpartition(-column, count - 1, axis=1)[:, :count]
            chosen[np.arange(classes)[:, None], top] |= np.take_along_axis(column, top, axis=1) > 0
        most = max(1, int(chosen.sum(axis=1).max(initial=0)))
        if most < workloads:
            work = np.argpartition(~chosen, most - 1, axis=1)[:, :most]
            work.sort(axis=1)
        else:
            work = np.broadcast_to(np.arange(workloads), (classes, workloads)).copy()
        kept = np.take_along_axis(chosen, work, axis=1)
        value = np.where(kept[:, :, None], np.take_along_axis(value, work[:, :, None], axis=1), BEYOND)
        if len(self._copies) and self._copies.max() > 1:
            times = int(self._copies.max())
            first = np.tile(np.arange(times), work.shape[1])
            work = np.repeat(work, times, axis=1)
            value = np.repeat(value, times, axis=1)
            value[first[None, :] >= self._copies[work]] = BEYOND
        return work, value

    def _patterns(self, classes: Whole, work: Whole, variant: Whole | None, place: Whole, option: Whole) -> Patterns:
        """Of class x item, what was chosen: class x member, -1 for none."""
        real = place >= 0
        safe = np.where(real, place, 0)
        item = np.take_along_axis(work, safe, axis=1)
        if variant is None:
            member = self._order[self._starts][item]
        else:
            member = variant[np.arange(len(classes))[:, None], safe, np.maximum(option, 0)]
        member = np.where(real, self.variant[member], -1)
        share = np.where(real, self.problem.shares_pct[np.maximum(option, 0)], 0)
        fill = self.width - member.shape[1]
        if fill > 0:
            member = np.pad(member, ((0, 0), (0, fill)), constant_values=-1)
            share = np.pad(share, ((0, 0), (0, fill)))
        member, share = member[:, : self.width], share[:, : self.width]
        return Patterns(kind=self.kind[classes], variants=member, shares_pct=share)

    def learn(self, found: Found) -> None:
        """Move the multipliers towards patterns that keep memory and the level's pressure."""
        table = self.problem.kind_table[found.rows.kind]
        real = found.rows.variants >= 0
        member = np.where(real, found.rows.variants, 0)
        share = np.searchsorted(self.problem.shares_pct, found.rows.shares_pct)
        share = np.minimum(share, len(self.problem.shares_pct) - 1)
        level = self.level[found.of_class][:, None]
        memory = np.where(real, self.tables.memory[table[:, None], level, member, share], 0.0).sum(axis=1)
        press = np.where(real, self.tables.press[table[:, None], member, share], 0.0).sum(axis=1)
        first = np.unique(found.of_class, return_index=True)[1]
        rows = found.of_class[first]
        worth = np.maximum(found.value[first], 1e-6)
        for usd, held, room in (
            (self.memory_usd, memory[first], self.room[rows]),
            (self.press_usd, press[first], np.maximum(self.edge[rows], 1e-9)),
        ):
            over = np.clip(held / room - 1, -0.5, 0.5)
            several = self.level[rows] > 0
            usd[rows] = np.where(several, np.maximum(0.0, usd[rows] + 0.4 * over * worth / room), 0.0)


def _conflicts(problem: JointProblem, workloads: Whole) -> Flags:
    """Which workloads avoid each other, both ways."""
    place = {int(number): at for at, number in enumerate(workloads)}
    conflicts = np.zeros((len(workloads), len(workloads)), dtype=np.bool_)
    for at, number in enumerate(workloads):
        for other in problem.workloads[int(number)].avoids:
            if other in place and place[other] != at:
                conflicts[at, place[other]] = conflicts[place[other], at] = True
    return conflicts


def _compatible(conflicts: Flags, turn: int) -> list[Flags]:
    """Which workloads are left out of each search, so that none in it avoids another and each is in one of them. A
    knapsack knows nothing of pairs: asked about all at once it would answer with conflicts, and their better halves
    never be found. Every turn mixes them anew, so that all that bear each other meet sooner or later.
    """
    number = len(conflicts)
    tied: Flags = np.asarray(conflicts.any(axis=1))
    order = np.random.default_rng(turn).permutation(np.flatnonzero(tied))
    untied: Flags = ~tied
    outside: list[Flags] = []
    left: Flags = tied.copy()
    while left.any():
        members = untied.copy()
        # First those in no search yet, then all others that bear them all.
        for at in (*order[left[order]].tolist(), *order[~left[order]].tolist()):
            members[at] = not conflicts[at, members].any()
        outside.append(np.asarray(~members))
        left &= ~members
    return outside or [np.zeros(number, dtype=np.bool_)]


def knapsack(value: Singles, weight: Whole, units: int, clients: Whole) -> tuple[Floats, Whole, Whole]:
    """Best choice of at most one option per item within the units and clients, for every class; `value` is class x
    item x option. Returns values, chosen items and their options (class x member, -1 for none).
    """
    classes, items, _ = value.shape
    deep = max(1, int(min(clients.max(initial=1), units // int(weight.min()))))
    tables = np.zeros((items + 1, classes, deep + 1, units + 1), dtype=np.float32)
    useful = np.asarray((value > 0).any(axis=0))
    for item in range(items):
        before, now = tables[item, :, :-1], tables[item + 1, :, 1:]
        now[:] = tables[item, :, 1:]
        for option in np.flatnonzero(useful[item]).tolist():
            size = int(weight[option])
            offer = before[:, :, : units + 1 - size] + value[:, item, option, None, None]
            np.maximum(now[:, :, size:], offer, out=now[:, :, size:])
    depth, left = np.minimum(clients, deep), np.full(classes, units)
    best = tables[items, np.arange(classes), depth, left].astype(np.float64)
    return best, *_retraced(tables, value, weight, depth, left)


def _retraced(tables: Singles, value: Singles, weight: Whole, depth: Whole, left: Whole) -> tuple[Whole, Whole]:
    """Which items and options led to the best values: followed back from the full device."""
    classes, items, _ = value.shape
    place = np.full((classes, tables.shape[2] - 1), -1, dtype=np.int64)
    option_of = np.full_like(place, -1)
    count = np.zeros(classes, dtype=np.int64)
    row = np.arange(classes)
    for item in range(items - 1, -1, -1):
        hit = np.flatnonzero(tables[item + 1, row, depth, left] > tables[item, row, depth, left])
        if not len(hit):
            continue
        rest = left[hit, None] - weight[None, :]
        offer = tables[item, hit[:, None], depth[hit, None] - 1, np.maximum(rest, 0)] + value[hit, item]
        pick = np.argmax(np.where(rest >= 0, offer, BEYOND), axis=1)
        place[hit, count[hit]] = item
        option_of[hit, count[hit]] = pick
        left[hit] -= weight[pick]
        depth[hit] -= 1
        count[hit] += 1
    return place, option_of
