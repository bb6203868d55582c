"""Few devices: branch and price, until what is proven is near the best layout.

Where some devices are all there is, no relaxed optimum says much: it uses parts of them. A node of the tree bounds how
many devices of every pool run, and on how many of them every workload is. Those are sums over patterns, so they are
rows, and their duals are prices that the look at all contents knows: of a device, and of a replica in a pool. So every
node is relaxed and proven as the root was, nearer the less is open. The node with the least bound comes first; now and
then one is followed down to where all is whole. Whole layouts come from integer programmes within a node: where its
devices are decided, and where all is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.engines.base import Program
from solvers.engines.deadline import Deadline, ProgrammeWork, programme_answer
from solvers.planners.joint.solve.generate import Generation, Look, Pricing
from solvers.planners.joint.solve.master import PART_LEAST, Master
from solvers.planners.joint.solve.solution import Rules, Solution
from solvers.problems.joint import Floors, JointProblem
from solvers.problems.patterns import Layout

NEAR = 0.002
"""Part of the cost: so near, a bound is near enough."""
CONVERGED = 0.1
"""Of what is open, a node's relaxed optimum may be above its bound."""
ROUNDS_MAX = 20
LOOK, LOOK_LEAST, CLOSER = 0.005, 2e-4, 4.0
"""Of what devices cost, ceilings may stay above what was found."""
REPEATS = 3
WHOLE = 1e-5
MORE_NODES = 1.5
"""So many times as many nodes, and it goes down again."""
PART, GAP, TOLERANCE = 0.1, 1e-4, 1e-9
"""Of what is left, for the integer programme of a node; and how good it has to be."""
ENTRIES_PER_UNIT, NODE_UNITS = 600, 1.5
"""Of work: the first node of the engine's own with all that comes before it, and another one."""
PART_COLUMNS, LEAF_COLUMNS = 60, 300
ROWS_PER_UNIT = 90_000
COUNTS_MAX, DEVICES_MAX = 40, 12
"""Of devices by pool and replicas by pool and workload: more cannot be decided in seconds."""


def few_devices(problem: JointProblem) -> bool:
    """Whether branching has a chance."""
    counts = np.count_nonzero(problem.pool_devices) * (1 + len(problem.workloads))
    return bool(counts <= COUNTS_MAX and problem.pool_devices.sum() <= DEVICES_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Of every row of a master."""

    lower: Floats
    upper: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Part of all layouts, between two sides of every row."""

    sides: Sides
    bound: float = -np.inf
    totals: Floats | None = None
    """By row, what its relaxed optimum has."""
    leaf: bool = False
    """Whether nothing of that is to be decided."""


@dataclass(slots=True, kw_only=True)
class Tree:
    """One run, from a relaxed optimum and the best layout so far, which only gets better; `worth` is what layouts are
    compared by.
    """

    search: Generation
    best: Layout
    worth: Callable[[Layout], float]
    deadline: Deadline
    until_part: float
    nodes: int = 0
    _closed_usd: float = np.inf
    """The least bound of nodes that nothing more is asked of."""
    _least: float = -np.inf
    """What was proven when a node was taken last."""
    _used: set[int] = field(default_factory=set)
    """Patterns that some node had in use."""
    _decided: set[bytes] = field(default_factory=set)
    """Numbers of devices by pool that whole layouts were sought of."""
    _open: list[tuple[float, int, Node]] = field(default_factory=list)
    _turn: Iterator[int] = field(default_factory=count)
    _master: Master = field(init=False)
    _pricing: Pricing = field(init=False)

    def __post_init__(self) -> None:
        judge = self.search.master.judge
        self._master = Master(judge.problem, judge, floors=Floors.of(judge.problem, counting=True))
        self._master.adopt(self.search.master.judged)
        self._pricing = Pricing(judge, self._master.rows, self._master.width)

    def run(self) -> float:
        """Branch until the bound is near or the time ends; what no layout costs less than."""
        master, until_nodes = self._master, 0.0
        if (solved := master.programme.solve()) is None:
            return -np.inf
        master.tighten(solved)
        root = Node(sides=Sides(lower=master.rows.lower, upper=master.rows.upper))
        self._keep([self._relaxed(root)])
        down: Node | None = None
        while not self._over and (down is not None or (self._open and not self._close(self._open[0][0]))):
            if (node := down) is None:
                self._least, _, node = heappop(self._open)
            halves = self._expanded(node)
            if halves and (down is not None or self.nodes >= until_nodes):
                down, *halves = halves
            else:
                down = None
            if down is None and self.nodes >= until_nodes:
                until_nodes = MORE_NODES * self.nodes
            self._keep(halves)
        self._keep([] if down is None else [down])
        return min([self._closed_usd, *(bound for bound, _, _ in self._open)])

    def _keep(self, nodes: list[Node]) -> None:
        for node in nodes:
            heappush(self._open, (node.bound, next(self._turn), node))

    def _expanded(self, node: Node) -> list[Node]:
        """Both halves, the one with the least bound first; none where there is nothing more to say of it."""
        pools = slice(self._master.rows.pool_at, self._master.rows.cap_at)
        if known := node.leaf:
            node = replace(self._relaxed(node, closely=True), leaf=False)
        close, halves = self._close(node.bound), self._halves(node)
        if close or (known and not halves):
            self._closed_usd = min(self._closed_usd, node.bound)
            return []
        decided = node.sides.upper[pools].tobytes() + node.sides.lower[pools].tobytes()
        if not halves or (_whole_at(node, pools) and decided not in self._decided):
            self._decided.add(decided)
            self._whole(node)
        if not halves:
            self._keep([replace(node, leaf=True)])
        return sorted((self._relaxed(half) for half in halves), key=lambda half: half.bound)

    @property
    def _over(self) -> bool:
        return self.deadline.left_part <= self.until_part

    @property
    def _usd(self) -> float:
        return self.best.judged_usd(self._master.problem)

    def _close(self, bound: float) -> bool:
        usd = self._usd
        return bound >= usd - NEAR * abs(usd)

    def _relaxed(self, node: Node, *, closely: bool = False) -> Node:
        """Priced until its bound is near its relaxed optimum, beside what is open or `closely`, or the best layout; a
        node that was not has its parent's bound.
        """
        master, look = self._master, LOOK
        rows, programme = master.rows, master.programme
        self.nodes += 1
        self._narrow(node)
        for turn in range(ROUNDS_MAX):
            self.deadline.spend(1 + master.size * rows.count // ROWS_PER_UNIT)
            relaxed = programme.solve(max(0.1, self.deadline.left_s), primal=turn > 0)
            if relaxed is None or self._over:
                break
            duals = relaxed.row_duals
            how = Look(part=look, step_pct=max(1, master.problem.share_step_pct), repeats=REPEATS)
            found = self._pricing.price(duals, how, self.deadline, self.until_part)
            bound = _proven(node, duals, found.ceilings, rows.pool_at)
            node = replace(node, bound=max(node.bound, bound), totals=self._totals(relaxed.values))
            self._used.update(np.flatnonzero(relaxed.values[master.slacks :] > PART_LEAST).tolist())
            open_usd = self._usd - (node.bound if self.nodes == 1 else self._least)
            near = max(NEAR * abs(self._usd), 0.0 if closely else open_usd)
            if self._close(node.bound) or relaxed.value - node.bound <= CONVERGED * near:
                break
            if not master.offer(found.rows, duals):
                if look <= LOOK_LEAST:
                    break
                look /= CLOSER
        return node

    def _narrow(self, node: Node) -> None:
        rows, sides = self._master.rows, node.sides
        for row in (*range(rows.pool_at, rows.cap_at), *range(rows.floor_at, rows.base)):
            self._master.programme.bound_row(row, float(sides.lower[row]), float(sides.upper[row]))

    def _totals(self, values: Floats) -> Floats:
        columns = self._master.columns
        weights = columns.value * values[columns.number]
        return np.asarray(np.bincount(columns.row, weights=weights, minlength=self._master.rows.count))

    def _halves(self, node: Node) -> list[Node]:
        """Fewer devices of a pool or more, the dearest first; where all are whole, replicas of a workload in one."""
        if node.totals is None:
            return []
        rows, problem = self._master.rows, self._master.problem
        part = np.abs(node.totals - np.rint(node.totals))
        pools, floors = slice(rows.pool_at, rows.cap_at), slice(rows.floor_at, rows.base)
        dear = part[pools] * np.array([pool.usd_per_h for pool in problem.pools])
        few = rows.floors.pools.sum(axis=1) == 1
        if part[pools].max() > WHOLE:
            row = rows.pool_at + int(np.argmax(np.where(part[pools] > WHOLE, dear + WHOLE, 0.0)))
        elif (part[floors] * few).max() > WHOLE:
            row = rows.floor_at + int(np.argmax(part[floors] * few))
        else:
            return []
        at = np.floor(node.totals[row] + WHOLE)
        lower, upper = node.sides.lower.copy(), node.sides.upper.copy()
        lower[row], upper[row] = at + 1, at
        return [replace(node, sides=replace(node.sides, **side)) for side in ({"upper": upper}, {"lower": lower})]

    def _whole(self, node: Node) -> None:
        """The integer programme over what any node had in use, and what promises most in this one, of its part."""
        master = self._master
        master.offer(master.of_patterns(self.best.patterns))
        held = _held(master, self.best)
        self._narrow(node)
        relaxed = master.programme.solve(max(0.1, self.deadline.left_s), primal=False)
        if relaxed is None:
            return
        most = PART_COLUMNS if self._halves(node) else LEAF_COLUMNS
        some = np.union1d(np.array(sorted(self._used), dtype=np.int64), master.promising(relaxed, most))
        chosen = np.union1d(some, np.flatnonzero(held))
        counts = self._answered(chosen, _program_over(master, chosen, node.sides), held[chosen])
        layout = Solution.of_rows(Rules(master.judge), master.judged.rows.take(chosen), counts).layout()
        if self.worth(layout) < self.worth(self.best):
            self.best = layout

    def _answered(self, chosen: Whole, program: Program, counts: Whole) -> Whole:
        """What the engine makes of a programme over chosen patterns; these counts of them at worst."""
        slacks = self._master.slacks
        hint = np.concatenate([np.zeros(slacks), counts.astype(np.float64)])
        short = np.maximum(0.0, program.row_lower - program.activity(hint))
        slack = np.flatnonzero(np.diff(program.start[: slacks + 1]))
        hint[slack] = short[program.row[program.start[slack]]]
        first = 1 + program.rows * len(chosen) // ENTRIES_PER_UNIT
        work = ProgrammeWork(part=PART, first_units=first, node_units=NODE_UNITS, gap=GAP)
        answer = programme_answer(program, work, self.deadline, hint)
        if answer is None or answer.values is None or answer.objective >= float(program.cost @ hint) - TOLERANCE:
            return counts
        return np.rint(answer.values[slacks:]).astype(np.int64)


def _held(master: Master, layout: Layout) -> Whole:
    """By pattern of a master, how many devices of a layout have it."""
    number = {key.tobytes(): place for place, key in enumerate(master.judged.rows.keys)}
    held = np.zeros(master.size, dtype=np.int64)
    for key, devices in zip(master.of_patterns(layout.patterns).keys, layout.counts, strict=True):
        if key.tobytes() in number:
            held[number[key.tobytes()]] += devices
    return held


def _program_over(master: Master, chosen: Whole, sides: Sides) -> Program:
    """The integer programme over chosen patterns, without rows that ask for nothing."""
    numbers = np.concatenate([np.arange(master.slacks), chosen + master.slacks])
    some = master.columns.take(numbers)
    asks = (sides.lower > 0) | np.isfinite(sides.upper)
    kept = asks[some.row]
    return Program(
        cost=some.cost,
        lower=np.zeros(len(numbers)),
        upper=some.upper,
        integer=numbers >= master.slacks,
        start=np.concatenate([[0], np.cumsum(kept)])[some.start],
        row=(np.cumsum(asks) - 1)[some.row[kept]],
        value=some.value[kept],
        row_lower=sides.lower[asks],
        row_upper=sides.upper[asks],
    )


def _whole_at(node: Node, rows: slice) -> bool:
    """Whether a node's relaxed optimum has whole numbers in these rows."""
    return node.totals is not None and bool(np.abs(node.totals[rows] - np.rint(node.totals[rows])).max() <= WHOLE)


def _proven(node: Node, duals: Floats, worth: Floats, pool_at: int) -> float:
    """What no layout of a node costs less than: see `lagrangian`."""
    if not np.isfinite(worth).all():
        return -np.inf
    side = np.where(duals > 0, node.sides.lower, node.sides.upper)
    sides = float(duals @ np.where(np.isfinite(side), side, 0.0))
    return sides - float(node.sides.upper[pool_at : pool_at + len(worth)] @ np.maximum(0.0, worth))
