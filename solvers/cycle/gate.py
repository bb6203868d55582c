"""Whether a verified plan is worth acting on now: promote, or hold for enumerated reasons with their facts.

Owns hysteresis. The standing target is judged by the same snapshot and the same objective as the plan, its terms in the
policy's order. A plan is urgent when it is the first one, was forced by a person, is better because it serves more or
risks less, replaces what stands on lost devices, or repairs a target that today's rules forbid; urgency sets cooldown
and small gain aside. Any other plan only saves: it waits for the cooldown after whatever promotion, and must be worth
its changes to what it touches: the bill of the workloads, or by the device basis the cost of the devices. Where a term
of which more is better decides, it must grow by the policy's part of what stands instead. The churn
budget counts starts and stops of replicas, but for those on lost devices and for new replicas that serve more; only the
first plan and a forced one may exceed it. Fatal findings, stale data and GPUs that nobody has rented yet hold whatever
the urgency. It refuses to plan and to act.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from solvers.cycle.order import CycleOrder
from solvers.cycle.record import Decision, HoldReason, Lane
from solvers.domain.change import ChangeKind, Transition
from solvers.domain.evidence import Fact, Finding, Severity
from solvers.domain.ids import DeviceId, NodeId, ReplicaId, WorkloadId
from solvers.domain.objective import Term
from solvers.domain.offer import OFFERED
from solvers.domain.plan import Plan
from solvers.domain.policy import CostBasis
from solvers.domain.snapshot import Snapshot
from solvers.domain.telemetry import DemandOrigin
from solvers.models.worth import cost_by_device
from solvers.problems.fleet import open_fleet

DUST = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
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


def gate(case: Case) -> Decision:
    """Promote when nothing holds."""
    if case.plan is None or case.standing is None:
        return _hold({HoldReason.NO_PLAN: ()})
    fatal = [finding for finding in case.findings if finding.severity is Severity.FATAL]
    if fatal:
        return _hold({HoldReason.FATAL_FINDINGS: (Fact(name="findings_fatal", value=float(len(fatal))),)})
    renewed = not set(case.order.outdated).isdisjoint(case.movable)
    if not case.transition.changes and not renewed:
        return _with_lane(case, {HoldReason.NOTHING_TO_CHANGE: ()})
    lost = lost_replicas(case.snapshot)
    served_more, urgent = _urgency(case, case.plan, case.standing, lost)
    urgent = urgent or renewed
    holds = _staleness(case, case.plan, demand_matters=not lost) | _rental(case.plan)
    if case.order.lane is Lane.ACT:
        holds |= _cooldown(case, urgent=urgent)
        holds |= _churn(case, lost, served_more=served_more)
    if not urgent:
        holds |= _small_gain(case, case.plan, case.standing)
    return _with_lane(case, holds)


def _with_lane(case: Case, holds: dict[HoldReason, tuple[Fact, ...]]) -> Decision:
    if case.order.lane is Lane.SHADOW:
        return _hold(holds | {HoldReason.SHADOW_ONLY: ()})
    if holds:
        return _hold(holds)
    if case.order.lane is Lane.APPROVE or not case.order.promote:
        return _hold({HoldReason.AWAITING_APPROVAL: ()})
    return Decision(promote=True)


def _hold(holds: dict[HoldReason, tuple[Fact, ...]]) -> Decision:
    reasons = tuple(reason for reason in HoldReason if reason in holds)
    return Decision(promote=False, reasons=reasons, facts=tuple(fact for reason in reasons for fact in holds[reason]))


def lost_replicas(snapshot: Snapshot) -> frozenset[ReplicaId]:
    """Replicas of the target whose device is gone, sick or silent."""
    heard = _heard(snapshot)
    sick = {reading.device for reading in snapshot.device_telemetry if not reading.healthy}
    fine = {device.id for device in snapshot.devices if device.node in heard and device.id not in sick}
    return frozenset(item.replica for item in snapshot.target.assignments if item.device not in fine)


def _heard(snapshot: Snapshot) -> frozenset[NodeId]:
    """Nodes that reported lately enough to be planned on."""
    limit_s = snapshot.policy.device_silent_after_s
    return frozenset(
        status.node for status in snapshot.node_statuses if status.age_s is not None and status.age_s <= limit_s
    )


def _decisive(case: Case, plan: Plan, standing: Plan) -> tuple[Term, bool] | None:
    """The first term, in the policy's order, by which plan and target differ, and whether the plan is better in it."""
    term = plan.objective.decisive(standing.objective, case.snapshot.policy.terms)
    if term is None:
        return None
    return term, plan.objective.key((term,)) < standing.objective.key((term,))


def _urgency(case: Case, plan: Plan, standing: Plan, lost: frozenset[ReplicaId]) -> tuple[bool, bool]:
    """Whether the plan serves more, and whether it is urgent for any reason."""
    now, then = standing.objective, plan.objective
    decisive = _decisive(case, plan, standing)
    better = decisive is not None and decisive[1]
    served_more = better and then.unserved < now.unserved - DUST
    less_risk = better and then.slo_risk < now.slo_risk - DUST and then.unserved <= now.unserved + DUST
    # Only what the plan repairs is urgent: a rule that no plan can keep must not set hysteresis aside for ever.
    remaining = {(finding.code, finding.subject) for finding in case.findings}
    broken = any(
        finding.severity is Severity.FATAL and (finding.code, finding.subject) not in remaining
        for finding in case.standing_findings
    )
    first = case.snapshot.target.generation == 0
    moved = any(change.subject in lost for change in case.transition.changes)
    return served_more, served_more or less_risk or broken or first or moved or case.order.forced


def _staleness(case: Case, plan: Plan, *, demand_matters: bool) -> dict[HoldReason, tuple[Fact, ...]]:
    """Silence of nodes that the plan uses, and of the edges that count its demand. A lost device cannot wait for the
    edges. When nobody is heard at all, it is we who are deaf: every node is taken to be silent, not lost.
    """
    limit_s, movable = case.snapshot.policy.stale_after_s, set(case.movable)
    node_of: dict[DeviceId, NodeId] = {device.id: device.node for device in case.snapshot.devices}
    used = {node_of[item.device] for item in plan.assignments if item.workload in movable and item.device in node_of}
    ages = {status.node: status.age_s for status in case.snapshot.node_statuses}
    deaf = not _heard(case.snapshot)
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


def _cooldown(case: Case, *, urgent: bool) -> dict[HoldReason, tuple[Fact, ...]]:
    since_s = case.snapshot.taken_at_s - case.snapshot.target.promoted_at_s
    left_s = case.snapshot.policy.cooldown_s - since_s
    if urgent or left_s <= 0:
        return {}
    return {HoldReason.COOLDOWN: (Fact(name="cooldown_left_s", value=round(left_s, 3)),)}


def _churn(case: Case, lost: frozenset[ReplicaId], *, served_more: bool) -> dict[HoldReason, tuple[Fact, ...]]:
    if case.order.forced or case.snapshot.target.generation == 0:
        return {}
    counted = tuple(
        change
        for change in case.transition.changes
        if change.subject not in lost and not (served_more and change.kind is ChangeKind.START)
    )
    voluntary = Transition(changes=counted)
    changes, most = voluntary.process_starts + voluntary.process_stops, case.snapshot.policy.changes_max
    if changes <= most:
        return {}
    facts = (Fact(name="changes", value=float(changes)), Fact(name="changes_max", value=float(most)))
    return {HoldReason.CHURN_BUDGET: facts}


def _small_gain(case: Case, plan: Plan, standing: Plan) -> dict[HoldReason, tuple[Fact, ...]]:
    """Only reached when nothing is urgent: then the plan must be better, and by enough: cheaper, or more by the term of
    which more is better that decides.
    """
    policy, now, then = case.snapshot.policy, standing.objective, plan.objective
    if then.rises(now, policy.terms, policy.gain_pct_min / 100):
        return {}
    gain = now.cost_usd_per_h - then.cost_usd_per_h
    decisive = _decisive(case, plan, standing)
    least = _least_gain_usd_per_h(case, standing)
    if gain >= least and decisive is not None and decisive[1]:
        return {}
    facts = [
        Fact(name="gain_usd_per_h", value=round(gain, 6)),
        Fact(name="gain_usd_per_h_min", value=round(least, 6)),
    ]
    if Term.CAPACITY in policy.terms:
        facts.append(Fact(name="gain_capacity_rps", value=round(then.capacity_rps - now.capacity_rps, 6)))
    if Term.TRAINING in policy.terms:
        facts.append(Fact(name="gain_training_rate", value=round(then.training_rate - now.training_rate, 6)))
    return {HoldReason.SMALL_GAIN: tuple(facts)}


def _least_gain_usd_per_h(case: Case, standing: Plan) -> float:
    """What a plan must save: an amount, a part of what it touches costs now, and what its launches are worth."""
    policy, changes = case.snapshot.policy, case.transition.changes
    launches = policy.launch_usd_per_s * sum(change.cost_s for change in changes)
    return max(policy.gain_usd_per_h_min, policy.gain_pct_min / 100 * _touched_usd_per_h(case, standing), launches)


def _touched_usd_per_h(case: Case, standing: Plan) -> float:
    """What stands of the workloads with changed replicas; by the device basis, what the devices with changes cost."""
    snapshot, changes = case.snapshot, case.transition.changes
    ends = [end for change in changes for end in (change.before, change.after) if end is not None]
    held = {setting.device: setting for setting in standing.settings}
    if snapshot.policy.cost_basis is not CostBasis.DEVICE:
        workloads = {end.workload for end in ends}
        touched = tuple(item for item in standing.assignments if item.workload in workloads)
    else:
        devices = {end.device for end in ends} | {change.subject for change in changes if change.setting_after}
        touched = tuple(item for item in standing.assignments if item.device in devices)
    return sum(cost_by_device(snapshot, open_fleet(snapshot, {}), touched, held).values())


def fatal_codes(findings: Iterable[Finding]) -> str:
    """Codes of the fatal findings with their subjects, the first few, for an attempt's error."""
    named = [f"{item.code.value} ({item.subject})" for item in findings if item.severity is Severity.FATAL]
    rest = f" and {len(named) - 5} more" if len(named) > 5 else ""
    return ", ".join(named[:5]) + rest
