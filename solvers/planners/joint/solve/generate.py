"""Column generation: patterns are priced at smoothed duals until none would improve the relaxed optimum.

Owns the loop: first columns, rounds, when to stop, and the duals that the bound is taken at. Every round prices the
grid of shares and looks in the neighbourhood of what the optimum uses, where shares are whole percent. It refuses to
round to whole devices.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from solvers.engines.columns import Relaxed
from solvers.engines.deadline import Deadline
from solvers.planners.joint.solve.judge import Patterns
from solvers.planners.joint.solve.master import Master
from solvers.planners.joint.solve.nearby import STEPS_PCT, neighbours
from solvers.planners.joint.solve.pricing import Pricing
from solvers.problems.joint import Floats, JointProblem

SMOOTH = 0.5
STALL_ROUNDS = 8
STALL_PART = 3e-4
ROUNDS_MAX = 400
REPEATS = 3
REPEATS_MAX = 8
SINGLES_MAX = 8_000
UNITS_BESIDE, WORKLOADS_PER_UNIT, ENTRIES_PER_UNIT = 2, 25, 90_000
CUT_ROUNDS = 12
WORKLOADS_FEW = 10
"""So few are decided by trying much."""


@dataclass(slots=True)
class Relaxation:
    """Where column generation ended."""

    best: Relaxed
    rounds: int = 0
    trail: list[float] = field(default_factory=list)
    """Value after every round."""
    plain: Relaxed | None = None
    """Where it was before cuts."""


def singles(problem: JointProblem, width: int) -> Patterns:
    """One replica alone on a device: all shares as long as they are few, else the whole device only."""
    kinds, variants, shares = problem.kinds, len(problem.variants), problem.shares_pct
    if kinds * variants * len(shares) > SINGLES_MAX:
        shares = shares[-1:]
    kind, variant, share = (item.ravel() for item in np.meshgrid(
        np.arange(kinds), np.arange(variants), shares, indexing="ij"))  # fmt: skip
    able = problem.allowed[problem.kind_pool[kind], variant]
    member = np.full((int(able.sum()), width), -1, dtype=np.int64)
    held = np.zeros_like(member)
    member[:, 0], held[:, 0] = variant[able], share[able]
    return Patterns(kind=kind[able], variants=member, shares_pct=held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long to go on: rounds, and the part of the deadline that is left to others."""

    rounds: int = ROUNDS_MAX
    until_part: float = 0.0
    repeats: int = REPEATS
    thorough: bool = True
    """Before giving up, look everywhere once more."""
    prior: Floats | None = None
    """Duals to begin the smoothing from."""
    cut_rounds: int = 0
    """How many rounds more once what the optimum makes of parts of replicas is forbidden."""

    @classmethod
    def of(cls, problem: JointProblem, until_part: float) -> Pace:
        """To the end, with more patterns a round the more workloads there are."""
        return cls(
            until_part=until_part,
            cut_rounds=CUT_ROUNDS,
            repeats=int(np.clip(len(problem.workloads) // 100, REPEATS, REPEATS_MAX)),
        )


def generate(master: Master, pricing: Pricing, deadline: Deadline, pace: Pace) -> Relaxation | None:
    """Price until nothing improves or the pace ends it; None when not even the first programme could be solved."""
    solved = master.solve()
    if solved is None:
        return None
    state = Relaxation(best=solved, trail=[solved.value])
    smooth = solved.row_duals if pace.prior is None else fitted(pace.prior, master.rows.count)
    smooth = _converge(master, pricing, deadline, pace, (state, smooth))
    state.plain = state.best
    if pace.cut_rounds and deadline.left_part > pace.until_part and master.tighten(state.best):
        answer = master.solve(max(0.1, deadline.left_s), primal=False)
        if answer is not None:
            state.best, state.trail = answer, [answer.value]
            pace = replace(pace, rounds=state.rounds + pace.cut_rounds, thorough=False)
            _converge(master, pricing, deadline, pace, (state, fitted(smooth, master.rows.count)))
    return state


def _converge(
    master: Master, pricing: Pricing, deadline: Deadline, pace: Pace, at: tuple[Relaxation, Floats]
) -> Floats:
    """Price with the rows as they are; the smoothed duals."""
    state, smooth = at
    while state.rounds < pace.rounds and deadline.left_part > pace.until_part:
        deadline.spend(_units(master, pricing))
        state.rounds += 1
        solved = state.best
        smooth = SMOOTH * smooth + (1 - SMOOTH) * solved.row_duals
        added = _round(master, pricing, (solved, smooth), (pace.repeats, state.rounds))
        for turn in range(0 if added or not pace.thorough else len(STEPS_PCT)):
            smooth = solved.row_duals
            added += _round(master, pricing, (solved, smooth), (pace.repeats, turn), everything=True)
        if not added:
            break
        answer = master.solve(max(0.1, deadline.left_s))
        if answer is None:
            break
        state.best = answer
        state.trail.append(answer.value)
        if _stalled(state.trail):
            break
    return smooth


def _units(master: Master, pricing: Pricing) -> int:
    """Work of a round: pricing, neighbours and a solve of the master."""
    beside = UNITS_BESIDE + len(master.problem.workloads) // WORKLOADS_PER_UNIT
    return pricing.units_of_work + beside + (len(master.pool) * master.rows.count) // ENTRIES_PER_UNIT


def fitted(duals: Floats, rows: int) -> Floats:
    """Duals of fewer rows: those that came later are worth nothing yet."""
    return np.concatenate([duals[:rows], np.zeros(max(0, rows - len(duals)))])


def _round(
    master: Master, pricing: Pricing, at: tuple[Relaxed, Floats], how: tuple[int, int], *, everything: bool = False
) -> int:
    (solved, duals), (repeats, turn) = at, how
    found = pricing.price(master.rows.item_prices(duals), repeats, everything=everything)
    pricing.learn(found)
    added = master.offer(found.rows, duals)
    used = np.flatnonzero(solved.values[master.slacks :] > 1e-9)
    if len(used):
        added += master.offer(neighbours(master, used, duals, turn), solved.row_duals)
    return added


def _stalled(trail: list[float]) -> bool:
    if len(trail) <= STALL_ROUNDS:
        return False
    before, now = trail[-1 - STALL_ROUNDS], trail[-1]
    return before - now <= STALL_PART * max(abs(now), 1e-9)
