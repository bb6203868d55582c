"""How much dearer than the best a plan can be: a bound for whatever plan, whoever made it.

Any prices of what is asked for prove a bound: what a plan serves at these prices, less what the best contents of every
device could be worth above what they cost. So prices of an earlier solve prove something of today's problem, and
nobody needs to have solved it: where none are known, those of the cheapest single replica do. The problem here leaves
out what would make it narrower than the truth: who stands beside pinned replicas may move, and what is left of a device
is open to all who fit, at no price where it is paid for already, pressed by nobody.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Plan
from solvers.engines.deadline import Deadline
from solvers.models.worth import cost_by_device
from solvers.planners.base import PlanRequest
from solvers.planners.joint.reading.loosened import Loosened, loosened
from solvers.planners.joint.solve.bound import CellTables, lagrangian, proven_at
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import ItemPrices, Rows
from solvers.planners.joint.solve.nodes import Priced
from solvers.problems.patterns import Prices

DUST = 1e-6
UNTIL_PART = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Multipliers:
    """Duals, and by pool what no pattern is worth above its device's price at them."""

    duals: Floats
    worth: Floats


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What is proven of one problem: by prices, and by those of single replicas."""

    problem: Loosened
    rows: Rows
    proofs: tuple[Multipliers, ...]

    @staticmethod
    def of(problem: Loosened, prices: Prices | None, deadline: Deadline) -> Certificate:
        """With what these prices prove beside those of single replicas."""
        rows, judge = Rows(problem.problem), Judge(problem.problem)
        glance = _Glance(problem=problem, judge=judge, rows=rows, cells=CellTables(problem.problem, judge, rows))
        proofs = [glance.proof(glance.duals())] if problem.problem.workloads and problem.problem.kinds else []
        if prices is not None and proofs:
            duals = rows.duals(prices)
            found, worth = glance.proof(duals), prices.worth_usd
            if worth is None and not deadline.over:
                worth = proven_at(rows, judge, duals, deadline, UNTIL_PART)
            tight = found if worth is None else replace(found, worth=np.minimum(found.worth, worth))
            proofs.insert(0, tight)
        return Certificate(problem=problem, rows=rows, proofs=tuple(proofs))

    def bound(self, plan: Plan) -> float:
        """On the cost of serving what this plan serves, $/h; never above what it costs."""
        least = self._served(plan)
        picture, settings = self.problem.snapshot, {item.device: item for item in plan.settings}
        pinned = {item.replica for item in self.problem.pinned}
        outside = tuple(item for item in plan.assignments if item.replica in pinned)
        outside_usd = sum(cost_by_device(picture, self.problem.fleet, outside, settings).values())
        cost = plan.objective.cost_usd_per_h
        values = [outside_usd + max(0.0, lagrangian(least, item.duals, item.worth)) for item in self.proofs]
        # What a plan disproves was never true of it: its own numbers are not those that the prices are about.
        return min(cost, max((value for value in values if value <= cost * (1 + DUST)), default=min(outside_usd, cost)))

    def _served(self, plan: Plan) -> Rows:
        """The rows, asking for no more than the plan gives."""
        problem = self.problem.problem
        served: dict[WorkloadId, float] = defaultdict(float)
        replicas: Counter[WorkloadId] = Counter()
        for item in plan.assignments:
            served[item.workload] += item.capacity_rps
            replicas[item.workload] += 1
        least, found = copy(self.rows), self.rows.lower.copy()
        for number, work in enumerate(problem.workloads):
            part = served[work.id] / work.rate_rps if replicas[work.id] else 0.0
            found[number] = min(found[number], part)
            if (row := int(self.rows.fewest[number])) >= 0:
                found[row] = min(found[row], replicas[work.id])
        least.lower = found
        return least


def certified(request: PlanRequest, plan: Plan) -> Plan:
    """A plan with what single replicas prove of it, where its planner proves nothing."""
    if plan.bound_usd_per_h is not None:
        return plan
    found = Certificate.of(loosened(request.snapshot, request.movable), None, Deadline(0.0))
    return replace(plan, bound_usd_per_h=found.bound(plan))


@dataclass(frozen=True, kw_only=True)
class _Glance:
    """What can be said of devices without looking at contents: no contents are worth more than the best replica alone,
    nor than all of the share at the best replica's worth for its share.
    """

    problem: Loosened
    judge: Judge
    rows: Rows
    cells: CellTables

    def duals(self) -> Floats:
        """So low that no replica is worth more than the part of a device that it takes."""
        problem, rows = self.problem.problem, self.rows
        works = len(problem.workloads)
        usd, each = problem.unserved_usd.copy(), np.full(works, np.inf)
        prices = replace(rows.item_prices(np.zeros(rows.count)), pi=np.ones(works))
        priced = Priced(problem, self.judge, rows, prices)
        for kind in self._open_kinds():
            cells = self.cells.of_kind(kind)
            pool = int(problem.kind_pool[kind])
            if not len(cells) or self.problem.paid[pool]:
                continue
            taken = priced.costs(cells, kind) + problem.idle_usd_per_h(pool) * cells.share_pct / 100
            served = priced.worth(cells, np.full(len(cells), -1.0), np.zeros(len(cells)))
            able = served > 0
            np.minimum.at(usd, cells.work[able], taken[able] / served[able])
            np.minimum.at(each, cells.work[able], taken[able])
        found = np.zeros(rows.count)
        found[:works] = np.where(rows.wanted, usd, 0.0)
        floor, each = np.where(rows.fewest >= 0, rows.lower[rows.fewest], 0.0), np.where(np.isfinite(each), each, 0.0)
        many = floor * each > found[:works]
        found[:works][many] = 0.0
        found[rows.fewest[many]] = each[many]
        return found

    def proof(self, duals: Floats) -> Multipliers:
        """What these duals prove at a glance."""
        problem, rows = self.problem.problem, self.rows
        prices: ItemPrices = rows.item_prices(duals)
        priced = Priced(problem, self.judge, rows, prices)
        worth = np.full(len(problem.pools), -np.inf)
        for kind in self._open_kinds():
            cells = self.cells.of_kind(kind)
            if not len(cells):
                continue
            pool = int(problem.kind_pool[kind])
            costs, room = priced.costs(cells, kind), self.problem.room_pct[pool]
            fits = cells.share_pct <= room
            single = np.where(fits, priced.worth(cells, np.full(len(cells), -1.0), costs), 0.0)
            beside = np.where(fits, priced.crowded(cells, costs), 0.0)
            clients = problem.pools[pool].clients
            most = min(clients * float(beside.max()), room * float((beside / cells.share_pct).max()))
            worth[pool] = max(worth[pool], float(single.max()), most)
        worth = np.where(np.isfinite(worth), worth - prices.fixed, 0.0)
        return Multipliers(duals=duals, worth=np.maximum(worth, -np.abs(prices.fixed)))

    def _open_kinds(self) -> list[int]:
        return np.flatnonzero(self.problem.problem.pool_devices[self.problem.problem.kind_pool]).tolist()
