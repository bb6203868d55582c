"""The elastic programme: what is short gets served, and as few rules as possible give way, by as little as possible.

An integer programme over single replicas on free devices: what each short workload still asks for must be served; GPUs,
caps, quotas, budgets, numbers of replicas and allowed types may give where that is permitted, each for a charge and by
its amount. What is planned does not move, and reaching a limit is no answer.

The devices come from a second picture of the fleet in which only the short workloads are left, on any GPU type, with
any latency, and with one more GPU of every type to be had; and from what the plan leaves: free devices, watts, quotas.
Room beside others on a device is not looked at: the planner has filled that already.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Whole, unbeaten
from solvers.domain.change import Target
from solvers.domain.device import OFFERED, Offer, PowerScope, is_offered
from solvers.domain.evidence import Resource
from solvers.domain.grouping import grouped, summed
from solvers.domain.ids import DeviceId, GpuTypeName, WorkloadId
from solvers.domain.plan import Plan
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import SLO_MAX, Service, SloKind
from solvers.engines.base import EngineStatus, Limits, ProgrammeRows, create
from solvers.planners.joint.reading.formulation import Reading, read
from solvers.planners.joint.solve.judge import Judge
from solvers.problems.fleet import under
from solvers.problems.needs import Need
from solvers.problems.patterns import Judged

CHARGE = 1000.0
"""For each thing that gives at all, beside its amount."""
WATT_WEIGHT = 0.01
WATTS_MAX = 1e5
COST_WEIGHT = 1e-4
DUST = 1e-6
LIMITS = Limits(time_s=20.0, work=200.0, gap=1e-6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Give:
    """What gives: of what, how much of it there is, and for which workload where it is a rule of one."""

    resource: Resource
    subject: str
    workload: WorkloadId | None = None
    now: float = 0.0
    left: float = 0.0
    """By the plan, of a power cap or a quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a workload that is short still asks for, and what its own rules leave."""

    need: Need
    rate_rps: float
    replicas: int
    configs: Judged
    """Single replicas of it alone on a device, at one latency limit."""
    budget_left: float
    replicas_left: float


def settle(
    room: Room, asks: Sequence[Ask], may_give: frozenset[Resource], extra: tuple[Cell, ...] = ()
) -> dict[Give, float] | None:
    """What has to give, and by how much, so that all are served; None when that is not enough, or was not found."""
    draft = _ElasticProgramme(room, (*room.cells, *extra), may_give)
    for ask in asks:
        draft.seat(ask)
    answer = create("highs").solve(draft.rows.program(), LIMITS)
    if answer.status not in (EngineStatus.OPTIMAL, EngineStatus.FEASIBLE) or answer.values is None:
        return None
    found = {give: float(answer.values[column].item()) for give, column in draft.slack.items()}
    return {give: amount for give, amount in sorted(found.items(), key=str) if amount > DUST}


class _ElasticProgramme:
    """Rows that all share, then columns for each workload that asks."""

    def __init__(self, room: Room, cells: tuple[Cell, ...], may_give: frozenset[Resource]) -> None:
        self.room, self.cells, self.may_give = room, cells, may_give
        self.rows = ProgrammeRows()
        self.slack: dict[Give, Whole] = {}
        self._device_row = [self._at_most(0.0 if cell.new else cell.devices) for cell in cells]
        self._cap_row = [self._at_most(max(0.0, cap.left)) for cap in room.caps]
        self._quota_row = {quota.subject: self._at_most(quota.left) for quota in room.quotas}
        pools = room.elastic.problem.pools
        for cell, row in zip(cells, self._device_row, strict=True):
            if cell.new:
                give = Give(resource=Resource.GPU, subject=cell.gpu_type, now=float(room.types[cell.gpu_type]))
                self._give(give, row, 1 + pools[cell.pool].usd_per_h, NEW_MAX, integer=True)
        for cap, row in zip(room.caps, self._cap_row, strict=True):
            most = sum(pools[cell.pool].limit_w * cell.devices for cell in cells)
            self._give(cap, row, WATT_WEIGHT, min(most, WATTS_MAX))
        for quota in room.quotas:
            self._give(quota, self._quota_row[quota.subject], 1.0, NEW_MAX)

    def _at_most(self, upper: float) -> Whole:
        return self.rows.add_rows(np.array([-np.inf]), np.array([upper]))

    def _column(self, cost: float, most: float, *, integer: bool) -> Whole:
        return self.rows.add_columns(np.array([cost]), np.array([most]), integer=integer)

    def _give(self, give: Give, row: Whole, cost: float, most: float, *, integer: bool = False) -> None:
        """A slack of a row, with a charge for being used at all."""
        if give.resource not in self.may_give:
            return
        slack, used = self._column(cost, most, integer=integer), self._column(CHARGE, 1.0, integer=True)
        self.rows.enter(row, slack, -1.0)
        link = self._at_most(0.0)
        self.rows.enter(link, slack, 1.0)
        self.rows.enter(link, used, -most)
        self.slack[give] = slack

    def seat(self, ask: Ask) -> None:
        """Columns for every configuration on every group of free devices."""
        rows, own, project = self.rows, ask.need.workload, ask.need.project
        demand = rows.add_rows(np.array([1.0 if ask.rate_rps > 0 else -np.inf]), np.array([np.inf]))
        floor = rows.add_rows(np.array([float(ask.replicas)]), np.array([np.inf]))
        most = self._at_most(max(0.0, ask.replicas_left))
        money = self._at_most(max(0.0, ask.budget_left))
        more = Give(resource=Resource.REPLICA, subject=own, workload=own, now=float(ask.need.replicas_max))
        self._give(more, most, 1.0, NEW_MAX, integer=True)
        if (budget := ask.need.budget_usd_per_h) is not None:
            self._give(Give(resource=Resource.BUDGET_USD, subject=own, workload=own, now=budget), money, 1.0, 1e4)
        closed, problem = self._closed(ask), self.room.elastic.problem
        pool_of = problem.kind_pool[ask.configs.rows.kind]
        for cell, device_row in zip(self.cells, self._device_row, strict=True):
            gate, pool = closed.get(cell.gpu_type), problem.pools[cell.pool]
            here = ask.configs.take(np.flatnonzero(pool_of == cell.pool))
            if not len(here) or (cell.gpu_type in closed and gate is None):
                continue
            share_pct = here.rows.shares_pct[:, 0]
            share, usd_per_h = share_pct / 100, pool.usd_per_h * share_pct / 100
            replicas = rows.add_columns(COST_WEIGHT * usd_per_h, np.array([float(cell.devices)]))
            rows.enter(device_row, replicas, 1.0)
            for cap in cell.caps:
                rows.enter(self._cap_row[cap], replicas, here.draw_w - pool.idle_w + cell.idle_w)
            if project in self._quota_row:
                rows.enter(self._quota_row[project], replicas, share * pool.gpu_part)
            if ask.rate_rps > 0:
                rows.enter(demand, replicas, here.capacity_rps[:, 0] / ask.rate_rps)
            for row in (floor, most) if gate is None else (floor, most, gate):
                rows.enter(row, replicas, 1.0)
            rows.enter(money, replicas, share * float(problem.budget_usd[cell.pool]))

    def _closed(self, ask: Ask) -> dict[GpuTypeName, Whole | None]:
        """Types that it may not use: the row that opens each, or None where it stays shut."""
        found: dict[GpuTypeName, Whole | None] = {}
        allowed, types = set(ask.need.gpu_types_allowed), {cell.gpu_type for cell in self.cells}
        for name in sorted(types - allowed if allowed else ()):
            found[name] = None
            if Resource.GPU_TYPE in self.may_give:
                row = self._at_most(0.0)
                opened = self._column(CHARGE + 1, 1.0, integer=True)
                self.rows.enter(row, opened, -float(NEW_MAX))
                self.slack[Give(resource=Resource.GPU_TYPE, subject=name, workload=ask.need.workload)] = opened
                found[name] = row
        return found


def configs_of(judge: Judge, number: int) -> Judged:
    """One workload's configurations: on each pool those that no other beats in rate, watts and share at once."""
    judged = judge.alone_of(number)
    judged = judged.take(judged.capacity_rps[:, 0] > 0)
    sums = np.column_stack([-judged.capacity_rps[:, 0], judged.draw_w, judged.rows.shares_pct[:, 0]])
    order, pool = np.lexsort(sums.T[::-1]), judge.problem.kind_pool[judged.rows.kind]
    each = (order[pool[order] == at] for at in np.unique(pool))
    return judged.take(np.concatenate([order[:0], *(unbeaten(sums, mine, 0.0) for mine in each)]))


NEW = "more-"
"""Beginning of the names of GPUs that are not there."""
LOOSE = 1e4
"""Times a promise: looser than any owner would ask for."""
CELLS_MAX = 32
"""Groups of like free devices; the largest ones count."""
NEW_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Free devices that are alike and under the same caps; `new`: devices that would have to be added."""

    pool: int
    gpu_type: GpuTypeName
    caps: frozenset[int]
    devices: int
    new: bool = False
    idle_w: float = 0.0
    """What one draws more than now by being there."""


class Room:
    """What a plan leaves over; workloads planned anew give back devices on which a replica of theirs is alone."""

    def __init__(self, reading: Reading, elastic: Reading, plan: Plan, anew: Iterable[WorkloadId] = ()) -> None:
        # As it is, offers standing ready; and of the short workloads alone.
        self.reading, self.elastic, self.plan, picture = reading, elastic, plan, reading.snapshot
        self._fleet = fleet = reading.fleet
        again = set(anew)
        on = Counter(item.device for item in plan.assignments)
        stays = [item for item in plan.assignments if item.workload not in again or on[item.device] > 1]
        self.held = dict(grouped(stays, lambda item: item.workload))
        # As budgets count: by share, without interruptions.
        self.spent_usd_per_h, used = defaultdict[WorkloadId, float](float), defaultdict[str, float](float)
        for item in stays:
            number = fleet.index.get(item.device)
            if number is not None:
                self.spent_usd_per_h[item.workload] += fleet.class_at(number).usd_per_h * item.share_pct_sm / 100
                used[item.workload.partition("/")[0]] += fleet.gpus(number, item.share_pct_sm)
        # Those on single devices are in its power limit.
        self._wide = [cap for cap in picture.power_caps if cap.scope is not PowerScope.DEVICE]
        inside = under(picture, fleet.devices)
        watts = summed(stays, lambda item: item.device, lambda item: item.power_w_planned)
        self._over = np.zeros((len(self._wide), len(fleet.devices)), dtype=np.bool_)
        for row, cap in enumerate(self._wide):
            self._over[row, inside[cap.scope, cap.subject]] = True
        idle = fleet.unrented & np.array([device.id not in watts for device in fleet.devices], dtype=np.bool_)
        drawn_w = np.minimum(fleet.limit_w, fleet.idle_w + [watts[device.id] for device in fleet.devices])
        left_w = [cap.limit_w for cap in self._wide] - self._over @ np.where(idle, 0.0, drawn_w)
        self.caps = tuple(
            Give(resource=Resource.POWER_W, subject=f"{cap.scope.value}/{cap.subject}", now=cap.limit_w, left=left)
            for cap, left in zip(self._wide, left_w.tolist(), strict=True)
        )
        quotas = ((item.name, item.quota_gpus) for item in picture.projects if item.quota_gpus is not None)
        self.quotas = tuple(
            Give(resource=Resource.QUOTA_GPU, subject=name, now=gpus, left=max(0.0, gpus - used[name]))
            for name, gpus in quotas
        )
        usable = (device for device, usable in zip(fleet.devices, fleet.usable, strict=True) if usable)
        self.types = Counter(device.gpu_type for device in usable)
        stands = {item.device for item in stays}
        self.cells = self.cells_of(name for pool in elastic.pool_devices for name in pool if name not in stands)

    def cells_of(self, devices: Iterable[DeviceId]) -> tuple[Cell, ...]:
        """Those devices as if they were free; what stood on them draws nothing any more, which is not counted."""
        free, known, index = set(devices), self.elastic.snapshot.devices_by_id(), self._fleet.index
        cluster = np.array([cap.scope is PowerScope.CLUSTER for cap in self._wide], dtype=np.bool_)
        count: Counter[tuple[int, frozenset[int], bool, bool]] = Counter()
        for pool, names in enumerate(self.elastic.pool_devices):
            for name in names:
                if name in free:
                    new = name.startswith(f"{OFFERED}{NEW}")
                    caps = frozenset(np.flatnonzero(cluster if new else self._over[:, index[name]]).tolist())
                    count[pool, caps, new, is_offered(known[name].node)] += 1
        pools = self.elastic.problem.pools
        ordered = sorted(count.items(), key=lambda pair: (not pair[0][2], -pair[1], pair[0][0], sorted(pair[0][1])))
        return tuple(
            Cell(
                pool=pool,
                gpu_type=pools[pool].gpu_type,
                caps=caps,
                devices=NEW_MAX if new else number,
                new=new,
                idle_w=pools[pool].idle_w if unrented else 0.0,
            )
            for (pool, caps, new, unrented), number in ordered[:CELLS_MAX]
        )


def elastic_of(picture: Snapshot, short: Sequence[WorkloadId]) -> Reading:
    """The picture in which only these workloads are left."""
    wanted: set[str] = set(short)
    known = {item.gpu_type for item in picture.profiles} | {item.gpu_type for item in picture.token_profiles}
    kind = picture.policy.price_kind
    offers = [
        Offer(
            name=f"{NEW}{item.name}"[:40].rstrip(".-_"),
            gpu_type=item.name,
            count_max=1,
            price_kind=row.kind,
            region=row.region,
        )
        for item in picture.gpu_types
        if item.name in known and (row := next((row for row in item.prices if kind in (None, row.kind)), None))
    ]
    elastic = replace(
        picture,
        services=tuple(_loosened(item) for item in picture.services if item.id in wanted),
        tasks=tuple(replace(item, gpu_types_allowed=()) for item in picture.tasks if item.id in wanted),
        jobs=(),
        power_caps=tuple(cap for cap in picture.power_caps if cap.scope is PowerScope.DEVICE),
        projects=tuple(replace(item, quota_gpus=None) for item in picture.projects),
        target=Target(),
        offers=tuple(offers),
    )
    return read(elastic, tuple(sorted(short)))


def _loosened(service: Service) -> Service:
    slo = service.slo
    if slo.kind is SloKind.LATENCY and slo.latency_ms is not None:
        slo = replace(slo, latency_ms=min(slo.latency_ms * LOOSE, SLO_MAX))
    elif slo.kind is SloKind.DEADLINE and slo.deadline_s is not None:
        slo = replace(slo, deadline_s=min(slo.deadline_s * LOOSE, SLO_MAX))
    return replace(service, slo=slo, gpu_types_allowed=(), budget_usd_per_h=None)
