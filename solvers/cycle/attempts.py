"""The chain of planners: the first plan that verifies is taken, or, where the policy says so, the best of all.

A planner that fails, has no plan, or is refuted by the verifier gives way to the next, and every attempt is remembered.
Of several sound plans, what gains less than the gate asks of a change does not outweigh a plan that changes less, so
planners do not take turns. Every plan has a bound, whether or not its planner proves one. Cycles, simulations and plans
made from files ask alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from solvers.cycle.gate import fatal_words
from solvers.cycle.record import Attempt
from solvers.domain.evidence import Finding, Reporter
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Plan, PlannerEnding, Proposal, ProposalStatus
from solvers.domain.policy import Choice, Term
from solvers.domain.snapshot import Snapshot
from solvers.errors import EngineError, OverrunError
from solvers.models.easing import as_eased
from solvers.models.worth import Step, worth_acting, worth_of
from solvers.planners.base import PlanRequest
from solvers.planners.joint.certificate import certified
from solvers.verify.checks import is_fatal

Propose = Callable[[str, PlanRequest], Proposal]
Verify = Callable[[Snapshot, Plan, tuple[WorkloadId, ...]], tuple[Finding, ...]]


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """What the chain ended with: the accepted proposal, or the first one that was refuted, or none."""

    attempts: tuple[Attempt, ...]
    proposal: Proposal | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def plan(self) -> Plan | None:
        return self.proposal.plan if self.proposal is not None else None

    @property
    def sound(self) -> bool:
        """Whether there is a plan and nothing fatal speaks against it."""
        return self.plan is not None and not is_fatal(self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How planners are run and plans are verified here. `propose` raises EngineError for a planner that fails; who is
    asked by another name than its own, such as its file's, is `called` by its own.
    """

    propose: Propose
    verify: Verify
    reporter: Reporter
    called: Callable[[str], str] = str


def try_chain(asking: Asking, planners: Iterable[str], request: PlanRequest) -> ChosenPlan:
    """The first plan of the chain that verifies, or the best of all that do; else the first refuted one, so that people
    can see what was wrong with it.
    """
    attempts: list[Attempt] = []
    sound: list[ChosenPlan] = []
    refuted: ChosenPlan | None = None
    for planner in planners:
        attempt, proposal = _ask(asking, planner, request)
        plan = proposal.plan if proposal is not None else None
        if proposal is None or plan is None:
            attempts.append(attempt)
            continue
        plan = as_eased(request.snapshot, certified(request, plan))
        proposal = replace(proposal, plan=plan)
        findings = asking.verify(request.snapshot, plan, request.movable)
        if not is_fatal(findings):
            attempts.append(attempt)
            sound.append(ChosenPlan((), proposal, findings))
            if request.snapshot.policy.choice is Choice.FIRST:
                break
            continue
        attempts.append(replace(attempt, error=f"refuted: {fatal_words(findings)}"))
        asking.reporter.event("plan.refuted", planner=planner, findings=fatal_words(findings))
        refuted = refuted or ChosenPlan((), proposal, findings)
    found = _best(request, sound) or refuted or ChosenPlan(())
    return replace(found, attempts=tuple(attempts))


def _best(request: PlanRequest, sound: list[ChosenPlan]) -> ChosenPlan | None:
    """Of those that can be acted on at once, by the policy's terms, one after the other: those that the best one does
    not outweigh; of these the first of the chain. Imbalance is no reason to prefer one planner to another.
    """
    if len(sound) < 2:
        return sound[0] if sound else None
    snapshot, target = request.snapshot, request.snapshot.target
    now = worth_of(snapshot, request.movable, target.assignments, target.settings).objective
    steps = [Step.of(snapshot, now, each.plan) for each in sound if each.plan is not None]
    left = worth_acting(steps)
    for term in snapshot.policy.terms:
        if len(left) > 1 and term is not Term.BALANCE:
            best = min(left, key=lambda number: steps[number].aim.key((term,)))
            left = [number for number in left if not steps[best].outweighs(steps[number].aim, term)]
    return sound[left[0]]


def _ask(asking: Asking, planner: str, request: PlanRequest) -> tuple[Attempt, Proposal | None]:
    own_name = asking.called(planner)
    try:
        proposal = asking.propose(planner, request)
    except EngineError as error:
        asking.reporter.event("planner.failed", planner=planner, error=error.message)
        ending = PlannerEnding.KILLED if isinstance(error, OverrunError) else PlannerEnding.FAILED
        return Attempt(planner=own_name, status="failed", error=error.message, ending=ending), None
    if proposal.failure is not None:
        asking.reporter.event("planner.stopped", planner=planner, error=proposal.failure)
    said = proposal.failure
    if proposal.status is ProposalStatus.NOT_APPLICABLE:
        said = said or "; ".join(str(fact.value) for reason in proposal.reasons for fact in reason.facts) or None
    return Attempt(planner=own_name, status=proposal.status.value, error=said, ending=proposal.ending), proposal
