"""Pools, needs and profiles put together: the joint problem, and why what is not in it is not.

Which tables and kinds there are, what every network does on them, and that only networks which could serve somewhere,
and workloads that have one, are in the problem. Where memory is what is paid, a network is a variant for every batch
that may be worth it: a larger batch serves more and uses more memory, and which is cheaper depends on what one replica
more costs. Limits of memory cost nothing, and a batch is changed in place while the limit bears it, so all have the
limit of the largest, as far as a device full of replicas would bear it. Where shares or whole devices are paid the
batch that serves most is right, and nothing is split.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.domain.device import ColocationClass
from solvers.domain.evidence import Fact, Reason, ReasonCode
from solvers.domain.ids import GpuTypeName, ModelName, ProjectName, WorkloadId
from solvers.domain.policy import CostBasis
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import WorkloadKind
from solvers.models.serving.token_plans import SEQUENCES, token_miss
from solvers.planners.joint.reading.colocation import Colocation
from solvers.planners.joint.reading.pools import Pools
from solvers.planners.joint.reading.tables import Arrays, Axes, Layer, Table, clocks_of, fill, layers_of
from solvers.planners.joint.reading.work import (
    VALUE_USD_LEAST,
    Alone,
    Cells,
    Left,
    allowed_of,
    alone_of,
    put_job,
    put_tokens,
    unserved_usd,
    variants_of,
    workloads_of,
)
from solvers.problems.fleet import Fleet
from solvers.problems.joint import WHOLE_PCT, JointProblem, Variant, Workload
from solvers.problems.needs import Need

Refusals = dict[tuple[WorkloadId, GpuTypeName], Reason]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kinds:
    """Tables, and the pool, clock and table of every kind; `table_of_pool` at its highest clock."""

    tables: tuple[Table, ...]
    pool: Whole
    clock_mhz: Whole
    table: Whole
    table_of_pool: Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """Everything asked for, on everything there is."""

    picture: Snapshot
    fleet: Fleet
    pools: Pools
    left: tuple[Left, ...]
    variants: tuple[Variant, ...]
    kinds: _Kinds
    layers: tuple[Layer, ...]
    arrays: Arrays
    """One row for every variant."""
    colocation: Colocation
    alone: Alone
    allowed: Flags

    @property
    def able(self) -> Flags:
        """pool x variant: could serve."""
        can: Flags = self.alone.rate_rps > 0
        return np.asarray(self.allowed & can, dtype=bool)


def assemble(picture: Snapshot, fleet: Fleet, pools: Pools, left: tuple[Left, ...]) -> tuple[JointProblem, Refusals]:
    """The problem of what is left to plan; workloads that nothing can serve are refused for every GPU type."""
    draft = _draft(picture, fleet, pools, left)
    columns = np.flatnonzero(draft.able.any(axis=0))
    served = sorted({draft.variants[column].workload for column in columns})
    number = {before: after for after, before in enumerate(served)}
    variants = tuple(
        replace(draft.variants[column], workload=number[draft.variants[column].workload]) for column in columns
    )
    rates = np.where(draft.able, draft.alone.rate_rps, 0.0)[:, columns]
    workloads = _workloads(draft, tuple(draft.left[before] for before in served), variants, rates)
    policy, arrays, kinds = picture.policy, draft.arrays, draft.kinds
    pressure, exponent, sensitivity, crowd = draft.colocation.pressures(kinds.tables, columns, arrays)
    problem = JointProblem(
        pools=pools.pools,
        kind_pool=kinds.pool,
        kind_clock_mhz=kinds.clock_mhz,
        kind_table=kinds.table,
        workloads=workloads,
        variants=variants,
        shares_pct=arrays.shares_pct,
        batches=arrays.batches,
        mean_ms=arrays.mean_ms[:, columns],
        tail_ms=arrays.tail_ms[:, columns],
        power_w=arrays.power_w[:, columns],
        memory_mib=arrays.memory_mib[:, columns],
        pressure=pressure,
        exponent=exponent,
        sensitivity=sensitivity,
        crowd=crowd,
        allowed=draft.allowed[:, columns],
        caps=pools.caps,
        quotas=_quotas(fleet, workloads),
        usd_per_wh=policy.usd_per_wh(picture.taken_at_s),
        by_share=policy.cost_basis is CostBasis.SHARE,
        by_memory=policy.cost_basis is CostBasis.MEMORY,
        share_step_pct=policy.share_step_pct,
    )
    return split(problem, arrays.used_mib[:, columns]), dict(_refusals(draft))


def _draft(picture: Snapshot, fleet: Fleet, pools: Pools, left: tuple[Left, ...]) -> _Draft:
    needs = tuple(item.need for item in left)
    variants = variants_of(needs, picture.models_by_name())
    types = {traits.device_class.gpu_type for traits in pools.traits}
    models = {item.model for item in variants}
    layers = layers_of(item for item in picture.profiles if item.model in models and item.gpu_type in types)
    colocation = Colocation.of(picture, needs, variants)
    kinds = _kinds(picture, pools, layers, {name for name in types if colocation.mixed(name)})
    arrays = _arrays(picture, kinds.tables, layers, needs, variants)
    colocation.separate_unknown(arrays, kinds.tables)
    colocation.slow_beside_rests(arrays, kinds.tables, pools.traits)
    workloads = workloads_of(left, fleet.foes, picture.policy, np.zeros(len(left)))
    room_mib = np.array([pool.memory_mib for pool in pools.pools], dtype=np.float64)
    return _Draft(
        picture=picture,
        fleet=fleet,
        pools=pools,
        left=left,
        variants=variants,
        kinds=kinds,
        layers=layers,
        arrays=arrays,
        colocation=colocation,
        alone=alone_of(arrays, workloads, variants, kinds.table_of_pool, room_mib),
        allowed=allowed_of(pools, needs, variants),
    )


def _kinds(picture: Snapshot, pools: Pools, layers: tuple[Layer, ...], mixed: set[GpuTypeName]) -> _Kinds:
    """`mixed`: types of which it is not known of all how they press on each other, so that a device is either for those
    of whom it is, or for everybody.
    """
    types = picture.gpu_types_by_name()
    clocks = {
        name: clocks_of(layers, types[name]) for name in {traits.device_class.gpu_type for traits in pools.traits}
    }
    tables: dict[Table, int] = {}
    rows: list[tuple[int, int, int]] = []
    highest = []
    for pool, traits in enumerate(pools.traits):
        kind = traits.device_class
        apart = kind.gpu_type in mixed and not kind.exclusive and traits.rest is None
        listed = clocks[kind.gpu_type] if traits.rest is None else (traits.rest.clock_mhz,)
        for clock, known in product(listed, (True, False) if apart else (False,)):
            table = Table(
                gpu_type=kind.gpu_type,
                sm_part=kind.sm_part,
                gpu_part=kind.gpu_part,
                exclusive=kind.exclusive,
                clock_mhz=clock,
                known=known,
                rest_of=-1 if traits.rest is None else pool,
            )
            rows.append((pool, clock, tables.setdefault(table, len(tables))))
        highest.append(rows[-1][2])
    pool_of, clock_of, table_of = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return _Kinds(
        tables=tuple(tables),
        pool=pool_of,
        clock_mhz=clock_of,
        table=table_of,
        table_of_pool=np.array(highest, dtype=np.int64),
    )


def _arrays(
    picture: Snapshot,
    tables: tuple[Table, ...],
    layers: tuple[Layer, ...],
    needs: tuple[Need, ...],
    variants: tuple[Variant, ...],
) -> Arrays:
    """One row for every variant; a workload that wants a device of its own gets all of it, and so do LLMs."""
    jobs = {WorkloadId(job.id): job for job in picture.jobs}
    asked = [jobs[need.workload] for need in needs if need.kind is WorkloadKind.JOB]
    step = picture.policy.share_step_pct
    bounds = {
        share
        for job in asked
        for share in (-(-job.share_pct_sm_min // step) * step, job.share_pct_sm_max // step * step)
        if job.share_pct_sm_min <= share <= job.share_pct_sm_max
    }
    if picture.policy.cost_basis is CostBasis.MEMORY:
        # The largest share with which a device is not one's own, all of it to be paid.
        bounds |= {(WHOLE_PCT - 1) // step * step}
    sequences = SEQUENCES if any(need.tokens is not None for need in needs) else ()
    axes = Axes.of(layers, (table.sm_part for table in tables), step, bounds, sequences)
    place = {model: row for row, model in enumerate(dict.fromkeys(item.model for item in variants))}
    types = picture.gpu_types_by_name()
    by_model = fill(tables, tuple(place), layers, axes, types)
    rows = np.array([place[item.model] for item in variants], dtype=np.int64)
    arrays = Arrays(
        shares_pct=axes.shares_pct,
        batches=axes.batches,
        mean_ms=by_model.mean_ms[:, rows],
        tail_ms=by_model.tail_ms[:, rows],
        power_w=by_model.power_w[:, rows],
        memory_mib=by_model.memory_mib[:, rows],
        used_mib=by_model.used_mib[:, rows],
    )
    cells = Cells(arrays=arrays, tables=tables, types=types)
    for row, variant in enumerate(variants):
        need = needs[variant.workload]
        if need.kind is WorkloadKind.JOB:
            put_job(cells, row, jobs[need.workload])
        elif need.tokens is not None:
            put_tokens(cells, row, variant.model, need, picture.policy)
        elif need.affinity.dedicated:
            for values in (arrays.mean_ms, arrays.tail_ms, arrays.power_w):
                values[:, row, :-1] = np.inf
        if need.kind is WorkloadKind.JOB or need.tokens is not None:
            arrays.used_mib[:, row] = arrays.memory_mib[:, row]
    return arrays


def _workloads(
    draft: _Draft, left: tuple[Left, ...], variants: tuple[Variant, ...], rates: Floats
) -> tuple[Workload, ...]:
    """Workloads with what it is worth to serve them. `rates`: pool x variant, the most a whole device gives."""
    price = np.array([draft.pools.pools[row].usd_per_h for row in range(len(draft.pools.pools))])
    most, cost = np.zeros(len(left)), np.full(len(left), np.inf)
    of = np.array([item.workload for item in variants], dtype=np.int64)
    np.maximum.at(most, of, rates.max(axis=0, initial=0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        per_rps = np.where(rates > 0, price[:, None] / rates, np.inf).min(axis=0, initial=np.inf)
    np.minimum.at(cost, of, per_rps)
    asked = np.array([item.rate_rps for item in left])
    worth = unserved_usd(left, cost * asked, float(price.max(initial=0.0)))
    jobs = {WorkloadId(job.id): job for job in draft.picture.jobs}
    made = workloads_of(left, draft.fleet.foes, draft.picture.policy, worth)
    return tuple(
        item
        if (job := jobs.get(item.id)) is None or left[index].need.kind is not WorkloadKind.JOB
        else replace(item, rate_rps=float(most[index]), unserved_usd=max(job.value_usd_per_h, VALUE_USD_LEAST))
        for index, item in enumerate(made)
    )


def _quotas(fleet: Fleet, workloads: tuple[Workload, ...]) -> tuple[tuple[ProjectName, float], ...]:
    asking = {item.project for item in workloads}
    return tuple((name, max(0.0, gpus)) for name, gpus in sorted(fleet.quota_left.items()) if name in asking)


def _refusals(draft: _Draft) -> Iterator[tuple[tuple[WorkloadId, GpuTypeName], Reason]]:
    """For every workload and type of the catalogue without any chance, the rule or the number that leaves none."""
    measured = {(model, layer.gpu_type) for layer in draft.layers for model in layer.models}
    of: dict[int, list[int]] = {}
    for column, variant in enumerate(draft.variants):
        of.setdefault(variant.workload, []).append(column)
    able = draft.able
    for gpu_type in sorted(item.name for item in draft.picture.gpu_types):
        pools = [row for row, pool in enumerate(draft.pools.pools) if pool.gpu_type == gpu_type]
        some = np.asarray(able[pools].any(axis=0), dtype=bool)
        for number, item in enumerate(draft.left):
            columns = of[number]
            if not some[columns].any():
                yield (item.need.workload, gpu_type), _refusal(draft, item.need, gpu_type, columns, measured)


def _refusal(
    draft: _Draft,
    need: Need,
    gpu_type: GpuTypeName,
    columns: list[int],
    measured: set[tuple[ModelName, GpuTypeName]],
) -> Reason:
    pools = [row for row, pool in enumerate(draft.pools.pools) if pool.gpu_type == gpu_type]
    if need.gpu_types_allowed and gpu_type not in need.gpu_types_allowed:
        return Reason(code=ReasonCode.TYPE_NOT_ALLOWED, subject=gpu_type)
    if not pools:
        facts: tuple[Fact, ...] = (Fact(name="devices_usable", value=0.0),)
        return Reason(code=ReasonCode.NO_DEVICE_OF_TYPE, subject=gpu_type, facts=facts)
    open_to = [pool for pool in pools if draft.allowed[pool, columns].any()]
    if not open_to:
        unfit = all(draft.pools.traits[pool].colocation is not ColocationClass.ANY for pool in pools)
        return Reason(code=ReasonCode.ANTI_AFFINITY if unfit else ReasonCode.TAINTED, subject=gpu_type)
    models = {draft.variants[item].model for item in columns}
    known = measured if need.tokens is None else {(item.model, item.gpu_type) for item in need.tokens.profiles}
    if need.kind is not WorkloadKind.JOB and known.isdisjoint((model, gpu_type) for model in models):
        return Reason(code=ReasonCode.NO_PROFILE, subject=gpu_type)
    cells = np.ix_(open_to, columns)
    memory = float(draft.alone.memory_mib_least[cells].min())
    if np.isfinite(memory):
        room = max(draft.pools.pools[pool].memory_mib for pool in open_to)
        facts = (Fact(name="memory_mib_needed", value=memory), Fact(name="memory_mib_device", value=room))
        return Reason(code=ReasonCode.NO_MEMORY_LEFT, subject=gpu_type, facts=facts)
    if need.tokens is not None:
        return token_miss(need, tuple(sorted(models)), gpu_type, draft.picture.policy)
    best = float(draft.alone.latency_ms_best[cells].min())
    facts = (
        Fact(name="latency_ms_best", value=round(best, 3) if np.isfinite(best) else "unknown"),
        Fact(name="latency_ms_limit", value=need.limit_ms or 0.0),
    )
    return Reason(code=ReasonCode.SLO_UNREACHABLE, subject=gpu_type, facts=facts)


GAIN_PART_MIN = 0.01
"""A batch that serves hardly more than a smaller one is no choice."""
VARIANTS_MAX = 2000


def split(problem: JointProblem, used_mib: Floats) -> JointProblem:
    """The same problem with a variant for every batch worth choosing: batches up to that one. `used_mib`: table x
    variant x batch, what is used with it.
    """
    if not problem.by_memory or not len(problem.variants):
        return problem
    most = max(1, VARIANTS_MAX // len(problem.variants))
    ceilings = [_ceilings(problem, number, used_mib[:, number], most) for number in range(len(problem.variants))]
    chosen = np.array([number for number, found in enumerate(ceilings) for _ in found], dtype=np.int64)
    columns = np.array([column for found in ceilings for column in found], dtype=np.int64)
    largest = np.array([found[-1] for found in ceilings for _ in found], dtype=np.int64)
    wide, every = problem.of_variants(chosen), np.arange(len(chosen))
    beyond = np.arange(len(problem.batches))[None, :] > columns[:, None]

    def below(cells: Floats) -> Floats:
        return np.where(beyond[None, :, None, :], np.inf, cells)

    mean_ms = below(wide.mean_ms)
    billed = used_mib[:, chosen][:, every, columns]
    ample = np.minimum(wide.memory_mib[:, every, largest], _full_mib(problem)[:, None])
    return replace(
        wide,
        variants=tuple(
            replace(item, batch_max=int(problem.batches[column]))
            for item, column in zip(wide.variants, columns.tolist(), strict=True)
        ),
        mean_ms=mean_ms,
        tail_ms=mean_ms if wide.tail_ms is wide.mean_ms else below(wide.tail_ms),
        power_w=below(wide.power_w),
        memory_mib=np.maximum(wide.memory_mib, ample[:, :, None]),
        billed_mib=np.where(np.isfinite(billed), billed, 0.0),
    )


def _full_mib(problem: JointProblem) -> Floats:
    """By table: what each has of a device that carries as many replicas as it may."""
    found = np.full(len(problem.mean_ms), np.inf)
    pools = problem.kind_pool
    even = np.array([item.memory_mib / max(1, item.clients) for item in problem.pools])
    np.minimum.at(found, problem.kind_table, even[pools])
    return found


def _ceilings(problem: JointProblem, number: int, used_mib: Floats, most: int) -> list[int]:
    """Columns of batches, rising: each serves more than the one before; the largest, and of the others those that
    serve most for their memory, if there are too many.
    """
    with np.errstate(divide="ignore"):
        rate: Floats = np.max(problem.batches / problem.mean_ms[:, number].min(axis=1), axis=0)
    used: Floats = used_mib.min(axis=0)
    found: list[int] = []
    for column in range(len(rate)):
        if rate[column] > (1 + GAIN_PART_MIN) * max((rate[item] for item in found), default=0.0):
            found.append(column)
    if problem.workloads[problem.variants[number].workload].limit_fixed or not found:
        return found[-1:] or [len(rate) - 1]
    worth: Floats = rate / np.maximum(used, 1.0)
    best = sorted(found[:-1], key=lambda column: -float(worth[column]))[: most - 1]
    return sorted([*best, found[-1]])


class Names:
    """Which variant a replica is, by its workload, network and batch."""

    def __init__(self, problem: JointProblem) -> None:
        self._variants: dict[tuple[WorkloadId, ModelName], list[tuple[int, int]]] = defaultdict(list)
        for number, item in enumerate(problem.variants):
            self._variants[problem.workloads[item.workload].id, item.model].append((item.batch_max, number))

    def variant(self, workload: WorkloadId, model: ModelName, batch: int) -> int | None:
        """The one of the smallest batches that has this one; None for a network that may not serve."""
        listed = self._variants.get((workload, model), [])
        return next((number for most, number in listed if batch <= most), listed[-1][1] if listed else None)
