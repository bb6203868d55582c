"""Column generation, and the dive from parts of devices to whole ones.

Patterns are priced between the duals of the relaxed optimum and those that proved the best bound so far, until both
are near each other or nothing improves it. The nearer they are, the closer pricing looks.

A dive keeps the whole parts, stage by stage. After every stage the problem is the rest of the demand on the rest of the
devices, nothing counts for more than is still asked, and new patterns are priced for exactly that. Workloads with the
fewest replicas are decided first, while all others can still fill what is left beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solvers.domain.arrays import Floats, Whole
from solvers.engines.deadline import Deadline
from solvers.engines.highs import Relaxed
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.master import PART_LEAST, Master, Rows
from solvers.planners.joint.solve.pricing import LOOK_LEAST, Look, Pricing, lagrangian
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout, Patterns

SMOOTH = 0.5
ROUNDS_MAX = 400
SETTLED_DEVICES = 32
"""Of fewer, what all are worth too much is less than what demand would have to be worth less."""
REPEATS = 3
REPEATS_MAX = 8
LOOK_FIRST, LOOK_FINE, LOOK_OF_GAP = 0.01, 0.002, 0.2
"""How far above what it found pricing may stay, of what devices cost: first, first and fine; and of the gap."""
LOOK_LOOSE, SLOW = 0.03, 5e-4
"""Where no bound is wanted: that part always, and how little a round may bring before finer shares are looked at."""
COARSE_PCT, DIVE_PCT, NEAR = 10, 5, 0.012
"""Shares at first; where the bound at those is so near, finer ones are looked at."""
CLOSER = 4.0
"""So much closer it looks where it found nothing."""
FINE_MOST = 0.4
"""Of the deadline, for finer shares at most."""
PROVEN_PART = 0.6
"""Of what is left to others, so much stays theirs where there is no bound yet."""
SINGLES_MAX = 8_000
UNITS_BESIDE, WORKLOADS_PER_UNIT, ENTRIES_PER_UNIT = 1, 100, 90_000
CUT_ROUNDS, CUT_WORKLOADS_MAX = 12, 40
"""Where there are more, parts of replicas are a small matter, and the time is better spent on dives."""
UP_LEAST = 0.5
ADOPT_MAX = 3000
STAGES_MAX, STAGE_UNITS, STAGE_ROUNDS, STAGES_LIKE, UNCUT = 300, 3, 6, 8, 3
COMPLETE_ROUNDS, SERVE_UNTIL, URGENT_DEVICES = 25, 0.08, 1e5
"""Who is short of a whole layout: looks at most, of what is kept, and of the dearest device what a rate is worth."""
MARGIN = 0.001
"""Part of a rate that is served beyond it: the last thousandth is not worth a device, so it would stay behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """No layout costs less; the duals that prove it, and by pool what no pattern is worth above its device's price."""

    usd_per_h: float
    duals: Floats
    worth: Floats

    @staticmethod
    def of(rows: Rows, duals: Floats, worth: Floats) -> Bound:
        return Bound(usd_per_h=lagrangian(rows, duals, worth), duals=duals, worth=worth)


@dataclass(slots=True, kw_only=True)
class Relaxation:
    """Where column generation is, and ended."""

    best: Relaxed
    plain: Relaxed
    """Where it was before cuts."""
    centre: Floats
    """Duals of the best bound at the shares that are looked at; prices are sought between these and the optimum's."""
    proven: float = -np.inf
    """That bound."""
    exact: bool = False
    """Prices are sought at the optimum's own duals: in between nothing was found."""
    rounds: int = 0
    part: float = LOOK_FIRST
    """How closely pricing looks."""
    step_pct: int = 1
    """Shares that it looks at are multiples of this."""
    bound: Bound | None = None

    @property
    def gap(self) -> float:
        """Between the relaxed optimum and what is proven at the shares that are looked at, as a part."""
        return (self.best.value - self.proven) / max(abs(self.best.value), 1e-9)

    def refine(self, step_pct: int) -> None:
        """From here on at these shares: what was proven of others says nothing."""
        self.step_pct, self.proven, self.exact = step_pct, -np.inf, False


def singles(problem: JointProblem, width: int) -> Patterns:
    """One replica alone on a device: all shares as long as they are few, else the whole device only."""
    kinds, variants, shares = problem.kinds, len(problem.variants), problem.shares_pct
    if kinds * variants * len(shares) > SINGLES_MAX:
        shares = shares[-1:]
    rows = Patterns.singles(np.arange(kinds), np.arange(variants), shares)
    return rows.take(problem.allowed[problem.kind_pool[rows.kind], rows.variants[:, 0]]).widened(width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long to go on: rounds, and the part of the deadline that is left to others."""

    rounds: int = ROUNDS_MAX
    until_part: float = 0.0
    repeats: int = REPEATS
    gap: float | None = None
    """Go on until a bound is so near; None: without a bound, as long as anything is found."""
    finest_pct: int = 1
    """Shares that are multiples of this are near enough."""
    first_pct: int = COARSE_PCT
    first_part: float = LOOK_FIRST
    """Shares at first are multiples of this, and how closely to look then."""
    fine_until: float = 0.0
    """With so little of the deadline left finer shares are looked at, however far the bound is: of time with more where
    work takes longer, see `FINE_MOST`.
    """
    spared: float = 0.5
    """How far below what is allowed prices settle, of it: less is a nearer bound, and takes small problems longer."""
    proves: bool = True
    """Whether a bound is wanted, however near the end is."""
    prior: Floats | None = None
    proven: Bound | None = None
    """Duals to begin the smoothing from, and what is known already."""
    cut_rounds: int = 0
    """How many rounds more once what the optimum makes of parts of replicas is forbidden."""

    @classmethod
    def of(cls, problem: JointProblem, until_part: float, gap: float) -> Pace:
        """To the end, with more patterns a round the more workloads there are."""
        return cls(
            until_part=until_part,
            cut_rounds=CUT_ROUNDS if len(problem.workloads) <= CUT_WORKLOADS_MAX else 0,
            gap=gap,
            repeats=int(np.clip(len(problem.workloads) // 100, REPEATS, REPEATS_MAX)),
        )


def generate(master: Master, deadline: Deadline, pace: Pace, begun: Relaxation | None = None) -> Relaxation | None:
    """Price until the pace ends it; None when not even the first programme could be solved; `begun` goes on."""
    primal = master.programme.begun or len(master.problem.workloads) <= CUT_WORKLOADS_MAX
    solved, pricing = master.programme.solve(primal=primal), Pricing(master.judge, master.rows, master.width)
    if solved is None:
        return None
    step = max(1, master.problem.share_step_pct)
    first_pct = step * max(1, pace.first_pct // step)
    state = Relaxation(best=solved, plain=solved, centre=solved.row_duals, step_pct=first_pct, part=pace.first_part)
    if begun is not None:
        state = replace(begun, best=solved, centre=fitted(begun.centre, master.rows.count), part=LOOK_FIRST, rounds=0)
        state.refine(begun.step_pct)
    if pace.proven is not None:
        state.centre, state.proven, state.bound = pace.proven.duals, pace.proven.usd_per_h, pace.proven
    elif pace.prior is not None:
        state.centre = pace.prior
    if pace.gap is None:
        state.part = LOOK_LOOSE
    _converge(master, pricing, deadline, pace, state)
    if pace.gap is not None and pace.proves and state.bound is None and not deadline.over:
        # Time may not do for more, and no bound is worse than a few patterns less.
        state.refine(step)
        state.part = LOOK_FINE
        _round(master, pricing, deadline, replace(pace, until_part=PROVEN_PART * pace.until_part), state)
        state.best = master.programme.solve(max(0.1, deadline.left_s)) or state.best
    state.plain = state.best
    near = pace.gap is None or (state.bound is not None and state.gap <= pace.gap)
    if pace.cut_rounds and near and deadline.left_part > pace.until_part and _tightened(master, deadline, state):
        again, state.part = pace.gap is None, LOOK_LOOSE
        pace = replace(pace, rounds=state.rounds + pace.cut_rounds, gap=None)
        state.refine(state.step_pct)
        _converge(master, pricing, deadline, pace, state, cuts=again)
    return state


def _converge(
    master: Master, pricing: Pricing, deadline: Deadline, pace: Pace, state: Relaxation, *, cuts: bool = False
) -> None:
    """Price with the rows as they are, or with more cuts after every round: coarse shares first."""
    step = max(1, master.problem.share_step_pct)
    finest = step * max(1, pace.finest_pct // step)
    while state.rounds < pace.rounds and deadline.left_part > pace.until_part:
        deadline.spend(units_of(master))
        state.rounds += 1
        before, left_part = state.best.value, deadline.left_part
        added = _round(master, pricing, deadline, pace, state)
        closely = pace.fine_until > 0.0 and state.step_pct == step
        if closely and pricing.nearest(deadline, pace.until_part) > state.part:
            break  # another look like this one would not end
        if added:
            answer = master.programme.solve(max(0.1, deadline.left_s))
            if answer is None:
                break
            state.best = answer
            if cuts and _tightened(master, deadline, state) is False:
                break
        if pace.gap is not None and state.step_pct == step and state.gap <= pace.gap:
            break
        wanted, like_this = pace.fine_until * pricing.slowness(deadline), left_part - deadline.left_part
        hurries = wanted > 0 and deadline.left_part - like_this <= min(FINE_MOST, wanted)
        slow = hurries or (pace.gap is None and before - state.best.value <= SLOW * abs(before))
        if state.step_pct > finest and (slow or state.gap <= NEAR or (state.exact and not added)):
            if hurries:
                state.part = max(min(state.part, LOOK_OF_GAP * state.gap), pricing.nearest(deadline, pace.until_part))
            state.refine(finest if hurries else finest * max(1, state.step_pct // 2 // finest))
        elif not added:
            if state.exact and state.part <= LOOK_LEAST:
                break
            state.part = max(LOOK_LEAST, state.part / CLOSER)
            state.exact = True
        else:
            state.exact = False
            if pace.gap is not None:
                least = pricing.nearest(deadline, pace.until_part) if closely else LOOK_LEAST
                state.part = min(state.part, max(least, LOOK_OF_GAP * state.gap))


def _tightened(master: Master, deadline: Deadline, state: Relaxation) -> bool | None:
    """Cut off the optimum, if it breaks a cut, and solve again: whether there was time for it."""
    if not master.tighten(state.best):
        return None
    answer, rows = master.programme.solve(max(0.1, deadline.left_s), primal=False), master.rows.count
    state.best = answer or replace(state.best, row_duals=fitted(state.best.row_duals, rows))
    state.centre = fitted(state.centre, rows)
    return answer is not None


def units_of(master: Master) -> int:
    """Work of a round beside pricing: a solve of the master."""
    beside = UNITS_BESIDE + len(master.problem.workloads) // WORKLOADS_PER_UNIT
    return beside + (master.size * master.rows.count) // ENTRIES_PER_UNIT


def fitted(duals: Floats, rows: int) -> Floats:
    """Duals of fewer rows: those that came later are worth nothing yet."""
    return np.concatenate([duals[:rows], np.zeros(max(0, rows - len(duals)))])


def _round(master: Master, pricing: Pricing, deadline: Deadline, pace: Pace, state: Relaxation) -> int:
    weight = 0.0 if state.exact else SMOOTH
    duals = weight * state.centre + (1 - weight) * state.best.row_duals
    if pace.fine_until > 0.0:
        duals = master.rows.on_demand(duals)  # prices of floors do not settle
    settles = pace.gap is not None and bool(master.problem.pool_devices.sum() > SETTLED_DEVICES)
    spared = pace.spared if settles else 0.0
    look = Look(part=state.part, step_pct=state.step_pct, repeats=pace.repeats, settles=spared)
    found = pricing.price(duals, look, deadline, pace.until_part)
    bound = Bound.of(master.rows, found.duals, found.ceilings)
    if pace.gap is None or bound.usd_per_h > state.proven:
        state.centre, state.proven = found.duals, bound.usd_per_h
    best = -np.inf if state.bound is None else state.bound.usd_per_h
    if pace.gap is not None and state.step_pct == master.problem.share_step_pct and bound.usd_per_h > best:
        state.bound = bound
    return master.offer(found.rows, duals)


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How to dive: most pricing rounds of a stage, of the devices left how many a stage looks at, of the fractions
    there how many are rounded up in one stage, as long as each is still worth so much of what it was, and the part of
    the deadline left to others: from there on nothing is priced any more. Stages have as many rounds as there is time
    for, if so many more cost what the last one did.
    """

    rounds: int = 8
    group_part: float = 0.4
    up_part: float = 0.5
    worth_part: float = 0.97
    until_part: float = 0.0


class Dive:
    """One dive from a master's relaxed optimum, or from what was decided before."""

    def __init__(self, master: Master, relaxed: Relaxed, depth: Depth, taken: Floats | None = None) -> None:
        self.begin, self.depth, self.taken = (master, relaxed), depth, taken
        self.replicas = np.zeros(len(master.problem.workloads))
        self._chosen, self._counts = [Patterns.none(master.width)], [np.zeros(0, dtype=np.int64)]

    def run(self, deadline: Deadline) -> Layout:
        """Whole devices for all that the master asks, judged once more."""
        (master, relaxed), until = self.begin, self.depth.until_part
        rounds = min(STAGE_ROUNDS, self.depth.rounds)
        for _ in range(STAGES_MAX):
            begun_part = deadline.left_part
            deadline.spend(STAGE_UNITS)
            parts = relaxed.values[master.slacks :]
            if parts.sum() <= PART_LEAST:
                break
            depth = replace(self.depth, up_part=1.0) if deadline.left_part <= until else self.depth
            counts = self._some(master, relaxed, replace(depth, group_part=1.0) if deadline.late else depth)
            if not counts.any():
                break
            self._decide(master, counts)
            rest = Master(master.problem, master.judge, self.taken)
            rest.adopt(master.judged.take(master.promising(relaxed, ADOPT_MAX)))
            # Demand is counted by what is left of it.
            left = rest.rows.rate / np.maximum(master.rows.rate, 1e-12)
            prior = relaxed.row_duals[: rest.rows.base].copy()
            prior[: rest.rows.pool_at] *= np.where(master.rows.rate > 0, left, 0.0)
            few = -(-rounds // UNCUT)
            pace = Pace(rounds=few, cut_rounds=rounds - few, until_part=until, finest_pct=DIVE_PCT, prior=prior)
            relaxation = generate(rest, deadline, pace)
            if relaxation is None:
                break
            master, relaxed = rest, relaxation.best
            round_part = max(begun_part - deadline.left_part, 1e-9) / max(1, relaxation.rounds)
            rounds = int(np.clip((deadline.left_part - until) / (STAGES_LIKE * round_part), 1, self.depth.rounds))
        return master.judge.layout(Patterns.chained(self._chosen), np.concatenate(self._counts))

    def _decide(self, master: Master, counts: Whole) -> None:
        rows = np.flatnonzero(counts)
        judged = master.judged.take(rows)
        self._chosen.append(judged.rows)
        self._counts.append(counts[rows])
        self.replicas += _count(master.problem, judged.rows, counts[rows].astype(np.float64))
        added = master.rows.activity(judged, counts[rows])
        if self.taken is None:
            added[: master.rows.pool_at] -= MARGIN
        self.taken = added if self.taken is None else self.taken + added

    def _some(self, master: Master, relaxed: Relaxed, depth: Depth) -> Whole:
        """Whole parts; where they are few, the largest fractions too, as long as they stay worth it together; else one
        device of the column most in use that fits as a whole; none where only parts of devices fit.
        """
        parts = relaxed.values[master.slacks :]
        group = self._narrowest(master, parts, depth.group_part)
        counts = np.zeros(len(parts), dtype=np.int64)
        counts[group] = np.floor(parts[group] + PART_LEAST).astype(np.int64)
        fraction = np.zeros(len(parts))
        fraction[group] = parts[group] - counts[group]
        ups = max(1, int(depth.up_part * fraction[group].sum()))
        likely = np.argsort(-fraction, kind="stable")[: min(len(group), 4 * ups)]
        others = np.argsort(-parts, kind="stable")[: np.count_nonzero(parts > PART_LEAST)]
        columns = master.columns.take(np.arange(master.slacks, len(master.columns)))
        done = master.activity(counts)
        price = np.maximum(relaxed.row_duals[: master.rows.pool_at], 0.0)
        room = master.rows.upper - done
        for turn, column in enumerate([*likely.tolist(), *others.tolist()]):
            if turn >= len(likely) and counts.any():
                break
            span = slice(int(columns.start[column]), int(columns.start[column + 1]))
            row, value = columns.row[span], columns.value[span]
            asked = row < master.rows.pool_at
            fits = bool((value[~asked] <= room[row[~asked]] + PART_LEAST).all())
            whole = float(price[row[asked]] @ value[asked])
            rest = np.minimum(value[asked], np.maximum(0.0, 1 - done[row[asked]]))
            worth = float(price[row[asked]] @ rest)
            enough = fraction[column] >= UP_LEAST and worth >= depth.worth_part * whole
            if fits and (enough or not counts.any()):
                counts[column] += 1
                done[row] += value
                room[row] -= value
                ups -= 1
            if ups <= 0:
                break
        return counts

    def _narrowest(self, master: Master, parts: Floats, group_part: float) -> Whole:
        """The columns in use that host the workloads with the fewest replicas: whole devices are hardest for those, and
        easiest as long as all others can still fill what they leave.
        """
        used = np.flatnonzero(parts > PART_LEAST)
        rows = master.judged.rows.take(used)
        replicas = self.replicas + _count(master.problem, rows, parts[used])
        work = master.problem.variant_workload[np.maximum(rows.variants, 0)]
        narrow = np.where(rows.variants >= 0, replicas[work], np.inf).min(axis=1)
        order = np.argsort(narrow, kind="stable")
        devices = np.cumsum(parts[used][order])
        most = max(group_part * devices[-1], devices[0])
        return np.asarray(used[order[devices <= most + PART_LEAST]])


def _count(problem: JointProblem, rows: Patterns, devices: Floats) -> Floats:
    """Replicas of each workload on so many devices of each row."""
    real = rows.variants >= 0
    work, weights = problem.variant_workload[rows.variants[real]], np.repeat(devices, real.sum(axis=1))
    return np.asarray(np.bincount(work, weights=weights, minlength=len(problem.workloads)))


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
    whole, counts = Master(problem, judge), np.array(layout.counts, dtype=np.int64)
    taken = whole.rows.activity(judge.judge(whole.of_patterns(layout.patterns)), counts)
    rest = Master(problem, judge, taken)
    relaxation = generate(rest, deadline, Pace(rounds=COMPLETE_ROUNDS, until_part=SERVE_UNTIL))
    if relaxation is None:
        return layout
    return layout.and_also(Dive(rest, relaxation.best, Depth(until_part=SERVE_UNTIL), taken).run(deadline))
