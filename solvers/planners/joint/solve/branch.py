"""Branch and price: whole numbers of devices, and of replicas where devices are few, until the bound is near.

No relaxed optimum says much of few devices: it uses parts of them. A node of the tree bounds how many devices of every
pool run, and on how many of them every workload is. Those are sums over patterns, so they are rows, and their duals are
prices that the look at all contents knows: of a device, and of a replica in a pool. So every node is relaxed and proven
as the root was, nearer the less is open. The node with the least bound comes first. Pools that differ in nothing but
power and failure domains count as one here, which leaves out rules, so bounds hold.

What was proven at some duals holds at all numbers of devices, for it is linear in them. So where they are open all
proofs together say which whole numbers may cost least. These are relaxed alone, which is one more proof, until they
cost least for all that; then they are a node of their own, and all others are the boxes around them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from math import ceil

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.engines.deadline import Deadline, charge
from solvers.engines.planes import Box
from solvers.planners.joint.solve.generate import fitted, units_of
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Master, Rows
from solvers.planners.joint.solve.pricing import Look, Pricing, scale_of
from solvers.problems.joint import Floors, JointProblem
from solvers.problems.patterns import Patterns

NEAR = 0.002
"""Part of the cost: so near, a bound is near enough."""
CONVERGED = 0.1
"""Of what is open, a node's relaxed optimum may be above its bound."""
ROUNDS_MAX = 20
LOOK, LOOK_LEAST, CLOSER = 0.005, 2e-4, 4.0
"""Of what devices cost, ceilings may stay above what was found."""
ABOVE = 2.0
REPEATS = 8
CUT_ROUNDS = 3
"""Of numbers of devices, where they are few: what their optimum makes of parts of replicas is forbidden."""
NUMBERS_UNITS = 5
"""Of looking for numbers that all proofs together leave."""
NODE_UNITS, CLOSELY = 60, 10
"""What a node may take before another has its turn, and how many times as much where its numbers are whole."""
WHOLE = 1e-5
LEAVES_MAX, PROOFS_MAX, LEAF_PROOFS, FOUND_MAX = 300, 100, 3, 400
"""Parts that are kept for a later run, last proofs, best proofs of each part, and contents."""
COUNTS_APART, COUNTS_MAX, DEVICES_MAX = 40, 100, 24
"""Devices and replicas by pool: more take more than seconds; of more than the first, pools of other domains are one."""


@dataclass(frozen=True, kw_only=True)
class Alike:
    """A problem in which pools that no workload can tell apart are one, whatever domains their devices are in."""

    problem: JointProblem
    kind: Whole
    """By kind of the whole problem: which one it is here."""

    @staticmethod
    def of(whole: JointProblem, *, by_domain: bool = False) -> Alike:
        """A relaxation: failure domains may not be kept apart, and caps let the rest of a pool draw more."""
        number, first, pool = dict[tuple[object, ...], int](), list[int](), list[int]()
        kinds = [np.flatnonzero(whole.kind_pool == at) for at in range(len(whole.pools))]
        for at, item in enumerate(whole.pools):
            same = replace(item, name="", devices=0, failure_domain=item.failure_domain * by_domain)
            tables = (*whole.kind_table[kinds[at]].tolist(), *whole.kind_clock_mhz[kinds[at]].tolist())
            key = (same, whole.allowed[at].tobytes(), tables)
            pool.append(number.setdefault(key, len(number)))
            first += [at] if pool[-1] == len(first) else []
        chosen, of = np.concatenate([np.zeros(0, np.int64), *(kinds[at] for at in first)]), np.array(pool, np.int64)
        start = np.searchsorted(of[whole.kind_pool[chosen]], np.arange(len(first)))
        kind = np.zeros(whole.kinds, dtype=np.int64)
        for at, mine in enumerate(kinds):
            kind[mine] = start[of[at]] + np.arange(len(mine))

        def together(devices: Whole | tuple[int, ...]) -> tuple[int, ...]:
            return tuple(np.bincount(of, weights=devices, minlength=len(first)).astype(np.int64).tolist())

        devices = together(whole.pool_devices)
        anywhere = (replace(work, replicas_min=work.replicas_floor, domains_min=1) for work in whole.workloads)
        problem = replace(
            whole,
            pools=tuple(replace(whole.pools[at], devices=n) for at, n in zip(first, devices, strict=True)),
            kind_pool=of[whole.kind_pool[chosen]],
            kind_clock_mhz=whole.kind_clock_mhz[chosen],
            kind_table=whole.kind_table[chosen],
            allowed=whole.allowed[first],
            caps=tuple(replace(cap, devices=together(cap.devices)) for cap in whole.caps),
            workloads=whole.workloads if by_domain else tuple(anywhere),
        )
        return Alike(problem=problem, kind=kind)


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

    devices: Box
    """By pool."""
    lower: Floats
    upper: Floats
    """By row, but for those of pools and cuts."""
    bound: float = -np.inf
    totals: Floats | None = None
    """By row, what its relaxed optimum has."""
    near: bool = False
    """Whether its bound is near its relaxed optimum."""
    leaf: bool = False
    """Whether nothing of that is to be decided."""

    def sides(self, rows: Rows, duals: Floats) -> Floats:
        """What its sides are worth at these duals, by row: without end where there is none on that side."""
        ends = (self.lower, self.devices.least, rows.lower), (self.upper, self.devices.most, rows.upper)
        lower, upper = (
            np.concatenate([mine[: rows.pool_at], devices, mine[rows.cap_at :], of[rows.base :]])[: duals.shape[-1]]
            for mine, devices, of in ends
        )
        side = np.where(duals > 0, lower, upper)
        return np.multiply(duals, side, out=np.zeros_like(duals), where=duals != 0)

    def rest(self, rows: Rows, duals: Floats) -> Floats:
        """By proof what all sides but those of devices are worth."""
        sides = self.sides(rows, duals)
        sides[:, rows.pool_at : rows.cap_at] = 0.0
        return np.asarray(sides.sum(axis=1))

    def at_least(self, rows: Rows, duals: Floats, each: Floats) -> Floats:
        """By proof what no layout of it costs less than."""
        rest = self.rest(rows, duals)
        usd = np.minimum(each * self.devices.least, each * self.devices.most).sum(axis=1)
        return np.asarray(np.where(np.isfinite(rest), rest, -np.inf) + usd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaves:
    """Where a tree ended: all its parts, and what proves that they cost no less at the rates of then."""

    counting: Flags
    rates: Floats
    least: Floats
    most: Floats
    """part x pool: devices."""
    fewest: Floats
    highest: Floats
    """part x row of floors: replicas."""
    bound: Floats
    """By part, of all proofs together."""
    duals: Floats
    """proof x row, cuts last."""
    each: Floats
    """proof x pool: what a device more adds."""
    cut_work: Whole
    cut_steps: Whole
    kind: Whole
    variants: Whole
    shares_pct: Whole
    """Of contents that were found on the way."""

    def at(self, rates: Floats, most_rps: Floats) -> Leaves:
        """At other rates, where a device carries so much at most. Of a rate that is less, what its devices carry is a
        larger part and worth no more; cuts of it say nothing any more.
        """
        duals, works = self.duals.copy(), len(rates)
        least = np.maximum(self.rates, np.minimum(most_rps, rates))
        duals[:, :works] *= np.divide(rates, least, out=np.zeros(works), where=least > 0)
        base = duals.shape[1] - len(self.cut_work)
        more = rates >= self.rates
        duals[:, base:] *= more[self.cut_work]
        bound = self.bound if more.all() else np.zeros_like(self.bound)
        return replace(self, rates=rates, duals=duals, bound=bound)

    def nodes(self, rows: Rows) -> list[Node]:
        """The parts, in these rows, which have the cuts."""
        lower, upper = rows.lower[: rows.floor_at], rows.upper[: rows.floor_at]
        sides = zip(self.least, self.most, self.fewest, self.highest, strict=True)
        nodes = [
            Node(devices=Box(least=least, most=most), lower=np.append(lower, fewest), upper=np.append(upper, highest))
            for least, most, fewest, highest in sides
        ]
        told = (float(node.at_least(rows, self.duals, self.each).max(initial=0.0)) for node in nodes)
        bounds = zip(told, self.bound.tolist(), strict=True)
        return [replace(node, bound=max(both)) for node, both in zip(nodes, bounds, strict=True)]

    def usd(self, problem: JointProblem) -> float:
        """What they prove of it, at its rates, without looking further."""
        alike = _one(problem).problem
        rows = Rows(alike, floors=Floors.of(alike, counting=bool(self.counting)))
        rows.cut(self.cut_work, self.cut_steps)
        return min(node.bound for node in self.nodes(rows))


@dataclass(kw_only=True)
class Tree:
    """One run."""

    search: Master
    """Patterns to begin with."""
    usd: float
    """What the best layout costs."""
    deadline: Deadline
    counting: bool = False
    """Whether replicas are branched on, too."""
    near: float = NEAR
    begin: Leaves | None = None
    """Of an earlier run, at these rates."""

    def __post_init__(self) -> None:
        self.nodes, self._turn, self._open = 0, count(), list[tuple[float, int, Node]]()
        # Nothing more is asked of those that are closed; and what was proven when a node was taken last.
        self._closed, self._least_usd = list[Node](), -np.inf
        # Duals, and by pool what a device more adds to what they prove.
        self._proofs = list[tuple[Floats, Floats]]()
        alike = _one(self.search.problem)
        problem = alike.problem
        self.master = Master(problem, Judge(problem), floors=Floors.of(problem, counting=self.counting))
        priced = self.search.judged.rows
        self.master.offer(replace(priced, kind=alike.kind[priced.kind]))
        self._known, rows = self.master.size, self.master.rows  # contents to begin with
        self._pools, self._cuts = slice(rows.pool_at, rows.cap_at), CUT_ROUNDS * few_devices(self.search.problem)
        self._pricing = Pricing(self.master.judge, rows, self.master.width)

    def run(self) -> float:
        """Branch until the bound is near or the time ends; what no layout costs less than."""
        rows, most = self.master.rows, self.master.problem.pool_devices.astype(np.float64)
        whole = Box(least=np.zeros(len(most)), most=most)
        if (told := self.begin) is not None:
            self.master.cut(told.cut_work, told.cut_steps)
            self.master.offer(Patterns(kind=told.kind, variants=told.variants, shares_pct=told.shares_pct))
            self._proofs = [*zip(told.duals, told.each, strict=True)]
            self._keep(told.nodes(rows))
        else:
            root = self._relaxed(Node(devices=whole, lower=rows.lower[: rows.base], upper=rows.upper[: rows.base]))
            self._keep([root])
            if root.totals is not None and not self._close(root.bound):
                above = np.ceil(root.totals[self._pools] - WHOLE)
                self._relaxed(replace(root, devices=Box(least=above, most=above)))
        # What is proven is the least bound: no other node raises it above that of one with nothing more to ask.
        while self._open and not (self.deadline.over or self._close(at := self._open[0][0]) or at >= self._closed_usd):
            self._least_usd, _, node = heappop(self._open)
            self._keep(self._expanded(node))
        return min([self._closed_usd, *(bound for bound, _, _ in self._open)])

    @property
    def _closed_usd(self) -> float:
        return min((node.bound for node in self._closed), default=np.inf)

    def leaves(self) -> Leaves | None:
        """What a later run can begin with; None where that is too much."""
        nodes = [*self._closed, *(node for _, _, node in self._open)]
        if not (self._proofs and len(nodes) <= LEAVES_MAX):
            return None
        rows, (duals, each) = self.master.rows, self._shown_by
        told = [node.at_least(rows, duals, each) for node in nodes]
        last = np.arange(len(duals))[-PROOFS_MAX:]
        used = np.unique(np.concatenate([last, *(np.argsort(-usd, kind="stable")[:LEAF_PROOFS] for usd in told)]))
        found = self.master.judged.rows.take(np.arange(self._known, self.master.size)[-FOUND_MAX:])
        floors = slice(rows.floor_at, rows.base)
        return Leaves(
            counting=np.array(self.counting),
            rates=self.master.problem.rate_rps,
            least=np.array([node.devices.least for node in nodes]),
            most=np.array([node.devices.most for node in nodes]),
            fewest=np.array([node.lower[floors] for node in nodes]),
            highest=np.array([node.upper[floors] for node in nodes]),
            bound=np.array([node.bound for node in nodes]),
            duals=duals[used],
            each=each[used],
            cut_work=rows.cut_work,
            cut_steps=rows.cut_steps,
            kind=found.kind,
            variants=found.variants,
            shares_pct=found.shares_pct,
        )

    def _keep(self, nodes: list[Node]) -> None:
        for node in nodes:
            heappush(self._open, (node.bound, next(self._turn), node))

    def _expanded(self, node: Node) -> list[Node]:
        """Its parts; none where there is nothing more to say of it."""
        if not (self._close(node.bound) or node.devices.point):
            usd, at = self._least(node)
            if usd <= node.bound + WHOLE * abs(usd):
                point = self._relaxed(replace(node, devices=Box(least=at, most=at)), closely=True)
                usd, _ = self._least(node)
                if point.near and usd <= node.bound + WHOLE * abs(usd):
                    return [point, *(replace(node, devices=box) for box in node.devices.beside(at))]
            return [replace(node, bound=usd)]
        if known := node.leaf:
            node = replace(self._relaxed(node, closely=True), leaf=False)
        close, halves = self._close(node.bound), self._halves(node)
        if close or (known and not halves):
            self._closed.append(node)
            return []
        if not halves:
            self._keep([replace(node, leaf=True)])
        return [self._relaxed(half) for half in halves]

    def _close(self, bound: float) -> bool:
        return bound >= self.usd - self.near * abs(self.usd)

    def _relaxed(self, node: Node, *, closely: bool = False) -> Node:
        """Priced until its bound is near its relaxed optimum, beside what is open or `closely`, or the best layout; a
        node that was not has its parent's bound.
        """
        master, look = self.master, LOOK
        rows, programme = master.rows, master.programme
        scale = scale_of(master.problem) @ np.maximum(node.devices.most, 1.0)
        cuts = self._cuts * (node.devices.point and closely)
        self.nodes += 1
        if node.devices.point:
            node = replace(node, bound=self._least(node)[0])
            if self._close(node.bound):
                return replace(node, near=True)
        for pool, (low, high) in enumerate(zip(node.devices.least, node.devices.most, strict=True)):
            programme.bound_row(rows.pool_at + pool, float(low), float(high))
        for row in range(rows.floor_at, rows.base):
            programme.bound_row(row, float(node.lower[row]), float(node.upper[row]))
        units, most = self.deadline.units_until(0.0), NODE_UNITS * (CLOSELY if closely else 1)
        deadline = Deadline(self.deadline.time_left_s, ceil(units if self.nodes == 1 else min(units, most)))
        for turn in range(ROUNDS_MAX):
            deadline.spend(units_of(master))
            relaxed = programme.solve(max(0.1, deadline.time_left_s), primal=turn > 0)
            if relaxed is None or deadline.over:
                break
            duals = np.where(np.isfinite(node.sides(rows, relaxed.row_duals)), relaxed.row_duals, 0.0)
            # What costs more than was found anyway need not be known closely.
            part = max(look, float((relaxed.value - self.usd) / (ABOVE * max(float(scale), WHOLE))))
            how = Look(part=part, step_pct=max(1, master.problem.share_step_pct), repeats=REPEATS)
            found = self._pricing.price(duals, how, deadline, 0.0)
            bound = self._shown(node, duals, found.ceilings)
            totals = master.columns.activity(relaxed.values, rows.count)
            node = replace(node, bound=max(node.bound, bound), totals=totals)
            open_usd = self.usd - (node.bound if self.nodes == 1 else self._least_usd)
            near = max(self.near * abs(self.usd), 0.0 if node.leaf else open_usd)
            node = replace(node, near=relaxed.value - node.bound <= CONVERGED * near)
            if self._close(node.bound):
                break
            if node.near:
                cuts -= 1
                if cuts < 0 or not master.tighten(relaxed):
                    break
            elif not master.offer(found.rows, duals):
                if look <= LOOK_LEAST:
                    node = replace(node, near=True)
                    break
                look /= CLOSER
        charge(self.deadline, deadline)
        return node

    def _shown(self, node: Node, duals: Floats, worth: Floats) -> float:
        """What no layout of a node costs less than (see `lagrangian`), kept as a proof of all others."""
        if not np.isfinite(worth).all():
            return -np.inf
        pools = self._pools
        # A device with nothing on it is worth what it is paid for.
        each = np.maximum(0.0, np.maximum(worth, duals[pools] - self.master.problem.idle_usd))
        self._proofs.append((duals, duals[pools] - each))
        return float(node.sides(self.master.rows, duals).sum() - node.devices.most @ each)

    @property
    def _shown_by(self) -> tuple[Floats, Floats]:
        """Of all proofs the duals, by row, and what a device more adds, by pool."""
        duals = [fitted(duals, self.master.rows.count) for duals, _ in self._proofs]
        rows, pools = self.master.rows.count, len(self.master.problem.pools)
        return np.array(duals).reshape(-1, rows), np.array([each for _, each in self._proofs]).reshape(-1, pools)

    def _least(self, node: Node) -> tuple[float, Floats]:
        """The least that all proofs together leave to whole numbers of devices of a node, and those numbers."""
        duals, each = self._shown_by
        rest = node.rest(self.master.rows, duals)
        told = np.isfinite(rest)
        self.deadline.spend(NUMBERS_UNITS * (not node.devices.point))
        usd, numbers = node.devices.lowest(rest[told], each[told], self.deadline.time_left_s)
        return max(node.bound, usd), numbers

    def _halves(self, node: Node) -> list[Node]:
        """Fewer replicas of a workload in a pool or more, where the numbers of devices are settled: what is open of
        those would be asked again below every replica.
        """
        if node.totals is None:
            return []
        rows = self.master.rows
        part = np.abs(node.totals - np.rint(node.totals))[rows.floor_at : rows.base]
        part *= rows.floors.pools.sum(axis=1) == 1
        if not part.max(initial=0.0) > WHOLE:
            return []
        row = rows.floor_at + int(np.argmax(part))
        at = np.floor(node.totals[row] + WHOLE)
        at -= at >= node.upper[row]
        lower, upper = node.lower.copy(), node.upper.copy()
        lower[row], upper[row] = at + 1, at
        return [replace(node, upper=upper), replace(node, lower=lower)]
