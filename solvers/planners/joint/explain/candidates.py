"""What every workload could do on every GPU type, beside what it got.

By workload, type and network: the best single configuration at the prices of a solve, or what rules the type out. A
device is paid by the part that no other replica can have: the largest of share, memory part and one client's part. What
is missing beside a replica is taken to press as networks do there on average. What a workload got is told as the plan
has it. Training jobs, which take what is spare, are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, product

import numpy as np

from solvers.domain.arrays import Floats, Whole, most_of
from solvers.domain.evidence import Candidate, Reason, ReasonCode, facts_of
from solvers.domain.grouping import grouped
from solvers.domain.ids import GpuTypeName, ModelName, WorkloadId
from solvers.domain.plan import Assignment, Plan
from solvers.domain.workload import WorkloadKind
from solvers.planners.joint.reading.formulation import Reading
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Rows
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Patterns, Prices

ROWS_MAX = 200_000
"""Configurations looked at."""
STRIDES = (1, 2, 4)
"""Every so many shares of the grid, where all are too many."""
DUST_USD = 1e-6
_OF_OTHERS = frozenset({ReasonCode.REPLICAS_MIN, ReasonCode.SLO_UNREACHABLE, ReasonCode.NO_PROFILE})
"""What is told of a gap and says nothing of a configuration that keeps the promise."""

Key = tuple[WorkloadId, GpuTypeName, ModelName]


class _Terms:
    """What a part of a device is worth, by list and at the prices of a solve; without duals both agree."""

    def __init__(self, problem: JointProblem, prices: Prices | None) -> None:
        pools, works = len(problem.pools), problem.workloads
        self.problem, self.numbers = problem, {work.id: number for number, work in enumerate(works)}
        # By pool: what one more device is worth, and a watt to the caps over it.
        self.pool_usd, self.watt_usd = np.zeros(pools), np.zeros(pools)
        # By workload: of a whole GPU.
        self.quota_usd = np.zeros(len(works))
        if prices is not None:
            self.pool_usd, self.watt_usd = prices.pool_usd, Rows(problem).watt_usd(prices)
            by_project = {name: usd for (name, _), usd in zip(problem.quotas, prices.quota_usd, strict=True)}
            self.quota_usd = np.array([by_project.get(work.project, 0.0) for work in works], dtype=np.float64)
        known = np.where(problem.pressure > 0, problem.pressure, np.nan)
        counted = np.maximum(1, np.count_nonzero(~np.isnan(known), axis=1)) if known.size else 1
        # By table: what one neighbour presses with on average, at the whole device.
        self.pressure = np.nansum(known, axis=1) / counted

    def slowdown(self, rows: Patterns) -> Floats:
        """Of single replicas beside an average neighbour, which takes the rest of the device."""
        problem, table = self.problem, self.problem.kind_table[rows.kind][:, None]
        rest = 1 - rows.shares_pct / 100
        felt = problem.sensitivity[table, rows.variants] * self.pressure[table] * rest
        return np.where(rest > 0, problem.crowd[table, rows.variants] * (1 + felt), 1.0)

    def cost(
        self, kind: Whole, variant: Whole, share_pct: Whole, memory_mib: Floats, watts: Floats
    ) -> tuple[Floats, Floats]:
        """$/h of replicas with what they take of devices, in arrays of one length: at their part of the list price,
        with energy where the problem counts it; and with what their room, watts and quota are worth to others.
        """
        problem, pool = self.problem, self.problem.kind_pool[kind]
        whole_mib = np.array([item.memory_mib for item in problem.pools])
        clients = np.array([item.clients for item in problem.pools], dtype=np.float64)
        gpu_part = np.array([item.gpu_part for item in problem.pools])
        # Part of a device that no other replica can have.
        parts = np.maximum(share_pct / 100, memory_mib / np.maximum(whole_mib[pool], 1e-9))
        room = np.minimum(1.0, np.maximum(parts, 1 / clients[pool]))
        if problem.by_replica:
            listed = problem.held_usd(kind, variant, share_pct)
        else:
            listed = problem.idle_usd[pool] * room + problem.usd_per_wh * watts
        scarce = self.pool_usd[pool] * room + self.watt_usd[pool] * watts
        quota_usd = self.quota_usd[problem.variant_workload[variant]] * gpu_part[pool] * share_pct / 100
        return np.asarray(listed), np.asarray(listed + scarce + quota_usd)


def candidates_of(reading: Reading, plan: Plan, prices: Prices | None) -> tuple[tuple[Candidate, ...], int]:
    """In order, and how many workloads were left out."""
    problem, terms = reading.problem, _Terms(reading.problem, prices)
    first = {item.workload for item in plan.unplaced}
    jobs = {need.workload for need in reading.needs if need.kind is WorkloadKind.JOB}
    services = [number for number, work in enumerate(problem.workloads) if work.id not in jobs]
    numbers = sorted(services, key=lambda number: (problem.workloads[number].id not in first, number))
    kinds, shares_pct, some = _looked_at(problem, numbers)
    got = _got(reading, plan, terms)
    found = {key: [*_of_plan(key[1], items)] for key, items in got.items()}
    for item in _best(terms, (kinds, shares_pct, some), got, plan):
        found.setdefault((item.workload, item.gpu_type, item.model), [item])
    own = {need.workload: need.model for need in reading.needs}
    wanted = {problem.workloads[number].id for number in some.tolist()}
    outside = {need.workload for need in reading.needs} - {work.id for work in problem.workloads} - jobs
    for (workload, gpu_type), reason in reading.refusals.items():
        if workload in wanted or workload in outside:
            ruled_out = _ruled_out(workload, gpu_type, own[workload], reason)
            found.setdefault((workload, gpu_type, own[workload]), [ruled_out])
    for need in reading.needs:
        # Where it runs, else all that were looked at for it.
        looked = [item for key, items in found.items() if key[0] == need.workload for item in items]
        types = sorted({item.gpu_type for item in looked if item.chosen} or {item.gpu_type for item in looked})
        for reason, gpu_type in product(need.alternatives_refused, types):
            model = ModelName(reason.subject)
            found[need.workload, gpu_type, model] = [_ruled_out(need.workload, gpu_type, model, reason)]
    return tuple(item for key in sorted(found) for item in found[key]), len(numbers) - len(some)


def _ruled_out(of: WorkloadId, there: GpuTypeName, model: ModelName, reason: Reason) -> Candidate:
    return Candidate(workload=of, gpu_type=there, model=model, chosen=False, feasible=False, reasons=(reason,))


def _looked_at(problem: JointProblem, numbers: list[int]) -> tuple[Whole, Whole, Whole]:
    """Kinds, shares and workloads: all, else fewer shares, else the highest clocks, else fewer workloads."""
    variants = np.bincount(problem.variant_workload, minlength=len(problem.workloads))
    # What others leave is no choice of its own: there is too little of it.
    whole = ~np.array([pool.rest for pool in problem.pools], dtype=bool)[problem.kind_pool]
    every = np.flatnonzero(whole)
    top = most_of(problem.kind_clock_mhz, problem.kind_pool, np.zeros(len(problem.pools), dtype=np.int64))
    highest = np.flatnonzero(whole & (problem.kind_clock_mhz == top[problem.kind_pool]))
    total = int(variants.sum())
    shares = problem.shares_pct
    for kinds, stride in product((every, highest), STRIDES):
        shares = problem.shares_pct[::-1][::stride][::-1]
        if total * len(kinds) * len(shares) <= ROWS_MAX:
            return kinds, shares, np.array(sorted(numbers), dtype=np.int64)
    room = ROWS_MAX // max(1, len(highest) * len(shares))
    fit = int(np.searchsorted(np.cumsum(variants[numbers]), room, side="right"))
    return highest, shares, np.array(sorted(numbers[:fit]), dtype=np.int64)


def _best(
    terms: _Terms, grid: tuple[Whole, Whole, Whole], got: dict[Key, list[_Had]], plan: Plan
) -> Iterator[Candidate]:
    """By network of a workload and GPU type the configuration that costs least for the whole rate at shadow prices."""
    problem, spent, (kinds, shares_pct, works) = terms.problem, _spent(got, terms), grid
    gaps = ((gap.workload, reason) for gap in plan.unplaced for reason in reversed(gap.reasons))
    blocked = {(of, reason.subject): reason for of, reason in gaps if reason.code not in _OF_OTHERS}
    variants = np.flatnonzero(np.isin(problem.variant_workload, works))
    rows = Patterns.singles(kinds, variants, shares_pct)
    rows = rows.take(problem.allowed[problem.kind_pool[rows.kind], rows.variants[:, 0]])
    judged = Judge(problem).contents.judge(rows, terms.slowdown(rows), eager=False)
    judged = judged.take(judged.lawful)
    kind, variant, share = judged.rows.kind, judged.rows.variants[:, 0], judged.rows.shares_pct[:, 0]
    memory_mib, rate_rps = judged.memory_mib[:, 0], judged.capacity_rps[:, 0]
    work = problem.variant_workload[variant]
    least = np.array([max(1.0, item.replicas_min) for item in problem.workloads])[work]
    replicas = np.maximum(problem.rate_rps[work] / np.maximum(rate_rps, 1e-12), least)
    most = np.array([item.replicas_max for item in problem.workloads], dtype=np.int64)[work]
    few = replicas <= most * (1 + 1e-9)
    watts = judged.power_w[:, 0]
    listed_usd, worth_usd = (replicas * usd for usd in terms.cost(kind, variant, share, memory_mib, watts))
    names = sorted({item.gpu_type for item in problem.pools})
    type_of = np.array([names.index(item.gpu_type) for item in problem.pools], dtype=np.int64)[problem.kind_pool[kind]]
    order = np.lexsort((worth_usd, ~few))
    _, first = np.unique((problem.network[variant] * len(names) + type_of)[order], return_index=True)
    for row in order[first].tolist():
        workload, gpu_type = problem.workloads[int(work[row])].id, names[int(type_of[row])]
        more, reason = None, blocked.get((workload, workload)) or blocked.get((workload, gpu_type))
        if workload in spent:
            listed, worth = spent[workload]
            more = float(worth_usd[row]) - worth
            reason = _dearer(gpu_type, float(listed_usd[row]), listed, more)
        if not few[row]:
            told = facts_of(replicas_needed=float(np.ceil(replicas[row])), replicas_max=float(most[row]))
            reason, more = Reason(code=ReasonCode.REPLICAS_MAX, subject=workload, facts=told), None
        yield Candidate(
            workload=workload,
            gpu_type=gpu_type,
            model=problem.variants[int(variant[row])].model,
            chosen=False,
            feasible=bool(few[row]),
            share_pct_sm=int(share[row]),
            batch=int(problem.batches[judged.column[row, 0]]),
            clock_mhz_sm=int(problem.kind_clock_mhz[kind[row]]),
            memory_mib=int(memory_mib[row]),
            replicas=round(float(replicas[row]), 4),
            latency_ms=round(float(judged.latency_ms[row, 0]), 3),
            capacity_rps=round(float(rate_rps[row]), 4),
            usd_per_h=round(float(listed_usd[row]), 6),
            usd_per_h_more=None if more is None else round(more, 6),
            reasons=(reason or Reason(code=ReasonCode.NO_SHARE_LEFT, subject=gpu_type),),
        )


def _dearer(gpu_type: GpuTypeName, listed: float, chosen: float, more: float) -> Reason:
    """Why not here: dearer by list price, or only by what else the devices are worth, or not dearer at all."""
    facts = {"usd_per_h_here": listed, "usd_per_h_chosen": chosen}
    facts |= {"usd_per_h_more": more} if more > DUST_USD else {"usd_per_h_less_at_shadow_prices": max(0.0, -more)}
    code = ReasonCode.COSTLIER if more > DUST_USD else ReasonCode.REJECTED_ALTERNATIVE
    told = {name: round(usd, 6) for name, usd in facts.items()}
    return Reason(code=code, subject=gpu_type, facts=facts_of(**told))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Had:
    """One replica of the plan on a device of a pool, with its cost."""

    item: Assignment
    clock_mhz: int
    listed_usd: float
    worth_usd: float


def _got(reading: Reading, plan: Plan, terms: _Terms) -> dict[Key, list[_Had]]:
    problem, pool_of, types = reading.problem, reading.pool_of, reading.snapshot.gpu_types_by_name()
    clocks = {item.device: item.clock_mhz_sm for item in plan.settings}
    last = {int(pool): kind for kind, pool in enumerate(problem.kind_pool)}
    there = (item for item in plan.assignments if item.device in pool_of and item.workload in terms.numbers)
    services = [item for item in there if item.kind is not WorkloadKind.JOB]
    variants = [problem.variant_of(item.workload, item.model, item.batch) for item in services]
    items = [item for item, variant in zip(services, variants, strict=True) if variant is not None]
    listed_usd, worth_usd = terms.cost(
        np.array([last[pool_of[item.device]] for item in items], dtype=np.int64),
        np.array([variant for variant in variants if variant is not None], dtype=np.int64),
        np.array([item.share_pct_sm for item in items], dtype=np.int64),
        np.array([item.memory_mib_limit for item in items], dtype=np.float64),
        np.array([item.power_w_planned for item in items], dtype=np.float64),
    )
    found: dict[Key, list[_Had]] = defaultdict(list)
    for item, listed, worth in zip(items, listed_usd.tolist(), worth_usd.tolist(), strict=True):
        gpu_type = problem.pools[pool_of[item.device]].gpu_type
        clock = clocks.get(item.device) or types[gpu_type].clock_mhz_sm_max
        had = _Had(item=item, clock_mhz=clock, listed_usd=listed, worth_usd=worth)
        found[item.workload, gpu_type, item.model].append(had)
    return dict(found)


def _spent(got: dict[Key, list[_Had]], terms: _Terms) -> dict[WorkloadId, tuple[float, float]]:
    """What each workload's replicas cost, by list and at the prices, scaled to its whole rate."""
    found = {}
    for workload, items in grouped(chain.from_iterable(got.values()), lambda had: had.item.workload).items():
        rate = terms.problem.workloads[terms.numbers[workload]].rate_rps
        served = sum(had.item.capacity_rps for had in items)
        scale = max(1.0, rate / served) if served > 0 else 1.0
        found[workload] = scale * sum(had.listed_usd for had in items), scale * sum(had.worth_usd for had in items)
    return found


def _of_plan(gpu_type: GpuTypeName, items: list[_Had]) -> Iterator[Candidate]:
    """The replicas of one type, those of the same share, batch and clock as one."""
    alike = grouped(items, lambda had: (-had.item.share_pct_sm, had.item.batch, had.clock_mhz))
    for (less_pct, batch, clock_mhz), mine in sorted(alike.items()):
        latencies = [had.item.latency_ms_planned for had in mine if had.item.latency_ms_planned is not None]
        codes = sorted({reason.code for had in mine for reason in had.item.reasons[:1]})
        yield Candidate(
            workload=mine[0].item.workload,
            gpu_type=gpu_type,
            model=mine[0].item.model,
            chosen=True,
            feasible=True,
            share_pct_sm=-less_pct,
            batch=batch,
            clock_mhz_sm=clock_mhz,
            memory_mib=max(had.item.memory_mib_limit for had in mine),
            replicas=float(len(mine)),
            latency_ms=max(latencies, default=None),
            capacity_rps=round(sum(had.item.capacity_rps for had in mine) / len(mine), 4),
            usd_per_h=round(sum(had.listed_usd for had in mine), 6),
            usd_per_h_more=0.0,
            reasons=tuple(Reason(code=code, subject=gpu_type) for code in codes),
        )
