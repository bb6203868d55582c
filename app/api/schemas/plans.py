"""Plans and their explanations on the wire."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from app.services.explaining.explaining import WhyNotVerdict
from app.services.explaining.solves import Forced, SloPoint
from app.store.plans import PlanState
from solvers.cycle.record import Lane
from solvers.domain.evidence import Fact, Reason
from solvers.domain.insight import Candidate, Contender, Relaxation, ShadowPrice
from solvers.domain.plan import Assignment, Plan
from solvers.domain.workload import ServiceMode


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PlanSummary(_Closed):
    """A stored plan without its document."""

    id: str
    lane: Lane
    state: PlanState
    parent_generation: int
    generation: int | None
    cycle_id: str | None
    planner: str
    policy: str | None
    cost_usd_per_h: float
    bound_usd_per_h: float | None
    unplaced_count: int
    created_at: datetime
    created_by: str
    decided_at: datetime | None
    decided_by: str | None


class StoredPlan(PlanSummary):
    """A stored plan, whole. A project's token sees only its own assignments and no device settings."""

    plan: Plan


class ProposeRequest(_Closed):
    """Which lane to plan in. `act` moves services on auto, `approve` also those on approve, `shadow` all but off."""

    lane: Lane = Lane.ACT


class ApplyRequest(_Closed):
    """Nothing to say; the body may also be left out."""


class Applied(_Closed):
    """The plan is the target."""

    plan_id: str
    generation: int


class ToldReason(_Closed):
    """A reason in words and in values."""

    reason: Reason
    sentence: str


class ExplainedAssignment(_Closed):
    """One replica: where it went, why, and why not on other GPU types."""

    assignment: Assignment
    gpu_type: str | None
    why: list[ToldReason]
    alternatives: list[ToldReason]


class ExplainedGap(_Closed):
    """A workload that found no place, or not enough of it."""

    workload: str
    kind: str
    rate_rps_short: float
    why: list[ToldReason]


class Waiting(_Closed):
    """Why a workload does not move by itself: its mode, and the plan that would move it."""

    mode: ServiceMode
    plan_id: str | None
    sentence: str


class ToldPrice(_Closed):
    """What one more unit of something scarce would save."""

    price: ShadowPrice
    sentence: str


class ToldCandidate(_Closed):
    """What a workload has, or could have, on one GPU type."""

    candidate: Candidate
    sentence: str


class WayOut(_Closed):
    """What would have to give together so that a workload is served; without a workload, all who are short."""

    workload: str | None
    relaxations: list[Relaxation]
    sentence: str


class ToldInsight(_Closed):
    """What the planner found out beside its plan; empty where it tells nothing."""

    contenders: list[Contender]
    prices: list[ToldPrice]
    candidates: list[ToldCandidate]
    ways_out: list[WayOut]
    facts: list[Fact]


class WhyNot(_Closed):
    """Why a workload is not on a GPU type; the nearest candidate where there is one."""

    workload: str
    gpu_type: str
    verdict: WhyNotVerdict
    candidate: Candidate | None
    sentence: str


class Explanation(_Closed):
    """Why a plan is as it is. `waiting` is only told where one workload is asked about and its mode holds it back,
    `why_not` where a GPU type is asked about; `forced` and `slo_curve` only where plans were to be made for them.
    """

    summary: PlanSummary
    assignments: list[ExplainedAssignment]
    unplaced: list[ExplainedGap]
    waiting: Waiting | None
    insight: ToldInsight
    owners: list[str] = Field(description="Who owns which knob on the devices of the one workload asked about.")
    why_not: WhyNot | None
    forced: Forced | None
    slo_curve: list[SloPoint] | None
