"""What a cycle leaves behind: everything needed to explain it and to replay it to the same plan digest.

Wall-clock timings are kept beside the decision, never inside a digest.
"""

from __future__ import annotations

from enum import StrEnum

from solvers.domain.change import Transition
from solvers.domain.evidence import Fact, Finding
from solvers.domain.ids import CycleId, Digest, Generation, PolicyName, WorkloadId
from solvers.domain.plan import Plan, PlannerEnding, Proposal, ProposalStatus
from solvers.domain.snapshot import Snapshot
from solvers.domain.value import late, value
from solvers.planners.base import Budget


class Lane(StrEnum):
    """Whose services may move in this cycle: those on auto; also those awaiting approval; also those in shadow."""

    ACT = "act"
    APPROVE = "approve"
    SHADOW = "shadow"


class CycleStep(StrEnum):
    """The steps of `run_cycle`, in order; the journal hears each before it begins."""

    OBSERVE = "observe"
    PROPOSE = "propose"
    VERIFY = "verify"
    DIFF = "diff"
    GATE = "gate"
    ACTUATE = "actuate"
    RECORD = "record"


class HoldReason(StrEnum):
    """Every reason for which a gate may hold a plan back."""

    NO_PLAN = "no_plan"
    FATAL_FINDINGS = "fatal_findings"
    STALE_DATA = "stale_data"
    NOTHING_TO_CHANGE = "nothing_to_change"
    SMALL_GAIN = "small_gain"
    COOLDOWN = "cooldown"
    CHURN_BUDGET = "churn_budget"
    AWAITING_RENTAL = "awaiting_rental"
    """It uses GPUs that are only offered: somebody has to rent them first."""
    AWAITING_APPROVAL = "awaiting_approval"
    SHADOW_ONLY = "shadow_only"
    SUPERSEDED = "superseded"
    LEASE_LOST = "lease_lost"


@value
class Decision:
    """Promote, or hold for enumerated reasons with their facts."""

    promote: bool
    reasons: tuple[HoldReason, ...] = ()
    facts: tuple[Fact, ...] = ()


@value
class Attempt:
    """One planner of the chain in one cycle: its proposal's status, or why there is none (crashed, hung, unknown)."""

    planner: str
    status: str
    error: str | None = None
    state_digest: Digest | None = None
    """Of the state that the planner was handed; None when there was none."""
    policy: PolicyName | None = late(None)
    """Whose chain it is; None where one policy decides on everything."""
    ending: PlannerEnding = late(PlannerEnding.FINISHED)

    @property
    def outcome(self) -> str:
        """How it ended where it gave a plan, or should have; else why it has none to give."""
        return self.status if self.status in _WITHOUT_PLAN else self.ending.value


_WITHOUT_PLAN = (ProposalStatus.INFEASIBLE, ProposalStatus.NOT_APPLICABLE, ProposalStatus.NO_SOLUTION)
OUTCOMES = tuple(item.value for item in (*PlannerEnding, *_WITHOUT_PLAN))
"""Every outcome of an attempt."""


@value
class Authorship:
    """Who made a plan and how it came about: the same for cycles, plans on request and simulations."""

    asked: str
    """Who was asked first."""
    planner: str | None
    """Whose proposal was taken; None: there was none."""
    ending: PlannerEnding
    by: str | None = None
    """Whose plan the proposal holds, where the planner's own was not the best."""
    failures: tuple[str, ...] = ()
    """Why planners gave nothing, or less than they might have."""

    @property
    def stood_in(self) -> bool:
        """Whether people should know: someone else answered, or a planner failed or was stopped from outside."""
        return self.planner != self.asked or bool(self.failures)


def answered(attempts: tuple[Attempt, ...], proposal: Proposal | None) -> Authorship | None:
    """None where nobody was asked."""
    if not attempts:
        return None
    whole = any(item.policy is not None for item in attempts)
    asked, taken = attempts[0].planner, None if proposal is None else proposal.planner
    failed = [item for item in attempts if item.error is not None]
    ending = PlannerEnding.FAILED if proposal is None else proposal.ending
    if whole and proposal is not None:
        # One plan of several policies' plans: it came about as its worst part did.
        ending = max((item.ending for item in attempts), key=list(PlannerEnding).index)
    return Authorship(
        asked=taken or asked if whole else asked,
        planner=taken,
        ending=ending,
        by=None if proposal is None else proposal.by,
        failures=tuple(str(item.error) for item in failed),
    )


@value
class Timing:
    """Wall time of a step, milliseconds; for people, not for replay."""

    step: CycleStep
    elapsed_ms: float


@value
class Maker:
    """Who made the plan of a policy, what it was handed, and how it ended."""

    policy: PolicyName
    planner: str
    version: str
    state_digest: Digest | None
    ending: PlannerEnding


@value
class CycleRecord:
    """One cycle, whole. `proposal` is the chosen one; `generation` is set when the plan became the target."""

    id: CycleId
    lane: Lane
    started_at_s: float
    seed: int
    budget: Budget
    movable: tuple[WorkloadId, ...]
    software_version: str
    snapshot: Snapshot
    snapshot_digest: Digest
    attempts: tuple[Attempt, ...] = ()
    proposal: Proposal | None = None
    plan_digest: Digest | None = None
    findings: tuple[Finding, ...] = ()
    transition: Transition | None = None
    decision: Decision | None = None
    generation: Generation | None = None
    timings: tuple[Timing, ...] = ()
    asked: tuple[WorkloadId, ...] = late(())
    """What the planner could move where it was asked for a wider lane as well; the plan leaves the rest as it stood."""

    @property
    def makers(self) -> tuple[Maker, ...]:
        """Whose work the plan is: one planner's, or each policy's; none for what only stayed as it stood."""
        if self.proposal is None or self.proposal.plan is None:
            return ()
        default, plan = self.snapshot.policy.name, self.proposal.plan
        versions = {(line.policy, line.planner): line.planner_version for line in plan.parts}
        versions = versions or {(default, self.proposal.planner): plan.planner_version}
        asked = ((item.policy or default, item) for item in self.attempts)
        return tuple(
            Maker(
                policy=policy,
                planner=item.planner,
                version=versions[policy, item.planner],
                state_digest=item.state_digest,
                ending=item.ending,
            )
            for policy, item in asked
            if (policy, item.planner) in versions
        )

    @property
    def answered(self) -> Authorship | None:
        return answered(self.attempts, self.proposal)

    @property
    def plan(self) -> Plan | None:
        return self.proposal.plan if self.proposal is not None else None
