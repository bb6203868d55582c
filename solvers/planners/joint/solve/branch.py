"""Few devices: branch and price, until what is proven is near the best layout.

Where some devices are all there is, no relaxed optimum says much: it uses parts of them. A node of the tree bounds how
many devices of every pool run, and on how many of them every workload is. Those are sums over patterns, so they are
rows, and their duals are prices that the look at all contents knows: of a device, and of a replica in a pool. So every
node is relaxed and proven as the root was, nearer the less is open. The node with the least bound comes first. Pools
that differ in nothing but power and failure domains count as one here, which leaves out rules, so bounds hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from math import ceil

import numpy as np

from solvers.domain.arrays import Floats
from solvers.engines.deadline import Deadline, charge
from solvers.planners.joint.solve.alike import Alike
from solvers.planners.joint.solve.generate import Generation, Look, Pricing, units_of
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Master
from solvers.problems.joint import Floors, JointProblem
from solvers.problems.patterns import Patterns

NEAR = 0.002
"""Part of the cost: so near, a bound is near enough."""
CONVERGED = 0.1
"""Of what is open, a node's relaxed optimum may be above its bound."""
ROUNDS_MAX = 20
LOOK, LOOK_LEAST, CLOSER = 0.005, 2e-4, 4.0
"""Of what devices cost, ceilings may stay above what was found."""
REPEATS = 8
NODE_UNITS, CLOSELY = 60, 10
"""What a node may take before another has its turn, and how many times as much where its numbers are whole."""
WHOLE = 1e-5
COUNTS_APART, COUNTS_MAX, DEVICES_MAX = 40, 100, 24
"""Of devices by pool and replicas by pool and workload: more cannot be decided in seconds; of more than the first, like
pools in other failure domains are one.
"""


def few_devices(problem: JointProblem) -> bool:
    """Whether branching has a chance."""
    return bool(problem.pool_devices.sum() <= DEVICES_MAX) and _counts(_one(problem).problem) <= COUNTS_MAX


def _one(problem: JointProblem) -> Alike:
    return Alike.of(problem, by_domain=_counts(problem) <= COUNTS_APART)


def _counts(problem: JointProblem) -> int:
    return int(np.count_nonzero(problem.pool_devices)) * (1 + len(problem.workloads))


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Part of all layouts, between two sides of every row of a master."""

    lower: Floats
    upper: Floats
    bound: float = -np.inf
    totals: Floats | None = None
    """By row, what its relaxed optimum has."""
    leaf: bool = False
    """Whether nothing of that is to be decided."""


@dataclass(slots=True, kw_only=True)
class Tree:
    """One run, from a relaxed optimum."""

    search: Generation
    usd: float
    """What the best layout costs."""
    deadline: Deadline
    nodes: int = 0
    _closed_usd: float = np.inf
    """The least bound of nodes that nothing more is asked of."""
    _least: float = -np.inf
    """What was proven when a node was taken last."""
    _open: list[tuple[float, int, Node]] = field(default_factory=list)
    _turn: Iterator[int] = field(default_factory=count)
    _master: Master = field(init=False)
    _pricing: Pricing = field(init=False)
    _each_usd: Floats = field(init=False)

    def __post_init__(self) -> None:
        before = self.search.master
        alike = _one(before.problem)
        problem = alike.problem
        self._master = Master(problem, Judge(problem), floors=Floors.of(problem, counting=True))
        self._master.offer(alike.inside(before.judged.rows))
        self._pricing = Pricing(self._master.judge, self._master.rows, self._master.width)
        self._each_usd = self._replicas_usd()

    def run(self) -> float:
        """Branch until the bound is near or the time ends; what no layout costs less than."""
        master = self._master
        if (solved := master.programme.solve()) is None:
            return -np.inf
        master.tighten(solved)
        root = Node(lower=master.rows.lower, upper=master.rows.upper)
        self._keep([self._relaxed(root)])
        while not self.deadline.over and self._open and not self._close(self._open[0][0]):
            self._least, _, node = heappop(self._open)
            self._keep(self._expanded(node))
        return min([self._closed_usd, *(bound for bound, _, _ in self._open)])

    def _keep(self, nodes: list[Node]) -> None:
        for node in nodes:
            heappush(self._open, (node.bound, next(self._turn), node))

    def _expanded(self, node: Node) -> list[Node]:
        """Both halves; none where there is nothing more to say of it."""
        if known := node.leaf:
            node = replace(self._relaxed(node, closely=True), leaf=False)
        close, halves = self._close(node.bound), self._halves(node)
        if close or (known and not halves):
            self._closed_usd = min(self._closed_usd, node.bound)
            return []
        if not halves:
            self._keep([replace(node, leaf=True)])
        return [self._relaxed(half) for half in halves]

    def _close(self, bound: float) -> bool:
        return bound >= self.usd - NEAR * abs(self.usd)

    def _relaxed(self, node: Node, *, closely: bool = False) -> Node:
        """Priced until its bound is near its relaxed optimum, beside what is open or `closely`, or the best layout; a
        node that was not has its parent's bound.
        """
        master, look = self._master, LOOK
        rows, programme = master.rows, master.programme
        self.nodes += 1
        for row in (*range(rows.pool_at, rows.cap_at), *range(rows.floor_at, rows.base)):
            programme.bound_row(row, float(node.lower[row]), float(node.upper[row]))
        units, most = self.deadline.units_until(0.0), NODE_UNITS * (CLOSELY if closely else 1)
        deadline = Deadline(self.deadline.time_left_s, ceil(units if self.nodes == 1 else min(units, most)))
        for turn in range(ROUNDS_MAX):
            deadline.spend(units_of(master))
            relaxed = programme.solve(max(0.1, deadline.time_left_s), primal=turn > 0)
            if relaxed is None or deadline.over:
                break
            duals = relaxed.row_duals
            how = Look(part=look, step_pct=max(1, master.problem.share_step_pct), repeats=REPEATS)
            found = self._pricing.price(duals, how, deadline, 0.0)
            bound = _proven(node, duals, found.ceilings, rows.pool_at)
            node = replace(node, bound=max(node.bound, bound), totals=self._totals(relaxed.values))
            open_usd = self.usd - (node.bound if self.nodes == 1 else self._least)
            near = max(NEAR * abs(self.usd), 0.0 if closely else open_usd)
            if self._close(node.bound) or relaxed.value - node.bound <= CONVERGED * near:
                break
            if not master.offer(found.rows, duals):
                if look <= LOOK_LEAST:
                    break
                look /= CLOSER
        charge(self.deadline, deadline)
        return node

    def _totals(self, values: Floats) -> Floats:
        columns = self._master.columns
        weights = columns.value * values[columns.number]
        return np.asarray(np.bincount(columns.row, weights=weights, minlength=self._master.rows.count))

    def _halves(self, node: Node) -> list[Node]:
        """Fewer devices of a pool or more, the dearest first; when that is settled for all, replicas of a workload in
        one. What is open of devices would be asked again below every replica.
        """
        if node.totals is None:
            return []
        rows, problem = self._master.rows, self._master.problem
        part = np.abs(node.totals - np.rint(node.totals))
        pools, floors = slice(rows.pool_at, rows.cap_at), slice(rows.floor_at, rows.base)
        usd = np.array([pool.usd_per_h for pool in problem.pools])
        free = usd * (node.upper - np.maximum(node.lower, 0.0))[pools]
        replicas = part[floors] * self._each_usd
        if part[pools].max() > WHOLE:
            row = rows.pool_at + int(np.argmax(np.where(part[pools] > WHOLE, part[pools] * usd + WHOLE, 0.0)))
        elif free.max() > 0:
            row = rows.pool_at + int(np.argmax(free))
        elif (part[floors] * (self._each_usd > 0)).max() > WHOLE:
            row = rows.floor_at + int(np.argmax(replicas))
        else:
            return []
        at = np.floor(node.totals[row] + WHOLE)
        at -= at >= node.upper[row]
        lower, upper = node.lower.copy(), node.upper.copy()
        lower[row], upper[row] = at + 1, at
        return [replace(node, upper=upper), replace(node, lower=lower)]

    def _replicas_usd(self) -> Floats:
        """By floor of one pool what serving its workload there takes of devices, $/h, at least: what a part of a
        replica makes of a difference.
        """
        problem, floors, judge = self._master.problem, self._master.rows.floors, self._master.judge
        rows = Patterns.singles(np.arange(problem.kinds), np.arange(len(problem.variants)), problem.shares_pct)
        judged = judge.judge(rows)
        rate = np.maximum(problem.rate_rps, WHOLE)[problem.variant_workload[judged.rows.variants[:, 0]]]
        part = np.minimum(judged.capacity_rps[:, 0] / rate, 1.0)
        able = np.flatnonzero(judged.lawful & (part > WHOLE))
        pool, work = problem.kind_pool[judged.rows.kind[able]], problem.variant_workload[judged.rows.variants[able, 0]]
        usd = np.full((len(problem.pools), len(problem.workloads)), np.inf)
        np.minimum.at(usd, (pool, work), problem.pool_usd[pool] * judged.rows.shares_pct[able, 0] / part[able])
        one = np.where(floors.pools.sum(axis=1) == 1, floors.pools.argmax(axis=1), -1)
        found = np.where(one >= 0, usd[one, floors.workload], 0.0)
        return np.where(np.isfinite(found), found + WHOLE, 0.0)


def _proven(node: Node, duals: Floats, worth: Floats, pool_at: int) -> float:
    """What no layout of a node costs less than: see `lagrangian`."""
    if not np.isfinite(worth).all():
        return -np.inf
    side = np.where(duals > 0, node.lower, node.upper)
    sides = float(duals @ np.where(np.isfinite(side), side, 0.0))
    return sides - float(node.upper[pool_at : pool_at + len(worth)] @ np.maximum(0.0, worth))
