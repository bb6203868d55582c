"""The solve: first answer, better answers, a bound; never worse than the first answer.

One problem goes through phases from the relaxed optimum to whole devices: price patterns, dive, make up what is short,
and exchange with what time is left. Every phase begins with the best so far and can only improve it. Problems of some
hundred workloads are solved whole, larger ones in groups, and what stays short then is made up on the whole problem.
Devices are named by seating.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from solvers.engines.contents import PROCESSORS
from solvers.engines.deadline import Deadline, charge, portion
from solvers.engines.highs import Relaxed
from solvers.planners.joint.solve.branch import Tree, few_devices
from solvers.planners.joint.solve.generate import (
    COARSE_PCT,
    CUT_ROUNDS,
    DIVE_PCT,
    REPEATS_MAX,
    Bound,
    Depth,
    Dive,
    Pace,
    Relaxation,
    completed,
    fitted,
    generate,
    singles,
)
from solvers.planners.joint.solve.groups import GroupLayout, groups_of, together
from solvers.planners.joint.solve.improve import improved, improved_at_once
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.listing import COLUMNS_KEPT, list_patterns, solved_whole
from solvers.planners.joint.solve.master import Master, Rows
from solvers.planners.joint.solve.pricing import LOOSE_WORKLOADS
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import EMPTY, Layout, Pattern, Patterns, Prices

GENERATE_UNTIL, DIVE_UNTIL = 0.7, 0.15
LATE, LATE_PART = 0.05, 0.5
"""To serve every rate comes before proving anything: a dive that leaves less has this much of what is kept."""
FIRST_ROUNDS, FIRST_UNITS, FIRST_UNITS_PER_WORKLOAD = 3, 50, 1.5
FIRST_PATTERNS_MAX = 2000
"""Of a first layout that is improved at once."""
TURN_UNITS, TURN_UNITS_PER_SIZE, SIZE_POWER = 30, 2.85, 1.3
"""Of the first turn, and of workloads by this power of their number."""
TURNS_UNTIL, TURNS_WORKLOADS_MAX = 0.1, 40
"""Of the deadline, kept from turns for the bound; with more workloads one turn finds more than several."""
IMPROVE_PART, COUNTED_UNTIL, COUNTED_PART, COUNTED_GAIN = 0.97, 0.15, 0.7, 5e-4
"""Of what is left, at last; of a turn, kept from counting; of what is left, an attempt; of the cost, worth one."""
MARGIN_DEVICES, MARGIN_FIRST, MARGIN_MOST = 0.6, 0.02, 0.1
MARGIN_LEAST, NARROW, RISES, FALLS = 5e-4, 1.2, 1.5, 0.5
"""Of all rates, for how much more devices are counted: at first, between two; what is not asked; what is asked next."""
AGAIN, AGAIN_PART, VAIN = 2, 0.2, 1e-4
"""Walks at the end of a turn of few workloads, work of each, as a part of what the turn may take before, and what they
gain in vain.
"""
RESTARTS, RESTART_PARTS, RESTARTS_UNTIL = 20, (0.5, 0.5, 0.3, 0.3), 0.02
"""Of a turn that finds nothing better from the best: what each walk takes of what is left, and what is too little."""
COMPLETE_PART = 0.3
PROOF_PART, PROOF_FAR_PART, CROWDED = 0.2, 0.4, 1.3
"""Of what generation leaves, kept for the bound; where it is far. To serve every rate comes before that. On a machine
that is no busier than that the bound is sought beside the search.
"""
END, WORKLOADS_MAX = 0.02, 700
"""Of the deadline, kept for putting the answer together; and so many are solved whole."""
GAP, GAP_BRANCHED, GAP_LAST, LOOK_OF_GAP_LAST = 0.005, 1.5e-3, 3e-4, 3.0
"""Of the relaxed optimum: a bound so near is near enough at first; before branching; and at last. How closely pricing
looks then, as a part of it.
"""
TURNS_GROW, TURNS_WORTH, TURNS_MOST = 2, 4, 12
"""So many times as much has each turn after the first one as that before; so many are worth their work; and more than
that there are not, for where all is found soon a turn takes nothing of what it may.
"""
WORTH_UNITS_LEAST, WORTH_UNITS_PER_SIZE, WORTH_POWER = 500, 15, 1.5
"""Of workloads, where nobody takes turns: longer searches of problems so large hardly find anything better."""
GROUPS_UNTIL = 0.56
"""Of what is left, kept from groups for what is about all of them."""
GROUPS_MEND_PART, GROUP_COLUMNS = 0.3, 1500
"""Patterns of each that the whole begins with."""
GROUP_PACE = Pace(rounds=30, until_part=GENERATE_UNTIL, repeats=REPEATS_MAX, finest_pct=DIVE_PCT, cut_rounds=CUT_ROUNDS)
"""Nothing is proven of a group alone, so nobody looks closely there."""
WHOLE_PACE = Pace(until_part=END, gap=GAP_LAST, first_pct=DIVE_PCT, first_part=0.1, spared=0.03)
"""Where groups have left off, and closely: a bound is no nearer than pricing looks."""
WHOLE_FINE_UNITS = 10, 7
"""Of work by workload, kept for looks at all shares; where those are as close as there is time for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOrder:
    """One order. All fields have a meaning when left out: a solve from nothing."""

    standing: Layout = EMPTY
    """What stands now; to keep any of it is cheaper by the launches that it saves."""
    warm: tuple[Pattern, ...] = ()
    """Patterns to begin with, from an earlier solve; those that no longer keep their promises are left out."""
    gap: float = 0.003
    """Stop when cost and bound are this near, as a fraction of the cost."""
    seed: int = 1
    launch_usd_per_s: float = 0.0002
    """$/h that may be spent to avoid one second of launching."""
    better: Callable[[Layout], None] | None = None
    """Told of every complete layout that is better than those before."""


@dataclass(slots=True)
class Phases:
    """A search in turns, each from the best so far: `found`, the one to begin with at first. `facts` are told."""

    problem: JointProblem
    order: SolveOrder
    found: Layout
    master: Master
    pace: Pace | None = None
    """Of the first programme; None: to the end, and some is kept for the bound."""
    margin: float = 0.0
    """Devices are counted for so much more than all rates next; 0: nothing was counted yet."""
    facts: dict[str, float] = field(default_factory=partial(defaultdict[str, float], float))
    columns: tuple[Pattern, ...] = ()
    relaxation: Relaxation | None = None
    bound: Bound | None = None
    polished: Layout | None = None
    """What walks at the end of a turn gained nothing from."""
    begun: tuple[Judge, Layout] | None = None
    """Of the fewest devices that served everybody so far, and with what contents that began."""
    beside: bool = False
    """Whether the bound is sought beside the search, on another processor."""
    deadline: Deadline = field(init=False)

    def turn(self, deadline: Deadline, seed: int) -> Layout:
        """All phases, as far as the deadline lets them. Of few workloads devices are counted before they are whole."""
        counts = self.pace is None and len(self.problem.workloads) <= TURNS_WORKLOADS_MAX
        problem, master, self.deadline, begun_s = self.problem, self.master, deadline, deadline.elapsed_s
        if fresh := not self.converged:
            if self.relaxation is None:
                master.offer(singles(problem, master.width))
                if problem.few_patterns:
                    list_patterns(master, deadline)
                master.offer(master.of_patterns((*self.found.patterns, *self.order.warm)))
                master.keep_standing(self.order.standing, self.order.launch_usd_per_s)
            pace = self.pace or replace(Pace.of(problem, GENERATE_UNTIL, GAP), proves=not self.beside)
            relaxation = generate(master, deadline, pace, self.relaxation)
            self.facts["generate_s"] += deadline.elapsed_s - begun_s
            if relaxation is None:
                return self.found
            self.relaxation, self.bound, usd = relaxation, relaxation.bound, relaxation.plain.value
            self.facts |= {"columns": master.size, "rounds": relaxation.rounds, "relaxed_usd_per_h": usd}
            kept = master.promising(relaxation.best, COLUMNS_KEPT)
            self.columns = tuple(master.judge.patterns(master.judged.take(kept)))
        assert self.relaxation is not None
        relaxed = self.relaxation.best
        if not counts:
            part = 0.0 if self.pace else PROOF_PART if self.converged else PROOF_FAR_PART
            self.deadline = portion(deadline, 1 - (LATE if self.beside else part))
        with ThreadPoolExecutor(1, thread_name_prefix="bound") as lane:
            asked = partial(_proof, self, portion(deadline, 1.0), GAP_LAST, beside=True)
            bound = lane.submit(asked) if self.beside else None
            self._search(relaxed, seed, deadline, counts=counts, fresh=fresh)
            if bound is not None:
                self.bound = bound.result()
        if counts:
            self._again(relaxed, seed, deadline)
        else:
            charge(deadline, self.deadline)
        return self.found

    @property
    def converged(self) -> bool:
        """Whether pricing has little left to find."""
        usd = 0.0 if self.relaxation is None else self.relaxation.plain.value
        return self.bound is not None and usd - self.bound.usd_per_h <= GAP * abs(usd)

    def _search(self, relaxed: Relaxed, seed: int, whole: Deadline, *, counts: bool, fresh: bool) -> None:
        """Counted devices or a dive, and exchange from whatever is best."""
        prices, judge = self.master.rows.prices(relaxed.row_duals), self.master.judge
        if counts:
            before, bases = self.found, self._counted(relaxed, prices, seed, fresh=fresh)
            if self.begun and before is self.found is self.polished:
                self._restarted(judge, *self.begun, prices, seed)
                return
        else:
            bases = [self._within("dive_s", 1.0, Dive(self.master, relaxed, Depth(until_part=DIVE_UNTIL)).run)]
            if late := self.deadline.left_part < LATE and self.pace is None:
                charge(whole, self.deadline)
                self.deadline = portion(whole, LATE_PART)
            if (bases[0] if late else self.found).missing(self.problem)[self.problem.must_serve].any():
                bases.append(self._within("complete_s", COMPLETE_PART, partial(completed, judge, bases[0])))
        if self.worth(self.found)[1] <= relaxed.value * (1 + self.order.gap):
            return
        # What is left a little short counts for what serving it costs.
        bases.sort(key=lambda item: item.usd_per_h + float(item.missing(self.problem) @ prices.demand_usd))
        for base in (*bases[:1], self.found):  # the second one where the search from the first has ended by itself
            self._within("improve_s", IMPROVE_PART, partial(improved, judge, base, prices, seed=seed))

    def _counted(self, relaxed: Relaxed, prices: Prices, seed: int, *, fresh: bool) -> list[Layout]:
        """As many devices of each pool as a programme counts for a little more than all rates, exchanged until these
        alone serve everybody: if they do less is asked for, if not more; what leaves somebody short. None twice, of a
        `fresh` optimum some.
        """
        problem, master, serve = self.problem, self.master, dict[bytes, bool]()
        devices = relaxed.values[master.slacks :].sum()
        self.margin = self.margin or float(np.clip(MARGIN_DEVICES / max(devices, 1.0), MARGIN_FIRST, MARGIN_MOST))
        least, most, margin, short = 0.0, np.inf, self.margin, list[Layout]()
        while self.deadline.left_part > COUNTED_UNTIL and (fresh or (margin > MARGIN_LEAST and most > NARROW * least)):
            fresh = False
            if (counted := master.counted(relaxed, 1 + margin, self.deadline)) is None:
                break
            (numbers, start, usd), name = counted, counted[0].tobytes()
            if usd >= self.found.judged_usd(problem) * (1 - COUNTED_GAIN):
                serve[name] = True
            if name not in serve:
                pools = zip(problem.pools, numbers.tolist(), strict=True)
                alone = Judge(replace(problem, pools=tuple(replace(pool, devices=count) for pool, count in pools)))
                attempt = partial(improved, alone, start, prices, seed=seed, serves=True)
                found = self._within("count_s", COUNTED_PART, attempt)
                serve[name] = not found.missing(problem)[problem.must_serve].any()
                if serve[name]:
                    self.begun = alone, start
                short += [] if serve[name] else [found]
                if serve[name] and found.missing(problem).any():  # whoever may wait
                    self._within("improve_s", COUNTED_PART, partial(improved, master.judge, found, prices, seed=seed))
            least, most = (least, margin) if serve[name] else (margin, most)
            margin = RISES * least if most == np.inf else FALLS * most if least == 0.0 else math.sqrt(least * most)
        if most < np.inf:  # the next turn, with more to search, begins with what was too little for this one
            self.margin = max(least or FALLS * most, MARGIN_LEAST)
        return short

    def _restarted(self, judge: Judge, alone: Judge, start: Layout, prices: Prices, seed: int) -> None:
        """Once more from where a count began, by other chance, as often as there is time for."""
        for first in range(seed, seed + RESTARTS * len(RESTART_PARTS), len(RESTART_PARTS)):
            if self.deadline.left_part < RESTARTS_UNTIL:
                return
            found = self._within(
                "count_s", RESTART_PARTS[0], partial(improved, alone, start, prices, seed=first, serves=True)
            )
            for at, part in enumerate(RESTART_PARTS[1:]):
                paid = None if at else prices
                found = self._within("improve_s", part, partial(improved, judge, found, paid, seed=first + at))

    def _again(self, relaxed: Relaxed, seed: int, deadline: Deadline) -> None:
        """Exchanged from the best, at prices of what it uses itself: what the relaxed optimum's do not find."""
        if self.found is self.polished:
            return
        before = self.found
        self.deadline = Deadline(deadline.time_left_s, math.ceil(AGAIN * AGAIN_PART * (deadline.work_units or 0)))
        for number in range(AGAIN):
            if self.worth(self.found)[1] > relaxed.value * (1 + self.order.gap):
                attempt = partial(improved, self.master.judge, self.found, None, seed=seed + 1 + number)
                self._within("improve_s", 1 / (AGAIN - number), attempt)
        if self.worth(self.found)[1] > (1 - VAIN) * self.worth(before)[1]:
            self.polished = self.found
        charge(deadline, self.deadline)

    def _within(self, name: str, part: float, phase: Callable[[Deadline], Layout]) -> Layout:
        """A phase with a part of what is left to itself: what it made, which is kept where it is better."""
        begun_s, within = self.deadline.elapsed_s, portion(self.deadline, part)
        after = phase(within)
        charge(self.deadline, within)
        if self.worth(after) < self.worth(self.found):
            self.found = after
            if self.order.better is not None:
                self.order.better(replace(after, bound_usd_per_h=None if self.bound is None else self.bound.usd_per_h))
        self.facts[name] += self.deadline.elapsed_s - begun_s
        return after

    def worth(self, layout: Layout) -> tuple[float, float]:
        return worth_of(self.problem, self.order, layout)


def first_layout(problem: JointProblem, time_left_s: float = 1e9, master: Master | None = None) -> Layout:
    """A layout at once that keeps every rule; demands that count least go without where devices lack. A few rounds of
    column generation at coarse shares and one dive in large steps: what they may look at grows with the number of
    workloads and is no part of anybody's budget, for without it there is nothing to answer. `master` has its patterns.
    """
    master = master or Master(problem, Judge(problem))
    master.offer(singles(problem, master.width))
    deadline = Deadline(time_left_s, FIRST_UNITS + int(FIRST_UNITS_PER_WORKLOAD * len(problem.workloads)))
    pace = Pace(rounds=FIRST_ROUNDS, repeats=REPEATS_MAX, finest_pct=COARSE_PCT)
    begun = generate(master, deadline, pace) if master.size else None
    if begun is None:
        return EMPTY
    depth = Depth(rounds=1, group_part=1.0, up_part=1.0, worth_part=0.9)
    return Dive(master, begun.best, depth).run(deadline)


def worth_of(problem: JointProblem, order: SolveOrder, layout: Layout) -> tuple[float, float]:
    """What layouts are compared by, as plans are: what is unserved, by priority, and then $/h, less what the launches
    are worth that keeping what stands saves.
    """
    unserved = float(problem.weight @ np.maximum(0.0, problem.least_rps - layout.served_rps(problem)))
    held = {item.key: devices for item, devices in layout.pairs}
    seconds = sum(
        min(devices, held.get(item.key, 0)) * sum(problem.variants[variant].launch_s for variant in item.variants)
        for item, devices in order.standing.pairs
    )
    return round(unserved, 3), layout.judged_usd(problem) - order.launch_usd_per_s * seconds


def solve(problem: JointProblem, order: SolveOrder, deadline: Deadline) -> Layout:
    """The best layout found before the deadline, with a proven bound where there was time for one. Facts: columns,
    rounds, the relaxed optimum (over the patterns found, so no bound), seconds by phase, and whether the first answer
    was the best. Raises EngineError when an engine breaks.
    """
    parts = groups_of(problem) if len(problem.workloads) > WORKLOADS_MAX else ()
    done = [GroupLayout(group=part, layout=first_layout(part.problem, deadline.time_left_s)) for part in parts]
    groups, master = len(done), None if done else Master(problem, Judge(problem))
    first = together(done) if master is None else first_layout(problem, deadline.time_left_s, master)
    facts = {"first_s": deadline.elapsed_s, "first_usd_per_h": first.value(problem)}
    if len(first.patterns) <= FIRST_PATTERNS_MAX:
        first = improved_at_once(Judge(problem), first)
    if order.better is not None:
        order.better(first)
    if not problem.workloads or not problem.kinds or deadline.over:
        return replace(first, facts=facts | {"first_won": 1.0})
    few = problem.few_patterns
    listed = solved_whole(problem, order.standing, order.launch_usd_per_s, deadline) if few else None
    if listed is not None and listed.facts["listed"]:
        return replace(listed, facts=facts | listed.facts | {"first_won": 0.0, "groups": 1.0})
    others = [] if listed is None else [listed]
    begin = min([first, order.standing, *others], key=partial(worth_of, problem, order))
    if master is None:
        found = _grouped(problem, order, done, deadline)
    else:
        found = _whole(problem, order, begin, deadline, master)
    best = min(found, begin, key=partial(worth_of, problem, order))
    bounds = [item.bound_usd_per_h for item in (found, *others) if item.bound_usd_per_h is not None]
    facts |= found.facts | {"first_won": float(best is first), "groups": float(groups or 1)}
    best = replace(found, patterns=best.patterns, counts=best.counts)
    return replace(best, bound_usd_per_h=max(bounds, default=None), facts=facts)


def worth_units(problem: JointProblem) -> float:
    """The work that a search is worth where nobody says how much it may take: whole turns."""
    workloads = len(problem.workloads)
    if workloads > TURNS_WORKLOADS_MAX:
        return WORTH_UNITS_LEAST + WORTH_UNITS_PER_SIZE * math.pow(workloads, WORTH_POWER)
    return _first_turn(workloads) * math.pow(TURNS_GROW, TURNS_WORTH) / (1.0 - TURNS_UNTIL)


def _first_turn(workloads: int) -> float:
    return TURN_UNITS + TURN_UNITS_PER_SIZE * math.pow(workloads, SIZE_POWER)


def _turns(problem: JointProblem, deadline: Deadline) -> Iterator[Deadline]:
    """What each turn may take. Each has more than the one before, by what the problem is and not by how much there is
    in all: so whoever has more work repeats what others do, and goes on from there: never to a dearer layout. Where
    time alone ends it, as many as there is time for by what the last took, and what is left at last if that is much.
    """
    units, turns = _first_turn(len(problem.workloads)), 0
    if len(problem.workloads) > TURNS_WORKLOADS_MAX:
        yield portion(deadline, 1.0)
        return
    if deadline.work_units is not None:
        while units <= (deadline.left_part - TURNS_UNTIL) * deadline.work_units and not deadline.late:
            yield Deadline(deadline.time_left_s, int(units))
            units *= TURNS_GROW
        return
    unit_s, kept_s = deadline.crowding / 1000, 0.0 if few_devices(problem) else PROOF_PART * deadline.seconds
    while not deadline.late and turns < TURNS_MOST:
        left = (deadline.time_left_s - kept_s) / unit_s
        if turns and left < units / TURNS_GROW:
            return
        units, begun_s = max(1.0, min(units, max(left, units / TURNS_GROW))), deadline.elapsed_s
        yield Deadline(deadline.time_left_s, math.ceil(units))
        unit_s, units, turns = (deadline.elapsed_s - begun_s) / units, units * TURNS_GROW, turns + 1


def _whole(problem: JointProblem, order: SolveOrder, first: Layout, deadline: Deadline, master: Master) -> Layout:
    """Turns, then the bound. Where devices are few, and so branched on, none may draw more than a cap leaves to one."""
    given = problem
    if few_devices(problem) and (alone := master.rows.alone()) is not problem:
        problem, master = alone, Master(alone, Judge(alone))
    branches, free = len(problem.workloads) <= TURNS_WORKLOADS_MAX, PROCESSORS > 1 and deadline.crowding < CROWDED
    beside = free and not branches and deadline.work_units is None
    phases, turns = Phases(problem, order, first, master, beside=beside), [first]
    for turn, within in enumerate(_turns(problem, deadline)):
        if (layout := phases.turn(within, order.seed + 1_000 * turn)) is not turns[-1]:
            turns.append(layout)
        charge(deadline, within)
        bound_usd = -np.inf if phases.bound is None else phases.bound.usd_per_h
        if phases.relaxation is None or phases.worth(layout)[1] <= bound_usd * (1 + order.gap):
            break
    layout, facts = turns[-1], phases.facts
    if phases.relaxation is None:
        return layout
    bound, begun_s, relaxed = phases.bound, deadline.elapsed_s, phases.relaxation.plain
    gap = GAP_BRANCHED if branches else GAP_LAST
    near = bound is not None and relaxed.value - bound.usd_per_h <= gap * abs(relaxed.value)
    if not (near or beside) and (deadline.work_units is not None or not few_devices(problem)):
        bound = _proof(phases, deadline, gap)
    rows = Rows(problem)
    duals, worth = (relaxed.row_duals, None) if bound is None else (bound.duals, bound.worth)
    prices = rows.prices(duals, worth if problem is given else None)
    usd = None if bound is None else bound.usd_per_h
    if usd is not None and branches and not few_devices(problem):
        usd = max(usd, Tree(search=master, usd=layout.judged_usd(problem), deadline=deadline).run())
    facts["bound_s"] = deadline.elapsed_s - begun_s
    return replace(
        layout, bound_usd_per_h=usd, prices=prices, columns=phases.columns, facts=facts, before=tuple(turns[:-1])
    )


def _proof(phases: Phases, deadline: Deadline, gap: float, *, beside: bool = False) -> Bound | None:
    """A nearer bound than generation ended with, where there is time: without cuts, whose duals prove little. `beside`
    a search on the same patterns: on one processor.
    """
    master, bound = phases.master, phases.bound
    if len(master.rows.cut_work) or beside:
        master = Master(master.problem, Judge(master.problem, lanes=1) if beside else master.judge)
        master.adopt(phases.master.judged)
    pace = Pace(until_part=END, gap=gap, first_pct=1, first_part=LOOK_OF_GAP_LAST * gap, proven=bound)
    found = generate(master, deadline, pace)
    if found is None:
        return bound
    phases.facts["relaxed_usd_per_h"] = found.best.value
    return found.bound


def _grouped(problem: JointProblem, order: SolveOrder, done: list[GroupLayout], deadline: Deadline) -> Layout:
    with ThreadPoolExecutor(PROCESSORS, thread_name_prefix="groups") as threads:
        until = GROUPS_UNTIL * deadline.left_part  # of what the first answer left: on a busy machine that is little
        answers = threads.map(partial(_alone, order, deadline, until, len(done)), range(len(done)), tuple(done))
        done[:] = answers
    # Not before all are done: what each may do must not depend on who is done already, or on plans written beside it.
    for item in done:
        if item.deadline is not None:
            charge(deadline, item.deadline)
    merged = together(done)
    if merged.missing(problem)[problem.must_serve].any() and not deadline.over:
        within = portion(deadline, GROUPS_MEND_PART)
        fixed = improved(Judge(problem), merged, None, within, order.seed)
        if fixed.judged_usd(problem) < merged.judged_usd(problem):
            merged = replace(merged, patterns=fixed.patterns, counts=fixed.counts)
        charge(deadline, within)
    patterns = [item.patterns for item in done if item.patterns is not None]
    done.clear()  # what follows needs the room
    if order.better is not None:
        order.better(merged)
    return _proven_together(problem, merged, patterns, deadline) if deadline.left_part > END else merged


def _alone(
    order: SolveOrder, deadline: Deadline, until: float, groups: int, place: int, item: GroupLayout
) -> GroupLayout:
    """One group, in a thread beside others: of counted work all have the same, of time whoever is still to come."""
    group, turns = item.group, -(-groups // PROCESSORS) - place // PROCESSORS
    parts = turns if deadline.work_units is None else groups
    part = (1 - until / max(deadline.left_part, until)) / parts
    if part <= 0.0:
        return item
    inside = replace(order, standing=group.standing(order.standing), warm=group.inside(order.warm), better=None)
    within = portion(deadline, part)
    phases = Phases(group.problem, inside, item.layout, Master(group.problem, Judge(group.problem)), GROUP_PACE)
    layout = replace(phases.turn(within, order.seed), columns=phases.columns, facts=phases.facts)
    if phases.relaxation is None:
        return replace(item, layout=layout, deadline=within)
    master, relaxed = phases.master, phases.relaxation.plain
    uncut = replace(relaxed, row_duals=fitted(relaxed.row_duals, master.rows.count))
    patterns = group.whole(master.judged.take(master.promising(uncut, GROUP_COLUMNS)).rows)
    return replace(item, layout=layout, deadline=within, patterns=patterns)


def _proven_together(problem: JointProblem, merged: Layout, patterns: list[Patterns], deadline: Deadline) -> Layout:
    """With a bound: one programme over the patterns of all groups, for devices had a price of their own in each."""
    master = Master(problem, Judge(problem))
    for some in (*patterns, Patterns.of(merged.patterns, master.width)):
        master.offer(some)
    units = deadline.work_units or 1000 * PROCESSORS * deadline.seconds
    works = len(problem.workloads)
    kept = WHOLE_FINE_UNITS[works > LOOSE_WORKLOADS] * works / units
    found = generate(master, deadline, replace(WHOLE_PACE, fine_until=kept))
    if found is None:
        return merged
    facts, bound = merged.facts | {"relaxed_usd_per_h": found.best.value}, found.bound
    duals, worth = (found.best.row_duals, None) if bound is None else (bound.duals, bound.worth)
    usd_per_h, prices = None if bound is None else bound.usd_per_h, master.rows.prices(duals, worth)
    return replace(merged, bound_usd_per_h=usd_per_h, prices=prices, facts=facts)
