"""A first feasible layout at once: every demand on its cheapest kind of device, devices filled by addition.

*Assign*: each workload's rate goes where it costs least; where a pool is asked for more than it has, those go
elsewhere that lose least by it, so what stays unserved is what counts least. *Pack*: the replicas of a pool, largest
first and all equal ones at once, go to the fullest devices that have room. What then lacks is put wherever there is
room. Nothing here looks ahead, and no rule is broken to serve more.

A *bin class* is a kind of device together with the pressure that its replicas may put on each other in sum. Within one
every limit is additive (share, memory, pressure, watts, clients), so what fits by addition is lawful by judgement, and
only serves more when its neighbours press less. A replica's *part* of a device is the largest of its parts of all
limits. An unused device becomes one of the class of the first replica that it takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Flags, Floats, Parallel, Whole
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.solution import SERVED, Rules, Solution
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout, Patterns

_FULL_PART = 0.93
"""Of a pool that may be assigned: packing wastes the rest."""
_PLACES = 4
"""Packing of each pool tried for what found no room where it belongs."""
_LEAST_RPS = 1e-6
"""Asked for on behalf of replicas that must stand without any demand."""
CROWDING = (0.0, 0.25, 0.5, 0.85)
"""Pressures in sum that packing allow; at 0 a replica stands alone."""
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes(Parallel):
    """Replicas, one element each: what each takes and serves at its bin_class's crowding."""

    variant: Whole
    share_pct: Whole
    capacity_rps: Floats
    memory_mib: Floats
    pressure: Floats
    watts: Floats
    part: Floats
    """Of a device; `inf` where it cannot stand."""


class SizeTable:
    """Packing (kind x crowding) and the cheapest size of every variant on each."""

    def __init__(self, judge: Judge) -> None:
        problem = judge.problem
        self.judge = judge
        self.kind = np.repeat(np.arange(problem.kinds), len(CROWDING))
        self.crowding = np.tile(np.array(CROWDING), problem.kinds)
        self.pool = problem.kind_pool[self.kind]
        self.watts = _watts_per_device(problem)[self.pool]
        self.clients = np.where(self.crowding > 0, judge.clients[self.pool], 1)
        pool_usd = np.array([problem.idle_usd_per_h(pool) for pool in range(len(problem.pools))])
        self.device_usd = pool_usd[self.pool]
        count = len(self.kind)
        shape = (count, len(problem.variants))
        self.share_pct = np.zeros(shape, dtype=np.int64)
        self.capacity_rps = np.zeros(shape)
        self.part = np.full(shape, np.inf)
        self.running_usd = np.full(shape, np.inf)
        for bin_class in range(count):
            self._fill(bin_class)

    def _fill(self, bin_class: int) -> None:
        problem = self.judge.problem
        variants = np.flatnonzero(problem.allowed[self.pool[bin_class]])
        if self.crowding[bin_class] > 0:
            variants = variants[~self.judge.dedicated[problem.variant_workload[variants]]]
        if not len(variants):
            return
        shares = problem.shares_pct
        pairs = (np.repeat(variants, len(shares)), np.tile(shares, len(variants)))
        sizes = self.sizes(np.full(len(pairs[0]), bin_class), *pairs)
        shape = (len(variants), len(shares))
        running = self._running(bin_class, sizes)
        work = problem.variant_workload[pairs[0]]
        replicas_most = np.array([item.replicas_max for item in problem.workloads], dtype=np.float64)[work]
        devices = problem.pool_devices[self.pool[bin_class]] * self.judge.per_device_max[work]
        most = np.maximum(1.0, np.minimum(replicas_most, devices))
        with np.errstate(divide="ignore", invalid="ignore"):
            # What cannot carry the whole rate even as often as it may stand leaves the rest to dearer places.
            lack = np.maximum(1.0, problem.rate_rps[work] / (sizes.capacity_rps * most))
            price = (self.device_usd[bin_class] * sizes.part + running) / sizes.capacity_rps * lack
        price = np.where(np.isfinite(sizes.part) & np.isfinite(price), price, np.inf).reshape(shape)
        best = np.argmin(price, axis=1)
        fit = np.isfinite(price[np.arange(len(variants)), best])
        flat = np.arange(len(variants)) * len(shares) + best
        chosen, flat = variants[fit], flat[fit]
        self.share_pct[bin_class, chosen] = sizes.share_pct[flat]
        self.capacity_rps[bin_class, chosen] = sizes.capacity_rps[flat]
        self.part[bin_class, chosen] = sizes.part[flat]
        self.running_usd[bin_class, chosen] = running[flat]

    def _running(self, bin_class: int, sizes: Sizes) -> Floats:
        """$/h of a replica above the device itself."""
        problem = self.judge.problem
        if problem.by_replica:
            return problem.held_usd(int(self.kind[bin_class]), sizes.variant, sizes.share_pct)
        # Watts are without end where nothing runs; free energy costs nothing there either.
        return np.asarray(problem.usd_per_wh * sizes.watts) if problem.usd_per_wh else np.zeros_like(sizes.watts)

    def sizes(self, bin_class: Whole, variant: Whole, share_pct: Whole) -> Sizes:
        """Replicas of these shares on these packing, each slowed by all the neighbours its bin_class allows."""
        judge, problem = self.judge, self.judge.problem
        table = problem.kind_table[self.kind[bin_class]]
        own = problem.pressure[table, variant] * (share_pct / 100) ** problem.exponent[table, variant]
        others = np.maximum(self.crowding[bin_class] - own, 0.0)
        slow = problem.crowd[table, variant] * (1 + problem.sensitivity[table, variant] * others)
        alone = self.crowding[bin_class] <= 0
        slow = np.where(alone, 1.0, slow)
        rows = Patterns(kind=self.kind[bin_class], variants=variant[:, None], shares_pct=share_pct[:, None])
        served = judge.judge_slowed(rows, slow[:, None])
        pool = self.pool[bin_class]
        press = np.where(alone, 0.0, own)
        with np.errstate(divide="ignore", invalid="ignore"):
            part = np.maximum.reduce(
                [
                    share_pct / 100,
                    served.memory_mib[:, 0] / judge.room_mib[pool],
                    np.where(alone, 1.0, own / np.maximum(self.crowding[bin_class], 1e-9)),
                    served.power_w[:, 0] / self.watts[bin_class],
                    1 / self.clients[bin_class],
                ]
            )
        fit = served.lawful & (part <= 1.0)
        return Sizes(
            variant=variant,
            share_pct=share_pct,
            capacity_rps=np.where(fit, served.capacity_rps[:, 0], 0.0),
            memory_mib=served.memory_mib[:, 0],
            pressure=press,
            watts=served.power_w[:, 0],
            part=np.where(fit, part, np.inf),
        )


def _watts_per_device(problem: JointProblem) -> Floats:
    """Power above idle that each pool's devices may draw so that no cap can break, `inf` where nothing caps them."""
    idle = np.array([item.idle_w for item in problem.pools])
    span = np.array([item.limit_w for item in problem.pools]) - idle
    watts = np.full(len(problem.pools), np.inf)
    for cap in problem.caps:
        inside = np.array(cap.devices)
        spare = max(0.0, cap.limit_w - float(inside @ idle))
        part = spare / max(float(inside @ span), 1e-9)
        if part < 1:
            watts = np.where(inside > 0, np.minimum(watts, part * span), watts)
    return watts


@dataclass(frozen=True, slots=True, kw_only=True)
class Lot:
    bin_class: int
    variant: int
    replicas: int
    share_pct: int
    capacity_rps: float
    memory_mib: float
    pressure: float
    watts: float


class Packing:
    """See the module. Devices are numbered through, pool after pool."""

    def __init__(self, size_table: SizeTable, rules: Rules) -> None:
        judge, problem = size_table.judge, size_table.judge.problem
        self.size_table, self.judge, self.rules = size_table, judge, rules
        count = int(problem.pool_devices.sum())
        self.first = np.concatenate([[0], np.cumsum(problem.pool_devices)])
        pool = np.repeat(np.arange(len(problem.pools)), problem.pool_devices)
        self.bin_class = np.full(count, -1, dtype=np.int64)
        self.share_free = np.full(count, 100, dtype=np.int64)
        self.memory_free = judge.room_mib[pool]
        self.pressure_free = np.zeros(count)
        self.watts_free = np.zeros(count)
        self.clients_free = judge.clients[pool]
        self.planned_rps = np.zeros(len(problem.workloads))
        self.replicas = np.zeros(len(problem.workloads), dtype=np.int64)
        self.replicas_max = np.array([item.replicas_max for item in problem.workloads], dtype=np.int64)
        self.floor = problem.replicas_floor
        self.budget_left = np.array([item.budget_usd_per_h for item in problem.workloads])
        self.quota_left = np.array([limit for _, limit in problem.quotas])
        self._hosts: dict[int, list[Whole]] = {}
        self._placed: list[tuple[Whole, int, int]] = []

    def place(self, lot: Lot) -> int:
        """Put down as many as rules and room allow; how many that were."""
        work = int(self.judge.workload[lot.variant])
        wanted = min(lot.replicas, self._allowed(lot, work))
        if wanted <= 0:
            return 0
        placed = 0
        for devices in self._open(lot, work, wanted):
            if not len(devices):
                continue
            self._take(lot, work, devices)
            placed += len(devices)
        return placed

    def rows(self) -> Patterns:
        """Contents of the devices in use."""
        used = np.flatnonzero(self.bin_class >= 0)
        place = np.zeros(len(self.bin_class), dtype=np.int64)
        variants = np.full((len(self.bin_class), self.judge.width), -1, dtype=np.int64)
        shares = np.zeros((len(self.bin_class), self.judge.width), dtype=np.int64)
        for devices, variant, share in self._placed:
            variants[devices, place[devices]] = variant
            shares[devices, place[devices]] = share
            place[devices] += 1
        return Patterns(
            kind=self.size_table.kind[self.bin_class[used]], variants=variants[used], shares_pct=shares[used]
        )

    def _allowed(self, lot: Lot, work: int) -> int:
        """By replicas, budget and quota."""
        pool = self.judge.problem.pools[int(self.size_table.pool[lot.bin_class])]
        bill = pool.usd_per_h * lot.share_pct / 100
        most = int(self.replicas_max[work] - self.replicas[work])
        if bill > 0 and np.isfinite(self.budget_left[work]):
            most = min(most, int((self.budget_left[work] + _EPSILON) // bill))
        quota, gpus = int(self.rules.project[work]), pool.gpu_part * lot.share_pct / 100
        if quota >= 0 and gpus > 0:
            most = min(most, int((self.quota_left[quota] + _EPSILON) // gpus))
        return most

    def _open(self, lot: Lot, work: int, wanted: int) -> tuple[Whole, Whole]:
        """Devices of the bin_class with room, fullest first; and unused ones for the rest."""
        pool = int(self.size_table.pool[lot.bin_class])
        low, high = int(self.first[pool]), int(self.first[pool + 1])
        window = slice(low, high)
        fit: Flags = (self.bin_class[window] == lot.bin_class) & (self.clients_free[window] > 0)
        fit &= self.share_free[window] >= lot.share_pct
        fit &= self.memory_free[window] >= lot.memory_mib - _EPSILON
        fit &= self.pressure_free[window] >= lot.pressure - _EPSILON
        fit &= self.watts_free[window] >= lot.watts - _EPSILON
        for shunned in (work, *self.judge.problem.foes[work]):
            for devices in self._hosts.get(shunned, ()):
                inside = devices[(devices >= low) & (devices < high)]
                fit[inside - low] = False
        found = low + np.flatnonzero(fit)
        if len(found) > wanted:
            found = found[np.argsort(self.share_free[found], kind="stable")[:wanted]]
        unused = low + np.flatnonzero(self.bin_class[window] < 0)[: wanted - len(found)]
        return found, unused

    def _take(self, lot: Lot, work: int, devices: Whole) -> None:
        fresh = devices[self.bin_class[devices] < 0]
        self.bin_class[fresh] = lot.bin_class
        self.pressure_free[fresh] = self.size_table.crowding[lot.bin_class]
        self.watts_free[fresh] = self.size_table.watts[lot.bin_class]
        self.clients_free[fresh] = self.size_table.clients[lot.bin_class]
        self.share_free[devices] -= lot.share_pct
        self.memory_free[devices] -= lot.memory_mib
        self.pressure_free[devices] -= lot.pressure
        self.watts_free[devices] -= lot.watts
        self.clients_free[devices] -= 1
        self.planned_rps[work] += lot.capacity_rps * len(devices)
        self.replicas[work] += len(devices)
        pool = self.judge.problem.pools[int(self.size_table.pool[lot.bin_class])]
        part = len(devices) * lot.share_pct / 100
        self.budget_left[work] -= pool.usd_per_h * part
        if self.rules.project[work] >= 0:
            self.quota_left[self.rules.project[work]] -= pool.gpu_part * part
        self._hosts.setdefault(work, []).append(devices)
        self._placed.append((devices, lot.variant, lot.share_pct))


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
    wanted[rules.floors.workload] = np.maximum(wanted[rules.floors.workload], _LEAST_RPS)
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
    replicas = _Replicas.of(size_table, parts, rest)
    out: list[tuple[float, Lot]] = []
    for item in range(len(each)):
        last = int(max(floor[item], 1)) if spread[item] else int(rest[item] > 0)
        for size, count in ((replicas.full, int(whole[item])), (replicas.last, last)):
            if count > 0 and np.isfinite(size.part[item]):
                out.append((float(size.part[item]), _lot(parts, size, item, count)))
    out.sort(key=lambda pair: -pair[0])
    return [lot for _, lot in out]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replicas:
    """For each part a replica of the cheapest size, and one that is as small as will do for the rest."""

    full: Sizes
    last: Sizes

    @staticmethod
    def of(size_table: SizeTable, parts: _Parts, rest: Floats) -> _Replicas:
        """By the smallest share that carries the rest of each."""
        grid = size_table.judge.problem.shares_pct
        count = len(grid)
        bin_class, variant = np.repeat(parts.bin_class, count), np.repeat(parts.variant, count)
        sizes = size_table.sizes(bin_class, variant, np.tile(grid, len(rest)))
        carries = (sizes.capacity_rps >= np.repeat(rest, count) * (1 - SERVED)) & np.isfinite(sizes.part)
        carries = carries.reshape(-1, count)
        cheapest = np.searchsorted(grid, size_table.share_pct[parts.bin_class, parts.variant])
        smallest = np.where(carries.any(axis=1), np.argmax(carries, axis=1), cheapest)
        begin = count * np.arange(len(rest))
        return _Replicas(full=sizes.take(begin + cheapest), last=sizes.take(begin + smallest))


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
