"""The joint problem as arrays: what every workload could do on every kind of device, and what limits the choice.

Engine-neutral data of one solve, free of names but for reports, of devices, profiles and plans. A *pool* is a set of
devices that are interchangeable to every workload; a *kind* is a pool at one clock (two where of some variants it is
not known how they press on each other: one for those of which it is, one for all, with a margin); a *variant* is a
network that may serve a workload (each has at least one); a *table* is a GPU type (or slice size) at one clock, shared
by the kinds that run it. A *pattern* (see `patterns`) is what stands on one device: kind and members (variant, share,
batch). Solvers choose how many devices of each pool carry which pattern.

Conventions: latency and power arrays are table x variant x share x batch, `inf` where a configuration cannot run;
shares are whole percent of the device; prices are $/h; powers are watts above idle; memory is what a replica's limit
takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from hashlib import blake2b
from itertools import combinations, pairwise, product
from math import comb

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.domain.ids import GpuTypeName, ModelName, ProjectName, WorkloadId

WHOLE_PCT = 100
PARTINGS_MAX = 1_200_000
"""Looked through, of one size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Devices that no workload can tell apart."""

    name: str
    gpu_type: GpuTypeName
    devices: int
    """How many of them may be used."""
    usd_per_h: float
    """Price of one, the expected cost of interruptions included."""
    memory_mib: float
    """For replicas: the policy's margin is taken off."""
    idle_w: float
    limit_w: float
    """What a device draws is cut here."""
    clients: int
    """Most replicas on one device."""
    gpu_part: float = 1.0
    """Part of a whole GPU, for quotas."""
    failure_domain: int = 0
    capped: bool = False
    """`limit_w` is a limit that the plan sets: it was never measured what it does to latencies, so nothing may be
    planned to draw more.
    """
    rest: bool = False
    """What others leave of their devices, which are paid for: numbers are of the rest, and of one replica on each."""
    memory_mib_whole: float = float("inf")
    """Of the whole device, for what is billed by memory."""
    interruptions_usd_per_h: float = 0.0
    """The part of the price that budgets do not count."""
    sliced: bool = False
    """Whether they are in time slices: the whole share is no device of one's own, and billed by memory as any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """A power domain: what its devices may draw together, idle power included; or the sum of like domains."""

    name: str
    limit_w: float
    devices: tuple[int, ...]
    """How many devices of each pool are in it, used or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One demand: what is asked and within what rules. Rates in requests per second."""

    id: WorkloadId
    project: ProjectName
    rate_rps: float
    """What capacity is sized for."""
    rate_least_rps: float
    """What must be served; the part above it is headroom that is given up first."""
    unserved_usd: float
    """$/h that leaving the whole rate unserved counts: by priority, far above any real cost; a training job's is its
    value."""
    limit_ms: float = float("inf")
    burst: float = 0.0
    """ln(1/(1-quantile)) of the promise; 0 when the promise bounds the execution only."""
    end_to_end: bool = False
    utilisation_max: float = 0.7
    replicas_min: int = 0
    replicas_max: int = 1_000_000
    per_device_max: int = 1
    dedicated: bool = False
    domains_min: int = 1
    domains_held: frozenset[int] = frozenset()
    """Failure domains where replicas of it stay that are no part of the problem."""
    budget_usd_per_h: float = float("inf")
    avoids: tuple[int, ...] = ()
    """Workloads (by number) that must not stand beside it."""
    priority: int = 100
    may_wait: bool = False
    """A training job: `unserved_usd` is what all that it could do is worth, and what it does not is no shortage."""
    limit_fixed: bool = False
    """Its cells were reckoned for this very limit (an LLM's are), so nothing can be read off them about another."""

    @property
    def rate_counted_rps(self) -> float:
        """What counts when it is not served: all that a job could do, of others what must be served."""
        return self.rate_rps if self.may_wait else self.rate_least_rps

    def worth_usd(self, rates_rps: Floats) -> Floats:
        """$/h that so much of its rate is worth; of what has to be served, without end."""
        if not self.may_wait:
            return np.full_like(rates_rps, np.inf)
        return self.unserved_usd * np.minimum(rates_rps / self.rate_rps, 1.0)

    @property
    def replicas_floor(self) -> int:
        """Replicas that it needs at least: as asked, and for as many failure domains as asked."""
        return max(self.replicas_min, self.domains_min - len(self.domains_held) if self.domains_min > 1 else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One network that may serve a workload."""

    workload: int
    model: ModelName
    launch_s: float = 10.0
    batch_max: int = 0
    """Its largest batch, where a network is several variants by batch; 0: all its batches are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """Least replicas of workloads on devices of some pools, by workload: first its own in all pools. To be in so many
    failure domains is to have so many replicas, and enough outside any fewer domains.
    """

    workload: Whole
    pools: Flags
    """floor x pool: whose replicas count."""
    least: Floats
    weight: Floats
    """Part of what leaving the workload unserved counts: being in few domains counts some devices, and no more."""
    start: Whole
    """Of each workload's; one element more."""

    @staticmethod
    def of(problem: JointProblem, *, counting: bool = False) -> Floors:
        """A workload's domains are those of the pools that may host it. `counting`: also what is asked of nobody, for
        every workload its replicas in all pools, and in each.
        """
        domain = np.array([pool.failure_domain for pool in problem.pools], dtype=np.int64)
        workload, pools, least, weight = list[int](), list[Flags](), list[int](), list[float]()
        spread_usd = SPREAD_DEVICES * problem.dearest_usd
        for number, work in enumerate(problem.workloads):
            rows = [(work.replicas_floor, np.ones(len(domain), dtype=np.bool_))]
            if work.domains_min > 1:
                mine = problem.allowed[:, problem.variant_workload == number].any(axis=1) & (problem.pool_devices > 0)
                rows += _outside(work, domain, np.unique(domain[mine]).tolist())
            some = [row for row in rows if row[0] > 0 or counting]
            some += [(0, inside) for inside in np.eye(len(domain), dtype=np.bool_)] if counting else []
            workload += [number] * len(some)
            least += [count for count, _ in some]
            others = spread_usd / max(work.unserved_usd, spread_usd, 1e-9)
            weight += [others if place else 1.0 for place in range(len(some))]
            pools += [inside for _, inside in some]
        return Floors(
            workload=np.array(workload, dtype=np.int64),
            pools=np.array(pools, dtype=np.bool_).reshape(len(pools), len(domain)),
            least=np.array(least, dtype=np.float64),
            weight=np.array(weight, dtype=np.float64),
            start=np.searchsorted(np.array(workload, dtype=np.int64), np.arange(len(problem.workloads) + 1)),
        )

    @property
    def own(self) -> Whole:
        """By workload the floor of all its replicas; -1: none."""
        return np.where(np.diff(self.start) > 0, self.start[:-1], -1)

    def entries(self, workload: Whole, pool: Whole) -> tuple[Whole, Whole]:
        """Which replicas, of these workloads on devices of these pools, count for which floors."""
        size = np.diff(self.start)[workload]
        replica = np.repeat(np.arange(len(workload)), size)
        floor = np.repeat(self.start[workload] - np.cumsum(size) + size, size) + np.arange(len(replica))
        inside = self.pools[floor, pool[replica]]
        return replica[inside], floor[inside]

    def counted(self, workload: Whole, pool: Whole, replicas: Whole | Floats) -> Floats:
        """How many replicas there are for each floor, of these workloads on devices of these pools."""
        replica, floor = self.entries(workload, pool)
        counts = np.bincount(floor, weights=replicas[replica], minlength=len(self.least))
        return np.asarray(counts, dtype=np.float64)


LISTED_MAX = 60_000
"""Patterns, lawful or not, up to which all are listed."""
SPREAD_ROWS_MAX, SPREAD_DEVICES = 64, 3.0


def _outside(work: Workload, domain: Whole, domains: list[int]) -> list[tuple[int, Flags]]:
    """How many replicas must be outside every few of the domains, fewest of these first, as long as that is few rows:
    replicas and pools.
    """
    rows: list[tuple[int, Flags]] = []
    needed = min(work.domains_min, len(domains))
    for fewer in range(1, needed):
        if comb(len(domains), fewer) > SPREAD_ROWS_MAX:
            break
        for gone in combinations(domains, fewer):
            stays = len(work.domains_held.difference(gone))
            rows.append((needed - fewer - stays, ~np.isin(domain, gone)))
    return rows


@dataclass(frozen=True, kw_only=True)
class JointProblem:
    pools: tuple[Pool, ...]
    kind_pool: Whole
    kind_clock_mhz: Whole
    kind_table: Whole
    workloads: tuple[Workload, ...]
    variants: tuple[Variant, ...]
    shares_pct: Whole
    """Rising; the grid that planning starts from. Between two of them, see `patterns.between`."""
    batches: Whole
    """Rising."""
    mean_ms: Floats
    tail_ms: Floats
    power_w: Floats
    memory_mib: Floats
    """table x variant x batch."""
    pressure: Floats
    """table x variant: at the whole device."""
    exponent: Floats
    sensitivity: Floats
    crowd: Floats
    """table x variant: factor on latency as soon as there is any neighbour; 1 where pressure and sensitivity are
    known.
    """
    allowed: Flags
    """pool x variant: types, taints, colocation."""
    caps: tuple[Cap, ...] = ()
    quotas: tuple[tuple[ProjectName, float], ...] = ()
    usd_per_wh: float = 0.0
    by_share: bool = False
    """Cost is price x share of each replica instead of the whole device and its energy."""
    by_memory: bool = False
    """Cost is price x part of the device's memory of each replica, all of it for a device of its own; likewise."""
    billed_mib: Floats | None = None
    """table x variant: the memory that a replica is billed then; None: what its limit takes with its largest batch."""
    share_step_pct: int = 1
    """Shares handed out are multiples of this, or all of a device."""

    @cached_property
    def lone_pct(self) -> Whole:
        """Shares that a replica alone on a device may have, rising: whatever the step is, all of it."""
        step = max(1, self.share_step_pct)
        shares = np.unique([*range(step, WHOLE_PCT + 1, step), WHOLE_PCT])
        return np.asarray(shares[shares >= self.shares_pct[0]], dtype=np.int64)

    def partings(self, size: int, most: int, whole_pct: int = WHOLE_PCT) -> Whole:
        """Shares of so many members that leave less than a step, in the finest steps that leave no more than `most`."""
        grid = self.shares_pct.tolist()
        for stride in range(1, len(grid) + 1):
            shares = sorted({*grid[stride - 1 :: stride], 100}) if grid[-1] == 100 else grid[stride - 1 :: stride]
            step = max((high - low for low, high in pairwise(shares)), default=100)
            if len(shares) ** size > PARTINGS_MAX:
                continue
            made = [parts for parts in product(shares, repeat=size) if whole_pct - step < sum(parts) <= whole_pct]
            if made and len(made) <= most:
                return np.array(made, dtype=np.int64)
        return np.zeros((0, size), dtype=np.int64)

    @cached_property
    def variant_workload(self) -> Whole:
        return np.array([item.workload for item in self.variants], dtype=np.int64)

    @cached_property
    def rate_rps(self) -> Floats:
        return np.array([item.rate_rps for item in self.workloads], dtype=np.float64)

    @cached_property
    def least_rps(self) -> Floats:
        """Of each workload what must be served."""
        return np.array([item.rate_least_rps for item in self.workloads], dtype=np.float64)

    @cached_property
    def unserved_usd(self) -> Floats:
        return np.array([item.unserved_usd for item in self.workloads], dtype=np.float64)

    @cached_property
    def weight(self) -> Floats:
        """Of each workload, what it counts for beside the others."""
        return np.array([max(1, item.priority) for item in self.workloads], dtype=np.float64)

    @cached_property
    def launch_s(self) -> Floats:
        """Of each workload, by the network that takes longest."""
        found = np.zeros(len(self.workloads))
        np.maximum.at(found, self.variant_workload, [item.launch_s for item in self.variants])
        return found

    @cached_property
    def must_serve(self) -> Flags:
        """Of which workloads nothing may be missing, as far as it can be had."""
        return np.array([not item.may_wait for item in self.workloads], dtype=np.bool_)

    @cached_property
    def dedicated(self) -> Flags:
        """Of which variants a replica is never beside another, not even while one replaces the other."""
        return np.array([self.workloads[item.workload].dedicated for item in self.variants], dtype=np.bool_)

    @cached_property
    def floors(self) -> Floors:
        return Floors.of(self)

    @cached_property
    def pool_devices(self) -> Whole:
        return np.array([item.devices for item in self.pools], dtype=np.int64)

    @property
    def kinds(self) -> int:
        return len(self.kind_pool)

    @cached_property
    def foes(self) -> tuple[tuple[int, ...], ...]:
        """By workload, which others may not stand beside it, whichever of the two said so."""
        found = [set(item.avoids) for item in self.workloads]
        for number, item in enumerate(self.workloads):
            for other in item.avoids:
                found[other].add(number)
        return tuple(tuple(sorted(items)) for items in found)

    @cached_property
    def members_max(self) -> int:
        """Most members that any pattern of shares on the grid can have."""
        least = max(1, int(self.shares_pct[0]))
        return max(1, min(WHOLE_PCT // least, max((pool.clients for pool in self.pools), default=1)))

    @cached_property
    def patterns_most(self) -> int:
        steps, variants = WHOLE_PCT // max(1, self.share_step_pct), len(self.variants)
        sizes = range(1, self.members_max + 1)
        return self.kinds * sum(comb(variants + size - 1, size) * comb(steps, size) for size in sizes)

    @cached_property
    def few_patterns(self) -> bool:
        return self.patterns_most <= LISTED_MAX

    @cached_property
    def only_whole(self) -> bool:
        """Whether no replica can do with less than a whole device."""
        return bool(self.shares_pct[-1] == WHOLE_PCT and not np.isfinite(self.mean_ms[:, :, :-1]).any())

    def like(self, pool: int, clock_mhz: int) -> list[int]:
        """Kinds of a pool at a clock; the last one is for all variants."""
        same = (self.kind_pool == pool) & (self.kind_clock_mhz == clock_mhz)
        return [int(kind) for kind in np.flatnonzero(same)]

    def clocks_mhz(self, pool: int) -> list[int]:
        """Of its kinds, rising."""
        return [int(clock) for clock in np.unique(self.kind_clock_mhz[self.kind_pool == pool])]

    def of_variants(self, chosen: Whole) -> JointProblem:
        """With some of the variants only; workloads and pools as they are."""
        mean_ms = self.mean_ms.take(chosen, axis=1)
        return replace(
            self,
            variants=tuple(self.variants[number] for number in chosen.tolist()),
            mean_ms=mean_ms,
            tail_ms=mean_ms if self.tail_ms is self.mean_ms else self.tail_ms.take(chosen, axis=1),
            power_w=self.power_w.take(chosen, axis=1),
            memory_mib=self.memory_mib.take(chosen, axis=1),
            pressure=self.pressure.take(chosen, axis=1),
            exponent=self.exponent.take(chosen, axis=1),
            sensitivity=self.sensitivity.take(chosen, axis=1),
            crowd=self.crowd.take(chosen, axis=1),
            billed_mib=None if self.billed_mib is None else self.billed_mib.take(chosen, axis=1),
            allowed=self.allowed.take(chosen, axis=1),
        )

    @cached_property
    def press(self) -> Floats:
        """Table x variant x whole percent of the device: how much a replica presses on the others."""
        percent = np.arange(WHOLE_PCT + 1) / WHOLE_PCT
        return np.asarray(self.pressure[:, :, None] * percent ** self.exponent[:, :, None])

    @cached_property
    def idle_usd(self) -> Floats:
        """By pool what a device costs before it does anything, $/h."""
        usd = (0.0 if self.by_replica else item.usd_per_h + self.usd_per_wh * item.idle_w for item in self.pools)
        return np.array([*usd], dtype=np.float64)

    @property
    def dearest_usd(self) -> float:
        """What a device more costs at most, $/h; where memory is billed, all of one."""
        return float((self.pool_usd if self.by_memory else self.idle_usd).max(initial=0.0))

    @cached_property
    def fingerprint(self) -> str:
        """Of everything that contents may be and are worth at given prices, rates and numbers of devices aside."""
        works = (replace(work, rate_rps=0.0, rate_least_rps=0.0, unserved_usd=0.0) for work in self.workloads)
        pools = (replace(pool, devices=min(pool.devices, 1)) for pool in self.pools)
        parts = [getattr(self, item.name) for item in fields(self) if item.name not in ("workloads", "pools", "caps")]
        found = blake2b(repr((tuple(works), tuple(pools))).encode(), digest_size=16)
        for part in parts:
            found.update(np.ascontiguousarray(part).tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
        return found.hexdigest()

    @property
    def by_replica(self) -> bool:
        """Whether cost is what replicas hold, so that neither devices nor energy cost anything themselves."""
        return self.by_share or self.by_memory

    @property
    def coupled(self) -> bool:
        """Whether more limits devices together than how many there are, or a device is less than its pool says."""
        works = any(item.domains_min > 1 for item in self.workloads)
        return self.limited or works or any(pool.rest or pool.capped for pool in self.pools)

    @property
    def limited(self) -> bool:
        """Whether caps, quotas or budgets limit several devices together."""
        return bool(self.caps or self.quotas) or any(np.isfinite(item.budget_usd_per_h) for item in self.workloads)

    @property
    def counts_watts(self) -> bool:
        """Whether it matters what devices draw."""
        return bool(self.caps) or (self.usd_per_wh > 0 and not self.by_replica)

    @cached_property
    def pool_usd(self) -> Floats:
        """Price of a device of each pool, $/h."""
        return np.array([item.usd_per_h for item in self.pools], dtype=np.float64)

    @cached_property
    def budget_usd(self) -> Floats:
        """The same as budgets count it by share: without interruptions."""
        return np.array([max(0.0, item.usd_per_h - item.interruptions_usd_per_h) for item in self.pools])

    @cached_property
    def _pool_mib(self) -> Floats:
        return np.array([item.memory_mib_whole for item in self.pools], dtype=np.float64)

    @cached_property
    def kind_usd(self) -> Floats:
        """kind x variant where memory is billed, $/h: first of a replica that has not the whole share, then with it."""
        if self.billed_mib is None:
            able = np.isfinite(self.mean_ms).any(axis=2) & np.isfinite(self.memory_mib)
            billed = np.where(able, self.memory_mib, 0.0).max(axis=2, initial=0.0)
        else:
            billed = self.billed_mib
        part = billed[self.kind_table] / self._pool_mib[self.kind_pool][:, None]
        sliced = np.array([item.sliced for item in self.pools], dtype=np.bool_)[self.kind_pool]
        alone = np.where(sliced[:, None] & ~self.dedicated, part, 1.0)
        return np.asarray(self.pool_usd[self.kind_pool][:, None] * np.minimum([part, alone], 1.0))

    def held_usd(self, kind: Whole | int, variant: Whole | int, share_pct: Whole | int) -> Floats:
        """$/h of replicas where cost is what they hold: on devices of these kinds, of these variants (-1: none), with
        these shares. Arrays of one shape, or such as fit each other.
        """
        usd, share, someone = self.pool_usd[self.kind_pool[kind]], np.asarray(share_pct), np.asarray(variant) >= 0
        if self.by_share:
            return np.asarray(np.where(someone, usd * share / WHOLE_PCT, 0.0))
        own_usd = self.kind_usd[(share >= WHOLE_PCT).astype(np.int64), kind, np.maximum(variant, 0)]
        return np.asarray(np.where(someone, own_usd, 0.0))

    @cached_property
    def network(self) -> Whole:
        """By variant: the first one that is the same network of the same workload, perhaps with other batches."""
        first: dict[tuple[int, ModelName], int] = {}
        named = (first.setdefault((item.workload, item.model), number) for number, item in enumerate(self.variants))
        return np.array(list(named), dtype=np.int64)

    @cached_property
    def _by_network(self) -> dict[tuple[WorkloadId, ModelName], list[int]]:
        found: dict[tuple[WorkloadId, ModelName], list[int]] = {}
        for number, item in enumerate(self.variants):
            found.setdefault((self.workloads[item.workload].id, item.model), []).append(number)
        return found

    def variant_of(self, workload: WorkloadId, model: ModelName, batch: int) -> int | None:
        """Which variant a replica is: the one of the smallest batches that has this one; None for a network that may
        not serve.
        """
        listed = self._by_network.get((workload, model), [])
        return next((each for each in listed if batch <= self.variants[each].batch_max), listed[-1] if listed else None)

    def networks(self, variants: Sequence[int]) -> tuple[int, ...]:
        """Of these variants: a replica goes on as another variant of its network."""
        return tuple(int(self.network[item]) for item in variants)
