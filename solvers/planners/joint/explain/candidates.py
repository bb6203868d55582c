"""What every workload could do on every GPU type, beside what it got.

Owns the table of candidates: by workload, type and network the best single configuration at the prices of a solve, or
what rules the type out. A device is paid by the part that nobody else can have: the largest of share, memory part and
one client's part. Beside it others are taken to press as networks do there on average. What a workload got is told as
the plan has it. It refuses to be exact about neighbours that are not there, and to tell of training
jobs, which take what is spare.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import GpuTypeName, ModelName, WorkloadId
from solvers.domain.insight import Candidate
from solvers.domain.plan import Assignment, Plan
from solvers.domain.workload import WorkloadKind
from solvers.planners.joint.explain.terms import Terms
from solvers.planners.joint.reading.batches import Names
from solvers.planners.joint.reading.formulation import Reading
from solvers.planners.joint.solve.judge import Judge, Patterns
from solvers.problems.joint import Floats, JointProblem, Whole

ROWS_MAX = 200_000
"""Configurations looked at."""
STRIDES = (1, 2, 4)
"""Every so many shares of the grid, where all are too many."""
DUST_USD = 1e-6

Key = tuple[WorkloadId, GpuTypeName, ModelName]


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


def candidates_of(reading: Reading, plan: Plan, terms: Terms) -> Table:
    """The table of one plan."""
    problem = reading.problem
    first = {item.workload for item in plan.unplaced}
    jobs = {need.workload for need in reading.needs if need.kind is WorkloadKind.JOB}
    numbers = sorted(
        (number for number, work in enumerate(problem.workloads) if work.id not in jobs),
        key=lambda number: (problem.workloads[number].id not in first, number),
    )
    shares, kinds, chosen = _looked_at(problem, numbers)
    got = _got(reading, plan, terms)
    found: dict[Key, Candidate] = {key: _of_plan(key, items, terms) for key, items in got.items()}
    spent = _spent(got, terms)
    best = _best(problem, terms, (kinds, chosen, shares))
    for item in _of_best(problem, best, spent):
        found.setdefault((item.workload, item.gpu_type, item.model), item)
    own = {need.workload: need.model for need in reading.needs}
    wanted = {problem.workloads[number].id for number in chosen.tolist()}
    outside = {need.workload for need in reading.needs} - {work.id for work in problem.workloads} - jobs
    for (workload, gpu_type), reason in reading.refusals.items():
        if workload in wanted or workload in outside:
            refused = Candidate(
                workload=workload,
                gpu_type=gpu_type,
                model=own[workload],
                chosen=False,
                feasible=False,
                reasons=(reason,),
            )
            found.setdefault((workload, gpu_type, own[workload]), refused)
    return Table(candidates=tuple(found[key] for key in sorted(found)), left_out=len(numbers) - len(chosen))


def _looked_at(problem: JointProblem, numbers: list[int]) -> tuple[Whole, Whole, Whole]:
    """Shares, kinds and workloads that are looked at: all, else fewer shares, else the highest clocks, else fewer
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
                return shares, kinds, np.array(sorted(numbers), dtype=np.int64)
    room = ROWS_MAX // max(1, len(highest) * len(shares))
    fit = int(np.searchsorted(np.cumsum(variants[numbers]), room, side="right"))
    return shares, highest, np.array(sorted(numbers[:fit]), dtype=np.int64)


def _best(problem: JointProblem, terms: Terms, at: tuple[Whole, Whole, Whole]) -> _Best:
    """By variant and GPU type the configuration that costs least for the whole rate at shadow prices."""
    kinds, chosen, shares = at
    judge = Judge(problem)
    variants = np.flatnonzero(np.isin(problem.variant_workload, chosen))
    kind, variant, share = (item.ravel() for item in np.meshgrid(kinds, variants, shares, indexing="ij"))
    able = problem.allowed[problem.kind_pool[kind], variant]
    rows = Patterns(kind=kind[able], variants=variant[able][:, None], shares_pct=share[able][:, None])
    judged = judge.judge_slowed(rows, terms.slowdown(rows))
    judged = judged.take(np.flatnonzero(judged.lawful))
    rows = judged.rows
    pool, work = problem.kind_pool[rows.kind], problem.variant_workload[rows.variants[:, 0]]
    memory, rate = judged.memory_mib[:, 0], judged.capacity_rps[:, 0]
    replicas = np.maximum(problem.rate_rps[work] / np.maximum(rate, 1e-12), terms.replicas_least[work])
    room = terms.room(pool, rows.shares_pct[:, 0], memory)
    watts = judged.power_w[:, 0]
    held_usd = problem.held_usd(rows.kind, rows.variants[:, 0], rows.shares_pct[:, 0])
    taken = room, rows.shares_pct[:, 0], watts, held_usd
    worth = replicas * terms.usd_at_duals(pool, work, taken)
    names = sorted({item.gpu_type for item in problem.pools})
    type_of = np.array([names.index(item.gpu_type) for item in problem.pools], dtype=np.int64)[pool]
    network = _networks(problem)[rows.variants[:, 0]]
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
        usd_per_h=(replicas * terms.usd_listed(pool, taken))[keep],
        worth_usd=worth[keep],
    )


def _networks(problem: JointProblem) -> Whole:
    """By variant: the first one that is the same network for the same workload."""
    first: dict[tuple[int, ModelName], int] = {}
    return np.array(
        [first.setdefault((item.workload, item.model), number) for number, item in enumerate(problem.variants)],
        dtype=np.int64,
    )


def _of_best(problem: JointProblem, best: _Best, spent: dict[WorkloadId, tuple[float, float]]) -> Iterator[Candidate]:
    names = sorted({item.gpu_type for item in problem.pools})
    for row in range(len(best.rows)):
        variant = problem.variants[int(best.rows.variants[row, 0])]
        work = problem.workloads[variant.workload]
        worth, listed = float(best.worth_usd[row]), float(best.usd_per_h[row])
        gpu_type = names[int(best.type_of[row])]
        if work.id in spent:
            more: float | None = round(worth - spent[work.id][0], 6)
            reason = _dearer(gpu_type, listed, spent[work.id][1], worth - spent[work.id][0])
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


def _got(reading: Reading, plan: Plan, terms: Terms) -> dict[Key, list[_Had]]:
    pool_of = {device: pool for pool, devices in enumerate(reading.pool_devices) for device in devices}
    clocks = {item.device: item.clock_mhz_sm for item in plan.settings}
    types, names = reading.snapshot.gpu_types_by_name(), Names(reading.problem)
    found: dict[Key, list[_Had]] = defaultdict(list)
    for item in plan.assignments:
        pool = pool_of.get(item.device)
        if pool is None or item.workload not in terms.numbers or item.kind is WorkloadKind.JOB:
            continue
        gpu_type = reading.problem.pools[pool].gpu_type
        clock = clocks.get(item.device) or types[gpu_type].clock_mhz_sm_max
        variant = names.variant((item.workload, item.model), item.batch)
        if variant is not None:
            had = _Had(item=item, pool=pool, variant=variant, clock_mhz=clock)
            found[item.workload, gpu_type, item.model].append(had)
    return dict(found)


def _spent(got: dict[Key, list[_Had]], terms: Terms) -> dict[WorkloadId, tuple[float, float]]:
    """What each workload's replicas cost at shadow prices and by list, scaled to its whole rate."""
    total: dict[WorkloadId, list[_Had]] = defaultdict(list)
    for (workload, _, _), items in got.items():
        total[workload].extend(items)
    found = {}
    for workload, items in total.items():
        number = terms.numbers[workload]
        costs = [_costs(had, number, terms) for had in items]
        rate = terms.problem.workloads[number].rate_rps
        served = sum(had.item.capacity_rps for had in items)
        scale = max(1.0, rate / served) if served > 0 else 1.0
        found[workload] = scale * sum(worth for worth, _ in costs), scale * sum(listed for _, listed in costs)
    return found


def _costs(had: _Had, number: int, terms: Terms) -> tuple[float, float]:
    pool, work = np.array([had.pool]), np.array([number])
    share = np.array([had.item.share_pct_sm])
    room = terms.room(pool, share, np.array([float(had.item.memory_mib_limit)]))
    kind = np.array([int(np.flatnonzero(terms.problem.kind_pool == had.pool)[-1])])
    held_usd = terms.problem.held_usd(kind, np.array([had.variant]), share)
    what = (room, share, np.array([had.item.power_w_planned]), held_usd)
    return float(terms.usd_at_duals(pool, work, what)[0]), float(terms.usd_listed(pool, what)[0])


def _of_plan(key: Key, items: list[_Had], terms: Terms) -> Candidate:
    """The replicas of one type as one line: the commonest knobs, summed capacity and cost."""
    workload, gpu_type, model = key
    knobs = Counter((had.item.share_pct_sm, had.item.batch, had.clock_mhz, had.item.memory_mib_limit) for had in items)
    (share, batch, clock, memory), _ = min(knobs.items(), key=lambda pair: (-pair[1], pair[0]))
    latencies = [had.item.latency_ms_planned for had in items if had.item.latency_ms_planned is not None]
    codes = sorted({reason.code for had in items for reason in had.item.reasons[:1]})
    listed = sum(_costs(had, terms.numbers[workload], terms)[1] for had in items)
    return Candidate(
        workload=workload,
        gpu_type=gpu_type,
        model=model,
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
        reasons=tuple(Reason(code=code, subject=gpu_type) for code in codes),
    )
