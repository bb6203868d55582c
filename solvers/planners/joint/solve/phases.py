"""One problem from the relaxed optimum to whole devices: the phases and what each may spend.

Price patterns, dive, trim, make up what is short, polish where the problem is small, repair with what time is left.
Every phase begins with the best so far and can only improve it. Bounds are proven elsewhere.

Polishing: where only some dozens of devices are at stake, whole devices decide more than the relaxed optimum can see,
so patterns are also priced at duals shaken at random, and an integer programme over everything that was found is given
the best layout so far as a hint: it can only become better. Before it, two or three devices are swapped for two better
ones: every pair of some hundred columns is tried for what some devices leave, which finds what an integer programme
loses between thousands of nearly equal layouts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations

import numpy as np

from solvers.domain.arrays import Flags, Floats, Whole
from solvers.engines.base import Limits, Program, create
from solvers.engines.deadline import Deadline
from solvers.engines.highs import Relaxed
from solvers.planners.joint.solve.generate import (
    Depth,
    Dive,
    Generation,
    Pace,
    Scene,
    generate,
    promising,
    singles,
    within_gap,
)
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import Master
from solvers.planners.joint.solve.pricing import Pricing, levels_of, tables_of
from solvers.planners.joint.solve.repair import repair
from solvers.planners.joint.solve.solution import Rules, Solution
from solvers.planners.joint.solve.trim import thin, trim
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout, Pattern, Prices, Standing

GENERATE_UNTIL = 0.65
DIVE_UNTIL = 0.25
SERVE_UNTIL = 0.05
"""To serve every rate comes before proving anything."""
TRIM_PART = 0.25
THIN_PART = 0.8
MEND_PART = 0.5
THIN_UNTIL = 0.25
RESERVES = (0.003, 0.002, 0.004, 0.001, 0.006)
"""Parts of the rates that devices are made fewer with, in the order that pays best."""
DEVICES_TINY = 16.0
REACH_PART = 0.3
POLISH_PART = 0.8
REPAIR_PART = 0.3
SERVE_PART = 0.6
REPAIR_S_PER_DEVICE = 0.01
"""Of what is left."""
COMPLETE_ROUNDS = 25
URGENT_DEVICES = 1e5
COLUMNS_KEPT = 400
TOLERANCE = 1e-9
GAIN = 1e-7
TRIES_MAX = 600
PAIRS_PER_UNIT = 2_500_000
DEVICES_MAX = 120.0
WORKLOADS_MAX = 60
SHAKES = 20
SHAKE = 0.3
SHAKE_UNTIL = 0.1
COLUMNS_MAX = 700
COLUMNS_LEAST = 50
FIRST_PART = 0.4
"""Of what is left, for the engine's first node where columns are many by design."""
SWAP_PART = 0.2
"""Of what is left of the deadline."""
ENGINE_PART = 0.8
ENGINE_GAP = 1e-4
ENTRIES_PER_UNIT, NODE_UNITS = 30, 30
"""Of work: the first node of an integer programme with all that comes before it, and another one."""
WORTH_IT = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOrder:
    """One order. All fields have a meaning when left out: a solve from nothing."""

    standing: tuple[Standing, ...] = ()
    """What stands now; to keep one of these is cheaper by the launches that it saves."""
    warm: tuple[Pattern, ...] = ()
    """Patterns to begin with, from an earlier solve; those that no longer keep their promises are left out."""
    gap: float = 0.003
    """Stop when cost and bound are this near, as a fraction of the cost."""
    seed: int = 1
    launch_usd_per_s: float = 0.0002
    """$/h that may be spent to avoid one second of launching."""
    proof: bool = True
    """Whether to keep time for a bound."""


DEPTHS = (
    (1.0, Depth(rounds=6, group_part=0.4, up_part=0.5)),
    (4.0, Depth(rounds=12, group_part=0.1, up_part=0.1)),
    (2.0, Depth(rounds=10, group_part=0.2, up_part=0.25)),
    (6.0, Depth(rounds=20, group_part=0.1, up_part=0.1)),
    (3.0, Depth(rounds=10, group_part=1.0, up_part=0.1)),
    (12.0, Depth(rounds=20, group_part=0.05, up_part=0.05)),
)
"""Dives in order, and how long each takes beside the others, roughly."""
DEPTHS_TINY = (
    (1.0, Depth(rounds=3, group_part=1.0, up_part=0.5)),
    (1.5, Depth(rounds=6, group_part=1.0, up_part=0.25)),
    (1.5, Depth(rounds=4, group_part=0.6, up_part=0.4)),
    (1.5, Depth(rounds=3, group_part=0.2, up_part=0.25)),
    (2.0, Depth(rounds=6, group_part=0.4, up_part=0.5)),
    (3.0, Depth(rounds=6, group_part=0.1, up_part=0.1)),
)
"""A few devices are decided by luck: quick ways, each trimmed, and then an integer programme."""


@dataclass(slots=True)
class Phases:
    """One run. `found` is the answer so far, `facts` are told."""

    problem: JointProblem
    order: SolveOrder
    deadline: Deadline
    first: Layout
    found: Layout | None = None
    facts: dict[str, float] = field(default_factory=dict)
    columns: tuple[Pattern, ...] = ()
    search: Generation | None = None

    def run(self) -> Layout:
        """All phases, as far as the deadline lets them; the first layout at worst."""
        problem, deadline, begun_s = self.problem, self.deadline, self.deadline.elapsed_s
        rules = Rules(Judge(problem))
        exact = rules.judge
        master = Master(problem, exact)
        tables = tables_of(problem, exact, levels_of(problem, master.width))
        pricing = Pricing(problem, tables, master.rows, master.width)
        master.offer(singles(problem, master.width))
        master.offer(master.of_patterns((*self.first.patterns, *self.order.warm)))
        master.keep_standing(self.order.standing, self.order.launch_usd_per_s)
        relaxation = generate(master, pricing, deadline, Pace.of(problem, GENERATE_UNTIL))
        self.facts |= {"columns": float(master.size), "generate_s": deadline.elapsed_s - begun_s}
        if relaxation is not None:
            found = Generation(master=master, pricing=pricing, relaxed=relaxation.best)
            self.search = replace(found, relaxed=relaxation.plain or relaxation.best)
            self.facts |= {"rounds": float(relaxation.rounds), "relaxed_usd_per_h": self.search.relaxed.value}
            scene = Scene(problem=problem, rules=rules, tables=tables)
            self._dive(scene, found)
            self._finish(scene, found)
        return (
            self.found if self.found is not None and self._worth(self.found) <= self._worth(self.first) else self.first
        )

    def _dive(self, scene: Scene, begin: Generation) -> None:
        """The first dive is quick; slower ones follow as long as there is time for what they take."""
        deadline, slowness, took = self.deadline, 0.0, 0.0
        tiny = float(begin.relaxed.values[begin.master.slacks :].sum()) <= DEVICES_TINY
        for times, depth in DEPTHS_TINY if tiny else DEPTHS:
            if slowness and deadline.left_part - took * times / slowness < DIVE_UNTIL:
                break
            before, dive = deadline.left_part, Dive(scene, replace(depth, until_part=DIVE_UNTIL))
            self._try("dive_s", partial(self._dived, dive, begin, trimmed=tiny))
            slowness, took = times, before - deadline.left_part

    def _dived(self, dive: Dive, begin: Generation, _before: Layout, *, trimmed: bool) -> Layout:
        """A dive begins at the relaxed optimum, whatever was found before."""
        layout = dive.run(begin, self.deadline)
        return trim(self.problem, layout, portion(self.deadline, TRIM_PART)) if trimmed else layout

    def _finish(self, scene: Scene, search: Generation) -> None:
        master, relaxed = search.master, search.relaxed
        problem, deadline = self.problem, self.deadline
        self._thin(scene, master.prices(relaxed.row_duals))
        if self.found is not None and self.found.missing(self.problem).any():
            self._try("complete_s", lambda layout: completed(scene, layout, deadline))
        if small_enough(master, relaxed) and not deadline.over:
            shake(search, deadline, np.random.default_rng(self.order.seed))
            if problem.by_memory:
                relaxed = self._within_gap(master, relaxed)
            search = replace(search, relaxed=relaxed)
            rng = np.random.default_rng(self.order.seed)
            self._within(
                "polish_s",
                POLISH_PART,
                lambda layout, within: polished(scene, search, layout, within, rng),
            )
            self._within("trim_s", TRIM_PART, lambda layout, within: trim(problem, layout, within))
        if self.found is not None and self._worth(self.found) > relaxed.value * (1 + self.order.gap):
            rng, prices = np.random.default_rng(self.order.seed), master.prices(relaxed.row_duals)
            self._within(
                "repair_s",
                SERVE_PART if self.found.missing(self.problem).any() else repair_part(deadline, sum(self.found.counts)),
                lambda layout, within: repair(problem, layout, prices, within, rng),
            )
        self.columns = tuple(master.judge.patterns(master.judged.take(promising(master, relaxed, COLUMNS_KEPT))))

    def _within_gap(self, master: Master, relaxed: Relaxed) -> Relaxed:
        """Give the integer programme all that may be in something better than what is found so far."""
        best, before = self.first if self.found is None else self.found, master.size
        within = portion(self.deadline, REACH_PART)
        best_usd = best.value(self.problem) + float(self.problem.unserved_usd @ best.fewer(self.problem))
        relaxed = within_gap(master, relaxed, best_usd, best.usd_per_h, within)
        self.facts["reached"] = float(master.size - before)
        charge(self.deadline, within)
        return relaxed

    def _thin(self, scene: Scene, prices: Prices) -> None:
        """Fewer devices, with less and with more in reserve, as long as there is time for what it takes. The cheapest
        is kept; where it leaves any rate a little short, that is made up first.
        """
        base = self.first if self.found is None else self.found
        short: list[Layout] = []
        took = 0.0
        for reserve in RESERVES:
            if took and self.deadline.left_part - took < THIN_UNTIL:
                break
            before = self.deadline.left_part
            tried = self._within("trim_s", THIN_PART, partial(self._thinned, base, reserve))
            took = before - self.deadline.left_part
            if tried.missing(self.problem).any():
                short.append(tried)
        if not short:
            return
        cheapest = min(short, key=lambda item: item.usd_per_h)
        if self.found is None or cheapest.usd_per_h < self.found.usd_per_h or self.found.missing(self.problem).any():
            self._within("mend_s", MEND_PART, partial(self._served, scene, cheapest, prices))

    def _thinned(self, base: Layout, reserve: float, _before: Layout, deadline: Deadline) -> Layout:
        """All begin at the same layout."""
        return thin(self.problem, base, reserve, deadline)

    def _served(self, scene: Scene, short: Layout, prices: Prices, _before: Layout, deadline: Deadline) -> Layout:
        """What lacks a little is served by packing a few devices anew, else by another device."""
        problem, rng = self.problem, np.random.default_rng(self.order.seed)
        layout = repair(problem, short, prices, portion(deadline, MEND_PART), rng, until_served=True)
        return completed(scene, layout, deadline) if layout.missing(self.problem).any() else layout

    def _try(self, name: str, phase: Callable[[Layout], Layout]) -> Layout:
        """Run a phase on the answer so far, and keep what it makes of it where that is better; what it made."""
        begun_s = self.deadline.elapsed_s
        before = self.first if self.found is None else self.found
        after = phase(before)
        if self.found is None or self._worth(after) < self._worth(self.found):
            self.found = after
        self.facts[name] = self.facts.get(name, 0.0) + self.deadline.elapsed_s - begun_s
        return after

    def _within(self, name: str, part: float, phase: Callable[[Layout, Deadline], Layout]) -> Layout:
        """A phase with a part of what is left to itself."""
        within = portion(self.deadline, part)
        after = self._try(name, lambda layout: phase(layout, within))
        charge(self.deadline, within)
        return after

    def _worth(self, layout: Layout) -> float:
        return layout.judged_usd(self.problem) - kept_usd(self.problem, self.order, layout)


def kept_usd(problem: JointProblem, order: SolveOrder, layout: Layout) -> float:
    """What the launches that keeping what stands saves are worth, $/h."""
    held = dict(zip((item.key for item in layout.patterns), layout.counts, strict=True))
    seconds = sum(
        min(item.devices, held.get(item.pattern.key, 0))
        * sum(problem.variants[variant].launch_s for variant in item.pattern.variants)
        for item in order.standing
    )
    return order.launch_usd_per_s * seconds


def repair_part(deadline: Deadline, devices: int) -> float:
    """A part of what is left, and no more than so many devices are worth."""
    if deadline.work_units is None:
        most = REPAIR_S_PER_DEVICE * devices / max(deadline.left_s, 1e-9)
    else:
        most = 1000 * REPAIR_S_PER_DEVICE * devices / max(deadline.left_part * deadline.work_units, 1.0)
    return min(REPAIR_PART, most)


def portion(deadline: Deadline, part: float) -> Deadline:
    """A deadline of its own for a part of what is left."""
    if deadline.work_units is None:
        return Deadline(part * deadline.left_s)
    return Deadline(deadline.seconds, max(1, int(part * deadline.left_part * deadline.work_units)))


def charge(deadline: Deadline, portion: Deadline) -> None:
    """Count what was done within a portion as done."""
    if portion.work_units is not None:
        deadline.spend(round((1 - portion.left_part) * portion.work_units))


def _urgent(problem: JointProblem) -> JointProblem:
    """The same with a price on what is unserved that makes any device worth it, however little is missing."""
    price = URGENT_DEVICES * max(problem.dearest_usd, 1e-3)
    works = (replace(work, unserved_usd=max(work.unserved_usd, price)) for work in problem.workloads)
    return replace(problem, workloads=tuple(works))


def completed(scene: Scene, layout: Layout, deadline: Deadline) -> Layout:
    """What is still short placed on devices that are still free."""
    scene = replace(scene, problem=_urgent(scene.problem))
    whole = Master(scene.problem, scene.rules.judge)
    rest = Master(scene.problem, scene.rules.judge, whole.taken_by(layout))
    pricing = Pricing(scene.problem, scene.tables, rest.rows, rest.width)
    relaxation = generate(rest, pricing, deadline, Pace(rounds=COMPLETE_ROUNDS, until_part=SERVE_UNTIL, thorough=False))
    if relaxation is None:
        return layout
    depth = Depth(until_part=SERVE_UNTIL)
    dive = Dive(scene, depth, whole.taken_by(layout))
    begin = Generation(master=rest, pricing=pricing, relaxed=relaxation.best)
    return layout.and_also(dive.run(begin, deadline))


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Columns that go and columns that come."""

    out: tuple[int, ...]
    into: tuple[int, ...]


class Swaps:
    """Columns of a covering programme as a dense matrix; slack columns are left out."""

    def __init__(self, program: Program) -> None:
        self.whole = np.flatnonzero(program.integer)
        """Of each column here: its number in the programme."""
        column = np.repeat(np.arange(program.columns), np.diff(program.start))
        dense = np.zeros((program.columns, program.rows))
        np.add.at(dense, (column, program.row), program.value)
        self.dense = dense[self.whole]
        self.cost = program.cost[self.whole]
        self.upper = program.upper[self.whole]
        self.asked = np.flatnonzero(np.isfinite(program.row_lower) & (program.row_lower > 0))
        self.limited = np.flatnonzero(np.isfinite(program.row_upper))
        self.least, self.most = program.row_lower, program.row_upper

    def improve(self, counts: Floats, deadline: Deadline, until_part: float, rng: np.random.Generator) -> Floats:
        """Counts (of the columns here) that cost no more and leave nothing more undone."""
        counts = counts.copy()
        tried: set[tuple[int, ...]] = set()
        for _ in range(TRIES_MAX):
            held = np.flatnonzero(counts > 0).tolist()
            devices = [column for column in held for _ in range(min(2, int(counts[column])))]
            groups = sorted({*combinations(devices, 2), *combinations(devices, 3)} - tried)
            if not groups or deadline.left_part <= until_part:
                return counts
            out = groups[int(rng.integers(len(groups)))]
            tried.add(out)
            deadline.spend(1 + self.dense.size * len(self.dense) // PAIRS_PER_UNIT)
            swap = self._best(counts, out)
            if swap is not None:
                np.subtract.at(counts, list(swap.out), 1)
                np.add.at(counts, list(swap.into), 1)
                tried.clear()
        return counts

    def _best(self, counts: Floats, out: tuple[int, ...]) -> Swap | None:
        """The cheapest pair, or single, that does what these devices do and is cheaper."""
        rest = counts.copy()
        np.subtract.at(rest, list(out), 1)
        done = rest @ self.dense
        need, room = self.least - done, self.most - done
        budget = float(self.cost[list(out)].sum()) - GAIN
        rows = self.asked[need[self.asked] > TOLERANCE]
        able = (self.cost < budget) & (rest < self.upper)
        able &= (self.dense[:, self.limited] <= room[self.limited] + TOLERANCE).all(axis=1)
        some = np.flatnonzero(able)
        if not len(some):
            return None
        alone = some[self._covers(self.dense[some][:, rows], need[rows])]
        best: Swap | None = None
        if len(alone):
            pick = int(alone[np.argmin(self.cost[alone])])
            best, budget = Swap(out=out, into=(pick,)), float(self.cost[pick]) - GAIN
        pair = self._pair(some, rows, need, room, budget)
        return Swap(out=out, into=pair) if pair is not None else best

    def _pair(self, some: Whole, rows: Whole, need: Floats, room: Floats, budget: float) -> tuple[int, int] | None:
        """`rows`: those that ask for something of `need`."""
        cost = self.cost[some]
        fine = (cost[:, None] + cost[None, :] < budget) & np.tri(len(some), dtype=np.bool_)
        for row in rows.tolist():
            part = self.dense[some, row]
            fine &= part[:, None] + part[None, :] >= need[row] - TOLERANCE
        for row in self.limited.tolist():
            part = self.dense[some, row]
            fine &= part[:, None] + part[None, :] <= room[row] + TOLERANCE
        one, other = np.nonzero(fine)
        if not len(one):
            return None
        pick = int(np.argmin(cost[one] + cost[other]))
        return int(some[one[pick]]), int(some[other[pick]])

    @staticmethod
    def _covers(parts: Floats, need: Floats) -> Flags:
        return np.asarray((parts >= need - TOLERANCE).all(axis=1))


def small_enough(master: Master, relaxed: Relaxed) -> bool:
    """Whether an integer programme has a chance."""
    return len(master.problem.workloads) <= WORKLOADS_MAX and relaxed.values[master.slacks :].sum() <= DEVICES_MAX


def shake(search: Generation, deadline: Deadline, rng: np.random.Generator) -> None:
    """Patterns that would be best if demand were priced somewhat differently."""
    master, pricing, relaxed = search.master, search.pricing, search.relaxed
    for _ in range(SHAKES):
        if deadline.left_part < SHAKE_UNTIL:
            break
        deadline.spend(pricing.units_of_work)
        duals = relaxed.row_duals.copy()
        duals[: master.rows.pool_at] *= np.exp(rng.normal(0.0, SHAKE, master.rows.pool_at))
        duals[master.rows.pool_at :] *= rng.uniform()
        found = pricing.price(master.rows.item_prices(duals), 2, everything=True)
        pricing.learn(found)
        master.offer(found.rows)


def polished(scene: Scene, search: Generation, layout: Layout, deadline: Deadline, rng: np.random.Generator) -> Layout:
    """The best layout that swaps and the engine find; the given one at worst."""
    master, relaxed = search.master, search.relaxed
    master.offer(master.of_patterns(layout.patterns))
    number = {key.tobytes(): place for place, key in enumerate(master.judged.rows.keys)}
    held = np.zeros(master.size, dtype=np.int64)
    for key, count in zip(master.of_patterns(layout.patterns).keys, layout.counts, strict=True):
        if key.tobytes() in number:
            held[number[key.tobytes()]] += count
    chosen = np.union1d(promising(master, relaxed, _columns_most(master, deadline)), np.flatnonzero(held))
    program = _program(master, chosen)
    swaps = Swaps(program)
    counts = swaps.improve(held[chosen].astype(np.float64), deadline, deadline.left_part * (1 - SWAP_PART), rng)
    hint = np.concatenate([np.zeros(master.slacks), counts])
    short = np.maximum(0.0, program.row_lower - program.activity(hint))
    hint[: master.slacks] = short[program.row[program.start[: master.slacks]]]
    first = program.rows * len(chosen) // ENTRIES_PER_UNIT
    limits = limits_of(deadline, ENGINE_PART, first)
    if limits is not None:
        answer = create("highs").solve(program, limits, hint)
        deadline.spend(first + NODE_UNITS * int(answer.work))
        if answer.values is not None and answer.objective < float(program.cost @ hint) - WORTH_IT:
            counts = answer.values[master.slacks :]
    rows = master.judged.rows.take(chosen)
    return Solution.of_rows(scene.rules, rows, np.rint(counts).astype(np.int64)).layout()


def _columns_most(master: Master, deadline: Deadline) -> int:
    """How many columns the programme may have: where all that is within reach was added, no more than leaves work for
    the nodes after the first.
    """
    if not master.problem.by_memory or deadline.work_units is None:
        return COLUMNS_MAX
    units = FIRST_PART * deadline.left_part * deadline.work_units
    return max(COLUMNS_LEAST, min(COLUMNS_MAX, int(ENTRIES_PER_UNIT * units) // max(1, master.rows.count)))


def _program(master: Master, chosen: Whole) -> Program:
    numbers = np.concatenate([np.arange(master.slacks), chosen + master.slacks])
    some = master.columns.take(numbers)
    return Program(
        cost=some.cost,
        lower=np.zeros(len(numbers)),
        upper=some.upper,
        integer=numbers >= master.slacks,
        start=some.start,
        row=some.row,
        value=some.value,
        row_lower=master.rows.lower,
        row_upper=master.rows.upper,
    )


def limits_of(deadline: Deadline, part: float, first: int) -> Limits | None:
    """A part of what is left, for an engine: nodes where work is counted, else seconds. None where it is too little for
    the first node, which takes so many units.
    """
    if deadline.work_units is None:
        return Limits(time_s=part * deadline.left_s, gap=ENGINE_GAP)
    units = part * deadline.left_part * deadline.work_units - first
    return Limits(work=1 + units // NODE_UNITS, gap=ENGINE_GAP) if units > 0 else None
