"""One plan of the plans of all parts.

Owns what the whole is: everybody's replicas once, settings by the owner of the device, the sums of what is unserved, at
risk, paid, launched, carried and trained, the imbalance of the least balanced part, and a bound only where every part
proved one. A
replica that stands on a device of another policy and has no new place yet stays there, as long as its service is short
and its owner's limits allow. It refuses to plan and to verify.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from solvers.cycle.dividing import Part
from solvers.domain.codec import picture_digest
from solvers.domain.evidence import Contender, Fact, Insight, Relaxation, ShadowPrice
from solvers.domain.ids import WorkloadId
from solvers.domain.plan import Assignment, Plan, PlanPart, Proposal, ProposalStatus
from solvers.domain.policy import Objective
from solvers.domain.snapshot import Snapshot
from solvers.models.worth import cost_by_device
from solvers.problems.fleet import open_fleet

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
                (each for item in settled for each in item.plan.unplaced),
                key=lambda item: (item.kind, item.workload),
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


def waits_elsewhere(settled: tuple[SettledPart, ...]) -> bool:
    """Whether anything stays on a device of another policy only because it has no place of its own yet."""
    return any(_left(item, waiting=True) != _left(item, waiting=False) for item in settled)


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
        free = quotas.get(_project(each)) is None and (service is None or service.budget_usd_per_h is None)
        most = 1 if service is None else service.replicas_max
        placed = any(own.workload == each.workload for own in _own(item))
        if counts[each.workload] < most and (free or not placed):
            counts[each.workload] += 1
            found.append(each)
    return found


def _project(item: Assignment) -> str:
    return item.workload.split("/", 1)[0]


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
        objective, bound = replace(objective, cost_usd_per_h=cost), None
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
    )


def _bound(parts: tuple[PlanPart, ...]) -> float | None:
    """Of all, as they are divided: parts that cost nothing need no proof."""
    bounds = [part.bound_usd_per_h for part in parts if part.objective.cost_usd_per_h > 0.0]
    known = [bound for bound in bounds if bound is not None]
    return sum(known) if known and len(known) == len(bounds) else None


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
