"""Branch and bound over contents of devices by the thousand: which of them could still be worth more than a target.

A *node* is all contents of a device of one kind whose pressure lies between two edges, some workloads in it for
certain and some options (a workload's network, share and batch) ruled out. Its *ceiling* is what nothing in it
exceeds: shares, memory and pressure get multipliers, so that every workload can be asked by itself, and every replica
is taken to feel the lower edge only. Options that would bring the ceiling below the target are ruled out, nodes whose
ceiling is below it are closed, the others are cut in two.

A *cell* is what one replica could be: a network at a percent of share and a batch on a kind of device. Its numbers do
not change while prices do; `Priced` says what each is worth at prices beside neighbours that press so much.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Flags, Floats, Parallel, Whole
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import ItemPrices, Rows, steps_of
from solvers.problems.joint import JointProblem

WHOLE_PCT = 100
NEVER = -1e30
STEP = 0.7
TURNS_FIRST = 20
BELOW = 1e-3
"""Of a device's price."""
FADE = 0.8
"""How much of what an option was chosen before still counts when the next branch is chosen."""
CROWD_OUT = 1e9
SPREAD = 0.5
WIDTH_PART = 0.5
"""Of what a node is above the target: pressures that far apart are cut first."""
WIDTH_LEAST = 1e-5
WIDTH_FIRST = 1 / 8
"""Of the highest pressure: nothing else is decided before pressures are so near."""
PRUNE_PART = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells(Parallel):
    """One element each, ordered by kind, workload, variant, share and batch."""

    kind: Whole
    work: Whole
    variant: Whole
    share_pct: Whole
    press: Floats
    memory: Floats
    """Part of the device's."""
    mean_ms: Floats
    tail_ms: Floats
    batch: Floats
    watts: Floats
    """Never more than its share of what the device may draw: so they add up to no more than the device draws."""
    served: Floats
    """Part of the rate beside neighbours that do not press at all."""


class Priced:
    """Cells at prices."""

    def __init__(self, problem: JointProblem, judge: Judge, rows: Rows, prices: ItemPrices) -> None:
        self.problem, self.judge, self.prices = problem, judge, prices
        self._rate = np.maximum(rows.rate, 1e-12)

    def costs(self, cells: Cells, kind: int) -> Floats:
        """What each of one kind takes of what has a price, whatever it serves, $/h."""
        prices, pool = self.prices, int(self.problem.kind_pool[kind])
        usd = prices.watt[pool] * cells.watts
        if prices.share[pool].any():
            usd += prices.share[pool][cells.work] * cells.share_pct
        if self.problem.by_memory:
            usd = usd + self.problem.held_usd(kind, cells.variant, cells.share_pct)
        if prices.replica.any():
            usd -= prices.replica[cells.work]
        return np.asarray(usd)

    def crowded(self, cells: Cells, costs: Floats) -> Floats:
        """Value of each beside neighbours that do not press at all. `NEVER` where the promise cannot be kept."""
        return np.asarray(np.where(cells.served > 0, self._value(cells.served, cells.work) - costs, NEVER))

    def _value(self, part: Floats, work: Whole) -> Floats:
        """Of parts of rates."""
        value = part * self.prices.pi[work]
        for steps, usd in self.prices.steps:
            some = np.flatnonzero(usd[work])
            value[some] += steps_of(part[some], steps) * usd[work[some]]
        return value

    def worth(self, cells: Cells, low: Floats, costs: Floats) -> Floats:
        """Value of each beside neighbours that, with itself, press at least `low`; alone on its device where that is
        negative. `NEVER` where the promise cannot be kept.
        """
        problem = self.problem
        table = problem.kind_table[cells.kind]
        felt = problem.sensitivity[table, cells.variant] * np.maximum(low - cells.press, 0.0)
        slow = np.where(low < 0, 1.0, problem.crowd[table, cells.variant] * (1 + felt))
        mean = cells.mean_ms * slow
        tail = mean if problem.mean_ms is problem.tail_ms else cells.tail_ms * slow
        rate = self.judge.rates(cells.variant, mean[:, None], tail[:, None], cells.batch[:, None])[:, 0]
        value = self._value(np.minimum(rate / self._rate[cells.work], 1.0), cells.work) - costs
        return np.asarray(np.where(rate > 0, value, NEVER))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Parallel):
    """One element each, ordered by node, workload and cell."""

    node: Whole
    cell: Whole
    work: Whole
    part: Floats
    press: Floats
    memory: Floats
    worth: Floats
    must: Flags
    lean: Floats
    """How often it was chosen of late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes(Parallel):
    """One element each; `usd` are multipliers on share, pressure and memory, `best_usd` those of the least ceiling."""

    kind: Whole
    low: Floats
    high: Floats
    usd: Floats
    best_usd: Floats
    ceiling: Floats
    musts: Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at all nodes: ceilings, what is left of share, pressure and memory, which options were chosen, and what
    choosing each would make of its node's ceiling.
    """

    ceiling: Floats
    spare: Floats
    chosen: Whole
    forced: Floats

    def where(self, nodes: Flags, kept: Flags, node: Whole) -> Look:
        """For some nodes with some options; `node` of every option."""
        here = nodes[node] & kept
        number = np.cumsum(here) - 1
        chosen = number[self.chosen[here[self.chosen]]]
        return Look(ceiling=self.ceiling[nodes], spare=self.spare[nodes], chosen=chosen, forced=self.forced[here])


@dataclass(frozen=True, slots=True)
class Front:
    """Nodes with their options."""

    nodes: Nodes
    options: Options

    def split(self, some: Flags) -> tuple[Front, Front]:
        """Some nodes, and the others."""
        return self.where(some), self.where(~some)

    def where(self, some: Flags, kept: Flags | None = None) -> Front:
        """Some nodes, with the options that are kept."""
        number = np.cumsum(some) - 1
        here = some[self.options.node] if kept is None else some[self.options.node] & kept
        options = self.options.take(np.flatnonzero(here))
        return Front(self.nodes.take(np.flatnonzero(some)), replace(options, node=number[options.node]))

    def beside(self, other: Front) -> Front:
        """Both."""
        moved = replace(other.options, node=other.options.node + len(self.nodes))
        return Front(Nodes.chained([self.nodes, other.nodes]), Options.chained([self.options, moved]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Branch(Parallel):
    """By node: on what it is cut in two."""

    workload: Whole
    """The least decided one."""
    whole: Flags
    """Whether to decide that it is there at all, rather than how large."""
    share: Floats
    """Its mean."""
    doubt: Floats
    """How little decided it is."""


class Tree:
    """What all nodes of one problem at one set of prices share."""

    def __init__(self, problem: JointProblem, priced: Priced, high: float) -> None:
        self.problem, self.priced, self.high = problem, priced, high
        pool = problem.kind_pool
        self.fixed = priced.prices.fixed[pool]
        self.clients = np.array([item.clients for item in problem.pools], dtype=np.int64)[pool]
        self.copies = np.array([item.per_device_max for item in problem.workloads], dtype=np.int64)
        self.dedicated = np.array([item.dedicated for item in problem.workloads], dtype=np.bool_)
        self._cells: list[Cells] = []
        self._costs: list[Floats] = []

    @property
    def cells(self) -> Cells:
        """All that are in any node."""
        if len(self._cells) > 1:
            self._cells, self._costs = [Cells.chained(self._cells)], [np.concatenate(self._costs)]
        return self._cells[0]

    @property
    def costs(self) -> Floats:
        """Of all cells."""
        return self._costs[0] if len(self.cells) else np.zeros(0)

    def root(self, kind: int, cells: Cells, target: Floats) -> tuple[Front | None, float]:
        """All contents of a kind's devices as one node, with options that cannot be ruled out at once; and what no
        single replica exceeds.
        """
        costs = self.priced.costs(cells, kind)
        worth = self.priced.crowded(cells, costs)
        table, fixed = int(self.problem.kind_table[kind]), float(self.fixed[kind])
        alike = bool((self.problem.crowd[table] <= 1).all())
        alone = worth if alike else self.priced.worth(cells, np.full(len(cells), -1.0), costs)
        best = float(alone.max(initial=NEVER)) - fixed
        some = np.flatnonzero((worth > 0) & ~self.dedicated[cells.work])
        if self.clients[kind] < 2 or not len(some):
            return None, best
        usd = np.array([[max(fixed, 0.0), 0.0, 0.0]])
        nodes = Nodes(
            kind=np.array([kind]),
            low=np.zeros(1),
            high=np.array([self.high]),
            usd=usd,
            best_usd=usd.copy(),
            ceiling=np.array([np.inf]),
            musts=np.zeros(1, dtype=np.int64),
        )
        options = Options(
            node=np.zeros(len(some), dtype=np.int64),
            cell=some,
            work=cells.work[some],
            part=cells.share_pct[some] / WHOLE_PCT,
            press=cells.press[some],
            memory=cells.memory[some],
            worth=worth[some],
            must=np.zeros(len(some), dtype=np.bool_),
            lean=np.zeros(len(some)),
        )
        front, _ = self.squeezed(Front(nodes, options), target, TURNS_FIRST)
        kept = front.options.cell
        known = sum(len(item) for item in self._cells)
        self._cells.append(cells.take(kept))
        self._costs.append(costs[kept])
        return Front(front.nodes, replace(front.options, cell=known + np.arange(len(kept)))), best

    def look(self, front: Front) -> Look:
        """At all nodes with their multipliers as they are."""
        nodes, options = front.nodes, front.options
        count, usd = len(nodes), nodes.usd
        net = options.worth - usd[options.node, 0] * options.part - usd[options.node, 1] * options.press
        if usd[:, 2].any():
            net -= usd[options.node, 2] * options.memory
        new = _new(options)
        begin, segment = np.flatnonzero(new), np.cumsum(new) - 1
        most, must, node = np.maximum.reduceat(net, begin), options.must[begin], options.node[begin]
        gain = np.where(must, most, np.maximum(most, 0.0))
        copies = np.where(gain > 0, self.copies[options.work[begin]], 1)
        taken, least = self._taken(nodes, node, gain, must, copies)
        total = np.bincount(node, weights=taken * gain, minlength=count)
        held = np.bincount(node, weights=must, minlength=count)
        ceiling = total + usd[:, 0] + usd[:, 1] * nodes.high + usd[:, 2] - self.fixed[nodes.kind]
        ceiling = np.where(held < nodes.musts, NEVER, ceiling)
        top = np.flatnonzero(net >= most[segment])
        top = top[np.diff(segment[top], prepend=-1) > 0]
        real = (taken > 0) & ((gain > 0) | must)
        chosen, times = top[real], taken[real]
        at = options.node[chosen]
        rooms = ((1.0, options.part), (nodes.high, options.press), (1.0, options.memory))
        spare = [room - np.bincount(at, weights=times * used[chosen], minlength=count) for room, used in rooms]
        lost = np.where(taken > 0, gain, least[node])
        return Look(ceiling=ceiling, spare=np.array(spare).T, chosen=chosen,
                    forced=ceiling[options.node] - lost[segment] + net)  # fmt: skip

    def _taken(self, nodes: Nodes, node: Whole, gain: Floats, must: Flags, copies: Whole) -> tuple[Whole, Floats]:
        """How many of each workload's replicas are among the best that fit by number, and the worth of the last one."""
        clients = self.clients[nodes.kind]
        order = np.lexsort((-np.where(must, CROWD_OUT, gain), node))
        sorted_node, sorted_copies = node[order], copies[order]
        before = np.cumsum(sorted_copies) - sorted_copies
        start = np.searchsorted(sorted_node, np.arange(len(nodes)))
        before -= before[np.minimum(start, len(before) - 1)][sorted_node]
        room = np.clip(clients[sorted_node] - before, 0, sorted_copies)
        taken = np.zeros(len(node), dtype=np.int64)
        taken[order] = room
        least = np.zeros(len(nodes))
        last = (room > 0) & (before + sorted_copies >= clients[sorted_node])
        least[sorted_node[last]] = np.maximum(gain[order[last]], 0.0)
        return taken, least

    def squeezed(self, front: Front, target: Floats, times: int) -> tuple[Front, Look]:
        """Multipliers moved some times towards the least ceilings, options ruled out and nodes closed on the way."""
        for turn in range(times):
            look = self.look(front)
            nodes, options = front.nodes, front.options
            np.multiply(options.lean, FADE, out=options.lean)
            options.lean[look.chosen] += 1 - FADE
            better = look.ceiling < nodes.ceiling
            nodes.ceiling[better] = look.ceiling[better]
            nodes.best_usd[better] = nodes.usd[better]
            goal = target[nodes.kind]
            useful = (look.forced > goal[options.node]) & (nodes.ceiling > goal)[options.node]
            open_to = np.bincount(options.node[useful], minlength=len(nodes)) > 0
            if turn == times - 1 or not open_to.any():
                return front.where(open_to, useful), look.where(open_to, useful, options.node)
            slope = np.where((nodes.usd <= 0) & (look.spare > 0), 0.0, look.spare)
            # A little below the goal, or steps would come ever nearer to it and never there.
            aim = goal - BELOW * np.maximum(self.fixed[nodes.kind], 0.0)
            move = STEP * np.maximum(look.ceiling - aim, 0.0) / np.maximum((slope**2).sum(axis=1), 1e-12)
            nodes.usd[:] = np.maximum(0.0, nodes.usd - move[:, None] * slope)
            if not open_to.all() or useful.sum() < PRUNE_PART * len(useful):
                front = front.where(open_to, useful)
        return front, self.look(front)

    def cut(self, front: Front, look: Look, target: Floats) -> tuple[Front, Nodes]:
        """Every node in two: by pressure where that is what makes it look good, else by a workload or its share; and
        the nodes that cannot be cut any more.
        """
        branch = self._branch(front)
        doubt = branch.doubt
        width = front.nodes.high - front.nodes.low
        able = width > WIDTH_LEAST
        wide = self._wide(front, look, target) | (doubt <= 0) | (width > WIDTH_FIRST * self.high)
        wide &= able
        stuck = (doubt <= 0) & ~able
        ended = front.nodes.take(stuck)
        if stuck.any():
            front, branch, wide = front.where(~stuck), branch.take(~stuck), wide[~stuck]
        return self._halves(front, wide, branch), ended

    def _halves(self, front: Front, wide: Flags, branch: _Branch) -> Front:
        nodes, options = front.nodes, front.options
        pick, whole, mean = branch.workload, branch.whole, branch.share
        middle = (nodes.low + nodes.high) / 2
        mine = pick[options.node] == options.work
        mine &= ~wide[options.node]
        large = options.part > mean[options.node]
        whole_here = whole[options.node]
        fresh = replace(nodes, usd=nodes.best_usd.copy(), best_usd=nodes.best_usd.copy(), ceiling=nodes.ceiling.copy())
        every = np.ones(len(nodes), dtype=np.bool_)
        lowered = replace(fresh, high=np.where(wide, middle, nodes.high))
        lower = Front(lowered, replace(options, lean=options.lean * FADE))
        lower = lower.where(every, ~mine | (~whole_here & ~large))
        raised = replace(
            fresh,
            low=np.where(wide, middle, nodes.low),
            musts=nodes.musts + (~wide & whole & ~self._held(front, pick)),
        )
        upper = Front(
            raised, replace(options, must=options.must | (mine & whole_here), lean=options.lean * FADE)
        ).where(every, ~mine | whole_here | large)
        moved = wide[upper.options.node]
        if moved.any():
            some = np.flatnonzero(moved)
            cells = self.cells.take(upper.options.cell[some])
            low = upper.nodes.low[upper.options.node[some]]
            upper.options.worth[some] = self.priced.worth(cells, low, self.costs[upper.options.cell[some]])
            upper = upper.where(every, upper.options.worth > NEVER)
        return _nonempty(lower.beside(upper))

    def _held(self, front: Front, pick: Whole) -> Flags:
        """Whether what is branched on is in the node for certain already."""
        mine = (pick[front.options.node] == front.options.work) & front.options.must
        return np.asarray(np.bincount(front.options.node[mine], minlength=len(front.nodes)) > 0)

    def _wide(self, front: Front, look: Look, target: Floats) -> Flags:
        """Nodes where feeling the upper edge instead of the lower would cost what was chosen much."""
        nodes, chosen = front.nodes, look.chosen
        at = front.options.node[chosen]
        cell = front.options.cell[chosen]
        upper = self.priced.worth(self.cells.take(cell), nodes.high[at], self.costs[cell])
        loss = np.minimum(front.options.worth[chosen] - upper, front.options.worth[chosen])
        lost = np.bincount(at, weights=np.maximum(loss, 0.0), minlength=len(nodes))
        over = nodes.ceiling - target[nodes.kind]
        return np.asarray(lost > WIDTH_PART * over)

    def _branch(self, front: Front) -> _Branch:
        options, count = front.options, len(front.nodes)
        begin = np.flatnonzero(_new(options))
        node, work = options.node[begin], options.work[begin]
        often = np.add.reduceat(options.lean, begin)
        weight = np.maximum(often, 1e-9)
        mean = np.add.reduceat(options.lean * options.part, begin) / weight
        square = np.add.reduceat(options.lean * options.part**2, begin) / weight
        spread = SPREAD * np.sqrt(np.maximum(square - mean**2, 0.0)) * often
        apart = np.maximum.reduceat(options.part, begin) > np.minimum.reduceat(options.part, begin)
        spread = np.where(apart & (self.copies[work] == 1), spread, -1.0)
        doubt = np.where(options.must[begin], -1.0, np.minimum(often, np.maximum(1 - often, 0.0)) * mean)
        most = np.maximum(spread, doubt)
        order = np.lexsort((-most, node))
        first = order[np.searchsorted(node[order], np.arange(count))]
        return _Branch(
            workload=work[first],
            whole=np.asarray(doubt[first] >= spread[first]),
            share=mean[first],
            doubt=most[first],
        )


def _nonempty(front: Front) -> Front:
    """Without the nodes that have no options left: there is nothing in them."""
    return front.where(np.bincount(front.options.node, minlength=len(front.nodes)) > 0)


def _new(options: Options) -> Flags:
    """Where another workload begins."""
    new = np.ones(len(options), dtype=np.bool_)
    new[1:] = (options.node[1:] != options.node[:-1]) | (options.work[1:] != options.work[:-1])
    return new
