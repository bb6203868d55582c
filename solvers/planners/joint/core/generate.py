"""Column generation: patterns are priced at smoothed duals until none would improve the relaxed optimum.

Owns the loop: first columns, rounds, when to stop, and the duals that the bound is taken at. Every round prices the
grid of shares and looks in the neighbourhood of what the optimum uses, where shares are whole percent. It refuses to
round to whole devices.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from solvers.engines.columns import Relaxed
from solvers.engines.deadline import Deadline
from solvers.planners.joint.core.master import Master
from solvers.planners.joint.core.nearby import STEPS_PCT, neighbours
from solvers.planners.joint.core.pricing import Pricing
from solvers.planners.joint.core.sets import Sets, ordered
from solvers.problems.joint import Floats, JointProblem

SMOOTH = 0.5
STALL_ROUNDS = 8
STALL_PART = 3e-4
ROUNDS_MAX = 400
REPEATS = 3
REPEATS_MAX = 8
SINGLES_MAX = 8_000


@dataclass(slots=True)
class Relaxation:
    """Where column generation ended."""

    best: Relaxed
    rounds: int = 0
    trail: list[float] = field(default_factory=list)
    """Value after every round."""


def singles(problem: JointProblem, width: int) -> Sets:
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
    return ordered(kind[able], member, held)


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

    @classmethod
    def of(cls, problem: JointProblem, until_part: float) -> Pace:
        """To the end, with more patterns a round the more workloads there are."""
        return cls(until_part=until_part, repeats=int(np.clip(len(problem.workloads) // 100, REPEATS, REPEATS_MAX)))


def generate(master: Master, pricing: Pricing, deadline: Deadline, pace: Pace) -> Relaxation | None:
    """Price until nothing improves or the pace ends it; None when not even the first programme could be solved."""
    solved = master.solve()
    if solved is None:
        return None
    state = Relaxation(best=solved, trail=[solved.value])
    smooth = solved.row_duals if pace.prior is None else pace.prior
    while state.rounds < pace.rounds and deadline.left_part > pace.until_part:
        deadline.spend()
        state.rounds += 1
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
        solved = state.best = answer
        state.trail.append(solved.value)
        if _stalled(state.trail):
            break
    return state


def _round(
    master: Master, pricing: Pricing, at: tuple[Relaxed, Floats], how: tuple[int, int], *, everything: bool = False
) -> int:
    (solved, duals), (repeats, turn) = at, how
    found = pricing.price(master.rows.item_prices(duals), repeats, everything=everything)
    pricing.learn(found)
    added = master.offer(found.sets, duals)
    used = np.flatnonzero(solved.values[master.slacks :] > 1e-9)
    if len(used):
        added += master.offer(neighbours(master, used, duals, turn), solved.row_duals)
    return added


def _stalled(trail: list[float]) -> bool:
    if len(trail) <= STALL_ROUNDS:
        return False
    before, now = trail[-1 - STALL_ROUNDS], trail[-1]
    return before - now <= STALL_PART * max(abs(now), 1e-9)
