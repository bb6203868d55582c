"""From a snapshot to the joint problem, the way back to names, and why what is not in it is not.

What stays where it is (`work`) is taken off what is asked, and its devices are in no pool. Which tables and kinds there
are, what every network does on them, and that only networks which could serve somewhere, and workloads that have one,
are in the problem; why others are not is said for every GPU type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product

import numpy as np

from solvers.domain.arrays import Flags, Floats, least_of, most_of
from solvers.domain.device import ColocationClass
from solvers.domain.evidence import Reason, ReasonCode, facts_of
from solvers.domain.grouping import grouped
from solvers.domain.ids import DeviceId, GpuTypeName, ReplicaId, WorkloadId
from solvers.domain.plan import Assignment
from solvers.domain.policy import CostBasis
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import TrainingJob, WorkloadKind
from solvers.models.appraisal import Appraisal
from solvers.models.serving.token_plans import SEQUENCES, token_miss
from solvers.models.table import Tables
from solvers.models.worth import pinned_settings
from solvers.planners.joint.reading.pools import Pools, pools_of, with_rests
from solvers.planners.joint.reading.tables import CELLS, Arrays, Colocation, Table, axes_of, clocks_of, fill, layers_of
from solvers.planners.joint.reading.work import (
    Left,
    allowed_of,
    alone_of,
    put_job,
    put_tokens,
    split,
    staying_of,
    unserved_usd,
    variants_of,
    workloads_of,
)
from solvers.planners.joint.solve.judge import Judge, Member
from solvers.planners.writer import rounded_rps
from solvers.problems.fleet import Fleet, open_fleet
from solvers.problems.jobs import job_worth, must_run, trains_first
from solvers.problems.joint import WHOLE_PCT, JointProblem, Variant, Workload
from solvers.problems.margins import with_margins
from solvers.problems.needs import Need, needs_of, open_ended_services
from solvers.problems.patterns import Layout, Pattern

JOBS_AMONG = (1, 2, 3, 4)
"""So many jobs may part one's share, whatever was measured beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stands:
    """A movable replica that stands on a device of a pool; no variant when its network may not serve any more."""

    assignment: Assignment
    variant: int | None


@dataclass(frozen=True, kw_only=True)
class Reading:
    snapshot: Snapshot
    """With its offers standing ready."""
    problem: JointProblem
    pool_devices: tuple[tuple[DeviceId, ...], ...]
    """The devices of each pool, by id."""
    fleet: Fleet
    """With what stays on its books."""
    needs: tuple[Need, ...]
    """Of all movable workloads, also those that are no part of the problem."""
    pinned: tuple[Assignment, ...]
    """Stay as they are, exhausted jobs included."""
    kept: tuple[Assignment, ...]
    """Movable, but beside pinned replicas, and good as they are: they stay too, with what they are believed to serve
    today beside what stays.
    """
    standing: Mapping[DeviceId, tuple[Stands, ...]]
    """By device of a pool, replicas by id."""
    refusals: Mapping[tuple[WorkloadId, GpuTypeName], Reason]
    """Why a workload can have no replica on any device of a type, however much were free."""

    stands: Layout
    """The same as a layout, as far as they are lawful and keep their promises, at the clocks that stand."""
    open_ended: frozenset[WorkloadId]
    """Services that can always use more and may be given what is spare."""

    @cached_property
    def pool_of(self) -> dict[DeviceId, int]:
        return {device: pool for pool, devices in enumerate(self.pool_devices) for device in devices}


def read(snapshot: Snapshot, movable: tuple[WorkloadId, ...]) -> Reading:
    """Read a snapshot of which these workloads may move."""
    picture = snapshot.with_offers()
    needs = needs_of(picture, movable)
    fleet = open_fleet(picture, pinned_settings(picture, movable))
    staying = staying_of(picture, movable, needs, fleet)
    spread = any(need.affinity.failure_domains_min > 1 for need in needs)
    pools = pools_of(picture, fleet, (item.device for item in staying.pinned), by_failure_domain=spread)
    stays, asked = (*staying.pinned, *staying.kept), {need.workload: need for need in needs}
    settings = {item.device: item for item in picture.target.settings}
    appraisal = Appraisal.of(fleet, Tables.of(picture.profiles), picture.policy, stays, settings)
    pools = with_rests(picture, appraisal, pools, stays, [item.need for item in staying.left])
    problem, refusals = assemble(picture, fleet, pools, staying.left)
    standing = _standing(picture, pools, problem, set(movable), {item.replica for item in stays})
    refused = [(need.workload, need.refusal) for need in needs if need.refusal is not None]
    hopeless = {(workload, item.name): reason for workload, reason in refused for item in picture.gpu_types}
    return Reading(
        snapshot=picture,
        problem=problem,
        pool_devices=pools.devices,
        needs=needs,
        pinned=staying.pinned,
        fleet=fleet,
        kept=tuple(_as_of_today(item, appraisal, asked[item.workload]) for item in staying.kept),
        standing=standing,
        stands=_layout(picture, pools, problem, standing),
        open_ended=_open_ended(picture),
        refusals=refusals | hopeless,
    )


def _as_of_today(item: Assignment, appraisal: Appraisal, need: Need) -> Assignment:
    capacity_rps, planned_ms = item.capacity_rps, item.latency_ms_planned
    if need.kind is not WorkloadKind.JOB:
        capacity_rps = min(capacity_rps, appraisal.capacities_rps(need, [item])[0] or 0.0)
    if planned_ms is not None:
        planned_ms = need.kept_ms(planned_ms)
    return replace(item, capacity_rps=rounded_rps(capacity_rps), latency_ms_planned=planned_ms)


def _standing(
    picture: Snapshot, pools: Pools, problem: JointProblem, movable: set[WorkloadId], stays: set[ReplicaId]
) -> dict[DeviceId, tuple[Stands, ...]]:
    pooled = {device for devices in pools.devices for device in devices}
    by_id = sorted(picture.target.assignments, key=lambda item: item.replica)
    mine = (at for at in by_id if at.device in pooled and at.workload in movable and at.replica not in stays)
    each = (Stands(assignment=at, variant=problem.variant_of(at.workload, at.model, at.batch)) for at in mine)
    like = grouped(each, lambda stands: stands.assignment.device)
    return {device: tuple(items) for device, items in sorted(like.items())}


def _layout(
    picture: Snapshot, pools: Pools, problem: JointProblem, standing: Mapping[DeviceId, tuple[Stands, ...]]
) -> Layout:
    """Of the kinds at a clock the first that bears a device's contents: those who are known bear each other best."""
    clocks = {item.device: item.clock_mhz_sm for item in picture.target.settings}
    found: Counter[tuple[int, int, tuple[Member, ...]]] = Counter()
    for pool, devices in enumerate(pools.devices):
        listed = problem.clocks_mhz(pool)
        for device in devices:
            stands = standing.get(device, ())
            members = sorted((at.variant, at.assignment.share_pct_sm) for at in stands if at.variant is not None)
            if members and len(members) == len(stands):
                clock = clocks.get(device) or 0
                clock = clock if clock in listed else listed[-1]
                found[pool, clock, tuple(members)] += 1
    made, judge = dict[Pattern, int](), Judge(problem)
    for (pool, clock, held), count in sorted(found.items()):
        judged = (judge.one(kind, held) for kind in problem.like(pool, clock))
        pattern = next((pattern for pattern in judged if pattern is not None), None)
        if pattern is not None:
            made[pattern] = count
    return Layout.of(made)


def _open_ended(picture: Snapshot) -> frozenset[WorkloadId]:
    """Without budgets, quotas and spread, where whole devices are paid."""
    if picture.policy.cost_basis is not CostBasis.DEVICE:
        return frozenset()
    endless = open_ended_services(picture)
    bounded = {item.name for item in picture.projects if item.quota_gpus is not None}
    free = (item for item in picture.services if item.project not in bounded and item.budget_usd_per_h is None)
    anywhere = (item.id for item in free if item.affinity.failure_domains_min < 2)
    return frozenset(WorkloadId(name) for name in anywhere if name in endless)


Refusals = dict[tuple[WorkloadId, GpuTypeName], Reason]


class _Draft:
    """Everything asked for, on everything there is."""

    def __init__(self, picture: Snapshot, fleet: Fleet, pools: Pools, left: tuple[Left, ...]) -> None:
        self.picture, self.fleet, self.pools, self.left = picture, fleet, pools, left
        needs = tuple(item.need for item in left)
        self.variants = variants_of(needs, picture.models_by_name())
        types, models = {pool.gpu_type for pool in pools.pools}, {item.model for item in self.variants}
        useful = [item for item in picture.profiles if item.model in models and item.gpu_type in types]
        self.layers = tuple(layers_of(useful))
        self.measured = {(model, layer.gpu_type) for layer in self.layers for model in layer.models}
        self.colocation = Colocation(picture, needs, self.variants)
        # One row for every variant.
        self.arrays = _arrays(self, self._kinds(), needs)
        self.colocation.apply(self.arrays)
        workloads = tuple(workloads_of(left, fleet.foes, picture.policy, np.zeros(len(left))))
        room_mib = np.array([pool.memory_mib for pool in pools.pools], dtype=np.float64)
        last = np.searchsorted(self.kind_pool, np.arange(len(pools.pools)), side="right") - 1
        self.alone = alone_of(self.arrays, workloads, self.variants, self.kind_table[last], room_mib)
        self.allowed = allowed_of(fleet, pools, needs, self.variants)

    def _kinds(self) -> tuple[Table, ...]:
        """Finds pool, clock and table of every kind, by rising clocks of a pool; which tables. Where it is not known of
        all how they press on each other a device is either for those of whom it is, or for everybody.
        """
        types, names = self.picture.gpu_types_by_name(), {pool.gpu_type for pool in self.pools.pools}
        clocks = {name: clocks_of(self.layers, types[name]) for name in names}
        mixed = {name for name in names if self.colocation.mixed(name)}
        tables: dict[Table, int] = {}
        rows: list[tuple[int, int, int]] = []
        for pool, (first, rest) in enumerate(zip(self.pools.first, self.pools.rests, strict=True)):
            kind = self.fleet.class_at(first)
            apart = kind.gpu_type in mixed and not kind.exclusive and rest is None
            listed = clocks[kind.gpu_type] if rest is None else (rest.clock_mhz,)
            whole = partial(Table, gpu_type=types[kind.gpu_type], sm_part=kind.sm_part, gpu_part=kind.gpu_part)
            for clock, known in product(listed, (True, False) if apart else (False,)):
                table = whole(exclusive=kind.exclusive, clock_mhz=clock, known=known, rest=rest)
                rows.append((pool, clock, tables.setdefault(table, len(tables))))
        self.kind_pool, self.kind_clock_mhz, self.kind_table = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        return tuple(tables)

    @property
    def able(self) -> Flags:
        """pool x variant: could serve."""
        return np.asarray(self.allowed & (self.alone.rate_rps > 0), dtype=bool)


def assemble(picture: Snapshot, fleet: Fleet, pools: Pools, left: tuple[Left, ...]) -> tuple[JointProblem, Refusals]:
    """The problem of what is left to plan; workloads that nothing can serve are refused for every GPU type."""
    draft = _Draft(picture, fleet, pools, left)
    columns = np.flatnonzero(draft.able.any(axis=0))
    served = sorted({draft.variants[column].workload for column in columns})
    number = {before: after for after, before in enumerate(served)}
    variants = tuple(
        replace(draft.variants[column], workload=number[draft.variants[column].workload]) for column in columns
    )
    rates = np.where(draft.able, draft.alone.rate_rps, 0.0)[:, columns]
    workloads = _workloads(draft, tuple(draft.left[before] for before in served), variants, rates)
    policy, arrays = picture.policy, draft.arrays.of(columns)
    asking = {item.project for item in workloads}
    pressure, exponent, sensitivity, crowd = draft.colocation.pressures(columns, arrays)
    problem = JointProblem(
        pools=pools.pools,
        kind_pool=draft.kind_pool,
        kind_clock_mhz=draft.kind_clock_mhz,
        kind_table=draft.kind_table,
        workloads=workloads,
        variants=variants,
        **{name: getattr(arrays, name) for name in ("shares_pct", "batches", *CELLS)},
        pressure=pressure,
        exponent=exponent,
        sensitivity=sensitivity,
        crowd=crowd,
        allowed=draft.allowed.take(columns, axis=1),
        caps=pools.caps,
        quotas=tuple((name, max(0.0, gpus)) for name, gpus in sorted(fleet.quota_left.items()) if name in asking),
        usd_per_wh=policy.usd_per_wh(picture.taken_at_s),
        by_share=policy.cost_basis is CostBasis.SHARE,
        by_memory=policy.cost_basis is CostBasis.MEMORY,
        share_step_pct=policy.share_step_pct,
    )
    return with_margins(split(problem, arrays.used_mib)), dict(_refusals(draft))


def _arrays(draft: _Draft, tables: tuple[Table, ...], needs: tuple[Need, ...]) -> Arrays:
    """One row for every variant; a workload that wants a device of its own gets all of it, and so do LLMs."""
    picture, layers, variants = draft.picture, draft.layers, draft.variants
    jobs = {WorkloadId(job.id): job for job in picture.jobs}
    asked = [jobs[need.workload] for need in needs if need.kind is WorkloadKind.JOB]
    step = picture.policy.share_step_pct
    bounds = {
        share
        for job in asked
        for among in JOBS_AMONG
        for share in (-(-job.share_pct_sm_min // step) * step, job.share_pct_sm_max // among // step * step)
        if job.share_pct_sm_min <= share <= job.share_pct_sm_max
    }
    if picture.policy.cost_basis is CostBasis.MEMORY:
        # The largest share with which a device is not one's own, all of it to be paid.
        bounds |= {(WHOLE_PCT - 1) // step * step}
    sequences = SEQUENCES if any(need.tokens is not None for need in needs) else ()
    axes = axes_of(layers, (table.sm_part for table in tables), step, bounds, sequences)
    place = {model: row for row, model in enumerate(dict.fromkeys(item.model for item in variants))}
    types = picture.gpu_types_by_name()
    arrays = fill(tables, tuple(place), layers, axes).of([place[item.model] for item in variants])
    for row, variant in enumerate(variants):
        need = needs[variant.workload]
        unmeasured = need.kind is WorkloadKind.JOB or need.tokens is not None
        for values in (arrays.mean_ms, arrays.tail_ms, arrays.power_w, arrays.memory_mib) if unmeasured else ():
            values[:, row] = np.inf
        if need.kind is WorkloadKind.JOB:
            put_job(arrays, row, jobs[need.workload], types)
        elif need.tokens is not None:
            put_tokens(arrays, row, variant.model, need, picture.policy)
        elif need.affinity.dedicated:
            for values in (arrays.mean_ms, arrays.tail_ms, arrays.power_w):
                values[:, row, :-1] = np.inf
        if unmeasured:
            arrays.used_mib[:, row] = arrays.memory_mib[:, row]
    return arrays


def _workloads(
    draft: _Draft, left: tuple[Left, ...], variants: tuple[Variant, ...], rates: Floats
) -> tuple[Workload, ...]:
    """Workloads with what it is worth to serve them. `rates`: pool x variant, the most a whole device gives."""
    price = np.array([pool.usd_per_h for pool in draft.pools.pools])
    of = np.array([item.workload for item in variants], dtype=np.int64)
    most = most_of(rates.max(axis=0, initial=0.0), of, np.zeros(len(left)))
    with np.errstate(divide="ignore", invalid="ignore"):
        per_rps = np.where(rates > 0, price[:, None] / rates, np.inf).min(axis=0, initial=np.inf)
    cost = least_of(per_rps, of, np.full(len(left), np.inf))
    worth = unserved_usd(left, cost * [item.rate_rps for item in left], float(price.max(initial=0.0)))
    domain = np.array([pool.failure_domain for pool in draft.pools.pools])
    within = (item.within(set(domain[rates[:, of == row].any(axis=1)].tolist())) for row, item in enumerate(left))
    made = workloads_of(tuple(within), draft.fleet.foes, draft.picture.policy, worth)
    jobs = {WorkloadId(job.id): job for job in draft.picture.jobs}
    return tuple(
        _job(draft, item, jobs[item.id], left[index].need, float(most[index]))
        if left[index].need.kind is WorkloadKind.JOB
        else item
        for index, item in enumerate(made)
    )


def _job(draft: _Draft, made: Workload, job: TrainingJob, need: Need, most_rps: float) -> Workload:
    """With all that it can do where it may be planned, and what that is worth; or as one replica that must be there."""
    if must_run(draft.picture.policy) and not trains_first(draft.picture.policy):
        return replace(made, replicas_min=1)
    worth = job_worth(draft.picture, draft.fleet, need, job)
    usd_per_h = worth.usd_per_h * most_rps / worth.best_per_s
    return replace(made, rate_rps=most_rps, unserved_usd=usd_per_h, may_wait=True)


def _refusals(draft: _Draft) -> Iterator[tuple[tuple[WorkloadId, GpuTypeName], Reason]]:
    """For every workload and type of the catalogue without any chance, the rule or the number that leaves none."""
    of, able = grouped(range(len(draft.variants)), lambda column: draft.variants[column].workload), draft.able
    for gpu_type in sorted(item.name for item in draft.picture.gpu_types):
        pools = [row for row, pool in enumerate(draft.pools.pools) if pool.gpu_type == gpu_type]
        some = np.asarray(able[pools].any(axis=0), dtype=bool)
        for number, item in enumerate(draft.left):
            columns = of[number]
            if not some[columns].any():
                yield (item.need.workload, gpu_type), _refusal(draft, item.need, gpu_type, columns, pools)


def _refusal(draft: _Draft, need: Need, gpu_type: GpuTypeName, columns: list[int], pools: list[int]) -> Reason:
    if need.gpu_types_allowed and gpu_type not in need.gpu_types_allowed:
        return Reason(code=ReasonCode.TYPE_NOT_ALLOWED, subject=gpu_type)
    if not pools:
        return Reason(code=ReasonCode.NO_DEVICE_OF_TYPE, subject=gpu_type, facts=facts_of(devices_usable=0.0))
    open_to = [pool for pool in pools if draft.allowed[pool, columns].any()]
    if not open_to:
        firsts = (draft.fleet.devices[draft.pools.first[pool]] for pool in pools)
        unfit = all(device.colocation is not ColocationClass.ANY for device in firsts)
        return Reason(code=ReasonCode.ANTI_AFFINITY if unfit else ReasonCode.TAINTED, subject=gpu_type)
    models = {draft.variants[item].model for item in columns}
    known = draft.measured if need.tokens is None else {(item.model, item.gpu_type) for item in need.tokens.profiles}
    if need.kind is not WorkloadKind.JOB and known.isdisjoint((model, gpu_type) for model in models):
        return Reason(code=ReasonCode.NO_PROFILE, subject=gpu_type)
    cells = np.ix_(open_to, columns)
    memory = float(draft.alone.memory_mib_least[cells].min())
    if np.isfinite(memory):
        room = max(draft.pools.pools[pool].memory_mib for pool in open_to)
        facts = facts_of(memory_mib_needed=memory, memory_mib_device=room)
        return Reason(code=ReasonCode.NO_MEMORY_LEFT, subject=gpu_type, facts=facts)
    if need.tokens is not None:
        return token_miss(need, tuple(sorted(models)), gpu_type, draft.picture.policy)
    best = float(draft.alone.latency_ms_best[cells].min())
    told = round(best, 3) if np.isfinite(best) else "unknown"
    facts = facts_of(latency_ms_best=told, latency_ms_limit=need.limit_ms or 0.0)
    return Reason(code=ReasonCode.SLO_UNREACHABLE, subject=gpu_type, facts=facts)
