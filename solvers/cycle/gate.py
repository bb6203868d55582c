"""Whether a verified plan is promoted, or held for enumerated reasons with their facts.

What a plan must be worth is `models.worth`'s to say; of a planner that does not pursue cost it need only be no worse
in what that pursues. Urgent is also what a person forced, and what repairs a target that today's rules forbid; urgency
sets cooldown and small gain aside. Any other plan waits for the cooldown after whatever promotion. Only the first plan
and a forced one may exceed the churn budget. Fatal findings, stale data and GPUs that nobody has rented yet hold
whatever the urgency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from solvers.cycle.ports import CycleOrder
from solvers.cycle.record import Decision, HoldReason, Lane
from solvers.domain.change import Transition
from solvers.domain.device import OFFERED
from solvers.domain.evidence import Fact, Finding, Severity
from solvers.domain.ids import DeviceId, NodeId, WorkloadId
from solvers.domain.plan import Plan
from solvers.domain.policy import Term
from solvers.domain.snapshot import Snapshot
from solvers.domain.telemetry import DemandOrigin
from solvers.domain.workload import ServiceMode
from solvers.models.worth import Step
from solvers.planners.registry import pursued
from solvers.problems.fleet import silent_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCase:
    """What the gate judges. `standing` is the target restated as a plan under the present snapshot; `plan` None: nobody
    had one.
    """

    order: CycleOrder
    snapshot: Snapshot
    movable: tuple[WorkloadId, ...]
    plan: Plan | None
    findings: tuple[Finding, ...] = ()
    transition: Transition = field(default_factory=lambda: Transition(changes=()))
    standing: Plan | None = None
    standing_findings: tuple[Finding, ...] = ()


def gate(case: GateCase) -> Decision:
    """Promote when nothing holds."""
    if case.plan is None or case.standing is None:
        return _hold({HoldReason.NO_PLAN: ()})
    fatal = [finding for finding in case.findings if finding.severity is Severity.FATAL]
    if fatal:
        return _hold({HoldReason.FATAL_FINDINGS: (Fact(name="findings_fatal", value=float(len(fatal))),)})
    renewed = not set(case.order.outdated).isdisjoint(case.movable)
    if not case.transition.changes and not renewed:
        return _with_lane(case, {HoldReason.NOTHING_TO_CHANGE: ()})
    step = Step(snapshot=case.snapshot, standing=case.standing.objective, plan=case.plan, transition=case.transition)
    urgent = _urgent(case, step)
    holds = _staleness(case, case.plan, demand_matters=not step.lost) | _rental(case.plan)
    if case.order.lane is Lane.ACT:
        holds |= _cooldown(case, urgent=urgent)
        holds |= _churn(case, step)
    if not urgent:
        holds |= _small_gain(case, step)
    return _with_lane(case, holds)


def asks_for(
    snapshot: Snapshot, transition: Transition, outdated: tuple[WorkloadId, ...] = ()
) -> tuple[WorkloadId, ...]:
    """Workloads on approve that a plan changes, on whose devices it sets another clock or power, or whose processes it
    tells something new: what somebody has to decide on.
    """
    mine = {WorkloadId(work.id) for work in snapshot.works if work.mode is ServiceMode.APPROVE}
    touched = {item.workload for change in transition.changes for item in (change.before, change.after) if item}
    settled = {change.subject for change in transition.changes if change.setting_after is not None}
    on_them = {item.workload for item in snapshot.target.assignments if item.device in settled}
    return tuple(sorted(mine & {*touched, *on_them, *outdated}))


def _with_lane(case: GateCase, holds: dict[HoldReason, tuple[Fact, ...]]) -> Decision:
    if case.order.lane is Lane.SHADOW:
        return _hold(holds | {HoldReason.SHADOW_ONLY: ()})
    if holds:
        return _hold(holds)
    if case.order.lane is Lane.APPROVE and not asks_for(case.snapshot, case.transition, case.order.outdated):
        # What else changes is the acting lane's.
        return _hold({HoldReason.NOTHING_TO_CHANGE: ()})
    if case.order.lane is Lane.APPROVE or not case.order.promote:
        return _hold({HoldReason.AWAITING_APPROVAL: ()})
    return Decision(promote=True)


def _hold(holds: dict[HoldReason, tuple[Fact, ...]]) -> Decision:
    reasons = tuple(reason for reason in HoldReason if reason in holds)
    return Decision(promote=False, reasons=reasons, facts=tuple(fact for reason in reasons for fact in holds[reason]))


def _urgent(case: GateCase, step: Step) -> bool:
    """Whether hysteresis is set aside: for what the snapshot tells, because somebody asks, or because the plan repairs
    what today's rules forbid.
    """
    # Only what the plan repairs is urgent: a rule that no plan can keep must not set hysteresis aside for ever.
    remaining = {(finding.code, finding.subject) for finding in case.findings}
    broken = any(
        finding.severity is Severity.FATAL and (finding.code, finding.subject) not in remaining
        for finding in case.standing_findings
    )
    renewed = not set(case.order.outdated).isdisjoint(case.movable)
    return step.urgent or broken or renewed or case.order.forced


def _staleness(case: GateCase, plan: Plan, *, demand_matters: bool) -> dict[HoldReason, tuple[Fact, ...]]:
    """Silence of nodes that the plan uses, and of the edges that count its demand. A lost device cannot wait for the
    edges. When nobody is heard at all, it is we who are deaf: every node is taken to be silent, not lost.
    """
    limit_s, movable = case.snapshot.policy.stale_after_s, set(case.movable)
    node_of: dict[DeviceId, NodeId] = {device.id: device.node for device in case.snapshot.devices}
    used = {node_of[item.device] for item in plan.assignments if item.workload in movable and item.device in node_of}
    ages = {status.node: status.age_s for status in case.snapshot.node_statuses}
    deaf = case.order.deaf or len(silent_nodes(case.snapshot)) == len(case.snapshot.nodes)
    if deaf:
        used |= {node_of[item.device] for item in case.snapshot.target.assignments if item.device in node_of}
    facts: list[Fact] = []
    for node in sorted(used):
        age_s = ages.get(node)
        if deaf or age_s is None or age_s > limit_s:
            facts.append(Fact(name="node_silent", value=node))
    for demand in case.snapshot.demands if demand_matters else ():
        observed = demand.origin is DemandOrigin.OBSERVED and WorkloadId(demand.service) in movable
        if observed and demand.age_s > limit_s:
            facts.append(Fact(name="demand_silent", value=demand.service))
    return {HoldReason.STALE_DATA: tuple(facts)} if facts else {}


def _rental(plan: Plan) -> dict[HoldReason, tuple[Fact, ...]]:
    """How many GPUs of each offer somebody would have to rent first."""
    devices = {item.device for item in plan.assignments if item.device.startswith(OFFERED)}
    counts = Counter(device.removeprefix(OFFERED).rsplit(".", 2)[0] for device in devices)
    facts = tuple(Fact(name=f"gpus_of_{offer}", value=float(count)) for offer, count in sorted(counts.items()))
    return {HoldReason.AWAITING_RENTAL: facts} if facts else {}


def _cooldown(case: GateCase, *, urgent: bool) -> dict[HoldReason, tuple[Fact, ...]]:
    since_s = case.snapshot.taken_at_s - case.snapshot.target.promoted_at_s
    left_s = case.snapshot.policy.cooldown_s - since_s
    if urgent or left_s <= 0:
        return {}
    return {HoldReason.COOLDOWN: (Fact(name="cooldown_left_s", value=round(left_s, 3)),)}


def _churn(case: GateCase, step: Step) -> dict[HoldReason, tuple[Fact, ...]]:
    if case.order.forced or step.within_churn:
        return {}
    facts = [
        Fact(name="changes", value=float(step.counted_changes)),
        Fact(name="changes_max", value=float(case.snapshot.policy.changes_max)),
    ]
    if step.changes_after:
        facts.append(Fact(name="changes_after", value=float(step.changes_after)))
    return {HoldReason.CHURN_BUDGET: tuple(facts)}


def _small_gain(case: GateCase, step: Step) -> dict[HoldReason, tuple[Fact, ...]]:
    """Only reached when nothing is urgent."""
    if step.gains_enough or _as_pursued(case, step):
        return {}
    terms, now, then = case.snapshot.policy.terms, step.standing, step.aim
    facts = [
        Fact(name="gain_usd_per_h", value=round(step.saved_usd_per_h, 6)),
        Fact(name="gain_usd_per_h_min", value=round(step.asked_usd_per_h, 6)),
    ]
    if Term.CAPACITY in terms:
        facts.append(Fact(name="gain_capacity_rps", value=round(then.capacity_rps - now.capacity_rps, 6)))
    if Term.TRAINING in terms:
        facts.append(Fact(name="gain_training_rate", value=round(then.training_rate - now.training_rate, 6)))
    return {HoldReason.SMALL_GAIN: tuple(facts)}


def _as_pursued(case: GateCase, step: Step) -> bool:
    """Whether a plan of who does not pursue cost is no worse in what he does pursue."""
    policy = case.snapshot.policy
    terms = pursued(policy, step.plan.planner) if case.order.by_pursuit else policy.terms
    return Term.COST not in terms and step.aim.key(terms) <= step.standing.key(terms)


def fatal_words(findings: Iterable[Finding], places: Mapping[str, str] | None = None) -> str:
    """The fatal findings in words with their subjects, the first few; devices as `places` names them."""
    named = [
        f"{item.code.value.replace('_', ' ')} ({(places or {}).get(item.subject, item.subject)})"
        for item in findings
        if item.severity is Severity.FATAL
    ]
    rest = f" and {len(named) - 5} more" if len(named) > 5 else ""
    return ", ".join(named[:5]) + rest
