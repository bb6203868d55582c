"""Needs as the joint problem's workloads and variants: what stays, what is left to plan, what it is worth, where it
runs.

A service is each of its permitted networks; a training job is one network whose requests are iterations, so that its
value counts by progress. To leave a whole rate unserved costs in proportion to priority x rate, as the objective counts
it, and for every workload a multiple of what serving it could cost; a job that waits costs its value. An LLM's replica
has a whole GPU at its highest clock. What `token_plans` says of it is written as cells at the full share, so that
`patterns.serve` grants exactly that: the promise bounds the execution alone, the tail is the planned time to the first
token, the mean is what makes the utilisation granted the rate that was found, and sequences at once are the batch.

Where memory is what is paid, a network is a variant for every batch that may be worth it: a larger batch serves more
and uses more memory, and which is cheaper depends on what one replica more costs. A larger batch also draws more, so
that small problems have such variants where watts count. Elsewhere the batch that serves most is right.

Pinned replicas stay to the letter. A job that was evicted as often as it bears stays as if it were pinned, and movable
replicas beside either stay too, as long as today's rules allow it, they keep their promise and their owner can pay:
what is beside them cannot be planned anew. All that stays is on the fleet's books and is taken off what is asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.domain.device import GpuType
from solvers.domain.grouping import grouped
from solvers.domain.ids import GpuTypeName, ModelName, WorkloadId
from solvers.domain.plan import Assignment
from solvers.domain.policy import Policy
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import AntiAffinity, ModelVariant, TrainingJob, WorkloadKind
from solvers.models.appraisal import Appraisal
from solvers.models.serving.token_plans import TokenPromise, choices
from solvers.models.table import Tables
from solvers.models.worth import LAUNCH_S_DEFAULT
from solvers.planners.joint.reading.pools import Pools
from solvers.planners.joint.reading.tables import Arrays
from solvers.planners.seating import search_of, standing_seat
from solvers.problems.fleet import Fleet, Seat
from solvers.problems.joint import JointProblem, Variant, Workload
from solvers.problems.needs import Need, iterations_per_s, job_memory_mib, pinned_assignments, utilisation_open
from solvers.problems.patterns import promises_of
from solvers.problems.promise import PERCENTILE_MAX, UTILISATION_MIN, bearable

UNSERVED_FACTOR = 20.0
"""Leaving a rate unserved counts at least so many times what serving it could cost."""
UNSERVED_USD_MAX = 1e6
DEVICE_USD_LEAST = 0.1
"""$/h: what a device counts at least when weighed against demand. Owned ones cost nothing, but demand still counts."""
UNSERVED_QUANTILE = 95
"""One odd workload must not drive all others to the ceiling."""
RATE_RPS_LEAST = 1e-6
"""Stands for a rate of nothing, where replicas are wanted all the same."""
DUST = 1e-9
VARIANTS_MAX = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What of a need is still to be planned, after what stays where it is."""

    need: Need
    rate_rps: float
    rate_least_rps: float
    replicas_min: int
    replicas_max: int
    budget_usd_per_h: float
    domains_held: frozenset[int] = frozenset()
    """Failure domains where some of it stays."""

    def within(self, domains: set[int]) -> Left:
        """The same where only devices in these failure domains could serve it."""
        need = replace(self.need, domains_there=len(self.domains_held | domains))
        fewer = self.need.replicas_floor - need.replicas_floor
        return replace(self, need=need, replicas_min=max(0, self.replicas_min - fewer))


def variants_of(needs: tuple[Need, ...], models: Mapping[ModelName, ModelVariant]) -> tuple[Variant, ...]:
    """Each need's networks, its own first."""
    return tuple(
        Variant(workload=number, model=name, launch_s=models[name].launch_s if name in models else LAUNCH_S_DEFAULT)
        for number, need in enumerate(needs)
        for name in (need.model, *need.alternatives)
    )


def workloads_of(
    left: tuple[Left, ...], foes: Mapping[WorkloadId, set[WorkloadId]], policy: Policy, unserved_usd: Floats
) -> Iterator[Workload]:
    """Workloads in the order of what is left; what a job's rate and value are is for the caller to say."""
    number = {item.need.workload: index for index, item in enumerate(left)}
    for item, usd in zip(left, unserved_usd, strict=True):
        need, is_job = item.need, item.need.kind is WorkloadKind.JOB
        busy = utilisation_open(policy) if need.open_ended else policy.utilisation_max
        quantile = min(need.percentile, PERCENTILE_MAX) / 100
        alone = is_job or need.affinity.anti_affinity is AntiAffinity.HARD
        yield Workload(
            id=need.workload,
            project=need.project,
            rate_rps=max(item.rate_rps, RATE_RPS_LEAST),
            rate_least_rps=item.rate_least_rps,
            unserved_usd=float(usd),
            limit_ms=math.inf if need.limit_ms is None else need.limit_ms,
            burst=math.log(1 / (1 - quantile)) if need.end_to_end else 0.0,
            end_to_end=need.end_to_end,
            utilisation_max=busy if need.kind is WorkloadKind.SERVICE else 1.0,
            replicas_min=0 if is_job else item.replicas_min,
            replicas_max=item.replicas_max,
            per_device_max=1 if alone else policy.replicas_per_device_max,
            dedicated=need.affinity.dedicated,
            domains_min=need.domains_floor,
            domains_held=item.domains_held,
            budget_usd_per_h=item.budget_usd_per_h,
            avoids=tuple(sorted(number[foe] for foe in foes.get(need.workload, ()) if foe in number)),
            priority=need.priority,
            limit_fixed=need.tokens is not None,
        )


def allowed_of(fleet: Fleet, pools: Pools, needs: tuple[Need, ...], variants: tuple[Variant, ...]) -> Flags:
    """pool x variant: types, taints, colocation."""
    first = np.array(pools.first, dtype=np.intp)
    may = np.array([fleet.eligible(need)[first] for need in needs], dtype=bool).reshape(len(needs), len(first))
    rests = [(row, rest) for row, rest in enumerate(pools.rests) if rest is not None]
    for (row, rest), (number, need) in product(rests, enumerate(needs)):
        # A rest without a price of its own would be no burden on a budget that counts shares.
        unpriced = need.budget_usd_per_h is not None and pools.pools[row].usd_per_h == 0
        may[number, row] &= need.workload not in rest.excluded and not unpriced
    return np.asarray(may.T[:, [item.workload for item in variants]])


def put_job(arrays: Arrays, row: int, job: TrainingJob, types: dict[GpuTypeName, GpuType]) -> None:
    """Write a job's progress as the latency of an iteration: in proportion to share, peak and clock."""
    inside = (arrays.shares_pct >= job.share_pct_sm_min) & (arrays.shares_pct <= job.share_pct_sm_max)
    part = arrays.shares_pct[inside] / 100
    single = int(np.searchsorted(arrays.batches, 1))
    for index, table in enumerate(arrays.tables):
        gpu_type = table.gpu_type
        whole_per_s = iterations_per_s(job, types, gpu_type.name) * table.sm_part
        per_s = whole_per_s * part * table.clock_mhz / gpu_type.clock_mhz_sm_max
        arrays.mean_ms[index, row, inside, single] = 1000 / per_s
        arrays.tail_ms[index, row, inside, single] = 1000 / per_s
        span_w = (gpu_type.power_limit_w_max - gpu_type.idle_w) * table.gpu_part
        arrays.power_w[index, row, inside, single] = span_w * part
        arrays.memory_mib[index, row, single] = job_memory_mib(job)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """Every variant alone on a whole device of every pool at its highest clock."""

    rate_rps: Floats
    """pool x variant: the most it may be given; 0 where it keeps no promise or does not fit."""
    latency_ms_best: Floats
    """pool x variant: the shortest that any batch takes, at hardly any load."""
    memory_mib_least: Floats
    """pool x variant: of the batches that keep the promise; inf when none does."""


def alone_of(
    arrays: Arrays, workloads: tuple[Workload, ...], variants: tuple[Variant, ...], table: Whole, room_mib: Floats
) -> Alone:
    """`table`: of each pool, highest clock; `room_mib`: its devices' memory. A job takes what its owner allows."""
    promises = promises_of([workloads[item.workload] for item in variants]).take(np.arange(len(variants)))
    mean, tail = (np.min(cells, axis=2) for cells in (arrays.mean_ms, arrays.tail_ms))
    batch = arrays.batches.astype(np.float64)
    load = bearable(promises, batch, tail)
    idle = bearable(replace(promises, limit_ms=np.inf, utilisation_max=UTILISATION_MIN), batch, tail)
    rate = load.rate_rps(batch, mean)
    kept = (load.kept & np.isfinite(mean))[table]
    fits = arrays.memory_mib[table] <= room_mib[:, None, None]
    return Alone(
        rate_rps=np.asarray(np.where(fits, rate[table], 0.0).max(axis=2)),
        latency_ms_best=np.asarray(idle.latency_ms.min(axis=2)[table]),
        memory_mib_least=np.asarray(np.where(kept, arrays.memory_mib[table], np.inf).min(axis=2)),
    )


def unserved_usd(left: tuple[Left, ...], cost_usd_per_h: Floats, device_usd_per_h: float) -> Floats:
    """$/h for leaving each whole rate unserved. `cost_usd_per_h`: about what serving each costs; inf where unknown."""
    weighted = np.array([item.need.weight * max(item.rate_least_rps, RATE_RPS_LEAST) for item in left])
    device_usd = max(device_usd_per_h, DEVICE_USD_LEAST)
    least = UNSERVED_FACTOR * np.maximum(np.where(np.isfinite(cost_usd_per_h), cost_usd_per_h, 0.0), device_usd)
    asked = np.array([item.rate_least_rps > 0 for item in left], dtype=bool)
    scale = float(np.percentile(least[asked] / weighted[asked], UNSERVED_QUANTILE)) if asked.any() else 0.0
    return np.asarray(np.minimum(np.maximum(scale * weighted, least), UNSERVED_USD_MAX))


def put_tokens(arrays: Arrays, row: int, model: ModelName, need: Need, policy: Policy) -> None:
    wish = need.tokens
    for index, table in enumerate(arrays.tables):
        gpu_type = table.gpu_type
        whole = table.sm_part >= 1.0 and table.gpu_part >= 1.0 and table.clock_mhz == gpu_type.clock_mhz_sm_max
        profile = None if wish is None else wish.profile(model, gpu_type.name)
        if wish is None or profile is None or not whole:
            continue
        for found in choices(profile, TokenPromise.of(need, wish, policy.utilisation_max)):
            column = int(np.searchsorted(arrays.batches, found.sequences))
            if found.rate_rps > 0:
                mean_ms = policy.utilisation_max * 1000 * found.sequences / found.rate_rps
                arrays.mean_ms[index, row, -1, column] = mean_ms
                arrays.tail_ms[index, row, -1, column] = found.first_token_ms
                arrays.power_w[index, row, -1, column] = gpu_type.power_limit_w_max - gpu_type.idle_w
            arrays.memory_mib[index, row, column] = found.memory_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class Staying:
    """Replicas by id, and what needs that can be planned still want, those left out that want nothing."""

    pinned: tuple[Assignment, ...]
    """Exhausted jobs included."""
    kept: tuple[Assignment, ...]
    left: tuple[Left, ...]


def staying_of(
    picture: Snapshot, movable: tuple[WorkloadId, ...], needs: tuple[Need, ...], fleet: Fleet, *, beside: bool = True
) -> Staying:
    """Decide, and put what stays on the books. `beside` False: only what must stay does."""
    books = _Books(picture, fleet)
    pinned = list(pinned_assignments(picture, movable))
    for item in pinned:
        books.put(item)
    planned = tuple(need for need in needs if need.refusal is None)
    jobs = {WorkloadId(job.id): job for job in picture.jobs}
    stood = sorted(picture.target.assignments, key=lambda item: item.replica)
    standing = grouped(stood, lambda item: item.workload)
    worn = (item for item in picture.job_statuses if item.workload in jobs)
    exhausted = {item.workload for item in worn if item.evictions >= jobs[item.workload].evictions_max}
    settled: set[WorkloadId] = set()
    for need in planned:
        if need.workload in exhausted:
            stays = books.let_job_stay(need, standing[need.workload], jobs[need.workload])
            pinned.extend(stays)
            settled |= {item.workload for item in stays}
    near = {item.device for item in pinned} if beside else set()
    kept: list[Assignment] = []
    left: list[Left] = []
    for need in planned:
        if need.workload in settled:
            continue
        mine = [item for item in standing[need.workload] if item.device in near]
        if need.kind is WorkloadKind.JOB:
            good = [(item, 0.0) for item in books.let_job_stay(need, mine, jobs[need.workload])]
        else:
            good = list(books.let_stay(need, mine))
        kept.extend(item for item, _ in good)
        budget = math.inf if need.budget_usd_per_h is None else need.budget_usd_per_h
        capacity_rps = sum(capacity for _, capacity in good)
        rest = Left(
            need=need,
            rate_rps=max(0.0, need.rate_rps - capacity_rps),
            rate_least_rps=max(0.0, need.rate_rps_least - capacity_rps),
            replicas_min=max(0, need.replicas_floor - len(good)),
            replicas_max=max(0, need.replicas_max - len(good)),
            budget_usd_per_h=max(0.0, budget - sum(books.usd_per_h(item) for item, _ in good)),
            domains_held=frozenset(int(fleet.failure_domain[fleet.index[item.device]]) for item, _ in good),
        )
        wants = need.kind is WorkloadKind.JOB or rest.rate_rps > 0 or rest.replicas_min > 0
        if wants and rest.replicas_max > 0:
            left.append(rest)
    held, beside_them = (tuple(sorted(some, key=lambda item: item.replica)) for some in (pinned, kept))
    return Staying(pinned=held, kept=beside_them, left=tuple(left))


class _Books:
    """The fleet's books, and what stands judged beside everything that stands."""

    def __init__(self, picture: Snapshot, fleet: Fleet) -> None:
        settings = {item.device: item for item in picture.target.settings}
        self.fleet = fleet
        self.appraisal = Appraisal.of(
            fleet, Tables.of(picture.profiles), picture.policy, picture.target.assignments, settings
        )
        self.dedicated: set[str] = {item.id for item in picture.services if item.affinity.dedicated}

    def _seat(self, item: Assignment) -> Seat | None:
        alone = item.workload in self.dedicated
        return standing_seat(self.fleet, item, dedicated=alone, power_w=item.power_w_planned)

    def put(self, item: Assignment) -> None:
        """Take its room, whether or not it fits."""
        if (seat := self._seat(item)) is not None:
            self.fleet.put(seat)

    def usd_per_h(self, item: Assignment) -> float:
        """The bill by share."""
        return self.fleet.class_at(self.fleet.index[item.device]).usd_per_h * item.share_pct_sm / 100

    def let_job_stay(self, need: Need, standing: list[Assignment], job: TrainingJob) -> tuple[Assignment, ...]:
        """The job's replica if it may stay exactly as it is."""
        for item in standing[:1]:
            inside = job.share_pct_sm_min <= item.share_pct_sm <= job.share_pct_sm_max
            same = inside and item.model == job.model and item.memory_mib_limit >= job.memory_mib
            if same and self._fits(need, item):
                self.put(item)
                return (item,)
        return ()

    def let_stay(self, need: Need, standing: list[Assignment]) -> Iterator[tuple[Assignment, float]]:
        """Replicas that may stay exactly as they are, with what they can be shown to serve."""
        budget = math.inf if need.budget_usd_per_h is None else need.budget_usd_per_h
        count = 0
        known = [item for item in standing if item.device in self.fleet.index]
        for item, shown_rps in zip(known, self.appraisal.capacities_rps(need, known), strict=True):
            price = self.usd_per_h(item)
            if shown_rps is None or count >= need.replicas_max or price > budget + DUST or not self._fits(need, item):
                continue
            self.put(item)
            count, budget = count + 1, budget - price
            yield item, min(shown_rps, item.capacity_rps)

    def _fits(self, need: Need, item: Assignment) -> bool:
        seat, quota = self._seat(item), self.fleet.quota_left.get(need.project, math.inf)
        if seat is None or self.fleet.gpus(seat.device, seat.share_pct) > quota + DUST:
            return False
        return self.fleet.fits(search_of(need, seat), seat.device)


def split(problem: JointProblem, used_mib: Floats) -> JointProblem:
    """The same problem with a variant for every batch worth choosing: batches up to that one. `used_mib`: table x
    variant x batch, what is used with it. Where watts count, a small problem alone is split: all of it can be listed.
    """
    if not len(problem.variants) or not (problem.by_memory or problem.counts_watts):
        return problem
    most = max(1, VARIANTS_MAX // len(problem.variants))
    ceilings = [_ceilings(problem, number, used_mib[:, number], most) for number in range(len(problem.variants))]
    chosen = np.array([number for number, found in enumerate(ceilings) for _ in found], dtype=np.int64)
    columns = np.array([column for found in ceilings for column in found], dtype=np.int64)
    wide, every = problem.of_variants(chosen), np.arange(len(chosen))
    if not problem.by_memory and (len(chosen) == len(problem.variants) or not wide.few_patterns):
        return problem
    beyond = np.arange(len(problem.batches))[None, :] > columns[:, None]

    def below(cells: Floats) -> Floats:
        return np.where(beyond[None, :, None, :], np.inf, cells)

    mean_ms = below(wide.mean_ms)
    split = replace(
        wide,
        variants=tuple(
            replace(item, batch_max=int(problem.batches[column]))
            for item, column in zip(wide.variants, columns.tolist(), strict=True)
        ),
        mean_ms=mean_ms,
        tail_ms=mean_ms if wide.tail_ms is wide.mean_ms else below(wide.tail_ms),
        power_w=below(wide.power_w),
    )
    billed = used_mib[:, chosen][:, every, columns]
    return replace(split, billed_mib=np.where(np.isfinite(billed), billed, 0.0) if problem.by_memory else None)


def _ceilings(problem: JointProblem, number: int, used_mib: Floats, most: int) -> list[int]:
    """Columns of batches, rising: each serves more than those before, if only at some share of some device; the
    largest, and of the others those that serve most for their memory, if there are too many.
    """
    with np.errstate(divide="ignore"):
        most_rps = np.maximum.accumulate(problem.batches / problem.mean_ms[:, number], axis=2)
    more = np.diff(most_rps, axis=2, prepend=0.0).any(axis=(0, 1))
    found, rate, used = np.flatnonzero(more).tolist(), most_rps.max(axis=(0, 1)), used_mib.min(axis=0)
    if problem.workloads[problem.variants[number].workload].limit_fixed or not found:
        return found[-1:] or [len(rate) - 1]
    worth: Floats = rate / np.maximum(used, 1.0)
    best = sorted(found[:-1], key=lambda column: -float(worth[column]))[: most - 1]
    return sorted([*best, found[-1]])
