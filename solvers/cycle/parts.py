"""Several policies in one cycle: each plans its part by its own chain, and is judged by its own gate.

Owns the order of things: a part is planned, judged, and settled (its plan, or what stands where nobody had a sound plan
or the gate holds it) before the next one gets what is left; then all are one plan, which is verified whole. So one
policy's cooldown or stale node holds nobody else's change. Where one policy decides on everything there are no parts
and nothing of this happens. It refuses to act.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from solvers.cycle.attempts import Asking, ChosenPlan, try_chain
from solvers.cycle.dividing import Division, Part
from solvers.cycle.merging import SettledPart, merged, waits_elsewhere
from solvers.cycle.record import Attempt, Decision, HoldReason
from solvers.domain.evidence import Fact, Finding, Severity
from solvers.domain.ids import PolicyName
from solvers.domain.ownership import Work, moved_by
from solvers.domain.plan import Plan
from solvers.errors import EngineError
from solvers.planners.base import Budget, PlanRequest
from solvers.planners.chain import KeepTarget
from solvers.verify.checks import is_fatal

LANE_HOLDS = frozenset({HoldReason.AWAITING_APPROVAL, HoldReason.SHADOW_ONLY})
"""What holds every plan of such a cycle, however good it is."""

Judge = Callable[[Part, ChosenPlan], Decision]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How parts are planned. `planners` None: by each policy's chain; `budget` None: by each policy's. `judge` None:
    every sound plan is taken; `obeyed` False: it is asked, and its holds keep nobody's plan out.
    """

    planners: tuple[str, ...] | None = None
    budget: Budget | None = None
    judge: Judge | None = None
    obeyed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """The plan of all, and what each policy's gate said."""

    chosen: ChosenPlan
    decisions: tuple[tuple[PolicyName, Decision], ...] = ()


def try_policies(asking: Asking, request: PlanRequest, course: Course) -> ChosenPlan:
    """The plan of whoever decides: of one chain, or of every policy's. Nobody's gate is asked."""
    if request.snapshot.policies:
        return try_parts(asking, request, replace(course, judge=None)).chosen
    return try_chain(asking, course.planners or request.snapshot.policy.planners, request)


def try_parts(asking: Asking, request: PlanRequest, course: Course) -> Together:
    """One plan of all policies' plans; none where nobody had any. Refuted plans of a part are in its attempts only."""
    attempts: list[Attempt] = []
    decisions: list[tuple[PolicyName, Decision]] = []
    division = Division.of(request.snapshot, request.movable, course.budget)
    settled: list[SettledPart] = []
    sound = False
    for policy in division.policies:
        part = division.part(policy)
        item, chosen, decision = _settle(asking, part, request.seed, course)
        sound = sound or chosen.sound
        attempts += [replace(attempt, policy=policy.name) for attempt in chosen.attempts]
        if decision is not None:
            decisions.append((policy.name, decision))
        division.settle(part, item.plan)
        settled.append(item)
    if attempts and not sound:
        return Together(chosen=ChosenPlan(tuple(attempts)), decisions=tuple(decisions))
    found = whole_plan(asking, request, tuple(settled))
    return Together(chosen=replace(found, attempts=tuple(attempts)), decisions=tuple(decisions))


def whole_plan(asking: Asking, request: PlanRequest, settled: tuple[SettledPart, ...]) -> ChosenPlan:
    """All parts as one plan, verified whole. What waits on a device of another policy may stay where that is sound."""
    whole, seed = request.snapshot, request.seed
    found = ChosenPlan((), merged(whole, settled, seed))
    plan = found.plan
    if plan is None:
        return found
    movable = moved_by(plan, whole, request.movable)
    found = replace(found, findings=asking.verify(whole, plan, movable))
    if found.sound or not waits_elsewhere(settled):
        return found
    stricter = merged(whole, settled, seed, waiting=False)
    if stricter.plan is None:
        return found
    findings = asking.verify(whole, stricter.plan, movable)
    return found if is_fatal(findings) else ChosenPlan((), stricter, findings)


def standing(part: Part, seed: int, asking: Asking) -> Plan:
    """What stands in a part, by its present picture, without what can stand no more: nobody's replicas, and those whose
    device is gone.
    """
    picture = part.snapshot
    known: tuple[Work, ...] = (*picture.services, *picture.jobs, *picture.tasks)
    works = {str(item.id) for item in known}
    devices = {item.id for item in picture.devices} | {item.device for item in part.elsewhere}
    target = replace(
        picture.target,
        assignments=tuple(
            item for item in picture.target.assignments if item.workload in works and item.device in devices
        ),
    )
    request = replace(part.request(seed), snapshot=replace(picture, target=target))
    plan = KeepTarget().propose(request, b"", asking.reporter).plan
    if plan is None:
        raise EngineError("what stands could not be restated")
    return plan


def decided(decisions: tuple[tuple[PolicyName, Decision], ...], findings: tuple[Finding, ...]) -> Decision:
    """Promote what any part wants changed; hold for what all parts are held for. Facts bear their policy's name."""
    fatal = sum(finding.severity is Severity.FATAL for finding in findings)
    if fatal:
        fact = Fact(name="findings_fatal", value=float(fatal))
        return Decision(promote=False, reasons=(HoldReason.FATAL_FINDINGS,), facts=(fact,))
    if not decisions:
        return Decision(promote=False, reasons=(HoldReason.NOTHING_TO_CHANGE,))
    if any(decision.promote for _, decision in decisions):
        return Decision(promote=True)
    open_ = [item for item in decisions if set(item[1].reasons) <= LANE_HOLDS]
    held = {reason for _, decision in open_ or decisions for reason in decision.reasons}
    facts = (
        replace(fact, name=f"{policy}.{fact.name}")
        for policy, decision in open_ or decisions
        for fact in decision.facts
    )
    return Decision(promote=False, reasons=tuple(reason for reason in HoldReason if reason in held), facts=tuple(facts))


def _settle(asking: Asking, part: Part, seed: int, course: Course) -> tuple[SettledPart, ChosenPlan, Decision | None]:
    stays = standing(part, seed, asking)
    if part.idle:
        return SettledPart(part=part, plan=stays), ChosenPlan(()), None
    chosen = try_chain(asking, course.planners or part.policy.planners, part.request(seed))
    decision = course.judge(part, chosen) if course.judge is not None else None
    # Where nothing is to change, the planner's plan is what stands, with what it knows of it now.
    reasons = set() if decision is None else set(decision.reasons) - LANE_HOLDS - {HoldReason.NOTHING_TO_CHANGE}
    plan = chosen.plan
    held: set[HoldReason] = reasons if course.obeyed or not chosen.sound else set()
    if not chosen.sound and not held:
        held = {HoldReason.NO_PLAN}
    told = tuple(reason.value for reason in HoldReason if reason in held)
    if plan is None or told:
        return SettledPart(part=part, plan=stays, held=told, proposal=None), chosen, decision
    return SettledPart(part=part, plan=plan, proposal=chosen.proposal), chosen, decision
