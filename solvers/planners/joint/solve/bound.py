"""A proven bound: no pattern whatever, at whole percents of share, is worth more at these duals than is shown here.

All contents of all devices are looked at together (see `nodes`): what could be worth most comes first and is cut until
nothing is worth more than a small part of what its device costs. Stopped at any time it holds: what was not cut only
makes it weaker. From the worst ceiling of each pool follows the bound on the cost of every layout (weak duality, see
`lagrangian`). What looked too good on the way are patterns worth adding; with them the master is solved again, and the
next duals are between the best so far and the new ones. The best bound counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.engines.deadline import Deadline
from solvers.engines.highs import Relaxed
from solvers.planners.joint.solve.generate import STEPS_PCT, Generation, Pace, generate, improving_neighbours
from solvers.planners.joint.solve.judge import Judge, Patterns, members_max, pressure_most
from solvers.planners.joint.solve.master import Master, Rows
from solvers.planners.joint.solve.nodes import WHOLE_PCT, Cells, Front, Look, Priced, Tree
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import TOLERANCE

NODES_AT_ONCE = 400
TURNS = 8
CUTS_MAX = 200
"""Of so many nodes at once; what is not settled then had better be priced anew."""
ROOT_TURNS = 3
"""What a root takes, in looks at all of it."""
NARROW = 1 / 12
"""Of the highest pressure: contents of nodes so narrow are worth judging exactly."""
NEAR = 0.25
"""Of the target: what is so near to what exists is left alone."""
OPTIONS_PER_UNIT = 25_000
OPTIONS_LEAST = 5_000
"""What a look at a few takes, in options."""
TARGETS = (0.02, 0.02, 0.01, 0.01, 0.01, 0.005, 0.005, 0.002, 0.002, 0.001, 0.001)
"""Parts of a device's price that ceilings may be above it, round by round."""
TARGETS_AT = (0.04, 0.02, 0.01)
CELLS_MAX = 12_000_000
"""Looking at so many at once takes more than a GiB."""
NEAR_ENOUGH = 0.001
"""Of the relaxed optimum."""
STEADY = 0.5
ROUNDS = 4
"""Of ordinary pricing between two looks."""
KEPT_MAX = 4_000_000
"""Cells that are worth remembering between prices."""


def shares_of(problem: JointProblem) -> Whole:
    """All shares that a replica may have."""
    step = max(1, problem.share_step_pct)
    least = int(problem.shares_pct[0])
    return np.array([pct for pct in range(step, WHOLE_PCT + 1, step) if pct >= least], dtype=np.int64)


class CellTables:
    """All cells of one problem, made kind by kind as they are asked for."""

    def __init__(self, problem: JointProblem, judge: Judge, rows: Rows) -> None:
        self.problem, self.judge = problem, judge
        self._asked = (rows.wanted | rows.floored)[problem.variant_workload]
        self._rate = np.maximum(rows.rate, 1e-12)
        self._shares = shares_of(problem)
        self.size = problem.kinds * len(self._asked) * len(self._shares) * len(problem.batches)
        self._kept: dict[int, Cells] | None = {} if self.size <= KEPT_MAX else None

    def of_kind(self, kind: int) -> Cells:
        """Of all workloads that ask for anything."""
        if self._kept is not None and kind in self._kept:
            return self._kept[kind]
        cells = self._made(kind)
        if self._kept is not None:
            self._kept[kind] = cells
        return cells

    def _made(self, kind: int) -> Cells:
        problem, shares_pct = self.problem, self._shares
        table, pool = int(problem.kind_table[kind]), problem.pools[int(problem.kind_pool[kind])]
        variants = np.flatnonzero(self._asked & problem.allowed[int(problem.kind_pool[kind])])
        variants = variants[np.argsort(problem.variant_workload[variants], kind="stable")]
        shares = shares_pct.astype(np.float64)
        alone = self.judge.at_shares(table, variants, shares_pct)
        mean, tail = alone.mean_ms, alone.tail_ms
        memory = problem.memory_mib[table, variants]
        crowd = problem.crowd[table, variants][:, None, None]
        rate = self.judge.rates(np.broadcast_to(variants[:, None], mean.shape[:2]), mean * crowd, tail * crowd)
        watts = np.where(np.isfinite(alone.power_w), alone.power_w, 0.0)
        able = np.isfinite(mean) & (memory <= pool.memory_mib + TOLERANCE)[:, None, :]
        at, size, batch = np.nonzero(able)
        names = variants[at]
        press = problem.pressure[table, names] * (shares[size] / WHOLE_PCT) ** problem.exponent[table, names]
        most_w = max(0.0, pool.limit_w - pool.idle_w) * shares[size] / WHOLE_PCT
        work = problem.variant_workload[names]
        return Cells(
            kind=np.full(len(at), kind, dtype=np.int64),
            work=work,
            variant=names,
            share_pct=shares_pct[size],
            press=np.asarray(press),
            memory=memory[at, batch] / max(pool.memory_mib, 1e-9),
            mean_ms=mean[able],
            tail_ms=tail[able],
            batch=problem.batches[batch].astype(np.float64),
            watts=np.minimum(watts[able], most_w),
            served=np.minimum(rate[able] / self._rate[work], 1.0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """By pool what no pattern's value is above its device's price, and patterns that came near it."""

    worth: Floats
    seen: Patterns


class Bound:
    """Everything about one problem that duals do not change."""

    def __init__(self, problem: JointProblem, judge: Judge, rows: Rows) -> None:
        self.problem, self.judge, self.rows = problem, judge, rows
        self.tables = CellTables(problem, judge, rows)
        self.width = members_max(problem)
        self.high = _highest(problem, self.width)
        self.devices = problem.pool_devices[problem.kind_pool]

    def ceilings(self, duals: Floats, target: Floats, deadline: Deadline, until_part: float) -> Ceilings:
        """At these duals; no farther down than the target (by pool, $/h), and as far as the deadline allows."""
        prices = self.rows.item_prices(duals)
        tree = Tree(self.problem, Priced(self.problem, self.judge, self.rows, prices), self.high)
        kinds = self.problem.kind_pool
        goal = Goal(kinds, target)
        open_nodes = OpenNodes(self.devices, goal)
        for kind in np.flatnonzero(self.devices).tolist():
            if deadline.left_part <= until_part:
                return Ceilings(worth=np.full(len(self.problem.pools), np.inf), seen=Patterns.none(self.width))
            cells = self.tables.of_kind(kind)
            deadline.spend(1 + ROOT_TURNS * len(cells.kind) // OPTIONS_PER_UNIT)
            front, alone = tree.root(kind, cells, goal.by_kind)
            goal.raise_to(np.array([kind]), np.array([alone]))
            if front is not None:
                open_nodes.add(front)
        seen = [Patterns.none(self.width)]
        for _ in range(CUTS_MAX):
            if deadline.left_part <= until_part or (front := open_nodes.most()) is None:
                break
            deadline.spend(1 + TURNS * (len(front.options.node) + OPTIONS_LEAST) // OPTIONS_PER_UNIT)
            front, look = tree.squeezed(front, goal.by_kind, TURNS)
            if len(front.nodes.kind):
                found, worth = self._real(self._contents(tree, front, look), duals)
                seen.append(found.take(worth > 0))
                # What exists cannot be disproved.
                goal.raise_to(found.kind, worth + NEAR * target[kinds[found.kind]])
                halves, ended = tree.cut(front, look, goal.by_kind)
                goal.raise_to(ended.kind, ended.ceiling)
                open_nodes.add(halves)
        for front in open_nodes.fronts:
            goal.raise_to(front.nodes.kind, front.nodes.ceiling)
        return Ceilings(worth=goal.by_pool, seen=Patterns.chained(seen))

    def _real(self, rows: Patterns, duals: Floats) -> tuple[Patterns, Floats]:
        """Those that can stand, and their values above their devices' prices."""
        judged = self.judge.judge(rows)
        judged = judged.take(judged.lawful)
        return judged.rows, -self.rows.reduced(self.rows.columns(judged), duals)

    def _contents(self, tree: Tree, front: Front, look: Look) -> Patterns:
        """What was chosen in narrow nodes, shares cut down to the device."""
        nodes, options = front.nodes, front.options
        chosen = look.chosen[(nodes.high - nodes.low <= NARROW * self.high)[options.node[look.chosen]]]
        node, cell = options.node[chosen], options.cell[chosen]
        rank = np.arange(len(node)) - np.searchsorted(node, node)
        chosen, node, cell, rank = (item[rank < self.width] for item in (chosen, node, cell, rank))
        member = np.full((len(nodes.kind), self.width), -1, dtype=np.int64)
        share = np.zeros((len(nodes.kind), self.width), dtype=np.int64)
        member[node, rank], share[node, rank] = tree.cells.variant[cell], tree.cells.share_pct[cell]
        total = share.sum(axis=1, keepdims=True)
        step, least = max(1, self.problem.share_step_pct), int(shares_of(self.problem)[0])
        cut = np.maximum(least, share * 100 // np.maximum(total, 1) // step * step)
        share = np.where((total > 100) & (member >= 0), cut, share)
        some = np.flatnonzero((member[:, 0] >= 0) & (share.sum(axis=1) <= 100))
        return Patterns(kind=nodes.kind[some], variants=member[some], shares_pct=share[some])


class Goal:
    """How far down ceilings are to come, $/h: no farther than what exists on any kind of a pool."""

    def __init__(self, kind_pool: Whole, least: Floats) -> None:
        self._pool = kind_pool
        self.by_pool = least.copy()
        self.by_kind: Floats = least[kind_pool]

    def raise_to(self, kind: Whole, worth: Floats) -> None:
        """Something of these kinds is worth so much."""
        np.maximum.at(self.by_pool, self._pool[kind], worth)
        self.by_kind = self.by_pool[self._pool]


class OpenNodes:
    """Nodes that wait to be looked at; those that weaken the bound most come first."""

    def __init__(self, devices: Whole, goal: Goal) -> None:
        self.fronts: list[Front] = []
        self._devices, self._goal = devices, goal

    def add(self, front: Front) -> None:
        """Some more."""
        if len(front.nodes.kind):
            self.fronts.append(front)

    def weakening(self, front: Front) -> Floats:
        """What each node costs the bound at most, $/h."""
        kind = front.nodes.kind
        return np.asarray(self._devices[kind] * (front.nodes.ceiling - self._goal.by_kind[kind]))

    def most(self) -> Front | None:
        """The worst, so many that an array of them is worth its while."""
        found: Front | None = None
        while self.fronts and (found is None or len(found.nodes.kind) < NODES_AT_ONCE):
            worst = max(range(len(self.fronts)), key=lambda index: self.weakening(self.fronts[index]).max())
            front = self.fronts.pop(worst)
            found = front if found is None else found.beside(front)
        if found is not None and len(found.nodes.kind) > NODES_AT_ONCE:
            weakening = self.weakening(found)
            top = np.zeros(len(weakening), dtype=np.bool_)
            top[np.argsort(-weakening, kind="stable")[:NODES_AT_ONCE]] = True
            found, rest = found.split(top)
            self.fronts.append(rest)
        return found


def _highest(problem: JointProblem, width: int) -> float:
    """More than anything on one device can press together."""
    if not len(problem.variants) or not problem.kinds:
        return 0.0
    if problem.exponent.max() > 1:
        return float(problem.pressure.max() * width)
    return pressure_most(problem, width)


def lagrangian(rows: Rows, duals: Floats, worth: Floats) -> float:
    """The bound that follows. With value above cost at most `worth` (by pool), duals scaled by any t in (0, 1] prove

    t * (duals x sides) - sum over pools of devices * max(0, t * worth - (1 - t) * least cost of a pattern).
    """
    problem = rows.problem
    if not np.isfinite(worth).all():
        return -np.inf
    devices = problem.pool_devices.astype(np.float64)
    cost = np.array([problem.idle_usd_per_h(pool) for pool in range(len(problem.pools))])
    pools = float(duals[rows.pool_at : rows.cap_at] @ rows.upper[rows.pool_at : rows.cap_at])
    total = rows.sides(duals) + pools
    scales = [1.0, *(float(c / (c + w)) for c, w in zip(cost, worth, strict=True) if c > 0 and w > 0)]
    return max(t * total - float((devices * np.maximum(0.0, t * worth - (1 - t) * cost)).sum()) for t in scales)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The best bound, the duals that prove it, and the relaxed optimum over all that was found."""

    usd_per_h: float
    duals: Floats
    worth: Floats
    """By pool: what no pattern is worth above its device's price at these duals."""
    relaxed: Relaxed


def proven(search: Generation, deadline: Deadline, until_part: float) -> Proof | None:
    """None where there was no time for any proof. Adds columns to the master."""
    master, relaxed = search.master, search.relaxed
    problem = master.problem
    bound = Bound(problem, master.judge, master.rows)
    scale = scale_of(problem)
    best: Proof | None = None
    duals, level = relaxed.row_duals, 0
    while level < len(TARGETS) and deadline.left_part > until_part:
        target = TARGETS[level] * scale
        ceilings = bound.ceilings(duals, target, deadline, until_part)
        value = lagrangian(master.rows, duals, ceilings.worth)
        if np.isfinite(value) and (best is None or value > best.usd_per_h):
            best = Proof(usd_per_h=value, duals=duals, worth=ceilings.worth, relaxed=relaxed)
        level += 1 if len(ceilings.seen.kind) else 2
        if best is None or deadline.left_part <= until_part:
            break
        pace = Pace(rounds=ROUNDS, until_part=until_part, thorough=False, prior=duals)
        relaxed = _added(replace(search, relaxed=relaxed), ceilings, deadline, pace)
        best = replace(best, relaxed=relaxed)
        if best.usd_per_h >= relaxed.value - NEAR_ENOUGH * abs(relaxed.value):
            break
        duals = STEADY * best.duals + (1 - STEADY) * relaxed.row_duals
    return best


def proven_at(rows: Rows, judge: Judge, duals: Floats, deadline: Deadline, until_part: float) -> Floats | None:
    """By pool what no pattern is worth above its device's price at these duals, of all looks the one that proves most;
    None where there was no time for any, or no memory.
    """
    bound, scale = Bound(rows.problem, judge, rows), scale_of(rows.problem)
    if bound.tables.size > CELLS_MAX:
        return None
    looks: list[Floats] = []
    for part in TARGETS_AT:
        looks.append(bound.ceilings(duals, part * scale, deadline, until_part).worth)
        if deadline.left_part <= until_part:
            break
    best = max(looks, key=lambda worth: lagrangian(rows, duals, worth))
    return best if np.isfinite(best).all() else None


def without_cuts(master: Master) -> Master:
    """The same columns without cuts: those make duals that prove little."""
    if not len(master.rows.cut_work):
        return master
    other = Master(master.problem, master.judge)
    other.adopt(master.judged)
    return other


def scale_of(problem: JointProblem) -> Floats:
    """By pool what a device costs, whole."""
    return np.array([max(problem.idle_usd_per_h(at), pool.usd_per_h) for at, pool in enumerate(problem.pools)])


def _added(search: Generation, ceilings: Ceilings, deadline: Deadline, pace: Pace) -> Relaxed:
    """The relaxed optimum with what was seen, its neighbours, and what they make worth adding."""
    master, relaxed = search.master, search.relaxed
    first = master.size
    if not master.offer(ceilings.seen):
        return relaxed
    duals = relaxed.row_duals if pace.prior is None else pace.prior
    for turn in range(len(STEPS_PCT)):
        master.offer(improving_neighbours(master, np.arange(first, master.size), duals, turn), relaxed.row_duals)
    found = generate(master, search.pricing, deadline, pace)
    return relaxed if found is None else found.best
