"""A first feasible layout at once: every demand on its cheapest kind of device, devices filled by addition.

*Assign*: each workload's rate goes where it costs least; where a pool is asked for more than it has, those go
elsewhere that lose least by it, so what stays unserved is what counts least. *Pack*: the replicas of a pool, largest
first and all equal ones at once, go to the fullest devices that have room. What then lacks is put wherever there is
room. Nothing here looks ahead, and no rule is broken to serve more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.packing import Lot, Packing, Sizes, SizeTable
from solvers.planners.joint.solve.solution import SERVED, Rules, Solution
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout

_FULL_PART = 0.93
"""Of a pool that may be assigned: packing wastes the rest."""
_PLACES = 4
"""Packing of each pool tried for what found no room where it belongs."""
_LEAST_RPS = 1e-6
"""Asked for on behalf of replicas that must stand without any demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Parts of workloads' rates, and where each goes."""

    bin_class: Whole
    variant: Whole
    rate_rps: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offers:
    """Workload x pool: the cheapest bin_class and variant there, what the whole rate costs there and takes of it."""

    usd_per_h: Floats
    devices: Floats
    bin_class: Whole
    variant: Whole


def first_layout(problem: JointProblem) -> Layout:
    """A layout that keeps every rule; demands that count least go without where devices lack."""
    judge = Judge(problem)
    size_table, rules = SizeTable(judge), Rules(judge)
    packing = Packing(size_table, rules)
    wanted = problem.rate_rps.copy()
    wanted[rules.floored] = np.maximum(wanted[rules.floored], _LEAST_RPS)
    offers = _offers(size_table, wanted)
    parts = _assign(problem, offers, wanted, _FULL_PART * problem.pool_devices.astype(np.float64))
    for lot in _lots(size_table, packing, parts):
        packing.place(lot)
    # Packing are careful: what really stands there serves more than was added up.
    rows = packing.rows()
    packing.planned_rps = Solution.of_rows(rules, rows, np.ones(len(rows), dtype=np.int64)).served_rps()
    _mop_up(size_table, packing, wanted)
    rows = packing.rows()
    return Solution.of_rows(rules, rows, np.ones(len(rows), dtype=np.int64)).layout()


def _offers(size_table: SizeTable, rate_rps: Floats) -> _Offers:
    problem = size_table.judge.problem
    shape = (len(problem.workloads), len(problem.pools))
    offers = _Offers(
        usd_per_h=np.full(shape, np.inf),
        devices=np.full(shape, np.inf),
        bin_class=np.zeros(shape, dtype=np.int64),
        variant=np.zeros(shape, dtype=np.int64),
    )
    price = _price(size_table)
    work = problem.variant_workload
    for pool in range(len(problem.pools)):
        packing = np.flatnonzero(size_table.pool == pool)
        if not len(packing):
            continue
        best = packing[np.argmin(price[packing], axis=0)]
        variants = np.arange(len(work))
        order = np.lexsort((price[best, variants], work))
        first = order[np.concatenate([[True], work[order][1:] != work[order][:-1]])]
        numbers, bin_class = work[first], best[first]
        fit = np.isfinite(price[bin_class, first])
        numbers, bin_class, first = numbers[fit], bin_class[fit], first[fit]
        offers.usd_per_h[numbers, pool] = price[bin_class, first] * rate_rps[numbers]
        offers.devices[numbers, pool] = (
            size_table.part[bin_class, first] / size_table.capacity_rps[bin_class, first] * rate_rps[numbers]
        )
        offers.bin_class[numbers, pool], offers.variant[numbers, pool] = bin_class, first
    return offers


def _price(size_table: SizeTable) -> Floats:
    """Shelf x variant: $/h of a request per second; `inf` where it cannot stand."""
    able = np.isfinite(size_table.part)
    part = np.where(able, size_table.part, 1.0)
    rate = np.where(able, size_table.capacity_rps, 1.0)
    running = np.where(able, size_table.running_usd, 0.0)
    return np.asarray(np.where(able, (size_table.device_usd[:, None] * part + running) / rate, np.inf))


def _assign(problem: JointProblem, offers: _Offers, rate_rps: Floats, devices: Floats) -> _Parts:
    """Pools are closed one by one, each filled with the workloads that would lose most elsewhere, per device."""
    pools = len(problem.pools)
    rest = np.where(rate_rps > 0, 1.0, 0.0)
    given: Floats = np.zeros((len(rate_rps), pools))
    left = devices.astype(np.float64)
    cost = offers.usd_per_h.copy()
    needs = np.where(np.isfinite(offers.devices), offers.devices, 0.0)
    for _ in range(pools):
        at_best, best = cost.min(axis=1), np.argmin(cost, axis=1)
        asks = np.isfinite(at_best) & (rest > 0)
        mine = (best[:, None] == np.arange(pools)) & asks[:, None]
        over = (mine * needs * rest[:, None]).sum(axis=0) - left
        pool = int(np.argmax(over))
        if over[pool] <= 0:
            given += mine * rest[:, None]
            break
        second = cost.copy()
        second[:, pool] = np.inf
        loss = np.minimum(second.min(axis=1), problem.unserved_usd) - at_best
        chosen = np.flatnonzero(mine[:, pool])
        each = np.maximum(needs[chosen, pool], 1e-12)
        chosen = chosen[np.argsort(-loss[chosen] / each, kind="stable")]
        asked = needs[chosen, pool] * rest[chosen]
        before = np.cumsum(asked) - asked
        part = np.clip((left[pool] - before) / np.maximum(asked, 1e-12), 0.0, 1.0)
        given[chosen, pool] += rest[chosen] * part
        rest[chosen] *= 1 - part
        cost[:, pool] = np.inf
    work, pool_of = np.nonzero(given > SERVED)
    return _Parts(
        bin_class=offers.bin_class[work, pool_of],
        variant=offers.variant[work, pool_of],
        rate_rps=given[work, pool_of] * rate_rps[work],
    )


def _lots(size_table: SizeTable, packing: Packing, parts: _Parts) -> list[Lot]:
    """Whole replicas of the cheapest size and one for the rest that is as small as will do; largest first."""
    if not len(parts.bin_class):
        return []
    work = size_table.judge.workload[parts.variant]
    each = size_table.capacity_rps[parts.bin_class, parts.variant]
    floor = np.maximum(packing.floor[work] - packing.replicas[work], 0)
    whole = np.floor(parts.rate_rps / each + SERVED)
    spread = whole + 1 < floor
    whole = np.where(spread, 0, whole)
    rest = np.where(spread, parts.rate_rps / np.maximum(floor, 1), parts.rate_rps - whole * each)
    rest = np.where(rest > SERVED * parts.rate_rps, rest, 0.0)
    sizes = _smallest(size_table, parts, rest)
    full = size_table.sizes(parts.bin_class, parts.variant, size_table.share_pct[parts.bin_class, parts.variant])
    out: list[tuple[float, Lot]] = []
    for item in range(len(each)):
        last = int(max(floor[item], 1)) if spread[item] else int(rest[item] > 0)
        for size, count in ((full, int(whole[item])), (sizes, last)):
            if count > 0 and np.isfinite(size.part[item]):
                out.append((float(size.part[item]), _lot(parts, size, item, count)))
    out.sort(key=lambda pair: -pair[0])
    return [lot for _, lot in out]


def _smallest(size_table: SizeTable, parts: _Parts, rest: Floats) -> Sizes:
    """For each part the smallest share that carries the rest of it, and what that takes."""
    grid = size_table.judge.problem.shares_pct
    count = len(grid)
    bin_class, variant = np.repeat(parts.bin_class, count), np.repeat(parts.variant, count)
    sizes = size_table.sizes(bin_class, variant, np.tile(grid, len(rest)))
    carries = (sizes.capacity_rps >= np.repeat(rest, count) * (1 - SERVED)) & np.isfinite(sizes.part)
    most = size_table.share_pct[parts.bin_class, parts.variant]
    place = np.argmax(carries.reshape(-1, count), axis=1)
    none = ~carries.reshape(-1, count).any(axis=1)
    share = np.where(none, most, grid[place])
    return size_table.sizes(parts.bin_class, parts.variant, share)


def _lot(parts: _Parts, sizes: Sizes, item: int, replicas: int) -> Lot:
    return Lot(
        bin_class=int(parts.bin_class[item]),
        variant=int(parts.variant[item]),
        replicas=replicas,
        share_pct=int(sizes.share_pct[item]),
        capacity_rps=float(sizes.capacity_rps[item]),
        memory_mib=float(sizes.memory_mib[item]),
        pressure=float(sizes.pressure[item]),
        watts=float(sizes.watts[item]),
    )


def _mop_up(size_table: SizeTable, packing: Packing, wanted_rps: Floats) -> None:
    """What still lacks goes wherever there is room, what counts most first."""
    problem = size_table.judge.problem
    price = _price(size_table)
    short = np.flatnonzero(_lacks(packing, wanted_rps) > 0)
    for number in short[np.argsort(-problem.unserved_usd[short], kind="stable")]:
        variants = np.flatnonzero(problem.variant_workload == number)
        for bin_class, variant in _places(size_table, price[:, variants], variants):
            lacking = float(_lacks(packing, wanted_rps)[number])
            if lacking <= 0:
                break
            parts = _Parts(bin_class=np.array([bin_class]), variant=np.array([variant]), rate_rps=np.array([lacking]))
            for lot in _lots(size_table, packing, parts):
                packing.place(lot)


def _places(size_table: SizeTable, price: Floats, variants: Whole) -> list[tuple[int, int]]:
    """The cheapest packing and variants of every pool, cheapest first."""
    order = np.argsort(price, axis=None, kind="stable")
    order = order[np.isfinite(price.ravel()[order])]
    bin_class, column = np.divmod(order, len(variants))
    pool = size_table.pool[bin_class]
    rank = np.array([np.count_nonzero(pool[:place] == pool[place]) for place in range(len(pool))])
    kept = np.flatnonzero(rank < _PLACES)
    return list(zip(bin_class[kept].tolist(), variants[column[kept]].tolist(), strict=True))


def _lacks(packing: Packing, wanted_rps: Floats) -> Floats:
    rate = np.maximum(0.0, wanted_rps * (1 - SERVED) - packing.planned_rps)
    missing = (packing.floor > packing.replicas) & (wanted_rps > 0)
    return np.asarray(np.where(missing, np.maximum(rate, _LEAST_RPS), rate))
