"""The plan that stands, for people: in one line, and how it came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from app.records import record, record_of
from app.services.explaining.sentences import answered_words, gap_words
from app.store.cycles import CycleSummary
from app.store.plans import PlanSummary
from app.store.targets import Lease, Proven
from app.store.telemetry import FleetCounts
from solvers.cycle.record import Decision, HoldReason
from solvers.domain.plan import Unplaced

UNLED_S = 15.0
"""Longer than a leader takes to follow another."""


@record
class PlanLine:
    """The standing plan in one line."""

    id: str
    planner: str
    cost_usd_per_h: float | None
    """Of the whole plan, $/h, by the policy's cost basis; as the next two null for a project's token."""
    bound_usd_per_h: float | None
    """Proven: serving as much costs at least so much while what its lane may not move stays as it is."""
    gap_told: str
    """How far from the best of which plans it can be, in words."""
    seen_at: datetime | None
    """When the newest cycle that left it standing saw that; null where that is of when it was planned."""
    unplaced_count: int | None

    def of_a_project(self) -> PlanLine:
        """What a project's token is told of it."""
        return replace(self, cost_usd_per_h=None, bound_usd_per_h=None, gap_told="", seen_at=None, unplaced_count=None)


@record
class PlanningLine:
    """How the newest plan came about, promoted or not. `stood_in`: someone else than who was asked first made it, or a
    planner failed or was stopped from outside; `answered` says it to people.
    """

    at: datetime
    planner: str | None
    ending: str
    stood_in: bool
    answered: str


def planning_line(cycle: CycleSummary | None) -> PlanningLine | None:
    found = None if cycle is None else cycle.answered
    if cycle is None or found is None:
        return None
    return PlanningLine(
        at=cycle.started_at,
        planner=found.planner,
        ending=found.ending.value,
        stood_in=found.stood_in,
        answered=answered_words(found) + _held_words(cycle.decision),
    )


def _held_words(decision: Decision | None) -> str:
    """What a larger `changes_max` would allow: a plan that is held for its many changes."""
    if decision is None or HoldReason.CHURN_BUDGET not in decision.reasons:
        return ""
    facts = {fact.name.rpartition(".")[2]: float(fact.value) for fact in decision.facts}
    changes, after, most = (facts.get(name, 0.0) for name in ("changes", "changes_after", "changes_max"))
    told = f"{changes:,.0f} starts and stops" if changes > most else f"{after:,.0f} starts and stops after it made room"
    return f"; held, for it takes {told}, and one plan may {most:,.0f} (the policy's changes_max)"


def plan_line(
    plan: PlanSummary | None, given: str, proven: Proven | None, short: Sequence[Unplaced]
) -> PlanLine | None:
    """`given`: what its bound takes as given, in words. `proven`: what has been seen of it since it was planned."""
    if plan is None:
        return None
    known = proven or Proven(usd_per_h=plan.cost_usd_per_h, bound_usd_per_h=plan.bound_usd_per_h, at=None)
    return record_of(
        PlanLine,
        plan,
        cost_usd_per_h=known.usd_per_h,
        bound_usd_per_h=known.bound_usd_per_h,
        gap_told=gap_words(known.usd_per_h, known.bound_usd_per_h, given),
        seen_at=known.at,
        unplaced_count=len(short),
    )


def unled_words(lease: Lease | None) -> str | None:
    """That no planner leads, and since when; None while one does, or hands over to the next."""
    if lease is None:
        return "no planner has led yet: nothing is planned until one runs (headroom planner)"
    if lease.held or lease.left_s > -UNLED_S:
        return None
    since = f"{lease.expires_at:%Y-%m-%d %H:%M:%S UTC}"
    return f"no planner leads since {since}: nothing is planned until one runs (headroom planner)"


def beliefs_words(known: FleetCounts) -> str | None:
    """Of when beliefs are, where newer measurements have not been learned."""
    if not known.measurements_unlearned:
        return None
    at = f"of {known.beliefs_as_of:%Y-%m-%d %H:%M UTC}" if known.beliefs_as_of is not None else "what is built in"
    what = "which cannot be learned" if known.beliefs_failed else "being learned"
    return f"beliefs are {at}; newer measurements, {what}: {known.measurements_unlearned}"
