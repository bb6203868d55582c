"""Layouts for one reading: everything anew, or only what has a reason to change.

From the snapshot and the moment of the last full solve, so that a repeated cycle decides alike at whatever moments
cycles run: a workload has a reason to change when what stands of it is short, breaks a rule or a promise, or could do
with notably less (but for services that can always use more). A full solve is due when nothing stands, many have
reasons, the last one is long past, unknown or of before what stands, once that may change again, or when what stands,
changed as far as that goes at once (`solve.reach`), leaves anybody short. The last question is answered already,
unless its time ended first, or its answer, in which somebody new has a place, is still no target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log
from zlib import crc32

import numpy as np

from solvers.domain.change import Target
from solvers.domain.ids import DeviceId
from solvers.domain.plan import Plan
from solvers.domain.policy import Policy
from solvers.engines.deadline import Deadline, charge, portion
from solvers.planners.base import PlanRequest
from solvers.planners.joint.attempt import NOTHING, Kept, rearranges, recall
from solvers.planners.joint.reading.formulation import Reading
from solvers.planners.joint.solve.improve import keeps_limits
from solvers.planners.joint.solve.judge import Judge
from solvers.planners.joint.solve.prospects import DUST, GROUPS_MAX
from solvers.planners.joint.solve.reach import GAP, Reached, ReachTerms, reached
from solvers.planners.joint.solve.solve import SolveOrder
from solvers.problems.joint import JointProblem
from solvers.problems.patterns import Layout, Pattern

FULL_EVERY_S = 300.0
"""So long after the last full solve the next cycle is one again."""
TURNS = 1000
"""Of very many groups others are open in every turn while nothing changes; after so many turns they come again."""
OPEN_PART_MAX = 0.3
"""With more workloads open than this, all are."""
SURPLUS = 1.5
"""What serves so many times what it is sized for could be smaller."""
RATE_STEPS = 50
"""For each e-fold: rates that are as near as that are the same."""
REACH_PART = 0.3
"""Of the deadline, where something stands."""
REACH_FEW_PART = 0.5
"""The same where what stands is many times what a promotion may change."""
REACH_MOST_S = 2.0
"""Kept for it from a search."""
NEAR_UNITS = 100
"""What it may take to change only what stands."""
FRESH_MAX = 600
"""Contents that the solve found, for what stands to change to."""
AGAIN = " again"
"""Behind a question that has to be asked once more."""
Solve = Callable[[JointProblem, SolveOrder, Deadline], Layout]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """What came out, and what to begin with next time, the most useful first."""

    found: Layout
    """The solve's; what stands, where nothing was searched."""
    searched: bool
    reached: Reached | None
    """What stands, changed as far as that goes at once; which of both is better shows when they are seated."""
    toward: tuple[tuple[DeviceId, Pattern], ...]
    """What the last plan that changes anything leads to: it may wait for room, or for the cooldown."""
    kept: Kept
    """For the next one: this solve's prices, or an earlier one's in today's numbers, if this was of a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointSearch:
    """A solve with what it may take, and who is told of better layouts on the way."""

    solve: Solve
    deadline: Deadline
    better: Callable[[Layout], None] | None = None
    mended: Callable[[], bool] | None = None
    """Serves who is short by a little more beside what stands, if that will do."""
    stuck: Callable[[], None] | None = None
    """Told before a search begins because what little changes make of what stands leaves somebody short."""


def solved(search: JointSearch, request: PlanRequest, reading: Reading, state: bytes) -> Solved:
    """Raises EngineError as `solve` does."""
    deadline, snapshot, policy = search.deadline, request.snapshot, request.snapshot.policy
    problem, stands = reading.problem, reading.stands
    kept = recall(state, problem) if state else NOTHING
    near, found, late, many = None, stands, False, len(stands.patterns) > GROUPS_MAX
    short = stands.leaves_short(problem)
    order = SolveOrder(
        standing=stands,
        warm=kept.patterns,
        gap=policy.gap_pct_target / 100,
        seed=request.seed,
        launch_usd_per_s=policy.launch_usd_per_s,
        better=search.better if short or rearranges(request) else None,
    )
    restless = restless_of(reading)
    opened, question = scope_of(reading, restless, kept.full_at_s), question_of(reading, restless)
    known, stood = question == kept.question, question.split(" ")[:2] == kept.question.split(" ")[:2]
    opened = frozenset() if known and opened is not None else opened
    # In between full solves, the same that stands ends as far from what it could become at best, whoever's rate moved.
    alike = known or (opened is not None and stood)
    terms = reach_terms(policy, short=short, left_usd=kept.left_usd if alike and not many else 0.0)
    terms = replace(terms, prices=kept.prices, turn=stood * (1 + int(snapshot.taken_at_s // FULL_EVERY_S) % TURNS))
    # Where nobody is short and all is solved anyway, what little changes make is asked once, after that.
    asked = bool(stands.patterns) and (short or (opened is not None and not known))
    mended = asked and opened and many and search.mended is not None and search.mended()
    if asked and not mended:
        left = NEAR_UNITS if deadline.work_units is None else int(deadline.left_part * deadline.work_units)
        few = Deadline(REACH_PART * deadline.time_left_s, max(1, min(NEAR_UNITS, left)))
        near, late = reached(problem, stands, order.warm[:FRESH_MAX], terms, few), few.late
        if near.short and not known:
            # What is missing may be held by whoever does not change at once: a device, a quota, a cap.
            opened = None
        elif search.better is not None and opened is None:
            search.better(near.layout)
    if search.stuck is not None and not mended and (near is None or near.short):
        search.stuck()
    if opened is None:
        found = _found(search, problem, order, little_part(request))
    patterns = (*found.patterns, *found.columns, *order.warm)
    if opened is None and stands.patterns:
        within = portion(deadline, min(1.0, little_part(request) / max(deadline.left_part, DUST)))
        terms = replace(terms, prices=found.prices or kept.prices)
        near, late = reached(problem, stands, patterns[:FRESH_MAX], terms, within, begin=near), within.late
    facts = found.facts | {"workloads_open": float(len(problem.workloads if opened is None else opened))}
    return Solved(
        found=replace(found, facts=facts),
        searched=opened is None,
        reached=near,
        toward=() if known else kept.toward,
        kept=replace(
            kept,
            toward=() if opened is None else kept.toward,
            patterns=patterns,
            prices=found.prices or kept.prices,
            full_at_s=snapshot.taken_at_s if opened is None else kept.full_at_s,
            question=question + AGAIN * late,
            left_usd=kept.left_usd if near is None else near.left_usd,
        ),
    )


def _found(search: JointSearch, problem: JointProblem, order: SolveOrder, part: float) -> Layout:
    """What the search finds; where something stands, a part of the time is kept for that: of a long one no more than it
    takes.
    """
    if not order.standing.patterns:
        return search.solve(problem, order, search.deadline)
    seconds = search.deadline.left_s if search.deadline.work_units is None else 0.0
    within = portion(search.deadline, 1 - (min(part, REACH_MOST_S / seconds) if seconds > 0.0 else part))
    found = search.solve(problem, order, within)
    charge(search.deadline, within)
    return found


def little_part(request: PlanRequest) -> float:
    """Of a deadline, for what stands: more of it where little of what a search finds can be promoted."""
    return REACH_PART if rearranges(request) else REACH_FEW_PART


def asked_again(kept: Kept, plan: Plan, stands: Target) -> Kept:
    """The same, where a plan gives a place to somebody who has none: it may wait for more than room, and be asked for
    once more while it is no target.
    """
    waiting = {item.workload for item in plan.assignments} - {item.workload for item in stands.assignments}
    return replace(kept, question=kept.question.removesuffix(AGAIN) + AGAIN) if waiting else kept


def reach_terms(policy: Policy, *, short: bool = False, left_usd: float = 0.0) -> ReachTerms:
    """What changes of what stands are weighed by, and how many a gate would bear: none that serve who is `short`."""
    return ReachTerms(
        launch_usd_per_s=policy.launch_usd_per_s,
        restart_part=policy.gain_pct_min / 100,
        period_s=policy.interruption_over_s,
        remembered_s=policy.demand_lookback_s,
        gap=max(GAP, policy.gap_pct_target / 100),
        left_usd=left_usd,
        changes_max=policy.changes_max,
        starts_free=short,
    )


def scope_of(reading: Reading, restless: frozenset[int], full_at_s: float | None) -> frozenset[int] | None:
    """Workloads that may change, by number; None for all. `full_at_s`: of the last full solve; None: not known."""
    snapshot = reading.snapshot
    if not reading.stands.patterns or full_at_s is None:
        return None
    if full_at_s < snapshot.target.promoted_at_s <= snapshot.taken_at_s - snapshot.policy.cooldown_s:
        return None  # what stands was never held against everything, and may be changed now
    if not 0.0 <= snapshot.taken_at_s - full_at_s < FULL_EVERY_S:
        return None  # also where the clock was put back: the last one would be ahead for ever
    if breaks_limits(reading):
        return None
    if len(restless) > max(1.0, OPEN_PART_MAX * len(reading.problem.workloads)):
        return None
    return restless


def breaks_limits(reading: Reading) -> bool:
    """Whether what stands is more than what limits several together: caps, quotas, budgets."""
    problem, stands = reading.problem, reading.stands
    return bool(stands.patterns and problem.limited) and not keeps_limits(Judge(problem), stands)


def question_of(reading: Reading, restless: frozenset[int]) -> str:
    """What stands, on what, whether it may change only to serve more, and who has a reason to, with what rate: where
    that is as it was, and nothing was changed, there is nothing new to look for.
    """
    problem, snapshot = reading.problem, reading.snapshot
    cooling = snapshot.taken_at_s < snapshot.target.promoted_at_s + snapshot.policy.cooldown_s
    everybody = "".join(work.id for work in problem.workloads) + "".join(f"{p.name}{p.devices}" for p in problem.pools)
    rates = (f"{problem.workloads[at].id}:{round(RATE_STEPS * log(problem.rate_rps[at]))}" for at in sorted(restless))
    stands = f"{snapshot.target.generation}{'?' if cooling else ''}"
    return " ".join((stands, str(crc32(everybody.encode())), *rates))


def restless_of(reading: Reading) -> frozenset[int]:
    """Workloads that have a reason to change, by number."""
    problem, works = reading.problem, reading.problem.workloads
    served = reading.stands.served_rps(problem)
    replicas, smallest_rps = np.zeros(len(works), dtype=np.int64), np.full(len(works), np.inf)
    widest_pct = np.zeros(len(works))
    for pattern, devices in reading.stands.pairs:
        own = problem.variant_workload[list(pattern.variants)]
        np.add.at(replicas, own, devices)
        np.minimum.at(smallest_rps, own, pattern.capacity_rps)
        np.maximum.at(widest_pct, own, pattern.shares_pct)
    fewest, most = (np.array([getattr(work, name) for work in works]) for name in ("replicas_min", "replicas_max"))
    # Short, or more replicas than it may have.
    needs = (served < problem.least_rps * (1 - DUST)) | (replicas < fewest) | (replicas > most)
    # It could do with notably less.
    fewer = (replicas > np.maximum(1, fewest)) & (served - smallest_rps >= problem.rate_rps)
    smaller = (replicas > 0) & (served > SURPLUS * problem.rate_rps) & (widest_pct > problem.shares_pct[:1])
    # Unlawful, or of a network that may not serve any more.
    each = [item for stands in reading.standing.values() for item in stands]
    known = problem.variant_workload[[item.variant for item in each if item.variant is not None]]
    lost = {item.assignment.workload for item in each if item.variant is None}
    sets = (lost, reading.open_ended)
    is_lost, endless = (np.array([work.id in some for work in works], dtype=bool) for some in sets)
    broken, plenty = (np.bincount(known, minlength=len(works)) != replicas) | is_lost, (fewer | smaller) & ~endless
    return frozenset(np.flatnonzero(broken | needs | plenty).tolist())
