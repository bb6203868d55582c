"""That nobody plans is said to people, and what a plan is held for that they may allow."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from app.services.explaining.standing import UNLED_S, planning_line, unled_words
from app.store.cycles import CycleState, CycleSummary
from app.store.targets import Lease
from solvers.cycle.record import Authorship, Decision, HoldReason, Lane
from solvers.domain.evidence import Fact
from solvers.domain.ids import CycleId
from solvers.domain.plan import PlannerEnding


def test_that_nobody_plans_is_said_once_no_other_took_over() -> None:
    moment = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
    lease = Lease(name="planner", holder="x", token=1, acquired_at=moment, expires_at=moment, left_s=8.0, held=True)
    assert unled_words(lease) is None
    ended = replace(lease, held=False, left_s=1.0 - UNLED_S)
    assert unled_words(ended) is None
    since = "no planner leads since 2026-05-01 12:00:00 UTC: nothing is planned until one runs (headroom planner)"
    assert unled_words(replace(ended, left_s=-1.0 - UNLED_S)) == since
    assert str(unled_words(None)).startswith("no planner has led yet")


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"changes": 104, "changes_max": 64}, "104 starts and stops,"),
        ({"changes": 12, "changes_max": 64, "changes_after": 90}, "90 starts and stops after it made room,"),
        ({"batch.changes": 104, "batch.changes_max": 64}, "104 starts and stops,"),
    ],
)
def test_a_plan_that_is_held_for_its_many_changes_may_be_allowed(facts: dict[str, float], told: str) -> None:
    given = tuple(Fact(name=name, value=float(value)) for name, value in facts.items())
    held = Decision(promote=False, reasons=(HoldReason.COOLDOWN, HoldReason.CHURN_BUDGET), facts=given)
    line = planning_line(replace(closed(), decision=held))
    assert line is not None
    said = f"joint, which finished; held, for it takes {told} and one plan may 64 (the policy's changes_max)"
    assert line.answered.endswith(said)
    other = planning_line(replace(closed(), decision=replace(held, reasons=(HoldReason.COOLDOWN,))))
    assert other is not None
    assert other.answered.endswith("joint, which finished")


def closed() -> CycleSummary:
    """A cycle that ended."""
    moment = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
    return CycleSummary(
        id=CycleId("c"),
        lane=Lane.ACT,
        state=CycleState.CLOSED,
        step="record",
        holder="x",
        fencing_token=1,
        started_at=moment,
        ended_at=moment,
        elapsed_ms=1.0,
        policy="default",
        planner="joint",
        snapshot_digest=None,
        plan_digest=None,
        generation=None,
        decision=None,
        answered=Authorship(asked="joint", planner="joint", ending=PlannerEnding.FINISHED),
        findings_count=0,
        software_version="1",
    )
