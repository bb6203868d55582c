"""What every workload could do on every GPU type, beside what it got.

By workload, type and network: the best single configuration at the prices of a solve, or what rules the type out. A
device is paid by the part that no other replica can have: the largest of share, memory part and one client's part. What
is missing beside a replica is taken to press as networks do there on average. What a workload got is told as the plan
has it. Training jobs, which take what is spare, are left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.domain.evidence import Candidate, Fact, Reason, ReasonCode
from solvers.domain.ids import GpuTypeName, ModelName, WorkloadId
from solvers.domain.plan import Assignment, Plan
from solvers.domain.workload import WorkloadKind
from solvers.planners.joint.reading.formulation import Names, Reading
from solvers.planners.joint.solve.judge import Judge, Patterns
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Prices

ROWS_MAX = 200_000
"""Configurations looked at."""
STRIDES = (1, 2, 4)
"""Every so many shares of the grid, where all are too many."""
DUST_USD = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class _Key:
    """What a candidate is of."""

    workload: WorkloadId
    gpu_type: GpuTypeName
    model: ModelName


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """What single replicas take of devices."""

    pool: Whole
    workload: Whole
    room: Floats
    """Part of a device."""
    share_pct: Whole
    watts: Floats
    held_usd: Floats
    """$/h of what is held, where that is the cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """What a part of a device is worth, by list and at the prices of a solve; without duals both agree."""

    problem: JointProblem
    numbers: Mapping[WorkloadId, int]
    idle_usd: Floats
    """By pool: price and idle energy of a whole device."""
    pool_usd: Floats
    watt_usd: Floats
    """By pool: what a watt is worth to the caps over it."""
    quota_usd: Floats
    """By workload: of a whole GPU."""
    replicas_least: Floats
    """By workload: at least one serves it."""
    pressure: Floats
    """By table: what one neighbour presses with on average, at the whole device."""

    @staticmethod
    def of(problem: JointProblem, prices: Prices | None) -> _Terms:
        """From the duals of a solve; nothing is scarce without."""
        pools, works = len(problem.pools), problem.workloads
        watt, pool_usd, quota = np.zeros(pools), np.zeros(pools), np.zeros(len(works))
        if prices is not None:
            pool_usd = prices.pool_usd
            for cap, usd in zip(problem.caps, prices.cap_usd, strict=True):
                watt += usd * (np.array(cap.devices) > 0)
            by_project = {name: usd for (name, _), usd in zip(problem.quotas, prices.quota_usd, strict=True)}
            quota = np.array([by_project.get(work.project, 0.0) for work in works], dtype=np.float64)
        known = np.where(problem.pressure > 0, problem.pressure, np.nan)
        counted = np.maximum(1, np.count_nonzero(~np.isnan(known), axis=1)) if known.size else 1
        return _Terms(
            problem=problem,
            numbers={work.id: number for number, work in enumerate(works)},
            idle_usd=np.array([problem.idle_usd_per_h(pool) for pool in range(pools)]),
            pool_usd=np.asarray(pool_usd, dtype=np.float64),
            watt_usd=watt,
            quota_usd=quota,
            replicas_least=np.array([max(1, work.replicas_min) for work in works], dtype=np.float64),
            pressure=np.asarray(np.nansum(known, axis=1) / counted, dtype=np.float64),
        )

    def slowdown(self, rows: Patterns) -> Floats:
        """Of single replicas beside an average neighbour, which takes the rest of the device."""
        problem, table = self.problem, self.problem.kind_table[rows.kind][:, None]
        rest = 1 - rows.shares_pct / 100
        felt = problem.sensitivity[table, rows.variants] * self.pressure[table] * rest
        return np.where(rest > 0, problem.crowd[table, rows.variants] * (1 + felt), 1.0)

    def room(self, pool: Whole, share_pct: Whole, memory_mib: Floats) -> Floats:
        """Part of a device that no other replica can have."""
        whole = np.array([item.memory_mib for item in self.problem.pools])
        clients = np.array([item.clients for item in self.problem.pools], dtype=np.float64)
        parts = np.maximum(share_pct / 100, memory_mib / np.maximum(whole[pool], 1e-9))
        return np.asarray(np.minimum(1.0, np.maximum(parts, 1 / clients[pool])))

    def usd_listed(self, taken: _Taken) -> Floats:
        """$/h of replicas at their part of the price, with energy where the problem counts it."""
        if self.problem.by_replica:
            return taken.held_usd
        return np.asarray(self.idle_usd[taken.pool] * taken.room + self.problem.usd_per_wh * taken.watts)

    def usd_at_duals(self, taken: _Taken) -> Floats:
        """$/h of replicas with what their room, watts and quota are worth to others."""
        pool = taken.pool
        part = np.array([item.gpu_part for item in self.problem.pools])
        scarce = self.pool_usd[pool] * taken.room + self.watt_usd[pool] * taken.watts
        quota_usd = self.quota_usd[taken.workload] * part[pool] * taken.share_pct / 100
        return np.asarray(self.usd_listed(taken) + scarce + quota_usd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Candidates in order, and how many workloads were left out."""

    candidates: tuple[Candidate, ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Best:
    """The best configurations: one row for each network of a workload and GPU type that can serve it."""

    rows: Patterns
    type_of: Whole
    latency_ms: Floats
    capacity_rps: Floats
    memory_mib: Floats
    batch: Whole
    replicas: Floats
    usd_per_h: Floats
    worth_usd: Floats
    """At shadow prices."""


def candidates_of(reading: Reading, plan: Plan, prices: Prices | None) -> Table:
    """The table of one plan."""
    problem, terms = reading.problem, _Terms.of(reading.problem, prices)
    first = {item.workload for item in plan.unplaced}
    jobs = {need.workload for need in reading.needs if need.kind is WorkloadKind.JOB}
    numbers = sorted(
        (number for number, work in enumerate(problem.workloads) if work.id not in jobs),
        key=lambda number: (problem.workloads[number].id not in first, number),
    )
    grid = _looked_at(problem, numbers)
    got = _got(reading, plan, terms)
    found = {key: _of_plan(key, items, terms) for key, items in got.items()}
    for item in _of_best(problem, _best(problem, terms, grid), _spent(got, terms)):
        found.setdefault(_Key(workload=item.workload, gpu_type=item.gpu_type, model=item.model), item)
    own = {need.workload: need.model for need in reading.needs}
    wanted = {problem.workloads[number].id for number in grid.workloads.tolist()}
    outside = {need.workload for need in reading.needs} - {work.id for work in problem.workloads} - jobs
    for (workload, gpu_type), reason in reading.refusals.items():
        if workload in wanted or workload in outside:
            model = own[workload]
            refused = Candidate(
                workload=workload, gpu_type=gpu_type, model=model, chosen=False, feasible=False, reasons=(reason,)
            )
            found.setdefault(_Key(workload=workload, gpu_type=gpu_type, model=model), refused)
    return Table(candidates=tuple(found[key] for key in sorted(found)), left_out=len(numbers) - len(grid.workloads))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """Configurations that are looked at: every kind with every share, for some workloads."""

    kinds: Whole
    shares_pct: Whole
    workloads: Whole


def _looked_at(problem: JointProblem, numbers: list[int]) -> _Grid:
    """All, else fewer shares, else the highest clocks, else fewer
    workloads.
    """
    variants = np.bincount(problem.variant_workload, minlength=len(problem.workloads))
    # What others leave is no choice of its own: there is too little of it.
    whole = ~np.array([pool.rest for pool in problem.pools], dtype=bool)[problem.kind_pool]
    every = np.flatnonzero(whole)
    top = np.zeros(len(problem.pools), dtype=np.int64)
    np.maximum.at(top, problem.kind_pool, problem.kind_clock_mhz)
    highest = np.flatnonzero(whole & (problem.kind_clock_mhz == top[problem.kind_pool]))
    total = int(variants.sum())
    shares = problem.shares_pct
    for kinds in (every, highest):
        for stride in STRIDES:
            shares = problem.shares_pct[::-1][::stride][::-1]
            if total * len(kinds) * len(shares) <= ROWS_MAX:
                return _Grid(kinds=kinds, shares_pct=shares, workloads=np.array(sorted(numbers), dtype=np.int64))
    room = ROWS_MAX // max(1, len(highest) * len(shares))
    fit = int(np.searchsorted(np.cumsum(variants[numbers]), room, side="right"))
    return _Grid(kinds=highest, shares_pct=shares, workloads=np.array(sorted(numbers[:fit]), dtype=np.int64))


def _best(problem: JointProblem, terms: _Terms, grid: _Grid) -> _Best:
    """By variant and GPU type the configuration that costs least for the whole rate at shadow prices."""
    variants = np.flatnonzero(np.isin(problem.variant_workload, grid.workloads))
    every = np.meshgrid(grid.kinds, variants, grid.shares_pct, indexing="ij")
    kind, variant, share = (item.ravel() for item in every)
    able = problem.allowed[problem.kind_pool[kind], variant]
    rows = Patterns(kind=kind[able], variants=variant[able][:, None], shares_pct=share[able][:, None])
    judged = Judge(problem).judge_slowed(rows, terms.slowdown(rows))
    judged = judged.take(np.flatnonzero(judged.lawful))
    rows = judged.rows
    pool, work = problem.kind_pool[rows.kind], problem.variant_workload[rows.variants[:, 0]]
    memory, rate, share = judged.memory_mib[:, 0], judged.capacity_rps[:, 0], rows.shares_pct[:, 0]
    replicas = np.maximum(problem.rate_rps[work] / np.maximum(rate, 1e-12), terms.replicas_least[work])
    taken = _Taken(
        pool=pool,
        workload=work,
        room=terms.room(pool, share, memory),
        share_pct=share,
        watts=judged.power_w[:, 0],
        held_usd=problem.held_usd(rows.kind, rows.variants[:, 0], share),
    )
    worth = replicas * terms.usd_at_duals(taken)
    names = sorted({item.gpu_type for item in problem.pools})
    type_of = np.array([names.index(item.gpu_type) for item in problem.pools], dtype=np.int64)[pool]
    network = problem.network[rows.variants[:, 0]]
    order = np.lexsort((worth, type_of, network))
    place = network[order] * len(names) + type_of[order]
    keep = order[np.concatenate([[True], place[1:] != place[:-1]])] if len(order) else order
    return _Best(
        rows=rows.take(keep),
        type_of=type_of[keep],
        latency_ms=judged.latency_ms[keep, 0],
        capacity_rps=rate[keep],
        memory_mib=memory[keep],
        batch=problem.batches[judged.column[keep, 0]],
        replicas=replicas[keep],
        usd_per_h=(replicas * terms.usd_listed(taken))[keep],
        worth_usd=worth[keep],
    )


def _of_best(problem: JointProblem, best: _Best, spent: dict[WorkloadId, _Cost]) -> Iterator[Candidate]:
    names = sorted({item.gpu_type for item in problem.pools})
    for row in range(len(best.rows)):
        variant = problem.variants[int(best.rows.variants[row, 0])]
        work = problem.workloads[variant.workload]
        worth, listed = float(best.worth_usd[row]), float(best.usd_per_h[row])
        gpu_type = names[int(best.type_of[row])]
        if work.id in spent:
            more: float | None = round(worth - spent[work.id].worth_usd, 6)
            reason = _dearer(gpu_type, listed, spent[work.id].listed_usd, worth - spent[work.id].worth_usd)
        else:
            more, reason = None, Reason(code=ReasonCode.NO_SHARE_LEFT, subject=gpu_type)
        yield Candidate(
            workload=work.id,
            gpu_type=gpu_type,
            model=variant.model,
            chosen=False,
            feasible=True,
            share_pct_sm=int(best.rows.shares_pct[row, 0]),
            batch=int(best.batch[row]),
            clock_mhz_sm=int(problem.kind_clock_mhz[best.rows.kind[row]]),
            memory_mib=int(best.memory_mib[row]),
            replicas=round(float(best.replicas[row]), 4),
            latency_ms=round(float(best.latency_ms[row]), 3),
            capacity_rps=round(float(best.capacity_rps[row]), 4),
            usd_per_h=round(listed, 6),
            usd_per_h_more=more,
            reasons=(reason,),
        )


def _dearer(gpu_type: GpuTypeName, listed: float, chosen: float, more: float) -> Reason:
    """Why not here: dearer by list price, or only by what else the devices are worth, or not dearer at all."""
    facts = [Fact(name="usd_per_h_here", value=round(listed, 6)), Fact(name="usd_per_h_chosen", value=round(chosen, 6))]
    if more > DUST_USD:
        facts.append(Fact(name="usd_per_h_more", value=round(more, 6)))
        return Reason(code=ReasonCode.COSTLIER, subject=gpu_type, facts=tuple(facts))
    facts.append(Fact(name="usd_per_h_less_at_shadow_prices", value=round(max(0.0, -more), 6)))
    return Reason(code=ReasonCode.REJECTED_ALTERNATIVE, subject=gpu_type, facts=tuple(facts))


# -- what the plan has ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Had:
    """One replica of the plan on a device of a pool."""

    item: Assignment
    pool: int
    variant: int
    clock_mhz: int


def _got(reading: Reading, plan: Plan, terms: _Terms) -> dict[_Key, list[_Had]]:
    pool_of = {device: pool for pool, devices in enumerate(reading.pool_devices) for device in devices}
    clocks = {item.device: item.clock_mhz_sm for item in plan.settings}
    types, names = reading.snapshot.gpu_types_by_name(), Names(reading.problem)
    found: dict[_Key, list[_Had]] = defaultdict(list)
    for item in plan.assignments:
        pool = pool_of.get(item.device)
        if pool is None or item.workload not in terms.numbers or item.kind is WorkloadKind.JOB:
            continue
        gpu_type = reading.problem.pools[pool].gpu_type
        clock = clocks.get(item.device) or types[gpu_type].clock_mhz_sm_max
        variant = names.variant(item.workload, item.model, item.batch)
        if variant is not None:
            had = _Had(item=item, pool=pool, variant=variant, clock_mhz=clock)
            found[_Key(workload=item.workload, gpu_type=gpu_type, model=item.model)].append(had)
    return dict(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """$/h at shadow prices and by list."""

    worth_usd: float
    listed_usd: float


def _spent(got: dict[_Key, list[_Had]], terms: _Terms) -> dict[WorkloadId, _Cost]:
    """What each workload's replicas cost, scaled to its whole rate."""
    total: dict[WorkloadId, list[_Had]] = defaultdict(list)
    for key, items in got.items():
        total[key.workload].extend(items)
    found = {}
    for workload, items in total.items():
        number = terms.numbers[workload]
        costs = [_cost(had, number, terms) for had in items]
        rate = terms.problem.workloads[number].rate_rps
        served = sum(had.item.capacity_rps for had in items)
        scale = max(1.0, rate / served) if served > 0 else 1.0
        found[workload] = _Cost(
            worth_usd=scale * sum(item.worth_usd for item in costs),
            listed_usd=scale * sum(item.listed_usd for item in costs),
        )
    return found


def _cost(had: _Had, number: int, terms: _Terms) -> _Cost:
    pool, share = np.array([had.pool]), np.array([had.item.share_pct_sm])
    kind = np.array([int(np.flatnonzero(terms.problem.kind_pool == had.pool)[-1])])
    taken = _Taken(
        pool=pool,
        workload=np.array([number]),
        room=terms.room(pool, share, np.array([float(had.item.memory_mib_limit)])),
        share_pct=share,
        watts=np.array([had.item.power_w_planned]),
        held_usd=terms.problem.held_usd(kind, np.array([had.variant]), share),
    )
    return _Cost(worth_usd=float(terms.usd_at_duals(taken)[0]), listed_usd=float(terms.usd_listed(taken)[0]))


def _of_plan(key: _Key, items: list[_Had], terms: _Terms) -> Candidate:
    """The replicas of one type as one line: the commonest knobs, summed capacity and cost."""
    knobs = Counter((had.item.share_pct_sm, had.item.batch, had.clock_mhz, had.item.memory_mib_limit) for had in items)
    (share, batch, clock, memory), _ = min(knobs.items(), key=lambda pair: (-pair[1], pair[0]))
    latencies = [had.item.latency_ms_planned for had in items if had.item.latency_ms_planned is not None]
    codes = sorted({reason.code for had in items for reason in had.item.reasons[:1]})
    listed = sum(_cost(had, terms.numbers[key.workload], terms).listed_usd for had in items)
    return Candidate(
        workload=key.workload,
        gpu_type=key.gpu_type,
        model=key.model,
        chosen=True,
        feasible=True,
        share_pct_sm=share,
        batch=batch,
        clock_mhz_sm=clock,
        memory_mib=memory,
        replicas=float(len(items)),
        latency_ms=max(latencies, default=None),
        capacity_rps=round(sum(had.item.capacity_rps for had in items) / len(items), 4),
        usd_per_h=round(listed, 6),
        usd_per_h_more=0.0,
        reasons=tuple(Reason(code=code, subject=key.gpu_type) for code in codes),
    )
