"""The elastic programme: what is short gets served, and as few rules as possible give way, by as little as possible.

An integer programme over single replicas on free devices: what each short workload still asks for must be served; GPUs,
caps, quotas, budgets, numbers of replicas and allowed types may give where that is permitted, each for a charge and by
its amount. What is planned does not move, and reaching a limit is no answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.domain.evidence import Resource
from solvers.domain.ids import GpuTypeName, ProjectName, WorkloadId
from solvers.engines.base import EngineStatus, Limits, ProgrammeRows, create
from solvers.planners.joint.explain.room import NEW_MAX, Cell, Room
from solvers.planners.joint.solve.judge import Judge, Patterns

CHARGE = 1000.0
"""For each thing that gives at all, beside its amount."""
WATT_WEIGHT = 0.01
WATTS_MAX = 1e5
COST_WEIGHT = 1e-4
DUST = 1e-6
LIMITS = Limits(time_s=2.0, work=200.0, gap=1e-6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Give:
    """What gives: of what, and for which workload where it is a rule of one."""

    resource: Resource
    subject: str
    workload: WorkloadId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Configs:
    """Single replicas of one workload alone on a device, at one latency limit."""

    pool: Whole
    share_pct: Whole
    rate_rps: Floats
    watts: Floats
    usd_per_h: Floats

    def take(self, chosen: Whole) -> Configs:
        """Some of them."""
        return Configs(
            pool=self.pool[chosen],
            share_pct=self.share_pct[chosen],
            rate_rps=self.rate_rps[chosen],
            watts=self.watts[chosen],
            usd_per_h=self.usd_per_h[chosen],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a workload that is short still asks for, and what its own rules leave."""

    workload: WorkloadId
    project: ProjectName
    rate_rps: float
    replicas: int
    configs: Configs
    allowed: frozenset[GpuTypeName]
    """Types that it may use; empty: all."""
    budget_left: float = math.inf
    replicas_left: float = math.inf


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
        self._cap_row = [self._at_most(max(0.0, cap.left_w)) for cap in room.caps]
        self._quota_row = {name: self._at_most(quota.left) for name, quota in room.quotas.items()}
        pools = room.elastic.problem.pools
        for cell, row in zip(cells, self._device_row, strict=True):
            if cell.new:
                give = Give(resource=Resource.GPU, subject=cell.gpu_type)
                self._give(give, row, 1 + pools[cell.pool].usd_per_h, NEW_MAX, integer=True)
        for cap, row in zip(room.caps, self._cap_row, strict=True):
            most = sum(pools[cell.pool].limit_w * cell.devices for cell in cells)
            self._give(Give(resource=Resource.POWER_W, subject=cap.name), row, WATT_WEIGHT, min(most, WATTS_MAX))
        for name, row in self._quota_row.items():
            self._give(Give(resource=Resource.QUOTA_GPU, subject=name), row, 1.0, NEW_MAX)

    def _at_most(self, upper: float) -> Whole:
        return self.rows.add_rows(np.array([-np.inf]), np.array([upper]))

    def _at_least(self, lower: float) -> Whole:
        return self.rows.add_rows(np.array([lower]), np.array([np.inf]))

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
        rows, own = self.rows, ask.workload
        demand = self._at_least(1.0 if ask.rate_rps > 0 else -np.inf)
        floor = self._at_least(float(ask.replicas))
        most = self._at_most(max(0.0, ask.replicas_left))
        money = self._at_most(max(0.0, ask.budget_left))
        if math.isfinite(ask.replicas_left):
            give = Give(resource=Resource.REPLICA, subject=own, workload=own)
            self._give(give, most, 1.0, NEW_MAX, integer=True)
        if math.isfinite(ask.budget_left):
            self._give(Give(resource=Resource.BUDGET_USD, subject=own, workload=own), money, 1.0, 1e4)
        closed = self._closed(ask)
        for cell, device_row in zip(self.cells, self._device_row, strict=True):
            gate, pool = closed.get(cell.gpu_type), self.room.elastic.problem.pools[cell.pool]
            here = ask.configs.take(np.flatnonzero(ask.configs.pool == cell.pool))
            if not len(here.pool) or (cell.gpu_type in closed and gate is None):
                continue
            replicas = rows.add_columns(COST_WEIGHT * here.usd_per_h, np.array([float(cell.devices)]))
            share = here.share_pct / 100
            rows.enter(device_row, replicas, 1.0)
            for cap in cell.caps:
                rows.enter(self._cap_row[cap], replicas, here.watts + cell.idle_w)
            if ask.project in self._quota_row:
                rows.enter(self._quota_row[ask.project], replicas, share * pool.gpu_part)
            if ask.rate_rps > 0:
                rows.enter(demand, replicas, here.rate_rps / ask.rate_rps)
            for row in (floor, most) if gate is None else (floor, most, gate):
                rows.enter(row, replicas, 1.0)
            rows.enter(money, replicas, share * pool.usd_per_h)

    def _closed(self, ask: Ask) -> dict[GpuTypeName, Whole | None]:
        """Types that it may not use: the row that opens each, or None where it stays shut."""
        found: dict[GpuTypeName, Whole | None] = {}
        for name in sorted({cell.gpu_type for cell in self.cells}):
            if not ask.allowed or name in ask.allowed:
                continue
            found[name] = None
            if Resource.GPU_TYPE in self.may_give:
                row = self._at_most(0.0)
                opened = self._column(CHARGE + 1, 1.0, integer=True)
                self.rows.enter(row, opened, -float(NEW_MAX))
                self.slack[Give(resource=Resource.GPU_TYPE, subject=name, workload=ask.workload)] = opened
                found[name] = row
        return found


def configs_of(judge: Judge, number: int) -> Configs:
    """Configurations of one workload worth choosing from: on each pool those that no other beats in rate, watts and
    share at once.
    """
    problem = judge.problem
    every = np.meshgrid(
        np.arange(problem.kinds),
        np.flatnonzero(problem.variant_workload == number),
        problem.shares_pct,
        indexing="ij",
    )
    kind, variant, share = (item.ravel() for item in every)
    judged = judge.judge(Patterns(kind=kind, variants=variant[:, None], shares_pct=share[:, None]))
    rate = np.where(judged.lawful, judged.capacity_rps[:, 0], 0.0)
    pool = problem.kind_pool[kind]
    watts = judged.draw_w - judge.idle_w[pool]
    keep = [
        index
        for each in range(len(problem.pools))
        for index in _pareto(np.flatnonzero((pool == each) & (rate > 0)), rate, watts, share)
    ]
    price = np.array([item.usd_per_h for item in problem.pools])
    every_one = Configs(pool=pool, share_pct=share, rate_rps=rate, watts=watts, usd_per_h=price[pool] * share / 100)
    return every_one.take(np.array(keep, dtype=np.int64))


def _pareto(rows: Whole, rate: Floats, watts: Floats, share: Whole) -> list[int]:
    """Those of some rows that no other beats in all three."""
    ordered = sorted(rows.tolist(), key=lambda row: (-rate[row], watts[row], share[row]))
    kept: list[int] = []
    for row in ordered:
        if not any(watts[other] <= watts[row] and share[other] <= share[row] for other in kept):
            kept.append(row)
    return kept
