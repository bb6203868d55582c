"""The devices behind a problem's pools, and a seating of them in the making.

The named side of a joint problem as numbers: device `n` of the floor, pools in a row, each device with what stands on
it in the problem's terms and the watts that its power domains leave above idle. `Seats` are the books of what each
device is to carry: what power is left, what is served, and what a move, new contents for one device, would change.
Every step of seating weighs its moves here: `loss_usd` says what a move leaves unserved in dollars, `accepts` whether
power, memory, the other workloads' rates, budgets and quotas bear a move that gives one workload more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.domain.device import DeviceMode, PowerScope
from solvers.domain.grouping import grouped
from solvers.domain.ids import DeviceId
from solvers.domain.snapshot import Snapshot
from solvers.engines.deadline import Deadline
from solvers.planners.joint.reading.formulation import Reading
from solvers.planners.joint.solve.judge import Judge, Member
from solvers.problems.fleet import Fleet, under
from solvers.problems.joint import WHOLE_PCT, Cap, JointProblem, Pool
from solvers.problems.patterns import Pattern

NO_DOMAIN = -1
PARTS_MAX = 64
"""With more of them one device more is little."""
_SCOPES = (PowerScope.NODE, PowerScope.RACK, PowerScope.CLUSTER)
"""A cap on one device is its power limit, which pools know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A standing replica of a workload that may move."""

    variant: int
    share_pct: int
    memory_mib: int
    launch_s: float
    capacity_rps: float
    """As it was planned."""
    alone: bool = False
    """Nothing starts beside it: its device shares nothing, or in another way."""


@dataclass(frozen=True, kw_only=True)
class Floor:
    """All devices of all pools, numbered pool by pool in the order of their ids."""

    problem: JointProblem
    names: tuple[DeviceId, ...]
    pool_of: Whole
    held: Mapping[int, tuple[Held, ...]]
    """What stands, ordered by (variant, share); devices where nothing stands are left out."""
    domain_of: Whole
    """Device x scope: number of the power domain, or NO_DOMAIN."""
    room_w: Floats
    """Of each power domain: what the pools' devices in it may draw above their idle power."""

    @cached_property
    def judge(self) -> Judge:
        """For judging many patterns at once."""
        return Judge(self.problem)

    @cached_property
    def parts(self) -> Parts:
        """Pools that end at power domains."""
        return Parts(self)

    @property
    def parts_few(self) -> bool:
        """Whether there are any, and no more than can be exchanged in."""
        return len(self.problem.pools) < len(self.parts.pool) <= PARTS_MAX

    @cached_property
    def domains(self) -> list[tuple[int, ...]]:
        """By device, the power domains that it is in."""
        return [tuple(number for number in row if number != NO_DOMAIN) for row in self.domain_of.tolist()]

    def least_alone(self, workload: int) -> tuple[float, float]:
        """$/h and GPUs of the smallest replica that a workload could have anywhere; infinite where it has none."""
        problem, rows = self.problem, self.judge.alone_of(workload).rows
        each = np.array([problem.budget_usd, [pool.gpu_part for pool in problem.pools]])
        usd, gpus = (each[:, problem.kind_pool[rows.kind]] * rows.shares_pct[:, 0] / 100).min(axis=1, initial=np.inf)
        return float(usd), float(gpus)

    def devices(self, pool: int) -> range:
        return range(*np.searchsorted(self.pool_of, [pool, pool + 1]).tolist())

    def dynamic_w(self, pattern: Pattern | None) -> float:
        """What a device with this pattern draws above idle."""
        idle_w, pool_of = self.judge.idle_w, self.problem.kind_pool
        return 0.0 if pattern is None else pattern.draw_w - float(idle_w[pool_of[pattern.kind]])


class Parts:
    """The pools of a floor in parts, numbered by pool, and then by what power domains they are in: a problem in which
    every node has a cap of its own. A layout knows power as sums over like nodes, which bear together what no parting
    of boards may bring under the cap of each. Here every pool lies in one domain of each scope, so whoever exchanges
    devices keeps them all.
    """

    def __init__(self, floor: Floor) -> None:
        found, of = np.unique(np.column_stack([floor.pool_of, floor.domain_of]), axis=0, return_inverse=True)
        # By part, whose part it is; and by device its part.
        self.pool, self.of = tuple(found[:, 0].tolist()), np.asarray(of).ravel()
        self._floor, self._whole, pool_of = floor, floor.problem, floor.problem.kind_pool.tolist()
        kinds = grouped(range(len(pool_of)), pool_of.__getitem__)
        self.kinds = [(part, kind) for part, pool in enumerate(self.pool) for kind in kinds[pool]]
        """By kind of the parts' problem: part, and kind of the whole one."""
        self._number = {kind: number for number, kind in enumerate(self.kinds)}

    @cached_property
    def problem(self) -> JointProblem:
        """With a cap for every power domain, in which idle power is counted as problems do."""
        whole, pool, kinds = self._whole, np.array(self.pool, dtype=np.int64), [kind for _, kind in self.kinds]
        idle_w, room_w = np.array([item.idle_w for item in whole.pools])[pool], self._floor.room_w.tolist()
        inside = [self._devices((self._floor.domain_of == domain).any(axis=1)) for domain in range(len(room_w))]
        caps = (
            Cap(name=str(domain), limit_w=room_w + float(count @ idle_w), devices=tuple(count.tolist()))
            for domain, (room_w, count) in enumerate(zip(room_w, inside, strict=True))
        )
        return replace(
            whole,
            pools=self._pools(np.ones(len(self.of), dtype=np.bool_)),
            kind_pool=np.array([part for part, _ in self.kinds], dtype=np.int64),
            kind_clock_mhz=whole.kind_clock_mhz[kinds],
            kind_table=whole.kind_table[kinds],
            allowed=whole.allowed[pool],
            caps=tuple(caps),
        )

    def of_some(self, some: Flags) -> JointProblem:
        """With these devices alone."""
        return replace(self.problem, pools=self._pools(some))

    def _devices(self, some: Flags) -> Whole:
        """By part how many of these devices are in it."""
        return np.bincount(self.of[some], minlength=len(self.pool))

    def _pools(self, some: Flags) -> tuple[Pool, ...]:
        counts = enumerate(zip(self.pool, self._devices(some).tolist(), strict=True))
        return tuple(replace(self._whole.pools[at], name=f"{part}", devices=count) for part, (at, count) in counts)

    def inside(self, device: int, pattern: Pattern) -> Pattern:
        """What stands on a device as a content of its part."""
        return replace(pattern, kind=self._number[int(self.of[device]), pattern.kind])

    def outside(self, pattern: Pattern) -> tuple[int, Pattern]:
        """Its part, and what it is in the whole problem."""
        part, kind = self.kinds[pattern.kind]
        return part, replace(pattern, kind=kind)


def floor_of(reading: Reading) -> Floor:
    problem, pools = reading.problem, reading.pool_devices
    names = tuple(name for pool in pools for name in pool)
    number = {name: index for index, name in enumerate(names)}
    held: dict[int, tuple[Held, ...]] = {}
    modes = {item.device: item.mode for item in reading.snapshot.target.settings}
    for device, stands in reading.standing.items():
        found = [
            Held(
                variant=int(problem.network[item.variant]),
                share_pct=item.assignment.share_pct_sm,
                memory_mib=item.assignment.memory_mib_limit,
                launch_s=problem.variants[item.variant].launch_s,
                capacity_rps=item.assignment.capacity_rps,
                alone=modes.get(device, DeviceMode.MPS) is not DeviceMode.MPS,
            )
            for item in stands
            if item.variant is not None
        ]
        if found:
            held[number[device]] = tuple(sorted(found, key=lambda one: (one.variant, one.share_pct, one.memory_mib)))
    domain_of, room_w = _domains(reading.snapshot, reading.fleet, number)
    pool_of, held = np.repeat(np.arange(len(pools)), [*map(len, pools)]), dict(sorted(held.items()))
    return Floor(problem=problem, names=names, pool_of=pool_of, held=held, domain_of=domain_of, room_w=room_w)


def _domains(snapshot: Snapshot, fleet: Fleet, number: Mapping[DeviceId, int]) -> tuple[Whole, Floats]:
    caps, inside = [cap for cap in snapshot.power_caps if cap.scope in _SCOPES], under(snapshot, fleet.devices)
    room_w = np.array([cap.limit_w for cap in caps], dtype=np.float64)
    domain_of = np.full((len(number), len(_SCOPES)), NO_DOMAIN, dtype=np.int64)
    drawn_w = np.minimum(fleet.limit_w, fleet.idle_w + fleet.dynamic_w)
    for domain, cap in enumerate(caps):
        for index in inside[cap.scope, cap.subject].tolist():
            room_w[domain] -= drawn_w[index]
            if fleet.devices[index].id in number:
                domain_of[number[fleet.devices[index].id], _SCOPES.index(cap.scope)] = domain
    return domain_of, room_w


DUST = 1e-6
DUST_W = 1e-6
DUST_USD = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What seating is bound to beside the floor: time, and how far jobs may grow."""

    deadline: Deadline
    job_most_pct: Mapping[int, int]
    """By workload, the share that each job may grow to."""
    job_left_s: Mapping[int, float] = field(default_factory=dict)
    """What each has still to do, in seconds of a whole GPU of its reference type."""
    jobs_first: bool = False
    """Whether how fast jobs run counts before what devices cost."""
    capacity: bool = False
    """Whether more is served than is asked for."""
    spare: Deadline | None = None
    """What exchanging devices may take, where not all nodes bear their part; None: nobody exchanges any."""
    known_usd: float = math.inf
    """$/h of a seating that is known already: nothing is exchanged for one that is no better."""
    chance: int = 0
    """By which devices are exchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """New contents for a device; None leaves it empty."""

    device: int
    after: Pattern | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turnover:
    """What would start on a device, and which of its standing replicas would end."""

    starts: tuple[Member, ...]
    ends: tuple[Held, ...]


@dataclass(slots=True)
class Delta:
    """What a move adds to a workload."""

    rps: float = 0.0
    replicas: int = 0
    share_pct: int = 0


class Seats:
    """Mutable books of one seating; at first no device carries anything."""

    def __init__(self, floor: Floor) -> None:
        workloads = len(floor.problem.workloads)
        self.floor = floor
        self.patterns: list[Pattern | None] = [None] * len(floor.names)
        # Of each power domain; below 0 where it is exceeded.
        self.left_w = floor.room_w.copy()
        # Of each workload, at last by the pools that it has shares of.
        self.served_rps, self.replicas = np.zeros(workloads), [0] * workloads
        self.held_pct: Whole = np.zeros((workloads, len(floor.problem.pools)), dtype=np.int64)
        # By device, replicas that go on there until they are replaced elsewhere.
        self.kept: Mapping[int, Sequence[Held]] = {}

    def put(self, device: int, pattern: Pattern | None) -> None:
        more_w, pool = self.floor.dynamic_w(pattern) - self.dynamic_w(device), int(self.floor.pool_of[device])
        for domain in self.floor.domains[device]:
            self.left_w[domain] -= more_w
        for workload, delta in self.change(Move(device=device, after=pattern)).items():
            self.served_rps[workload] += delta.rps
            self.replicas[workload] += delta.replicas
            self.held_pct[workload, pool] += delta.share_pct
        self.patterns[device] = pattern

    def dynamic_w(self, device: int) -> float:
        """What a device draws above idle."""
        return self.floor.dynamic_w(self.patterns[device])

    def left_at(self, device: int) -> float:
        """What a device's power domains leave."""
        return min((float(self.left_w[domain]) for domain in self.floor.domains[device]), default=math.inf)

    def lefts_at(self, devices: Whole) -> Floats:
        return np.asarray(np.append(self.left_w, np.inf)[self.floor.domain_of[devices]].min(axis=1))

    def spare_pct(self, device: int) -> int:
        """Share of a device that is not planned."""
        return WHOLE_PCT - sum(share for _, share in members_of(self.patterns[device]))

    def short_rps(self, workload: int) -> float:
        """What of a workload's rate is left unserved."""
        least = self.floor.problem.workloads[workload].rate_least_rps
        short = least - float(self.served_rps[workload])
        return short if short > DUST * max(1.0, least) else 0.0

    def missing(self, workload: int) -> int:
        """Replicas missing below the owner's floor."""
        return max(0, self.floor.problem.workloads[workload].replicas_min - self.replicas[workload])

    def unserved(self) -> float:
        """As objectives count it."""
        works = enumerate(self.floor.problem.workloads)
        return sum((max(1, work.priority) * (self.short_rps(at) + self.missing(at)) for at, work in works), start=0.0)

    def turnover(self, device: int, pattern: Pattern | None) -> Turnover:
        """If it is to carry this; a replica goes on as another variant of its network."""
        going, starts, network = list(self.floor.held.get(device, ())), list[Member](), self.floor.problem.network
        for member in members_of(pattern):
            key = network[member[0]], member[1]
            same = next((item for item in going if (item.variant, item.share_pct) == key), None)
            if same is None:
                starts.append(member)
            else:
                going.remove(same)
        return Turnover(starts=tuple(starts), ends=tuple(going))

    def ended(self, device: int, pattern: Pattern | None) -> tuple[Held, ...]:
        """Standing replicas that end there before their replacements are ready if it is to carry this."""
        going, problem = () if pattern is None else self.turnover(device, pattern).ends, self.floor.problem
        if pattern is None or not going:
            return ()
        pool, its = problem.pools[int(self.floor.pool_of[device])], list(pattern.variants)
        memory_mib = sum(pattern.memory_mib) + sum(item.memory_mib for item in going)
        alone = pool.clients == 1 or any(item.alone for item in going) or problem.dedicated[its].any()
        return going if alone or memory_mib > pool.memory_mib else ()

    def change(self, move: Move) -> dict[int, Delta]:
        """What a move adds to each workload that it touches."""
        of = self.floor.problem.variants
        found: dict[int, Delta] = {}
        for pattern, sign in ((self.patterns[move.device], -1), (move.after, 1)):
            rates_rps = () if pattern is None else pattern.capacity_rps
            for (variant, share), rate_rps in zip(members_of(pattern), rates_rps, strict=True):
                delta = found.setdefault(of[variant].workload, Delta())
                delta.rps += sign * rate_rps
                delta.replicas += sign
                delta.share_pct += sign * share
        return found

    def loss_usd(self, move: Move) -> float:
        """$/h that a move counts in demand and replicas that it leaves unserved; below 0 for a gain."""
        changed = self.change(move).items()
        return sum((self._lack_usd(at, delta) - self._lack_usd(at, Delta()) for at, delta in changed), start=0.0)

    def _lack_usd(self, workload: int, more: Delta) -> float:
        """$/h that counts what a workload still lacks with so much more."""
        work = self.floor.problem.workloads[workload]
        asked, missing = work.rate_counted_rps, work.replicas_min - self.replicas[workload] - more.replicas
        short = asked - float(self.served_rps[workload]) - more.rps
        part = short / asked if short > DUST * max(1.0, asked) else 0.0
        return work.unserved_usd * (part + max(0, missing) / max(1, work.replicas_min))

    def accepts(self, move: Move, workload: int) -> bool:
        """Whether everything bears a move that gives this workload more, and no other one misses what it needs."""
        bears = self.powers(move) and self._remembers(move) and self.affords(move, workload)
        return bears and not self.lowers(move, self.floor.problem.least_rps, workload)

    def powers(self, move: Move) -> bool:
        """Whether the power domains bear it."""
        return self.floor.dynamic_w(move.after) - self.dynamic_w(move.device) <= self.left_at(move.device) + DUST_W

    def _remembers(self, move: Move) -> bool:
        """Whether it leaves the memory that is kept on the device."""
        kept_mib = float(sum(item.memory_mib for item in self.kept.get(move.device, ())))
        room_mib = self.floor.problem.pools[int(self.floor.pool_of[move.device])].memory_mib
        return not kept_mib or move.after is None or kept_mib + sum(move.after.memory_mib) <= room_mib

    def lowers(self, move: Move, floors_rps: Floats, but: int = -1) -> bool:
        """Whether any workload but this one loses by it and then has less than its floor."""
        return any(
            delta.rps < 0 and number != but and self.served_rps[number] + delta.rps < floors_rps[number] * (1 - DUST)
            for number, delta in self.change(move).items()
        )

    def affords(self, move: Move, workload: int) -> bool:
        """Whether the workload's bound on replicas, its budget and its project's quota bear it."""
        problem, pool = self.floor.problem, int(self.floor.pool_of[move.device])
        delta, work = self.change(move).get(workload, Delta()), problem.workloads[workload]
        quota, gpus = dict(problem.quotas).get(work.project), gpus_of(problem, pool, delta)
        return (
            self.replicas[workload] + delta.replicas <= work.replicas_max
            and self.spent_usd(workload) + usd_of(problem, pool, delta) <= work.budget_usd_per_h + DUST_USD
            and (quota is None or gpus <= 0 or self.gpus(work.project) + gpus <= quota + DUST)
        )

    def spent_usd(self, workload: int) -> float:
        """What a workload's replicas cost by share, as budgets count."""
        return float(self.held_pct[workload] @ self.floor.problem.budget_usd) / WHOLE_PCT

    def gpus(self, project: str) -> float:
        """What a project has of whole GPUs, as quotas count."""
        problem = self.floor.problem
        mine = [number for number, work in enumerate(problem.workloads) if work.project == project]
        return float((self.held_pct[mine] @ [pool.gpu_part for pool in problem.pools]).sum()) / WHOLE_PCT

    def worth(self, launch_usd_per_s: float, restart_part: float) -> float:
        """$/h of all devices, of what is left unserved, and of what must start: each launch by its seconds, and a part
        of what the replica itself costs.
        """
        problem, total = self.floor.problem, 0.0
        for device, pattern in enumerate(self.patterns):
            if pattern is None:
                continue
            total += pattern.usd_per_h
            for variant, share in self.turnover(device, pattern).starts:
                total += launch_usd_per_s * problem.variants[variant].launch_s
                total += restart_part * pattern.usd_per_h * share / sum(pattern.shares_pct)
        return total + sum(self._lack_usd(number, Delta()) for number in range(len(problem.workloads)))


def usd_of(problem: JointProblem, pool: int, delta: Delta) -> float:
    """What share on devices of a pool costs, as budgets count."""
    return float(problem.budget_usd[pool]) * delta.share_pct / WHOLE_PCT


def gpus_of(problem: JointProblem, pool: int, delta: Delta) -> float:
    """What it is of whole GPUs, as quotas count."""
    return problem.pools[pool].gpu_part * delta.share_pct / WHOLE_PCT


def members_of(pattern: Pattern | None) -> list[Member]:
    """Variants of a device with their shares."""
    return [] if pattern is None else list(zip(pattern.variants, pattern.shares_pct, strict=True))


def without(members: Sequence[Member], place: int) -> list[Member]:
    return [*members[:place], *members[place + 1 :]]
