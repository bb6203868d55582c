"""The solve: first answer, better answers, a bound; never worse than the first answer.

One problem goes through phases from the relaxed optimum to whole devices: price patterns, dive, make up what is short,
and exchange with what time is left. Every phase begins with the best so far and can only improve it. Problems of some
hundred workloads are solved whole, larger ones in groups, and what stays short then is made up on the whole problem.
Devices are named by seating.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from solvers.engines.contents import PROCESSORS
from solvers.engines.deadline import Deadline, charge, portion
from solvers.planners.joint.solve.branch import few_devices
from solvers.planners.joint.solve.generate import (
    COARSE_PCT,
    CUT_ROUNDS,
    DIVE_PCT,
    MARGIN,
    REPEATS_MAX,
    Bound,
    Depth,
    Dive,
    Generation,
    Pace,
    fitted,
    generate,
    singles,
)
from solvers.planners.joint.solve.groups import GroupLayout, groups_of, together
from solvers.planners.joint.solve.improve import improved, improved_at_once, with_fewer
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.listing import list_patterns, solved_whole
from solvers.planners.joint.solve.master import Master, Rows
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import EMPTY, Layout, Pattern, Patterns, Standing

GENERATE_UNTIL = 0.7
DIVE_UNTIL, DIVE_ALONE_UNTIL, DIVE_PART, DIVE_ROUNDS = 0.7, 0.3, 0.3, 6.5
"""Of what is left, a dive alone may take; and how many rounds of generation one of its own takes, in all its stages."""
SERVE_UNTIL = 0.08
"""To serve every rate comes before proving anything."""
FIRST_ROUNDS, FIRST_UNITS, FIRST_UNITS_PER_WORKLOAD = 3, 50, 1.5
FIRST_PATTERNS_MAX = 2000
"""Of a first layout that is improved at once."""
TURN_UNITS, TURN_UNITS_PER_SIZE, SIZE_POWER = 30, 2.85, 1.3
"""Of the first turn, and of workloads by this power of their number."""
TURNS_UNTIL, TURNS_WORKLOADS_MAX = 0.1, 40
"""Of the deadline, kept from turns for the bound; with more workloads one turn finds more than several."""
IMPROVE_FEW_PART = 0.7
DEVICES_FEW, EARLY_PART, IMPROVE_PART, ALONE_PART, MARGIN_FIRST, RISES, FALLS = 32, 0.2, 0.97, 0.7, 0.01, 1.5, 0.5
"""Of what is left: before a dive of few, at last, and for counted devices alone; of all rates, how much more counts."""
COMPLETE_ROUNDS, URGENT_DEVICES, COLUMNS_KEPT = 25, 1e5, 400
WORKLOADS_MAX = 700
"""Solved whole."""
PROOF_PART, PROOF_FAR_PART = 0.2, 0.4
"""Of what generation leaves, kept for the bound; where it is far. To serve every rate comes before that."""
END = 0.02
"""Of the deadline, kept for putting the answer together."""
GAP, GAP_LAST = 0.005, 3e-4
"""Of the relaxed optimum: a bound so near is near enough at first, and at last."""
TURNS_GROW, TURNS_WORTH = 2, 4
"""So many times as much has each turn after the first one as that before; and so many are worth their work."""
WORTH_UNITS_LEAST, WORTH_UNITS_PER_SIZE, WORTH_POWER = 500, 15, 1.5
"""Of workloads, where nobody takes turns: longer searches of problems so large hardly find anything better."""
SEEDS_APART, WARM_MAX = 1_000, 2000
"""Of turns: their seeds, and how many patterns each has from those before."""
GROUPS_UNTIL = 0.35
"""Of the deadline, kept from groups for what is about all of them."""
GROUPS_MEND_PART, GROUP_COLUMNS = 0.3, 1500
"""Patterns of each that the whole begins with."""
WHOLE_REPEATS = 64
"""Contents that have no workload in common, of all groups: so many are worth adding at once."""
GROUP_PACE = Pace(rounds=30, until_part=GENERATE_UNTIL, repeats=REPEATS_MAX, finest_pct=DIVE_PCT, cut_rounds=CUT_ROUNDS)
"""Nothing is proven of a group alone, so nobody looks closely there."""
WHOLE_PACE = Pace(until_part=END, gap=GAP_LAST, repeats=WHOLE_REPEATS, first_pct=DIVE_PCT, first_part=0.004)
"""Where groups have left off, and closely: a bound is no nearer than pricing looks."""
WHOLE_FINE_UNITS, WHOLE_FINE_MOST = 17, 0.3
"""Of work by workload, kept for two looks at all shares, and of the deadline at most."""


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
    better: Callable[[Layout], None] | None = None
    """Told of every complete layout that is better than those before."""


DEPTHS = (
    Depth(rounds=6, group_part=0.4, up_part=0.5, until_part=DIVE_UNTIL),
    Depth(rounds=3, group_part=0.1, up_part=0.1, until_part=DIVE_UNTIL),
    Depth(rounds=3, group_part=0.2, up_part=0.25, until_part=DIVE_UNTIL),
    Depth(rounds=6, group_part=1.0, up_part=0.25, until_part=DIVE_UNTIL),
)
"""Of the turns' dives, again and again: a device more or less decides, so many ways are luckier than one."""


def layout_of(standing: Sequence[Standing]) -> Layout:
    return Layout(patterns=tuple(item.pattern for item in standing), counts=tuple(item.devices for item in standing))


@dataclass(slots=True)
class Phases:
    """One turn. `found` is the answer so far, the one to begin with at first; `facts` are told."""

    problem: JointProblem
    order: SolveOrder
    deadline: Deadline
    found: Layout
    depth: Depth | None = None
    """None, of a turn alone: as deep as there is time for, and some is kept for the bound but where a pace is given."""
    master: Master | None = None
    margin: float = 0.0
    """Devices are counted for so much more than all rates before they are whole; 0: they are not."""
    pace: Pace | None = None
    """Of the first programme; None: to the end."""
    facts: dict[str, float] = field(default_factory=partial(defaultdict[str, float], float))
    columns: tuple[Pattern, ...] = ()
    search: Generation | None = None
    bound: Bound | None = None

    def run(self) -> Layout:
        """All phases, as far as the deadline lets them."""
        problem, whole, begun_s = self.problem, self.deadline, self.deadline.elapsed_s
        master = self.master or Master(problem, Judge(problem))
        master.offer(singles(problem, master.width))
        if problem.few_patterns:
            list_patterns(master, self.deadline)
        master.offer(master.of_patterns((*self.found.patterns, *self.order.warm)))
        master.keep_standing(self.order.standing, self.order.launch_usd_per_s)
        relaxation = generate(master, self.deadline, self.pace or Pace.of(problem, GENERATE_UNTIL, GAP))
        self.facts |= {"columns": master.size, "generate_s": self.deadline.elapsed_s - begun_s}
        if relaxation is not None:
            begin = Generation(master=master, relaxed=relaxation.best)
            self.search, self.bound = replace(begin, relaxed=relaxation.plain or relaxation.best), relaxation.bound
            self.facts |= {"rounds": relaxation.rounds, "relaxed_usd_per_h": self.search.relaxed.value}
            depth = self.depth
            if depth is None:
                usd, rate = self.search.relaxed.value, relaxation.rounds / max(1 - whole.left_part, 1e-9)
                rounds = np.clip(DIVE_PART * whole.left_part * rate / DIVE_ROUNDS, 1, DEPTHS[0].rounds)
                far = self.bound is None or usd - self.bound.usd_per_h > GAP * abs(usd)
                self.deadline = portion(whole, 1 - (PROOF_FAR_PART if far else PROOF_PART) * (self.pace is None))
                depth = replace(DEPTHS[0], rounds=int(rounds), until_part=DIVE_ALONE_UNTIL)
            self._search(begin, depth)
            if self.deadline is not whole:
                charge(whole, self.deadline)
            kept = master.promising(relaxation.best, COLUMNS_KEPT)
            self.columns = tuple(master.judge.patterns(master.judged.take(kept)))
        return self.found

    def _search(self, begin: Generation, depth: Depth) -> None:
        """A dive, and exchange from whatever is best; where devices are few, before the dive, too."""
        prices, judge, seed = begin.master.rows.prices(begin.relaxed.row_duals), begin.master.judge, self.order.seed
        few = float(begin.relaxed.values[begin.master.slacks :].sum()) <= DEVICES_FEW
        if few:
            self._within("improve_s", EARLY_PART, partial(improved, judge, self.found, prices, seed=seed))
        dived, counted = self._within("dive_s", 1.0, partial(self._dived, begin, depth)), self.margin > 0.0
        short = dived if counted else self.found
        if short.missing(self.problem)[self.problem.must_serve].any():
            dived = self._within("complete_s", 1.0, partial(completed, judge, short))
        if self.worth(self.found)[1] <= begin.relaxed.value * (1 + self.order.gap):
            return
        bases = [self.found, dived]  # what is left a little short counts for what serving it costs
        bases.sort(key=lambda item: item.usd_per_h + float(item.missing(self.problem) @ prices.demand_usd))
        for base in bases:  # the second one where the search from the first has ended by itself
            part = IMPROVE_FEW_PART if few else IMPROVE_PART
            self._within("improve_s", part, partial(improved, judge, base, prices, seed=seed))
        if few:
            self._within("fewer_s", 1.0, partial(with_fewer, judge, self.found, seed=seed))

    def _dived(self, begin: Generation, depth: Depth, deadline: Deadline) -> Layout:
        """Whole devices; with a margin as many of each pool as a programme counts for so much more, exchanged until
        these alone serve everybody: if they do the next turn asks for less, if not for more."""
        problem, master, rows = self.problem, begin.master, begin.master.rows
        numbers = master.numbers(begin.relaxed, 1 + self.margin, deadline) if self.margin else None
        if numbers is None:
            return Dive(begin, depth).run(deadline)
        taken = np.zeros(rows.base)
        taken[: rows.pool_at], taken[rows.pool_at : rows.cap_at] = -MARGIN, problem.pool_devices - numbers
        rest = Master(problem, master.judge, taken)
        rest.adopt(master.judged.take(master.promising(begin.relaxed, WARM_MAX)))
        found = generate(rest, deadline, Pace(rounds=FIRST_ROUNDS, finest_pct=DIVE_PCT))
        if found is None:
            return self.found
        dived = Dive(Generation(master=rest, relaxed=found.best), depth, taken).run(deadline)
        pools = (replace(pool, devices=count) for pool, count in zip(problem.pools, numbers.tolist(), strict=True))
        within, judge = portion(deadline, ALONE_PART), Judge(replace(problem, pools=tuple(pools)))
        layout = improved(judge, dived, rest.rows.prices(found.best.row_duals), within, self.order.seed)
        charge(deadline, within)
        self.margin *= RISES if layout.missing(problem)[problem.must_serve].any() else FALLS
        return layout

    def _within(self, name: str, part: float, phase: Callable[[Deadline], Layout]) -> Layout:
        """A phase with a part of what is left to itself: what it made, which is kept where it is better."""
        begun_s, within = self.deadline.elapsed_s, portion(self.deadline, part)
        after = phase(within)
        charge(self.deadline, within)
        if self.worth(after) < self.worth(self.found):
            self.found = after
            if self.order.better is not None:
                self.order.better(after)
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
    begin = Generation(master=master, relaxed=begun.best)
    return Dive(begin, Depth(rounds=1, group_part=1.0, up_part=1.0)).run(deadline)


def worth_of(problem: JointProblem, order: SolveOrder, layout: Layout) -> tuple[float, float]:
    """What layouts are compared by, as plans are: what is unserved, by priority, and then $/h, less what the launches
    are worth that keeping what stands saves.
    """
    served, works = layout.served_rps(problem), problem.workloads
    short = (max(0.0, work.rate_least_rps - float(rate)) for work, rate in zip(works, served, strict=True))
    unserved = sum(max(1, work.priority) * rate for work, rate in zip(works, short, strict=True))
    held = dict(zip((item.key for item in layout.patterns), layout.counts, strict=True))
    seconds = sum(
        min(item.devices, held.get(item.pattern.key, 0))
        * sum(problem.variants[variant].launch_s for variant in item.pattern.variants)
        for item in order.standing
    )
    return round(unserved, 3), layout.judged_usd(problem) - order.launch_usd_per_s * seconds


def completed(judge: Judge, layout: Layout, deadline: Deadline) -> Layout:
    """What is still short placed on devices that are still free, at a price on what is unserved that makes any device
    worth it, however little is missing.
    """
    price = URGENT_DEVICES * max(judge.problem.dearest_usd, 1e-3)
    works = (
        work if work.may_wait else replace(work, unserved_usd=max(work.unserved_usd, price))
        for work in judge.problem.workloads
    )
    problem = replace(judge.problem, workloads=tuple(works))
    taken = Master(problem, judge).taken_by(layout)
    rest = Master(problem, judge, taken)
    relaxation = generate(rest, deadline, Pace(rounds=COMPLETE_ROUNDS, until_part=SERVE_UNTIL))
    if relaxation is None:
        return layout
    begin = Generation(master=rest, relaxed=relaxation.best)
    return layout.and_also(Dive(begin, Depth(until_part=SERVE_UNTIL), taken).run(deadline))


def solve(problem: JointProblem, order: SolveOrder, deadline: Deadline) -> Layout:
    """The best layout found before the deadline, with a proven bound where there was time for one. Facts: columns,
    rounds, the relaxed optimum (over the patterns found, so no bound), seconds by phase, and whether the first answer
    was the best. Raises EngineError when an engine breaks.
    """
    groups = groups_of(problem) if len(problem.workloads) > WORKLOADS_MAX else ()
    done = [GroupLayout(group=group, layout=first_layout(group.problem, deadline.time_left_s)) for group in groups]
    master = Master(problem, Judge(problem))
    first = together(done) if groups else first_layout(problem, deadline.time_left_s, master)
    facts = {"first_s": deadline.elapsed_s, "first_usd_per_h": first.value(problem)}
    if len(first.patterns) <= FIRST_PATTERNS_MAX:
        first = improved_at_once(Judge(problem), first)
    if order.better is not None:
        order.better(first)
    if not problem.workloads or not problem.kinds or deadline.over:
        return replace(first, facts=facts | {"first_won": 1.0})
    begin = min(first, layout_of(order.standing), key=partial(worth_of, problem, order))
    proven_usd = None
    if problem.few_patterns:
        listed = solved_whole(problem, order.standing, order.launch_usd_per_s, deadline)
        if listed is not None and listed.facts["listed"]:
            return replace(listed, facts=facts | listed.facts | {"first_won": 0.0, "groups": 1.0})
        if listed is not None:
            proven_usd = listed.bound_usd_per_h
            begin = min(begin, listed, key=partial(worth_of, problem, order))
    found = _grouped(problem, order, done, deadline) if groups else _whole(problem, order, begin, deadline, master)
    best = min(found, begin, key=partial(worth_of, problem, order))
    bounds = [usd for usd in (found.bound_usd_per_h, proven_usd) if usd is not None]
    facts |= found.facts | {"first_won": float(best is first), "groups": float(len(groups) or 1)}
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
    """What each turn may take. Of counted work each has more than the one before, by what the problem is and not by how
    much there is in all: so whoever has more repeats what others do, and goes on from there: never to a dearer layout.
    """
    units = _first_turn(len(problem.workloads))
    if deadline.work_units is None or len(problem.workloads) > TURNS_WORKLOADS_MAX:
        yield portion(deadline, 1.0 if len(problem.workloads) > TURNS_WORKLOADS_MAX else 1.0 - PROOF_PART)
        return
    while units <= (deadline.left_part - TURNS_UNTIL) * deadline.work_units and not deadline.late:
        yield Deadline(deadline.time_left_s, int(units))
        units *= TURNS_GROW


def _whole(problem: JointProblem, order: SolveOrder, first: Layout, deadline: Deadline, master: Master) -> Layout:
    """Turns, each from the best so far with the patterns of those before; then the bound."""
    margin, turns, phases, facts = MARGIN_FIRST, [first], None, defaultdict[str, float](float)
    for turn, within in enumerate(_turns(problem, deadline)):
        seed = order.seed + SEEDS_APART * turn
        phases = Phases(problem, replace(order, seed=seed), within, turns[-1], master=master, facts=facts)
        if len(problem.workloads) <= TURNS_WORKLOADS_MAX:
            phases.depth, phases.margin, phases.master = DEPTHS[turn % len(DEPTHS)], margin * (turn > 0), None
        if (layout := phases.run()) is not turns[-1]:
            turns.append(layout)
        charge(deadline, within)
        margin = phases.margin or margin
        order = replace(order, warm=(*phases.columns, *order.warm)[:WARM_MAX])
        bound_usd = -np.inf if phases.bound is None else phases.bound.usd_per_h
        if phases.search is None or worth_of(problem, order, layout)[1] <= bound_usd * (1 + order.gap):
            break
    layout = turns[-1]
    if phases is None or phases.search is None:
        return layout
    bound, begun_s, relaxed = phases.bound, deadline.elapsed_s, phases.search.relaxed
    near = bound is not None and relaxed.value - bound.usd_per_h <= GAP_LAST * abs(relaxed.value)
    if not near and not few_devices(problem):  # of few the chosen plan is branched on
        bound = _proven(phases, phases.search, deadline)
    rows = Rows(problem)
    prices = rows.prices(relaxed.row_duals) if bound is None else rows.prices(bound.duals, bound.worth)
    facts["bound_s"] = deadline.elapsed_s - begun_s
    usd = None if bound is None else bound.usd_per_h
    return replace(
        layout, bound_usd_per_h=usd, prices=prices, columns=phases.columns, facts=facts, before=tuple(turns[:-1])
    )


def _proven(phases: Phases, search: Generation, deadline: Deadline) -> Bound | None:
    """A nearer bound than generation ended with, where there is time: without cuts, whose duals prove little."""
    master, bound = search.master, phases.bound
    if len(master.rows.cut_work):
        master = Master(master.problem, master.judge)
        master.adopt(search.master.judged)
    found = generate(master, deadline, Pace(until_part=END, gap=GAP_LAST, fine=True, proven=bound))
    if found is None:
        return bound
    phases.facts["relaxed_usd_per_h"] = found.best.value
    return found.bound


def _grouped(problem: JointProblem, order: SolveOrder, done: list[GroupLayout], deadline: Deadline) -> Layout:
    with ThreadPoolExecutor(PROCESSORS, thread_name_prefix="groups") as threads:
        answers = threads.map(partial(_alone, order, deadline, len(done)), range(len(done)), tuple(done))
        for place, item in enumerate(answers):
            done[place] = item
            if order.better is not None:
                order.better(together(done))
    # Not before all are done: what each may do must not depend on who is done already.
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
    return _proven_together(problem, merged, patterns, deadline) if deadline.left_part > END else merged


def _alone(order: SolveOrder, deadline: Deadline, groups: int, place: int, item: GroupLayout) -> GroupLayout:
    """One group, in a thread beside others: of counted work all have the same, of time whoever is still to come."""
    group, turns = item.group, -(-groups // PROCESSORS) - place // PROCESSORS
    parts = turns if deadline.work_units is None else groups
    part = (1 - GROUPS_UNTIL / max(deadline.left_part, GROUPS_UNTIL)) / parts
    if part <= 0.0:
        return item
    inside = replace(order, standing=group.standing(order.standing), warm=group.inside(order.warm), better=None)
    within = portion(deadline, part)
    phases = Phases(problem=group.problem, order=inside, deadline=within, found=item.layout, pace=GROUP_PACE)
    layout = replace(phases.run(), columns=phases.columns, facts=phases.facts)
    if phases.search is None:
        return replace(item, layout=layout, deadline=within)
    master, relaxed = phases.search.master, phases.search.relaxed
    uncut = replace(relaxed, row_duals=fitted(relaxed.row_duals, master.rows.count))
    patterns = group.whole(master.judged.take(master.promising(uncut, GROUP_COLUMNS)).rows)
    return replace(item, layout=layout, deadline=within, patterns=patterns)


def _proven_together(problem: JointProblem, merged: Layout, patterns: list[Patterns], deadline: Deadline) -> Layout:
    """With a bound: one programme over the patterns of all groups, for devices had a price of their own in each."""
    master = Master(problem, Judge(problem))
    for some in patterns:
        master.offer(some)
    units = deadline.work_units or 1000 * PROCESSORS * deadline.seconds
    kept = min(WHOLE_FINE_MOST, WHOLE_FINE_UNITS * len(problem.workloads) / units)
    pace = replace(WHOLE_PACE, fine_until=kept)
    found = generate(master, deadline, pace)
    if found is None:
        return merged
    facts, bound = merged.facts | {"relaxed_usd_per_h": found.best.value}, found.bound
    duals, worth = (found.best.row_duals, None) if bound is None else (bound.duals, bound.worth)
    usd_per_h, prices = None if bound is None else bound.usd_per_h, master.rows.prices(duals, worth)
    return replace(merged, bound_usd_per_h=usd_per_h, prices=prices, facts=facts)
