"""Several policies in one cycle: each plans its part by its own chain, and is judged by its own gate; and one plan of
all of theirs.

A part is planned, judged, and settled (its plan, or what stands where nobody had a sound plan or the gate holds it)
before the next one gets what is left; then all are one plan, which is verified whole. So one policy's cooldown or stale
node holds nobody else's change. Where one policy decides on everything there are no parts and nothing of this happens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from solvers.cycle.attempts import Asking, ChosenPlan, try_chain
from solvers.cycle.dividing import Division, Part
from solvers.cycle.record import Attempt, Decision, HoldReason
from solvers.domain.codec import picture_digest
from solvers.domain.evidence import Contender, Fact, Finding, Insight, Relaxation, Severity, ShadowPrice
from solvers.domain.ids import PolicyName, WorkloadId
from solvers.domain.ownership import moved_by
from solvers.domain.plan import Assignment, Plan, PlanPart, Proposal, ProposalStatus
from solvers.domain.policy import Objective
from solvers.domain.snapshot import Snapshot
from solvers.errors import EngineError
from solvers.models.worth import cost_by_device
from solvers.planners.base import Budget, PlanRequest
from solvers.planners.chain import SPEC as KEEP
from solvers.planners.chain import KeepTarget
from solvers.planners.joint.certificate import certified
from solvers.problems.fleet import open_fleet
from solvers.verify.checks import is_fatal

# --- One plan of the plans of all parts
#
# A replica that stands on a device of another policy and has no new place yet stays there, as long as its service is
# short and its owner's limits allow.

MERGED = "pools"
"""What made a plan of several policies' plans, where a planner's name stands."""
VERSION = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledPart:
    """What a part ended with. `plan` is by its own picture; `held` says why it is the standing one."""

    part: Part
    plan: Plan
    proposal: Proposal | None = None
    held: tuple[str, ...] = ()


def merged(whole: Snapshot, settled: tuple[SettledPart, ...], seed: int, *, waiting: bool = True) -> Proposal:
    """All parts together. `waiting` False: what has no new place yet does not stay in its old one."""
    left = {item.part.policy.name: _left(item, waiting=waiting) for item in settled}
    assignments = tuple(
        sorted(
            (each for item in settled for each in (*_own(item), *left[item.part.policy.name])),
            key=lambda item: item.replica,
        )
    )
    parts = tuple(_part(item, assignments) for item in settled)
    plan = Plan(
        snapshot=picture_digest(whole),
        parent=whole.target.generation,
        planner=MERGED,
        planner_version=VERSION,
        seed=seed,
        assignments=assignments,
        settings=tuple(sorted((each for item in settled for each in item.plan.settings), key=lambda item: item.device)),
        unplaced=tuple(
            sorted(
                (each for item in settled for each in item.plan.unplaced), key=lambda item: (item.kind, item.workload)
            )
        ),
        objective=_sum(part.objective for part in parts),
        bound_usd_per_h=_bound(parts),
        parts=parts,
    )
    return Proposal(
        status=_status(settled),
        planner=MERGED,
        plan=plan,
        reasons=tuple(
            reason for item in settled for reason in (item.proposal.reasons if item.proposal is not None else ())
        ),
        insight=_insight(settled),
    )


def waiting_on(part: Part, plan: Plan) -> tuple[Assignment, ...]:
    """What of a part's own stays on devices of others while its plan has no new place for it."""
    return _waits(SettledPart(part=part, plan=plan))


def _waits(item: SettledPart) -> tuple[Assignment, ...]:
    return tuple(each for each in _left(item, waiting=True) if each.workload in item.part.movable)


def _own(item: SettledPart) -> list[Assignment]:
    return [each for each in item.plan.assignments if each.replica not in item.part.strangers]


def _left(item: SettledPart, *, waiting: bool) -> list[Assignment]:
    """Replicas that stay on devices of others: what may not move, and what waits for a place."""
    part, planned = item.part, {each.replica for each in _own(item)}
    found = [each for each in part.elsewhere if each.workload not in part.movable]
    if not waiting:
        return found
    counts = Counter(each.workload for each in _own(item))
    short = {each.workload for each in item.plan.unplaced}
    quotas: dict[str, float | None] = {project.name: project.quota_gpus for project in part.snapshot.projects}
    services = {WorkloadId(service.id): service for service in part.snapshot.services}
    for each in part.elsewhere:
        service = services.get(each.workload)
        if each.replica in planned or each.workload not in short or each.workload not in part.movable:
            continue
        quota = quotas.get(each.workload.split("/", 1)[0])
        free = quota is None and (service is None or service.budget_usd_per_h is None)
        most = 1 if service is None else service.replicas_max
        placed = any(own.workload == each.workload for own in _own(item))
        if counts[each.workload] < most and (free or not placed):
            counts[each.workload] += 1
            found.append(each)
    return found


def _part(item: SettledPart, assignments: tuple[Assignment, ...]) -> PlanPart:
    plan, part = item.plan, item.part
    objective, bound = plan.objective, plan.bound_usd_per_h
    if part.strangers:
        # Planned around strangers of whom some are gone by now: what is paid here is counted anew.
        devices = {device.id for device in part.snapshot.devices}
        here = tuple(each for each in assignments if each.device in devices)
        settings = {each.device: each for each in plan.settings}
        fleet = open_fleet(part.snapshot.with_offers(), settings)
        cost = sum(cost_by_device(part.snapshot, fleet, here, settings).values())
        strange = tuple(each for each in part.snapshot.target.assignments if each.replica in part.strangers)
        paid = sum(cost_by_device(part.snapshot, fleet, strange, settings).values())
        objective = replace(objective, cost_usd_per_h=cost)
        bound = None if bound is None else min(cost, max(0.0, bound - paid))
    return PlanPart(
        policy=part.policy.name,
        planner=plan.planner,
        planner_version=plan.planner_version,
        objective=objective,
        bound_usd_per_h=bound,
        held=item.held,
    )


def _sum(objectives: Iterable[Objective]) -> Objective:
    items = tuple(objectives)
    return Objective(
        unserved=sum(item.unserved for item in items),
        slo_risk=sum(item.slo_risk for item in items),
        cost_usd_per_h=sum(item.cost_usd_per_h for item in items),
        churn=sum(item.churn for item in items),
        imbalance=max((item.imbalance for item in items), default=0.0),
        capacity_rps=sum(item.capacity_rps for item in items),
        training_rate=sum(item.training_rate for item in items),
        waiting_usd_per_h=sum(item.waiting_usd_per_h for item in items),
    )


def _bound(parts: tuple[PlanPart, ...]) -> float | None:
    """Of all, as they are divided: of a part of which nothing is proven, that it costs nothing."""
    known = [part.bound_usd_per_h for part in parts if part.bound_usd_per_h is not None]
    return sum(known) if known else None


def _status(settled: tuple[SettledPart, ...]) -> ProposalStatus:
    statuses = {item.proposal.status for item in settled if item.proposal is not None}
    return ProposalStatus.OPTIMAL if statuses == {ProposalStatus.OPTIMAL} else ProposalStatus.FEASIBLE


def _insight(settled: tuple[SettledPart, ...]) -> Insight | None:
    """What all planners told, each part's contenders and facts under its policy's name. A thing that is scarce in
    several parts is worth what it is worth most.
    """
    told = [
        (item.part.policy.name, item.proposal.insight)
        for item in settled
        if item.proposal is not None and item.proposal.insight is not None
    ]
    if not told:
        return None
    prices: dict[tuple[str, str], ShadowPrice] = {}
    contenders: list[Contender] = []
    relaxations: list[Relaxation] = []
    facts: list[Fact] = []
    for name, insight in told:
        contenders += [replace(item, name=f"{name}: {item.name}") for item in insight.contenders]
        facts += [replace(item, name=f"{name}.{item.name}") for item in insight.facts]
        relaxations += [item for item in insight.relaxations if item.workload is not None or len(told) == 1]
        for price in insight.prices:
            key = price.resource.value, price.subject
            if key not in prices or (prices[key].binding, prices[key].usd_per_h) < (price.binding, price.usd_per_h):
                prices[key] = price
    return Insight(
        contenders=tuple(contenders),
        prices=tuple(prices[key] for key in sorted(prices)),
        candidates=tuple(
            sorted(
                (item for _, insight in told for item in insight.candidates),
                key=lambda item: (item.workload, item.gpu_type, item.model),
            )
        ),
        relaxations=tuple(relaxations),
        facts=tuple(facts),
    )


# --- Part by part

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
    """The plan of whoever decides: of one chain, or of every policy's. Nobody's gate is asked, and what is told is
    where a plan leads to.
    """
    if request.snapshot.policies:
        return try_parts(asking, request, replace(course, judge=None)).chosen
    return _arrived(try_chain(asking, course.planners or request.snapshot.policy.planners, request))


def _arrived(chosen: ChosenPlan) -> ChosenPlan:
    proposal = chosen.proposal
    if proposal is None or proposal.plan is None:
        return chosen
    return replace(chosen, proposal=replace(proposal, plan=proposal.plan.arrived))


def try_parts(asking: Asking, request: PlanRequest, course: Course) -> Together:
    """One plan of all policies' plans; none where nobody had any, except of what stands, whatever is wrong with that.
    Refuted plans of a part are in its attempts only.
    """
    attempts: list[Attempt] = []
    decisions: list[tuple[PolicyName, Decision]] = []
    division = Division(request.snapshot, request.movable, course.budget)
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
    if attempts and not sound and course.planners != (KEEP.name,):
        return Together(chosen=ChosenPlan(tuple(attempts)), decisions=tuple(decisions))
    found = whole_plan(asking, request, tuple(settled))
    stands = set[str]() if found.plan is None else {each.replica for each in found.plan.assignments}
    # What may not stay where it is has to be stopped, whether or not its policy's plan changes anything else.
    stopped = [item for item in settled if not item.held and any(each.replica not in stands for each in _waits(item))]
    decisions += [(item.part.policy.name, Decision(promote=True)) for item in stopped]
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
    waits = any(_left(item, waiting=True) != _left(item, waiting=False) for item in settled)
    if found.sound or not waits:
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
    works = {str(item.id) for item in picture.works}
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
    return certified(request, plan)


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
    chosen = _arrived(chosen) if course.judge is None else chosen
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
