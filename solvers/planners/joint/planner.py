"""The joint planner: all eight knobs in one problem, with a proven bound, and never worse than greed.

The order of a proposal: a greedy plan first, so that there is an answer at once; then read, solve, seat and write; the
better of both by the policy's objective is proposed, and both are told with bound and gap. An engine that fails costs
its own answer, never the greedy one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from solvers.domain.evidence import Contender, Fact, Insight, Reason, ReasonCode, Reporter
from solvers.domain.plan import Plan, Proposal, ProposalStatus
from solvers.engines.deadline import Deadline
from solvers.errors import EngineError
from solvers.planners import registry
from solvers.planners.base import Knob, PlannerSpec, PlanRequest, Recalling, Thought
from solvers.planners.joint.change import Solve, remember, solved
from solvers.planners.joint.explain.explaining import explained
from solvers.planners.joint.propose import Attempt, Found, Rivals, affords_first, counted_for, rivals_of, seats_of
from solvers.planners.joint.reading.formulation import read
from solvers.planners.joint.solve.solve import solve
from solvers.planners.joint.spare import open_ended
from solvers.planners.joint.write import Seated
from solvers.problems.patterns import Layout

SPEC = PlannerSpec(
    name="joint",
    about="all knobs in one problem, with a proven bound",
    version="1",
    knobs=tuple(Knob),
    leaves_clock_open=True,
)
GAP_PROVEN_PCT = 1e-4


@dataclass(frozen=True, slots=True)
class Joint(Recalling):
    """See the module. `solve` can be another one in tests; `first` names who answers first and must be quick."""

    solve: Solve = field(default=solve)
    first: str = "greedy"

    @property
    def spec(self) -> PlannerSpec:
        """Name, version, knobs."""
        return SPEC

    def first_state(self) -> bytes:
        """Nothing remembered."""
        return b""

    def think(self, request: PlanRequest, state: bytes, reporter: Reporter) -> Thought:
        """A plan always, and the patterns to begin with next time. Raises EngineError when the solver fails and there
        was no time for a first plan.
        """
        clock = Deadline(request.budget.deadline_s)
        first = registry.propose(self.first, request, reporter=reporter).plan if affords_first(request) else None
        reading = read(request.snapshot, request.movable)
        attempt = Attempt(
            spec=SPEC, request=request, reading=reading, clock=clock, first=None if first is None else _own(first)
        )
        if attempt.first is not None and not (reading.problem.workloads and reading.problem.kinds):
            return Thought(proposal=self._fallen_back(attempt, attempt.first))
        try:
            return self._improve(attempt, state, reporter)
        except EngineError as error:
            if attempt.first is None:
                raise
            reporter.event("joint.failed", error=error.message)
            facts = (Fact(name="error", value=error.message),)
            reason = Reason(code=ReasonCode.SOLVER_FAILED, subject=SPEC.name, facts=facts)
            return Thought(proposal=self._fallen_back(attempt, attempt.first, reason))

    def _improve(self, attempt: Attempt, state: bytes, reporter: Reporter) -> Thought:
        request, reading = attempt.request, attempt.reading
        whole = counted_for(attempt)
        answer = solved(self.solve, request, reading, state, attempt.solve_deadline())
        found, layout = Found(solved=answer, counted=whole), answer.found
        seated = Seated(
            request=request,
            reading=reading,
            seats=seats_of(attempt, found),
            first=attempt.first,
            open_ended=open_ended(reading.snapshot),
        )
        rivals = rivals_of(attempt, seated, found, self.first)
        usd_per_h = rivals.plans[SPEC.name].objective.cost_usd_per_h
        reporter.event("joint.solved", chosen=rivals.chosen, usd_per_h=usd_per_h, **layout.facts)
        # How long it took is told but is no part of the answer: equal answers are equal.
        told = {name: float(number) for name, number in layout.facts.items() if not name.endswith("_s")}
        facts = tuple(Fact(name=name, value=number) for name, number in sorted(told.items()))
        kept = remember(reading.problem, answer.patterns, answer.full_at_s)
        return Thought(proposal=_proposal(attempt, rivals, layout, facts=facts), state=kept)

    def _fallen_back(self, attempt: Attempt, first: Plan, *reasons: Reason) -> Proposal:
        rivals = Rivals(plans={self.first: first}, chosen=self.first)
        return _proposal(attempt, rivals, Layout(patterns=(), counts=()), reasons=reasons)


def _own(plan: Plan) -> Plan:
    """Another planner's plan as ours: we answer for it."""
    return replace(plan, planner=SPEC.name, planner_version=SPEC.version)


def _proposal(
    attempt: Attempt,
    rivals: Rivals,
    layout: Layout,
    *,
    reasons: tuple[Reason, ...] = (),
    facts: tuple[Fact, ...] = (),
) -> Proposal:
    """With what was found out on the way, where there is time for it."""
    plan = rivals.plan
    optimal = plan.gap_pct is not None and plan.gap_pct <= GAP_PROVEN_PCT
    contenders = tuple(
        Contender(name=name, objective=item.objective, bound_usd_per_h=item.bound_usd_per_h, gap_pct=item.gap_pct)
        for name, item in rivals.plans.items()
    )
    told = explained(attempt.reading, layout, plan, attempt.left_s) or Insight()
    return Proposal(
        status=ProposalStatus.OPTIMAL if optimal else ProposalStatus.FEASIBLE,
        planner=SPEC.name,
        plan=plan,
        reasons=(*reasons, _summary(plan)),
        insight=replace(told, contenders=contenders, facts=(*facts, *told.facts)),
    )


def _summary(plan: Plan) -> Reason:
    facts = [
        Fact(name="usd_per_h", value=round(plan.objective.cost_usd_per_h, 6)),
        Fact(name="devices_in_use", value=float(len({item.device for item in plan.assignments}))),
        Fact(name="unserved", value=round(plan.objective.unserved, 6)),
    ]
    if plan.bound_usd_per_h is not None and plan.gap_pct is not None:
        facts.append(Fact(name="bound_usd_per_h", value=round(plan.bound_usd_per_h, 6)))
        facts.append(Fact(name="gap_pct", value=round(plan.gap_pct, 4)))
    return Reason(code=ReasonCode.CHEAPEST_FEASIBLE, subject=SPEC.name, facts=tuple(facts))
