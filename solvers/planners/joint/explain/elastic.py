"""The elastic programme: who is short gets served, and as few rules as possible give way, by as little as possible.

Owns one small integer programme over single replicas on free devices: what each who is short still asks for must be
served; GPUs, caps, quotas, budgets, numbers of replicas and allowed types may give where that is permitted, each for a
charge and by its amount. It refuses to move what is planned, and to call a limit an answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from solvers.domain.ids import GpuTypeName, ProjectName, WorkloadId
from solvers.domain.insight import Resource
from solvers.engines.base import EngineStatus, Limits, Program
from solvers.engines.registry import create
from solvers.planners.joint.explain.room import NEW_MAX, Cell, Room
from solvers.problems.joint import Floats, JointProblem, Whole

CHARGE = 1000.0
"""For each thing that gives at all, beside its amount."""
WATT_WEIGHT = 0.01
WATTS_MAX = 1e5
COST_WEIGHT = 1e-4
DUST = 1e-6
LIMITS = Limits(time_s=2.0, work=200.0, gap=1e-6)

Give = tuple[Resource, str, WorkloadId | None]
"""What gives: of whom, and for whom where it is a rule of one workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configs:
    """Single replicas of one workload alone on a device, at one latency limit."""

    pool: Whole
    share_pct: Whole
    rate_rps: Floats
    watts: Floats
    usd_per_h: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One who is short: what is still asked, and what his own rules leave."""

    workload: WorkloadId
    project: ProjectName
    rate_rps: float
    replicas: int
    configs: Configs
    allowed: frozenset[GpuTypeName]
    """Types that he may use; empty: all."""
    budget_left: float = math.inf
    replicas_left: float = math.inf


@dataclass(slots=True)
class _Columns:
    """A programme while it is put together."""

    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    entries: list[list[tuple[int, float]]] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)

    def row(self, lower: float, upper: float) -> int:
        """A new row."""
        self.row_lower.append(lower)
        self.row_upper.append(upper)
        return len(self.row_lower) - 1

    def column(self, cost: float, upper: float, *, integer: bool) -> int:
        """A new column without entries."""
        self.cost.append(cost)
        self.upper.append(upper)
        self.integer.append(integer)
        self.entries.append([])
        return len(self.cost) - 1

    def put(self, row: int, column: int, value: float) -> None:
        """One entry."""
        self.entries[column].append((row, value))

    def program(self) -> Program:
        """As arrays."""
        flat = [pair for column in self.entries for pair in column]
        return Program(
            cost=np.array(self.cost),
            lower=np.zeros(len(self.cost)),
            upper=np.array(self.upper),
            integer=np.array(self.integer, dtype=bool),
            start=np.cumsum([0, *(len(column) for column in self.entries)], dtype=np.int64),
            row=np.array([row for row, _ in flat], dtype=np.int64),
            value=np.array([value for _, value in flat], dtype=np.float64),
            row_lower=np.array(self.row_lower),
            row_upper=np.array(self.row_upper),
        )


def settle(
    room: Room, asks: Sequence[Ask], may_give: frozenset[Resource], extra: tuple[Cell, ...] = ()
) -> dict[Give, float] | None:
    """What has to give, and by how much, so that all are served; None when that is not enough, or nobody knows."""
    draft = _Draft(room, (*room.cells, *extra), may_give)
    for ask in asks:
        draft.seat(ask)
    answer = create("highs").solve(draft.columns.program(), LIMITS)
    if answer.status not in (EngineStatus.OPTIMAL, EngineStatus.FEASIBLE) or answer.values is None:
        return None
    found = {give: float(answer.values[column]) for give, column in draft.slack.items()}
    return {give: amount for give, amount in sorted(found.items(), key=str) if amount > DUST}


class _Draft:
    """Rows that all share, then columns for each who asks."""

    def __init__(self, room: Room, cells: tuple[Cell, ...], may_give: frozenset[Resource]) -> None:
        self.room, self.cells, self.may_give = room, cells, may_give
        self.columns = _Columns()
        self.slack: dict[Give, int] = {}
        self._device_row = [self.columns.row(-np.inf, 0.0 if cell.new else cell.devices) for cell in cells]
        self._cap_row = [self.columns.row(-np.inf, max(0.0, cap.left_w)) for cap in room.caps]
        self._quota_row = {name: self.columns.row(-np.inf, left) for name, (_, left) in room.quotas.items()}
        prices = room.elastic.problem.pools
        for cell, row in zip(cells, self._device_row, strict=True):
            if cell.new:
                worth = 1 + prices[cell.pool].usd_per_h
                self._give((Resource.GPU, cell.gpu_type, None), row, (worth, NEW_MAX), integer=True)
        for cap, row in zip(room.caps, self._cap_row, strict=True):
            most = sum(prices[cell.pool].limit_w * cell.devices for cell in cells)
            self._give((Resource.POWER_W, cap.name, None), row, (WATT_WEIGHT, min(most, WATTS_MAX)), integer=False)
        for name, row in self._quota_row.items():
            self._give((Resource.QUOTA_GPU, name, None), row, (1.0, NEW_MAX), integer=False)

    def _give(self, give: Give, row: int, terms: tuple[float, float], *, integer: bool) -> None:
        """A slack of a row, with a charge for being used at all."""
        if give[0] not in self.may_give:
            return
        cost, most = terms
        slack = self.columns.column(cost, most, integer=integer)
        used = self.columns.column(CHARGE, 1.0, integer=True)
        self.columns.put(row, slack, -1.0)
        link = self.columns.row(-np.inf, 0.0)
        self.columns.put(link, slack, 1.0)
        self.columns.put(link, used, -most)
        self.slack[give] = slack

    def seat(self, ask: Ask) -> None:
        """Columns for every configuration on every group of free devices."""
        columns = self.columns
        demand = columns.row(1.0 if ask.rate_rps > 0 else -np.inf, np.inf)
        floor = columns.row(float(ask.replicas), np.inf)
        most = columns.row(-np.inf, max(0.0, ask.replicas_left))
        money = columns.row(-np.inf, max(0.0, ask.budget_left))
        if math.isfinite(ask.replicas_left):
            self._give((Resource.REPLICA, ask.workload, ask.workload), most, (1.0, NEW_MAX), integer=True)
        if math.isfinite(ask.budget_left):
            self._give((Resource.BUDGET_USD, ask.workload, ask.workload), money, (1.0, 1e4), integer=False)
        closed = self._closed(ask)
        configs = ask.configs
        part = self.room.elastic.problem.pools
        for cell, device_row in zip(self.cells, self._device_row, strict=True):
            if closed.get(cell.gpu_type, 0) is None:
                continue
            for index in np.flatnonzero(configs.pool == cell.pool).tolist():
                replica = columns.column(COST_WEIGHT * float(configs.usd_per_h[index]), cell.devices, integer=True)
                columns.put(device_row, replica, 1.0)
                for cap in sorted(cell.caps):
                    columns.put(self._cap_row[cap], replica, float(configs.watts[index]) + cell.idle_w)
                share = float(configs.share_pct[index]) / 100
                if ask.project in self._quota_row:
                    columns.put(self._quota_row[ask.project], replica, share * part[cell.pool].gpu_part)
                if ask.rate_rps > 0:
                    columns.put(demand, replica, float(configs.rate_rps[index]) / ask.rate_rps)
                columns.put(floor, replica, 1.0)
                columns.put(most, replica, 1.0)
                columns.put(money, replica, share * part[cell.pool].usd_per_h)
                gate = closed.get(cell.gpu_type)
                if gate is not None:
                    columns.put(gate, replica, 1.0)

    def _closed(self, ask: Ask) -> dict[GpuTypeName, int | None]:
        """Types that he may not use: the row that opens each, or None where it stays shut."""
        names = sorted({cell.gpu_type for cell in self.cells})
        found: dict[GpuTypeName, int | None] = {}
        for name in names:
            if not ask.allowed or name in ask.allowed:
                continue
            found[name] = None
            if Resource.GPU_TYPE in self.may_give:
                row = self.columns.row(-np.inf, 0.0)
                opened = self.columns.column(CHARGE + 1, 1.0, integer=True)
                self.columns.put(row, opened, -float(NEW_MAX))
                self.slack[Resource.GPU_TYPE, name, ask.workload] = opened
                found[name] = row
        return found


def configs_of(problem: JointProblem, judged: Callable[[Whole], tuple[Floats, Floats]], number: int) -> Configs:
    """Configurations of one workload worth choosing from: on each pool those that no other beats in rate, watts and
    share at once. `judged`: rate and watts of every kind x variant x share of it, flat.
    """
    variants = np.flatnonzero(problem.variant_workload == number)
    rate, watts = judged(variants)
    kind, _, share = (
        item.ravel() for item in np.meshgrid(np.arange(problem.kinds), variants, problem.shares_pct, indexing="ij")
    )
    pool = problem.kind_pool[kind]
    keep = [
        index
        for each in range(len(problem.pools))
        for index in _pareto(np.flatnonzero((pool == each) & (rate > 0)), rate, watts, share)
    ]
    chosen = np.array(keep, dtype=np.int64)
    price = np.array([item.usd_per_h for item in problem.pools])
    return Configs(
        pool=pool[chosen],
        share_pct=share[chosen],
        rate_rps=rate[chosen],
        watts=watts[chosen],
        usd_per_h=price[pool[chosen]] * share[chosen] / 100,
    )


def _pareto(rows: Whole, rate: Floats, watts: Floats, share: Whole) -> list[int]:
    """Those of some rows that no other beats in all three."""
    ordered = sorted(rows.tolist(), key=lambda row: (-rate[row], watts[row], share[row]))
    kept: list[int] = []
    for row in ordered:
        if not any(watts[other] <= watts[row] and share[other] <= share[row] for other in kept):
            kept.append(row)
    return kept
